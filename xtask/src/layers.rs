//! The layers of tests.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{OnceLock, mpsc};
use std::thread;
use std::time::Instant;

/// Results of the tests of a layer.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Number of tests that passed.
    pub(crate) passed: u64,
    /// Number of tests that failed.
    pub(crate) failed: u64,
    /// Tests that skipped themselves, by reason. `#[ignore]`d tests do not count: they have their own layer, or another
    /// test runs them.
    pub(crate) skipped: BTreeMap<String, u64>,
    /// Tests that failed once and ran again, with the reason.
    pub(crate) again: Vec<String>,
    /// For each failed test the beginning of its output.
    pub(crate) complaints: Vec<String>,
    /// Those of `skipped` that the next summary line will count as passed.
    unnoticed: u64,
    /// Number of further lines of the current complaint to keep.
    complains: usize,
}

/// Maximum number of lines of a complaint repeated at the end.
const COMPLAINT: usize = 20;

impl Tally {
    /// Number of tests that skipped themselves.
    pub(crate) fn skips(&self) -> u64 {
        self.skipped.values().sum()
    }

    /// Updates the counts from a line of a test program's output.
    ///
    /// - `test result: ok. 3 passed; 0 failed; ...` is the sum of one program.
    /// - `test NAME ... ignored (REASON)` skipped itself in the harness of `vcoop-testing`.
    /// - `skipped in NAME: REASON` did so in Rust's own harness, which counts it as passed. It may stand
    ///   behind what other threads have printed.
    /// - `second attempt of NAME: WHY` failed once in the harness of `vcoop-testing`, and runs again.
    /// - `---- NAME ----` or `---- NAME stdout ----` begins what a test that failed has said, up to the list of names
    ///   under `failures:`.
    fn read(&mut self, line: &str) {
        if line.starts_with("---- ") && line.ends_with(" ----") {
            self.complains = COMPLAINT;
        } else if line == "failures:" {
            self.complains = 0;
        }
        if self.complains > 0 && !line.is_empty() {
            self.complains -= 1;
            self.complaints.push(line.to_owned());
        }
        if let Some(sums) = line.trim().strip_prefix("test result: ") {
            let sum = |word| number_before(sums, word).unwrap_or(0);
            self.passed += sum(" passed").saturating_sub(std::mem::take(&mut self.unnoticed));
            self.failed += sum(" failed");
        } else if let Some((_, test)) = line.split_once("second attempt of ") {
            self.again.push(test.to_owned());
        } else if let Some((_, why)) = line.split_once(" ... ignored (") {
            self.skip(why.trim_end().strip_suffix(')').unwrap_or(why));
        } else if let Some((_, told)) = line.split_once("skipped in ")
            && let Some((_, why)) = told.split_once(": ")
        {
            self.unnoticed += 1;
            self.skip(why);
        }
    }

    fn skip(&mut self, why: &str) {
        *self.skipped.entry(why.to_owned()).or_default() += 1;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skips())
    }
}

fn number_before(text: &str, word: &str) -> Option<u64> {
    text[..text.find(word)?].split_whitespace().next_back()?.parse().ok()
}

/// How a layer ended.
pub(crate) enum Outcome {
    /// It ran. A layer that broke without a report counts as one failure.
    Ran(Tally),
    /// It did not run, for this reason.
    Skipped(String),
}

/// A layer: a command, and its requirements.
pub(crate) struct Layer {
    pub(crate) name: String,
    /// It measures nothing and has no time limit, as compilers do: it may run beside another layer, at low priority.
    builds: bool,
    needs: fn() -> Result<(), String>,
    command: Vec<String>,
    env: Vec<(&'static str, OsString)>,
}

/// Arguments of cargo for the whole workspace, because a single package is built with other features. Fuzz targets are
/// left out: they have a layer with other flags, and give shared dependencies other features.
fn workspace() -> String {
    format!("--workspace --exclude vcoop-fuzz{}", features())
}

/// BPF, if it can be built, as arguments of cargo: the daemon chooses at run time where its events come from, so one
/// build has all ways. Clippy checks the build without BPF.
pub(crate) fn features() -> &'static str {
    if bpf_tools().is_ok() { " --features vcoop/bpf" } else { "" }
}

/// Arguments of cargo that build everything the layers need, once: the tests, the benches that run as tests, and the
/// Python package's native half.
pub(crate) fn build() -> String {
    let what = "--lib --bins --tests --examples --bench credit1";
    format!("build {} {what}", workspace())
}

/// The layer of a KVM host in a box.
pub(crate) const BOX: &str = "box";

/// A chore of this program, as a layer.
fn chore(name: &str, chore: &str) -> Layer {
    let own = std::env::current_exe().expect("this program has a path");
    let mut layer = Layer::new(name, chore);
    layer.command.insert(0, own.to_string_lossy().into_owned());
    layer
}

/// The lints, as a layer.
pub(crate) fn lint() -> Layer {
    Layer { builds: true, ..chore("lint", "lint") }
}

/// All layers, fastest feedback first. `root` is the workspace's folder.
pub(crate) fn all(root: &Path) -> Vec<Layer> {
    // Tests run in their crates' folders.
    let root = &std::path::absolute(root).expect("the current folder is known");
    let workspace = workspace();
    let test = |name, args| Layer::new(name, &format!("cargo test {workspace} {args}"));
    vec![
        test("workspace", "--no-fail-fast"),
        test("benches", "--bench credit1"),
        Layer {
            needs: python_tools,
            env: vec![("VCOOP_PYTHON", python(root).into())],
            ..test("foreign", "--test foreign -- --ignored --nocapture")
        },
        Layer {
            needs: real_vms,
            ..test("real-vm", "--test qemu --test vms --test real --test driver -- --ignored")
        },
        // A real KVM host, emulated, and stock guests under KVM in it.
        Layer { needs: kvm_host, ..test(BOX, "--test kvm_host -- --ignored") },
        Layer { needs: fuzz_tools, builds: true, ..chore("fuzz-build", "fuzz --only-build") },
        // A short campaign; `cargo xtask fuzz` runs longer ones.
        Layer { needs: fuzz_tools, ..chore("fuzz", "fuzz --seconds=2") },
        // Only unit tests of these crates: the searches in their other tests would take the interpreter hours. The
        // page's memory model is tested by loom, in one of the workspace's tests.
        Layer {
            needs: miri_tools,
            ..Layer::new(
                "miri",
                "cargo +nightly miri test --lib --package vcoop-abi --package vcoop-policy",
            )
        },
        // The report in a browser; its screenshots are left in target/screenshots.
        Layer {
            needs: || tool("chromium", &["--version"], "apt-get install chromium"),
            ..test("browser", "--test browser -- --ignored")
        },
        Layer {
            needs: python_tools,
            env: vec![("VCOOP_BUILD", workspace.clone().into())],
            ..Layer::new("python", "python3 python/check.py test")
        },
        // Two nodes on this machine. Ray is large: if it cannot be installed within five minutes, the layer is skipped.
        Layer {
            needs: ray_tools,
            env: vec![("VCOOP_BUILD", workspace.clone().into())],
            ..Layer::new("python-ray", "python3 python/check.py test ray")
        },
    ]
}

/// The named layers; with `except`, all others; all, if none is named.
///
/// # Errors
///
/// No layer has that name.
pub(crate) fn chosen(
    all: Vec<Layer>,
    except: bool,
    names: &[String],
) -> Result<Vec<Layer>, String> {
    if let Some(none) = names.iter().find(|name| all.iter().all(|layer| layer.name != **name)) {
        let there: Vec<&str> = all.iter().map(|layer| &*layer.name).collect();
        return Err(format!("no layer `{none}`; there are {}", there.join(", ")));
    }
    let others = except || names.is_empty();
    Ok(all.into_iter().filter(|layer| names.contains(&layer.name) != others).collect())
}

/// A layer, and whether what it needs is here.
pub(crate) type PreparedLayer = (Layer, Result<(), String>);

/// Name of a layer, seconds that it took, and how it ended.
pub(crate) type LayerResult = (String, u64, Outcome);

/// Runs layers one after the other. Those that only build run at low priority beside the box, which waits most of its
/// time for what happens in it.
pub(crate) fn run(layers: Vec<PreparedLayer>) -> Vec<LayerResult> {
    let is_box = |layer: &Layer| layer.name == BOX;
    let waits = layers.iter().any(|(layer, prepared)| is_box(layer) && prepared.is_ok());
    let (mut builds, others): (Vec<_>, Vec<_>) =
        layers.into_iter().partition(|(layer, _)| waits && layer.builds);
    for (layer, _) in &mut builds {
        layer.command.splice(0..0, ["nice", "-n", "19"].map(str::to_owned));
    }
    let mut builds = Some(builds);
    let one = |layer: PreparedLayer| {
        let beside = if is_box(&layer.0) { builds.take() } else { None };
        run_beside(layer, beside.unwrap_or_default())
    };
    others.into_iter().flat_map(one).collect()
}

/// Runs a layer, and others beside it from its first line on: cargo, which starts it, would wait for their builds.
fn run_beside(layer: PreparedLayer, others: Vec<PreparedLayer>) -> Vec<LayerResult> {
    let one = |(layer, prepared): PreparedLayer, speaks: &mut dyn FnMut()| {
        let start = Instant::now();
        let outcome = layer.run(prepared, speaks);
        (layer.name, start.elapsed().as_secs(), outcome)
    };
    let (says, said) = mpsc::channel();
    thread::scope(|s| {
        let others = s.spawn(move || {
            // An error: it has ended without a line.
            let _ = said.recv();
            others.into_iter().map(|layer| one(layer, &mut || ())).collect::<Vec<_>>()
        });
        let ran = one(layer, &mut || says.send(()).unwrap_or_default());
        drop(says);
        let others = others.join().expect("layers do not panic");
        std::iter::once(ran).chain(others).collect()
    })
}

impl Layer {
    /// A layer without requirements. `command` is split at spaces.
    fn new(name: &str, command: &str) -> Self {
        Self {
            name: name.to_owned(),
            builds: false,
            needs: || Ok(()),
            command: command.split(' ').map(str::to_owned).collect(),
            env: Vec::new(),
        }
    }

    /// Provides the requirements of the layer.
    ///
    /// # Errors
    ///
    /// Why the layer cannot run here.
    pub(crate) fn prepare(&self) -> Result<(), String> {
        (self.needs)()
    }

    /// Runs the layer if `prepared` is `Ok`; passes its output on as it comes, and calls `speaks` for each line.
    fn run(&self, prepared: Result<(), String>, speaks: &mut dyn FnMut()) -> Outcome {
        println!("\n== {}: {}", self.name, self.command.join(" "));
        if let Err(why) = prepared {
            println!("skipped: {why}");
            return Outcome::Skipped(why);
        }
        Outcome::Ran(self.execute(speaks).unwrap_or_else(|error| {
            eprintln!("{}: {error}", self.name);
            Tally { failed: 1, ..Tally::default() }
        }))
    }

    fn execute(&self, speaks: &mut dyn FnMut()) -> std::io::Result<Tally> {
        let mut child = Command::new(&self.command[0])
            .args(&self.command[1..])
            .envs(self.env.iter().map(|(key, value)| (key, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut tally = Tally::default();
        if let Some(stdout) = child.stdout.take() {
            for line in BufReader::new(stdout).lines() {
                let line = line?;
                println!("{line}");
                speaks();
                tally.read(&line);
            }
        }
        let ok = child.wait()?.success();
        if tally == Tally::default() {
            // The benches print no sum.
            tally.passed = u64::from(ok);
        }
        if !ok && tally.failed == 0 {
            tally.failed = 1;
        }
        Ok(tally)
    }
}

/// Also fetches the kernel of stock guests, and a QEMU for guests with several vCPUs. Tests that need one skip
/// themselves without it.
fn real_vms() -> Result<(), String> {
    #[cfg(target_os = "linux")]
    {
        vcoop_stock::Qemu::of_host().map_err(|why| why.to_string())?;
        tell([vcoop_stock::Kernel::get().err(), vcoop_stock::Qemu::recent().err()]);
    }
    Ok(())
}

/// Also fetches the kernel of the emulated host.
fn kvm_host() -> Result<(), String> {
    real_vms()?;
    #[cfg(target_os = "linux")]
    tell([vcoop_stock::KernelTree::newest("6.12").err()]);
    Ok(())
}

#[cfg(target_os = "linux")]
fn tell(errors: impl IntoIterator<Item = Option<vcoop_stock::StockError>>) {
    for error in errors.into_iter().flatten() {
        eprintln!("xtask: {error}");
    }
}

pub(crate) fn bpf_tools() -> Result<(), String> {
    tool("clang", &["--version"], "apt-get install clang")?;
    let headers = ["--exists", "libelf", "zlib"];
    tool("pkg-config", &headers, "apt-get install libelf-dev zlib1g-dev pkg-config")
}

fn fuzz_tools() -> Result<(), String> {
    tool("c++", &["--version"], "apt-get install g++")
}

fn miri_tools() -> Result<(), String> {
    let get = "rustup component add --toolchain nightly miri rust-src";
    tool("cargo", &["+nightly", "miri", "--version"], get)
}

/// Interpreter of the tests' environment, which `python/check.py` makes. It has readers of our file formats by other
/// authors.
fn python(root: &Path) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    root.join(target).join("python/venv/bin/python")
}

/// Makes the environment once for all layers.
fn python_tools() -> Result<(), String> {
    static MADE: OnceLock<Result<(), String>> = OnceLock::new();
    let make = || {
        let recent = "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))";
        tool("python3", &["-c", recent], "install Python 3.11 or newer, with venv")?;
        prepare(&["python/check.py", "prepare"])
    };
    MADE.get_or_init(make).clone()
}

fn ray_tools() -> Result<(), String> {
    if std::env::var_os("VCOOP_TEST_RAY").is_some_and(|value| value == "0") {
        return Err("VCOOP_TEST_RAY=0".to_owned());
    }
    python_tools()?;
    prepare(&["python/check.py", "prepare", "ray"])
}

/// Creates the Python environment, and passes on its output.
fn prepare(args: &[&str]) -> Result<(), String> {
    let done = Command::new("python3").args(args).stdin(Stdio::null()).status();
    let why = "the Python packages that the tests need cannot be installed; see above";
    if done.is_ok_and(|status| status.success()) { Ok(()) } else { Err(why.to_owned()) }
}

fn tool(name: &str, args: &[&str], remedy: &str) -> Result<(), String> {
    let found = Command::new(name)
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|s| s.success());
    if found { Ok(()) } else { Err(format!("{name} {} not found; {remedy}", args.join(" "))) }
}

#[cfg(test)]
mod tests {
    use super::{BOX, Layer, Outcome, Tally, chosen, run};

    #[test]
    fn layers_are_named_or_left_out() {
        let of = |except, names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            let all = ["a", "b", "c"].map(|name| Layer::new(name, "true")).into();
            let some = chosen(all, except, &names);
            some.map(|some| some.into_iter().map(|l| l.name).collect::<String>())
        };
        assert_eq!(of(false, &[]).unwrap(), "abc");
        assert_eq!(of(false, &["c", "a"]).unwrap(), "ac");
        assert_eq!(of(true, &["b"]).unwrap(), "ac");
        assert_eq!(of(false, &["d"]).unwrap_err(), "no layer `d`; there are a, b, c");
    }

    #[test]
    fn builds_run_beside_the_box_where_it_runs() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().display();
        let shell = |name: &str, script: String| Layer {
            command: ["sh", "-c", &script].map(str::to_owned).into(),
            ..Layer::new(name, "")
        };
        let of = |has_box: bool| {
            let wait = "for i in $(seq 300); do [ -e file ] && exit; sleep 0.1; done; exit 1";
            let layers = vec![
                Layer { builds: true, ..shell("build", format!("touch {path}/file")) },
                shell("a", format!("[ -e {path}/file ] || echo test result: 3 passed")),
                shell(BOX, format!("cd {path}; echo running; {wait}")),
                Layer::new("b", "true"),
            ];
            let prepared = |layer: Layer| {
                let missing = layer.name == BOX && !has_box;
                (layer, if missing { Err("nothing".to_owned()) } else { Ok(()) })
            };
            let ran = run(layers.into_iter().map(prepared).collect());
            let end = |(name, _, outcome)| match outcome {
                Outcome::Ran(tally) => format!("{name} {} {}", tally.passed, tally.failed),
                Outcome::Skipped(why) => format!("{name} {why}"),
            };
            ran.into_iter().map(end).collect::<Vec<_>>()
        };
        assert_eq!(of(true), ["a 3 0", "box 1 0", "build 1 0", "b 1 0"]);
        assert_eq!(of(false), ["build 1 0", "a 1 0", "box nothing", "b 1 0"]);
    }

    fn read(lines: &[&str]) -> Tally {
        let mut tally = Tally::default();
        lines.iter().for_each(|line| tally.read(line));
        tally
    }

    #[test]
    fn programs_are_summed_up() {
        let tally = read(&[
            "running 15 tests",
            "test a ... ok",
            "test result: FAILED. 12 passed; 3 failed; 0 ignored; 0 measured",
            "test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured",
        ]);
        assert_eq!((tally.passed, tally.failed, tally.skips()), (14, 3, 0));
    }

    #[test]
    fn a_second_attempt_is_told() {
        let tally = read(&[
            "second attempt of a: no answer from the guest",
            "test [6.1] a   ... ok",
            "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured",
        ]);
        assert_eq!((tally.passed, tally.failed), (1, 0));
        assert_eq!(tally.again, ["a: no answer from the guest"]);
    }

    #[test]
    fn what_failed_is_repeated() {
        let mut lines =
            vec!["test a ... FAILED", "", "failures:", "", "---- a stdout ----", "of no use"];
        lines.extend(["more"; 30]);
        lines.extend(["---- b ----", "test panicked: why", "", "failures:", "    a", "    b"]);
        let complaints = read(&lines).complaints;
        assert_eq!(complaints[..3], ["---- a stdout ----", "of no use", "more"]);
        assert_eq!(complaints[20..], ["---- b ----", "test panicked: why"]);
    }

    #[test]
    fn what_skipped_itself_has_not_passed() {
        let tally = read(&[
            "test [kvm] a   ... ignored (no device (really); get one)",
            "test [kvm] b   ... ok",
            "test result: ok. 1 passed; 0 failed; 1 ignored; 0 measured",
            "test c ... skipped in tests::d: no device (really); get one",
            "ok",
            "test d ... ok",
            "test e ... ignored, needs a browser",
            "test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured",
        ]);
        assert_eq!(tally.to_string(), "2 passed, 0 failed, 2 skipped");
        assert_eq!(tally.skipped["no device (really); get one"], 2);
    }
}
