//! Shared by the tests of several crates.
//!
//! - A harness whose tests can skip themselves at run time, and get a second attempt, for a test file with
//!   `harness = false`:
//!   [`test!`] above a function registers it, [`concurrent!`] lets those of a module run at once, [`main`] runs what is
//!   registered.
//! - [`Skip`], the reason why a test does not run here. Tests of Rust's own harness use it, too.
//! - [`Reused`], what is dear to make and serves one test after the other.
//! - [`Terminal`], to look at what a program draws and to press its keys.
//! - [`assert_no_thread`], after a run that must leave none behind.
//! - [`WaitingThread`], a thread that does nothing, to be looked at and changed.
//! - [`until`] and [`found`], which wait for what comes soon.
//! - [`ProgramOutput`], exit code and output of a program that has ended.
//! - [`awaits_interrupt_handler`], before a program is sent a signal, and [`send`], which does it.
//! - [`without_files`], for what happens when file descriptors run out, and [`full_pipe`], when nobody reads.
//! - [`Tree`], files such as those of `/proc` and `/sys`.
//! - [`Native`], a C program that has to agree with Rust, and [`random`], what both are fed.
//! - [`PLACEMENTS`], where Linux puts threads that may move, and [`GROUP_SHARES`], what it gives groups on a CPU.
//! - [`tasks`], what entities of a scheduler do, for drivers of schedulers in tests.
//! - [`metric_names`], the metrics that a text names.
//! - [`rig`], the busy host that most live tests run, and what they read from a recording.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::io::{self, Write};
use std::panic;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Completion, Trial};

mod files;
mod load;
mod metrics;
mod native;
mod placement;
mod program_output;
mod random;
mod reused;
pub mod rig;
mod shares;
mod signal;
pub mod tasks;
mod terminal;
mod threads;
mod tree;
mod until;
mod waiting_thread;

pub use files::{full_pipe, without_files};
pub use inventory;
pub use load::{CheckFailure, twice};
pub use metrics::metric_names;
pub use native::Native;
pub use placement::{PLACEMENTS, Placement};
pub use program_output::ProgramOutput;
pub use random::random;
pub use reused::Reused;
pub use shares::{GROUP_SHARES, GroupShare};
pub use signal::{awaits_interrupt_handler, send};
pub use terminal::Terminal;
pub use threads::{assert_no_thread, drop_cap_sys_nice};
pub use tree::Tree;
pub use until::{found, until};
pub use waiting_thread::WaitingThread;

/// If it is `1`, tests that need KVM fail without it.
const REQUIRE_KVM: &str = "VCOOP_REQUIRE_KVM";

/// If it is `1`, tests of hostile and restless VMs run for their full time.
const LONG: &str = "VCOOP_LONG";

/// Why a test does not run here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skip(String);

/// Result of a test of this harness, unless it panics, which is a failure.
pub type Outcome = Result<(), Skip>;

/// Return types of test functions.
pub trait IntoOutcome {
    /// Converts into an outcome.
    ///
    /// # Errors
    ///
    /// The test was skipped.
    fn into_outcome(self) -> Outcome;
}

impl IntoOutcome for () {
    fn into_outcome(self) -> Outcome {
        Ok(())
    }
}

impl IntoOutcome for Outcome {
    fn into_outcome(self) -> Outcome {
        self
    }
}

impl Skip {
    /// A reason, put on one line.
    pub fn because(reason: impl Display) -> Self {
        let reason = reason.to_string();
        let lines: Vec<&str> = reason.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
        Self(lines.join("; "))
    }

    /// In a test of Rust's own harness, prints that it is skipped. That harness has no such outcome and counts the test
    /// as passed; `cargo xtask test` reads this line and counts the test as skipped.
    pub fn tell(&self) {
        let thread = thread::current();
        let line = format!("skipped in {}: {}\n", thread.name().unwrap_or("a test"), self.0);
        // Not `print!`, which the harness captures.
        let told = io::stdout().write_all(line.as_bytes());
        told.expect("the harness writes to the same stdout");
    }
}

/// Needs the lab; `available` is the lab's result for this host.
///
/// # Errors
///
/// The lab cannot run here.
///
/// # Panics
///
/// The lab cannot run here, and the environment variable `VCOOP_REQUIRE_KVM` is `1`.
pub fn need_kvm<E: Display>(available: Result<(), E>) -> Outcome {
    available.map_err(|missing| {
        assert!(!is_one(REQUIRE_KVM), "{REQUIRE_KVM} is 1, and {missing}");
        Skip::because(missing)
    })
}

/// A duration or a count of a test: `usual`, or `whole` if the environment variable `VCOOP_LONG` is `1`.
pub fn long<T>(usual: T, whole: T) -> T {
    if is_one(LONG) { whole } else { usual }
}

/// A test that takes at least this long prints its time.
const LONG_TEST: Duration = Duration::from_secs(5);

/// Whether an environment variable is `1`.
fn is_one(name: &str) -> bool {
    std::env::var_os(name).is_some_and(|value| value == "1")
}

/// A registered test; [`test!`] makes it.
#[derive(Debug)]
pub struct Test {
    /// What it runs on, printed before its name; may be empty.
    pub kind: &'static str,
    /// The function's name.
    pub name: &'static str,
    /// The function's module.
    pub module: &'static str,
    /// The test.
    pub run: fn() -> Outcome,
}

inventory::collect!(Test);

/// A module whose tests may run concurrently; [`concurrent!`] makes it.
#[derive(Debug)]
pub struct ConcurrentModule(pub &'static str);

inventory::collect!(ConcurrentModule);

/// Declares that the tests of a module may run concurrently: they measure nothing, and tolerate delays.
#[macro_export]
macro_rules! concurrent {
    () => {
        $crate::inventory::submit! { $crate::ConcurrentModule(module_path!()) }
    };
}

/// Registers a function as a test of this harness: `test!("kvm", name, || ...)` runs the closure under the function's
/// name. The compiler warns about a function that is not registered, as dead code.
#[macro_export]
macro_rules! test {
    ($kind:expr, $name:ident, $run:expr) => {
        $crate::inventory::submit! {
            $crate::Test {
                kind: $kind,
                name: stringify!($name),
                module: module_path!(),
                run: || $crate::IntoOutcome::into_outcome(($run)()),
            }
        }
    };
}

/// Runs the registered tests of this program. Its arguments are those of Rust's own harness. By default, tests that may
/// run concurrently run first, one for each CPU at a time; then the others, one at a time.
#[must_use]
pub fn main() -> ExitCode {
    run(false)
}

/// As [`main`], for tests with their own layer: each counts as `#[ignore]`d, and runs only with the argument
/// `--ignored`.
#[must_use]
pub fn layer_main() -> ExitCode {
    run(true)
}

/// Runs a test, and once more if it fails: others use this host too, and an emulated guest or a waiting thread may
/// exceed any time limit. `cargo xtask test` lists the first failure at its end.
fn attempt(name: &str, run: fn() -> Outcome) -> Outcome {
    panic::catch_unwind(run).unwrap_or_else(|why| {
        let text = why.downcast_ref::<&str>().copied();
        let text = text.or_else(|| why.downcast_ref().map(String::as_str)).unwrap_or("a panic");
        println!("second attempt of {name}: {}", Skip::because(text).0);
        run()
    })
}

fn run(ignored: bool) -> ExitCode {
    let arguments = Arguments::from_args();
    let mut tests: Vec<&Test> = inventory::iter::<Test>.into_iter().collect();
    tests.sort_by_key(|test| (test.name, test.kind));
    let trial = |test: &Test| {
        let (name, run) = (test.name, test.run);
        let done = move || {
            let began = Instant::now();
            let outcome = attempt(name, run);
            let took = began.elapsed();
            if took >= LONG_TEST {
                eprintln!("{name}: {} s", took.as_secs());
            }
            Ok(match outcome {
                Ok(()) => Completion::Completed,
                Err(Skip(reason)) => Completion::ignored_with(reason),
            })
        };
        Trial::ignorable_test(test.name, done).with_kind(test.kind).with_ignored_flag(ignored)
    };
    let beside: BTreeSet<&str> =
        inventory::iter::<ConcurrentModule>.into_iter().map(|m| m.0).collect();
    let (beside, alone): (Vec<_>, Vec<_>) =
        tests.into_iter().partition(|test| beside.contains(test.module));
    let failed = [(beside, None), (alone, Some(1))].map(|(tests, threads)| {
        let mut arguments = arguments.clone();
        arguments.test_threads = arguments.test_threads.or(threads);
        let none = tests.is_empty();
        !none && libtest_mimic::run(&arguments, tests.into_iter().map(trial).collect()).has_failed()
    });
    ExitCode::from(u8::from(failed.contains(&true)))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use super::{Skip, attempt};

    #[test]
    fn what_fails_once_runs_once_more() {
        static RUNS: AtomicU32 = AtomicU32::new(0);
        let outcome = attempt("late", || {
            let run = RUNS.fetch_add(1, Relaxed);
            assert!(run > 0, "late in run {run}");
            Ok(())
        });
        assert_eq!((outcome, RUNS.load(Relaxed)), (Ok(()), 2));
    }

    #[test]
    #[should_panic(expected = "always late")]
    fn what_fails_twice_has_failed() {
        let _ = attempt("always", || panic!("always late"));
    }

    #[test]
    fn a_reason_is_one_line() {
        let skip = Skip::because("no device\n\n  remedy: get one\n");
        assert_eq!(skip.0, "no device; remedy: get one");
    }
}
