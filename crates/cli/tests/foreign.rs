//! A run's files, read by other people's readers: pyarrow, DuckDB, HdrHistogram's, Prometheus' and
//! Perfetto's own schema, from PyPI. They stand apart: `cargo xtask test` makes a Python that has them, which
//! `VCOOP_PYTHON` names, and runs them with it.

use std::path::{Path, PathBuf};
use std::process::Command;

use vcoop_testing::{ProgramOutput, Skip, need_kvm};

const SHORT: [&str; 8] =
    ["--duration", "300ms", "--warmup", "50ms", "--seed", "7", "--repeats", "2"];

fn folder(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

fn vcoop(args: &[&str]) -> ProgramOutput {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vcoop"));
    ProgramOutput::by(command.args(args).env("VCOOP_BACKEND", "sim")).well()
}

/// Runs a script on a file.
fn read(script: &str, path: &Path, words: &[&str]) {
    let python = std::env::var_os("VCOOP_PYTHON").unwrap_or("python3".into());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/foreign").join(script);
    let said = ProgramOutput::by(Command::new(&python).arg(&script).arg(path).args(words)).well();
    eprintln!("{}", said.out.trim());
}

#[test]
#[ignore = "needs Python packages: `cargo xtask test` runs it where they are"]
fn perfettos_schema_reads_a_trace() {
    let path = folder("foreign-trace").join("t.pftrace");
    let file = path.to_str().unwrap();
    let window = ["--from", "100ms", "--to", "400ms"];
    vcoop(&[&["trace", "busy-host", "--policy", "dynamic", "-o", file][..], &window].concat());
    read("trace.py", &path, &[]);
}

/// Real vCPUs, recorded by the real tracefs, in a mount namespace of its own.
#[test]
#[ignore = "needs Python packages: `cargo xtask test` runs it where they are"]
fn perfettos_schema_reads_a_live_trace() {
    if let Err(skip) = need_kvm(vcoop_lab::available()) {
        return skip.tell();
    }
    let path = folder("foreign-live").join("t.pftrace");
    let mount = "[ -e /sys/kernel/tracing/trace ] || mount -t tracefs nodev /sys/kernel/tracing \
                 || exit 3; exec \"$0\" \"$@\"";
    let run =
        ["trace", "busy-host-1", "--backend", "kvm", "--policy", "dynamic", "--duration", "1s"];
    let output = Command::new("unshare")
        .args(["-m", "sh", "-c", mount, env!("CARGO_BIN_EXE_vcoop")])
        .args(run)
        .arg("-o")
        .arg(&path)
        .output();
    let said = match output {
        Ok(output) => ProgramOutput::from(output),
        Err(e) => return Skip::because(format!("unshare: {e}")).tell(),
    };
    // No tracefs, or no right to a namespace.
    if said.code == Some(3) || said.err.starts_with("unshare:") {
        return Skip::because(said.err).tell();
    }
    said.well();
    read("trace.py", &path, &["live"]);
}

#[test]
#[ignore = "needs Python packages: `cargo xtask test` runs it where they are"]
fn prometheus_reads_metrics() {
    let path = folder("foreign-metrics").join("vcoop.prom");
    let run = ["run", "busy-host", "--quiet", "--metrics", path.to_str().unwrap(), "--json"];
    let output = vcoop(&[&run[..], &SHORT].concat());
    std::fs::write(path.with_extension("prom.json"), output.out).unwrap();
    read("metrics.py", &path, &[]);
}

#[test]
#[ignore = "needs Python packages: `cargo xtask test` runs it where they are"]
fn other_readers_find_the_same_samples() {
    let dir = folder("foreign-data").join("out");
    let out = dir.to_str().unwrap();
    vcoop(&[&["run", "busy-host", "--quiet", "--out", out], &SHORT[..]].concat());
    read("data.py", &dir, &[]);
    let left: Vec<_> = std::fs::read_dir(&dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".part"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}
