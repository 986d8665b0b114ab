//! House chores: `cargo xtask test` runs every layer of tests there is, `cargo xtask ci` what the
//! continuous integration runs.

use std::path::Path;
use std::process::{Command, ExitCode};
use std::thread;
use std::time::Instant;

#[cfg(target_os = "linux")]
mod demo;
#[cfg(target_os = "linux")]
mod emulated;
mod fuzz;
#[cfg(target_os = "linux")]
mod guest;
mod layers;

use clap::Parser as _;
use layers::{Layer, Outcome};

/// House chores
#[derive(Debug, clap::Parser)]
#[command(bin_name = "cargo xtask")]
enum Chore {
    /// Every layer of tests, or some; says what it skips and why
    Test {
        /// All layers but those that are named
        #[arg(long, requires = "layers")]
        except: bool,
        layers: Vec<String>,
    },
    /// Format check, clippy with warnings denied, docs build, house rules
    Lint,
    /// `lint` and `test`
    Ci,
    Fuzz(fuzz::Args),
    #[cfg(target_os = "linux")]
    Demo(demo::Args),
    #[cfg(target_os = "linux")]
    Box(emulated::Args),
    #[cfg(target_os = "linux")]
    Guest(guest::Args),
}

fn main() -> ExitCode {
    let done = |()| ExitCode::SUCCESS;
    let result = match Chore::parse() {
        Chore::Test { except, layers } => {
            match layers::chosen(layers::all(Path::new(".")), except, &layers) {
                Ok(layers) => test(layers).map(done),
                Err(why) => {
                    eprintln!("xtask: {why}");
                    return ExitCode::from(2);
                }
            }
        }
        Chore::Lint => lint().map(done),
        Chore::Ci => {
            let tests = layers::all(Path::new("."));
            test(std::iter::once(layers::lint()).chain(tests).collect()).map(done)
        }
        Chore::Fuzz(args) => fuzz::run(&args).map(done),
        #[cfg(target_os = "linux")]
        Chore::Demo(args) => unless_missing(demo::run(&args)),
        #[cfg(target_os = "linux")]
        Chore::Box(args) => unless_missing(emulated::run(&args)),
        #[cfg(target_os = "linux")]
        Chore::Guest(args) => guest::run(&args),
    };
    result.unwrap_or_else(|error| {
        eprintln!("xtask: {error:#}");
        ExitCode::FAILURE
    })
}

/// Returns the exit code 3, with the reason on stderr, if something is missing here.
#[cfg(target_os = "linux")]
fn unless_missing(done: anyhow::Result<ExitCode>) -> anyhow::Result<ExitCode> {
    match done {
        Err(error) if error.downcast_ref().is_some_and(vcoop_stock::StockError::is_missing) => {
            eprintln!("xtask: {error}");
            Ok(ExitCode::from(3))
        }
        other => other,
    }
}

/// Runs layers, then prints the result of each, the output of failed tests, and the total last.
fn test(layers: Vec<Layer>) -> anyhow::Result<()> {
    let start = Instant::now();
    // Most requirements are downloads: they are fetched while the tests are built, not during the tests, some of which
    // measure time.
    let prepared = thread::scope(|s| {
        let prepared = s.spawn(|| layers.iter().map(Layer::prepare).collect::<Vec<_>>());
        let build = layers::build();
        if let Err(error) = cargo(&build.split(' ').collect::<Vec<_>>(), &[]) {
            // The first layer fails because of it, and that is counted.
            eprintln!("xtask: {error}");
        }
        prepared.join().expect("needs do not panic")
    });
    let built = start.elapsed().as_secs();
    let results = layers::run(layers.into_iter().zip(prepared).collect());
    println!("\n{:<15} {built:>4} s", "build");
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for (name, seconds, outcome) in &results {
        match outcome {
            Outcome::Ran(tally) => {
                println!("{name:<15} {seconds:>4} s  {tally}");
                for (why, tests) in &tally.skipped {
                    println!("{:24}{tests} skipped: {why}", "");
                }
                for test in &tally.again {
                    println!("{:24}second attempt: {test}", "");
                }
                passed += tally.passed;
                failed += tally.failed;
                skipped += tally.skips();
            }
            Outcome::Skipped(why) => {
                println!("{name:<15} {seconds:>4} s  skipped: {why}");
                skipped += 1;
            }
        }
    }
    for (name, _, outcome) in &results {
        if let Outcome::Ran(tally) = outcome
            && !tally.complaints.is_empty()
        {
            println!("\n== failed in {name}\n{}", tally.complaints.join("\n"));
        }
    }
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    anyhow::ensure!(failed == 0, "{failed} tests failed");
    anyhow::ensure!(passed > 0, "no test ran");
    Ok(())
}

fn lint() -> anyhow::Result<()> {
    // The guest is built by a build script: no target of cargo.
    cargo(&["fmt", "--all", "--check", "--", "crates/guest/image/main.rs"], &[])?;
    cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"], &[])?;
    cargo(&["doc", "--workspace", "--no-deps", "--quiet"], &[("RUSTDOCFLAGS", "-D warnings")])?;
    house_rules(Path::new("."))
}

fn cargo(args: &[&str], env: &[(&str, &str)]) -> anyhow::Result<()> {
    println!("+ cargo {}", args.join(" "));
    // The cargo found by rustup, so that the compiler is this project's, whatever a dependency's folder requests.
    let status = Command::new("cargo").args(args).envs(env.iter().copied()).status()?;
    anyhow::ensure!(status.success(), "cargo {} failed", args[0]);
    Ok(())
}

/// No file is too long, and no file of tests belongs to no program.
fn house_rules(root: &Path) -> anyhow::Result<()> {
    const MOST_LINES: usize = 900;
    let mut stack = vec![root.join("crates"), root.join("xtask")];
    let (mut long, mut forgotten) = (Vec::new(), Vec::new());
    while let Some(dir) = stack.pop() {
        for entry in std::fs::read_dir(&dir)? {
            let path = entry?.path();
            if path.is_dir() {
                stack.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let lines = std::fs::read_to_string(&path)?.lines().count();
                if lines > MOST_LINES {
                    long.push(format!("{} has {lines} lines", path.display()));
                }
                if is_forgotten(&path) {
                    forgotten.push(path.display().to_string());
                }
            }
        }
    }
    anyhow::ensure!(long.is_empty(), "over {MOST_LINES} lines: {}", long.join(", "));
    anyhow::ensure!(forgotten.is_empty(), "not in tests/all.rs: {}", forgotten.join(", "));
    println!("+ house rules: no file over {MOST_LINES} lines, every file of tests is in a program");
    Ok(())
}

/// Whether a file is beside an `all.rs` that does not name it, and is no separate program either.
fn is_forgotten(path: &Path) -> bool {
    let (Some(folder), Some(name)) = (path.parent(), path.file_stem().and_then(|n| n.to_str()))
    else {
        return false;
    };
    let says = |file: &str, line: String| {
        std::fs::read_to_string(folder.join(file)).is_ok_and(|text| text.contains(&line))
    };
    folder.join("all.rs").exists()
        && name != "all"
        && !says("all.rs", format!("mod {name};"))
        && !says("../Cargo.toml", format!("name = \"{name}\""))
}
