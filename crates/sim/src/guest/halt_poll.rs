//! Polling for a halted vCPU, by the host before its thread sleeps and by the guest before it halts.

use vcoop_policy::config::{GuestPollConfig, HostPollConfig};
use vcoop_policy::{GuestHaltPoll, HostHaltPoll, Idle};

use crate::queue::Ns;

/// The host's polling for one vCPU. `Ns::MAX` stands for no time.
#[derive(Debug)]
pub(crate) struct HostPoll {
    policy: HostHaltPoll,
    halted_at: Ns,
    /// End of the poll.
    until: Ns,
    /// Time polled so far.
    polled: Ns,
}

impl HostPoll {
    pub(crate) fn new(config: HostPollConfig) -> Self {
        Self { policy: HostHaltPoll::new(config), halted_at: Ns::MAX, until: Ns::MAX, polled: 0 }
    }

    /// The vCPU halts. Returns whether to poll.
    pub(crate) fn halts(&mut self, now: Ns) -> bool {
        self.halted_at = now;
        self.polled = 0;
        let ns = self.policy.ns();
        if ns > 0 {
            self.until = now + ns;
        }
        ns > 0
    }

    /// End of the poll.
    pub(crate) fn until(&self) -> Ns {
        self.until
    }

    /// It has polled for `ns`, and may go on.
    pub(crate) fn polled(&mut self, ns: Ns) {
        self.polled += ns;
    }

    /// The poll is over. Returns its length.
    pub(crate) fn ends(&mut self) -> Ns {
        self.until = Ns::MAX;
        std::mem::take(&mut self.polled)
    }

    /// Whether the host saw it halt.
    pub(crate) fn is_halted(&self) -> bool {
        self.halted_at != Ns::MAX
    }

    /// For how long it has been halted, if it is.
    pub(crate) fn halted(&self, now: Ns) -> Ns {
        now.saturating_sub(self.halted_at)
    }

    /// The vCPU goes on. Returns how long it was halted.
    pub(crate) fn goes_on(&mut self, now: Ns) -> Ns {
        let halted = now - std::mem::replace(&mut self.halted_at, Ns::MAX).min(now);
        self.policy.halted(halted, true);
        halted
    }
}

/// State of a guest's haltpoll governor for one vCPU, or begin of an endless poll. `Ns::MAX` stands for no time.
#[derive(Debug)]
pub(crate) struct GuestPoll {
    policy: GuestHaltPoll,
    halted_at: Ns,
    /// When the poll began.
    since: Ns,
}

impl GuestPoll {
    pub(crate) fn new(config: GuestPollConfig) -> Self {
        Self { policy: GuestHaltPoll::new(config), halted_at: Ns::MAX, since: Ns::MAX }
    }

    /// Whether the vCPU polls.
    pub(crate) fn is_polling(&self) -> bool {
        self.since != Ns::MAX
    }

    /// Begins to poll, unless it polls already.
    pub(crate) fn begins(&mut self, now: Ns) -> bool {
        let begins = !self.is_polling();
        if begins {
            self.since = now;
        }
        begins
    }

    /// There is nothing to run. Returns what to do, and the length of a poll that just ended without work.
    pub(crate) fn idles(&mut self, now: Ns) -> (Idle, Option<Ns>) {
        self.wakes(now);
        let mut lost = None;
        if self.is_polling() {
            let left = (self.since + self.policy.limit()).saturating_sub(now);
            if left > 0 {
                return (Idle::Poll(left), None);
            }
            lost = Some(self.ends(now, false));
        }
        let choice = self.policy.select();
        if choice == Idle::Halt {
            self.halted_at = now;
        }
        (choice, lost)
    }

    /// For how long the vCPU has polled, if it polls.
    pub(crate) fn polled(&self, now: Ns) -> Ns {
        now.saturating_sub(self.since)
    }

    /// There is work. Returns the length of the poll that it ended.
    pub(crate) fn work_comes(&mut self, now: Ns) -> Option<Ns> {
        self.wakes(now);
        self.is_polling().then(|| self.ends(now, true))
    }

    fn wakes(&mut self, now: Ns) {
        let halted_at = std::mem::replace(&mut self.halted_at, Ns::MAX);
        if halted_at != Ns::MAX {
            self.policy.halted(now - halted_at);
        }
    }

    fn ends(&mut self, now: Ns, won: bool) -> Ns {
        self.policy.polled(!won);
        now - std::mem::replace(&mut self.since, Ns::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_polls_again_after_a_halt_that_was_short() {
        let mut poll = HostPoll::new(HostPollConfig::KVM);
        assert!(!poll.halts(1_000) && poll.is_halted(), "it has not learnt anything yet");
        assert_eq!(poll.goes_on(51_000), 50_000);
        assert!(!poll.is_halted());
        assert!(poll.halts(100_000));
        let ns = poll.until() - 100_000;
        assert!((1..=200_000).contains(&ns), "{ns}");
        poll.polled(300);
        poll.polled(200);
        assert_eq!((poll.ends(), poll.until()), (500, Ns::MAX));
    }

    #[test]
    fn a_guest_polls_for_its_limit_and_then_halts() {
        let mut poll = GuestPoll::new(GuestPollConfig::LINUX);
        let mut now = 0;
        // Short halts make it poll.
        let ns = loop {
            match poll.idles(now) {
                (Idle::Halt, None) => now += 20_000,
                (Idle::Poll(ns), None) => break ns,
                other => panic!("{other:?}"),
            }
            assert_eq!(poll.work_comes(now), None);
            assert!(now < 10_000_000, "it never polls");
        };
        assert!(poll.begins(now) && !poll.begins(now + 1));
        assert_eq!(poll.idles(now + ns - 5), (Idle::Poll(5), None));
        assert_eq!(poll.idles(now + ns), (Idle::Halt, Some(ns)), "and what it polled was lost");
        assert!(!poll.is_polling());
        poll.begins(now + 2 * ns);
        assert_eq!(poll.work_comes(now + 2 * ns + 7), Some(7));
    }
}
