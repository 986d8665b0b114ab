//! Counters of KVM for a vCPU.

use vcoop_model::plan::virt::{GuestIdle, GuestTimer, Virt};
use vcoop_policy::config::AdvanceConfig;

use crate::guest::exit::EXIT_NAMES;
use crate::queue::Ns;

/// Exits for one reason.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Exits {
    /// How many.
    pub(crate) n: u64,
    /// Time until the guest ran again.
    pub(crate) ns: Ns,
}

/// Declares the counters, and operations on all of them.
macro_rules! counters {
    (
        $( $(#[doc = $often_doc:literal])+ $often:ident ),+;
        $( $(#[doc = $doc:literal])+ $name:ident ),+ $(,)?
    ) => {
        /// Counters of a vCPU, or of several. They never fall. Ordered so that those of the most frequent events share
        /// a cache line.
        #[derive(Clone, Copy, Debug, Default)]
        #[repr(C)]
        pub(crate) struct Counters {
            $( $(#[doc = $often_doc])+ pub(crate) $often: u64, )+
            /// By reason, in the order of [`EXIT_NAMES`].
            pub(crate) exits: [Exits; EXIT_NAMES.len()],
            $( $(#[doc = $doc])+ pub(crate) $name: u64, )+
        }

        impl Counters {
            /// Adds those of another vCPU.
            pub(crate) fn add(&mut self, other: &Self) {
                for (sum, other) in self.exits.iter_mut().zip(other.exits) {
                    sum.n += other.n;
                    sum.ns += other.ns;
                }
                $( self.$often += other.$often; )+
                $( self.$name += other.$name; )+
            }

            /// The counts since `start`.
            pub(crate) fn since(&self, start: &Self) -> Self {
                let mut since = *self;
                for (exits, before) in since.exits.iter_mut().zip(start.exits) {
                    exits.n -= before.n;
                    exits.ns -= before.ns;
                }
                $( since.$often -= start.$often; )+
                $( since.$name -= start.$name; )+
                since
            }
        }
    };
}

counters! {
    /// Interrupts made pending.
    injections,
    /// Injections that reached the running guest without an exit.
    posted;
    /// Polls of the host that caught the wake-up.
    polls_won,
    /// Polls of the host that did not.
    polls_lost,
    /// Time of polls that caught the wake-up.
    poll_won_ns,
    /// Time of the others.
    poll_lost_ns,
    /// Polls of the guest that ended with work to do.
    guest_polls_won,
    /// Polls of the guest that ended without.
    guest_polls_lost,
    /// Time of all polls of the guest.
    guest_poll_ns,
    /// Time that a pCPU rested in guest mode.
    rest_ns,
    /// Deadlines moved from the preemption timer to an hrtimer.
    hv_to_sw,
    /// Deadlines moved back.
    sw_to_hv,
    /// Deadlines that the preemption timer could not hold.
    hv_refused,
    /// Deadlines that passed while the preemption timer was stopped.
    hv_blind,
    /// Time until they were noticed.
    hv_blind_ns,
    /// Time spun away because a timer was fired early.
    advance_ns,
}

/// A scalar: metric, unit, value.
pub(crate) type NamedScalar = (String, &'static str, f64);

impl Counters {
    /// Scalars of a VM with so many vCPUs, virtualised like this, for `ns`. Counters of mechanisms that are off are
    /// left out.
    pub(crate) fn scalars(&self, virt: &Virt, vcpus: f64, ns: f64) -> Vec<NamedScalar> {
        let mut all = Vec::new();
        let seconds = ns / 1e9;
        let rate = |metric: &str, n: u64| (metric.to_owned(), "1/s", n as f64 / seconds);
        let share = |metric: &str, t: Ns| (metric.to_owned(), "%", 100.0 * t as f64 / (ns * vcpus));
        let mean = |metric: &str, t: Ns, n: u64| {
            (metric.to_owned(), "us", t as f64 / 1e3 / n.max(1) as f64)
        };
        all.push(rate("injections", self.injections));
        if virt.apic.posted {
            all.push(rate("injections.posted", self.posted));
        }
        for (i, reason) in EXIT_NAMES.iter().enumerate() {
            if self.exits[i].n > 0 || !RARE.contains(reason) {
                all.push(rate(&format!("exits.{reason}"), self.exits[i].n));
                all.push(share(&format!("exit_time.{reason}"), self.exits[i].ns));
            }
        }
        all.push(rate("exits", self.exits.iter().map(|exits| exits.n).sum()));
        if virt.idle.host_polls_in_force().max_ns > 0 {
            all.push(rate("halt_polls.won", self.polls_won));
            all.push(rate("halt_polls.lost", self.polls_lost));
            all.push(share("halt_poll", self.poll_won_ns + self.poll_lost_ns));
            all.push(share("halt_poll.lost", self.poll_lost_ns));
        }
        if matches!(virt.idle.guest, GuestIdle::Poll | GuestIdle::Haltpoll) {
            all.push(rate("guest_polls.won", self.guest_polls_won));
            all.push(rate("guest_polls.lost", self.guest_polls_lost));
            all.push(share("guest_poll", self.guest_poll_ns));
        }
        if virt.exits_off.hlt || virt.idle.guest == GuestIdle::Mwait {
            all.push(share("guest_rest", self.rest_ns));
        }
        if virt.timer.source == Some(GuestTimer::HvTimer) {
            all.push(rate("timer.hv_to_sw", self.hv_to_sw));
            all.push(rate("timer.sw_to_hv", self.sw_to_hv));
            all.push(rate("timer.hv_refused", self.hv_refused));
            all.push(rate("timer.blind", self.hv_blind));
            all.push(mean("timer.blind_time", self.hv_blind_ns, self.hv_blind));
        }
        if virt.timer.advance != AdvanceConfig::None {
            all.push(share("timer.advance_wait", self.advance_ns));
        }
        all
    }
}

/// Reasons that most VMs never have.
const RARE: [&str; 8] = [
    "register",
    "refused",
    "preemption_timer",
    "eoi",
    "interrupt_window",
    "pause",
    "hypercall",
    "msr_cstate",
];
