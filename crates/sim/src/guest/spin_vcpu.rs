//! How a vCPU spins, and the host's state about that.

use vcoop_model::plan::virt::Candidates;

use crate::queue::Ns;

/// Remaining time of a wait that only others end.
pub(crate) const UNBOUNDED: Ns = 1 << 50;

/// An IPI sent longer ago is not pending any more (`ipi_window_ns` of the posting).
const IPI_WINDOW: Ns = 50_000_000;

/// What a task waits for while it keeps its vCPU busy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Spin {
    /// Nothing: its own work.
    #[default]
    No,
    /// A spinlock.
    Lock(u32),
    /// A sleeping lock.
    Sleeping(u32),
    /// Other vCPUs that are to call a function.
    Calls,
    /// A timer's interrupt.
    Timer,
    /// Others at a barrier.
    Barrier,
}

/// What ends a period of spinning, unless something else does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum SpinEnd {
    #[default]
    Open,
    /// The hardware: a PLE exit.
    Window,
    /// The threshold of a pv lock.
    Threshold,
    /// It sees that a vCPU that it waits for has no pCPU.
    Away,
    /// The limit for spinning for a lock with readers, or at a barrier.
    Patience,
}

/// What KVM sees of a vCPU that a spinning one may yield to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct YieldTarget {
    /// It last left guest mode in its kernel.
    pub(crate) in_kernel: bool,
    /// An interrupt waits for it.
    pub(crate) interrupted: bool,
    /// The spinning vCPU has sent it an IPI that may be pending.
    pub(crate) awaited: bool,
    /// No other candidate was found: it is enough that it was preempted.
    pub(crate) relaxed: bool,
}

/// How a vCPU spins, and the host's state about that.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SpinVcpu {
    /// It halts, or is about to, for a pv lock.
    parks: bool,
    /// It was kicked, and need not halt.
    kicked: bool,
    /// The task that released its lock has seen that it halts, and kicks it.
    kick_sent: bool,
    /// It was preempted, not woken.
    preempted: bool,
    /// Its guest is told that it is preempted.
    told: bool,
    /// vCPU (of the VM) to which it yielded while spinning, if it has not run since.
    in_loop: Option<u32>,
    /// A vCPU that spun is yielded to only every other time: whether it is its turn.
    eligible: bool,
    /// vCPU to which it confers its time, until it loses its pCPU.
    pub(crate) confers_to: Option<u32>,
    /// When it last got or lost a pCPU.
    switched_at: Ns,
    /// When it last searched for a vCPU to yield to.
    searched_at: Ns,
    /// vCPU (of the VM) to which it last sent an IPI alone, and when, if that IPI may be pending.
    ipi_to: Option<(u32, Ns)>,
    /// vCPU (of the VM) that last sent such an IPI to it.
    ipi_from: Option<u32>,
    spell: SpinEnd,
    /// Time until the next PLE exit.
    window: Ns,
}

impl SpinVcpu {
    /// Whether it halts, or is about to, for a pv lock.
    pub(crate) fn parks(&self) -> bool {
        self.parks
    }

    /// Whether it has been kicked and need not halt; consumes the kick.
    pub(crate) fn take_kick(&mut self) -> bool {
        std::mem::take(&mut self.kicked)
    }

    /// The same, without consuming the kick.
    pub(crate) fn is_kicked(&self) -> bool {
        self.parks && self.kicked
    }

    /// A halt at a pv lock is over, whatever ended it. True if there was one.
    pub(crate) fn unparks(&mut self) -> bool {
        let parks = std::mem::take(&mut self.parks);
        if parks {
            (self.kicked, self.kick_sent) = (false, false);
        }
        parks
    }

    /// Whether the task that releases its lock has to kick it. One kick is enough for a halt: the word of the lock says
    /// that its head halts, and the release clears it.
    pub(crate) fn needs_kick(&mut self) -> bool {
        !std::mem::replace(&mut self.kick_sent, true)
    }

    /// Kicks it: it need not halt.
    pub(crate) fn kick(&mut self) {
        self.kicked = true;
    }

    /// It has lost its pCPU while runnable. `told`: its guest is told so.
    pub(crate) fn preempted(&mut self, now: Ns, told: bool) {
        (self.preempted, self.told) = (true, told);
        self.switched_at = now;
    }

    /// Whether it got or lost a pCPU since a time.
    pub(crate) fn was_switched_since(&self, then: Ns) -> bool {
        self.switched_at > then
    }

    /// It searches for a vCPU to yield to. Returns when it last did so.
    pub(crate) fn searches(&mut self, now: Ns) -> Ns {
        std::mem::replace(&mut self.searched_at, now)
    }

    /// Whether it has lost its pCPU while runnable.
    pub(crate) fn is_preempted(&self) -> bool {
        self.preempted
    }

    /// Whether its guest is told that it is preempted.
    pub(crate) fn is_told(&self) -> bool {
        self.told
    }

    /// It yielded to a vCPU (of the VM) while spinning.
    pub(crate) fn yielded(&mut self, to: u32) {
        self.in_loop = Some(to);
    }

    /// It goes on after a yield. Returns to which vCPU (of the VM) it yielded.
    pub(crate) fn leaves_loop(&mut self) -> Option<u32> {
        self.eligible = false;
        self.in_loop.take()
    }

    /// It has a pCPU: resets the state of its absence.
    pub(crate) fn loaded(&mut self, now: Ns, window: Ns) {
        (self.window, self.switched_at) = (window, now);
        (self.preempted, self.told) = (false, false);
        self.confers_to = None;
    }

    /// A PAUSE loop has used up its window: the next one is longer.
    pub(crate) fn widen(&mut self, by: Ns, longest: Ns) {
        self.window = (self.window * by).min(longest);
    }

    /// Whether a spinning vCPU may yield to it by these rules, if it could run.
    pub(crate) fn may_be_yielded_to(&self, rules: Candidates, seen: YieldTarget) -> bool {
        match self.preempted {
            _ if seen.relaxed => self.preempted,
            _ if rules.ipi && (seen.awaited || seen.interrupted) => true,
            true => !rules.in_kernel || rules.interrupted && seen.interrupted || seen.in_kernel,
            false => rules.woken && !rules.ipi,
        }
    }

    /// It sends an IPI to one vCPU (of the VM).
    pub(crate) fn sends_ipi(&mut self, to: u32, now: Ns) {
        self.ipi_to = Some((to, now));
    }

    /// It is sent an IPI by a vCPU (of the VM).
    pub(crate) fn is_sent_ipi(&mut self, from: u32) {
        self.ipi_from = Some(from);
    }

    /// Whether an IPI that it has sent to a vCPU (of the VM) may be pending.
    pub(crate) fn awaits(&self, to: u32, now: Ns) -> bool {
        self.ipi_to.is_some_and(|(sent_to, at)| sent_to == to && now - at <= IPI_WINDOW)
    }

    /// The IPI that it has sent is not pending any more.
    pub(crate) fn is_answered(&mut self) {
        self.ipi_to = None;
    }

    /// It ends an interrupt. Returns the vCPU (of the VM) that last sent it an IPI alone. All that is known of its own
    /// IPI is forgotten, too.
    pub(crate) fn ends_irq(&mut self) -> Option<u32> {
        self.ipi_to = None;
        self.ipi_from.take()
    }

    /// Whether it is its turn to be yielded to: every other time for a vCPU that spun itself.
    pub(crate) fn takes_turn(&mut self) -> bool {
        let eligible = self.in_loop.is_none() || self.eligible;
        self.eligible ^= self.in_loop.is_some();
        eligible
    }

    /// Begins to spin until the hardware's window ends, or the guest's kernel stops after a time. Returns for how long.
    pub(crate) fn spell(&mut self, limit: Option<(Ns, SpinEnd)>, exits: bool) -> Ns {
        let mut ends = (UNBOUNDED, SpinEnd::Open);
        if let Some((left, by)) = limit {
            ends = (left.max(1), by);
        }
        if exits && self.window < ends.0 {
            ends = (self.window, SpinEnd::Window);
        }
        self.spell = ends.1;
        ends.0
    }

    /// A period of spinning is over. Returns what ended it. A vCPU that has used up its threshold halts.
    pub(crate) fn spell_ends(&mut self) -> SpinEnd {
        self.parks |= self.spell == SpinEnd::Threshold;
        self.spell
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spell_ends_at_what_comes_first() {
        let halts = |left| Some((left, SpinEnd::Threshold));
        let mut spin = SpinVcpu::default();
        spin.loaded(0, 50);
        assert_eq!((spin.spell(None, false), spin.spell), (UNBOUNDED, SpinEnd::Open));
        assert_eq!((spin.spell(halts(0), false), spin.spell), (1, SpinEnd::Threshold));
        assert_eq!((spin.spell(halts(40), true), spin.spell), (40, SpinEnd::Threshold));
        assert_eq!((spin.spell(halts(60), true), spin.spell), (50, SpinEnd::Window));
        spin.widen(2, 150);
        assert_eq!(spin.spell(None, true), 100);
        spin.widen(2, 150);
        assert_eq!(spin.spell(None, true), 150);
    }

    #[test]
    fn one_kick_is_enough_for_a_halt() {
        let mut spin = SpinVcpu { parks: true, ..SpinVcpu::default() };
        assert_eq!([spin.needs_kick(), spin.needs_kick()], [true, false]);
        assert!(spin.unparks());
        spin.parks = true;
        assert!(spin.needs_kick(), "it halts again");
    }

    #[test]
    fn one_that_spun_itself_is_yielded_to_every_other_time() {
        let mut spin = SpinVcpu::default();
        spin.yielded(3);
        let turns: Vec<bool> = (0..4).map(|_| spin.takes_turn()).collect();
        assert_eq!(turns, [false, true, false, true]);
        assert_eq!([spin.leaves_loop(), spin.leaves_loop()], [Some(3), None]);
        assert!(spin.takes_turn() && spin.takes_turn());
    }

    #[test]
    fn a_yield_is_known_when_it_returns() {
        let mut spin = SpinVcpu::default();
        spin.yielded(3);
        spin.preempted(0, false);
        assert!(!spin.takes_turn(), "it is in the loop while it has no pCPU");
        spin.loaded(1, 1);
        assert_eq!([spin.leaves_loop(), spin.leaves_loop()], [Some(3), None]);
        assert!(spin.takes_turn());
    }

    #[test]
    fn an_ipi_is_awaited_until_its_target_ends_an_interrupt_or_it_is_old() {
        let (mut sender, mut target) = (SpinVcpu::default(), SpinVcpu::default());
        sender.sends_ipi(7, 100);
        target.is_sent_ipi(3);
        assert!(sender.awaits(7, 100 + IPI_WINDOW));
        assert!(!sender.awaits(7, 101 + IPI_WINDOW), "too old");
        assert!(!sender.awaits(6, 100), "to another vCPU");
        assert_eq!([target.ends_irq(), target.ends_irq()], [Some(3), None]);
        sender.is_answered();
        assert!(!sender.awaits(7, 100));
        sender.sends_ipi(7, 100);
        sender.ends_irq();
        assert!(!sender.awaits(7, 100), "an interrupt of its own hides what it sent");
    }

    #[test]
    fn with_ipis_tracked_a_woken_vcpu_is_no_candidate_and_any_preempted_one_is_the_last_resort() {
        let rules = Candidates { ipi: true, ..Candidates::default() };
        let woken = SpinVcpu::default();
        let preempted = SpinVcpu { preempted: true, ..woken };
        let none = YieldTarget::default();
        let awaited = YieldTarget { awaited: true, ..none };
        let relaxed = YieldTarget { relaxed: true, ..none };
        let may = |seen| [woken, preempted].map(|spin| spin.may_be_yielded_to(rules, seen));
        assert_eq!(may(none), [false, false]);
        assert_eq!(may(awaited), [true, true]);
        assert_eq!(may(YieldTarget { interrupted: true, ..none }), [true, true]);
        assert_eq!(may(YieldTarget { in_kernel: true, ..none }), [false, true]);
        assert_eq!(may(relaxed), [false, true]);
    }

    #[test]
    fn rules_say_to_whom_a_spinner_yields() {
        let rules = |in_kernel, later| Candidates {
            in_kernel,
            woken: later,
            interrupted: later,
            ..Candidates::default()
        };
        let woken = SpinVcpu::default();
        let preempted = SpinVcpu { preempted: true, ..woken };
        let may = |spin: SpinVcpu, rules, state: (bool, bool)| {
            let (in_kernel, interrupted) = state;
            spin.may_be_yielded_to(
                rules,
                YieldTarget { in_kernel, interrupted, ..YieldTarget::default() },
            )
        };
        assert!(may(preempted, rules(false, false), (false, false)));
        assert!(!may(preempted, rules(true, false), (false, true)));
        assert!(may(preempted, rules(true, false), (true, false)));
        assert!(may(preempted, rules(true, true), (false, true)), "as good as in its kernel");
        assert!(!may(woken, rules(false, false), (true, true)));
        assert!(may(woken, rules(false, true), (false, false)));
    }
}
