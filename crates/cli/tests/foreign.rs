//! A run's files, read by other people's readers: pyarrow, DuckDB, HdrHistogram's and Perfetto's own
//! schema, from PyPI. `VCOOP_PYTHON` names a Python that has them; `cargo xtask test` makes one.

use std::path::{Path, PathBuf};
use std::process::Command;

const SHORT: [&str; 8] =
    ["--duration", "300ms", "--warmup", "50ms", "--seed", "7", "--repeats", "2"];

fn folder(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

fn vcoop(args: &[&str]) {
    let output = Command::new(env!("CARGO_BIN_EXE_vcoop"))
        .args(args)
        .env("VCOOP_BACKEND", "sim")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Runs a script on a file; says so where nobody can read it here.
fn read(script: &str, path: &Path) {
    let python = std::env::var_os("VCOOP_PYTHON").unwrap_or("python3".into());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/foreign").join(script);
    let output = match Command::new(&python).arg(&script).arg(path).output() {
        Ok(output) => output,
        Err(e) => return eprintln!("skipped: {}: {e}", python.display()),
    };
    let text = String::from_utf8_lossy(&output.stdout);
    if output.status.code() == Some(77) {
        return eprintln!("skipped: {}: {}", python.display(), text.trim());
    }
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    eprintln!("{}", text.trim());
}

#[test]
fn perfettos_schema_reads_a_trace() {
    let path = folder("foreign-trace").join("t.pftrace");
    let file = path.to_str().unwrap();
    vcoop(&[
        "trace",
        "busy-host",
        "--policy",
        "dynamic",
        "--from",
        "100ms",
        "--to",
        "400ms",
        "-o",
        file,
    ]);
    read("trace.py", &path);
}

#[test]
fn other_readers_find_the_same_samples() {
    let dir = folder("foreign-data").join("out");
    let out = dir.to_str().unwrap();
    vcoop(&[&["run", "busy-host", "--quiet", "--out", out], &SHORT[..]].concat());
    read("data.py", &dir);
    let left: Vec<_> = std::fs::read_dir(&dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".part"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}
