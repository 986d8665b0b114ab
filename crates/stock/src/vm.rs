//! A running guest.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Child;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use vcoop_threads::set_affinity;
use vcoop_vmm::qmp::{QmpError, TIMEOUT};
use vcoop_vmm::{Accel, Proc, Vm};

use crate::control::{Control, Output};
use crate::error::{StockError, is_oops};
use crate::initramfs::{self, Contents};
use crate::kernel::Kernel;
use crate::qemu::Qemu;

/// The console message of the guest's /init when it takes commands.
const READY: &str = "stock guest ready: ";

/// Time limit for the threads of the vCPUs to appear.
const THREADS: Duration = Duration::from_secs(10);

/// Time limit to end the guest's background work.
const END: Duration = Duration::from_secs(10);

/// Time between two looks at what is waited for.
const LOOK: Duration = Duration::from_millis(20);

/// - `panic=-1`: with `-no-reboot`, QEMU ends when the guest panics.
/// - `no_timer_check`, `tsc=reliable`: a vCPU that does not run for some milliseconds is no fault
///   of its timer or its TSC. A guest that takes it for one does not boot, or changes to a clock
///   that costs an exit for each reading.
/// - `cryptomgr.notests`: the kernel's tests of its ciphers are a sixth of an emulated boot.
const APPEND: &str = "console=ttyS0 quiet panic=-1 no_timer_check tsc=reliable cryptomgr.notests";

/// Setup of a guest. By default it is emulated, has one vCPU, and is not pinned.
#[derive(Clone, Debug)]
pub struct Options {
    /// QEMU's name for it.
    pub name: String,
    /// Number of vCPUs.
    pub vcpus: u32,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// The accelerator.
    pub accel: Accel,
    /// The clock of an emulated guest counts its instructions, at a nanosecond each, so that the guest does not notice
    /// what else the host does. Its vCPUs run by turns.
    pub counted: bool,
    /// The CPU model and its features, in QEMU's syntax; empty for all features of the accelerator.
    pub cpu: String,
    /// Whether QEMU names its threads, so that the vCPUs can be found without asking QEMU.
    pub debug_threads: bool,
    /// CPUs for QEMU's other threads; empty for the caller's. Timers of an emulated guest are delivered by QEMU's main
    /// thread.
    pub emulator_cpus: Vec<u32>,
    /// CPUs for the threads of the vCPUs; empty for the caller's.
    pub vcpu_cpus: Vec<u32>,
    /// Further programs of this host for the guest's /bin.
    pub programs: Vec<PathBuf>,
    /// The kernel; `None` for [`Kernel::get`].
    pub kernel: Option<Kernel>,
    /// Further arguments for the kernel.
    pub append: String,
    /// Kernel modules for the guest's /lib/modules, under their own names.
    pub modules: Vec<PathBuf>,
    /// Kernel modules that the guest loads while it boots, in this order.
    pub loaded: Vec<PathBuf>,
    /// Further files of this host, and their paths in the guest.
    pub files: Vec<(PathBuf, String)>,
    /// Further arguments for QEMU.
    pub qemu_args: Vec<String>,
    /// Time limit for the boot.
    pub boot: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            name: "stock".to_owned(),
            vcpus: 1,
            memory_mib: 256,
            accel: Accel::Tcg,
            counted: false,
            cpu: String::new(),
            debug_threads: true,
            emulator_cpus: Vec::new(),
            vcpu_cpus: Vec::new(),
            programs: Vec::new(),
            kernel: None,
            append: String::new(),
            modules: Vec::new(),
            loaded: Vec::new(),
            files: Vec::new(),
            qemu_args: Vec::new(),
            boot: Duration::from_secs(120),
        }
    }
}

/// The files of a guest, for QEMU's arguments.
pub(crate) struct Paths {
    pub kernel: PathBuf,
    pub initrd: PathBuf,
    pub console: PathBuf,
    /// The backend of the second serial port in the syntax of QEMU's `-chardev`, with the id `control`.
    pub control: String,
    pub qmp: PathBuf,
}

impl Options {
    /// QEMU's arguments.
    pub(crate) fn arguments(&self, paths: &Paths) -> Vec<String> {
        // cx16 is off: an emulated cmpxchg16b stops all vCPUs for a while.
        let (accel, cpu) = match self.accel {
            Accel::Tcg if self.counted => ("tcg,thread=single", "max,-cx16"),
            Accel::Tcg => ("tcg,thread=multi", "max,-cx16"),
            Accel::Kvm => ("kvm", "host"),
        };
        let cpu = if self.cpu.is_empty() { cpu } else { &self.cpu };
        let threads = if self.debug_threads { "on" } else { "off" };
        let fixed = "-nodefaults -no-user-config -no-reboot -display none -machine q35";
        let mut args: Vec<String> = fixed.split(' ').map(str::to_owned).collect();
        let mut add = |option: &str, value: String| args.extend([option.to_owned(), value]);
        add("-name", format!("guest={},debug-threads={threads}", self.name));
        add("-accel", accel.to_owned());
        if self.counted {
            add("-icount", "shift=0,sleep=off".to_owned());
        }
        add("-cpu", cpu.to_owned());
        add("-smp", self.vcpus.to_string());
        add("-m", self.memory_mib.to_string());
        add("-kernel", paths.kernel.display().to_string());
        add("-initrd", paths.initrd.display().to_string());
        add("-append", format!("{APPEND} {}", self.append).trim_end().to_owned());
        add("-serial", format!("file:{}", paths.console.display()));
        add("-chardev", paths.control.clone());
        add("-serial", "chardev:control".to_owned());
        let qmp = paths.qmp.display();
        add("-chardev", format!("socket,id=qmp,path={qmp},server=on,wait=off"));
        add("-mon", "chardev=qmp,mode=control".to_owned());
        args.extend(self.qemu_args.iter().cloned());
        args
    }
}

/// A guest that is up and takes commands. Dropping it ends its QEMU, as does the end of the thread that started it.
#[derive(Debug)]
pub struct StockVm {
    qemu: Mutex<Child>,
    control: Control,
    name: String,
    vcpus: u32,
    dir: TempDir,
}

impl StockVm {
    /// Starts QEMU and waits until the guest takes commands: 5 to 10 s if emulated. An emulated guest whose kernel
    /// fails meanwhile, because of an emulator error, is booted once more, with a message on stderr.
    ///
    /// # Errors
    ///
    /// [`StockError::Missing`] if it is not available on this host; or why it did not come up.
    pub fn start(options: &Options) -> Result<Self, StockError> {
        let mut vm = Self::spawn(options)?;
        let mut up = vm.wait_until_up(options.boot);
        if let Err(error) = &up
            && options.accel == Accel::Tcg
            && vm.has_failed()
        {
            eprintln!("{}: booted once more, as its kernel failed: {error}", options.name);
            drop(vm);
            vm = Self::spawn(options)?;
            up = vm.wait_until_up(options.boot);
        }
        up?;
        // Not earlier: on a busy host an unpinned guest boots faster.
        vm.place(options)?;
        Ok(vm)
    }

    fn spawn(options: &Options) -> Result<Self, StockError> {
        let several = options.accel == Accel::Tcg && options.vcpus > 1;
        let qemu = if several { Qemu::recent()? } else { Qemu::of_host()? };
        let kernel = options.kernel.clone().map_or_else(Kernel::get, Ok)?;
        let dir = tempfile::Builder::new().prefix("vcoop-stock-").tempdir();
        let dir = dir.map_err(StockError::io("a folder for temporary files"))?;
        let file = |name: &str| dir.path().join(name);
        let initrd = file("initrd");
        let contents = Contents {
            programs: options.programs.clone(),
            modules: options.modules.clone(),
            loaded: options.loaded.clone(),
            files: options.files.clone(),
        };
        initramfs::write(&initrd, &contents)?;

        let control = file("control").display().to_string();
        let mut command = qemu.command();
        command.args(options.arguments(&Paths {
            kernel: kernel.image,
            initrd,
            console: file("console"),
            control: format!("socket,id=control,path={control},server=on,wait=off"),
            qmp: file("qmp"),
        }));
        let log = dir.path().join("qemu.log");
        let log = File::create(&log).map_err(StockError::file(&log))?;
        let both = log.try_clone().map_err(StockError::io("qemu.log"))?;
        command.stdout(both).stderr(log);
        let qemu = command.spawn().map_err(StockError::io("starting QEMU"))?;
        let control = Control::new(dir.path().join("control"));
        let (name, vcpus) = (options.name.clone(), options.vcpus);
        Ok(Self { qemu: Mutex::new(qemu), control, name, vcpus, dir })
    }

    /// Runs a line of shell in the guest; see [`Control::run`].
    ///
    /// # Errors
    ///
    /// As for [`Control::run`].
    pub fn run(&self, command: &str, timeout: Duration) -> Result<Output, StockError> {
        self.control.run(command, timeout)
    }

    /// Ends all shell loops that begin with `while :`, with which tests keep the guest busy.
    ///
    /// # Errors
    ///
    /// As [`Self::run`].
    pub fn end_loops(&self) -> Result<(), StockError> {
        // The pattern does not match the command that searches.
        let end = "for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline | grep -q 'while [:]' && \
                   kill -KILL ${p#/proc/}; done 2>/dev/null; true";
        self.run(end, END).map(drop)
    }

    /// The output of its console.
    pub fn console(&self) -> String {
        self.said("console")
    }

    /// Whether its console shows that the kernel failed.
    pub fn has_failed(&self) -> bool {
        is_oops(&self.console())
    }

    /// Whether QEMU has ended, as it does when an emulated machine resets itself.
    pub fn has_ended(&self) -> bool {
        let mut qemu = self.qemu.lock().unwrap_or_else(PoisonError::into_inner);
        !matches!(qemu.try_wait(), Ok(None))
    }

    /// The output of QEMU and of the console.
    pub fn log(&self) -> String {
        [self.said("qemu.log"), self.console()].concat()
    }

    /// How many times it has come up: more than once if it has booted another kernel itself.
    pub fn boots(&self) -> usize {
        self.console().matches(READY).count()
    }

    /// The connection to the guest's shell, which other processes can also open.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// QEMU's process.
    pub fn pid(&self) -> u32 {
        self.qemu.lock().unwrap_or_else(PoisonError::into_inner).id()
    }

    /// QEMU's QMP socket.
    pub fn qmp(&self) -> PathBuf {
        self.dir.path().join("qmp")
    }

    /// The VM as found on this host, with all its vCPUs. QEMU is asked over QMP if it does not name its threads.
    ///
    /// # Errors
    ///
    /// It is not found in time.
    pub fn vm(&self) -> Result<Vm, StockError> {
        let proc = Proc::default();
        let give_up = Instant::now() + THREADS;
        while Instant::now() < give_up {
            let scan = proc.scan().map_err(StockError::io("/proc"))?;
            if let Some(mut vm) = scan.vms.into_iter().find(|vm| vm.pid == self.pid()) {
                if vm.vcpus.is_empty() {
                    match proc.ask(&mut vm, &self.qmp(), TIMEOUT) {
                        // Threads that started after the scan, or a socket that does not exist yet.
                        Ok(()) | Err(QmpError::Connect(_) | QmpError::ForeignThread { .. }) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
                if vm.vcpus.len() == self.vcpus as usize {
                    return Ok(vm);
                }
            }
            thread::sleep(LOOK);
        }
        Err(StockError::NoVcpus { limit: THREADS })
    }

    /// The threads of the vCPUs, by index.
    ///
    /// # Errors
    ///
    /// As for [`Self::vm`].
    pub fn vcpu_tids(&self) -> Result<Vec<i32>, StockError> {
        Ok(self.vm()?.vcpus.iter().map(|vcpu| vcpu.thread.tid as i32).collect())
    }

    fn place(&self, options: &Options) -> Result<(), StockError> {
        if options.vcpu_cpus.is_empty() && options.emulator_cpus.is_empty() {
            return Ok(());
        }
        let vm = self.vm()?;
        let place = |tid: u32, cpus: &[u32]| match cpus {
            [] => Ok(()),
            cpus => set_affinity(tid as i32, cpus),
        };
        for vcpu in &vm.vcpus {
            place(vcpu.thread.tid, &options.vcpu_cpus)?;
        }
        for other in &vm.others {
            // A thread that has ended meanwhile need not be pinned.
            let _ = place(other.thread.tid, &options.emulator_cpus);
        }
        Ok(())
    }

    fn wait_until_up(&mut self, limit: Duration) -> Result<(), StockError> {
        let give_up = Instant::now() + limit;
        loop {
            // Checked first: if it has ended, its output is complete.
            let qemu = self.qemu.get_mut().unwrap_or_else(PoisonError::into_inner);
            let ended = qemu.try_wait().map_err(StockError::io("waiting for QEMU"))?;
            if self.said("console").contains(READY) {
                return Ok(());
            }
            if let Some(status) = ended {
                return Err(StockError::Ended { status, said: self.last_words() });
            }
            if Instant::now() >= give_up {
                return Err(StockError::NotUp { limit, said: self.last_words() });
            }
            thread::sleep(LOOK);
        }
    }

    /// The end of the output of QEMU and of the console.
    fn last_words(&self) -> String {
        [self.said("qemu.log"), self.console()].map(|text| end(&text)).concat()
    }

    fn said(&self, file: &str) -> String {
        let bytes = fs::read(self.dir.path().join(file)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Drop for StockVm {
    fn drop(&mut self) {
        let qemu = self.qemu.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = qemu.kill();
        let _ = qemu.wait();
    }
}

/// The last lines of a text, safe for a terminal.
fn end(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let last = &lines[lines.len().saturating_sub(15)..];
    let clean = |line: &&str| line.chars().filter(|c| !c.is_control()).collect::<String>() + "\n";
    last.iter().map(clean).collect()
}
