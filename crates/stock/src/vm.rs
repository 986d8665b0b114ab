//! A guest that runs.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use vcoop_threads::set_affinity;
use vcoop_vmm::qmp::{QmpError, TIMEOUT};
use vcoop_vmm::{Accel, Proc, Vm};

use crate::control::{Control, Output};
use crate::error::StockError;
use crate::host::{dies_with_caller, program};
use crate::initramfs;
use crate::kernel::Kernel;

/// What the guest's /init says on the console when it listens.
const READY: &str = "stock guest ready: ";

/// How long the threads of the vCPUs may take to appear.
const THREADS: Duration = Duration::from_secs(10);

/// How often something is looked at that is waited for.
const LOOK: Duration = Duration::from_millis(20);

/// - `panic=-1`: with `-no-reboot`, QEMU ends when the guest panics.
/// - `no_timer_check`, `tsc=reliable`: a vCPU that does not run for some milliseconds is no fault
///   of its timer or its TSC. A guest that takes it for one does not boot, or changes to a clock
///   that costs an exit for each reading.
const APPEND: &str = "console=ttyS0 quiet panic=-1 no_timer_check tsc=reliable";

/// How a guest is set up. The default is an emulated one with one vCPU, placed nowhere.
#[derive(Clone, Debug)]
pub struct Options {
    /// QEMU's name for it.
    pub name: String,
    /// How many vCPUs.
    pub vcpus: u32,
    /// Memory, MiB.
    pub memory_mib: u32,
    /// What executes it.
    pub accel: Accel,
    /// Whether each vCPU of an emulated guest has a thread of its own. Not for guests that load and
    /// unload modules with hooks again and again: under QEMU 7.2, both vCPUs of one were seen to spin
    /// where the kernel had patched its code, as if QEMU still ran the breakpoint of the patching.
    pub thread_per_vcpu: bool,
    /// Whether QEMU names its threads, which is how a VM's vCPUs are told without asking QEMU.
    pub debug_threads: bool,
    /// CPUs for QEMU's own threads; empty for those of the caller. In an emulated guest, timers
    /// are delivered by QEMU's main thread.
    pub emulator_cpus: Vec<u32>,
    /// CPUs for the threads of the vCPUs; empty for those of the caller.
    pub vcpu_cpus: Vec<u32>,
    /// Further programs of this host for the guest's /bin.
    pub programs: Vec<PathBuf>,
    /// The kernel; [`Kernel::get`] if there is none.
    pub kernel: Option<Kernel>,
    /// Kernel modules for the guest's /lib/modules, in which they keep their names.
    pub modules: Vec<PathBuf>,
    /// Further arguments for QEMU.
    pub qemu_args: Vec<String>,
    /// How long the guest may take to come up.
    pub boot: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            name: "stock".to_owned(),
            vcpus: 1,
            memory_mib: 256,
            accel: Accel::Tcg,
            thread_per_vcpu: true,
            debug_threads: true,
            emulator_cpus: Vec::new(),
            vcpu_cpus: Vec::new(),
            programs: Vec::new(),
            kernel: None,
            modules: Vec::new(),
            qemu_args: Vec::new(),
            boot: Duration::from_secs(120),
        }
    }
}

/// A guest that has come up and takes commands. Dropping it ends its QEMU, as does the end of the
/// thread that started it.
#[derive(Debug)]
pub struct StockVm {
    qemu: Child,
    control: Control,
    name: String,
    vcpus: u32,
    dir: TempDir,
}

impl StockVm {
    /// Starts QEMU and waits until the guest takes commands: 5 to 10 s where it is emulated.
    ///
    /// # Errors
    ///
    /// [`StockError::Missing`] if it cannot be had on this host, or why it did not come up.
    pub fn start(options: &Options) -> Result<Self, StockError> {
        let qemu = program("qemu-system-x86_64", "qemu-system-x86")?;
        let kernel = options.kernel.clone().map_or_else(Kernel::get, Ok)?;
        let dir = tempfile::Builder::new().prefix("vcoop-stock-").tempdir();
        let dir = dir.map_err(StockError::io("a folder for temporary files"))?;
        let initrd = dir.path().join("initrd");
        initramfs::write(&initrd, &options.programs, &options.modules)?;

        let mut command = dies_with_caller("KILL", qemu);
        arguments(&mut command, options, dir.path(), &kernel.image, &initrd);
        let log = dir.path().join("qemu.log");
        let log = File::create(&log).map_err(StockError::file(&log))?;
        let both = log.try_clone().map_err(StockError::io("qemu.log"))?;
        command.stdout(both).stderr(log);
        let qemu = command.spawn().map_err(StockError::io("starting QEMU"))?;
        let control = Control::new(dir.path().join("control"));
        let (name, vcpus) = (options.name.clone(), options.vcpus);
        let mut vm = Self { qemu, control, name, vcpus, dir };
        vm.wait_until_up(options.boot)?;
        // Not before: on a busy host it boots sooner where it likes.
        vm.place(options)?;
        Ok(vm)
    }

    /// Runs a line of shell in the guest; see [`Control::run`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn run(&self, command: &str, timeout: Duration) -> Result<Output, StockError> {
        self.control.run(command, timeout)
    }

    /// The way to the guest's shell, for another process too.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// QEMU's process.
    pub fn pid(&self) -> u32 {
        self.qemu.id()
    }

    /// QEMU's QMP socket.
    pub fn qmp(&self) -> PathBuf {
        self.dir.path().join("qmp")
    }

    /// The VM as it is found on this host, with all its vCPUs. QEMU is asked over QMP where it
    /// does not name its threads.
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
                        // Threads that were started after the scan, or a socket that is not there yet.
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
    /// As [`Self::vm`].
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
            // One that has ended since needs no place.
            let _ = place(other.thread.tid, &options.emulator_cpus);
        }
        Ok(())
    }

    fn wait_until_up(&mut self, limit: Duration) -> Result<(), StockError> {
        let give_up = Instant::now() + limit;
        loop {
            // Asked first: what it said before it ended is complete then.
            let ended = self.qemu.try_wait().map_err(StockError::io("waiting for QEMU"))?;
            if self.said("console").contains(READY) {
                return Ok(());
            }
            let said = || [self.said("qemu.log"), self.said("console")].map(|t| end(&t)).concat();
            if let Some(status) = ended {
                return Err(StockError::Ended { status, said: said() });
            }
            if Instant::now() >= give_up {
                return Err(StockError::NotUp { limit, said: said() });
            }
            thread::sleep(LOOK);
        }
    }

    fn said(&self, file: &str) -> String {
        let bytes = fs::read(self.dir.path().join(file)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Drop for StockVm {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

/// The last lines of a text, fit for a terminal.
fn end(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let last = &lines[lines.len().saturating_sub(15)..];
    let clean = |line: &&str| line.chars().filter(|c| !c.is_control()).collect::<String>() + "\n";
    last.iter().map(clean).collect()
}

fn arguments(command: &mut Command, options: &Options, dir: &Path, kernel: &Path, initrd: &Path) {
    // cx16: under `thread=multi`, QEMU 7.2 loses flags after a cmpxchg16b, which crashes most boots.
    let (accel, cpu) = match options.accel {
        Accel::Tcg if options.thread_per_vcpu => ("tcg,thread=multi", "max,-cx16"),
        Accel::Tcg => ("tcg,thread=single", "max,-cx16"),
        Accel::Kvm => ("kvm", "host"),
    };
    let threads = if options.debug_threads { "on" } else { "off" };
    let socket = |name: &str| format!("path={},server=on,wait=off", dir.join(name).display());
    command
        .args("-nodefaults -no-user-config -no-reboot -display none -machine q35".split(' '))
        .args(["-name", &format!("guest={},debug-threads={threads}", options.name)])
        .args(["-accel", accel, "-cpu", cpu])
        .args(["-smp", &options.vcpus.to_string()])
        .args(["-m", &options.memory_mib.to_string()])
        .arg("-kernel")
        .arg(kernel)
        .arg("-initrd")
        .arg(initrd)
        .args(["-append", APPEND])
        .args(["-serial", &format!("file:{}", dir.join("console").display())])
        .args(["-chardev", &format!("socket,id=control,{}", socket("control"))])
        .args(["-serial", "chardev:control"])
        .args(["-chardev", &format!("socket,id=qmp,{}", socket("qmp"))])
        .args(["-mon", "chardev=qmp,mode=control"])
        .args(&options.qemu_args)
        .stdin(Stdio::null());
}
