//! Builds a world at time zero from a plan.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use vcoop_model::plan::{CoreScheduling, Mode, Plan, ProbePlan, SampleEnd};
use vcoop_model::plan::{Target, TaskPlan, VmPlan};
use vcoop_policy::{GuestHalf, HostPolicy};
use vcoop_sched::{Attr, ConfigError, CpuId, CpuSet, Level};

use crate::attribution::probe::Probes;
use crate::attribution::track::{NONE, Tracks};
use crate::clock::{Clock, Entities, Event};
use crate::guest::halt_times::HaltTimes;
use crate::guest::spin_vcpu::{Spin, SpinVcpu};
use crate::guest::vcpu_virt::{VcpuVirt, VmVirt};
use crate::guest::vm_sync::VmSync;
use crate::host::devices::DeviceLines;
use crate::host::host_ticks::{HostTicks, cpu_set};
use crate::host::idle_governor::IdleGovernor;
use crate::host::scheduler::Scheduler;
use crate::host::smt::{Smt, Speed};
use crate::inline_queue::InlineQueue;
use crate::interrupts::devices::Devices;
use crate::interrupts::guest_timers::{GuestTimers, TimerFor};
use crate::interrupts::ipi_vcpu::IpiVcpu;
use crate::interrupts::lapic;
use crate::machine::{GuestSegment, Pcpu, Segment, Thread, Vcpu, Vm, Wait, Work};
use crate::messages::call::{Calls, probed_servers};
use crate::messages::mailbox::Mailboxes;
use crate::observe::spans::Spans;
use crate::policy_driver::event_counts::EventCounts;
use crate::policy_driver::govern;
use crate::policy_driver::page::Page;
use crate::policy_driver::page_checks::PageChecks;
use crate::policy_driver::preferred::PreferredVcpus;
use crate::price::Prices;
use crate::program::Runner;
use crate::program::clock::SkewedClock;
use crate::queue::Ns;
use crate::ticks::Ticks;
use crate::world::World;
use crate::xen::intervals::Views;
use crate::xen::ratelimit_driver::RatelimitDriver;
use crate::xen::storm::Storms;
use vcoop_model::rng::Stream;

/// `housekeeping` is the plan's, without noise: noise has threads on every pCPU.
pub(crate) fn build(
    plan: &Plan,
    seed: u64,
    housekeeping: Option<u32>,
) -> Result<World<'_>, ConfigError> {
    let pcpus = plan.host.sched.cpus();
    let views = Views::new(plan);
    let mut lines = DeviceLines::new(plan, seed);
    let mut setup = Setup::new(plan, seed, &views, &lines)?;
    for (i, task) in plan.host_tasks.iter().enumerate() {
        setup.host_task(i, task)?;
    }
    let in_storm: BTreeSet<u32> = plan.storms.iter().flat_map(|s| s.vms.iter().copied()).collect();
    for (m, vm) in plan.vms.iter().enumerate() {
        setup.vm(m, vm, !in_storm.contains(&(m as u32)))?;
    }
    let Setup { mut host, mut clock, mut calls, mut vcpus, mut vms, .. } = setup;
    let storms = Storms::new(plan, &mut calls, |vm| vms[vm as usize].first);
    for (b, vm) in (0..).zip(storms.vms()) {
        vms[vm as usize].birth = b;
    }
    storms.start(&mut clock);
    views.start(&mut clock);
    lines.start(&mut clock);

    host.set_nohz_full(&cpu_set(&plan.host.nohz_full));

    calls.reserve();
    for vcpu in &mut vcpus {
        vcpu.messages.reserve_exact(calls.room());
    }

    let mut world = World {
        plan,
        costs: Prices::new(&plan.host.costs, seed),
        clock,
        host,
        pcpus: (0..pcpus).map(|_| pcpu()).collect(),
        threads: setup.threads,
        vcpus,
        vms,
        devices: setup.devices,
        calls,
        mail: setup.mail,
        storms,
        views,
        tracks: setup.tracks,
        probes: setup.probes,
        ticks: HostTicks::new(
            Ticks::new(plan.host.sched.tick_ns(), seed, 0),
            cpu_set(&plan.host.nohz_full),
            housekeeping,
        ),
        smt: Smt::new(&plan.host),
        lines,
        cpu: 0,
        next_timeline: 0,
        ratelimits: RatelimitDriver::of(plan),
        event_counts: EventCounts::new(plan),
        governors: (0..plan.vms.len()).map(|vm| plan.governor_driver(vm)).collect(),
        weights: govern::weights(plan),
        preferred: PreferredVcpus::new(plan),
        spans: Spans::off(),
        fault: None,
        page_checks: PageChecks::default(),
    };
    for (vm, driver) in (0..).zip(&world.governors) {
        if let Some(driver) = driver {
            world.clock.set(Event::Govern(vm), driver.interval_ns());
        }
    }
    if let Some(driver) = &world.ratelimits {
        world.clock.set(Event::Ratelimit, driver.interval());
    }
    Ok(world)
}

/// State that grows with each task and each VM.
struct Setup<'p> {
    plan: &'p Plan,
    seed: u64,
    labels: Labels,
    /// Servers of calls that are probed.
    servers: Vec<Target>,
    host: Scheduler,
    clock: Clock,
    threads: Vec<Thread>,
    vcpus: Vec<Vcpu>,
    vms: Vec<Vm>,
    devices: Devices<'p>,
    calls: Calls,
    mail: Mailboxes,
    tracks: Tracks,
    probes: Probes,
}

/// Some scheduling rounds of a host with several threads a pCPU.
const STARTS_WITHIN_NS: Ns = 100_000_000;

/// Properties of a task that depend on its host or VM.
struct TaskOwner<'p> {
    target: Target,
    rng: Stream,
    clock: SkewedClock,
    label: &'p str,
    /// The first of those with its label.
    peers: Option<usize>,
    /// When its program begins, if that is known.
    begins: Option<Ns>,
    /// The first vCPU of its VM.
    first: u32,
}

impl<'p> Setup<'p> {
    fn new(
        plan: &'p Plan,
        seed: u64,
        views: &Views,
        lines: &DeviceLines,
    ) -> Result<Self, ConfigError> {
        let pcpus = plan.host.sched.cpus();
        let vcpus = plan.vms.iter().map(|vm| vm.level.topology.cpus()).sum();
        let tasks = plan.host_tasks.iter().chain(plan.vms.iter().flat_map(|vm| &vm.tasks));
        let clock = Clock::new(&Entities {
            pcpus,
            vcpus,
            threads: plan.host_tasks.len() as u32 + vcpus,
            vms: plan.vms.len() as u32,
            devices: plan.vms.iter().map(|vm| vm.devices.len() as u32).sum(),
            remotes: tasks.filter(|task| task.program.is_remote()).count() as u32,
            storms: plan.storms.len() as u32,
            lines: lines.len(),
            intervals: views.len(),
        });
        let mut labels = Labels::default();
        let host_labels = plan.host_tasks.iter().map(|task| &task.label);
        for label in host_labels.chain(plan.vms.iter().map(|vm| &vm.label)) {
            labels.of(label);
        }
        Ok(Self {
            plan,
            seed,
            servers: probed_servers(plan),
            host: Scheduler::new(&plan.host.sched, seed)?,
            clock,
            threads: Vec::new(),
            vcpus: Vec::new(),
            vms: Vec::new(),
            devices: Devices::default(),
            calls: Calls::default(),
            mail: Mailboxes::default(),
            // One more label than there are names: an idle pCPU.
            tracks: Tracks::new(labels.names.len() + 1, pcpus),
            probes: Probes::new(plan, labels.names.clone()),
            labels,
        })
    }

    fn host_task(&mut self, i: usize, task: &TaskPlan) -> Result<(), ConfigError> {
        let home = home(&task.cpus, i as u32, self.plan.host.sched.cpus());
        let cpus = task.cpus.iter().map(|&c| CpuId(c)).collect();
        self.host.try_add(Attr { policy: task.policy, cpus, group: task.group }, home)?;
        let target = Target::Host(i as u32);
        let start = self.start(0, i, task);
        let work = self.work(
            task,
            TaskOwner {
                target,
                rng: Stream::host_task(self.seed, i),
                clock: SkewedClock::HOST,
                label: &task.label,
                peers: self.plan.host_tasks.iter().position(|t| t.label == task.label),
                begins: Some(start),
                first: 0,
            },
        );
        let tracked = work.sampler != NONE || self.servers.contains(&target);
        let track = if tracked { self.tracks.add_track() } else { NONE };
        self.clock.set(Event::Sleep(i as u32), start);
        self.threads.push(Thread::new(work, NONE, track, home.0));
        Ok(())
    }

    /// When a task of a machine (0: the host) begins. A task that would begin with the run begins at a drawn time of
    /// the warm-up: if all vCPUs of a VM woke up at once, they would lose their pCPUs together while others compute.
    fn start(&self, machine: usize, i: usize, task: &TaskPlan) -> Ns {
        if task.start_ns > 0 || task.together {
            return task.start_ns;
        }
        let within = self.plan.warmup_ns.min(STARTS_WITHIN_NS);
        Stream::start(self.seed, machine, i).below(within)
    }

    /// The threads of a VM's vCPUs.
    fn vcpus(&mut self, m: usize, vm: &VmPlan) -> Result<(), ConfigError> {
        let first = self.vcpus.len() as u32;
        let own = |p: &ProbePlan| matches!(p.target, Target::Guest { vm, .. } if vm as usize == m);
        let serves = |s: &Target| matches!(s, Target::Guest { vm, .. } if *vm as usize == m);
        let probed =
            vm.waits || self.plan.probes.iter().any(own) || self.servers.iter().any(serves);
        for c in 0..vm.level.topology.cpus() {
            let allowed = &vm.vcpu_cpus[c as usize];
            let home = home(allowed, first + c, self.plan.host.sched.cpus());
            let cpus: CpuSet = allowed.iter().map(|&c| CpuId(c)).collect();
            let policy = vm.vcpu_policy[c as usize];
            let group = vm.vcpu_groups.get(c as usize).copied().or(vm.group);
            let e = self.host.try_add(Attr { policy, cpus, group }, home)?;
            match self.plan.host.core_scheduling {
                CoreScheduling::Off => {}
                CoreScheduling::Vm => self.host.set_cookie(e, m as u32 + 1),
                CoreScheduling::Vcpu => self.host.set_cookie(e, self.vcpus.len() as u32 + 1),
            }
            // Attribution costs time: only guests that are probed have it.
            let track = if probed { self.tracks.add_track() } else { NONE };
            let mut work = blank(self.labels.of(&vm.label));
            if vm.waits {
                work.sampler = self.tracks.add_sampler();
                work.probe = self.probes.of_waits(self.plan, &vm.wait_probe(c));
            }
            self.threads.push(Thread::new(work, self.vcpus.len() as u32, track, NONE));
            self.vcpus.push(vcpu(self.plan, m, c, e.0, home.0, track));
        }
        Ok(())
    }

    /// A VM, which is `started` unless a storm starts it.
    fn vm(&mut self, m: usize, vm: &'p VmPlan, started: bool) -> Result<(), ConfigError> {
        let first = self.vcpus.len() as u32;
        let n = vm.level.topology.cpus();
        self.vcpus(m, vm)?;
        let own_clock = SkewedClock::of_vm(vm.virt.timer.skew_ppm, self.seed, m);
        let mut level = Level::new(&vm.level)?;
        level.set_nohz_full(&cpu_set(&vm.virt.nohz_full));
        let mut tasks = Vec::new();
        for (i, task) in vm.tasks.iter().enumerate() {
            let home = home(&task.cpus, i as u32, n);
            let cpus = task.cpus.iter().map(|&c| CpuId(c)).collect();
            let start = if started { self.start(m + 1, i, task) } else { task.start_ns };
            level.try_add(Attr { policy: task.policy, cpus, group: None }, home)?;
            let mut work = self.work(
                task,
                TaskOwner {
                    target: Target::Guest { vm: m as u32, task: i as u32 },
                    rng: Stream::guest_task(self.seed, m, i),
                    clock: own_clock,
                    label: &vm.label,
                    peers: vm.tasks.iter().position(|t| t.label == task.label),
                    begins: (started && !task.after_login).then_some(start),
                    first,
                },
            );
            let space = vm.tasks.iter().position(|t| process(t) == process(task));
            work.space = space.unwrap_or(i) as u32;
            tasks.push(work);
            if task.after_login {
                continue;
            }
            // The guest boots halted, with a timer for the start of each task.
            let v = &mut self.vcpus[(first + home.0) as usize];
            v.timers.set(TimerFor::Task(i as u32), start);
        }
        let virt = VmVirt::new(&vm.virt, &self.plan.host);
        let ticks = Ticks::new(own_clock.host_time(vm.level.tick_ns), self.seed, m + 1);
        for v in (first..first + n).filter(|_| started) {
            if let Some(at) = lapic::boots(&mut self.vcpus[v as usize], &virt, &ticks, 0) {
                self.clock.set(Event::Lapic(v), at);
            }
        }
        for device in &vm.devices {
            self.devices.add(device, m as u32, first, self.seed);
        }
        if started {
            self.devices.start(m as u32, &mut self.clock);
        }
        let times_interrupts = tasks.iter().any(|work| work.irq_sampler != NONE);
        self.vms.push(Vm {
            level,
            tasks,
            first,
            preemption: vm.preemption,
            ticks,
            sync: VmSync::new(vm, &self.plan.host),
            virt,
            shared: self.plan.policy.shared(0),
            started,
            spins: vm.tasks.iter().any(|task| task.program.may_spin()),
            times_interrupts,
            nohz: !vm.virt.nohz_full.is_empty(),
            charges_steal: vm.virt.charges_steal,
            birth: NONE,
            halts: (vm.virt.idle.host_polls_in_force().max_ns > 0).then(HaltTimes::new),
        });
        Ok(())
    }

    /// A task's program, with samplers and probes if the plan asks for them.
    fn work(&mut self, task: &TaskPlan, of: TaskOwner<'_>) -> Work {
        let takes = task.program.takes_messages();
        let mut runner = Runner::new(&task.program, of.rng).by(of.clock);
        if let Some(at) = of.begins {
            runner = runner.begins(at);
        }
        let mut work = Work {
            mail: if takes { self.mail.add() } else { NONE },
            runner: Some(if task.of_vcpu { runner.of_vcpu() } else { runner }),
            slack: task.timer_slack_ns,
            thread_time: task.of_vcpu.then_some(0),
            peers: of.peers.unwrap_or(0) as u32,
            ..blank(self.labels.of(of.label))
        };
        let mut measured = |moment| {
            let is = |p: &ProbePlan| p.target == of.target && p.moment == moment;
            let i = self.plan.probes.iter().position(is)?;
            Some((self.tracks.add_sampler(), self.probes.of_task(self.plan, i)))
        };
        if let Some(found) = measured(SampleEnd::Task) {
            (work.sampler, work.probe) = found;
        }
        if let Some(found) = measured(SampleEnd::Interrupt) {
            (work.irq_sampler, work.irq_probe) = found;
        }
        (work.client, work.server) = self.calls.enter(task, of.target, of.first, work.sampler);
        work
    }
}

#[derive(Default)]
struct Labels {
    names: Vec<String>,
    index: BTreeMap<String, u16>,
}

impl Labels {
    fn of(&mut self, name: &str) -> u16 {
        *self.index.entry(name.to_owned()).or_insert_with(|| {
            self.names.push(name.to_owned());
            self.names.len() as u16 - 1
        })
    }
}

fn home(allowed: &[u32], i: u32, cpus: u32) -> CpuId {
    if allowed.is_empty() { CpuId(i % cpus) } else { CpuId(allowed[i as usize % allowed.len()]) }
}

fn blank(label: u16) -> Work {
    Work {
        runner: None,
        label,
        left: 0,
        mode: Mode::User,
        refill: 0,
        wait: Wait::Timer,
        woken: false,
        leaving: false,
        done: 0,
        ended: None,
        slack: 0,
        thread_time: None,
        peers: 0,
        space: 0,
        sampler: NONE,
        probe: NONE,
        irq_sampler: NONE,
        irq_probe: NONE,
        glitches: 0,
        client: NONE,
        server: NONE,
        outbox: None,
        spin: Spin::No,
        spun: 0,
        by_clock: false,
        until: 0,
        holds: 0,
        irqs_off: false,
        mail: NONE,
        units: 0,
    }
}

/// The process of a task.
fn process(task: &TaskPlan) -> &str {
    task.process.as_ref().unwrap_or(&task.label)
}

fn vcpu(plan: &Plan, vm: usize, cpu: u32, thread: u32, home: u32, track: u32) -> Vcpu {
    let driver = plan.vcpu_driver(vm, cpu as usize);
    Vcpu {
        vm: vm as u32,
        cpu: CpuId(cpu),
        thread,
        pcpu: NONE,
        home,
        halted: true,
        polling: false,
        wants: 0,
        segment: GuestSegment::None,
        left: 0,
        since: 0,
        current: NONE,
        in_kernel: true,
        irr: 0,
        posts: Vec::new(),
        devices: VecDeque::with_capacity(4),
        messages: VecDeque::new(),
        resched: false,
        eager: false,
        extra: 0,
        exits: InlineQueue::new(),
        timers: GuestTimers::new(),
        programmed: Ns::MAX,
        waits_out: false,
        window: false,
        exit_at: Ns::MAX,
        fast_entry: 0,
        lazy_space: NONE,
        exit_why: 0,
        has_policy: !matches!(driver.policy(), HostPolicy::Vanilla),
        has_guest_half: driver.policy().reads_guest(),
        hv_at: Ns::MAX,
        off_since: 0,
        track,
        driver,
        half: GuestHalf::new(),
        page: Page::default(),
        virt: VcpuVirt::new(plan, vm),
        spin: SpinVcpu::default(),
        ipis: IpiVcpu::default(),
    }
}

fn pcpu() -> Pcpu {
    Pcpu {
        segment: Segment::Idle,
        since: 0,
        current: NONE,
        vcpu: NONE,
        irqs: InlineQueue::new(),
        resched: false,
        eager: false,
        at_point: false,
        extra: 0,
        last: NONE,
        sees_write: false,
        waking: NONE,
        idle_governor: IdleGovernor::default(),
        idle_ns: 0,
        speed: Speed::FULL,
        slowed_ns: 0,
    }
}
