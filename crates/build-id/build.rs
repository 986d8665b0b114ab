//! Names the sources that are being built.

#[path = "src/sources.rs"]
mod sources;

use std::io;
use std::path::Path;

fn main() -> io::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    println!("cargo:rustc-env=VCOOP_SOURCES={}", sources::name(&root)?);
    for path in sources::watched(&root)? {
        println!("cargo:rerun-if-changed={}", path.display());
    }
    Ok(())
}
