//! Loads and serves the scheduler of `bpf/scx_vcoop.bpf.c`.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;
use std::{fmt, io};

use libbpf_rs::{
    Link, MapCore as _, MapFlags, MapHandle, Object, ObjectBuilder, OpenObject, ProgramInput,
};
use vcoop_policy::PolicyStats;
use vcoop_policy::config::{Budget, DynamicConfig, WakeBoostConfig};
use vcoop_threads::parse_cpu_list;

use super::{Admission, Rules, SchedulerTotals, VcpuState};
use crate::Unsupported;
use crate::object::{know_threads, map, may_read, may_write};

/// The programs, compiled by the build script.
const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/scx_vcoop.bpf.o"));

/// Programs for interrupts, and for vCPUs that enter and leave their guests. They need KVM.
const HEARING: [&str; 4] = ["timer_expired", "accept_irq", "entered", "left"];

/// The constant of the program.
const MOST_CPUS: usize = 1024;
const MOST_VCPUS: usize = 1024;
const MOST_VMS: usize = 256;
/// From `enum boost_event`.
const LEFT: u64 = 1;
const HALTED: u64 = 2;
const REGISTERED: u64 = 8;
const UNREGISTERED: u64 = 9;
/// From `enum boost_status`.
const BOOSTED: u64 = 2;
/// Units of a bucket's balance in a nanosecond.
const MILLION: i64 = 1_000_000;

/// `scx_vcoop`. Dropping it gives the host's threads back to EEVDF.
pub struct Scheduler {
    object: Object,
    vcpus: MapHandle,
    totals: MapHandle,
    /// Whether each place is taken, and each number of a VM.
    places: Vec<bool>,
    vms: Vec<bool>,
    hears: bool,
    /// The programs run as long as these exist.
    _links: Vec<Link>,
}

impl fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scheduler").field("hears", &self.hears).finish_non_exhaustive()
    }
}

impl Scheduler {
    /// Whether the scheduler can be loaded, as far as that is known without trying.
    ///
    /// # Errors
    ///
    /// The kernel has no sched_ext, another such scheduler is loaded, the kernel is locked down, or this process is in
    /// its own PID namespace.
    pub fn available() -> Result<(), Unsupported> {
        let state = std::fs::read_to_string("/sys/kernel/sched_ext/state");
        let state = state.map_err(|_| Unsupported {
            what: "this host's kernel has no sched_ext".to_owned(),
            remedy: "a kernel from 6.13 on that was built with CONFIG_SCHED_CLASS_EXT",
        })?;
        if state.trim() != "disabled" {
            let ops = std::fs::read_to_string("/sys/kernel/sched_ext/root/ops");
            let ops = ops.unwrap_or_else(|_| "another".to_owned());
            return Err(Unsupported {
                what: format!("the sched_ext scheduler {} is loaded", ops.trim()),
                remedy: "end it; a host has one",
            });
        }
        if possible_cpus() > MOST_CPUS {
            return Err(Unsupported {
                what: format!("scx_vcoop has no room for more than {MOST_CPUS} CPUs"),
                remedy: "a kernel with nr_cpus=1024",
            });
        }
        libbpf_rs::set_print(None);
        know_threads()?;
        may_read()
    }

    /// Whether `dynamic` can be decided in the kernel: it writes to the page that a guest shares.
    ///
    /// # Errors
    ///
    /// The kernel is locked down.
    pub fn answers_guests() -> Result<(), Unsupported> {
        libbpf_rs::set_print(None);
        may_write()
    }

    /// Loads the scheduler. From then on it schedules all fair threads of the host.
    ///
    /// # Errors
    ///
    /// As for [`Self::available`], or this process lacks permission.
    pub fn load() -> Result<Self, Unsupported> {
        Self::available()?;
        // Without KVM there are no interrupts to report.
        Self::with(true).or_else(|_| Self::with(false)).map_err(|error| Unsupported {
            what: format!("scx_vcoop cannot be loaded: {error}"),
            remedy: "run as root on a kernel from 6.13 on with sched_ext and BTF",
        })
    }

    fn with(hears: bool) -> Result<Self, libbpf_rs::Error> {
        let mut open = ObjectBuilder::default().open_memory(OBJECT)?;
        if !hears {
            let hearing = |name: &str| HEARING.contains(&name);
            for mut program in open.progs_mut() {
                if hearing(&program.name().to_string_lossy()) {
                    program.set_autoload(false);
                }
            }
        }
        describe_host(&mut open)?;
        let mut object = open.load()?;
        let (vcpus, totals) = (map(&object, "vcpus")?, map(&object, ".data.totals")?);
        let mut links = Vec::new();
        for program in object.progs_mut() {
            if hears && HEARING.contains(&&*program.name().to_string_lossy()) {
                links.push(program.attach()?);
            }
        }
        for mut ops in object.maps_mut() {
            if ops.name() == "vcoop_ops" {
                links.push(ops.attach_struct_ops()?);
            }
        }
        Ok(Self {
            object,
            vcpus,
            totals,
            places: vec![false; MOST_VCPUS],
            vms: vec![false; MOST_VMS],
            hears,
            _links: links,
        })
    }

    /// The source of interrupts; `None`: interrupts are not known.
    pub fn hears(&self) -> Option<&'static str> {
        self.hears.then_some("fentry of KVM")
    }

    /// Why the kernel has ended the scheduler; `None`: it has not.
    pub fn ended(&self) -> Option<String> {
        let words = self.words(&self.totals, 0);
        (*words.get(2)? != 0).then(|| {
            let bytes: Vec<u8> = words[3..].iter().flat_map(|word| word.to_ne_bytes()).collect();
            let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
            String::from_utf8_lossy(&bytes[..end]).into_owned()
        })
    }

    /// Adds a VM, whose vCPUs share a budget; returns its number.
    ///
    /// # Errors
    ///
    /// There are too many VMs.
    pub fn begin_vm(&mut self, budget: Budget) -> Result<u32, Unsupported> {
        let vm = free(&self.vms)?;
        self.call("begin_vm", &[vm.into(), budget.burst_ns, budget.refill_ppm.into()])?;
        self.vms[vm as usize] = true;
        Ok(vm)
    }

    /// Removes a VM, which has no vCPUs any more.
    pub fn end_vm(&mut self, vm: u32) {
        self.vms[vm as usize] = false;
    }

    /// Admits a vCPU with a policy; returns its place, for the other calls.
    ///
    /// # Errors
    ///
    /// There are too many vCPUs.
    pub fn admit(&mut self, vcpu: Admission, policy: &Rules) -> Result<u32, Unsupported> {
        let place = free(&self.places)?;
        let (Budget { burst_ns, refill_ppm }, rules) = in_words(policy);
        let budget = [burst_ns, refill_ppm.into()];
        let of = [place.into(), vcpu.tid as u64, vcpu.vm.into(), vcpu.lead_ns];
        let args = [&of, &budget[..], &rules].concat();
        // The memory for its timer is allocated without waiting, which can fail for a moment.
        let mut tries = 0..10;
        while let Err(why) = self.call("admit", &args) {
            tries.next().ok_or(why)?;
            std::thread::sleep(Duration::from_millis(1));
        }
        self.places[place as usize] = true;
        if vcpu.asleep {
            self.call("note", &[place.into(), HALTED, 0])?;
        }
        Ok(place)
    }

    /// Sets the address in the VMM of a vCPU's guest page, which the host's page follows; `None`: the guest does not
    /// take part.
    pub fn listen(&mut self, place: u32, page: Option<u64>) {
        let event = if page.is_some() { REGISTERED } else { UNREGISTERED };
        // The program does not fail for an existing place.
        let _ = self.call("note", &[place.into(), event, page.unwrap_or(0)]);
    }

    /// Makes a vCPU an ordinary thread again.
    pub fn leave(&mut self, place: u32) {
        // As above.
        let _ = self.call("note", &[place.into(), LEFT, 0]);
        self.places[place as usize] = false;
    }

    /// The state of a vCPU.
    pub fn state(&self, place: u32) -> VcpuState {
        // In the order of `struct vcpu` and `struct policy`.
        let words = self.words(&self.vcpus, place);
        let word = |at: usize| words.get(at).copied().unwrap_or(0);
        VcpuState {
            deadlines: word(0),
            boosted: word(1) == BOOSTED,
            stats: PolicyStats {
                boosted_ns: word(2),
                boosts: word(3),
                throttles: word(4),
                denied: word(5),
                too_long: word(6),
                by_vm: word(7),
                ..PolicyStats::default()
            },
            budget_left_ns: (word(10).cast_signed().max(0) / MILLION).unsigned_abs(),
        }
    }

    /// The counters of the scheduler.
    pub fn totals(&self) -> SchedulerTotals {
        let words = self.words(&self.totals, 0);
        let word = |at: usize| words.get(at).copied().unwrap_or(0);
        SchedulerTotals { interrupts: word(0), boosted: word(1) }
    }

    /// A value of a map as words.
    fn words(&self, of: &MapHandle, key: u32) -> Vec<u64> {
        let value = of.lookup(&key.to_ne_bytes(), MapFlags::ANY).ok().flatten().unwrap_or_default();
        let word = |bytes: &[u8]| bytes.first_chunk().map(|b| u64::from_ne_bytes(*b));
        value.chunks_exact(8).filter_map(word).collect()
    }

    /// Runs a program that is called from user space.
    fn call(&mut self, name: &str, args: &[u64]) -> Result<(), Unsupported> {
        let failed = |why: String| Unsupported {
            what: format!("scx_vcoop does not take a vCPU: {why}"),
            remedy: "vcoop detach, and look into the kernel's log",
        };
        let mut context: Vec<u8> = args.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let input = ProgramInput { context_in: Some(&mut context), ..ProgramInput::default() };
        let mut programs = self.object.progs_mut();
        let program = programs.find(|program| program.name() == name);
        let run = program.ok_or_else(|| failed(format!("no {name}")))?.test_run(input);
        match run {
            Ok(run) if run.return_value == 0 => Ok(()),
            Ok(run) => {
                let error = io::Error::from_raw_os_error(-run.return_value.cast_signed());
                Err(failed(format!("{name}: {error}")))
            }
            Err(error) => Err(failed(format!("{name}: {error}"))),
        }
    }
}

/// The budget of a vCPU, and `struct rules` as words.
fn in_words(policy: &Rules) -> (Budget, [u64; 8]) {
    match *policy {
        Rules::WakeBoost(WakeBoostConfig { vcpu_budget, run_ns, boost_on_injection, .. }) => {
            (vcpu_budget, [0, run_ns, boost_on_injection.into(), 0, 0, 1, 0, 0])
        }
        Rules::Dynamic(DynamicConfig {
            vcpu_budget,
            boost_on_injection,
            boost_receiver,
            boost_on_request,
            boost_across_idle,
            max_preempt_off_ns,
            longest_boost_ns,
            ..
        }) => {
            let rules = [
                1,
                0,
                boost_on_injection.into(),
                boost_receiver.into(),
                boost_on_request.into(),
                boost_across_idle.into(),
                max_preempt_off_ns,
                longest_boost_ns.unwrap_or(0),
            ];
            (vcpu_budget, rules)
        }
    }
}

/// The first free index.
fn free(of: &[bool]) -> Result<u32, Unsupported> {
    let free = of.iter().position(|taken| !taken);
    free.and_then(|at| u32::try_from(at).ok()).ok_or_else(|| Unsupported {
        what: format!("scx_vcoop has no place for more than {}", of.len()),
        remedy: "apply it to fewer vCPUs at a time",
    })
}

/// The CPUs listed in a file of the kernel.
fn list(path: &Path) -> Option<BTreeSet<u32>> {
    parse_cpu_list(std::fs::read_to_string(path).ok()?.trim())
}

/// Number of possible CPUs of this host: the largest CPU number plus one.
fn possible_cpus() -> usize {
    let cpus = list(Path::new("/sys/devices/system/cpu/possible"));
    cpus.and_then(|cpus| cpus.last().copied()).unwrap_or(0) as usize + 1
}

/// Tells the program about the host's CPUs: those that share a last-level cache share a queue.
fn describe_host(open: &mut OpenObject) -> Result<(), libbpf_rs::Error> {
    let root = Path::new("/sys/devices/system/cpu");
    let cpus = possible_cpus();
    let mut queues: Vec<BTreeSet<u32>> = Vec::new();
    let mut words = vec![0_u32; 3 + MOST_CPUS];
    for cpu in 0..cpus {
        let cache = root.join(format!("cpu{cpu}/cache"));
        // If caches are not known, all CPUs share one queue.
        let shared = (0..=4)
            .rev()
            .find_map(|index| list(&cache.join(format!("index{index}/shared_cpu_list"))));
        let shared = shared.unwrap_or_default();
        let known = queues.iter().position(|queue| *queue == shared);
        let queue = known.unwrap_or_else(|| {
            queues.push(shared);
            queues.len() - 1
        });
        words[3 + cpu] = queue as u32;
    }
    words[0] = cpus as u32;
    words[1] = queues.len() as u32;
    words[2] = may_write().is_ok().into();
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    for mut host in open.maps_mut() {
        if host.name().to_string_lossy().ends_with(".rodata.host") {
            let value = host.initial_value_mut();
            let value = value.ok_or_else(|| libbpf_rs::Error::from_raw_os_error(libc::EINVAL))?;
            value[..bytes.len()].copy_from_slice(&bytes);
            return Ok(());
        }
    }
    Err(libbpf_rs::Error::from_raw_os_error(libc::ENOENT))
}
