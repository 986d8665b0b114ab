//! The daemon's configuration: which VM gets which policy.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;

use glob::Pattern;
use serde::Deserialize;
use toml::Spanned;
use vcoop_model::diagnostic::{Diagnostic, Diagnostics, nearest};
use vcoop_model::file;
use vcoop_model::running_vm::RunningVm;
use vcoop_model::scenario::duration;
use vcoop_policy::config::Ns;
use vcoop_service::metrics::Listen;
use vcoop_vmm::{Vm, Vmm};

use crate::policy::{self, PolicyError};
use crate::protocol::Refusal;
use crate::run_folder::RunFolder;

/// The usual path of the file.
pub const USUAL: &str = "/etc/vcoop/vcoop.toml";
/// Largest file that is read.
const MOST_BYTES: u64 = 1 << 20;

/// Configuration of the daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// The first rule that fits a VM decides; a VM that none fits is left alone.
    pub rules: Vec<Rule>,
    /// Where metrics are served.
    pub metrics: Option<Listen>,
    /// Where VMMs connect for a window.
    pub windows: Windows,
    /// How long the engine polls for the next event before it sleeps; 0: not at all.
    pub busy_poll_ns: Ns,
}

/// Longest time to poll for. A sleep costs little beside longer waits.
const MOST_POLL_NS: Ns = 10_000_000;

/// Where VMMs connect for a window. The default is in the folder of the control socket, for root alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Windows {
    /// The socket.
    pub socket: PathBuf,
    /// Group that may connect, beside root.
    pub group: Option<u32>,
    /// Whether windows that are found in memory of guests are used as well. Any user of such a guest can make one, and
    /// so choose where this host writes in the guest's memory.
    pub guest_memory: bool,
}

impl Default for Windows {
    fn default() -> Self {
        Self { socket: RunFolder::usual().join("window.sock"), group: None, guest_memory: false }
    }
}

/// Which VMs get a policy. All patterns that are given have to fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Pattern of the VM's name.
    name: Option<Pattern>,
    /// Pattern of the VMM's name in lower case, however it was written: `qemu`.
    vmm: Option<Pattern>,
    /// Pattern of the control group of the VMM's process.
    cgroup: Option<Pattern>,
    /// The policy.
    pub policy: String,
    /// Its settings, as `--set` has them.
    pub sets: Vec<String>,
}

/// The file as TOML.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    metrics: Option<MetricsKeys>,
    windows: Option<WindowsKeys>,
    engine: Option<EngineKeys>,
    #[serde(default)]
    rule: Vec<RuleKeys>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table, [metrics]")]
struct MetricsKeys {
    listen: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table, [windows]")]
struct WindowsKeys {
    socket: Option<PathBuf>,
    group: Option<String>,
    #[serde(default)]
    guest_memory: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table, [engine]")]
struct EngineKeys {
    busy_poll: toml::Value,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table, [[rule]]")]
struct RuleKeys {
    name: Option<String>,
    vmm: Option<String>,
    cgroup: Option<String>,
    policy: Spanned<String>,
    #[serde(default)]
    settings: BTreeMap<Spanned<String>, Spanned<toml::Value>>,
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// What is wrong with the file, in words.
    pub fn read(path: &std::path::Path) -> Result<Self, Refusal> {
        let at = |e| Refusal::usage(format!("{}: {}", path.display(), file::error_text(&e)));
        let text = file::text(path, MOST_BYTES).map_err(at)?;
        Self::parse(&path.display().to_string(), &text)
    }

    /// Reads the text of a file of this name.
    ///
    /// # Errors
    ///
    /// What is wrong with the file, in words.
    pub fn parse(name: &str, text: &str) -> Result<Self, Refusal> {
        let of_file = |Refusal { why, .. }| Refusal::usage(format!("{name}: {why}"));
        let file: File = toml::from_str(text).map_err(|e| said(name, text, &e))?;
        let metrics = file.metrics.map(|keys| listen(&keys.listen)).transpose().map_err(of_file)?;
        let rules = (1..).zip(file.rule).map(|(number, keys)| {
            let places = RuleSpans::of(&keys, name, text);
            rule(keys).map_err(|wrong| places.said(number, wrong))
        });
        let windows = match file.windows {
            Some(WindowsKeys { socket, group: name, guest_memory }) => {
                let socket = socket.map(|path| absolute("windows.socket", path)).transpose();
                let socket = socket.map_err(of_file)?.unwrap_or(Windows::default().socket);
                let group = name.as_deref().map(group).transpose().map_err(of_file)?;
                Windows { socket, group, guest_memory }
            }
            None => Windows::default(),
        };
        let rules = rules.collect::<Result<_, _>>()?;
        // Also a number without quotes is told that it has no unit.
        let text = |value: &toml::Value| value.as_str().map_or(value.to_string(), str::to_owned);
        let poll = file.engine.map(|keys| busy_poll(&text(&keys.busy_poll)));
        let busy_poll_ns = poll.transpose().map_err(of_file)?.unwrap_or_default();
        Ok(Self { rules, metrics, windows, busy_poll_ns })
    }

    /// What looks like a mistake, in words: a `vmm` that fits none that vcoop knows, and a rule that never applies. The
    /// former is no error, because a rule can name the executable of any other VMM.
    pub fn doubts(&self) -> Vec<String> {
        let known = Vmm::KNOWN.map(|vmm| vmm.to_string().to_lowercase());
        let unknown = |(number, rule): (usize, &Rule)| {
            let pattern = rule.vmm.as_ref()?;
            let fits = known.iter().any(|name| pattern.matches(name));
            let near = || nearest(pattern.as_str(), "they are", &known);
            (!fits).then(|| {
                format!(
                    "rule {number}: vmm = \"{pattern}\" fits no VMM that vcoop knows by name, only other programs of \
                     this name; {}",
                    near()
                )
            })
        };
        let unused = |(number, rule): (usize, &Rule)| {
            let (first, _) =
                (1..number).zip(&self.rules).find(|(_, earlier)| earlier.covers(rule))?;
            Some(format!(
                "rule {number} never applies: rule {first} comes first, and fits all VMs that rule {number} fits"
            ))
        };
        let rules = || (1..).zip(&self.rules);
        rules().filter_map(unknown).chain(rules().filter_map(unused)).collect()
    }

    /// The rule of a VM, and its number from 1.
    pub fn rule(&self, vm: &Vm) -> Option<(usize, &Rule)> {
        (1..).zip(&self.rules).find(|(_, rule)| rule.fits(vm))
    }
}

/// An error of TOML in the text of the file of this name, with its place.
fn said(name: &str, text: &str, error: &toml::de::Error) -> Refusal {
    // serde names the key that is unknown, and then those that are known.
    let mut quoted = error.message().split('`').skip(1).step_by(2);
    let (message, help) = match quoted.next() {
        Some(key) if error.message().starts_with("unknown field") => {
            let known: Vec<&str> = quoted.collect();
            (format!("unknown key `{key}`"), Some(nearest(key, "keys", &known)))
        }
        // Only rules may be several.
        _ if error.message().ends_with("map, expected a sequence") => (
            "`[rule]` is a single table".to_owned(),
            Some("write [[rule]], once for each rule".to_owned()),
        ),
        _ => (error.message().to_owned(), None),
    };
    let place = error.span().unwrap_or_default();
    Refusal::usage(Diagnostics(vec![Diagnostic::at(name, text, place, message, help)]).to_string())
}

/// The number of a group of this host.
fn group(name: &str) -> Result<u32, Refusal> {
    let groups = std::fs::read_to_string("/etc/group").unwrap_or_default();
    let number = |line: &str| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok()).flatten()
    };
    let unknown =
        || Refusal::usage(format!("windows.group = {name:?}: /etc/group has no such group"));
    groups.lines().find_map(number).ok_or_else(unknown)
}

/// A path that does not depend on the folder of a process: clients have others than the daemon.
fn absolute(key: &str, path: PathBuf) -> Result<PathBuf, Refusal> {
    if path.is_absolute() {
        return Ok(path);
    }
    Err(Refusal::usage(format!("{key}: {} is not an absolute path", path.display())))
}

fn listen(text: &str) -> Result<Listen, Refusal> {
    if let Some(path) = text.strip_prefix("unix:") {
        return absolute("metrics.listen", path.into()).map(Listen::Unix);
    }
    match text.parse::<SocketAddr>() {
        Ok(address) if address.ip().is_loopback() => Ok(Listen::Tcp(address)),
        Ok(address) => Err(Refusal::usage(format!(
            "metrics.listen = {text:?}: {} is not this host's own\n  remedy: 127.0.0.1:PORT, behind a \
             proxy that knows who may ask",
            address.ip()
        ))),
        Err(_) => Err(Refusal::usage(format!(
            "metrics.listen = {text:?} is neither unix:PATH nor 127.0.0.1:PORT"
        ))),
    }
}

fn busy_poll(text: &str) -> Result<Ns, Refusal> {
    let wrong = |why: &str| Refusal::usage(format!("engine.busy_poll = {text:?}: {why}"));
    match duration(text) {
        Ok(ns) if ns <= MOST_POLL_NS => Ok(ns),
        Ok(_) => Err(wrong("10ms is the most")),
        Err(why) => Err(wrong(&why)),
    }
}

/// Where a rule's policy and settings are in the file.
struct RuleSpans<'a> {
    file: &'a str,
    text: &'a str,
    policy: Range<usize>,
    /// Each set, and where its key and value are.
    sets: Vec<(String, Range<usize>, Range<usize>)>,
}

impl<'a> RuleSpans<'a> {
    fn of(keys: &RuleKeys, file: &'a str, text: &'a str) -> Self {
        let spans = keys.settings.iter().map(|(key, value)| (key.span(), value.span()));
        let sets = keys.sets().into_iter().zip(spans).map(|(set, (key, value))| (set, key, value));
        Self { file, text, policy: keys.policy.span(), sets: sets.collect() }
    }

    /// What is wrong with the rule of this number, with its place.
    fn said(&self, number: usize, wrong: PolicyError) -> Refusal {
        match wrong {
            PolicyError::Said(Refusal { why, .. }) => {
                let at = Diagnostic::at(self.file, self.text, self.policy.clone(), why, None);
                Refusal::usage(format!("{}:{}: rule {number}: {}", at.file, at.line, at.message))
            }
            PolicyError::Diagnosed(Diagnostics(found)) => {
                let found = found.into_iter().map(|one| self.moved(one)).collect();
                Refusal::usage(Diagnostics(found).to_string())
            }
        }
    }

    /// A diagnostic about the text of a set, moved to its place in the file.
    fn moved(&self, found: Diagnostic) -> Diagnostic {
        let of = self.sets.iter().find(|(set, ..)| *set == found.snippet);
        let Some((set, key, value)) = of else { return found };
        let in_key = set.find('=').is_none_or(|equals| found.column as usize <= equals);
        let span = if in_key { key } else { value };
        Diagnostic::at(self.file, self.text, span.clone(), found.message, found.help)
    }
}

impl RuleKeys {
    /// The settings as `--set` has them.
    fn sets(&self) -> Vec<String> {
        let policy = self.policy.get_ref();
        let settings = self.settings.iter();
        settings.map(|(k, v)| format!("policy.{policy}.{}={}", k.get_ref(), v.get_ref())).collect()
    }
}

fn rule(keys: RuleKeys) -> Result<Rule, PolicyError> {
    let pattern = |key: &str, text: Option<String>| {
        let Some(text) = text else { return Ok(None) };
        let refused = |why: &str| Refusal::usage(format!("{key} = {text:?}: {why}"));
        if text.is_empty() {
            return Err(refused("it matches nothing; without the key the rule matches all"));
        }
        Pattern::new(&text).map(Some).map_err(|e| refused(&e.to_string()))
    };
    let sets = keys.sets();
    let rule = Rule {
        name: pattern("name", keys.name)?,
        vmm: pattern("vmm", keys.vmm.map(|name| name.to_lowercase()))?,
        cgroup: pattern("cgroup", keys.cgroup)?,
        sets,
        policy: keys.policy.into_inner(),
    };
    // A rule that can be applied to no VM is refused before there is one.
    let any = RunningVm { name: "any".to_owned(), vcpus: 1, pcpus: 1 };
    // A policy that no VM can have is refused before its settings are looked at.
    policy::planned(&any, &rule.policy, &[])?;
    policy::planned(&any, &rule.policy, &rule.sets)?;
    Ok(rule)
}

impl Rule {
    fn fits(&self, vm: &Vm) -> bool {
        let fits = |pattern: &Option<Pattern>, text: &str| {
            pattern.as_ref().is_none_or(|pattern| pattern.matches(text))
        };
        fits(&self.name, &vm.name)
            && fits(&self.vmm, &vm.vmm.to_string().to_lowercase())
            && fits(&self.cgroup, vm.cgroup.as_deref().unwrap_or_default())
    }

    /// Whether it surely fits every VM that `other` fits: no pattern of its own is narrower.
    fn covers(&self, other: &Self) -> bool {
        let covers = |own: &Option<Pattern>, theirs: &Option<Pattern>| {
            own.as_ref().is_none_or(|own| own.as_str() == "*" || Some(own) == theirs.as_ref())
        };
        covers(&self.name, &other.name)
            && covers(&self.vmm, &other.vmm)
            && covers(&self.cgroup, &other.cgroup)
    }

    /// Whether the configuration changes anything.
    pub fn acts(&self) -> bool {
        self.policy != "vanilla"
    }
}

#[cfg(test)]
mod tests {
    use super::{Config, Listen};

    #[test]
    fn rules_are_read_and_their_settings_checked() {
        let config = Config::parse(
            "vcoop.toml",
            "[metrics]\nlisten = \"127.0.0.1:9473\"\n\
             [[rule]]\nname = \"web-*\"\nvmm = \"qemu\"\npolicy = \"wake-boost\"\n\
             settings = { run = \"1ms\", vcpu_refill = \"10%\", repay = true }\n\
             [[rule]]\npolicy = \"vanilla\"\n",
        )
        .unwrap();
        assert_eq!(config.metrics, Some(Listen::Tcp("127.0.0.1:9473".parse().unwrap())));
        let sets = &config.rules[0].sets;
        assert!(sets.contains(&"policy.wake-boost.run=\"1ms\"".to_owned()), "{sets:?}");
        assert!(config.rules[0].acts() && !config.rules[1].acts());
        assert_eq!(Config::parse("vcoop.toml", "").unwrap(), Config::default());
        let as_shown = "[[rule]]\nvmm = \"QEMU\"\npolicy = \"vanilla\"\n";
        let rules = Config::parse("vcoop.toml", as_shown).unwrap().rules;
        assert_eq!(rules[0].vmm.as_ref().map(|pattern| pattern.as_str()), Some("qemu"));
        let of = |text| Config::parse("vcoop.toml", text).unwrap().windows.guest_memory;
        assert_eq!(["[windows]\n", "[windows]\nguest_memory = true\n"].map(of), [false, true]);
        let polls = Config::parse("vcoop.toml", "[engine]\nbusy_poll = \"200us\"\n").unwrap();
        assert_eq!(polls.busy_poll_ns, 200_000);
    }

    #[test]
    fn a_vmm_that_is_not_known_is_doubted() {
        let doubts = |vmm: &str| {
            let rule = format!("[[rule]]\nvmm = \"{vmm}\"\npolicy = \"static\"\n");
            Config::parse("vcoop.toml", &rule).unwrap().doubts()
        };
        for vmm in ["qemu", "QEMU", "cloud*", "crosvm", "*"] {
            assert_eq!(doubts(vmm), [""; 0], "{vmm}");
        }
        let [doubt] = &*doubts("qmeu") else { panic!("one") };
        assert!(doubt.starts_with("rule 1: vmm = \"qmeu\" fits no VMM"), "{doubt}");
        assert!(doubt.contains("did you mean `qemu`? they are: qemu, cloud hypervisor"), "{doubt}");
    }

    #[test]
    fn a_rule_behind_one_that_fits_more_is_doubted() {
        let doubts = |rules: &[&str]| {
            let rule = |keys: &&str| format!("[[rule]]\npolicy = \"static\"\n{keys}\n");
            let text: String = rules.iter().map(rule).collect();
            Config::parse("vcoop.toml", &text).unwrap().doubts()
        };
        let web = "name = \"web*\"";
        let both = "name = \"web*\"\nvmm = \"qemu\"";
        for rules in
            [&[web, ""][..], &[both, web, ""], &["vmm = \"qemu\"", web], &["name = \"w\"", web]]
        {
            assert_eq!(doubts(rules), [""; 0], "{rules:?}");
        }
        for rules in [[web, "", both], ["name = \"*\"", web, ""], ["", "", web]] {
            assert!(
                doubts(&rules)
                    .iter()
                    .any(|doubt| doubt.starts_with("rule 3 never applies: rule 1"))
            );
        }
    }

    #[test]
    fn what_is_wrong_is_refused_with_its_place() {
        for (text, says) in [
            (
                "[[rule]]\nnane = \"x\"\npolicy = \"static\"",
                "vcoop.toml:2:1: unknown key `nane`\n 2 | nane = \"x\"\n   | ^^^^\n   = did you mean `name`? keys: name,",
            ),
            ("[[rules]]\n", "did you mean `rule`? keys: metrics, windows, engine, rule"),
            ("[metrics]\nlisen = \"x\"", "unknown key `lisen`"),
            ("[[rule]]\npolicy = 3", "vcoop.toml:2:10: invalid type"),
            ("[rule]\npolicy = \"static\"", "   = write [[rule]], once for each rule"),
            ("metrics = \"127.0.0.1:9473\"", "expected a table, [metrics]\n"),
            ("[[rule]]\nname = \"x\"", "missing field `policy`"),
            ("[[rule]]\npolicy = \"step\"", "vcoop.toml:2: rule 1: step goes by the steal"),
            (
                "[[rule]]\npolicy = \"isolated\"\nsettings = { run = \"1ms\" }",
                "isolated pins vCPUs",
            ),
            (
                "[[rule]]\npolicy = \"static\"\nsettings = { meens = \"rr 1\" }",
                "vcoop.toml:3:14: unknown key `meens`",
            ),
            (
                "[[rule]]\npolicy = \"wake-boost\"\n[rule.settings]\n\nrun = \"3 parsecs\"",
                "vcoop.toml:5:7: ",
            ),
            (
                "[[rule]]\npolicy = \"wake-boost\"\nsettings.run = \"3 parsecs\"",
                "3 | settings.run = \"3 parsecs\"",
            ),
            ("[[rule]]\npolicy = \"static\"\nsettings = { means = \"fifo 99\" }", "up to 89"),
            ("[[rule]]\npolicy = \"static\"\nname = \"a**b\"", "name = \"a**b\""),
            ("[[rule]]\npolicy = \"static\"\nname = \"\"", "name = \"\": it matches nothing"),
            ("[metrics]\nlisten = \"0.0.0.0:80\"", "not this host's own"),
            ("[windows]\nsocket = \"/x\"\ngroup = \"no:such\"", "has no such group"),
            ("[windows]\nsocket = \"x.sock\"", "windows.socket: x.sock is not an absolute path"),
            ("[metrics]\nlisten = \"unix:m\"", "metrics.listen: m is not an absolute path"),
            ("[metrics]\nlisten = \"x\"", "neither unix:PATH nor"),
            ("[engine]\nbusy_poll = \"1s\"", "engine.busy_poll = \"1s\": 10ms is the most"),
            ("[engine]\nbusy_poll = \"200\"", "engine.busy_poll = \"200\": "),
            ("[engine]\nbusy_poll = 200", "engine.busy_poll = \"200\": "),
        ] {
            let why = Config::parse("vcoop.toml", text).unwrap_err().to_string();
            assert!(why.starts_with("vcoop.toml:") && why.contains(says), "{text}: {why}");
        }
    }
}
