//! CFS, the completely fair scheduler, as of Linux 6.5.
//!
//! The entity with the smallest virtual runtime runs. The tick decides how long: it makes an entity give way that has
//! run for its *slice*, which is its weighted part of a period in which all entities should run once, or that is ahead
//! of the leftmost entity by more than a slice.

use super::{FairClass, weight};
use crate::class::Enqueue;
use crate::config::{CfsTunables, Fair, Ns};
use crate::heap::NONE;
use crate::{CpuId, EntId};

impl FairClass {
    /// How long `s` should run at a time: its part of the latency period, which stretches to
    /// `tasks * min_granularity` where the latency would cut slices below that.
    ///
    /// `s` is included even if it is not on the queue yet.
    pub(super) fn slice_cfs(&self, r: usize, s: usize, c: &CfsTunables) -> Ns {
        let root = self.rqs[r].cpu as usize;
        let nr = u64::from(self.rqs[root].tasks.max(1));
        let mut slice = c.sched_latency_ns.max(nr * c.min_granularity_ns);
        let (mut r, mut s) = (r, s);
        loop {
            let (rq, se) = (&self.rqs[r], &self.ses[s]);
            let load = if se.on_rq { rq.load } else { rq.load + se.weight };
            slice = weight::share(slice, se.weight, load);
            if rq.se == NONE {
                return slice.max(c.min_granularity_ns);
            }
            s = rq.se as usize;
            r = self.ses[s].rq as usize;
        }
    }

    /// Chooses the vruntime of an entity that is about to join the queue.
    ///
    /// A sleeper may be placed somewhat left of the others (half a period with gentle sleepers), but is never moved
    /// back: sleeping gains nothing. A new entity waits for one slice first.
    pub(super) fn place_cfs(&mut self, r: usize, s: usize, how: Enqueue, c: &CfsTunables) {
        let min = self.rqs[r].min_vruntime;
        if self.ses[s].relative {
            self.ses[s].vruntime += min;
            self.ses[s].relative = false;
        }
        let place = match how {
            Enqueue::Restore | Enqueue::RestoreHead => return,
            Enqueue::Initial => {
                min + weight::virtual_time(self.slice_cfs(r, s, c), self.ses[s].weight)
            }
            Enqueue::Wakeup => {
                let lead = if self.ses[s].idle { c.min_granularity_ns } else { c.sched_latency_ns };
                min - (if c.gentle_sleepers { lead / 2 } else { lead }) as i64
            }
        };
        let se = &mut self.ses[s];
        se.vruntime = se.vruntime.max(place);
    }

    /// A sleeping entity leaves the class. It is placed as if it woke now, so that a sleep that continues in another
    /// class gains no more than any other, and its vruntime is kept relative to its queue. EEVDF keeps the lag, which
    /// is relative.
    pub(crate) fn leave_asleep(&mut self, e: EntId) {
        let s = self.se_of(e);
        self.take_load(e);
        let (r, Fair::Cfs(c)) = (self.ses[s].rq, self.kind) else { return };
        if r != NONE && !self.ses[s].relative {
            self.place_cfs(r as usize, s, Enqueue::Wakeup, &c);
            self.ses[s].vruntime -= self.rqs[r as usize].min_vruntime;
            self.ses[s].relative = true;
        }
    }

    /// A sleeping entity comes back to the class, on the CPU where it last was.
    pub(crate) fn join_asleep(&mut self, e: EntId, cpu: CpuId) {
        let s = self.se_of(e);
        if !self.is_eevdf() && self.ses[s].relative {
            let r = self.rq_for(e, cpu);
            self.ses[s].vruntime += self.rqs[r].min_vruntime;
            self.ses[s].relative = false;
            self.ses[s].rq = r as u32;
        }
    }

    /// Whether the current entity `s` ran long enough.
    pub(super) fn tick_cfs(&mut self, r: usize, s: usize, c: &CfsTunables) -> bool {
        if self.rqs[r].nr < 2 {
            return false;
        }
        let slice = self.slice_cfs(r, s, c).min(c.sched_latency_ns);
        let se = &self.ses[s];
        if se.ran > slice {
            // Otherwise the buddy hint could choose it again.
            self.forget_buddy(r, s);
            return true;
        }
        // However many entities wake up, the tick ends no run before this.
        if se.ran < c.min_granularity_ns {
            return false;
        }
        let lag = self.rqs[r].heap.first().map_or(0, |n| se.vruntime - n.vruntime);
        lag > slice as i64
    }

    /// Whether `p` is far enough behind `s` to take its CPU: by more than the wake-up granularity in virtual time of
    /// `p`, so that a light entity preempts less easily.
    fn leads_cfs(&self, s: usize, p: usize, c: &CfsTunables) -> bool {
        let gran = weight::virtual_time(c.wakeup_granularity_ns, self.ses[p].weight);
        self.ses[s].vruntime - self.ses[p].vruntime > gran
    }

    /// Whether `p` preempts `s`. Then `p` runs next, and after it `s`, if its queue is `long`.
    pub(super) fn preempts_cfs(
        &mut self,
        r: usize,
        s: usize,
        p: usize,
        long: bool,
        c: &CfsTunables,
    ) -> bool {
        let wins = self.leads_cfs(s, p, c);
        if wins {
            self.rqs[r].next = p as u32;
        }
        if wins && long && self.ses[s].owns == NONE {
            self.on_each_queue(s, |rq, s| rq.last = s);
        }
        wins
    }

    /// Whether a queue is so long that a preempted entity is preferred afterwards (`LAST_BUDDY`): it has at least as
    /// many entities as fit into the latency period at the least granularity.
    pub(super) fn is_long(&self, r: usize, c: &CfsTunables) -> bool {
        u64::from(self.rqs[r].nr) * c.min_granularity_ns >= c.sched_latency_ns
    }

    /// The leftmost entity; but the second if the leftmost yielded and the second is nearly as good; and rather one
    /// that caused a preemption, or else one that was preempted, if that is not too unfair to the leftmost. The queue
    /// must not be empty.
    pub(super) fn pick_cfs(&self, r: usize, c: &CfsTunables) -> usize {
        let rq = &self.rqs[r];
        let vruntime = |s: u32| self.ses[s as usize].vruntime;
        // The current one wins only if it is strictly to the left.
        let lefter = |a: Option<u32>, b: u32| match a {
            Some(a) if b == NONE || vruntime(a) <= vruntime(b) => Some(a),
            _ => (b != NONE).then_some(b),
        };
        let first = rq.heap.first().map(|n| n.se);
        let left = lefter(first, rq.curr).expect("not empty") as usize;
        let fair_enough = |s: u32| !self.leads_cfs(s as usize, left, c);
        let mut best = left;
        if rq.skip == left as u32 {
            let second = if rq.skip == rq.curr {
                first
            } else {
                lefter(rq.heap.second().map(|n| n.se), rq.curr)
            };
            if let Some(second) = second
                && fair_enough(second)
            {
                best = second as usize;
            }
        }
        let mut buddies = [rq.next, rq.last].into_iter();
        if let Some(buddy) = buddies.find(|&s| s != NONE && fair_enough(s)) {
            best = buddy as usize;
        }
        best
    }
}
