//! Where the time of a round trip went, as far as its five times tell.
//!
//! Between two of them lies what the crate's documentation says of any wait: from a message to the
//! kernel of the guest it is for, host time, by whether the vCPU was idle; from there to the task,
//! the guest's; to a thread of the host, its wake-up. Calls served before this one are in the way in.

use vcoop_guest::line::Served;
use vcoop_model::plan::Ns;
use vcoop_model::recording::{Part, Parts};

use crate::clock::Clock;

/// Where the other end of a line is, seen from one of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Other {
    /// On the same vCPU.
    Here,
    /// On another vCPU of the VM.
    Vcpu,
    /// On the host.
    Host,
}

/// A round trip's times, TSC; those of guests may be anything.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trip {
    pub(crate) called: u64,
    pub(crate) served: Served,
    /// When the caller's kernel woke it, if that is a guest's, and whether its vCPU was idle.
    pub(crate) woken: Option<(u64, bool)>,
    pub(crate) back: u64,
    /// Where the server is, if the caller is in a VM.
    pub(crate) server: Option<Other>,
}

impl Trip {
    /// Its parts; they add up to `latency`, which is `back - called` in nanoseconds.
    pub(crate) fn parts(&self, clock: &Clock, latency: Ns) -> Parts {
        let taken = self.served.taken.clamp(self.called, self.back);
        let done = self.served.done.clamp(taken, self.back);
        let asleep = |idle| if idle { Part::WakeToRun } else { Part::PreemptedToRun };
        let way_in = match self.server {
            // To a thread of the host: its wake-up.
            Some(Other::Host) => Part::WakeToRun,
            Some(Other::Here) => Part::GuestSwitch,
            Some(Other::Vcpu) | None => asleep(self.served.idle),
        };
        let (woken, way_back) = match (self.woken, self.server) {
            (Some((at, idle)), Some(Other::Host | Other::Vcpu)) => {
                (at.clamp(done, self.back), asleep(idle))
            }
            (Some(_), _) => (done, Part::GuestSwitch),
            (None, _) => (self.back, Part::WakeToRun),
        };
        let at = |tsc: u64| clock.to_ns(tsc - self.called).min(latency);
        let mut parts = Parts::default();
        let (a, b, c) = (at(taken), at(done), at(woken));
        parts[way_in as usize] += a;
        parts[Part::Service as usize] += b - a;
        parts[way_back as usize] += c - b;
        parts[Part::GuestSwitch as usize] += latency - c;
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::{Other, Trip};
    use crate::clock::Clock;
    use vcoop_guest::line::Served;
    use vcoop_model::recording::Part;

    fn sums(trip: &Trip) -> Vec<(Part, u64)> {
        let latency = trip.back - trip.called;
        let parts = trip.parts(&Clock::new(0, 1_000_000), latency);
        assert_eq!(parts.iter().sum::<u64>(), latency);
        let all = Part::ALL.iter().zip(parts);
        all.filter(|(_, ns)| *ns > 0).map(|(p, ns)| (*p, ns)).collect()
    }

    #[test]
    fn from_the_host_to_a_guest_and_back() {
        let served = Served { taken: 140, done: 150, idle: false };
        let trip = Trip { called: 100, served, woken: None, back: 190, server: None };
        let want = [(Part::WakeToRun, 40), (Part::PreemptedToRun, 40), (Part::Service, 10)];
        assert_eq!(sums(&trip), want);
    }

    #[test]
    fn between_vcpus() {
        let served = Served { taken: 130, done: 132, idle: true };
        let server = Some(Other::Vcpu);
        let trip = Trip { called: 100, served, woken: Some((160, true)), back: 165, server };
        let want = [(Part::WakeToRun, 30 + 28), (Part::GuestSwitch, 5), (Part::Service, 2)];
        assert_eq!(sums(&trip), want);
    }

    #[test]
    fn times_that_cannot_be_still_add_up() {
        for (taken, done, woken) in [(0, 0, 0), (u64::MAX, 5, u64::MAX), (150, 120, 7)] {
            for server in [None, Some(Other::Here), Some(Other::Vcpu), Some(Other::Host)] {
                let served = Served { taken, done, idle: true };
                let woken = server.map(|_| (woken, false));
                sums(&Trip { called: 100, served, woken, back: 190, server });
            }
        }
    }
}
