//! An emulated KVM host with the program, and what it prints.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use vcoop_stock::{GuestImage, HostOptions, Kernel, KvmHost, Output, StockError, program};
use vcoop_testing::{Outcome, Reused, Skip};

pub(crate) const VCOOP: &str = env!("CARGO_BIN_EXE_vcoop");

/// Why tests of interrupts are skipped.
pub(crate) const NO_BPF: &str =
    "built without the feature `bpf`; apt-get install clang libelf-dev zlib1g-dev pkg-config";

/// How long the host may take for a command: several times what one takes beside other work on this machine.
const LIMIT: Duration = Duration::from_secs(150);

/// What is missing is a reason to skip; everything else fails.
pub(crate) fn have<T>(result: Result<T, StockError>) -> Result<T, Skip> {
    result.map_err(|error| {
        assert!(error.is_missing(), "{error}");
        Skip::because(error)
    })
}

/// A host that runs.
pub(crate) struct Host(KvmHost);

/// The usual host while no test has it.
static USUAL: Reused<Host> = Reused::new();

impl Host {
    /// One with a kernel of this series. Its guests have the program and the driver, which is not loaded.
    pub(crate) fn start(series: &str) -> Result<Self, Skip> {
        let kernel = have(Kernel::get())?;
        let modules = vec![have(kernel.driver())?];
        let guest = Some(GuestImage { kernel, programs: vec![VCOOP.into()], modules });
        let programs = vec![VCOOP.into(), have(program("taskset", "util-linux"))?];
        let append = String::new();
        let options = HostOptions { series: series.to_owned(), append, programs, guest };
        have(KvmHost::start(&options)).map(Self)
    }

    /// Runs a test on a host of its own.
    pub(crate) fn own(series: &str, test: impl Fn(&Self) -> Outcome) -> Outcome {
        on(|| Self::start(series), test)?.1
    }

    /// Runs a test on the usual host, which is booted once.
    pub(crate) fn usual(test: impl Fn(&Self) -> Outcome) -> Outcome {
        let (host, outcome) = on(|| USUAL.take_or(|| Self::start("6.12")), test)?;
        // Programs, guests and hogs that are left.
        host.sh("killall -KILL vcoop qemu-system-x86_64 2>/dev/null; true");
        host.0.vm().end_loops().unwrap();
        USUAL.keep(host);
        outcome
    }

    /// Runs a command.
    pub(crate) fn run(&self, command: &str) -> Output {
        self.0
            .run(command, LIMIT)
            .unwrap_or_else(|e| panic!("{command}: {e}; {}", self.0.vm().log()))
    }

    /// What a command that succeeds prints.
    pub(crate) fn sh(&self, command: &str) -> String {
        let output = self.run(command);
        assert_eq!(output.status, 0, "{command}: {}{}", output.stdout, output.stderr);
        output.stdout
    }

    /// A folder of it, here.
    pub(crate) fn fetch(&self, from: &str) -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        self.0.fetch(from, folder.path()).unwrap_or_else(|e| panic!("{from}: {e}"));
        folder
    }

    /// The document that it prints.
    pub(crate) fn json(&self, command: &str) -> Value {
        let told = self.sh(&format!("{command} --json"));
        serde_json::from_str(&told).unwrap_or_else(|e| panic!("{command}: {e}: {told}"))
    }
}

/// How many hosts a test may use up. Some machines emulate SVM so badly that one of three hosts fails.
const HOSTS: u32 = 4;

/// Runs a test on a host, and on another one if it fails because the first did, which an error of the emulator can make
/// it: the host's kernel says so, or its guest has lost its memory.
fn on(
    host: impl Fn() -> Result<Host, Skip>,
    test: impl Fn(&Host) -> Outcome,
) -> Result<(Host, Outcome), Skip> {
    let mut left = HOSTS;
    loop {
        left -= 1;
        let host = host()?;
        let panic = match catch_unwind(AssertUnwindSafe(|| test(&host))) {
            Ok(outcome) => return Ok((host, outcome)),
            Err(panic) => panic,
        };
        let said = panic.downcast_ref::<String>().map_or("", String::as_str);
        let failed = host.0.has_failed() || said.contains("VM guest, vCPU 0: triple fault");
        if left == 0 || !failed {
            resume_unwind(panic);
        }
        eprintln!("once more: the host failed: {said}; {}", host.0.vm().log());
    }
}

/// A series of a result, under a policy or the only one.
pub(crate) fn series<'a>(
    document: &'a Value,
    policy: &str,
    probe: &str,
    metric: &str,
) -> &'a Value {
    let found = document["series"].as_array().unwrap().iter().find(|s| {
        s["probe"] == probe && s["metric"] == metric && (s["policy"] == policy || policy.is_empty())
    });
    found.unwrap_or_else(|| panic!("no {probe} {metric} under {policy}: {document}"))
}

/// Its value, or its mean.
pub(crate) fn value(document: &Value, policy: &str, probe: &str, metric: &str) -> f64 {
    let series = series(document, policy, probe, metric);
    series.get("value").or(series.get("mean")).unwrap().as_f64().unwrap()
}

/// Threads that share CPU 1.
pub(crate) struct Threads {
    /// The vCPU of the guest `a`.
    pub(crate) vcpu: String,
    pub(crate) hogs: [String; 2],
}

impl Host {
    /// Starts the daemon. What QEMU is told so that its guest shares memory with it.
    pub(crate) fn daemon(&self) -> &'static str {
        self.sh("mkdir -p /etc/vcoop; : >/etc/vcoop/vcoop.toml; \
                 vcoop daemon --config /etc/vcoop/vcoop.toml >/tmp/daemon.log 2>&1 & \
                 until [ -e /run/vcoop/window.sock ]; do sleep 0.1; done");
        "-chardev socket,id=vcoop,path=/run/vcoop/window.sock -device ivshmem-doorbell,chardev=vcoop,vectors=1"
    }

    /// Starts a guest `a` with these arguments of QEMU's. Its vCPU shares its CPU with two hogs.
    pub(crate) fn crowd(&self, qemu: &str) -> Threads {
        self.sh(&format!("start-guest a {qemu}"));
        let vcpu = self.json("vcoop vms")["vms"][0]["vcpus"][0]["tid"].to_string();
        self.sh(&format!("taskset -pc 1 {vcpu}"));
        let hog = "taskset 2 sh -c 'while :; do :; done' >/dev/null 2>&1 & echo $!";
        let hogs = [(); 2].map(|()| self.sh(hog).trim().to_owned());
        Threads { vcpu, hogs }
    }
}
