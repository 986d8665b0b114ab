//! Decomposition of a round trip by its own times.
//!
//! The time between two of them is booked as the crate's documentation says: from a message to the kernel of the
//! receiving guest, host time, by whether the vCPU was idle; from there to the task, guest time; to a thread of the
//! host, its wake-up. Calls served before this one count as part of the way in.

use vcoop_guest::line::ServedCall;
use vcoop_guest::ring::Sample;
use vcoop_model::plan::Ns;
use vcoop_model::recording::{Part, Parts};

use vcoop_threads::tsc::Clock;

/// Place of a server, seen from its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerPlace {
    /// On the caller's vCPU.
    Here,
    /// On another vCPU, or on one at all if the caller is on the host.
    Vcpu,
    /// On the host.
    Host,
}

/// Times of a round trip, in TSC. Those of guests may be arbitrary.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoundTrip {
    pub(crate) called: u64,
    pub(crate) served: ServedCall,
    /// When the caller's kernel woke it, if that is a guest's, and whether its vCPU was idle.
    pub(crate) woken: Option<(u64, bool)>,
    pub(crate) back: u64,
    pub(crate) server: ServerPlace,
}

impl RoundTrip {
    /// From a guest's sample about a call to a server at that place.
    pub(crate) fn of(s: &Sample, server: ServerPlace) -> Self {
        let woken = Some((s.woken, s.from_idle));
        let Sample { due: called, served, taken: back, .. } = *s;
        Self { called, served, woken, back, server }
    }

    /// Its parts; they add up to `latency`, which is `back - called` in nanoseconds.
    pub(crate) fn parts(&self, clock: &Clock, latency: Ns) -> Parts {
        let taken = self.served.taken.clamp(self.called, self.back);
        let done = self.served.done.clamp(taken, self.back);
        let asleep = |idle| if idle { Part::WakeToRun } else { Part::PreemptedToRun };
        // If the server was not woken for this call, it was busy with another one: its vCPU was not idle, and the
        // whole way counts as a wait.
        let for_this = (self.called..=taken).contains(&self.served.woken);
        let (ready, way_in) = match self.server {
            // To a thread of the host: its wake-up.
            ServerPlace::Host => (taken, Part::WakeToRun),
            ServerPlace::Here => (taken, Part::GuestSwitch),
            ServerPlace::Vcpu if for_this => (self.served.woken, asleep(self.served.idle)),
            ServerPlace::Vcpu => (taken, Part::PreemptedToRun),
        };
        let (woken, way_back) = match (self.woken, self.server) {
            (Some((at, idle)), ServerPlace::Host | ServerPlace::Vcpu) => {
                (at.clamp(done, self.back), asleep(idle))
            }
            (Some(_), _) => (done, Part::GuestSwitch),
            (None, _) => (self.back, Part::WakeToRun),
        };
        let at = |tsc: u64| clock.to_ns(tsc - self.called).min(latency);
        let mut parts = Parts::default();
        let (a, b, c) = (at(taken), at(done), at(woken));
        let to_kernel = at(ready);
        parts[way_in as usize] += to_kernel;
        parts[Part::GuestSwitch as usize] += a - to_kernel;
        parts[Part::Service as usize] += b - a;
        parts[way_back as usize] += c - b;
        parts[Part::GuestSwitch as usize] += latency - c;
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::{RoundTrip, ServerPlace};
    use vcoop_guest::line::ServedCall;
    use vcoop_model::recording::Part;
    use vcoop_threads::tsc::Clock;

    fn sums(trip: &RoundTrip) -> Vec<(Part, u64)> {
        let latency = trip.back - trip.called;
        let parts = trip.parts(&Clock::new(0, 1_000_000), latency);
        assert_eq!(parts.iter().sum::<u64>(), latency);
        let all = Part::ALL.iter().zip(parts);
        all.filter(|(_, ns)| *ns > 0).map(|(p, ns)| (*p, ns)).collect()
    }

    #[test]
    fn from_the_host_to_a_guest_and_back() {
        let served = ServedCall { taken: 140, done: 150, woken: 133, idle: false };
        let server = ServerPlace::Vcpu;
        let trip = RoundTrip { called: 100, served, woken: None, back: 190, server };
        let common = [(Part::WakeToRun, 40), (Part::PreemptedToRun, 33)];
        let want = [&common[..], &[(Part::GuestSwitch, 7), (Part::Service, 10)]].concat();
        assert_eq!(sums(&trip), want);
        // It was up already, for a call before this one.
        let busy = RoundTrip { served: ServedCall { woken: 90, idle: true, ..served }, ..trip };
        let want = [(Part::WakeToRun, 40), (Part::PreemptedToRun, 40), (Part::Service, 10)];
        assert_eq!(sums(&busy), want);
    }

    #[test]
    fn between_threads_of_the_host() {
        let served = ServedCall { taken: 140, done: 150, ..ServedCall::default() };
        let server = ServerPlace::Host;
        let trip = RoundTrip { called: 100, served, woken: None, back: 190, server };
        assert_eq!(sums(&trip), [(Part::WakeToRun, 80), (Part::Service, 10)]);
    }

    #[test]
    fn between_vcpus() {
        let served = ServedCall { taken: 130, done: 132, woken: 127, idle: true };
        let server = ServerPlace::Vcpu;
        let trip = RoundTrip { called: 100, served, woken: Some((160, true)), back: 165, server };
        let want = [(Part::WakeToRun, 27 + 28), (Part::GuestSwitch, 3 + 5), (Part::Service, 2)];
        assert_eq!(sums(&trip), want);
    }

    #[test]
    fn times_that_cannot_be_still_add_up() {
        for (taken, done, woken) in [(0, 0, 0), (u64::MAX, 5, u64::MAX), (150, 120, 7)] {
            for (server, host) in [
                (ServerPlace::Here, false),
                (ServerPlace::Vcpu, false),
                (ServerPlace::Vcpu, true),
                (ServerPlace::Host, false),
                (ServerPlace::Host, true),
            ] {
                let served = ServedCall { taken, done, woken: taken, idle: true };
                let woken = (!host).then_some((woken, false));
                sums(&RoundTrip { called: 100, served, woken, back: 190, server });
            }
        }
    }
}
