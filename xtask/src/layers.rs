//! The layers of tests.

use std::fmt;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// How a layer ended.
pub(crate) enum Outcome {
    /// It ran.
    Ran {
        /// Tests passed.
        passed: u64,
        /// Tests failed; a layer that broke without saying so counts one.
        failed: u64,
    },
    /// It did not run, because of this.
    Skipped(String),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ran { passed, failed } => write!(f, "{passed} passed, {failed} failed"),
            Self::Skipped(why) => write!(f, "skipped: {why}"),
        }
    }
}

/// One layer: a command, and what must be there for it.
pub(crate) struct Layer {
    pub(crate) name: &'static str,
    needs: fn() -> Result<(), String>,
    command: &'static [&'static str],
    dir: &'static str,
}

/// Every layer there is, fastest feedback first.
pub(crate) fn all() -> Vec<Layer> {
    vec![
        Layer {
            name: "workspace",
            needs: || Ok(()),
            command: &["cargo", "test", "--workspace", "--no-fail-fast"],
            dir: ".",
        },
        Layer {
            name: "benches",
            needs: || Ok(()),
            // Of the whole workspace, here and below: one package alone is built with other features.
            command: &["cargo", "test", "--workspace", "--bench", "bare", "--bench", "credit1"],
            dir: ".",
        },
        Layer {
            name: "foreign",
            needs: foreign_readers,
            command: &[
                "sh",
                "-c",
                "VCOOP_PYTHON=$PWD/target/foreign/bin/python \
                 cargo test --workspace --test foreign -- --nocapture",
            ],
            dir: ".",
        },
        Layer {
            name: "fuzz",
            needs: fuzz_tools,
            command: &["cargo", "+nightly", "fuzz", "run", "scenario", "--", "-max_total_time=20"],
            dir: "fuzz",
        },
        Layer {
            name: "fuzz-capture",
            needs: fuzz_tools,
            command: &["cargo", "+nightly", "fuzz", "run", "capture", "--", "-max_total_time=20"],
            dir: "fuzz",
        },
        Layer {
            name: "fuzz-ring",
            needs: fuzz_tools,
            command: &["cargo", "+nightly", "fuzz", "run", "ring", "--", "-max_total_time=20"],
            dir: "fuzz",
        },
        Layer {
            name: "fuzz-words",
            needs: fuzz_tools,
            command: &["cargo", "+nightly", "fuzz", "run", "words", "--", "-max_total_time=20"],
            dir: "fuzz",
        },
        Layer {
            name: "fuzz-trace",
            needs: fuzz_tools,
            command: &[
                "cargo",
                "+nightly",
                "fuzz",
                "run",
                "trace_page",
                "--",
                "-max_total_time=20",
            ],
            dir: "fuzz",
        },
        Layer {
            name: "fuzz-vmm",
            needs: fuzz_tools,
            command: &["cargo", "+nightly", "fuzz", "run", "vmm_proc", "--", "-max_total_time=20"],
            dir: "fuzz",
        },
        Layer {
            name: "fuzz-qmp",
            needs: fuzz_tools,
            command: &["cargo", "+nightly", "fuzz", "run", "qmp", "--", "-max_total_time=20"],
            dir: "fuzz",
        },
        // Only what lies in the crates themselves: the searches in their tests take the interpreter
        // hours. The page's memory model is tried by loom, which is one of the workspace's tests.
        Layer {
            name: "miri",
            needs: miri_tools,
            command: &[
                "cargo",
                "+nightly",
                "miri",
                "test",
                "--lib",
                "--package",
                "vcoop-abi",
                "--package",
                "vcoop-policy",
            ],
            dir: ".",
        },
        // The report in a browser; its screenshots are left in target/screenshots.
        Layer {
            name: "browser",
            needs: || tool("chromium", &["--version"], "apt-get install chromium"),
            command: &["cargo", "test", "--workspace", "--test", "browser", "--", "--ignored"],
            dir: ".",
        },
        Layer {
            name: "python",
            needs: python_tools,
            command: &["python3", "python/check.py", "test"],
            dir: ".",
        },
        // Two nodes on this machine. Ray is large: where it cannot be had in five minutes, the layer says
        // that it is skipped.
        Layer {
            name: "python-ray",
            needs: ray_tools,
            command: &["python3", "python/check.py", "test", "ray"],
            dir: ".",
        },
        Layer {
            name: "book",
            needs: || tool("mdbook", &["--version"], "cargo install mdbook"),
            command: &["mdbook", "build", "docs"],
            dir: ".",
        },
    ]
}

impl Layer {
    /// Runs the layer; its output goes through as it comes.
    pub(crate) fn run(&self) -> Outcome {
        println!("\n== {}: {}", self.name, self.command.join(" "));
        if let Err(why) = (self.needs)() {
            println!("skipped: {why}");
            return Outcome::Skipped(why);
        }
        match self.execute() {
            Ok(outcome) => outcome,
            Err(error) => {
                eprintln!("{}: {error}", self.name);
                Outcome::Ran { passed: 0, failed: 1 }
            }
        }
    }

    fn execute(&self) -> std::io::Result<Outcome> {
        let mut child = Command::new(self.command[0])
            .args(&self.command[1..])
            .current_dir(self.dir)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let (mut passed, mut failed) = (0, 0);
        if let Some(stdout) = child.stdout.take() {
            for line in BufReader::new(stdout).lines() {
                let line = line?;
                println!("{line}");
                if let Some((p, f)) = cargo_result(&line) {
                    passed += p;
                    failed += f;
                }
            }
        }
        let ok = child.wait()?.success();
        if passed + failed == 0 {
            // A layer that is one check: a fuzz campaign, a book that builds.
            passed = u64::from(ok);
        }
        if !ok && failed == 0 {
            failed = 1;
        }
        Ok(Outcome::Ran { passed, failed })
    }
}

/// Reads `test result: ok. 3 passed; 0 failed; ...`.
fn cargo_result(line: &str) -> Option<(u64, u64)> {
    let rest = line.trim().strip_prefix("test result: ")?;
    let number = |word: &str| {
        let at = rest.find(word)?;
        rest[..at].split_whitespace().next_back()?.parse().ok()
    };
    Some((number(" passed")?, number(" failed")?))
}

fn miri_tools() -> Result<(), String> {
    let get = "rustup component add --toolchain nightly miri rust-src";
    tool("cargo", &["+nightly", "miri", "--version"], get)
}

/// A Python with other people's readers of our files; made where it is not there yet.
fn foreign_readers() -> Result<(), String> {
    const PYTHON: &str = "target/foreign/bin/python";
    let imports = "import perfetto, pyarrow, duckdb, hdrh, prometheus_client";
    if tool(PYTHON, &["-c", imports], "").is_ok() {
        return Ok(());
    }
    tool("python3", &["-m", "venv", "target/foreign"], "needs python3 with venv")?;
    let readers = ["perfetto", "pyarrow", "duckdb", "hdrhistogram", "prometheus_client"];
    let install = [&["-m", "pip", "install", "-q"], &readers[..]].concat();
    tool(PYTHON, &install, "needs PyPI")
}

fn fuzz_tools() -> Result<(), String> {
    tool("cargo", &["+nightly", "--version"], "rustup toolchain install nightly")?;
    tool("cargo", &["fuzz", "--version"], "cargo install cargo-fuzz")
}

fn python_tools() -> Result<(), String> {
    let recent = "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))";
    tool("python3", &["-c", recent], "install Python 3.11 or newer, with venv")?;
    prepare(&["python/check.py", "prepare"])
}

fn ray_tools() -> Result<(), String> {
    if std::env::var_os("VCOOP_TEST_RAY").is_some_and(|value| value == "0") {
        return Err("VCOOP_TEST_RAY=0".to_owned());
    }
    python_tools()?;
    prepare(&["python/check.py", "prepare", "ray"])
}

/// Makes the Python environment; what it prints goes through.
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
    use super::cargo_result;

    #[test]
    fn reads_what_cargo_prints() {
        let line = "test result: FAILED. 12 passed; 3 failed; 0 ignored; 0 measured";
        assert_eq!(cargo_result(line), Some((12, 3)));
        assert_eq!(cargo_result("running 5 tests"), None);
    }
}
