//! Compiles the BPF programs, with the feature `bpf`.

use std::env;
use std::path::PathBuf;
use std::process::Command;

const PROGRAMS: [&str; 2] = ["events", "scx_vcoop"];

/// Names of clang in Debian: without a version, and with one.
const CLANGS: [&str; 8] =
    ["clang", "clang-19", "clang-18", "clang-17", "clang-16", "clang-15", "clang-14", "clang-13"];

fn main() {
    println!("cargo:rerun-if-changed=bpf");
    println!("cargo:rerun-if-env-changed=CLANG");
    if env::var_os("CARGO_FEATURE_BPF").is_none() {
        return;
    }
    let runs = |name: &String| Command::new(name).arg("--version").output().is_ok();
    let own = env::var("CLANG").ok();
    let clang = own.into_iter().chain(CLANGS.map(str::to_owned)).find(runs);
    let clang = clang.expect("the feature `bpf` needs clang: apt-get install clang");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let headers = env::var("DEP_BPF_INCLUDE").expect("libbpf-sys tells where its headers are");
    let machine = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it");
    for program in PROGRAMS {
        let source = format!("bpf/{program}.bpf.c");
        let status = Command::new(&clang)
            .args(["-g", "-O2", "-Wall", "-Werror", "-target", "bpf", "-D__TARGET_ARCH_x86"])
            .arg(format!("-I{headers}"))
            // The folder of machine-dependent headers in Debian and its derivatives.
            .args(["-idirafter", &format!("/usr/include/{machine}-linux-gnu")])
            .args(["-c", &source, "-o"])
            .arg(out.join(format!("{program}.bpf.o")))
            .status();
        assert!(status.is_ok_and(|status| status.success()), "clang cannot compile {source}");
    }
}
