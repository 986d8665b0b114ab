//! The operations of programs of a guest's tasks.

use vcoop_model::plan::{Mode, QueueRoom};
use vcoop_model::profile::CostKey;
use vcoop_policy::GuestEvent;
use vcoop_sched::{EntId, LeaveReason};

use crate::guest::exit::Exit;
use crate::guest::spin_vcpu::Spin;
use crate::host::FREE_RUN;
use crate::interrupts::guest_timers::TimerFor;
use crate::machine::Wait;
use crate::program::Op;
use crate::world::World;

impl World<'_> {
    /// Interprets one operation of the current task; true if the vCPU is busy with it or has left guest mode.
    pub(super) fn guest_op(&mut self, v: u32, t: u32, spins: bool) -> bool {
        let vcpu = &mut self.vcpus[v as usize];
        vcpu.in_kernel = true;
        let (vm, track) = (vcpu.vm as usize, vcpu.track);
        let now = self.clock.now();
        let work = &mut self.vms[vm].tasks[t as usize];
        let Some(runner) = work.runner.as_mut() else { return false };
        let (was, holds) = (work.mode, work.holds);
        let op = if spins { FREE_RUN } else { runner.next_or_held(now) };
        let runs = matches!(op, Op::Run { mode: Mode::PreemptOff, .. });
        if was == Mode::PreemptOff && holds == 0 && !runs {
            work.mode = Mode::User;
            self.guest_event(v, GuestEvent::PreemptOn);
            if !self.vcpus[v as usize].exits.is_empty() {
                // The kernel tells the host at the end of the section, before anything else.
                self.vms[vm].tasks[t as usize].hold(op);
                return false;
            }
        }
        let work = &mut self.vms[vm].tasks[t as usize];
        match op {
            Op::Run { ns, mode } => {
                let mode = if holds > 0 { Mode::PreemptOff } else { mode };
                work.left = ns;
                if work.thread_time.is_some() {
                    self.runs_for_thread(v, t, ns);
                }
                let work = &mut self.vms[vm].tasks[t as usize];
                work.mode = mode;
                if mode == Mode::PreemptOff && was != mode {
                    self.guest_event(v, GuestEvent::PreemptOff);
                }
            }
            Op::Spin { ns } => {
                work.spin_until(now + ns, now);
                self.tracks.works(work.sampler, ns, now);
            }
            Op::SleepUntil { at, sample } => {
                if at <= now && !sample {
                    return false;
                }
                work.wait = Wait::Timer;
                let fires = at.max(now) + work.slack;
                if sample {
                    self.tracks.arm(work.sampler, track, at, now);
                    self.tracks.arm(work.irq_sampler, track, at, now);
                }
                return self.guest_sleep(v, t, Some(fires), CostKey::GuestSleep);
            }
            Op::WaitDevice { due } => {
                work.wait = Wait::Device(due);
                let sampler = work.sampler;
                // The device interrupts the vCPU to which it is routed: the wait is attributed there.
                let track = self.device_track(vm, t).unwrap_or(track);
                self.tracks.arm(sampler, track, due, now);
                return self.guest_sleep(v, t, None, CostKey::GuestSleep);
            }
            Op::Wait { timeout } => {
                if std::mem::take(&mut work.woken) {
                    return false;
                }
                work.wait = Wait::Peer;
                return self.guest_sleep(v, t, Some(now + timeout), CostKey::GuestSleep);
            }
            Op::Wake(peer) => {
                let peer = work.peers + peer;
                self.guest_wake_peer(v, peer);
            }
            Op::Sample => {
                let (sampler, probe) = (work.sampler, work.probe);
                self.sample(sampler, probe);
            }
            Op::Act => self.tracks.acts(work.sampler, true, track, now),
            Op::Respond { due } => {
                let (sampler, probe) = (work.sampler, work.probe);
                self.sample(sampler, probe);
                self.storms.responded(self.vms[vm].birth, due, now - due);
            }
            Op::Login => self.logged_in(v),
            Op::Missed(missed) => {
                for probe in [work.probe, work.irq_probe] {
                    self.probes.missed(probe, missed);
                }
            }
            Op::Glitches { glitches, missed } => {
                work.glitches += glitches;
                self.probes.missed(work.probe, missed);
            }
            Op::SetPolicy(policy) => {
                self.vms[vm].level.set_policy(now, EntId(t), policy);
                self.guest_notes(v);
                self.guest_queue_grew(v, v);
            }
            op @ (Op::Call { .. } | Op::Await | Op::TakeCall | Op::Answer) => {
                return self.guest_call_op(v, t, op);
            }
            Op::Remote { ns, irq_vcpu } => {
                self.calls.call_remote(work.client, ns, irq_vcpu, self.tracks.on(track, now));
                self.vcpus[v as usize].exits.push_back(Exit::Remote(work.client));
            }
            Op::Begin => self.tracks.begin(work.sampler, track, now),
            Op::Done => work.units += 1,
            Op::BusyUntil { at } => {
                self.tracks.arm(work.sampler, track, at, now);
                self.tracks.arm(work.irq_sampler, track, at, now);
                self.spin(vm, t, Spin::Timer);
                self.vcpus[v as usize].timers.set(TimerFor::Task(t), at);
                self.guest_program(v);
            }
            Op::Lock(lock) => self.lock(v, t, lock),
            Op::LockIrq(lock) => {
                work.irqs_off = true;
                self.lock(v, t, lock);
            }
            Op::Unlock(lock) => {
                self.unlock(v, t, lock);
                if was == Mode::PreemptOff && holds == 1 {
                    self.vms[vm].tasks[t as usize].mode = Mode::User;
                    self.guest_event(v, GuestEvent::PreemptOn);
                }
            }
            Op::Acquire { lock, kind } => return self.acquire(v, t, lock, kind),
            Op::Release(lock) => self.release(v, t, lock),
            Op::Barrier { of, spin_ns } => self.meet(v, t, of, spin_ns),
            Op::Pass => return self.pass(v, t),
            Op::Ipi { to, wait } => self.call_function(v, t, to, wait),
            Op::Flush => self.shoot_down(v, t),
            Op::ReadCstates(n) => {
                if !self.plan.vms[vm].virt.exits_off.cstate {
                    let reads = (0..n).map(|_| Exit::CstateRead);
                    self.vcpus[v as usize].exits.extend(reads);
                }
            }
            Op::Post { peer, room } => {
                let to = work.peers + peer;
                return self.guest_post(v, t, to, room);
            }
            Op::Reply => {
                let to = self.mail.correspondent(work.mail);
                return to.is_some_and(|to| self.guest_post(v, t, to, QueueRoom::List));
            }
            Op::Receive { sample } => return self.guest_receive(v, t, sample),
            Op::Rogue(step) => self.violate_protocol(v, t, step),
            Op::Exit => {
                work.wait = Wait::Dead;
                work.ended = Some(self.clock.now());
                return self.guest_reschedule(v, LeaveReason::Exit);
            }
        }
        false
    }
}
