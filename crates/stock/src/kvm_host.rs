//! A real KVM host, emulated: stock QEMU emulates a CPU with SVM, on which Debian's kernel and kvm-amd run as on
//! hardware. It runs its own stock guests. Order and function are as on hardware; times are not.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use tempfile::TempDir;
use vcoop_vmm::Accel;

use crate::control::Output;
use crate::error::StockError;
use crate::host::output;
use crate::initramfs::{self, Contents};
use crate::kernel::Kernel;
use crate::qemu::Qemu;
use crate::release;
use crate::tree::KernelTree;
use crate::vm::{Options, Paths, StockVm};

/// SVM with nested paging.
const CPU: &str = "EPYC";

/// Folders of the host: the files that its guests boot, and their serial lines.
const GUEST: &str = "/lib/guest";
const LINES: &str = "/run/guests";

/// The script that runs a line of shell in a guest of the host.
const GUEST_SHELL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/guest/guest");

/// Time limits for short operations, and for operations that write much.
const SHORT: Duration = Duration::from_secs(30);
const LONG: Duration = Duration::from_secs(120);

/// Time between two looks at the output of a command.
const LOOK: Duration = Duration::from_millis(500);

/// Setup of a host.
#[derive(Clone, Debug)]
pub struct HostOptions {
    /// Its kernel: one of [`KernelTree::series`].
    pub series: String,
    /// Further arguments for it.
    pub append: String,
    /// Programs of this host for its /bin.
    pub programs: Vec<PathBuf>,
    /// The image for its guests, if it has any.
    pub guest: Option<GuestImage>,
}

/// The image for guests of a host.
#[derive(Clone, Debug)]
pub struct GuestImage {
    /// The kernel.
    pub kernel: Kernel,
    /// Programs of this host for its /bin.
    pub programs: Vec<PathBuf>,
    /// Kernel modules for its /lib/modules.
    pub modules: Vec<PathBuf>,
}

/// A KVM host that is up and takes commands. Dropping it ends it.
#[derive(Debug)]
pub struct KvmHost {
    vm: StockVm,
    /// Keeps the files in it.
    _files: TempDir,
}

impl KvmHost {
    /// Boots a host, as [`StockVm::start`] does; takes 5 to 15 s.
    ///
    /// # Errors
    ///
    /// [`StockError::Missing`] if it is not available here; or why it did not come up.
    pub fn start(options: &HostOptions) -> Result<Self, StockError> {
        let tree = KernelTree::newest(&options.series)?;
        let qemu = Qemu::recent()?;
        // See `vm.rs`. Without it, newer kernels have no timers for BPF (`kmalloc_nolock` in mm/slub.c).
        let needs_cx16 = release::is_from(&tree.release, &[6, 18]);
        // KVM with PREEMPT_RT insists on a TSC of constant rate. QEMU's has one, and does not say so without KVM.
        let constant =
            if tree.release.ends_with(release::RT) { " setcpuid=constant_tsc" } else { "" };
        let files = tempfile::tempdir().map_err(StockError::io("a folder for temporary files"))?;
        let strip = |program: &PathBuf| stripped(program, files.path());
        let mut machine = Options {
            name: "kvm-host".to_owned(),
            vcpus: 2,
            memory_mib: 3072,
            cpu: if needs_cx16 { CPU.to_owned() } else { format!("{CPU},-cx16") },
            kernel: Some(tree.kernel.clone()),
            append: format!("{}{constant}", options.append),
            programs: options.programs.iter().map(strip).collect(),
            loaded: tree.modules(&["kvm-amd"], files.path())?,
            ..Options::default()
        };
        if let Some(image) = &options.guest {
            let initrd = files.path().join("initrd");
            let contents = Contents {
                programs: image.programs.iter().map(strip).collect(),
                modules: image.modules.clone(),
                ..Contents::default()
            };
            initramfs::write(&initrd, &contents)?;
            machine.programs.push(qemu.program().to_owned());
            let mut add =
                |file: PathBuf, name: &str| machine.files.push((file, format!("{GUEST}/{name}")));
            for file in qemu.firmware()? {
                let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
                add(file, &name);
            }
            add(initrd, "initrd");
            add(image.kernel.image.clone(), "vmlinuz");
            machine.files.push((GUEST_SHELL.into(), "/bin/guest".to_owned()));
            let script = files.path().join("start-guest");
            fs::write(&script, start_guest()).map_err(StockError::file(&script))?;
            machine.files.push((script, "/bin/start-guest".to_owned()));
        }
        Ok(Self { vm: StockVm::start(&machine)?, _files: files })
    }

    /// Runs a line of shell in it; see [`crate::Control::run`].
    ///
    /// # Errors
    ///
    /// As for [`crate::Control::run`].
    pub fn run(&self, command: &str, timeout: Duration) -> Result<Output, StockError> {
        self.vm.run(command, timeout)
    }

    /// The machine.
    pub fn vm(&self) -> &StockVm {
        &self.vm
    }

    /// Runs a line of shell in it and passes on its output as it comes, stdout and stderr merged. Returns the exit
    /// status; 137 if it took longer than `limit`.
    ///
    /// # Errors
    ///
    /// As for [`Self::run`]; [`StockError::Oops`] if the host failed.
    pub fn stream(
        &self,
        command: &str,
        limit: Duration,
        mut sink: impl FnMut(&[u8]),
    ) -> Result<i32, StockError> {
        let seconds = limit.as_secs().max(1);
        let quoted = command.replace('\'', r"'\''");
        let begin = format!(
            "rm -f /tmp/status; : >/tmp/printed; (timeout -s KILL {seconds} sh -c '{quoted}' >/tmp/printed 2>&1; \
             echo $? >/tmp/state; mv /tmp/state /tmp/status) >/dev/null 2>&1 &"
        );
        self.run(&begin, SHORT)?;
        let mut seen = 0;
        loop {
            std::thread::sleep(LOOK);
            // The status is read first: no output comes after it.
            let look = format!(
                "cat /tmp/status 2>/dev/null; echo; tail -c +{} /tmp/printed | base64 -w 0",
                seen + 1
            );
            let told = self.run(&look, SHORT).map_err(|error| self.oops().unwrap_or(error))?;
            let (status, printed) = told.stdout.split_once('\n').unwrap_or_default();
            let printed = decode(printed.trim())?;
            seen += printed.len();
            sink(&printed);
            if let Ok(status) = status.parse() {
                return self.oops().map_or(Ok(status), Err);
            }
        }
    }

    /// Copies a folder of the host to a local folder.
    ///
    /// # Errors
    ///
    /// As for [`Self::run`], or a file cannot be written.
    pub fn fetch(&self, from: &str, to: &Path) -> Result<(), StockError> {
        let packed = self.run(&format!("tar -cz -C {from} . | base64 -w 0"), LONG)?;
        let packed = decode(packed.stdout.trim())?;
        fs::create_dir_all(to).map_err(StockError::file(to))?;
        let archive = tempfile::NamedTempFile::new().map_err(StockError::io("a temporary file"))?;
        fs::write(&archive, packed).map_err(StockError::file(archive.path()))?;
        let mut unpack = Command::new("tar");
        unpack.arg("-xz").arg("-f").arg(archive.path()).arg("-C").arg(to);
        output(&mut unpack, &format!("unpacking {from} of the host")).map(drop)
    }

    /// Whether its kernel failed or the machine has reset itself; an error of the emulator can cause both.
    pub fn has_failed(&self) -> bool {
        self.vm.has_failed() || self.vm.has_ended()
    }

    /// The error for such a failure.
    fn oops(&self) -> Option<StockError> {
        self.has_failed().then(|| StockError::Oops { said: self.vm.log() })
    }
}

/// A copy of a program without debug information, if that can be removed: a host and its guests have all their files in
/// memory.
fn stripped(program: &PathBuf, folder: &Path) -> PathBuf {
    let copy = folder.join(program.file_name().unwrap_or_default());
    let mut strip = Command::new("strip");
    strip.arg("-o").arg(&copy).arg(program);
    output(&mut strip, "strip").map_or_else(|_| program.clone(), |_| copy)
}

fn decode(text: &str) -> Result<Vec<u8>, StockError> {
    let failed = |error| StockError::io("an answer of the host")(std::io::Error::other(error));
    BASE64_STANDARD.decode(text).map_err(failed)
}

/// The script that starts a guest in the background and waits until it is up: `start-guest NAME [QEMU'S ARGUMENTS]`;
/// later arguments override those of the script. A stock kernel that resets while it boots, because of an emulator
/// error, is booted once more.
fn start_guest() -> String {
    let options = Options { name: "$name".to_owned(), accel: Accel::Kvm, ..Options::default() };
    let args = options.arguments(&Paths {
        kernel: format!("{GUEST}/vmlinuz").into(),
        initrd: format!("{GUEST}/initrd").into(),
        console: "$line.console".into(),
        control: "pipe,id=control,path=$line".to_owned(),
        qmp: "$line.qmp".into(),
    });
    let args: Vec<String> = args.iter().map(|arg| format!("\"{arg}\"")).collect();
    format!(
        "#!/bin/sh\nname=$1\nshift\nline={LINES}/$name\nmkdir -p {LINES}\nmkfifo $line.in $line.out\n\
         for try in 1 2; do\n\
         rm -f $line.console\n\
         qemu-system-x86_64 -L {GUEST} {} \"$@\" >$line.log 2>&1 &\n\
         until grep -q 'stock guest ready' $line.console 2>/dev/null; do\n\
         kill -0 $! 2>/dev/null || {{ wait $!; echo \"$name: QEMU has ended with status $?\" >&2\n\
         cat $line.log $line.console >&2; dmesg | tail -n 3 >&2; continue 2; }}\nsleep 0.2\ndone\n\
         exit 0\ndone\nexit 1\n",
        args.join(" ")
    )
}
