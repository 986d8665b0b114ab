//! Polling instead of sleeping: in the host for a vCPU that has halted, and in the guest before it halts.
//!
//! Both adapt the length of the poll to the length of the waits. The poll grows after a wait that a longer poll would
//! have covered, and shrinks after a wait that is longer than any poll may be.

use crate::config::{GuestPollConfig, HostPollConfig, Ns};

/// How long the host polls for one vCPU: KVM's rules (`kvm_vcpu_halt`, `grow_halt_poll_ns`,
/// `shrink_halt_poll_ns` in `virt/kvm/kvm_main.c`; Documentation/virt/kvm/halt-polling.rst), or the same at
/// every halt, as it was until Linux 4.2.
///
/// The caller polls for [`HostHaltPoll::ns`], and only while no other task wants the CPU. Afterwards it reports how
/// long the vCPU was halted, from HLT until it went on, whether or not the poll caught the wake-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostHaltPoll {
    config: HostPollConfig,
    now: Ns,
}

impl HostHaltPoll {
    /// A vCPU that has not polled yet.
    pub const fn new(config: HostPollConfig) -> Self {
        Self { config, now: if config.fixed { config.max_ns } else { 0 } }
    }

    /// Whether this vCPU can ever poll.
    pub const fn is_on(&self) -> bool {
        self.config.max_ns > 0
    }

    /// How long to poll for the next halt; 0: not at all.
    pub const fn ns(&self) -> Ns {
        self.now
    }

    /// A halt of `halt_ns` has ended. `valid`: there was an event for the vCPU (on x86 there always is).
    pub fn halted(&mut self, halt_ns: Ns, valid: bool) {
        let most = self.config.max_ns;
        if self.config.fixed {
            return;
        }
        if !valid {
            self.shrink();
        } else if most == 0 {
            self.now = 0;
        } else if halt_ns <= self.now {
            // The poll was long enough.
        } else if self.now > 0 && halt_ns > most {
            self.shrink();
        } else if self.now < most && halt_ns < most {
            self.grow();
        }
    }

    fn grow(&mut self) {
        let c = &self.config;
        if c.grow > 0 {
            self.now = grown(self.now, c.grow, c.grow_start_ns, c.max_ns);
        }
    }

    fn shrink(&mut self) {
        self.now = shrunk(self.now, self.config.shrink, self.config.grow_start_ns);
    }
}

/// A longer poll: times `by`, from `start` on, up to `most`.
fn grown(ns: Ns, by: u32, start: Ns, most: Ns) -> Ns {
    ns.saturating_mul(u64::from(by)).max(start).min(most)
}

/// A shorter poll: one `by`th, and 0 below `start`.
fn shrunk(ns: Ns, by: u32, start: Ns) -> Ns {
    let shrunk = ns.checked_div(u64::from(by)).unwrap_or(0);
    if shrunk < start { 0 } else { shrunk }
}

/// What a guest's idle vCPU is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// Halt.
    Halt,
    /// Poll for so many nanoseconds.
    Poll(Ns),
}

/// How long a guest polls on one vCPU: the rules of Linux's haltpoll governor
/// (`drivers/cpuidle/governors/haltpoll.c`; Documentation/virt/guest-halt-polling.rst).
///
/// The caller asks what to do each time its idle loop comes round, and reports the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestHaltPoll {
    config: GuestPollConfig,
    limit: Ns,
    /// The last poll ended without work.
    timed_out: bool,
}

impl GuestHaltPoll {
    /// A vCPU that has not idled yet: it halts first.
    pub const fn new(config: GuestPollConfig) -> Self {
        Self { config, limit: 0, timed_out: false }
    }

    /// The longest poll at present.
    pub const fn limit(&self) -> Ns {
        self.limit
    }

    /// What to do now.
    pub const fn select(&self) -> Idle {
        if self.limit == 0 || self.timed_out { Idle::Halt } else { Idle::Poll(self.limit) }
    }

    /// A poll has ended, with work to do or because its time was over.
    pub const fn polled(&mut self, timed_out: bool) {
        self.timed_out = timed_out;
    }

    /// A halt has ended, after `block_ns`.
    pub fn halted(&mut self, block_ns: Ns) {
        let c = &self.config;
        self.timed_out = false;
        if self.limit < block_ns && block_ns <= c.max_ns {
            self.limit = grown(self.limit, c.grow, c.grow_start_ns, c.max_ns);
        } else if block_ns > c.max_ns && c.allow_shrink {
            // Since Linux 6.9 a limit below `grow_start` becomes 0.
            self.limit = shrunk(self.limit, c.shrink, c.grow_start_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Ns = 1_000;

    #[test]
    fn a_fixed_poll_is_as_long_at_every_halt() {
        let mut p = HostHaltPoll::new(HostPollConfig { fixed: true, ..HostPollConfig::KVM });
        for halt in [1, 50 * US, 10_000 * US, 199 * US] {
            assert_eq!(p.ns(), 200 * US);
            p.halted(halt, true);
        }
    }

    #[test]
    fn the_hosts_poll_grows_by_short_halts_and_shrinks_by_long_ones() {
        let mut p = HostHaltPoll::new(HostPollConfig::KVM);
        assert!(p.is_on() && p.ns() == 0, "nothing is known yet");
        let mut seen = [0; 7];
        for ns in &mut seen {
            p.halted(199 * US, true);
            *ns = p.ns() / US;
        }
        assert_eq!(seen, [10, 20, 40, 80, 160, 200, 200], "times 2 from 10 us, up to the cap");
        p.halted(200 * US, true);
        assert_eq!(p.ns(), 200 * US, "as long as the poll");
        let mut seen = [0; 6];
        for ns in &mut seen {
            p.halted(201 * US, true);
            *ns = p.ns();
        }
        assert_eq!(seen, [100_000, 50_000, 25_000, 12_500, 0, 0], "halves, to nothing below 10 us");
    }

    #[test]
    fn a_halt_that_the_poll_would_have_caught_changes_nothing() {
        let mut p = HostHaltPoll::new(HostPollConfig::KVM);
        (0..3).for_each(|_| p.halted(150 * US, true));
        assert_eq!(p.ns(), 40 * US);
        p.halted(40 * US, true);
        assert_eq!(p.ns(), 40 * US);
        p.halted(200 * US, true);
        assert_eq!(p.ns(), 40 * US, "as long as the cap: neither");
        p.halted(41 * US, true);
        assert_eq!(p.ns(), 80 * US);
        p.halted(1, false);
        assert_eq!(p.ns(), 40 * US, "an invalid wake-up shrinks");
    }

    #[test]
    fn the_hosts_parameters_count() {
        let with = |config| HostHaltPoll::new(config);
        let mut p = with(HostPollConfig::OFF);
        (0..9).for_each(|_| p.halted(US, true));
        assert!(!p.is_on() && p.ns() == 0);
        let mut p = with(HostPollConfig { grow: 0, ..HostPollConfig::KVM });
        p.halted(US, true);
        assert_eq!(p.ns(), 0, "it does not grow");
        let mut p = with(HostPollConfig { shrink: 0, ..HostPollConfig::KVM });
        (0..6).for_each(|_| p.halted(150 * US, true));
        p.halted(201 * US, true);
        assert_eq!(p.ns(), 0, "to nothing at once");
        let mut p = with(HostPollConfig { grow_start_ns: 900 * US, ..HostPollConfig::KVM });
        p.halted(US, true);
        assert_eq!(p.ns(), 200 * US, "never above the cap");
    }

    #[test]
    fn the_guests_poll_follows_its_halts_only() {
        let mut p = GuestHaltPoll::new(GuestPollConfig::LINUX);
        assert_eq!(p.select(), Idle::Halt, "nothing is known yet");
        p.halted(30 * US);
        assert_eq!(p.select(), Idle::Poll(50 * US));
        p.polled(false);
        assert_eq!(p.select(), Idle::Poll(50 * US), "a poll that won says: again");
        p.polled(true);
        assert_eq!(p.select(), Idle::Halt, "one that lost: not now");
        p.halted(60 * US);
        assert_eq!(p.select(), Idle::Poll(100 * US));
        p.polled(true);
        p.halted(100 * US);
        assert_eq!(p.limit(), 100 * US, "no longer than the poll: it was late by itself");
        (0..3).for_each(|_| p.halted(200 * US));
        assert_eq!(p.limit(), 200 * US);
        (0..3).for_each(|_| p.halted(201 * US));
        assert_eq!(p.limit(), 0, "halved by each, to nothing below 50 us");
        (0..2).for_each(|_| p.halted(199 * US));
        let mut fixed = p;
        fixed.config.allow_shrink = false;
        fixed.halted(9_000 * US);
        assert_eq!(fixed.limit(), 100 * US);
        p.config.shrink = 0;
        p.halted(201 * US);
        assert_eq!((p.limit(), p.select()), (0, Idle::Halt));
    }
}
