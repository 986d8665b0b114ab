//! The search space: policies and their keys.

use vcoop_model::plan::virt::{IdleVirt, TimerVirt};
use vcoop_model::plan::{HostSched, Plan, VmPlan};
use vcoop_model::scenario::Set;
use vcoop_model::sweep::{Range, RangeKind};

/// Name of the policy that a search creates.
pub const TUNED: &str = "tuned";

/// Policies that a search tries by default.
pub const BASES: [&str; 7] =
    ["vanilla", "static", "dynamic", "wake-boost", "pinned", "isolated", "ratelimit-auto"];

/// What a search varies besides policies: only if the scenario has it, or the user asks for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// Who fires guests' timers, and how early.
    pub timers: bool,
    /// What idle vCPUs do, and how long the host polls for them.
    pub idle: bool,
    /// How many of its vCPUs a guest uses.
    pub governors: bool,
    /// Patches of Xen's scheduler.
    pub patches: bool,
}

impl Parts {
    /// The parts that the plans of a scenario have: a timer, an idle loop or a governor that was set, a credit1 host.
    pub fn of(plans: &[Plan]) -> Self {
        let any = |test: fn(&VmPlan) -> bool| plans.iter().any(|plan| plan.vms.iter().any(test));
        Self {
            timers: any(|vm| vm.virt.timer != TimerVirt::default()),
            idle: any(|vm| vm.virt.idle != IdleVirt::default()),
            governors: any(|vm| vm.virt.govern.kind.is_some()),
            patches: plans.iter().any(|plan| matches!(plan.host.sched, HostSched::Credit1(_))),
        }
    }

    fn has(self, part: Part) -> bool {
        match part {
            Part::Policy => true,
            Part::Timers => self.timers,
            Part::Idle => self.idle,
            Part::Governors => self.governors,
            Part::Patches => self.patches,
        }
    }
}

/// The part to which a key belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The policy itself.
    Policy,
    /// See [`Parts::timers`].
    Timers,
    /// See [`Parts::idle`].
    Idle,
    /// See [`Parts::governors`].
    Governors,
    /// See [`Parts::patches`].
    Patches,
}

/// A key of a policy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Key {
    /// Its name; for a patch, its name without the version.
    pub name: &'static str,
    /// Policies that have it.
    pub of: &'static [&'static str],
    /// What it belongs to.
    pub part: Part,
    /// The key without which it has no effect.
    pub needs: Option<&'static str>,
    /// What it can be.
    pub values: Choice,
}

/// Possible values of a key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Choice {
    /// One of these, as TOML; an empty one leaves the key out.
    Words(&'static [&'static str]),
    /// A duration in nanoseconds, uniform in the logarithm.
    Time(f64, f64),
    /// A percentage, uniform in the logarithm.
    Percent(f64, f64),
}

const BOOSTING: [&str; 2] = ["dynamic", "wake-boost"];

const YES_NO: Choice = Choice::Words(&["true", "false"]);

/// Policies of Linux hosts.
const LINUX: [&str; 6] = ["vanilla", "static", "dynamic", "wake-boost", "pinned", "isolated"];

/// Policies that take patches.
const PATCHED: [&str; 2] = ["vanilla", "ratelimit-auto"];

const fn key(name: &'static str, of: &'static [&'static str], values: Choice) -> Key {
    Key { name, of, part: Part::Policy, needs: None, values }
}

const fn part(name: &'static str, part: Part, words: &'static [&'static str]) -> Key {
    Key { name, of: &LINUX, part, needs: None, values: Choice::Words(words) }
}

const fn patch(name: &'static str, versions: &'static [&'static str]) -> Key {
    let values = Choice::Words(versions);
    Key { name, of: &PATCHED, part: Part::Patches, needs: None, values }
}

/// Every key that a search sets. Ranges reach an order of magnitude to either side of the defaults.
pub const KEYS: [Key; 29] = [
    key(
        "means",
        &["static", "dynamic", "wake-boost"],
        Choice::Words(&[
            "\"fifo 8\"",
            "\"rr 8\"",
            "\"nice -20\"",
            "\"nice -10\"",
            "\"slice 100us\"",
        ]),
    ),
    key("vcpu_burst", &BOOSTING, Choice::Time(1e5, 3e7)),
    key("vcpu_refill", &BOOSTING, Choice::Percent(1.0, 100.0)),
    key("run", &["wake-boost"], Choice::Time(5e4, 1e7)),
    key("longest_boost", &["dynamic"], Choice::Time(2e4, 1e7)),
    key("max_preempt_off", &["dynamic"], Choice::Time(1e5, 1e7)),
    key("boost_on_injection", &BOOSTING, YES_NO),
    key("boost_receiver", &["dynamic"], YES_NO),
    key("boost_on_request", &["dynamic"], YES_NO),
    key("boost_across_idle", &["dynamic"], YES_NO),
    key("repay", &BOOSTING, YES_NO),
    key("rest_slice", &BOOSTING, Choice::Words(&["\"0us\"", "\"300us\"", "\"700us\""])),
    key("interval", &["ratelimit-auto"], Choice::Time(1e7, 1e9)),
    key("confirm", &["ratelimit-auto"], Choice::Words(&["1", "2", "4", "8"])),
    part("timer", Part::Timers, &["", "\"lapic\"", "\"hv-timer\"", "\"exitless\""]),
    part("timer_advance", Part::Timers, &["", "\"adaptive\"", "\"5us\"", "\"20us\"", "\"50us\""]),
    part("guest_idle", Part::Idle, &["", "\"hlt\"", "\"haltpoll\"", "\"poll\""]),
    part("halt_poll", Part::Idle, &["", "\"0us\"", "\"50us\"", "\"200us\""]),
    part(
        "governor",
        Part::Governors,
        &["", "\"step\"", "\"proportional\"", "\"entitlement\"", "\"host-hint\""],
    ),
    Key {
        name: "governor_interval",
        of: &LINUX,
        part: Part::Governors,
        needs: Some("governor"),
        values: Choice::Time(1e8, 4e9),
    },
    patch("waker-local", &["", "waker-local"]),
    patch("spread-dom0", &["", "spread-dom0"]),
    patch("dom0-front", &["", "dom0-front"]),
    patch(
        "dom0-preempts-ratelimit",
        &["", "dom0-preempts-ratelimit-as-posted", "dom0-preempts-ratelimit-as-meant"],
    ),
    patch(
        "boost-preempts-ratelimit",
        &["", "boost-preempts-ratelimit-v1", "boost-preempts-ratelimit-v2"],
    ),
    patch(
        "io-wake-ignores-ratelimit",
        &["", "io-wake-ignores-ratelimit-as-posted", "io-wake-ignores-ratelimit-as-meant"],
    ),
    patch("keep-dom0-boost", &["", "keep-dom0-boost-as-posted", "keep-dom0-boost-as-meant"]),
    patch("long-slice-alone", &["", "long-slice-alone-as-posted", "long-slice-alone-as-meant"]),
    patch(
        "migrate-if-blocked",
        &["", "migrate-if-blocked-as-posted", "migrate-if-blocked-as-meant"],
    ),
];

/// Keys that a search with these parts has.
pub fn keys(parts: Parts) -> Vec<Key> {
    KEYS.into_iter().filter(|key| parts.has(key.part)).collect()
}

impl Key {
    /// Whether a setting may have it: its policy has the key, and the key that it needs is set.
    pub fn fits(&self, setting: &Setting) -> bool {
        let there = |needed: &str| setting.keys.iter().any(|(name, _)| name == needed);
        self.of.contains(&setting.base.as_str()) && self.needs.is_none_or(there)
    }
}

impl Choice {
    /// Whether the key can be left out.
    pub fn optional(self) -> bool {
        matches!(self, Self::Words(words) if words.contains(&""))
    }

    /// The value at a share of the choice, 0 up to 1, as TOML has it.
    pub fn at(self, share: f64) -> String {
        let range = |from, to, kind| Range { from, to, log: true, points: None, kind };
        match self {
            Self::Words(words) => {
                let i = ((share * words.len() as f64) as usize).min(words.len() - 1);
                words[i].to_owned()
            }
            Self::Time(from, to) => range(from, to, RangeKind::Duration).at(share).toml,
            Self::Percent(from, to) => range(from, to, RangeKind::Percent).at(share).toml,
        }
    }
}

/// Default values of means given by one word.
pub const MEANS: [(&str, &str); 4] =
    [("fifo", "fifo 8"), ("rr", "rr 8"), ("nice", "nice -20"), ("slice", "slice 100us")];

/// The changes that add a policy named `BASE:MEANS` to a scenario, like `dynamic:nice` or `dynamic:nice -10`; none for
/// other names.
pub fn variant(policy: &str) -> Vec<Set> {
    let Some((base, means)) = policy.split_once(':') else { return Vec::new() };
    let means = MEANS.iter().find(|(word, _)| *word == means).map_or(means, |(_, whole)| whole);
    let set = |key: &str, value: &str| {
        let quoted = value.replace(['"', '\\'], "'");
        Set::of(&format!("policy.{policy}.{key}"), &format!("\"{quoted}\""))
    };
    vec![set("base", base.trim()), set("means", means.trim())]
}

/// A policy with some of its keys set.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Setting {
    /// Policy it starts from.
    pub base: String,
    /// Keys that differ from that policy's, and their values as TOML.
    pub keys: Vec<(String, String)>,
}

impl Setting {
    /// A policy without changes.
    pub fn plain(base: &str) -> Self {
        Self { base: base.to_owned(), keys: Vec::new() }
    }

    /// The changes that add it to a scenario under the name [`TUNED`].
    pub fn sets(&self) -> Vec<Set> {
        let mut sets =
            vec![Set::of(&format!("policy.{TUNED}.base"), &format!("\"{}\"", self.base))];
        let key =
            |(key, value): &(String, String)| Set::of(&format!("policy.{TUNED}.{key}"), value);
        sets.extend(self.assignments().iter().map(key));
        sets
    }

    /// Keys and values as a scenario takes them: patches are one list.
    fn assignments(&self) -> Vec<(String, String)> {
        let is_patch =
            |name: &str| KEYS.iter().any(|key| key.part == Part::Patches && key.name == name);
        let (patches, mut keys): (Vec<_>, Vec<_>) =
            self.keys.iter().cloned().partition(|(name, _)| is_patch(name));
        if !patches.is_empty() {
            let names: Vec<String> =
                patches.iter().map(|(_, name)| format!("\"{name}\"")).collect();
            keys.push(("patches".to_owned(), format!("[{}]", names.join(", "))));
        }
        keys
    }

    /// The same without one of its keys, and without keys that have no effect then.
    pub fn without(&self, key: &str) -> Self {
        let mut other = self.clone();
        let depends =
            |name: &str| KEYS.iter().any(|other| other.name == name && other.needs == Some(key));
        other.keys.retain(|(name, _)| name != key && !depends(name));
        other
    }

    /// As in a scenario file.
    pub fn toml(&self) -> String {
        let mut text = format!("[policy.{TUNED}]\nbase = \"{}\"\n", self.base);
        for (key, value) in &self.assignments() {
            text += &format!("{key} = {value}\n");
        }
        text
    }

    /// In a line.
    pub fn words(&self) -> String {
        let word = |(key, value): &(String, String)| {
            // A patch's value is its whole name.
            if value.starts_with(key.as_str()) {
                value.clone()
            } else {
                format!("{key} {}", value.trim_matches('"'))
            }
        };
        let keys: Vec<String> = self.keys.iter().map(word).collect();
        if keys.is_empty() {
            self.base.clone()
        } else {
            format!("{}: {}", self.base, keys.join(", "))
        }
    }
}
