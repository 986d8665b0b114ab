//! Translates a plan for a guest: cycles instead of nanoseconds, iterations instead of CPU time, draws instead of
//! distributions, and a vCPU for each task.

use vcoop_guest::layout::{Control, MAX_DEVICES, MAX_RINGS, MAX_STEPS, MAX_TASKS, MAX_VCPUS};
use vcoop_guest::program::{DeviceSpec, Kind, LineSpec, Step, StepOp, TaskSpec, flag};
use vcoop_model::plan::{Act, Dist, Mode, Ns, Phase, Program, Target, TaskPlan, VmPlan};
use vcoop_sched::config::Policy;
use vcoop_threads::tsc::Clock;

use crate::channels::GuestLines;
use crate::error::Error;
use crate::rates::Rates;
use crate::rogue;
use crate::routine::{self, RoutinePlace};
use vcoop_model::rng::Stream;

/// Number of draws of a random amount; the guest uses them in turn, in a loop.
const DRAWS: usize = 64;

/// A phase this long never ends (a CPU hog).
const FOR_EVER_NS: Ns = 3_600_000_000_000;

/// Tables for a guest.
#[derive(Clone, Debug, Default)]
pub(crate) struct Guest {
    pub(crate) tasks: Vec<TaskSpec>,
    pub(crate) devices: Vec<DeviceSpec>,
    pub(crate) steps: Vec<Step>,
    pub(crate) lines: Vec<LineSpec>,
    /// Slice of fair tasks, in nanoseconds.
    pub(crate) slice_ns: Ns,
}

impl Guest {
    /// Tables for the guest of `vm`. `rings`: the sample ring of each task, if it has one.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`]: more of something than the guest has room for, or a captured thread.
    pub(crate) fn new(
        vm: &VmPlan,
        index: u64,
        seed: u64,
        rates: &Rates,
        rings: &[Option<u64>],
        lines: &GuestLines,
    ) -> Result<Self, Error> {
        let at_most = |what: &str, n: usize, max: usize| {
            if n <= max {
                return Ok(());
            }
            let why = format!("its guest has room for {max} {what}, and the plan has {n}");
            Err(Error::unsupported(format!("VM {}", vm.name), why))
        };
        at_most("vCPUs", vm.vcpu_cpus.len(), MAX_VCPUS)?;
        at_most("tasks", vm.tasks.len(), MAX_TASKS)?;
        at_most("devices", vm.devices.len() + lines.devices.len(), MAX_DEVICES)?;
        at_most("measuring tasks", rings.iter().flatten().count(), MAX_RINGS)?;
        let slice_ns = match vm.level.fair {
            vcoop_sched::config::Fair::Cfs(t) => t.min_granularity_ns,
            vcoop_sched::config::Fair::Eevdf(t) => t.base_slice_ns,
        };
        let mut guest = Self { slice_ns, ..Self::default() };
        let places = places(vm);
        for (i, task) in vm.tasks.iter().enumerate() {
            let mut stream = Stream::guest_task(seed, index as usize, i);
            let at = Target::Guest { vm: index as u32, task: i as u32 };
            let seat = RoutinePlace { vcpu: places[i], vcpus: vm.vcpu_cpus.len() as u64 };
            let mut spec = guest.program(task, &mut stream, rates, &vm.name, (at, lines, seat))?;
            spec.vcpu = places[i];
            let all = crate::preferred_mask::first(vm.vcpu_cpus.len() as u32);
            let steps = &guest.steps[spec.first_step as usize..];
            let interrupts = steps.iter().any(|step| step.op == StepOp::Interrupt as u64);
            spec.cpus = match crate::preferred_mask::bits(&task.cpus) & all {
                // Made for this vCPU: it writes its area, or interrupts the others.
                _ if interrupts || spec.flags & flag::OWN_AREA != 0 => 1 << spec.vcpu,
                0 => all,
                own => own,
            };
            (spec.class, spec.prio) = class(&task.policy).ok_or_else(|| {
                let why = "its guest's scheduler knows no deadlines";
                Error::unsupported(format!("task {}.{}", vm.name, task.name), why)
            })?;
            spec.start_tsc = rates.clock.to_cycles(task.start_ns);
            spec.ring = rings[i].unwrap_or(u64::MAX);
            spec.task = i as u64;
            guest.tasks.push(spec);
        }
        at_most("steps", guest.steps.len(), MAX_STEPS)?;
        for d in &vm.devices {
            let softirq = match d.softirq.mean() {
                0 => 0,
                ns => rates.iterations(ns),
            };
            guest.devices.push(DeviceSpec {
                wakes: d.wakes.map_or(0, |t| u64::from(t) + 1),
                softirq,
                nmi: d.nmi.into(),
                vcpu: d.vcpu.into(),
            });
        }
        guest.devices.extend(&lines.devices);
        guest.lines.clone_from(&lines.specs);
        Ok(guest)
    }

    fn program(
        &mut self,
        task: &TaskPlan,
        stream: &mut Stream,
        rates: &Rates,
        vm: &str,
        (at, lines, seat): (Target, &GuestLines, RoutinePlace),
    ) -> Result<TaskSpec, Error> {
        let mut spec = TaskSpec { first_step: self.steps.len() as u64, ..TaskSpec::default() };
        let cycles = |ns| rates.clock.to_cycles(ns);
        let refused = |why| Error::unsupported(format!("task {vm}.{}", task.name), why);
        match &task.program {
            Program::Cyclictest { interval_ns, absolute, work, phase } => {
                spec.kind = Kind::Cyclictest as u64;
                spec.flags = if *absolute { flag::ABSOLUTE } else { 0 };
                spec.period_tsc = cycles(*interval_ns);
                spec.phase_tsc = cycles(stream.draw(phase));
                self.amounts(work, stream, rates);
            }
            Program::Audio { period_ns, buffer_ns, work, device } => {
                spec.kind = Kind::Audio as u64;
                spec.flags = if *device { flag::DEVICE } else { 0 };
                spec.period_tsc = cycles(*period_ns);
                spec.buffer_tsc = cycles(*buffer_ns);
                self.amounts(work, stream, rates);
            }
            Program::Cycle { phases } => {
                if phases.iter().any(|phase| matches!(phase, Phase::Busy { .. })) {
                    return Err(refused("its guest's loads go by CPU time, not by the clock"));
                }
                spec.kind = Kind::Loop as u64;
                let random = phases.iter().any(draws);
                for _ in 0..if random { DRAWS } else { 1 } {
                    let line = |server| lines.between(at, server);
                    self.steps.extend(phases.iter().map(|p| step(p, stream, rates, line)));
                }
            }
            Program::Rogue { steps } => {
                spec.kind = Kind::Loop as u64;
                let own = steps.iter().any(|step| step.takes_own_area());
                spec.flags = if own { flag::OWN_AREA } else { 0 };
                self.steps.extend(rogue::steps(steps, seat, rates));
            }
            Program::Script { .. } => {
                return Err(refused("captured threads are played back by the simulator only"));
            }
            Program::Routine { acts } => {
                spec.kind = Kind::Loop as u64;
                let random = acts.iter().any(|act| matches!(act, Act::Do(phase) if draws(phase)));
                for _ in 0..if random { DRAWS } else { 1 } {
                    let line = |server| lines.between(at, server);
                    let step = |phase: &Phase| step(phase, stream, rates, line);
                    let told = routine::steps(acts, seat, cycles, step);
                    self.steps.extend(told.map_err(refused)?);
                }
            }
            Program::Serve { section: Some(_), .. } => {
                return Err(refused("servers take locks in the simulator only"));
            }
            Program::Serve { work, .. } => {
                spec.kind = Kind::Serve as u64;
                (spec.first_line, spec.lines) = lines.served_by(at);
                self.amounts(work, stream, rates);
            }
            Program::Ping { interval_ns, phase, server, work, .. } => {
                spec.kind = Kind::Ping as u64;
                spec.period_tsc = cycles(*interval_ns);
                spec.phase_tsc = cycles(stream.draw(phase));
                spec.first_line = lines.between(at, *server);
                self.amounts(work, stream, rates);
            }
            Program::Boot { .. } | Program::Desktop { .. } => {
                return Err(refused("VMs boot in the simulator only"));
            }
        }
        spec.steps = self.steps.len() as u64 - spec.first_step;
        Ok(spec)
    }

    fn amounts(&mut self, work: &Dist, stream: &mut Stream, rates: &Rates) {
        let n = if matches!(work, Dist::Const(_)) { 1 } else { DRAWS };
        for _ in 0..n {
            let ns = stream.draw(work);
            let arg = if ns == 0 { 0 } else { rates.iterations(ns) };
            self.steps.push(Step { op: StepOp::Run as u64, arg });
        }
    }

    /// Fills a control block, all but the start.
    pub(crate) fn fill(&self, control: &mut Control, clock: &Clock, vcpus: u32) {
        control.vcpus = vcpus.into();
        control.tasks = self.tasks.len() as u64;
        control.slice_tsc = clock.to_cycles(self.slice_ns);
        control.task[..self.tasks.len()].copy_from_slice(&self.tasks);
        control.device[..self.devices.len()].copy_from_slice(&self.devices);
        control.line[..self.lines.len()].copy_from_slice(&self.lines);
    }

    /// The step table as words.
    pub(crate) fn step_words(&self) -> Vec<u64> {
        self.steps.iter().flat_map(|s| [s.op, s.arg]).collect()
    }
}

/// Whether a phase is random.
fn draws(phase: &Phase) -> bool {
    match phase {
        Phase::Run { time, .. } | Phase::Sleep { time } => !matches!(time, Dist::Const(_)),
        Phase::Align { .. } | Phase::Busy { .. } | Phase::Call { .. } => false,
    }
}

/// One phase. Kernel mode is user mode here: the guest's tasks have no kernel half.
fn step(phase: &Phase, stream: &mut Stream, rates: &Rates, line: impl Fn(Target) -> u64) -> Step {
    let (op, arg) = match phase {
        Phase::Run { time, mode } => {
            let ns = stream.draw(time);
            let arg = if ns >= FOR_EVER_NS { 0 } else { rates.iterations(ns) };
            match mode {
                Mode::User | Mode::Kernel => (StepOp::Run, arg),
                Mode::PreemptOff | Mode::IrqOff => (StepOp::RunPreemptOff, arg),
            }
        }
        Phase::Sleep { time } => (StepOp::Sleep, rates.clock.to_cycles(stream.draw(time))),
        Phase::Align { period_ns } => (StepOp::Align, rates.clock.to_cycles(*period_ns)),
        // Refused before.
        Phase::Busy { on_ns, .. } => (StepOp::Run, rates.iterations(*on_ns)),
        Phase::Call { server, .. } => (StepOp::Call, line(*server)),
    };
    Step { op: op as u64, arg }
}

fn class(policy: &Policy) -> Option<(u64, u64)> {
    Some(match *policy {
        Policy::Fifo(p) => (2, p.into()),
        Policy::Rr(p) => (3, p.into()),
        Policy::Normal { nice, .. } => (1, u64::from((nice.clamp(-20, 19) + 20).unsigned_abs())),
        Policy::Idle => (5, 0),
        Policy::Deadline { .. } => return None,
    })
}

/// A vCPU for each task: among those it may use, the one with the fewest tasks so far. Real-time tasks and others are
/// counted separately, so that each kind is spread.
pub(crate) fn places(vm: &VmPlan) -> Vec<u64> {
    let vcpus = vm.vcpu_cpus.len();
    let mut load = vec![[0_u32; 2]; vcpus];
    let place = |task: &TaskPlan| {
        let kind = usize::from(task.policy.is_rt());
        let allowed = |v: &usize| task.cpus.is_empty() || task.cpus.contains(&(*v as u32));
        let v = (0..vcpus).filter(allowed).min_by_key(|v| (load[*v][kind], *v)).unwrap_or(0);
        load[v][kind] += 1;
        v as u64
    };
    vm.tasks.iter().map(place).collect()
}
