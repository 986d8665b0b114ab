//! Guards that keep RT entities from starving fair ones: one of two mechanisms, or both.
//!
//! # Throttling (kernels before 6.12, and later ones with `CONFIG_RT_GROUP_SCHED`)
//!
//! On each CPU, RT entities may run for `runtime` in each `period`. Time is checked where it is
//! charged, so an overrun lasts until the next tick at most; it is carried into the next period.
//! While throttled the RT entities wait, even if nothing else wants the CPU. All CPUs have their periods together:
//! there is one timer (`def_rt_bandwidth` of `kernel/sched/rt.c`), on the CPU that needed it first.
//!
//! # Fair server (6.12 and later)
//!
//! Fair entities are entitled to `runtime` in each `period`. The server does nothing as long as they get it by
//! themselves, or the CPU is idle for as long. When so little of the period is left that they would otherwise miss
//! it (the zero-laxity point), they run before RT until they have had it. The states are those of
//! `kernel/sched/deadline.c` as of 6.18 with the stable backports of 2026; the letters are those of the comment
//! there.
//!
//! ```text
//! state            event                                 next          effect
//! Off          (A) a fair entity becomes runnable        Waiting       new period if the old one ended,
//!                                                                      or too much is left for it
//!                  ... in the period of a service        Running       no more left than fits into it
//! Waiting      (B) fair or idle time uses up runtime     Waiting       new period
//! Waiting      (B) zero-laxity point, fair waits         Running       new period; fair goes first
//! Waiting      (B) timer, no fair entity                 Off
//! Running      (D) no fair entity left                   Off
//! Running      (D) runtime used up                       Replenishing  RT goes first again
//! Replenishing (E) fair runs by itself                   Waiting       new period
//! Replenishing (E) period ends                           Running       next period, less an overrun
//! ```
//!
//! A fair entity that is preempted at the end of a service runs until the switch, after the tick that found the
//! runtime used up. The kernel counts this as fair time without the server, and the server waits for a whole new
//! period (E to B). It continues at the end of its period only if the served entity went to sleep. Kernels 6.12 and
//! 7.3 show both: CPU loops get 51 to 54 ms and then wait 950 ms, and a light sleeper is served at each wake-up for
//! one or more periods of a second, and then waits 950 ms.
//!
//! The kernel distinguishes a CPU that is idle while the server waits (C), to stop its timer. Here the timer of
//! `Waiting` looks for fair entities. The timer is moved lazily: what fair entities consume by themselves postpones
//! the zero-laxity point, and the timer finds this out when it fires. A CPU whose fair entities are not starved
//! therefore pays for about one timer per period.

use alloc::vec;
use alloc::vec::Vec;

use crate::config::{Bandwidth, Ns, RtGuard};
use crate::dl::NEVER;
use crate::{CpuId, CpuSet};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Server {
    Off,
    Waiting,
    Running,
    Replenishing,
}

/// The least time by which the kernel defers the zero-laxity point.
const MIN_DEFERRAL: Ns = 1_000_000;

#[derive(Clone, Debug)]
struct GuardCpu {
    /// Server: when its timer fires, or [`NEVER`].
    timer: Ns,
    /// Throttling: RT time charged and not yet forgiven.
    rt_time: Ns,
    /// Throttling: RT entities are held back.
    throttled: bool,
    server: Server,
    /// Server: fair entities starved in the period before, so that it is not deferred.
    starved: bool,
    /// Server: runtime left in this period; negative after an overrun.
    left: i64,
    /// Server: end of this period.
    due: Ns,
}

impl GuardCpu {
    fn new_period(&mut self, now: Ns, of: Bandwidth) {
        self.left = of.runtime_ns as i64;
        self.due = now + of.period_ns;
    }

    /// When the timer has something to do. While the server waits: the zero-laxity point, at which the remaining
    /// runtime just fits into the rest of the period.
    fn look_at(&self) -> Ns {
        let left = if self.server == Server::Waiting { self.left.max(0) as Ns } else { 0 };
        self.due - left
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Guard {
    throttle: Option<Bandwidth>,
    server: Option<Bandwidth>,
    /// Throttling: when its timer fires, or [`NEVER`], and the CPU that has the timer.
    rt_timer: (Ns, CpuId),
    cpus: Vec<GuardCpu>,
}

impl Guard {
    pub(crate) fn new(kind: RtGuard, cpus: u32) -> Self {
        let cpu = GuardCpu {
            timer: NEVER,
            rt_time: 0,
            throttled: false,
            server: Server::Off,
            starved: false,
            left: 0,
            due: 0,
        };
        let (throttle, server) = (kind.throttle(), kind.fair_server());
        let rt_timer = (NEVER, CpuId(0));
        Self { throttle, server, rt_timer, cpus: vec![cpu; cpus as usize] }
    }

    /// When a timer of the CPU fires, or [`NEVER`].
    #[inline]
    pub(crate) fn deadline(&self, cpu: CpuId) -> Ns {
        let (at, on) = self.rt_timer;
        let timer = self.cpus[cpu.index()].timer;
        if cpu == on { timer.min(at) } else { timer }
    }

    /// Whether RT entities of the CPU are throttled.
    #[inline]
    pub(crate) fn holds_rt(&self, cpu: CpuId) -> bool {
        self.cpus[cpu.index()].throttled
    }

    /// Whether fair entities of the CPU go ahead of RT.
    #[inline]
    pub(crate) fn fair_first(&self, cpu: CpuId) -> bool {
        self.cpus[cpu.index()].server == Server::Running
    }

    /// An RT entity became runnable. True if the timer was set.
    #[inline]
    pub(crate) fn rt_started(&mut self, now: Ns, cpu: CpuId) -> bool {
        let Some(throttle) = self.throttle.filter(|_| self.rt_timer.0 == NEVER) else {
            return false;
        };
        self.rt_timer = (now + throttle.period_ns, cpu);
        true
    }

    /// The CPU's first fair entity became runnable. True if the timer was set.
    #[inline]
    pub(crate) fn fair_started(&mut self, now: Ns, cpu: CpuId) -> bool {
        let Some(server) = self.server else { return false };
        let c = &mut self.cpus[cpu.index()];
        if c.server != Server::Off {
            return false;
        }
        // The wake-up rule of constant bandwidth servers: within its period the server goes on where
        // it was, with its share of the rest at most; one that serves no entity yet begins anew instead.
        let rest = i128::from(c.due.saturating_sub(now)) * i128::from(server.runtime_ns);
        let overflows = i128::from(c.left) * i128::from(server.period_ns) > rest;
        if now >= c.due || (overflows && !c.starved) {
            c.starved = false;
            c.new_period(now, server);
        } else if overflows {
            c.left = (rest / i128::from(server.period_ns)) as i64;
        }
        c.server = if c.starved { Server::Running } else { Server::Waiting };
        let at = c.look_at();
        // A timer that is set too early costs one look when it fires.
        let earlier = at < c.timer;
        c.timer = c.timer.min(at);
        earlier
    }

    /// The CPU's last fair entity left.
    #[inline]
    pub(crate) fn fair_ended(&mut self, cpu: CpuId) {
        let c = &mut self.cpus[cpu.index()];
        if c.server == Server::Running {
            c.server = Server::Off;
        }
    }

    /// RT time was charged. True if the CPU is throttled from now on.
    #[inline]
    pub(crate) fn charge_rt(&mut self, cpu: CpuId, ran: Ns) -> bool {
        let Some(throttle) = self.throttle else { return false };
        let c = &mut self.cpus[cpu.index()];
        c.rt_time += ran;
        let allowed = throttle.runtime_ns;
        if c.throttled || c.rt_time <= allowed || allowed == throttle.period_ns {
            return false;
        }
        c.throttled = true;
        true
    }

    /// Time of the deadline class was charged: it counts as RT time while RT time is counted, and throttles RT, but
    /// never the deadline class itself. True if RT is throttled from now on.
    #[inline]
    pub(crate) fn charge_dl(&mut self, cpu: CpuId, ran: Ns) -> bool {
        self.rt_timer.0 != NEVER && self.charge_rt(cpu, ran)
    }

    /// The server's deadline while it has precedence, for comparison with other deadlines.
    #[inline]
    pub(crate) fn due(&self, cpu: CpuId) -> Ns {
        self.cpus[cpu.index()].due
    }

    /// Fair time was charged. True if the server just lost its precedence.
    #[inline]
    pub(crate) fn charge_fair(&mut self, now: Ns, cpu: CpuId, ran: Ns) -> bool {
        let Some(server) = self.server else { return false };
        let c = &mut self.cpus[cpu.index()];
        if c.server == Server::Off {
            return false;
        }
        c.left -= ran as i64;
        if c.left > 0 {
            return false;
        }
        if c.server == Server::Running {
            c.server = Server::Replenishing;
            if now >= c.due {
                c.new_period(now, server);
            }
            return true;
        }
        // Fair entities ran without the server's help: none starves.
        c.server = Server::Waiting;
        c.starved = false;
        c.new_period(now, server);
        false
    }

    /// The current fair entity has to give way, and ran until now.
    #[inline]
    pub(crate) fn fair_preempted(&mut self, now: Ns, cpu: CpuId) {
        if self.cpus[cpu.index()].server == Server::Replenishing {
            self.charge_fair(now, cpu, 0);
        }
    }

    /// The CPU was idle: counts as fair time, because fair entities could have run.
    #[inline]
    pub(crate) fn charge_idle(&mut self, now: Ns, cpu: CpuId, idle: Ns) {
        if self.cpus[cpu.index()].server == Server::Waiting {
            self.charge_fair(now, cpu, idle);
        }
    }

    /// Throttling's timer, if it is due on `cpu`. `rt`: whether a CPU has runnable RT entities. Returns the CPUs on which
    /// they are no longer throttled.
    pub(crate) fn on_rt_timer(
        &mut self,
        now: Ns,
        cpu: CpuId,
        rt: impl Fn(usize) -> bool,
    ) -> CpuSet {
        let (at, on) = self.rt_timer;
        let mut back = CpuSet::EMPTY;
        let Some(throttle) = self.throttle.filter(|_| cpu == on && at <= now) else { return back };
        let periods = 1 + (now - at) / throttle.period_ns;
        let mut goes_on = false;
        for (i, c) in self.cpus.iter_mut().enumerate() {
            c.rt_time = c.rt_time.saturating_sub(periods.saturating_mul(throttle.runtime_ns));
            goes_on |= rt(i) || c.rt_time > 0;
            if c.throttled && c.rt_time < throttle.runtime_ns {
                c.throttled = false;
                back.insert(CpuId(i as u32));
            }
        }
        self.rt_timer.0 = if goes_on { at + periods * throttle.period_ns } else { NEVER };
        back
    }

    /// The server's timer, if it is due. `fair`: whether the CPU has runnable fair entities. True if they go ahead of
    /// RT from now on.
    pub(crate) fn on_timer(&mut self, now: Ns, cpu: CpuId, fair: bool) -> bool {
        let c = &mut self.cpus[cpu.index()];
        let Some(server) = self.server.filter(|_| c.timer <= now) else { return false };
        c.timer = NEVER;
        match c.server {
            Server::Off => return false,
            Server::Waiting if !fair => {
                c.server = Server::Off;
                c.due = now;
                return false;
            }
            Server::Waiting if now + MIN_DEFERRAL < c.look_at() => {
                c.timer = c.look_at();
                return false;
            }
            Server::Waiting => {
                c.starved = true;
                c.new_period(now, server);
            }
            Server::Running => {
                c.timer = now.max(c.due) + server.period_ns;
                return false;
            }
            Server::Replenishing if now < c.due => {
                c.timer = c.look_at();
                return false;
            }
            Server::Replenishing => {
                while c.left <= 0 {
                    c.left += server.runtime_ns as i64;
                    c.due += server.period_ns;
                }
                if c.due <= now {
                    c.new_period(now, server);
                }
            }
        }
        c.server = if fair { Server::Running } else { Server::Off };
        c.timer = if fair { c.due } else { NEVER };
        fair
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
        Guard::new(RtGuard::FAIR_SERVER, 1)
    }

    #[test]
    fn background_running_puts_the_server_off() {
        let mut g = server();
        assert!(g.fair_started(0, C));
        assert_eq!(g.deadline(C), 950 * MS);
        // 60 ms in the background: one period renewed at 60 ms, 10 ms of the next not yet used.
        assert!(!g.charge_fair(50 * MS, C, 50 * MS));
        assert!(!g.charge_fair(60 * MS, C, 10 * MS));
        assert!(!g.on_timer(950 * MS, C, true));
        assert_eq!(g.server(C), Server::Waiting);
        // Deadline 1050 ms, 40 ms left.
        assert_eq!(g.deadline(C), 1010 * MS);
        assert!(g.on_timer(1010 * MS, C, true));
        // A period begins at the zero-laxity point, with a whole runtime.
        assert!(!g.charge_fair(1059 * MS, C, 49 * MS));
        assert!(g.charge_fair(1060 * MS, C, MS));
        assert_eq!(g.server(C), Server::Replenishing);
        // Still starving when it ends: not deferred again.
        assert!(!g.on_timer(2009 * MS, C, true));
        assert!(g.on_timer(2010 * MS, C, true));
    }

    #[test]
    fn a_server_overruns_until_a_tick_and_pays_it_back() {
        let mut g = server();
        g.fair_started(0, C);
        assert!(g.on_timer(950 * MS, C, true));
        assert!(g.charge_fair(1003 * MS, C, 53 * MS));
        assert!(g.on_timer(1950 * MS, C, true));
        assert!(!g.charge_fair(1996 * MS, C, 46 * MS));
        assert!(g.charge_fair(1997 * MS, C, MS));
    }

    #[test]
    fn an_idle_cpu_starves_nobody() {
        let mut g = server();
        g.fair_started(0, C);
        g.charge_idle(100 * MS, C, 30 * MS);
        g.charge_idle(600 * MS, C, 20 * MS);
        assert!(!g.on_timer(950 * MS, C, true));
        assert_eq!(g.deadline(C), 1550 * MS);
    }

    #[test]
    fn fair_work_that_slept_through_a_period_was_not_starved_in_it() {
        let mut g = server();
        assert!(g.fair_started(0, C));
        assert!(!g.charge_fair(10 * MS, C, 10 * MS));
        g.fair_ended(C);
        assert!(!g.on_timer(950 * MS, C, false));
        assert_eq!((g.server(C), g.deadline(C)), (Server::Off, NEVER));
        g.fair_started(960 * MS, C);
        assert_eq!(g.deadline(C), 1910 * MS);
        assert!(g.on_timer(1910 * MS, C, true));
    }

    #[test]
    fn who_sleeps_while_served_is_served_until_the_period_ends() {
        let mut g = server();
        g.fair_started(0, C);
        assert!(g.on_timer(950 * MS, C, true));
        // 1 ms of 50 in 2 ms of 1000: what is left is less than its share of the rest.
        g.charge_fair(951 * MS, C, MS);
        g.fair_ended(C);
        assert!(!g.fair_first(C));
        g.fair_started(952 * MS, C);
        assert!(g.fair_first(C), "it goes on");
        // Asleep for half of the period: half of the runtime fits into the rest.
        g.fair_ended(C);
        g.fair_started(1450 * MS, C);
        assert!(g.charge_fair(1475 * MS, C, 25 * MS));
        // It slept when its runtime was used up: its next period is a service as well.
        g.fair_ended(C);
        assert!(!g.on_timer(1950 * MS, C, false));
        g.fair_started(2000 * MS, C);
        assert!(g.fair_first(C));
        g.fair_ended(C);
        g.fair_started(2960 * MS, C);
        assert_eq!(g.server(C), Server::Waiting, "the period of the service is over");
    }

    #[test]
    fn who_is_preempted_when_the_runtime_is_used_up_waits_for_a_whole_period() {
        let mut g = server();
        g.fair_started(0, C);
        assert!(g.on_timer(950 * MS, C, true));
        assert!(g.charge_fair(1000 * MS, C, 50 * MS));
        assert_eq!(g.server(C), Server::Replenishing);
        g.fair_preempted(1000 * MS, C);
        assert_eq!(g.server(C), Server::Waiting);
        assert!(!g.on_timer(1900 * MS, C, true));
        assert!(g.on_timer(1950 * MS, C, true));
    }

    #[test]
    fn overrun_is_paid_back() {
        let kind = RtGuard::THROTTLE;
        let mut g = Guard::new(kind, 1);
        assert!(g.rt_started(0, C));
        assert!(!g.charge_rt(C, 950 * MS));
        assert!(g.charge_rt(C, 4 * MS));
        assert!(!g.on_rt_timer(1000 * MS, C, |_| true).is_empty());
        assert!(!g.charge_rt(C, 946 * MS));
        assert!(g.charge_rt(C, MS), "4 ms of the first period count in the second");
        assert!(!g.on_rt_timer(2000 * MS, C, |_| false).is_empty());
        assert!(g.on_rt_timer(3000 * MS, C, |_| false).is_empty());
        assert_eq!(g.deadline(C), NEVER);
    }

    #[test]
    fn all_cpus_have_their_periods_together() {
        let mut g = Guard::new(RtGuard::THROTTLE, 2);
        let other = CpuId(1);
        assert!(g.rt_started(0, C) && !g.rt_started(700 * MS, other));
        assert_eq!((g.deadline(C), g.deadline(other)), (1000 * MS, NEVER));
        assert!(g.charge_rt(C, 951 * MS) && !g.charge_rt(other, 300 * MS));
        assert_eq!(g.on_rt_timer(1000 * MS, C, |_| true), CpuSet::one(C));
        assert!(!g.charge_rt(other, 950 * MS) && g.charge_rt(other, MS));
        assert!(g.on_rt_timer(2000 * MS, other, |_| true).is_empty(), "it has no timer");
        assert_eq!(g.on_rt_timer(2000 * MS, C, |_| true), CpuSet::one(other));
    }

    #[test]
    fn throttling_serves_fair_work_before_the_server_has_to() {
        let kind = RtGuard::Both(Bandwidth { runtime_ns: 950 * MS, period_ns: 1000 * MS });
        let mut g = Guard::new(kind, 1);
        assert!(g.rt_started(0, C));
        assert!(g.fair_started(0, C));
        assert_eq!(g.deadline(C), 950 * MS);
        assert!(g.charge_rt(C, 951 * MS), "RT is held back at the tick after its time is up");
        assert!(g.holds_rt(C));
        assert!(g.on_timer(951 * MS, C, true), "fair has the CPU anyway");
        assert!(!g.charge_fair(1000 * MS, C, 49 * MS));
        assert!(!g.on_rt_timer(1000 * MS, C, |_| true).is_empty());
        // The server's own millisecond is left.
        assert!(g.fair_first(C));
        assert!(g.charge_fair(1001 * MS, C, MS));
    }
}
