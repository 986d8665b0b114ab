//! Names the sources that are being built.

#[path = "src/sources.rs"]
mod sources;

use std::env;
use std::io;
use std::path::Path;

fn main() -> io::Result<()> {
    // As of now, and not of when this was compiled: a working copy may have moved since, with its target folder.
    let of = env::var_os("CARGO_MANIFEST_DIR").ok_or(io::ErrorKind::NotFound)?;
    let root = Path::new(&of).join("../..");
    println!("cargo:rustc-env=VCOOP_SOURCES={}", sources::name(&root)?);
    for path in sources::watched(&root)? {
        println!("cargo:rerun-if-changed={}", path.display());
    }
    Ok(())
}
