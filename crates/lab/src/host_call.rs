//! Threads of the host that call and serve.

use std::sync::atomic::Ordering;

use vcoop_guest::line::{Served, oldest};
use vcoop_model::plan::{Dist, Ns, Target};
use vcoop_threads::clock::{monotonic, sleep_until};
use vcoop_threads::tsc::tsc;

use crate::channels::Channel;
use crate::common::Common;
use crate::error::Error;
use crate::host_task::HostTask;
use crate::round_trip::{Other, RoundTrip};
use crate::samples::HostSample;

/// Notifications without a message in a row that a thread answers at once: a guest that notifies without end must not
/// keep a thread of the host running.
const PATIENCE: u64 = 16;

/// How long the thread sleeps after that.
const AWAY_NS: Ns = 1_000_000;

impl HostTask<'_> {
    /// Waits for calls, takes the oldest, works, answers.
    pub(crate) fn serve(&mut self, common: &Common, work: &Dist) -> Result<(), Error> {
        let (wiring, vms, number) = (self.wiring, self.vms, self.number);
        let own = |w: &&Channel| w.server == Target::Host(number);
        let wires: Vec<&Channel> = wiring.wires.iter().filter(own).collect();
        let mut in_vain = 0;
        while !common.is_over() {
            let Some((i, request)) = oldest(wires.iter().map(|w| w.line(vms))) else {
                self.rest(common, &mut in_vain);
                continue;
            };
            in_vain = 0;
            let line = wires[i].line(vms);
            line.take(tsc(), 0, false);
            self.draw_work(common, work);
            line.answer(request, tsc());
            wires[i].tell_caller(common, vms)?;
            self.progress.calls.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Calls at a period, and samples the round trips.
    pub(crate) fn ping(
        &mut self,
        common: &Common,
        interval_ns: Ns,
        phase: &Dist,
        server: Target,
        work: &Dist,
    ) -> Result<(), Error> {
        let mut due = monotonic() + interval_ns + self.stream.draw(phase);
        let other = match server {
            Target::Host(_) => Other::Host,
            Target::Guest { .. } => Other::Vcpu,
        };
        let mut missed = 0;
        while !common.is_over() {
            sleep_until(due);
            if monotonic() < due {
                continue;
            }
            let Some((called, served)) = self.call(common, server)? else { break };
            let back = tsc();
            self.send(HostSample {
                due: common.clock.ns_at(called),
                latency: common.clock.to_ns(back - called),
                taken: back,
                missed,
                trip: Some(RoundTrip { called, served, woken: None, back, server: other }),
            });
            self.draw_work(common, work);
            // A closed loop: what fell due before now had no call.
            due += interval_ns;
            let now = monotonic();
            missed = if due <= now { (now - due) / interval_ns + 1 } else { 0 };
            due += missed * interval_ns;
        }
        Ok(())
    }

    /// Makes a call. Returns when, and how it was served; `None` if the run ends before.
    pub(crate) fn call(
        &mut self,
        common: &Common,
        server: Target,
    ) -> Result<Option<(u64, Served)>, Error> {
        let (wiring, vms) = (self.wiring, self.vms);
        let caller = Target::Host(self.number);
        let wire = wiring.wires.iter().find(|w| w.caller == caller && w.server == server);
        let Some(wire) = wire else { return Ok(None) };
        let line = wire.line(vms);
        let called = tsc();
        line.call(called);
        wire.tell_server(common, vms)?;
        self.progress.calls.fetch_add(1, Ordering::Relaxed);
        let mut in_vain = 0;
        while !common.is_over() {
            if let Some(served) = line.answered(called) {
                return Ok(Some((called, served)));
            }
            self.rest(common, &mut in_vain);
        }
        Ok(None)
    }

    /// Sleeps until notified, longer after many notifications without a message.
    fn rest(&self, common: &Common, in_vain: &mut u64) {
        if *in_vain > PATIENCE {
            self.sleep(common, monotonic() + AWAY_NS);
        }
        if self.wiring.bell(self.number).wait() {
            *in_vain += 1;
        }
    }
}
