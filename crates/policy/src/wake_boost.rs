//! `wake-boost`: a vCPU is boosted while halted, and for a bounded run after its wake-up. The guest does not take part,
//! so this works with any guest, but the policy cannot know whether a wake-up is urgent.

use crate::action::Actions;
use crate::config::{Ns, WakeBoostConfig};
use crate::control::Control;
use crate::event::Event;
use crate::vm_shared::VmShared;

/// The machine of one vCPU.
///
/// | state | event | then |
/// | --- | --- | --- |
/// | `Normal` | `Halted` | `Boosted`: the coming wake-up finds a thread that outranks the host's load |
/// | `Boosted`, halted | `Woken` | the run begins; it is charged from here on |
/// | `Boosted`, awake | `run_ns` since the wake-up, or budget empty | `Normal`, or `Throttled` |
/// | `Boosted`, awake | `Halted` | stays boosted, no longer charged |
/// | `Normal`, awake | `Injected`, if [asked](WakeBoostConfig::boost_on_injection) | `Boosted`: a run begins |
///
/// The run is wall time since the wake-up, including waits for the pCPU: it bounds how long the host can be held up,
/// not how much the guest gets done. It gets shorter as the budget runs out, down to an eighth: a short boost for each
/// wake-up serves most of them, while whole runs for some leave the others to wait until the budget has recovered. Most
/// of a run of a vCPU that is awake goes to work that is not urgent, so its runs also get shorter as a debt grows
/// ([`repay`](crate::repay)). Everything else is as in `dynamic` (the transition table is that of the private
/// `Control`).
#[derive(Clone, Debug)]
pub struct WakeBoost {
    config: WakeBoostConfig,
    control: Control,
    attached: bool,
    /// End of the current or the last run; `None` while halted.
    run_end: Option<Ns>,
}

impl WakeBoost {
    /// Disabled, awake, with a full bucket, at time `now`.
    pub fn new(config: WakeBoostConfig, now: Ns) -> Self {
        let control = Control::new(
            config.means,
            config.vcpu_budget,
            None,
            false,
            config.repay,
            config.rest_slice_ns,
            now,
        );
        Self { config, control, attached: true, run_end: None }
    }

    /// What happened at time `now`, and what to do about it.
    pub(crate) fn answer(&mut self, now: Ns, event: Event, vm: &mut VmShared, out: &mut Actions) {
        self.control.settle(now, vm);
        match event {
            Event::Enable => self.switch(now, vm, out),
            Event::Attached(attached) => {
                self.attached = attached;
                self.control.awake();
                self.switch(now, vm, out);
            }
            Event::Baseline { outranks } => self.control.set_outranked(outranks, vm, out),
            Event::Refused => self.control.refused(vm, out),
            Event::Halted(_) => {
                self.control.halt(vm, out);
                self.run_end = None;
                self.control.boost(now, vm, out);
            }
            Event::Woken => {
                self.control.wake(now, vm, out);
                self.run_end = Some(self.end_of_run(now, 0, vm));
            }
            Event::Injected(_) if self.config.boost_on_injection => {
                if self.control.boost(now, vm, out) {
                    let owed = self.control.owed_halvings();
                    self.run_end = Some(self.end_of_run(now, owed, vm));
                }
            }
            Event::Timer => self.timer(now, vm, out),
            Event::Ran(account) => self.control.ran(account, out),
            Event::Registered(_)
            | Event::Injected(_)
            | Event::Asked
            | Event::Exit(_)
            | Event::Sampled(_)
            | Event::Recheck(_)
            | Event::Notify(_)
            | Event::NotifySampled(_) => {}
        }
        if self.control.lost_timer(now, out) {
            self.timer(now, vm, out);
        }
        self.control.arm(now, self.run_end, vm, out);
    }

    fn end_of_run(&self, now: Ns, halvings: u32, vm: &VmShared) -> Ns {
        now.saturating_add(self.config.run_ns >> self.control.halvings(vm).max(halvings))
    }

    fn timer(&mut self, now: Ns, vm: &mut VmShared, out: &mut Actions) {
        if self.run_end.is_some_and(|end| end <= now) {
            self.control.end(true, vm, out);
        }
        self.control.on_timer(now, vm, out);
    }

    fn switch(&mut self, now: Ns, vm: &mut VmShared, out: &mut Actions) {
        self.control.set_enabled(now, self.attached && vm.is_on(), true, vm, out);
    }

    /// Its boost.
    pub(crate) fn control(&self) -> &Control {
        &self.control
    }
}

#[cfg(test)]
mod tests {
    use vcoop_abi::{GuestWords, Status};

    extern crate std;

    use super::WakeBoost;
    use crate::action::{Action, Actions, Reason, Rest};
    use crate::config::{Budget, Means, Ns, WakeBoostConfig};
    use crate::event::{Event, Injection};
    use crate::govern::CpuTime;
    use crate::repay::{ACCOUNT_NS, LEARNING_NS};
    use crate::vm_shared::VmShared;

    const BUDGET: Budget = Budget { burst_ns: 3_000_000, refill_ppm: 250_000 };
    const HALT: Event = Event::Halted(GuestWords::SILENT);

    impl WakeBoost {
        fn on(&mut self, now: Ns, event: Event, vm: &mut VmShared) -> Actions {
            let mut out = Actions::new();
            self.answer(now, event, vm, &mut out);
            out
        }
    }

    fn rig(run_ns: Ns) -> (WakeBoost, VmShared) {
        let config = WakeBoostConfig {
            means: Means::Fifo(1),
            run_ns,
            vcpu_budget: BUDGET,
            vm_budget: BUDGET,
            boost_on_injection: true,
            repay: false,
            rest_slice_ns: None,
        };
        let (mut w, mut vm) = (WakeBoost::new(config, 0), VmShared::new(BUDGET, 0));
        assert!(w.on(0, Event::Enable, &mut vm).is_empty(), "the guest is told nothing");
        (w, vm)
    }

    #[test]
    fn boosted_while_halted_and_for_a_run_after_the_wake_up() {
        let (mut w, mut vm) = rig(200_000);
        assert_eq!(*w.on(0, HALT, &mut vm), [Action::Boost(Means::Fifo(1))]);
        let out = w.on(5_000_000, Event::Woken, &mut vm);
        assert_eq!(*out, [Action::ArmTimer(5_200_000)]);
        let out = w.on(5_200_000, Event::Timer, &mut vm);
        assert_eq!(*out, [Action::Restore]);
        assert_eq!(w.control.stats().boosted_ns, 200_000);
    }

    #[test]
    fn each_wake_up_has_a_run_of_its_own() {
        let (mut w, mut vm) = rig(200_000);
        w.on(0, HALT, &mut vm);
        w.on(100_000, Event::Woken, &mut vm);
        // Halts before its run is over: no timer is left to wake an idle pCPU.
        assert_eq!(*w.on(150_000, HALT, &mut vm), [Action::CancelTimer]);
        assert_eq!(*w.on(250_000, Event::Woken, &mut vm), [Action::ArmTimer(450_000)]);
        // A timer that was on its way all the same must not end the second run.
        assert_eq!(*w.on(300_000, Event::Timer, &mut vm), []);
        assert_eq!(w.control.status(), Status::Boosted);
        w.on(450_000, Event::Timer, &mut vm);
        assert_eq!((w.control.status(), w.control.stats().boosted_ns), (Status::Normal, 250_000));
    }

    #[test]
    #[cfg_attr(miri, ignore = "seconds of a vCPU's life, minutes of the interpreter's")]
    fn a_run_longer_than_the_budget_is_throttled() {
        let (mut w, mut vm) = rig(1_000_000_000);
        w.on(0, HALT, &mut vm);
        let mut now = 0;
        w.on(now, Event::Woken, &mut vm);
        while w.control.status() == Status::Boosted {
            now += 1_000;
            w.on(now, Event::Timer, &mut vm);
        }
        assert_eq!(w.control.status(), Status::Throttled);
        assert!(now <= 4_000_000, "{now}");
        assert!(w.on(now, HALT, &mut vm).iter().all(|a| !matches!(a, Action::Boost(_))));
    }

    #[test]
    fn an_interrupt_for_one_that_is_awake_begins_a_run_if_asked() {
        let (mut w, mut vm) = rig(200_000);
        w.on(0, HALT, &mut vm);
        w.on(0, Event::Woken, &mut vm);
        let timer = Event::Injected(Injection::Timer);
        assert!(w.on(100_000, timer, &mut vm).is_empty(), "a run is under way");
        assert_eq!(*w.on(200_000, Event::Timer, &mut vm), [Action::Restore]);
        let out = w.on(900_000, timer, &mut vm);
        assert_eq!(*out, [Action::Boost(Means::Fifo(1)), Action::ArmTimer(1_100_000)]);
        assert_eq!(*w.on(1_100_000, Event::Timer, &mut vm), [Action::Restore]);
        assert_eq!(w.control.stats().boosted_ns, 400_000);
        w.config.boost_on_injection = false;
        assert!(w.on(1_200_000, timer, &mut vm).is_empty());
    }

    /// The end of a run that begins now. It may have to renew its lease on the VM's budget on the way.
    fn end_of_run(w: &mut WakeBoost, now: Ns, vm: &mut VmShared) -> Ns {
        w.on(now, HALT, vm);
        let mut out = w.on(now, Event::Woken, vm);
        loop {
            let [Action::ArmTimer(at)] = *out else { panic!("{out:?}") };
            out = w.on(at, Event::Timer, vm);
            if w.control.status() == Status::Normal {
                return at;
            }
        }
    }

    /// One whole run after the other would use the budget up, and leave later wake-ups without.
    #[test]
    fn runs_get_shorter_with_the_budget() {
        let (mut w, mut vm) = rig(500_000);
        let starts = (1..200).map(|ms| ms * 1_000_000);
        let runs: std::vec::Vec<Ns> =
            starts.map(|now| end_of_run(&mut w, now, &mut vm) - now).collect();
        assert_eq!(runs[0], 500_000);
        assert!(runs.iter().all(|run| [500_000, 250_000, 125_000, 62_500].contains(run)));
        // A quarter of the time is what the budget refills.
        let mean = runs[100..].iter().sum::<Ns>() / 99;
        assert!((240_000..=260_000).contains(&mean), "{mean}");
        assert_eq!(w.control.stats().throttles, 0);
    }

    /// It first sees what the vCPU has beside an equal. Later the vCPU has much more than its due.
    fn indebted() -> (WakeBoost, Ns, VmShared) {
        let (mut w, mut vm) = rig(500_000);
        w = WakeBoost::new(WakeBoostConfig { repay: true, ..w.config }, 0);
        w.on(0, Event::Enable, &mut vm);
        let half = CpuTime { busy_ns: ACCOUNT_NS / 2, steal_ns: ACCOUNT_NS / 2 };
        for now in (0..LEARNING_NS).step_by(ACCOUNT_NS as usize) {
            assert_eq!(*w.on(now, HALT, &mut vm), [Action::Denied(Reason::Learning)]);
            w.on(now, Event::Woken, &mut vm);
            assert!(w.on(now + ACCOUNT_NS, Event::Ran(half), &mut vm).is_empty());
        }
        let most = CpuTime { busy_ns: ACCOUNT_NS * 9 / 10, steal_ns: ACCOUNT_NS / 10 };
        let mut now = LEARNING_NS;
        assert_eq!(end_of_run(&mut w, now, &mut vm), now + 500_000);
        for _ in 0..5 {
            now += ACCOUNT_NS;
            w.on(now, Event::Ran(most), &mut vm);
        }
        assert!(w.control.rest().levels > 0);
        (w, now, vm)
    }

    #[test]
    fn who_owes_has_shorter_runs_unless_it_has_slept() {
        let (mut w, mut now, mut vm) = indebted();
        assert_eq!(end_of_run(&mut w, now, &mut vm), now + 500_000);
        now += 1_000_000;
        let awake = w.on(now, Event::Injected(Injection::Timer), &mut vm);
        let run = awake.iter().find_map(|action| match action {
            Action::ArmTimer(at) => Some(at - now),
            _ => None,
        });
        assert!(run.is_some_and(|run| run < 500_000 / 2), "{awake:?}");
    }

    #[test]
    fn a_throttled_vcpu_is_not_lowered() {
        let (mut w, mut now, mut vm) = indebted();
        let lowered = w.control.rest();
        let mut out = Actions::new();
        while w.control.status() != Status::Throttled {
            w.on(now, Event::Timer, &mut vm);
            out = w.on(now, Event::Injected(Injection::Timer), &mut vm);
            now += 125_000;
        }
        assert_eq!(w.control.rest(), Rest::default());
        assert!(out.contains(&Action::Rest(Rest::default())), "{out:?}");
        while w.control.status() == Status::Throttled {
            now += 1_000_000;
            let out = w.on(now, Event::Timer, &mut vm);
            let is_normal = w.control.status() == Status::Normal;
            assert_eq!(out.contains(&Action::Rest(lowered)), is_normal, "{out:?}");
        }
    }

    #[test]
    fn guest_words_change_nothing() {
        let (mut w, mut vm) = rig(200_000);
        let asks = GuestWords::from_raw(u64::MAX, u64::MAX, 2, 0);
        for event in [Event::Exit(asks), Event::Sampled(asks), Event::Notify(asks)] {
            assert!(w.on(10, event, &mut vm).is_empty());
        }
    }
}
