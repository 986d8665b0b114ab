//! `cargo xtask box`: a command on a real KVM host, emulated.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use vcoop_stock::{GuestImage, HostOptions, Kernel, KernelTree, KvmHost, StockError, program};

use crate::demo;

const USAGE: &str = "\
usage: cargo xtask box [--kernel SERIES] [--append WORDS] [--with PROGRAM]... [--guest] [--limit SECONDS]
                       [--vcoop PROGRAM] [--] [COMMAND...]
  boots a real KVM host, emulated by QEMU (SVM, Debian's kernel, kvm-amd), runs a line of shell in it
  (`vcoop doctor`), and brings the files that it leaves in /out back to target/box
  --kernel  the host's kernel: 6.12, or 7 for one with sched_ext (6.12)
  --append  further arguments for the host's kernel, as lockdown=integrity
  --with    also this program of this machine, by name or path, with its libraries
  --guest   also QEMU, a kernel and vcoop's driver (/lib/modules/vcoop.ko) for guests:
            `start-guest NAME [QEMU'S ARGUMENTS]` starts one in the background, `guest NAME COMMAND`
            runs a line of shell in it
  --limit   time for the command (300)
  --vcoop   this program instead of building one, with BPF where that can be built
  exit code: that of the command; 2 for bad usage, 3 if something is missing on this machine";

/// Where files are brought to.
const OUT: &str = "target/box";

#[derive(Debug)]
struct Args {
    series: String,
    append: String,
    with: Vec<String>,
    guest: bool,
    limit: Duration,
    vcoop: Option<PathBuf>,
    command: String,
}

/// Boots the host and runs a command in it.
pub(crate) fn run(args: &[String]) -> anyhow::Result<ExitCode> {
    let Some(args) = parse(args) else {
        eprintln!("{USAGE}");
        return Ok(ExitCode::from(2));
    };
    demo::unless_missing(in_box(&args))
}

fn parse(args: &[String]) -> Option<Args> {
    let mut parsed = Args {
        series: "6.12".to_owned(),
        append: String::new(),
        with: Vec::new(),
        guest: false,
        limit: Duration::from_secs(300),
        vcoop: None,
        command: "vcoop doctor".to_owned(),
    };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--kernel" => parsed.series.clone_from(args.next()?),
            "--append" => parsed.append.clone_from(args.next()?),
            "--with" => parsed.with.push(args.next()?.clone()),
            "--guest" => parsed.guest = true,
            "--limit" => parsed.limit = Duration::from_secs(args.next()?.parse().ok()?),
            "--vcoop" => parsed.vcoop = Some(args.next()?.into()),
            option if option.starts_with('-') && option != "--" => return None,
            first => {
                let rest: Vec<&str> = args.by_ref().map(String::as_str).collect();
                let words: Vec<&str> =
                    (first != "--").then_some(first).into_iter().chain(rest).collect();
                if !words.is_empty() {
                    parsed.command = words.join(" ");
                }
            }
        }
    }
    KernelTree::series().any(|series| series == parsed.series).then_some(parsed)
}

fn in_box(args: &Args) -> anyhow::Result<ExitCode> {
    let built = || demo::build(crate::layers::bpf_tools().is_ok());
    let vcoop = args.vcoop.clone().map_or_else(built, Ok)?;
    let work = tempfile::tempdir()?;
    let mut programs = vec![called_vcoop(&vcoop, work.path())?];
    for name in &args.with {
        let path = Path::new(name);
        programs.push(if path.components().count() > 1 {
            path.to_owned()
        } else {
            program(name, name)?
        });
    }
    let guest = args.guest.then(guest_image).transpose()?;
    let (series, append) = (args.series.clone(), args.append.clone());
    let options = HostOptions { series, append, programs, guest };
    run_in(&options, &args.command, args.limit, Path::new(OUT))
}

/// Keys of policies for a host whose exits take 30 us and interrupts 100 us.
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

/// The same for boosts in the kernel, by `wake-boost` and by `ext`, which is that with other means.
const SCX_SETS: [&str; 7] = [
    "ext.base=wake-boost",
    "ext.means=ext",
    "wake-boost.run=3ms",
    "wake-boost.vcpu_refill=50%",
    "wake-boost.vcpu_burst=20ms",
    "wake-boost.vm_refill=80%",
    "wake-boost.vm_burst=40ms",
];

/// `vcoop compare` of a guest with the driver in the box, which has sched_ext if `scx`. `bpf`: the program hears of
/// interrupts. Files of `--out=DIR` come to that folder.
pub(crate) fn compare(
    vcoop: PathBuf,
    bpf: bool,
    scx: bool,
    args: &[String],
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
    let mut out = Path::new(OUT);
    for arg in args {
        if let Some(folder) = arg.strip_prefix("--out=") {
            out = Path::new(folder);
            command += " --out /out/result";
        } else {
            command += &format!(" '{arg}'");
        }
    }
    run_in(&options, &command, Duration::from_secs(3600), out)
}

/// Runs a command in a box, and brings what it leaves in /out to a folder.
fn run_in(
    options: &HostOptions,
    command: &str,
    limit: Duration,
    out: &Path,
) -> anyhow::Result<ExitCode> {
    let status = match attempt(options, command, limit, out) {
        // An error of the emulator while the command ran; one at boot has had its second chance.
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
        // Whoever reads it may have gone.
        let _ = out.write_all(bytes).and_then(|()| out.flush());
    })?;
    host.fetch("/out", folder)?;
    Ok(status)
}

/// A copy of a program under the name that it has in the box.
fn called_vcoop(program: &Path, folder: &Path) -> anyhow::Result<PathBuf> {
    let copy = folder.join("vcoop");
    std::fs::copy(program, &copy).with_context(|| program.display().to_string())?;
    Ok(copy)
}

/// What guests of the host boot: the kernel of stock guests, with vcoop's driver.
fn guest_image() -> anyhow::Result<GuestImage> {
    let kernel = Kernel::get()?;
    let module = kernel.driver()?;
    Ok(GuestImage { kernel, programs: Vec::new(), modules: vec![module] })
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn what_follows_the_options_is_the_command() {
        let of = |args: &str| {
            let args: Vec<String> =
                args.split(' ').filter(|a| !a.is_empty()).map(str::to_owned).collect();
            parse(&args).map(|args| (args.series, args.guest, args.command))
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
