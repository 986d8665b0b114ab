//! A guest with the driver, and the window that the test shares with it.

use std::fs::{File, OpenOptions};
use std::mem::offset_of;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use vcoop_abi::window::{self, GuestPage, GuestReport, WindowHeader, guest_page, host_page};
use vcoop_abi::{GuestArea, Header, HostArea, Intent, Status, Word};
use vcoop_stock::{Kernel, Options, StockError, StockVm, guest_program, program};
use vcoop_testing::Skip;

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../guest/linux");
const WAKE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/guest/wake.c");

/// Bytes of the window: room for more vCPUs than the guest has.
pub(crate) const BYTES: u64 = 1 << 20;

/// How long the guest may take for anything.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// What is missing is a reason to skip; everything else fails.
pub(crate) fn have<T>(result: Result<T, StockError>) -> Result<T, Skip> {
    result.map_err(|error| {
        assert!(error.is_missing(), "{error}");
        Skip::because(error)
    })
}

/// The file that is the guest's window.
pub(crate) struct Window {
    file: File,
    path: PathBuf,
}

impl Window {
    pub(crate) fn new(name: &str) -> Self {
        let path = PathBuf::from(format!("/dev/shm/vcoop-driver-{name}-{}", std::process::id()));
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
        file.set_len(BYTES).unwrap();
        Self { file, path }
    }

    pub(crate) fn qemu_args(&self) -> Vec<String> {
        let path = self.path.display();
        let file = format!("memory-backend-file,id=window,share=on,mem-path={path},size={BYTES}");
        ["-object", &file, "-device", "ivshmem-plain,memdev=window"].map(str::to_owned).to_vec()
    }

    pub(crate) fn read(&self, offset: u64) -> u64 {
        let mut word = [0; 8];
        self.file.read_exact_at(&mut word, offset).unwrap();
        u64::from_le_bytes(word)
    }

    pub(crate) fn write(&self, offset: u64, word: u64) {
        self.file.write_all_at(&word.to_le_bytes(), offset).unwrap();
    }

    pub(crate) fn header(&self, field: usize) -> u64 {
        self.read(field as u64)
    }

    pub(crate) fn is_registered(&self) -> bool {
        self.header(offset_of!(WindowHeader, guest)) == Header::OURS.to_word()
    }

    pub(crate) fn area(&self, vcpu: u64, field: usize) -> u64 {
        self.read(guest_page(vcpu) + field as u64)
    }

    pub(crate) fn intent(&self, vcpu: u64) -> Intent {
        Intent::from_word(self.area(vcpu, offset_of!(GuestArea, intent)))
    }

    pub(crate) fn report(&self, vcpu: u64, field: usize) -> u64 {
        self.read(guest_page(vcpu) + (offset_of!(GuestPage, report) + field) as u64)
    }

    /// What vCPU 0 has counted.
    pub(crate) fn events(&self) -> u64 {
        self.report(0, offset_of!(GuestReport, events))
    }

    pub(crate) fn latencies(&self, vcpu: u64) -> u64 {
        let bucket = |n: usize| self.report(vcpu, offset_of!(GuestReport, latency) + 8 * n);
        (0..window::LATENCY_BUCKETS).map(bucket).sum()
    }

    /// The host comes, or says something else, or goes.
    pub(crate) fn offer(&self, status: Status) {
        for vcpu in 0..2 {
            self.write(host_page(vcpu), Header::OURS.to_word());
            let at = host_page(vcpu) + offset_of!(HostArea, status) as u64;
            self.write(at, status.to_word());
        }
        self.write(offset_of!(WindowHeader, host) as u64, Header::OURS.to_word());
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

pub(crate) struct Guest {
    pub(crate) vm: StockVm,
}

impl Guest {
    pub(crate) fn start(kernel: Kernel, window: &Window) -> Result<Self, Skip> {
        Self::start_with(kernel, window, "")
    }

    /// With further arguments for the kernel.
    pub(crate) fn start_with(kernel: Kernel, window: &Window, append: &str) -> Result<Self, Skip> {
        let module = have(kernel.driver())?;
        let scribble = have(guest_program(&Path::new(SOURCES).join("tools/scribble.c")))?;
        let vm = have(StockVm::start(&Options {
            vcpus: 2,
            kernel: Some(kernel),
            modules: vec![module],
            programs: vec![
                scribble,
                have(guest_program(Path::new(WAKE)))?,
                have(program("chrt", "util-linux"))?,
                have(program("nice", "coreutils"))?,
            ],
            qemu_args: window.qemu_args(),
            append: append.to_owned(),
            ..Options::default()
        }))?;
        Ok(Self { vm })
    }

    /// What a line of shell prints; it must succeed.
    pub(crate) fn sh(&self, command: &str) -> String {
        let output = self
            .vm
            .run(command, LIMIT)
            .unwrap_or_else(|e| panic!("{command}: {e}; {}", self.vm.log()));
        assert_eq!(output.status, 0, "{command}: {}{}", output.stdout, output.stderr);
        output.stdout
    }

    pub(crate) fn load(&self, parameters: &str) {
        self.sh(&format!("insmod /lib/modules/vcoop.ko {parameters}"));
    }

    pub(crate) fn state(&self) -> String {
        self.sh("cat /sys/kernel/debug/vcoop/state")
    }

    /// The kernel has nothing to complain about.
    pub(crate) fn assert_healthy(&self) {
        let complaints = self.sh("dmesg | grep -E 'BUG|WARNING|Oops|stall|unable to' || true");
        assert_eq!(complaints, "");
    }

    /// The module went, and nothing of it is left.
    pub(crate) fn assert_gone(&self) {
        assert_eq!(self.sh("cat /proc/modules"), "");
        assert_eq!(self.sh("ls /sys/kernel/debug | grep vcoop || true"), "");
        let hooks = self.sh("grep -c vcoop /proc/kallsyms || true");
        assert_eq!(hooks.trim(), "0");
        self.sh("cyclictest -q -p 80 -i 1000 -l 100");
    }
}

/// Waits until something is so.
pub(crate) fn until(what: &str, mut is: impl FnMut() -> bool) {
    let give_up = Instant::now() + Duration::from_secs(20);
    while !is() {
        assert!(Instant::now() < give_up, "not in time: {what}");
        thread::sleep(Duration::from_micros(200));
    }
}

/// How often something was so while a command ran.
pub(crate) fn during(command: impl FnOnce() -> String + Send, mut is: impl FnMut() -> bool) -> u32 {
    let mut times = 0;
    thread::scope(|scope| {
        let run = scope.spawn(command);
        while !run.is_finished() {
            times += u32::from(is());
            thread::sleep(Duration::from_micros(50));
        }
        if let Err(panic) = run.join() {
            std::panic::resume_unwind(panic);
        }
    });
    times
}
