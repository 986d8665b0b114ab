//! `cargo xtask box`: a command on a real KVM host, emulated.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::builder::PossibleValuesParser;
use vcoop_stock::{GuestImage, HostOptions, Kernel, KernelTree, KvmHost, StockError, program};

/// Name of the command in the box, as a program.
const SCRIPT: &str = "box-command";
/// Folder for files from the box.
const OUT: &str = "target/box";

/// A command on a real KVM host, emulated
///
/// Boots a KVM host in QEMU (SVM, Debian's kernel, kvm-amd), runs shell commands in it, and brings the files that they
/// leave in /out back to target/box. The exit code is that of the command; 2 for bad usage, 3 if something is missing
/// on this machine.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The host's kernel: 7 is one with sched_ext
    #[arg(long, default_value = "6.12", value_parser = PossibleValuesParser::new(KernelTree::series()))]
    kernel: String,
    /// Further arguments for the host's kernel, as lockdown=integrity
    #[arg(long, default_value = "")]
    append: String,
    /// Also this program of this machine, by name or path, with its libraries
    #[arg(long)]
    with: Vec<String>,
    /// Also QEMU, a kernel and vcoop's driver (/lib/modules/vcoop.ko) for guests: `start-guest NAME [QEMU'S ARGUMENTS]`
    /// starts one in the background, `guest NAME COMMAND` runs a line of shell in it
    #[arg(long)]
    guest: bool,
    /// Seconds for the command
    #[arg(long, default_value_t = 300)]
    limit: u64,
    /// This program instead of building one, with BPF where that can be built
    #[arg(long)]
    vcoop: Option<PathBuf>,
    /// Shell commands
    #[arg(trailing_var_arg = true, default_value = "vcoop doctor")]
    command: Vec<String>,
}

/// Boots the host and runs a command in it.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let built = || build(crate::layers::bpf_tools().is_ok());
    let vcoop = args.vcoop.clone().map_or_else(built, Ok)?;
    let work = tempfile::tempdir()?;
    let mut programs =
        vec![called_vcoop(&vcoop, work.path())?, script(&args.command.join(" "), work.path())?];
    for name in &args.with {
        let path = Path::new(name);
        programs.push(if path.components().count() > 1 {
            path.to_owned()
        } else {
            program(name, name)?
        });
    }
    let guest = args.guest.then(guest_image).transpose()?;
    let (series, append) = (args.kernel.clone(), args.append.clone());
    let options = HostOptions { series, append, programs, guest };
    run_in(&options, SCRIPT, Duration::from_secs(args.limit), Path::new(OUT))
}

/// Settings of policies for a host whose exits take 30 us and interrupts 100 us.
const SETS: [&str; 8] = [
    "dynamic.vcpu_refill=50%",
    "dynamic.vcpu_burst=20ms",
    "dynamic.vm_refill=80%",
    "dynamic.vm_burst=40ms",
    "dynamic.longest_boost=0s",
    "dynamic.repay=true",
    "dynamic.rest_slice=700us",
    "wake-boost.repay=true",
];

/// Settings for boosts in the kernel: `wake-boost`, and `ext`, which is `wake-boost` with other means.
const SCX_SETS: [&str; 7] = [
    "ext.base=wake-boost",
    "ext.means=ext",
    "wake-boost.run=3ms",
    "wake-boost.vcpu_refill=50%",
    "wake-boost.vcpu_burst=20ms",
    "wake-boost.vm_refill=80%",
    "wake-boost.vm_burst=40ms",
];

/// Runs `vcoop compare` on a guest with the driver in the box, which has sched_ext if `scx`. `bpf`: the program gets
/// events of interrupts. Its files are copied to the folder `out`.
pub(crate) fn compare(
    vcoop: PathBuf,
    bpf: bool,
    scx: bool,
    args: &[String],
    out: Option<&Path>,
) -> anyhow::Result<ExitCode> {
    let work = tempfile::tempdir()?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("box/demo-box");
    let options = HostOptions {
        series: if scx { "7" } else { "6.12" }.to_owned(),
        append: String::new(),
        programs: vec![
            called_vcoop(&vcoop, work.path())?,
            program("taskset", "util-linux")?,
            script,
        ],
        guest: Some(guest_image()?),
    };
    let (mut command, sets) = if scx {
        ("demo-box idle --policy vanilla,wake-boost,ext".to_owned(), SCX_SETS.as_slice())
    } else {
        ("demo-box busy --policy vanilla,static,wake-boost,dynamic".to_owned(), SETS.as_slice())
    };
    let injection = (bpf && !scx).then_some("wake-boost.boost_on_injection=true");
    for set in sets.iter().copied().chain(injection) {
        command += &format!(" --set policy.{set}");
    }
    for arg in args {
        command += &format!(" '{arg}'");
    }
    if out.is_some() {
        command += " --out /out/result";
    }
    run_in(&options, &command, Duration::from_secs(3600), out.unwrap_or(Path::new(OUT)))
}

/// Runs a command in a box, and copies the files that it leaves in /out to a folder.
fn run_in(
    options: &HostOptions,
    command: &str,
    limit: Duration,
    out: &Path,
) -> anyhow::Result<ExitCode> {
    let status = match attempt(options, command, limit, out) {
        // An emulator error during the command; one at boot has had its second attempt.
        Err(error @ StockError::Oops { .. }) => {
            eprintln!("xtask: once more: {error}");
            attempt(options, command, limit, out)?
        }
        other => other?,
    };
    Ok(ExitCode::from(u8::try_from(status).unwrap_or(1)))
}

fn attempt(
    options: &HostOptions,
    command: &str,
    limit: Duration,
    folder: &Path,
) -> Result<i32, StockError> {
    let begun = Instant::now();
    let host = KvmHost::start(options)?;
    eprintln!("xtask: the host is up after {:.0} s", begun.elapsed().as_secs_f64());
    let status = host.stream(&format!("mkdir -p /out; {command}"), limit, |bytes| {
        let mut out = std::io::stdout().lock();
        // The reader of stdout may have gone.
        let _ = out.write_all(bytes).and_then(|()| out.flush());
    })?;
    host.fetch("/out", folder)?;
    Ok(status)
}

/// Builds the program with optimisation: its own cost is part of the measurement.
pub(crate) fn build(bpf: bool) -> anyhow::Result<PathBuf> {
    let status = Command::new("cargo")
        .args(["build", "--release", "--package", "vcoop"])
        .args(if bpf { &["--features", "bpf"][..] } else { &[] })
        .stdout(Stdio::null())
        .status()?;
    anyhow::ensure!(status.success(), "vcoop cannot be built");
    let own = std::env::current_exe()?;
    let target = own.ancestors().nth(2).context("this program is not in a target folder")?;
    Ok(target.join("release/vcoop"))
}

/// Copies a program under the name that it has in the box.
fn called_vcoop(program: &Path, folder: &Path) -> anyhow::Result<PathBuf> {
    let copy = folder.join("vcoop");
    std::fs::copy(program, &copy).with_context(|| program.display().to_string())?;
    Ok(copy)
}

/// Writes the command as a script: the host takes one line of a bounded length over its serial port.
fn script(command: &str, folder: &Path) -> anyhow::Result<PathBuf> {
    let script = folder.join(SCRIPT);
    std::fs::write(&script, format!("#!/bin/sh\n{command}\n"))?;
    Ok(script)
}

/// The image for guests of the host: the kernel of stock guests, with vcoop's driver.
fn guest_image() -> anyhow::Result<GuestImage> {
    let kernel = Kernel::get()?;
    let module = kernel.driver()?;
    Ok(GuestImage { kernel, programs: Vec::new(), modules: vec![module] })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Alone {
        #[command(flatten)]
        args: super::Args,
    }

    #[test]
    fn a_command_may_be_long_and_of_several_lines() {
        let folder = tempfile::tempdir().unwrap();
        let long = format!("# {}\ntrue\nexit 7", "long ".repeat(1000));
        let script = super::script(&long, folder.path()).unwrap();
        let status = std::process::Command::new("sh").arg(script).status().unwrap();
        assert_eq!(status.code(), Some(7));
    }

    #[test]
    fn what_follows_the_options_is_the_command() {
        let of = |args: &str| {
            let args = Alone::try_parse_from(["box"].into_iter().chain(args.split_whitespace()));
            args.ok().map(|Alone { args }| (args.kernel, args.guest, args.command.join(" ")))
        };
        let expected = |series: &str, guest, command: &str| {
            Some((series.to_owned(), guest, command.to_owned()))
        };
        assert_eq!(of(""), expected("6.12", false, "vcoop doctor"));
        assert_eq!(of("--kernel 7 --guest -- a --b c"), expected("7", true, "a --b c"));
        assert_eq!(of("a --kernel 7"), expected("6.12", false, "a --kernel 7"));
        for none in ["--kernel 5.10", "--kernel", "--other", "--limit soon"] {
            assert_eq!(of(none), None, "{none}");
        }
    }
}
