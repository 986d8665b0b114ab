//! The types of the trace format are made from its trimmed schema. They are committed: a build needs no
//! compiler for it. `UPDATE_PROTO=1 cargo test -p vcoop-report --test all proto` writes them.

use std::fs;
use std::path::Path;

const HEAD: &str =
    "// Made by crates/report/tests/proto.rs from proto/perfetto_trace.proto: change that.\n";

/// The Rust types of the schema.
fn compiled(proto: &Path) -> String {
    let files = protox::compile([proto], [proto.parent().unwrap()]).unwrap();
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("proto");
    fs::create_dir_all(&out).unwrap();
    prost_build::Config::new().out_dir(&out).compile_fds(files).unwrap();
    let text = fs::read_to_string(out.join("vcoop.perfetto.rs")).unwrap();
    format!("{HEAD}{text}")
}

#[test]
fn the_committed_types_are_those_of_the_schema() {
    let report = Path::new(env!("CARGO_MANIFEST_DIR"));
    let committed = report.join("src/perfetto/schema.rs");
    let made = compiled(&report.join("proto/perfetto_trace.proto"));
    if std::env::var_os("UPDATE_PROTO").is_some_and(|value| value == "1") {
        fs::write(&committed, &made).unwrap();
    }
    let said = "run this test with UPDATE_PROTO=1";
    assert_eq!(fs::read_to_string(committed).unwrap(), made, "{said}");
}
