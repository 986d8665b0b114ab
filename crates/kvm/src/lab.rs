//! One run of one plan.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use kvm_ioctls::{Kvm, VcpuFd};
use vcoop_abi::discovery::Features;
use vcoop_guest::layout;
use vcoop_model::plan::{Ns, Plan, PolicyPlan, Program, Target, VmPlan};
use vcoop_model::recording::Recording;

use crate::attr::{self, Attr};
use crate::clock::{self, Clock, monotonic, tsc};
use crate::collect::{Collector, Counters};
use crate::draw::Stream;
use crate::driver::{self, Common, VcpuDriver, VmDriver};
use crate::environment::{NoDeepIdle, has_reliable_tsc};
use crate::error::{Error, Missing, Whom};
use crate::host_task::{HostTask, Progress};
use crate::injector::{Duties, Injector};
use crate::machine::Machine;
use crate::probe::{Probe, Window};
use crate::translate::{Guest, Rates};
use crate::vcpu::{self, Exits};
use crate::wiring::Wiring;
use crate::{ADVANCE_NS, MAX_ADVANCE_NS, Options, Timer};

/// Time for all threads to be in place before the warm-up starts.
const GET_READY_NS: Ns = 30_000_000;

/// Time between two collections of samples; a ring holds many times as many.
const COLLECT: Duration = Duration::from_millis(20);

/// Time between two looks at a vCPU's words, for `dynamic` and for `wake-boost`, which sees nothing
/// else of it.
const WATCH_NS: (Ns, Ns) = (250_000, 100_000);

/// Two runs at a time would measure each other.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Whether the lab can run here: `/dev/kvm` with what it needs, a reliable TSC, and the right to
/// use real-time policies.
///
/// # Errors
///
/// What is missing, and how to get it.
pub fn available() -> Result<(), Missing> {
    let missing = |what: &str, remedy: &str| {
        Err(Missing { what: what.to_owned(), remedy: remedy.to_owned() })
    };
    let kvm = match Kvm::new() {
        Ok(kvm) => kvm,
        Err(e) if e.errno() == libc::ENOENT => {
            return missing(
                "/dev/kvm does not exist",
                "load kvm_intel or kvm_amd, or enable nested virtualisation for this machine",
            );
        }
        Err(e) => {
            let what = format!("/dev/kvm cannot be opened: {e}");
            return missing(&what, "run as root or as a member of group kvm");
        }
    };
    use kvm_ioctls::Cap;
    for (cap, name) in [
        (Cap::Irqchip, "the in-kernel interrupt controller"),
        (Cap::SignalMsi, "KVM_SIGNAL_MSI"),
        (Cap::ReadonlyMem, "read-only memory slots"),
        (Cap::TscDeadlineTimer, "the TSC-deadline timer"),
        (Cap::ImmediateExit, "immediate exit"),
        (Cap::X86UserSpaceMsr, "MSR exits to user space (Linux 5.10)"),
        (Cap::X86MsrFilter, "the MSR filter (Linux 5.10)"),
    ] {
        if !kvm.check_extension(cap) {
            return missing(&format!("this KVM lacks {name}"), "use a newer kernel");
        }
    }
    if !has_reliable_tsc() {
        return missing(
            "the kernel does not trust this machine's TSC as its clock",
            "boot with clocksource=tsc if the TSC is constant and synchronous; times taken on \
             different CPUs cannot be compared otherwise",
        );
    }
    if vcoop_guest::IMAGE.is_empty() {
        return missing("this build has no guest image", "build for x86_64 Linux");
    }
    let fifo = Attr::from_policy(&vcoop_sched::config::Policy::Fifo(1));
    let allowed = thread::spawn(move || fifo.set(0, &Whom::Host)).join();
    if !matches!(allowed, Ok(Ok(()))) {
        return missing(
            "real-time scheduling is not permitted",
            "run with CAP_SYS_NICE; in a cgroup with RT group scheduling, give it cpu.rt_runtime_us",
        );
    }
    Ok(())
}

/// Whether this plan can run here: [`available`], as many CPUs as its host has, and nothing in it
/// that only the simulator can do.
///
/// # Errors
///
/// [`Error::Missing`], [`Error::Unsupported`].
pub fn check(plan: &Plan) -> Result<(), Error> {
    if plan.host.sched.linux().is_none() {
        return Err(Error::Unsupported {
            what: "class = \"credit1\"".to_owned(),
            why: "Linux schedules this host".to_owned(),
        });
    }
    available()?;
    Cpus::new(plan)?;
    plan.host_tasks.iter().try_for_each(HostTask::check)?;
    let wiring = Wiring::new(plan)?;
    // Any rates will do to see whether it can be said to a guest.
    let rates = Rates { clock: Clock::new(0, 1_000_000), per_ms: 1_000 };
    for (i, vm) in plan.vms.iter().enumerate() {
        Guest::new(vm, i as u64, 0, &rates, &rings(plan, i), &wiring.guests[i])?;
    }
    Ok(())
}

/// Runs a plan once. `stop` is asked every few milliseconds; when it answers true the run ends early
/// and gives back what it has. Runs of one process go one after the other.
///
/// # Errors
///
/// [`Error`]; everything the run had started is ended then.
pub fn run(plan: &Plan, seed: u64, stop: &dyn Fn() -> bool) -> Result<Recording, Error> {
    run_with(plan, seed, stop, &Options::default())
}

/// [`run`], with a say in what the plan leaves open.
///
/// # Errors
///
/// [`Error`].
pub fn run_with(
    plan: &Plan,
    seed: u64,
    stop: &dyn Fn() -> bool,
    options: &Options,
) -> Result<Recording, Error> {
    check(plan)?;
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let cpus = Cpus::new(plan)?;
    let kvm = Kvm::new().map_err(Error::kvm("open /dev/kvm", &Whom::Host))?;
    vcpu::install_handler();
    let idle = NoDeepIdle::hold();
    let khz = tsc_khz(&kvm)?;
    let clock = Clock::new(tsc(), khz);
    let rates = Rates { clock, per_ms: clock::iterations_per_ms(&clock) };
    let boosts = matches!(plan.policy, PolicyPlan::Dynamic(_) | PolicyPlan::WakeBoost(_));
    let exitless = options.timer.map_or(boosts, |timer| timer == Timer::Exitless);
    let advance = options.advance_ns.unwrap_or(if boosts { ADVANCE_NS } else { 0 });
    let advance = advance.min(MAX_ADVANCE_NS);
    let wiring = Wiring::new(plan)?;
    let mut vms = Vec::new();
    let mut fds = Vec::new();
    for (i, vm) in plan.vms.iter().enumerate() {
        let rings = rings(plan, i);
        let guest = Guest::new(vm, i as u64, seed, &rates, &rings, &wiring.guests[i])?;
        let (mut driver, vcpus) = build(&kvm, plan, vm, &guest, &rates, exitless)?;
        wiring.connect(i as u32, &mut driver);
        vms.push(driver);
        fds.push(vcpus);
    }
    // The tables are there; the origin of all times is shortly ahead.
    let origin = tsc() + clock.to_cycles(GET_READY_NS);
    let start = monotonic() + GET_READY_NS;
    for vm in &vms {
        vm.machine.ram.control(layout::CONTROL, |c| {
            c.start_tsc = origin;
            c.advance_tsc = clock.to_cycles(advance);
        });
    }
    let common = Common::new(Clock::new(origin, khz), !cpus.injector.is_empty());
    let run = Run { plan, seed, cpus, common, vms, wiring, rates, start, exitless, advance };
    let mut recording = run.go(fds, stop)?;
    recording.scalars.insert(
        ("lab".to_owned(), "cpu_dma_latency_held".to_owned()),
        crate::collect::count(u64::from(idle.is_held())),
    );
    Ok(recording)
}

/// The sample ring of each task of a VM.
fn rings(plan: &Plan, vm: usize) -> Vec<Option<u64>> {
    let mut next = 0;
    let mut ring = |task: usize| {
        let target = Target::Guest { vm: vm as u32, task: task as u32 };
        plan.probes.iter().any(|p| p.target == target).then(|| {
            next += 1;
            next - 1
        })
    };
    (0..plan.vms[vm].tasks.len()).map(&mut ring).collect()
}

/// Cycles a millisecond, as KVM has measured it.
fn tsc_khz(kvm: &Kvm) -> Result<u32, Error> {
    let vm = kvm.create_vm().map_err(Error::kvm("KVM_CREATE_VM", &Whom::Host))?;
    let vcpu = vm.create_vcpu(0).map_err(Error::kvm("KVM_CREATE_VCPU", &Whom::Host))?;
    vcpu.get_tsc_khz().map_err(Error::kvm("KVM_GET_TSC_KHZ", &Whom::Host))
}

/// A VM with its tables filled, and its vCPUs.
fn build(
    kvm: &Kvm,
    plan: &Plan,
    vm: &VmPlan,
    guest: &Guest,
    rates: &Rates,
    exitless: bool,
) -> Result<(VmDriver, Vec<VcpuFd>), Error> {
    let vcpus = vm.vcpu_cpus.len() as u32;
    let machine = Machine::new(kvm, &vm.name, vcpus)?;
    let cooperates = vm.cooperative && matches!(plan.policy, PolicyPlan::Dynamic(_));
    machine.ram.control(layout::CONTROL, |control| {
        guest.fill(control, &rates.clock, vcpus);
        control.exitless = u64::from(exitless);
        // Without the page there is nowhere to put a deadline.
        control.register = u64::from(exitless || cooperates);
    });
    machine.ram.write_words(layout::STEPS, &guest.step_words());
    let mut features = Features::default();
    if cooperates {
        features = features.with(Features::BOOST);
    }
    if exitless {
        features = features.with(Features::EXITLESS_TIMER);
    }
    let fds = (0..vcpus).map(|n| machine.vcpu(kvm, n, features)).collect::<Result<Vec<_>, _>>()?;
    let drivers = (0..vcpus).map(|n| {
        let i = n as usize;
        let own = vm.vcpu_means.get(i).copied().flatten();
        let uncooperative = matches!(plan.policy, PolicyPlan::Dynamic(_)) && !vm.cooperative;
        let of = if uncooperative { &PolicyPlan::Vanilla } else { &plan.policy };
        let (policy, means) = driver::policy(of, own, 0);
        let baseline =
            vm.vcpu_policy.get(i).copied().unwrap_or(vcoop_sched::config::Policy::NORMAL);
        VcpuDriver::new(n, policy, means, Attr::from_policy(&baseline))
    });
    let drivers = drivers.collect();
    Ok((VmDriver::new(machine, driver::shared(&plan.policy, 0), drivers), fds))
}

/// Which CPUs of the host stand for the plan's.
#[derive(Debug)]
struct Cpus {
    real: Vec<u32>,
    /// Where the injector goes; empty: anywhere.
    injector: Vec<u32>,
}

impl Cpus {
    fn new(plan: &Plan) -> Result<Self, Error> {
        let real = attr::allowed_cpus()?;
        let wanted = plan.host.sched.cpus();
        if wanted as usize > real.len() {
            return Err(Error::Missing(Missing {
                what: format!(
                    "the scenario's host has {wanted} pCPUs, and this one has {}",
                    real.len()
                ),
                remedy: "simulate it (--backend sim), or shrink it (--set host.pcpus=N)".to_owned(),
            }));
        }
        let vcpus = || plan.vms.iter().flat_map(|vm| vm.vcpu_cpus.iter());
        let loads = || plan.host_tasks.iter().map(|t| &t.cpus);
        let free = |cpu: usize, mut lists: Box<dyn Iterator<Item = &Vec<u32>> + '_>| {
            lists.all(|l| !l.is_empty() && !l.contains(&(cpu as u32)))
        };
        // Best a CPU nobody is pinned to, else one without vCPUs, else any.
        let mut candidates = (0..real.len()).rev();
        let quiet = candidates.clone().find(|c| free(*c, Box::new(vcpus().chain(loads()))));
        let injector = quiet.or_else(|| candidates.find(|c| free(*c, Box::new(vcpus()))));
        Ok(Self { injector: injector.map(|c| real[c]).into_iter().collect(), real })
    }

    /// The real CPUs of a list of the plan.
    fn of(&self, list: &[u32], plan: &Plan) -> Vec<u32> {
        let all: Vec<u32> = (0..plan.host.sched.cpus()).collect();
        let list = if list.is_empty() { &all } else { list };
        list.iter().filter_map(|c| self.real.get(*c as usize).copied()).collect()
    }
}

/// A run that is set up.
#[derive(Debug)]
struct Run<'a> {
    plan: &'a Plan,
    seed: u64,
    cpus: Cpus,
    common: Common,
    vms: Vec<VmDriver>,
    wiring: Wiring,
    rates: Rates,
    start: Ns,
    exitless: bool,
    advance: Ns,
}

/// Ends the threads of a run however its owner leaves.
struct Ender<'a> {
    common: &'a Common,
    vms: &'a [VmDriver],
    /// vCPU threads that have not ended.
    running: &'a AtomicUsize,
}

impl Drop for Ender<'_> {
    fn drop(&mut self) {
        self.common.end();
        while self.running.load(Ordering::Acquire) > 0 {
            let tids = self.vms.iter().flat_map(|vm| vm.vcpus.iter().map(VcpuDriver::tid));
            tids.filter(|tid| *tid != 0).for_each(vcpu::interrupt);
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Run<'_> {
    fn go(self, fds: Vec<Vec<VcpuFd>>, stop: &dyn Fn() -> bool) -> Result<Recording, Error> {
        let progress: Vec<Progress> =
            self.plan.host_tasks.iter().map(|_| Progress::default()).collect();
        let exits: Vec<Exits> = self.vms.iter().map(|_| Exits::default()).collect();
        let injector_tid = AtomicI32::new(0);
        let running = AtomicUsize::new(fds.iter().map(Vec::len).sum());
        let window =
            Window { from: self.plan.warmup_ns, to: self.plan.warmup_ns + self.plan.duration_ns };
        let counters = Counters {
            progress: &progress,
            exits: &exits,
            vms: &self.vms,
            plan: self.plan,
            injector: &injector_tid,
            rates: &self.rates,
        };
        let mut collector = Collector::new(self.plan, &self.vms, self.common.clock, window);
        let (host_probes, ended) = thread::scope(|scope| {
            let ender = Ender { common: &self.common, vms: &self.vms, running: &running };
            for ((i, fds), exits) in fds.into_iter().enumerate().zip(&exits) {
                for (n, fd) in fds.into_iter().enumerate() {
                    let running = &running;
                    let body = {
                        let run = &self;
                        move || run.vcpu_thread(i, n as u32, fd, exits, running)
                    };
                    spawn(scope, format!("vcpu{n}:{}", self.plan.vms[i].name), &running, body);
                }
            }
            let tasks: Vec<_> = progress
                .iter()
                .enumerate()
                .map(|(i, progress)| {
                    let run = &self;
                    let body = move || run.host_thread(i, progress, window);
                    let name = self.plan.host_tasks[i].name.clone();
                    thread::Builder::new().name(name).spawn_scoped(scope, body)
                })
                .collect();
            let injector_tid = &injector_tid;
            let run = &self;
            let injector = move || run.injector_thread(injector_tid);
            let injector =
                thread::Builder::new().name("injector".into()).spawn_scoped(scope, injector);
            if injector.is_err() || tasks.iter().any(Result::is_err) {
                self.common.fail(Error::last_os("create a thread", Whom::Host));
            }
            let ended = self.watch(&mut collector, &counters, window, stop);
            drop(ender);
            let probes: Vec<Option<Probe>> =
                tasks.into_iter().map(|t| t.ok().and_then(|t| join(t, &self.common))).collect();
            (probes, ended)
        });
        if let Some(error) = self.common.take_failure() {
            return Err(error);
        }
        Ok(collector.finish(host_probes, ended, self.exitless))
    }

    /// Collects until the time is over or somebody ends it; when that was.
    fn watch(
        &self,
        collector: &mut Collector<'_>,
        counters: &Counters<'_>,
        window: Window,
        stop: &dyn Fn() -> bool,
    ) -> Ns {
        loop {
            thread::sleep(COLLECT);
            let now = self.common.clock.now();
            if now >= window.from && !collector.has_begun() {
                collector.begin(now, counters);
            }
            collector.collect(&self.vms);
            if now >= window.to || self.common.is_over() || stop() {
                collector.end(now, counters);
                return now;
            }
        }
    }

    fn vcpu_thread(&self, vm: usize, n: u32, mut fd: VcpuFd, exits: &Exits, running: &AtomicUsize) {
        let driver = &self.vms[vm];
        let body = || {
            let cpus = self.cpus.of(&self.plan.vms[vm].vcpu_cpus[n as usize], self.plan);
            let tid = vcpu::prepare(driver, n, &cpus)?;
            driver.attach(&self.common, n, tid)?;
            vcpu::run(&self.common, driver, n, &mut fd, exits)
        };
        let result = catch_unwind(AssertUnwindSafe(body));
        driver.detach(n);
        running.fetch_sub(1, Ordering::AcqRel);
        match result {
            Ok(Ok(())) => {}
            Ok(Err(e)) => self.common.fail(e),
            Err(_) => self.common.fail(Error::Panicked(driver.machine.whom_vcpu(n))),
        }
    }

    fn host_thread(&self, i: usize, progress: &Progress, window: Window) -> Option<Probe> {
        let plan = &self.plan.host_tasks[i];
        let target = Target::Host(i as u32);
        let name = self.plan.probes.iter().find(|p| p.target == target).map(|p| &p.probe);
        let probe = name.map(|name| Probe::new(name, window, interval(&plan.program)));
        let task = HostTask {
            plan,
            cpus: self.cpus.of(&plan.cpus, self.plan),
            progress,
            stream: Stream::new(self.seed, &[u64::from(b'h'), i as u64]),
            rates: self.rates,
            start: self.start,
            probe,
            number: i as u32,
            vms: &self.vms,
            wiring: &self.wiring,
        };
        match catch_unwind(AssertUnwindSafe(|| task.run(&self.common))) {
            Ok(Ok(probe)) => return probe,
            Ok(Err(e)) => self.common.fail(e),
            Err(_) => self.common.fail(Error::Panicked(Whom::Thread(plan.name.clone()))),
        }
        None
    }

    fn injector_thread(&self, tid: &AtomicI32) {
        let whom = Whom::Thread("injector".to_owned());
        tid.store(attr::gettid(), Ordering::Release);
        let watch = match self.plan.policy {
            PolicyPlan::Vanilla | PolicyPlan::Static { .. } | PolicyPlan::RatelimitAuto(_) => None,
            PolicyPlan::Dynamic(_) => Some(WATCH_NS.0),
            PolicyPlan::WakeBoost(_) => Some(WATCH_NS.1),
        };
        let duties = Duties { exitless: self.exitless, advance: self.advance, watch };
        let devices = self.plan.vms.iter().enumerate().flat_map(|(vm, plan)| {
            plan.devices.iter().enumerate().map(move |(d, plan)| (vm, d as u8, plan))
        });
        let body = || {
            attr::pin(&self.cpus.injector, &whom)?;
            let timeline = &self.plan.timeline;
            Injector::new(&self.common, &self.vms, duties, devices, timeline, self.seed).run()
        };
        match catch_unwind(AssertUnwindSafe(body)) {
            Ok(Ok(())) => {}
            Ok(Err(e)) => self.common.fail(e),
            Err(_) => self.common.fail(Error::Panicked(Whom::Thread("injector".to_owned()))),
        }
    }
}

/// Starts a vCPU thread. One that cannot be started counts as ended, and ends the run.
fn spawn<'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    name: String,
    running: &&'scope AtomicUsize,
    body: impl FnOnce() + Send + 'scope,
) {
    if thread::Builder::new().name(name).spawn_scoped(scope, body).is_err() {
        running.fetch_sub(1, Ordering::AcqRel);
    }
}

fn join(task: ScopedJoinHandle<'_, Option<Probe>>, common: &Common) -> Option<Probe> {
    task.join().unwrap_or_else(|_| {
        common.fail(Error::Panicked(Whom::Host));
        None
    })
}

/// Time between two samples of a program.
pub(crate) fn interval(program: &Program) -> Ns {
    match program {
        Program::Cyclictest { interval_ns, .. } | Program::Ping { interval_ns, .. } => *interval_ns,
        Program::Audio { period_ns, .. } => *period_ns,
        _ => Ns::MAX,
    }
}
