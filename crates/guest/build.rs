//! Compiles the guest image: four `rustc` calls for the host's own target, freestanding, linked at
//! a fixed address, and cut out of the ELF file into one flat file.
//!
//! Needs only what `cargo build` needs anyway: `rustc` and its linker. No other target has to be installed, because the
//! target's `core` also works for a freestanding program.

use std::env;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where the image is linked; `vcoop_guest::layout::IMAGE` says the same.
const IMAGE: u64 = 0x10_0000;

fn main() -> Result<(), Box<dyn Error>> {
    let here = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let crates = here.parent().ok_or("the crate has no parent directory")?;
    for watched in ["abi/src", "policy/src", "guest/src", "guest/image", "guest/build.rs"] {
        println!("cargo::rerun-if-changed={}", crates.join(watched).display());
    }
    println!("cargo::rustc-check-cfg=cfg(vcoop_image)");
    let flat = out.join("guest.bin");
    if env::var("CARGO_CFG_TARGET_ARCH")? != "x86_64" || env::var("CARGO_CFG_TARGET_OS")? != "linux"
    {
        // The lab says at run time that it cannot run here.
        fs::write(&flat, [])?;
        return Ok(());
    }
    let rustc = Rustc { out: out.clone(), target: env::var("TARGET")? };
    rustc.library("vcoop_abi", &crates.join("abi/src/lib.rs"), &[])?;
    rustc.library("vcoop_policy", &crates.join("policy/src/lib.rs"), &["vcoop_abi"])?;
    rustc.library("vcoop_guest", &here.join("src/lib.rs"), &["vcoop_abi", "vcoop_policy"])?;
    let elf = out.join("guest.elf");
    rustc.image(&here.join("image/main.rs"), &here.join("image/guest.ld"), &elf)?;
    fs::write(&flat, flatten(&fs::read(&elf)?)?)?;
    Ok(())
}

struct Rustc {
    out: PathBuf,
    target: String,
}

impl Rustc {
    fn command(&self, name: &str, source: &Path) -> Command {
        let mut c = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
        // Flags meant for the host's program (coverage, sanitizers) would not run in the guest.
        c.env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
        c.args(["--edition", "2024", "--crate-name", name, "--target", &self.target]);
        c.args(["--cfg", "vcoop_image", "--cap-lints", "allow", "-C", "opt-level=2"]);
        c.args(["-C", "panic=abort", "-C", "relocation-model=static", "-C", "debuginfo=0"]);
        c.args(["-C", "force-unwind-tables=no", "-C", "codegen-units=1", "-L"]);
        c.arg(&self.out).arg(source);
        c
    }

    fn library(&self, name: &str, source: &Path, needs: &[&str]) -> Result<(), Box<dyn Error>> {
        let mut c = self.command(name, source);
        c.args(["--crate-type", "rlib", "--out-dir"]).arg(&self.out);
        self.run(c, needs)
    }

    fn image(&self, source: &Path, script: &Path, elf: &Path) -> Result<(), Box<dyn Error>> {
        let mut c = self.command("guest_image", source);
        c.args(["--crate-type", "bin", "-o"]).arg(elf);
        for arg in ["-nostartfiles", "-nostdlib", "-static", "-no-pie", "-Wl,--build-id=none"] {
            c.args(["-C", &format!("link-arg={arg}")]);
        }
        c.args(["-C", &format!("link-arg=-Wl,-T,{}", script.display())]);
        self.run(c, &["vcoop_abi", "vcoop_policy", "vcoop_guest"])
    }

    fn run(&self, mut c: Command, needs: &[&str]) -> Result<(), Box<dyn Error>> {
        for name in needs {
            let path = self.out.join(format!("lib{name}.rlib"));
            c.arg("--extern").arg(format!("{name}={}", path.display()));
        }
        let status = c.status()?;
        if status.success() { Ok(()) } else { Err(format!("{c:?}: {status}").into()) }
    }
}

/// The loadable segments of an ELF file as they lie in memory from [`IMAGE`] on, without the
/// zeroes at the end, which fresh guest memory has anyway.
fn flatten(elf: &[u8]) -> Result<Vec<u8>, Box<dyn Error>> {
    let word = |at: usize, len: usize| -> Result<u64, Box<dyn Error>> {
        let bytes = elf.get(at..at + len).ok_or("the image's ELF file is cut short")?;
        Ok(bytes.iter().rev().fold(0, |sum, b| sum << 8 | u64::from(*b)))
    };
    let (table, size, count) = (word(32, 8)?, word(54, 2)?, word(56, 2)?);
    let mut flat = Vec::new();
    for i in 0..count {
        let header = usize::try_from(table + i * size)?;
        const PT_LOAD: u64 = 1;
        if word(header, 4)? != PT_LOAD || word(header + 32, 8)? == 0 {
            continue;
        }
        let from = usize::try_from(word(header + 8, 8)?)?;
        let len = usize::try_from(word(header + 32, 8)?)?;
        let address = word(header + 24, 8)?;
        let at = address.checked_sub(IMAGE).ok_or("a segment lies below the image")?;
        let at = usize::try_from(at)?;
        let bytes = elf.get(from..from + len).ok_or("a segment lies outside of its file")?;
        if flat.len() < at + len {
            flat.resize(at + len, 0);
        }
        flat[at..at + len].copy_from_slice(bytes);
    }
    Ok(flat)
}
