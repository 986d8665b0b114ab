//! One run of one plan.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, Scope};
use std::time::Duration;

use kvm_ioctls::{Cap, Kvm, VcpuFd};
use vcoop_abi::Hints;
use vcoop_abi::discovery::Features;
use vcoop_abi::words::Word;
use vcoop_guest::layout;
use vcoop_model::Missing;
use vcoop_model::plan::virt::IpiPath;
use vcoop_model::plan::{CoreScheduling, Ns, Plan, PolicyPlan, Program, Target, TaskPlan};
use vcoop_model::recording::Recording;
use vcoop_model::run::Run;
use vcoop_model::trace_event::Observer;
use vcoop_sources::trace::Recorder;
use vcoop_threads::clock::monotonic;
use vcoop_threads::tsc::{Clock, tsc};
use vcoop_threads::{
    AffinityGuard, Attributes, MAY_BE_REALTIME, gettid, lift_real_time_limit, pin,
};

use crate::channels::Channels;
use crate::collect::{Collector, Firing};
use crate::common::Common;
use crate::counters::Counters;
use crate::environment::{NoDeepIdle, has_reliable_tsc};
use crate::error::{Error, RequestTarget};
use crate::facts::host_facts;
use crate::govern::Governors;
use crate::host_task::{HostTask, Progress};
use crate::injector::{Duties, Injector};
use crate::lab_vm::{LabVcpu, LabVm};
use crate::machine::Machine;
use crate::policy_log::PolicyLog;
use crate::probe::Window;
use crate::rates::Rates;
use crate::reservation;
use crate::samples::HostSample;
use crate::translate::Guest;
use crate::vcpu::{self, Exits};
use crate::virt::is_exitless;
use crate::{Options, preferred_mask, virt};
use vcoop_model::rng::Stream;

/// Time for all threads to be in place before the warm-up starts.
const GET_READY_NS: Ns = 30_000_000;

/// Time between two collections of samples; a ring holds many times as many.
const COLLECT: Duration = Duration::from_millis(20);

/// Time between two looks at a vCPU's words, for `dynamic` and for `wake-boost`, which sees nothing
/// else of it.
const WATCH_NS: (Ns, Ns) = (250_000, 100_000);

/// Serialises runs: two at a time would disturb each other.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Capabilities of KVM that the lab needs, and their names.
pub(crate) const CAPABILITIES: [(Cap, &str); 7] = [
    (Cap::Irqchip, "the in-kernel interrupt controller"),
    (Cap::SignalMsi, "KVM_SIGNAL_MSI"),
    (Cap::ReadonlyMem, "read-only memory slots"),
    (Cap::TscDeadlineTimer, "the TSC-deadline timer"),
    (Cap::ImmediateExit, "immediate exit"),
    (Cap::X86UserSpaceMsr, "MSR exits to user space (Linux 5.10)"),
    (Cap::X86MsrFilter, "the MSR filter (Linux 5.10)"),
];

/// Waits until no other run of this process measures.
pub(crate) fn one_at_a_time() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

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
    for (cap, name) in CAPABILITIES {
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
    let fifo = Attributes::from_policy(&vcoop_sched::config::Policy::Fifo(1));
    let allowed = thread::spawn(move || fifo.set(0)).join();
    if !matches!(allowed, Ok(Ok(()))) {
        return missing("real-time scheduling is not permitted", MAY_BE_REALTIME);
    }
    if !lift_real_time_limit() {
        return missing(
            "the kernel ends this process after some real-time CPU time (RLIMIT_RTTIME)",
            "run as root, or prlimit --rttime=unlimited vcoop ...",
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
        let what = format!("class = \"{}\"", plan.host.sched.class());
        return Err(Error::unsupported(what, "Linux schedules this host"));
    }
    available()?;
    let cpus = Cpus::new(plan)?;
    let refuse = |what: &str, why: &str| Err(Error::unsupported(what, why));
    if let Some(storm) = plan.storms.first() {
        return refuse(&format!("the storm of {}", storm.label), "VMs come in the simulator only");
    }
    if let Some(vm) = plan.vms.iter().find(|vm| vm.name != vm.label) {
        return refuse(&format!("VM {}", vm.name), "the lab has no copies of VMs");
    }
    if !plan.host.nohz_full.is_empty() {
        return refuse("nohz_full", "that is the host's command line: measure on a host with it");
    }
    if plan.host.core_scheduling != CoreScheduling::Off {
        let why = "the lab's vCPUs are threads of one process: tag those of a VM that runs with coresched(1)";
        return refuse("core_scheduling", why);
    }
    if let Some(device) = plan.host.interrupts.first() {
        let why = "devices interrupt simulated hosts only";
        return refuse(&format!("the interrupts of {}", device.name), why);
    }
    if let Some(vm) = plan.vms.iter().find(|vm| vm.waits) {
        return refuse(
            &format!("waits of VM {}", vm.name),
            "they are measured in the simulator only",
        );
    }
    if let Some(vm) = plan.vms.iter().find(|vm| vm.group.is_some() || !vm.vcpu_groups.is_empty()) {
        return refuse(&format!("the control group of VM {}", vm.name), "the lab makes none");
    }
    if let Some(task) = plan.host_tasks.iter().find(|task| task.group.is_some()) {
        return refuse(&format!("the control group of load {}", task.name), "the lab makes none");
    }
    let kvm = Kvm::new().map_err(Error::kvm("open /dev/kvm", &RequestTarget::Host))?;
    plan.vms.iter().try_for_each(|vm| virt::check(&kvm, plan, vm))?;
    if !plan.views.is_empty() {
        return refuse("[[view]]", "single runs are recorded in the simulator only");
    }
    plan.host_tasks.iter().try_for_each(HostTask::check)?;
    let wiring = Channels::new(plan)?;
    // The check whether a guest can run the plan does not depend on the rates.
    let rates = Rates { clock: Clock::new(0, 1_000_000), per_ms: 1_000 };
    for (i, vm) in plan.vms.iter().enumerate() {
        Guest::new(vm, i as u64, 0, &rates, &rings(plan, i), &wiring.guests[i])?;
    }
    reservation::check(plan, &|list| cpus.of(list, plan))
}

/// Whether a run's host threads can be recorded on this host.
///
/// # Errors
///
/// They cannot.
pub fn can_trace() -> Result<(), Missing> {
    let events = vcoop_sources::trace::describe();
    match events.strip_prefix("no: ") {
        None => Ok(()),
        Some(why) => Err(Missing {
            what: format!("a live trace needs tracefs: {why}"),
            remedy: "as root: unshare -m sh -c 'mount -t tracefs nodev /sys/kernel/tracing && \
                     vcoop trace ...'"
                .to_owned(),
        }),
    }
}

/// Runs a plan once. [`Run::stop`] is called every few milliseconds. An observer gets every sample of the measured
/// time. A run that failed returns what it had measured until then beside its error. Runs of one process go one after
/// the other.
///
/// # Errors
///
/// [`Error`]: the run failed before it had measured anything. Everything that it had started has ended.
pub fn run(run: Run<'_>, options: &Options) -> Result<(Recording, Option<Error>), Error> {
    let Run { plan, seed, stop, observer } = run;
    check(plan)?;
    let _alone = one_at_a_time();
    let cpus = Cpus::new(plan)?;
    let kvm = Kvm::new().map_err(Error::kvm("open /dev/kvm", &RequestTarget::Host))?;
    vcpu::install_handler();
    let idle = NoDeepIdle::hold();
    let khz = tsc_khz(&kvm)?;
    let clock = Clock::new(tsc(), khz);
    let rates = Rates { clock, per_ms: crate::work::iterations_per_ms(&clock) };
    let wiring = Channels::new(plan)?;
    let shown = observer.as_ref().is_some_and(|observer| !observer.windows().is_empty());
    let mut vms = Vec::new();
    let mut fds = Vec::new();
    for (i, vm) in plan.vms.iter().enumerate() {
        let rings = rings(plan, i);
        let guest = Guest::new(vm, i as u64, seed, &rates, &rings, &wiring.guests[i])?;
        let masked = plan.has_mask(i);
        let (mut driver, vcpus) = build(&kvm, plan, i, &guest, &rates, masked)?;
        wiring.connect(i as u32, &mut driver);
        driver.machine.ram.control(|control| {
            control.masked = masked.into();
            let tick = rates.clock.to_cycles(preferred_mask::tick_ns(vm));
            control.tick_tsc = if preferred_mask::balances(plan, i) { tick } else { 0 };
        });
        if masked {
            driver.offer_mask();
        }
        driver.advance = virt::advance(plan, vm, options);
        driver.boosts_on_injection = plan.policy.boosts_on_injection();
        if options.check_pages {
            let rogue = |task: &TaskPlan| matches!(task.program, Program::Rogue { .. });
            let honest = !vm.tasks.iter().any(rogue);
            driver.vcpus.iter().for_each(|v| v.check_page(honest, 0));
        }
        if shown || plan.slices > 0 {
            driver.vcpus.iter_mut().for_each(|v| v.diary = PolicyLog::on());
        }
        vms.push(driver);
        fds.push(vcpus);
    }
    // Before the threads start, so that no state of theirs is missed; before `origin`, because this takes a while.
    // If it cannot start, the environment has the reason.
    let trace = options.trace.then(|| Recorder::start(&cpus.measured(plan), clock).ok());
    // The tables are there; the origin of all times is shortly ahead.
    let origin = tsc() + clock.to_cycles(GET_READY_NS);
    let start = monotonic() + GET_READY_NS;
    for vm in &vms {
        vm.machine.ram.control(|c| {
            c.start_tsc = origin;
            c.advance_tsc = clock.to_cycles(vm.advance.cap());
        });
    }
    let common = Common::new(Clock::new(origin, khz), !cpus.injector.is_empty());
    let exitless = plan.vms.iter().any(|vm| is_exitless(plan, vm));
    let advance = vms.iter().map(|vm| vm.advance.cap()).max().unwrap_or(0);
    let firing = Firing { exitless, advance };
    let live = LiveRun { plan, seed, cpus, common, vms, wiring, rates, start, firing };
    let (mut recording, failure) = live.go(fds, trace.flatten(), stop, observer);
    recording.put("lab", "cpu_dma_latency_held", "count", f64::from(u8::from(idle.is_held())));
    match failure {
        Some(error) if recording.latencies.iter().all(|l| l.hist.is_empty()) => Err(error),
        failure => Ok((recording, failure)),
    }
}

/// The sample ring of each task of a VM.
pub(crate) fn rings(plan: &Plan, vm: usize) -> Vec<Option<u64>> {
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

/// The TSC's rate as measured by KVM, in cycles a millisecond.
pub(crate) fn tsc_khz(kvm: &Kvm) -> Result<u32, Error> {
    let vm = kvm.create_vm().map_err(Error::kvm("KVM_CREATE_VM", &RequestTarget::Host))?;
    let vcpu = vm.create_vcpu(0).map_err(Error::kvm("KVM_CREATE_VCPU", &RequestTarget::Host))?;
    vcpu.get_tsc_khz().map_err(Error::kvm("KVM_GET_TSC_KHZ", &RequestTarget::Host))
}

/// VM number `index` with its tables filled, and its vCPUs. `masked`: its host areas have a mask of vCPUs to use.
pub(crate) fn build(
    kvm: &Kvm,
    plan: &Plan,
    index: usize,
    guest: &Guest,
    rates: &Rates,
    masked: bool,
) -> Result<(LabVm, Vec<VcpuFd>), Error> {
    let vm = &plan.vms[index];
    let vcpus = vm.vcpu_cpus.len() as u32;
    let machine = Machine::new(kvm, &vm.name, vcpus)?;
    machine.exits_off(virt::exits_off(vm))?;
    if virt::says_how_to_poll(vm) {
        machine.poll_halts(vm.virt.idle.host_polls_in_force().max_ns)?;
    }
    let exitless = is_exitless(plan, vm);
    let cooperates = vm.cooperative && matches!(plan.policy, PolicyPlan::Dynamic(_));
    machine.ram.control(|control| {
        guest.fill(control, &rates.clock, vcpus);
        control.exitless = u64::from(exitless);
        control.idle_poll = virt::idle_poll(vm, &rates.clock);
        control.poll_if_hinted = u64::from(vm.virt.dedicated);
        control.pv_ipi = u64::from(vm.virt.ipi.path == IpiPath::Pv);
        control.shorthand = u64::from(vm.virt.ipi.shorthand);
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
    if masked {
        features = features.with(Features::PREFERRED).with(Features::STEAL);
    }
    let dedicated = vm.virt.dedicated;
    let hints = Hints { dedicated, exitless_timer: exitless, ..Hints::default() };
    for n in 0..vcpus {
        machine.host_area(n).hints.store(hints.to_word(), Ordering::Release);
    }
    let fds = (0..vcpus).map(|n| machine.vcpu(kvm, n, features, dedicated));
    let fds = fds.collect::<Result<Vec<_>, _>>()?;
    let drivers = (0..vcpus).map(|n| LabVcpu::new(n, plan.vcpu_driver(index, n as usize)));
    Ok((LabVm::new(machine, plan.policy.shared(0), drivers.collect()), fds))
}

/// The host's CPUs that stand for the plan's.
#[derive(Debug)]
struct Cpus {
    real: Vec<u32>,
    /// CPUs of the injector; empty: any.
    injector: Vec<u32>,
}

impl Cpus {
    fn new(plan: &Plan) -> Result<Self, Error> {
        // In the order in which the simulator numbers them.
        let real = host_facts().cpus;
        let wanted = plan.host.sched.cpus();
        if wanted as usize > real.len() {
            return Err(Error::Missing(Missing {
                what: format!(
                    "the scenario's host has {wanted} pCPUs, and this one has {}",
                    real.len()
                ),
                remedy: "lower its host.pcpus".to_owned(),
            }));
        }
        let injector =
            plan.housekeeping().or_else(|| (real.len() > wanted as usize).then_some(wanted));
        let injector = injector.map(|cpu| real[cpu as usize]);
        Ok(Self { injector: injector.into_iter().collect(), real })
    }

    /// The host's CPUs for a list of the plan.
    fn of(&self, list: &[u32], plan: &Plan) -> Vec<u32> {
        let all: Vec<u32> = (0..plan.host.sched.cpus()).collect();
        let list = if list.is_empty() { &all } else { list };
        list.iter().filter_map(|c| self.real.get(*c as usize).copied()).collect()
    }

    /// The host's CPUs on which measuring threads may run, ascending.
    fn measured(&self, plan: &Plan) -> Vec<u32> {
        let vcpus = plan.vms.iter().flat_map(|vm| vm.vcpu_cpus.iter());
        let tasks = plan.probes.iter().filter_map(|p| match p.target {
            Target::Host(i) => Some(&plan.host_tasks[i as usize].cpus),
            Target::Guest { .. } => None,
        });
        let cpus: BTreeSet<u32> = vcpus.chain(tasks).flat_map(|list| self.of(list, plan)).collect();
        cpus.into_iter().collect()
    }
}

/// A run that is set up.
#[derive(Debug)]
struct LiveRun<'a> {
    plan: &'a Plan,
    seed: u64,
    cpus: Cpus,
    common: Common,
    vms: Vec<LabVm>,
    wiring: Channels,
    rates: Rates,
    start: Ns,
    firing: Firing,
}

/// Ends the threads of a run when dropped.
struct EndOnDrop<'a> {
    common: &'a Common,
    vms: &'a [LabVm],
    /// vCPU threads that have not ended.
    running: &'a AtomicUsize,
}

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.common.end();
        while self.running.load(Ordering::Acquire) > 0 {
            let tids = self.vms.iter().flat_map(|vm| vm.vcpus.iter().map(LabVcpu::tid));
            tids.filter(|tid| *tid != 0).for_each(vcpu::interrupt);
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl LiveRun<'_> {
    /// Runs, and returns what was measured, and the error if there was one.
    fn go(
        self,
        fds: Vec<Vec<VcpuFd>>,
        trace: Option<Recorder>,
        stop: &dyn Fn() -> bool,
        observer: Option<&mut dyn Observer>,
    ) -> (Recording, Option<Error>) {
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
        let clock = self.common.clock;
        let (mut collector, mut senders) =
            Collector::new(self.plan, &self.vms, clock, window, self.firing, trace);
        if let Some(observer) = observer {
            collector.observed(observer);
        }
        let ended = thread::scope(|scope| {
            let ender = EndOnDrop { common: &self.common, vms: &self.vms, running: &running };
            for ((i, fds), exits) in fds.into_iter().enumerate().zip(&exits) {
                for (n, fd) in fds.into_iter().enumerate() {
                    let running = &running;
                    let body = {
                        let run = &self;
                        move || run.vcpu_thread(i, n as u32, fd, exits, running)
                    };
                    let name = format!("vcpu{n}:{}", self.plan.vms[i].name);
                    let whom = self.vms[i].machine.vcpu_target(n as u32);
                    if !self.start(scope, name, whom, body) {
                        running.fetch_sub(1, Ordering::AcqRel);
                    }
                }
            }
            let own = |name: &str| (name.to_owned(), RequestTarget::Thread(name.to_owned()));
            for i in 0..progress.len() {
                let run = &self;
                let samples = senders.remove(&i);
                let all = &progress;
                let body = move || run.host_thread(i, all, samples);
                let (name, whom) = own(&self.plan.host_tasks[i].name);
                self.start(scope, name, whom, body);
            }
            let injector_tid = &injector_tid;
            let run = &self;
            let (name, whom) = own("injector");
            self.start(scope, name, whom, move || run.injector_thread(injector_tid));
            if let Some(governors) = Governors::new(&self.common, self.plan, &self.vms, &progress) {
                let (name, whom) = own("governor");
                self.start(scope, name, whom, move || run.governor_thread(governors));
            }
            let ended = self.watch(&mut collector, &counters, window, stop);
            drop(ender);
            ended
        });
        let failure = self.common.take_failure();
        (collector.finish(ended, &counters), failure)
    }

    /// Starts a thread; false if it cannot be created, which fails the run.
    fn start<'scope>(
        &self,
        scope: &'scope Scope<'scope, '_>,
        name: String,
        whom: RequestTarget,
        body: impl FnOnce() + Send + 'scope,
    ) -> bool {
        let started = thread::Builder::new().name(name).spawn_scoped(scope, body);
        let failed = |e| self.common.fail(Error::io("create a thread", whom, e));
        started.map_err(failed).is_ok()
    }

    /// Collects until the time is over or the run is ended; returns when.
    fn watch(
        &self,
        collector: &mut Collector<'_>,
        counters: &Counters<'_>,
        window: Window,
        stop: &dyn Fn() -> bool,
    ) -> Ns {
        // Away from those it watches; threads started before are not moved by this.
        let _stay = AffinityGuard::on(&self.cpus.injector);
        loop {
            thread::sleep(COLLECT);
            collector.introduce(counters);
            let now = self.common.clock.now();
            let over = self.common.is_over() || stop();
            let begins = now >= window.from && !collector.has_begun() && !over;
            if begins {
                collector.begin(now, counters);
            }
            collector.collect(&self.vms);
            // However short the window is, and however late this thread: what is counted takes time.
            if !begins && (over || now >= window.to) {
                collector.end(now, counters);
                return now;
            }
        }
    }

    /// A thread of the run has ended: if it failed or panicked, the run ends.
    fn ended(
        &self,
        result: thread::Result<Result<(), Error>>,
        whom: impl FnOnce() -> RequestTarget,
    ) {
        match result {
            Ok(Ok(())) => {}
            Ok(Err(e)) => self.common.fail(e),
            Err(_) => self.common.fail(Error::Panicked(whom())),
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
        driver.detach(&self.common, n);
        running.fetch_sub(1, Ordering::AcqRel);
        self.ended(result, || driver.machine.vcpu_target(n));
    }

    fn host_thread(&self, i: usize, all: &[Progress], samples: Option<SyncSender<HostSample>>) {
        let plan = &self.plan.host_tasks[i];
        let first = self.plan.host_tasks.iter().position(|task| task.label == plan.label);
        let task = HostTask {
            common: &self.common,
            plan,
            cpus: self.cpus.of(&plan.cpus, self.plan),
            progress: &all[i],
            capture: &all[first.unwrap_or(i)..],
            stream: Stream::host_task(self.seed, i),
            rates: self.rates,
            start: self.start,
            samples,
            number: i as u32,
            vms: &self.vms,
            wiring: &self.wiring,
        };
        self.ended(catch_unwind(AssertUnwindSafe(|| task.run())), || {
            RequestTarget::Thread(plan.name.clone())
        });
    }

    fn governor_thread(&self, governors: Governors<'_>) {
        let whom = RequestTarget::Thread("governor".to_owned());
        let body = || {
            pin(&self.cpus.injector).map_err(Error::refused(&whom))?;
            governors.run()
        };
        self.ended(catch_unwind(AssertUnwindSafe(body)), || whom);
    }

    fn injector_thread(&self, tid: &AtomicI32) {
        let whom = RequestTarget::Thread("injector".to_owned());
        tid.store(gettid(), Ordering::Release);
        let watch = match self.plan.policy {
            PolicyPlan::Vanilla | PolicyPlan::Static { .. } | PolicyPlan::RatelimitAuto(_) => None,
            PolicyPlan::Dynamic(_) => Some(WATCH_NS.0),
            PolicyPlan::WakeBoost(_) => Some(WATCH_NS.1),
        };
        let accounts = self.plan.policy.repays();
        let duties = Duties { exitless: self.firing.exitless, watch, accounts };
        let devices = self.plan.vms.iter().enumerate().flat_map(|(vm, plan)| {
            plan.devices.iter().enumerate().map(move |(d, plan)| (vm, d as u8, plan))
        });
        let body = || {
            pin(&self.cpus.injector).map_err(Error::refused(&whom))?;
            let timeline = &self.plan.timeline;
            Injector::new(&self.common, &self.vms, duties, devices, timeline, self.seed).run()
        };
        self.ended(catch_unwind(AssertUnwindSafe(body)), || whom);
    }
}

#[cfg(test)]
mod tests;
