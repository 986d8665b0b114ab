//! Applies policies to VMs, and takes them back.

use std::io;
use std::os::fd::AsFd;

use rustix::event::epoll::{self, EventData, EventFlags};
use vcoop_model::plan::{Plan, PolicyPlan};
use vcoop_policy::HostPolicy;
use vcoop_policy::config::{AdvanceConfig, Ns};
use vcoop_policy::driver::{self, VcpuDriver};
use vcoop_sources::Source;
use vcoop_text::about;
use vcoop_threads::clock::monotonic;
use vcoop_threads::{Captured, RunTimes, real_time_limit, run_time};
use vcoop_vmm::{Accel, VcpuThread};

use super::{AttachedVm, EngineThread, next_check};
use crate::engine::link::Link;
use crate::engine::{ENDS, Shares, Target};
use crate::policy::kernel_rules;
use crate::port::{DueAction, Stop, Vcpu};
use crate::protocol::{Refusal, VcpuStatus, VmId, VmStatus};

/// Open files that policies leave to others in this process: clients, metrics, looks at `/proc`, another keeper.
pub(super) const SPARE_FILES: usize = 64;

impl EngineThread {
    pub(super) fn attach(&mut self, target: Target) -> Result<VmStatus, Refusal> {
        let Target { vm: id, accel, vcpus, plan, timers, shares, notes } = target;
        // Steps that take long or can fail come before the first boost. What this host lacks is first: no thread is to
        // blame for it. The thread that delivers timers has a policy only if the vCPUs have one that boosts.
        if needs_events(&plan.policy) && self.source.is_none() {
            self.source = Some(Source::open().map_err(Refusal::missing)?);
        }
        let of_timers = |why: Refusal| why.of("the thread that delivers its timers");
        let timers = timers.map(|(thread, plan)| {
            self.prepare((id.clone(), accel), vec![thread], plan, None).map_err(of_timers)
        });
        let timers = timers.transpose()?;
        if let Some(vm) = timers.and_then(|number| self.vms.get_mut(&number)) {
            vm.is_timers = true;
        }
        let number = match self.prepare((id, accel), vcpus, plan, shares) {
            Ok(number) => number,
            Err(why) => {
                timers.and_then(|number| self.detach(number));
                return Err(why);
            }
        };
        self.vms.entry(number).and_modify(|vm| (vm.timers, vm.notes) = (timers, notes));
        self.hear_pressure();
        let begun = self.spares_files().and_then(|()| {
            timers.map_or(Ok(()), |timers| self.begin(timers)).map_err(of_timers)?;
            self.begin(number)
        });
        if let Err(why) = begun {
            self.detach(number);
            return Err(why);
        }
        self.begin_to_govern(number);
        Ok(self.status_of(&self.vms[&number], monotonic()))
    }

    fn prepare(
        &mut self,
        (id, accel): (VmId, Accel),
        vcpus: Vec<VcpuThread>,
        plan: Box<Plan>,
        shares: Option<Shares>,
    ) -> Result<u64, Refusal> {
        let now = monotonic();
        let number = self.next;
        self.next += 1;
        let captured: Vec<Captured> =
            vcpus.iter().map(|vcpu| self.capture(vcpu)).collect::<Result<_, _>>()?;
        let ours = captured.iter().filter(|captured| !is_urgent(captured));
        let recorded = self.journal.record(ours).map_err(|e| Refusal::from(e.to_string()))?;
        let link = shares.map(|shares| {
            let advance = plan.vms.first().map_or(AdvanceConfig::None, |vm| vm.virt.timer.advance);
            let mut link = Link::new(shares, advance, vcpus.len(), now);
            link.changed(&vcpus);
            link
        });
        let vm = AttachedVm {
            threads: vcpus.clone(),
            timers: None,
            is_timers: false,
            link,
            governor: None,
            policy: plan.policy_name.clone(),
            since: now,
            shared: plan.policy.shared(now),
            vcpus: Vec::new(),
            times: Vec::new(),
            hears: Vec::new(),
            interrupted: None,
            ext: None,
            rests: false,
            waited: 0,
            notes: Vec::new(),
            id,
            accel,
            plan,
        };
        self.vms.insert(number, vm);
        for (place, (vcpu, captured)) in vcpus.iter().zip(captured).enumerate() {
            if let Err(why) = self.prepare_vcpu(number, place, vcpu, captured) {
                let known = self.vms.get(&number).map_or(0, |vm| vm.vcpus.len());
                self.detach(number);
                let unknown = vcpus[known..].iter().map(|vcpu| vcpu.thread.tid.cast_signed());
                unknown
                    .filter(|tid| recorded.contains(tid))
                    .for_each(|tid| self.journal.forget(tid));
                return Err(why.of(format_args!("vCPU {}", vcpu.index)));
            }
        }
        if let Err(why) = self.hear_interrupts(number).and_then(|()| self.admit(number)) {
            self.detach(number);
            return Err(why);
        }
        Ok(number)
    }

    /// Whether others can still open as many files as they may need.
    fn spares_files(&self) -> Result<(), Refusal> {
        let spare: io::Result<Vec<_>> = (0..SPARE_FILES).map(|_| self.poll.try_clone()).collect();
        spare.map(drop).map_err(|e| {
            Refusal::from(format!(
                "{e}: what is left is for clients and metrics\n  remedy: raise the limit of open files, ulimit -Hn"
            ))
        })
    }

    /// The policy begins, for the first time or after a rest.
    pub(super) fn begin(&mut self, number: u64) -> Result<(), Refusal> {
        let places = self.vms.get(&number).map_or(0, |vm| vm.vcpus.len());
        for place in 0..places {
            let Some(vm) = self.vms.get(&number) else { break };
            let (registered, index) = (vm.hears(place), vm.threads[place].index);
            let mut begun = self.drive(number, place, |port| driver::start(port, registered));
            if let (None | Some(Ok(())), Some(asleep)) = (&begun, self.unknown_halt(number, place))
            {
                begun = self.drive(number, place, |port| driver::halt(port, asleep));
                self.await_deadline(number, place);
            }
            let why = match begun {
                Some(Err(Stop::Gone)) => Refusal::from("its thread has ended".to_owned()),
                Some(Err(Stop::Refused(why))) => Refusal::from(why),
                Some(Err(Stop::Foreign)) => {
                    self.check(number, place);
                    continue;
                }
                Some(Ok(())) | None => {
                    self.attend(number, place);
                    continue;
                }
            };
            return Err(why.of(format_args!("vCPU {index}")));
        }
        let now = monotonic();
        self.dues.insert((next_check(now), DueAction::Check(number)));
        let Some(vm) = self.vms.get_mut(&number) else {
            return Err(Refusal::from("it has ended".to_owned()));
        };
        if vm.plan.policy.repays() && vm.times.iter().any(Option::is_some) {
            self.dues.insert((now, DueAction::Account(number)));
        }
        if let Some(link) = &mut vm.link {
            link.ask_clock();
        }
        if vm.listens() {
            self.dues.insert((now, DueAction::Look(number)));
            self.hear_bell(number, true);
        }
        Ok(())
    }

    /// A vCPU's thread with what it has, if nothing is applied to it.
    fn capture(&mut self, of: &VcpuThread) -> Result<Captured, Refusal> {
        let whose = |why: Refusal| why.of(format_args!("vCPU {}", of.index));
        let tid = of.thread.tid.cast_signed();
        // The number may be that of a thread whose end the engine has not been told of yet.
        self.ended(tid);
        if let Some(vm) = self.threads.get(&tid).and_then(|(number, _)| self.vms.get(number)) {
            let name = &vm.id.name;
            return Err(whose(Refusal::from(format!(
                "{} is in force on thread {tid}, as one of {name}\n  remedy: {}",
                vm.policy,
                about("vcoop detach", name, "")
            ))));
        }
        let captured = Captured::of(tid).map_err(|e| whose(e.to_string().into()))?.without_cpus();
        if captured.baseline().start != of.thread.start_time {
            return Err(whose(Refusal::from(format!("thread {tid} is another one now"))));
        }
        Ok(captured)
    }

    fn prepare_vcpu(
        &mut self,
        number: u64,
        place: usize,
        of: &VcpuThread,
        captured: Captured,
    ) -> Result<(), Refusal> {
        let words = |e: &dyn std::fmt::Display| e.to_string();
        let baseline = captured.baseline().clone();
        let tid = baseline.tid;
        let vm = self.vms.get_mut(&number).expect("it is being attached");
        let policy = baseline.attributes.to_policy();
        if is_urgent(&captured) {
            let why = format!("somebody else made it {}", baseline.attributes);
            let (index, left_alone) = (of.index, Some(why));
            let alone = VcpuStatus { index, tid, left_alone, ..VcpuStatus::default() };
            vm.vcpus.push(Err(alone));
            vm.times.push(None);
            return Ok(());
        }
        let elsewhere = kernel_rules(&vm.plan.policy).is_some();
        let driver = if elsewhere {
            VcpuDriver::new(HostPolicy::Vanilla, None, policy)
        } else {
            let mut driver = vm.plan.vcpu_driver(0, place);
            // The plan's baseline is a guess; this is what the thread has.
            driver.set_baseline(policy);
            driver
        };
        if let Some(why) = would_end(&driver, tid) {
            return Err(Refusal::from(format!(
                "{why}\n  remedy: prlimit --rttime=unlimited --pid {tid}, or means = \"nice -20\""
            )));
        }
        let slot = self.keeper.hold(&baseline).map_err(|e| format!("the keeper: {e}"))?;
        let vcpu = Vcpu {
            index: of.index,
            driver,
            has: baseline.attributes,
            nice: baseline.nice,
            captured,
            slot,
            called: monotonic(),
            for_life: matches!(vm.plan.policy, PolicyPlan::Static { .. }).then(|| run_time(tid)),
            armed: None,
            awaits: None,
            deadlines: 0,
            ext: None,
        };
        vm.vcpus.push(Ok(vcpu));
        let asks = vm.plan.policy.repays() && !elsewhere || vm.may_rest();
        vm.times.push(if asks { RunTimes::open(tid).ok() } else { None });
        self.threads.insert(tid, (number, place));
        let ends = vm.vcpus[place].as_ref().ok().and_then(|v| v.captured.ends());
        if let Some(ends) = ends {
            let token = EventData::new_u64(ENDS + tid as u64);
            epoll::add(&self.poll, ends, token, EventFlags::IN | EventFlags::ONESHOT)
                .map_err(|e| words(&e))?;
        }
        if let Some(source) = self.source.as_mut().filter(|_| needs_events(&vm.plan.policy)) {
            source
                .watch(tid, heard_after(&vm.plan.policy), self.poll.as_fd())
                .map_err(Refusal::missing)?;
            vm.hears = vec![source.name()];
        }
        match self.drive(number, place, |port| port.try_means()) {
            Some(Err(Stop::Refused(why))) => Err(Refusal::from(why)),
            // A thread that has ended, or that another process controls, is found when the policy begins.
            _ => Ok(()),
        }
    }

    /// Leaves the threads of a VM alone if its VMM has been limited since its policy began.
    pub(super) fn check_limit(&mut self, number: u64) {
        let Some(vm) = self.vms.get(&number) else { return };
        // The limit is of the whole process: it is read for one thread.
        let mut boosted =
            vm.vcpus.iter().flatten().filter(|vcpu| boosts_to_real_time(&vcpu.driver));
        let Some(vcpu) = boosted.next() else { return };
        let Some(why) = would_end(&vcpu.driver, vcpu.tid()) else { return };
        (0..vm.vcpus.len()).for_each(|place| self.leave(number, place, Some(why.clone())));
    }

    /// Stops driving a vCPU. `why`: the reason to leave its thread as it is; `None`: its thread has ended. A VM whose
    /// threads have all ended is detached.
    pub(super) fn leave(&mut self, number: u64, place: usize, why: Option<String>) {
        let Some(status) = self.vcpu(number, place).map(|v| self.vcpu_status(v, monotonic()))
        else {
            return;
        };
        let Some(vm) = self.vms.get_mut(&number) else { return };
        let Some(entry) = vm.vcpus.get_mut(place) else { return };
        let alone = VcpuStatus {
            left_alone: Some(why.unwrap_or_else(|| "its thread has ended".to_owned())),
            boosted: false,
            ..status
        };
        if let Ok(vcpu) = std::mem::replace(entry, Err(alone)) {
            let id = vm.id.clone();
            self.let_go(vcpu, &id, DueAction::Policy(number, place));
        }
        let Some(vm) = self.vms.get(&number) else { return };
        let ended = |v: &Result<Vcpu, VcpuStatus>| match v {
            Ok(_) => false,
            Err(alone) => !Captured::of(alone.tid).is_ok_and(|c| c.is_alive()),
        };
        // Asked only when it is the last one: else the threads of a VM that ends ask for each other.
        if vm.vcpus.iter().all(Result::is_err) && vm.vcpus.iter().all(ended) {
            self.detach(number);
        }
    }

    /// Gives a thread back and forgets it. What cannot be restored stays in the journal; says why.
    fn let_go(&mut self, vcpu: Vcpu, of: &VmId, due: DueAction) -> Option<String> {
        self.dismiss(&vcpu);
        self.source.iter_mut().for_each(|source| source.forget(vcpu.tid()));
        self.threads.remove(&vcpu.tid());
        if let Some(at) = vcpu.armed {
            self.dues.remove(&(at, due));
        }
        if let (Some(at), DueAction::Policy(number, place)) = (vcpu.awaits, due) {
            self.dues.remove(&(at, DueAction::Deadline(number, place)));
        }
        let first = self.threads.get(&of.pid.cast_signed());
        let first = first.and_then(|(number, place)| self.vcpu(*number, *place));
        if let Err(why) = vcpu.give_back(of, first.map(|first| first.has.to_policy())) {
            let why = why.to_string();
            tracing::error!("not given back: {why}");
            return Some(why);
        }
        self.keeper.drop(vcpu.slot);
        self.journal.forget(vcpu.tid());
        None
    }

    pub(super) fn detach(&mut self, number: u64) -> Option<VmStatus> {
        let now = monotonic();
        for of in [Some(number), self.vms.get(&number)?.timers].into_iter().flatten() {
            let places = self.vms.get(&of).map_or(0, |vm| vm.vcpus.len());
            for place in 0..places {
                // Refused, gone, or changed by another process: what is left to do follows.
                let _ = self.drive(of, place, |port| driver::stop(port));
            }
        }
        self.hear_bell(number, false);
        let mut last = self.status_of(self.vms.get(&number)?, now);
        // Also where `scx_vcoop` decides, which is told below.
        last.vcpus.iter_mut().chain(&mut last.timers).for_each(|vcpu| vcpu.boosted = false);
        self.govern_no_more(number);
        let mut vm = self.vms.remove(&number)?;
        if let Some(timers) = vm.timers.and_then(|timers| self.detach(timers)) {
            last.not_given_back = timers.not_given_back;
        }
        for (place, vcpu) in vm.vcpus.drain(..).enumerate() {
            if let Ok(vcpu) = vcpu {
                let due = DueAction::Policy(number, place);
                last.not_given_back.extend(self.let_go(vcpu, &vm.id, due));
            }
        }
        self.dismiss_vm(&vm);
        self.await_nothing_of(number);
        Some(last)
    }

    /// Removes what is due for a VM as a whole.
    pub(super) fn await_nothing_of(&mut self, number: u64) {
        self.dues.retain(|(_, due)| {
            !matches!(due, DueAction::Account(n) | DueAction::Check(n) | DueAction::Look(n)
                if *n == number)
        });
    }

    pub(super) fn detach_all(&mut self) {
        while let Some((number, _)) = self.vms.first_key_value() {
            self.detach(*number);
        }
    }
}

fn boosts_to_real_time(driver: &VcpuDriver) -> bool {
    driver.boosted().is_some_and(|boosted| boosted.is_rt())
}

/// Why the kernel would end a VMM for the boosts of one of its threads, if it would: its count of real-time CPU time goes
/// on from boost to boost, and begins anew only where the thread is woken while it is boosted.
fn would_end(driver: &VcpuDriver, tid: i32) -> Option<String> {
    let limit = boosts_to_real_time(driver).then(|| real_time_limit(tid)).flatten()?;
    let us = limit / 1_000;
    Some(format!("the kernel ends its process after {us} us of real-time CPU time (RLIMIT_RTTIME)"))
}

/// Whether somebody else has made a thread real-time.
fn is_urgent(captured: &Captured) -> bool {
    let policy = captured.baseline().attributes.to_policy();
    policy.is_rt() || policy.is_deadline()
}

/// Whether the engine decides when a policy boosts, and has to be told of sleeps and runs.
fn needs_events(policy: &PolicyPlan) -> bool {
    policy.boosts() && kernel_rules(policy).is_none()
}

/// How long a vCPU may run before its policy has to know. A run shorter than its boost may be reported late; it is
/// charged all the same.
fn heard_after(policy: &PolicyPlan) -> Ns {
    match policy {
        PolicyPlan::WakeBoost(config) => config.run_ns / 2,
        _ => 0,
    }
}
