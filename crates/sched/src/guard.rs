//! What keeps RT entities from starving the fair ones.
//!
//! # Throttling (kernels before 6.12)
//!
//! On each CPU, RT entities may run for `runtime` in each `period`. Time is checked where it is
//! charged, so an overrun lasts until the next tick at most; it is carried into the next period.
//! While throttled the RT entities wait, even if nothing else wants the CPU.
//!
//! # Fair server (6.12 and later)
//!
//! Fair entities are entitled to `runtime` in each `period`. The server does nothing as long as
//! they get it by themselves; when so little of the period is left that they would miss it
//! otherwise (the zero-laxity point), they go ahead of RT until they have had it.
//!
//! ```text
//! state     event                                   next      effect
//! Off       a fair entity becomes runnable          Deferred  new period, full runtime
//! Deferred  fair ran its runtime by itself          Deferred  new period, full runtime
//! Deferred  zero-laxity point, fair waits           Active    fair goes first
//! Deferred  timer, no fair entity                   Off
//! Active    runtime used up                         Depleted  RT goes first again
//! Active    period ends, fair waits                 Active    next period, full runtime
//! Depleted  fair runs by itself (RT is gone)        Deferred  new period, full runtime
//! Depleted  period ends, fair waits                 Active    next period, full runtime
//! Active or Depleted  period ends, no fair entity   Off
//! ```
//!
//! The timer is only ever moved lazily: what fair entities consume by themselves postpones the
//! zero-laxity point, and the timer finds that out when it fires. A CPU whose fair entities are
//! not starved therefore pays for about one timer a period.

use alloc::vec;
use alloc::vec::Vec;

use crate::CpuId;
use crate::config::{Ns, RtGuard};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Server {
    Off,
    Deferred,
    Active,
    Depleted,
}

#[derive(Clone, Debug)]
struct GuardCpu {
    /// When the timer fires.
    timer: Option<Ns>,
    /// Throttling: RT time charged and not yet forgiven.
    rt_time: Ns,
    /// Throttling: RT entities are held back.
    throttled: bool,
    server: Server,
    /// Server: runtime left in this period.
    left: Ns,
    /// Server: end of this period.
    due: Ns,
}

/// What the level has to do after a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Nothing,
    Unthrottle,
    FairFirst,
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Guard {
    kind: RtGuard,
    cpus: Vec<GuardCpu>,
}

impl Guard {
    pub(crate) fn new(kind: RtGuard, cpus: u32) -> Self {
        let cpu = GuardCpu {
            timer: None,
            rt_time: 0,
            throttled: false,
            server: Server::Off,
            left: 0,
            due: 0,
        };
        Self { kind, cpus: vec![cpu; cpus as usize] }
    }

    #[inline]
    pub(crate) fn deadline(&self, cpu: CpuId) -> Option<Ns> {
        self.cpus[cpu.index()].timer
    }

    /// RT entities of the CPU are held back.
    #[inline]
    pub(crate) fn holds_rt(&self, cpu: CpuId) -> bool {
        self.cpus[cpu.index()].throttled
    }

    /// Fair entities of the CPU go ahead of RT.
    #[inline]
    pub(crate) fn fair_first(&self, cpu: CpuId) -> bool {
        self.cpus[cpu.index()].server == Server::Active
    }

    /// An RT entity became runnable. True if the timer was set.
    #[inline]
    pub(crate) fn rt_started(&mut self, now: Ns, cpu: CpuId) -> bool {
        let RtGuard::Throttle { period_ns, .. } = self.kind else {
            return false;
        };
        let c = &mut self.cpus[cpu.index()];
        if c.timer.is_some() {
            return false;
        }
        c.timer = Some(now + period_ns);
        true
    }

    /// The CPU's first fair entity became runnable. True if the timer was set.
    #[inline]
    pub(crate) fn fair_started(&mut self, now: Ns, cpu: CpuId) -> bool {
        let RtGuard::FairServer { runtime_ns, period_ns } = self.kind else {
            return false;
        };
        let c = &mut self.cpus[cpu.index()];
        // Within its period the server goes on where it was: sleeping earns no second runtime. But a
        // runtime that no longer fits into what is left of the period (the wake-up rule of constant
        // bandwidth servers) begins a new one: who slept through the period was not starved in it.
        let overflows = || {
            u128::from(c.left) * u128::from(period_ns)
                > u128::from(c.due - now) * u128::from(runtime_ns)
        };
        let deferred = c.server == Server::Deferred;
        if c.server == Server::Off || now >= c.due || (deferred && overflows()) {
            c.server = Server::Deferred;
            c.left = runtime_ns;
            c.due = now + period_ns;
        }
        let at = match c.server {
            Server::Deferred => c.due - c.left,
            _ => c.due,
        };
        // A timer that is set too early costs one look when it fires.
        if c.timer.is_some_and(|t| t <= at) {
            return false;
        }
        c.timer = Some(at);
        true
    }

    /// RT time was charged. True if the CPU is throttled from now on.
    #[inline]
    pub(crate) fn charge_rt(&mut self, cpu: CpuId, ran: Ns) -> bool {
        let RtGuard::Throttle { runtime_ns, period_ns } = self.kind else {
            return false;
        };
        let c = &mut self.cpus[cpu.index()];
        c.rt_time += ran;
        if c.throttled || c.rt_time <= runtime_ns || runtime_ns == period_ns {
            return false;
        }
        c.throttled = true;
        true
    }

    /// Time of the deadline class was charged: throttling counts it as RT time while it counts, and
    /// holds RT back for it, never the deadline class itself. True if RT is throttled from now on.
    #[inline]
    pub(crate) fn charge_dl(&mut self, cpu: CpuId, ran: Ns) -> bool {
        self.cpus[cpu.index()].timer.is_some() && self.charge_rt(cpu, ran)
    }

    /// Until when the server has its precedence: its place among deadlines.
    #[inline]
    pub(crate) fn due(&self, cpu: CpuId) -> Ns {
        self.cpus[cpu.index()].due
    }

    /// Fair time was charged. True if the server just lost its precedence.
    #[inline]
    pub(crate) fn charge_fair(&mut self, now: Ns, cpu: CpuId, ran: Ns) -> bool {
        let RtGuard::FairServer { runtime_ns, period_ns } = self.kind else {
            return false;
        };
        let c = &mut self.cpus[cpu.index()];
        c.left = c.left.saturating_sub(ran);
        if c.left > 0 || c.server == Server::Off {
            return false;
        }
        if c.server == Server::Active {
            c.server = Server::Depleted;
            return true;
        }
        // Fair entities ran without the server's help: nobody starves.
        c.server = Server::Deferred;
        c.left = runtime_ns;
        c.due = now + period_ns;
        false
    }

    /// The timer of the CPU is due, or past due: `rt` and `fair` tell whether it has runnable
    /// entities of these classes.
    pub(crate) fn on_timer(&mut self, now: Ns, cpu: CpuId, rt: bool, fair: bool) -> Effect {
        let c = &mut self.cpus[cpu.index()];
        let Some(at) = c.timer.filter(|&t| t <= now) else {
            return Effect::Nothing;
        };
        c.timer = None;
        match self.kind {
            RtGuard::Off => Effect::Nothing,
            RtGuard::Throttle { runtime_ns, period_ns } => {
                let periods = 1 + (now - at) / period_ns;
                c.rt_time = c.rt_time.saturating_sub(periods.saturating_mul(runtime_ns));
                if rt || c.rt_time > 0 {
                    c.timer = Some(at + periods * period_ns);
                }
                if c.throttled && c.rt_time < runtime_ns {
                    c.throttled = false;
                    return Effect::Unthrottle;
                }
                Effect::Nothing
            }
            RtGuard::FairServer { runtime_ns, period_ns } => {
                if !fair {
                    // A period that has not ended is remembered: see `fair_started`.
                    if c.server == Server::Deferred || now >= c.due {
                        c.server = Server::Off;
                    }
                    return Effect::Nothing;
                }
                match c.server {
                    Server::Off => return Effect::Nothing,
                    Server::Deferred if now < c.due - c.left => {
                        c.timer = Some(c.due - c.left);
                        return Effect::Nothing;
                    }
                    Server::Deferred => {}
                    Server::Active | Server::Depleted if now < c.due => {
                        c.timer = Some(c.due);
                        return Effect::Nothing;
                    }
                    Server::Active | Server::Depleted => {
                        c.left = runtime_ns;
                        c.due = now.max(c.due) + period_ns;
                    }
                }
                c.server = Server::Active;
                c.timer = Some(c.due);
                Effect::FairFirst
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn server(&self, cpu: CpuId) -> Server {
        self.cpus[cpu.index()].server
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Ns = 1_000_000;
    const C: CpuId = CpuId(0);

    fn server() -> Guard {
        Guard::new(RtGuard::FairServer { runtime_ns: 50 * MS, period_ns: 1000 * MS }, 1)
    }

    #[test]
    fn background_running_keeps_the_server_deferred() {
        let mut g = server();
        assert!(g.fair_started(0, C));
        assert_eq!(g.deadline(C), Some(950 * MS));
        // 60 ms in the background: one period renewed at 60 ms, 10 ms of the next not yet used.
        assert!(!g.charge_fair(50 * MS, C, 50 * MS));
        assert!(!g.charge_fair(60 * MS, C, 10 * MS));
        assert_eq!(g.on_timer(950 * MS, C, true, true), Effect::Nothing);
        assert_eq!(g.server(C), Server::Deferred);
        // Deadline 1050 ms, 40 ms left.
        assert_eq!(g.deadline(C), Some(1010 * MS));
        assert_eq!(g.on_timer(1010 * MS, C, true, true), Effect::FairFirst);
        assert!(g.fair_first(C));
        assert!(g.charge_fair(1050 * MS, C, 40 * MS));
        assert_eq!(g.server(C), Server::Depleted);
        // Still starving at the next period: no second deferral.
        assert_eq!(g.on_timer(1050 * MS, C, true, true), Effect::FairFirst);
    }

    #[test]
    fn fair_work_that_slept_through_a_period_was_not_starved_in_it() {
        let mut g = server();
        assert!(g.fair_started(0, C));
        assert!(!g.charge_fair(10 * MS, C, 10 * MS));
        // Asleep from 10 ms to 900 ms: 40 ms of runtime do not fit 100 ms at a twentieth.
        g.fair_started(900 * MS, C);
        assert_eq!(g.on_timer(960 * MS, C, true, true), Effect::Nothing);
        assert_eq!(g.deadline(C), Some(1850 * MS));
        assert_eq!(g.on_timer(1850 * MS, C, true, true), Effect::FairFirst);
    }

    #[test]
    fn sleeping_earns_no_second_runtime() {
        let mut g = server();
        g.fair_started(0, C);
        assert_eq!(g.on_timer(950 * MS, C, true, true), Effect::FairFirst);
        assert!(g.charge_fair(1000 * MS, C, 50 * MS));
        assert_eq!(g.server(C), Server::Depleted);
        assert_eq!(g.on_timer(1000 * MS, C, true, true), Effect::FairFirst);
        assert!(g.charge_fair(1050 * MS, C, 50 * MS));
        g.fair_started(1060 * MS, C);
        assert!(!g.fair_first(C));
        assert_eq!(g.deadline(C), Some(2000 * MS));
        // Nobody fair at the end of the period: the server goes to sleep.
        assert_eq!(g.on_timer(2000 * MS, C, true, false), Effect::Nothing);
        assert_eq!((g.server(C), g.deadline(C)), (Server::Off, None));
    }

    #[test]
    fn overrun_is_paid_back() {
        let kind = RtGuard::Throttle { runtime_ns: 950 * MS, period_ns: 1000 * MS };
        let mut g = Guard::new(kind, 1);
        assert!(g.rt_started(0, C));
        assert!(!g.charge_rt(C, 950 * MS));
        assert!(g.charge_rt(C, 4 * MS));
        assert_eq!(g.on_timer(1000 * MS, C, true, false), Effect::Unthrottle);
        assert!(!g.charge_rt(C, 946 * MS));
        assert!(g.charge_rt(C, MS), "4 ms of the first period count in the second");
        assert_eq!(g.on_timer(2000 * MS, C, false, false), Effect::Unthrottle);
        assert_eq!(g.on_timer(3000 * MS, C, false, false), Effect::Nothing);
        assert_eq!(g.deadline(C), None);
    }
}
