//! Policies rest while no thread waits for a CPU. Boosts would change nothing, and watching wake-ups costs CPU time.

use rustix::event::epoll::{self, EventData, EventFlags};
use vcoop_model::plan::PolicyPlan;
use vcoop_policy::config::Ns;
use vcoop_policy::driver;
use vcoop_sources::Pressure;
use vcoop_threads::clock::monotonic;

use super::{AttachedVm, CHECK_NS, EngineThread, next_check};
use crate::engine::PRESSURE;
use crate::policy::kernel_rules;
use crate::port::DueAction;

/// Policies rest when the host has been without CPU pressure for this long.
const QUIET_NS: Ns = 10_000_000_000;
/// A VM whose vCPUs have waited longer than this between two checks does not rest: 1 % of a second.
const MOST_WAITED_NS: Ns = CHECK_NS / 100;

impl AttachedVm {
    /// Whether the policy may rest. `wake-boost` costs at each wake-up; other policies cost only when a guest announces
    /// something urgent, or once.
    pub(super) fn may_rest(&self) -> bool {
        matches!(self.plan.policy, PolicyPlan::WakeBoost(_))
            && kernel_rules(&self.plan.policy).is_none()
    }

    fn look_at_waits(&mut self) -> Ns {
        let now = self.times.iter().flatten().map(|file| file.read().waited_ns).sum();
        now - std::mem::replace(&mut self.waited, now).min(now)
    }
}

impl EngineThread {
    /// A policy begins: CPU pressure is watched from now on, if the kernel has it.
    pub(super) fn hear_pressure(&mut self) {
        if self.pressure.is_none()
            && self.vms.values().any(AttachedVm::may_rest)
            && let Ok(pressure) = Pressure::open()
        {
            let (token, flags) = (EventData::new_u64(PRESSURE), EventFlags::PRI | EventFlags::ET);
            if epoll::add(&self.poll, &pressure, token, flags).is_ok() {
                self.pressure = Some(pressure);
            }
        }
        self.pressed();
    }

    /// A thread waits for a CPU, or may soon: policies go on.
    pub(super) fn pressed(&mut self) {
        if self.pressure.is_none() {
            return;
        }
        self.rest_later();
        self.those(|vm| vm.rests).into_iter().for_each(|number| self.wake(number));
    }

    /// Checks a VM that rests: its vCPUs may wait all the same, for a CPU that others share.
    pub(super) fn check_rest(&mut self, number: u64) {
        let Some(vm) = self.vms.get_mut(&number).filter(|vm| vm.rests) else { return };
        if vm.look_at_waits() > MOST_WAITED_NS {
            self.rest_later();
            self.wake(number);
        }
    }

    fn rest_later(&mut self) {
        self.dues.remove(&(self.rests_at, DueAction::Rest));
        self.rests_at = monotonic() + QUIET_NS;
        self.dues.insert((self.rests_at, DueAction::Rest));
    }

    /// Ends the rest of a VM's policy.
    fn wake(&mut self, number: u64) {
        self.vms.entry(number).and_modify(|vm| vm.rests = false);
        self.await_nothing_of(number);
        if let Err(why) = self.begin(number) {
            tracing::warn!("{why}");
            self.detach(number);
        }
    }

    /// No thread has waited for a while: policies rest.
    pub(super) fn rest(&mut self) {
        self.rests_at = 0;
        for number in self.those(|vm| vm.may_rest() && !vm.rests) {
            if let Some(vm) = self.vms.get_mut(&number) {
                vm.rests = true;
                vm.look_at_waits();
            }
            self.await_nothing_of(number);
            self.dues.insert((next_check(monotonic()), DueAction::Check(number)));
            let places = self.vms.get(&number).map_or(0, |vm| vm.vcpus.len());
            for place in 0..places {
                self.run(number, place, |port| driver::stop(port));
                self.attend(number, place);
            }
        }
    }
}
