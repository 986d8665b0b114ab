//! Compiles the trace format's trimmed schema. The result is committed: a build needs no compiler
//! for it.

use std::path::Path;

use anyhow::{Context, Result};

const PROTO: &str = "crates/report/proto/perfetto_trace.proto";
const OUTPUT: &str = "crates/report/src/perfetto/schema.rs";

const HEAD: &str = "// Made by `cargo xtask proto` from proto/perfetto_trace.proto: change that.\n";

/// The Rust types of the schema.
pub(crate) fn compiled(root: &Path) -> Result<String> {
    let proto = root.join(PROTO);
    let folder = proto.parent().context("the schema is in a folder")?;
    let files = protox::compile([&proto], [folder])?;
    let out = std::env::temp_dir().join(format!("vcoop-proto-{}", std::process::id()));
    std::fs::create_dir_all(&out)?;
    let made = prost_build::Config::new().out_dir(&out).compile_fds(files);
    let text = std::fs::read_to_string(out.join("vcoop.perfetto.rs"));
    std::fs::remove_dir_all(&out)?;
    made?;
    Ok(format!("{HEAD}{}", text?))
}

/// Writes them.
pub(crate) fn write(root: &Path) -> Result<()> {
    std::fs::write(root.join(OUTPUT), compiled(root)?).context("cannot write the schema's types")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    #[test]
    fn the_committed_types_are_those_of_the_schema() {
        let root =
            Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is in the workspace");
        let committed = std::fs::read_to_string(root.join(super::OUTPUT)).expect("it is committed");
        let made = super::compiled(root).expect("the schema compiles");
        assert_eq!(committed, made, "run `cargo xtask proto`");
    }
}
