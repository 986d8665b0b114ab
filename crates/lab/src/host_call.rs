//! Threads of the host that call and serve.

use std::sync::atomic::Ordering;

use vcoop_guest::line::{ServedCall, oldest};
use vcoop_guest::program::skip_past;
use vcoop_model::plan::{Dist, Ns, Target};
use vcoop_threads::clock::{monotonic, sleep_until};
use vcoop_threads::tsc::tsc;

use crate::channels::Channel;
use crate::error::Error;
use crate::host_task::HostTask;
use crate::round_trip::{RoundTrip, ServerPlace};
use crate::samples::HostSample;

/// Notifications without a message in a row that a thread answers at once: a guest that notifies without end must not
/// keep a thread of the host running.
const PATIENCE: u64 = 16;

/// How long the thread sleeps after that.
const AWAY_NS: Ns = 1_000_000;

impl HostTask<'_> {
    /// Waits for calls, takes the oldest, works, answers.
    pub(crate) fn serve(&mut self, work: &Dist) -> Result<(), Error> {
        let (wiring, vms, number) = (self.wiring, self.vms, self.number);
        let own = |w: &&Channel| w.server == Target::Host(number);
        let wires: Vec<&Channel> = wiring.wires.iter().filter(own).collect();
        let mut in_vain = 0;
        while !self.common.is_over() {
            let Some((i, request)) = oldest(wires.iter().map(|w| w.line(vms))) else {
                self.rest(&mut in_vain);
                continue;
            };
            in_vain = 0;
            let line = wires[i].line(vms);
            line.take(tsc(), 0, false);
            self.draw_work(work);
            line.answer(request, tsc());
            wires[i].tell_caller(self.common, vms)?;
            self.progress.calls.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Calls at a period, and samples the round trips.
    pub(crate) fn ping(
        &mut self,
        interval_ns: Ns,
        phase: &Dist,
        server: Target,
        work: &Dist,
    ) -> Result<(), Error> {
        let mut due = monotonic() + interval_ns + self.stream.draw(phase);
        let other = match server {
            Target::Host(_) => ServerPlace::Host,
            Target::Guest { .. } => ServerPlace::Vcpu,
        };
        let mut missed = 0;
        while !self.common.is_over() {
            sleep_until(due);
            if monotonic() < due {
                continue;
            }
            let Some((called, served)) = self.call(server)? else { break };
            let back = tsc();
            self.send(HostSample {
                due: self.common.clock.ns_at(called),
                latency: self.common.clock.to_ns(back - called),
                taken: back,
                missed,
                trip: Some(RoundTrip { called, served, woken: None, back, server: other }),
            });
            self.draw_work(work);
            // A closed loop: what fell due before now had no call.
            due += interval_ns;
            missed = skip_past(&mut due, interval_ns, monotonic());
        }
        Ok(())
    }

    /// Makes a call. Returns when, and how it was served; `None` if the run ends before.
    pub(crate) fn call(&mut self, server: Target) -> Result<Option<(u64, ServedCall)>, Error> {
        let (wiring, vms) = (self.wiring, self.vms);
        let caller = Target::Host(self.number);
        let wire = wiring.wires.iter().find(|w| w.caller == caller && w.server == server);
        let Some(wire) = wire else { return Ok(None) };
        let line = wire.line(vms);
        let called = tsc();
        line.call(called);
        wire.tell_server(self.common, vms)?;
        self.progress.calls.fetch_add(1, Ordering::Relaxed);
        let mut in_vain = 0;
        while !self.common.is_over() {
            if let Some(served) = line.answered(called) {
                return Ok(Some((called, served)));
            }
            self.rest(&mut in_vain);
        }
        Ok(None)
    }

    /// Sleeps until notified, longer after many notifications without a message.
    fn rest(&self, in_vain: &mut u64) {
        if *in_vain > PATIENCE {
            self.sleep(monotonic() + AWAY_NS);
        }
        if self.wiring.bell(self.number).wait() {
            *in_vain += 1;
        }
    }
}
