//! The time of a group's quota: what queues may still take, what they have, and which of them are throttled.

use alloc::vec;
use alloc::vec::Vec;

use crate::CpuId;
use crate::config::{Ns, Quota};
use crate::dl::NEVER;

/// What a queue takes at once (`sched_cfs_bandwidth_slice_us`).
pub(super) const SLICE: Ns = 5_000_000;
/// Time that an empty queue keeps (`min_cfs_rq_runtime`).
const KEPT: i64 = 1_000_000;
/// Delay until returned time is distributed (`cfs_bandwidth_slack_period`).
const SLACK_DELAY: Ns = 5_000_000;
/// No distribution within this time before the end of a period (`min_bandwidth_expiration`).
const SHORTLY: Ns = 2_000_000;

/// The quota of a group.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    quota: Quota,
    /// Time that queues may still take.
    left: Ns,
    /// End of the current period, or of the last one in which an entity was runnable.
    ends: Ns,
    /// Whether its timer runs.
    active: bool,
    /// No queue has taken time since the last period began.
    unused: bool,
    /// When returned time is distributed, or [`NEVER`].
    slack_at: Ns,
    /// The CPU that has the timers, and whether they have moved since the last query.
    pub(super) timer_cpu: u32,
    pub(super) moved: bool,
    /// CPUs of throttled queues, in the order in which they were throttled.
    pub(super) throttled: Vec<u32>,
    /// What the queue on each CPU has left.
    pub(super) on: Vec<Local>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Local {
    /// Negative: it ran for longer than it had time.
    pub(super) left: i64,
    pub(super) throttled: bool,
}

impl Pool {
    pub(super) fn new(quota: Quota, cpus: usize) -> Self {
        Self {
            quota,
            left: quota.runtime_ns,
            ends: quota.phase_ns,
            active: false,
            unused: true,
            slack_at: NEVER,
            timer_cpu: 0,
            moved: false,
            throttled: Vec::new(),
            on: vec![Local::default(); cpus],
        }
    }

    /// Whether the queue of `cpu` is throttled.
    #[inline]
    pub(super) fn holds(&self, cpu: u32) -> bool {
        self.on[cpu as usize].throttled
    }

    /// Gives the queue of `cpu` time until it has `target`, as far as there is any (`__assign_cfs_rq_runtime`). Returns
    /// whether the queue may run.
    pub(super) fn take(&mut self, now: Ns, cpu: usize, target: i64) -> bool {
        if !self.active {
            self.active = true;
            let passed = (now + self.quota.period_ns).saturating_sub(self.ends);
            self.ends += passed / self.quota.period_ns * self.quota.period_ns;
            (self.timer_cpu, self.moved) = (cpu as u32, true);
        }
        let local = &mut self.on[cpu];
        let given = self.left.min((target - local.left).max(0) as Ns);
        self.left -= given;
        local.left += given as i64;
        self.unused &= given == 0;
        local.left > 0
    }

    /// An empty queue returns its time, except a little (`__return_cfs_rq_runtime`).
    pub(super) fn give_back(&mut self, now: Ns, cpu: usize) {
        let slack = self.on[cpu].left - KEPT;
        if slack <= 0 {
            return;
        }
        self.on[cpu].left = KEPT;
        self.left += slack as Ns;
        let late = self.ends.saturating_sub(now) <= SLACK_DELAY + SHORTLY;
        if self.left > SLICE && !self.throttled.is_empty() && !late && self.slack_at == NEVER {
            (self.slack_at, self.moved) = (now + SLACK_DELAY, true);
        }
    }

    /// Its timer fires: at the end of a period, or to distribute returned time. Adds CPUs whose queues may run again to
    /// `back`.
    pub(super) fn on_timer(&mut self, now: Ns, back: &mut Vec<CpuId>) {
        if self.slack_at <= now {
            self.slack_at = NEVER;
            if self.ends.saturating_sub(now) > SHORTLY && self.left > SLICE {
                self.distribute(back);
            }
        }
        if !self.active || self.ends > now {
            return;
        }
        let Quota { runtime_ns, period_ns, burst_ns, .. } = self.quota;
        self.ends += ((now - self.ends) / period_ns + 1) * period_ns;
        self.left = (self.left + runtime_ns).min(runtime_ns + burst_ns);
        self.active = !self.unused || !self.throttled.is_empty();
        self.unused = self.throttled.is_empty();
        self.distribute(back);
    }

    /// Gives throttled queues the time that they owe, and a nanosecond (`distribute_cfs_runtime`).
    fn distribute(&mut self, back: &mut Vec<CpuId>) {
        let (on, left) = (&mut self.on, &mut self.left);
        self.throttled.retain(|&cpu| {
            let local = &mut on[cpu as usize];
            let given = (*left).min((1 - local.left) as Ns);
            *left -= given;
            local.left += given as i64;
            if local.left > 0 {
                back.push(CpuId(cpu));
            }
            local.left <= 0
        });
    }

    /// When its timer fires, or [`NEVER`].
    pub(super) fn timer(&self) -> Ns {
        if self.active { self.ends.min(self.slack_at) } else { NEVER }
    }
}
