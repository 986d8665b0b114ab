//! EEVDF (earliest eligible virtual deadline first) as Linux has it since 6.6.
//!
//! An entity's *lag* is the service it is owed: `lag = weight * (V - vruntime)`, where `V` is the
//! weighted mean of all vruntimes on the queue. It is *eligible* while its lag is not negative.
//! It asks for `slice` of CPU time and should have it by `deadline = vruntime + slice/weight`.
//! The eligible entity with the earliest deadline runs.
//!
//! The algorithm is that of I. Stoica and H. Abdel-Wahab, "Earliest Eligible Virtual Deadline
//! First", 1995; the rules for sleep, preemption and slices are the kernel's. Where they differ between
//! releases, [`EevdfRelease`](crate::config::EevdfRelease) says how.
//!
//! ```text
//! V = min + sum(w_i * (v_i - min)) / sum(w_i)
//! v is eligible  <=>  (v - min) * sum(w_i) <= sum(w_i * (v_i - min))        (no division)
//! ```

use super::{FairClass, weight};
use crate::class::{Dequeue, Enqueue};
use crate::config::{EevdfTunables, Ns};
use crate::heap::NONE;

impl FairClass {
    /// `sum(w_i * (v_i - min))` and `sum(w_i)` over the queue, with the current entity unless it
    /// is `but`.
    #[inline]
    fn sums(&self, r: usize, but: u32) -> (i128, u64) {
        let rq = &self.rqs[r];
        if rq.curr == NONE || rq.curr == but {
            return (rq.sum_wv, rq.sum_w);
        }
        let se = &self.ses[rq.curr as usize];
        let wv = i128::from(se.vruntime - rq.min_vruntime) * i128::from(se.weight);
        (rq.sum_wv + wv, rq.sum_w + se.weight)
    }

    /// The weighted mean vruntime of the queue, rounded down; its minimum if it is empty.
    pub(super) fn avg_vruntime(&self, r: usize) -> i64 {
        self.avg_without(r, NONE).0
    }

    /// The mean, and the weight it is taken over, as if the current entity were gone if it is
    /// `but`.
    fn avg_without(&self, r: usize, but: u32) -> (i64, u64) {
        let (wv, w) = self.sums(r, but);
        let above = if w == 0 { 0 } else { weight::floor_div(wv, w) };
        (self.rqs[r].min_vruntime + above, w)
    }

    /// Whether an entity of the queue with this vruntime has no negative lag.
    #[inline]
    pub(super) fn eligible(&self, r: usize, vruntime: i64) -> bool {
        let (wv, w) = self.sums(r, NONE);
        i128::from(vruntime - self.rqs[r].min_vruntime) * i128::from(w) <= wv
    }

    /// The slice among those on the queue that `choose` prefers.
    #[inline]
    fn slice_by(&self, r: usize, choose: impl Fn(Ns, Ns) -> Ns) -> Ns {
        let rq = &self.rqs[r];
        if rq.customs == 0 {
            return self.base_slice;
        }
        let queued = rq.heap.nodes().iter().map(|n| n.se);
        let curr = (rq.curr != NONE).then_some(rq.curr);
        let slices = queued.chain(curr).map(|s| self.ses[s as usize].slice);
        slices.reduce(choose).unwrap_or(self.base_slice)
    }

    pub(super) fn shortest_slice(&self, r: usize) -> Ns {
        self.slice_by(r, Ns::min)
    }

    fn longest_slice(&self, r: usize) -> Ns {
        self.slice_by(r, Ns::max)
    }

    /// Records the lag of an entity on the queue. The lag is bounded, so that no history lets an entity dominate or be
    /// shut out for longer. The kernel stores lag and protection in one field: recording the lag ends the protection.
    pub(super) fn update_lag(&mut self, r: usize, s: usize, t: &EevdfTunables) {
        let lag = self.lag(r, s, self.avg_vruntime(r), t);
        let se = &mut self.ses[s];
        se.vlag = lag;
        se.protect = i64::MIN;
    }

    /// The bounded lag of an entity on the queue, where the mean is `avg`.
    #[inline]
    pub(super) fn lag(&self, r: usize, s: usize, avg: i64, t: &EevdfTunables) -> i64 {
        let se = &self.ses[s];
        let bound = if t.release.rules().lag_of_longest {
            self.longest_slice(r) + self.tick_ns
        } else {
            (2 * se.slice).max(self.tick_ns)
        };
        let limit = weight::virtual_time(bound, se.weight);
        (avg - se.vruntime).clamp(-limit, limit)
    }

    /// Chooses vruntime and deadline for an entity that is about to join the queue (or, if it is
    /// the current one, to join it again with another weight).
    ///
    /// Joining moves the mean towards the newcomer and would shrink its lag from `l` to
    /// `l * W / (W + w)`; it is placed with the lag inflated by the inverse, so that the lag it
    /// has afterwards is the lag it left with.
    pub(super) fn place_eevdf(&mut self, r: usize, s: usize, how: Enqueue, t: &EevdfTunables) {
        let (avg, load) = self.avg_without(r, s as u32);
        let nr = self.rqs[r].nr;
        let base = self.base_slice;
        let se = &mut self.ses[s];
        if !se.custom {
            se.slice = base;
        }
        let mut lag = 0;
        if t.place_lag && nr > 0 && se.vlag != 0 && load > 0 {
            let inflated = i128::from(se.vlag) * i128::from(load + se.weight);
            lag = (inflated / i128::from(load)) as i64;
        }
        se.vruntime = avg - lag;
        if se.relative {
            se.deadline += se.vruntime;
            se.relative = false;
            return;
        }
        let mut vslice = weight::virtual_time(se.slice, se.weight);
        if how == Enqueue::Initial {
            // Newcomers start with half a request, to ease into the competition.
            vslice /= 2;
        }
        se.deadline = se.vruntime + vslice;
    }

    /// Starts the next request if the last one is used up. True if it was.
    #[inline]
    pub(super) fn update_deadline(&mut self, s: usize) -> bool {
        let base = self.base_slice;
        let se = &mut self.ses[s];
        if se.vruntime < se.deadline {
            return false;
        }
        if !se.custom {
            se.slice = base;
        }
        se.deadline = se.vruntime + weight::virtual_time(se.slice, se.weight);
        true
    }

    /// Whether the current entity, whose request is not used up, should give way all the same.
    #[inline]
    pub(super) fn was_outrun(&self, r: usize, s: usize, t: &EevdfTunables) -> bool {
        let se = &self.ses[s];
        !se.is_protected()
            && (t.release.rules().quantum || t.preempt_short && !self.eligible(r, se.vruntime))
    }

    /// Protects the current entity, which was just picked.
    #[inline]
    pub(super) fn protect(&mut self, r: usize, s: usize, t: &EevdfTunables) {
        self.ses[s].protect = self.ses[s].deadline;
        if t.release.rules().short_goes_next
            && t.run_to_parity
            && t.preempt_short
            && self.shortest_slice(r) < self.ses[s].slice
        {
            let others = self.avg_without(r, s as u32).0;
            self.ses[s].protect = self.ses[s].protect.min(others + 1);
        } else if t.release.rules().quantum {
            let parity = t.run_to_parity.then(|| self.shortest_slice(r));
            let slice = parity.unwrap_or(t.release.rules().base_slice_ns);
            self.cut_protection(s, self.ses[s].vruntime, slice);
        }
    }

    /// Limits protection to `slice` after `from`, a virtual time, if that is shorter.
    fn cut_protection(&mut self, s: usize, from: i64, slice: Ns) {
        let se = &mut self.ses[s];
        se.protect = se.protect.min(from + weight::virtual_time(slice, se.weight));
    }

    /// The entity that was yielded to, or the group of one that went to sleep, if it is eligible (`PICK_BUDDY`, since
    /// 6.14). Only the choice of the next entity uses it, not a wake-up.
    #[inline]
    pub(super) fn buddy(&self, r: usize, t: &EevdfTunables) -> Option<usize> {
        let next = self.rqs[r].next;
        let looks = next != NONE && t.release.rules().picks_buddy;
        (looks && self.eligible(r, self.ses[next as usize].vruntime)).then_some(next as usize)
    }

    /// The eligible entity with the earliest deadline, or the current entity while its slice protects it, if `protect`.
    /// The queue must not be empty.
    #[inline]
    pub(super) fn pick_eevdf(&self, r: usize, t: &EevdfTunables, protect: bool) -> usize {
        let rq = &self.rqs[r];
        let (wv, w) = self.sums(r, NONE);
        let eligible = |v: i64| i128::from(v - rq.min_vruntime) * i128::from(w) <= wv;
        let Some(first) = rq.heap.first() else {
            return rq.curr as usize;
        };
        let mut curr = NONE;
        if rq.curr != NONE {
            let se = &self.ses[rq.curr as usize];
            if eligible(se.vruntime) {
                let parity = t.run_to_parity || t.release.rules().quantum;
                if protect && parity && se.is_protected() {
                    return rq.curr as usize;
                }
                curr = rq.curr;
            }
        } else if rq.nr == 1 {
            return first.se as usize;
        }
        match rq.heap.earliest(eligible) {
            Some(best) if curr == NONE => best as usize,
            Some(best) => {
                let before = self.ses[curr as usize].deadline < self.ses[best as usize].deadline;
                (if before { curr } else { best }) as usize
            }
            // The smallest vruntime never exceeds the mean, so this is the current one.
            None => rq.curr as usize,
        }
    }

    /// Whether `p`, just queued beside the current `s`, should run now. No other entity preempts `s` here, however
    /// early its deadline.
    pub(super) fn preempts_eevdf(
        &mut self,
        r: usize,
        s: usize,
        p: usize,
        t: &EevdfTunables,
    ) -> bool {
        let rules = t.release.rules();
        let short = t.preempt_short && self.ses[p].slice < self.ses[s].slice;
        if !rules.quantum {
            if short && self.has_case(r, s, p) {
                self.ses[s].protect = i64::MIN;
            }
            return self.pick_eevdf(r, t, true) == p;
        }
        let best = loop {
            let best = self.pick_eevdf(r, t, !short);
            if !rules.looks_again || !self.ses[best].delayed {
                break best;
            }
            self.dequeue_se_up(best, Dequeue::Sleep);
        };
        let wins =
            best == p || short && rules.short_goes_next && self.eligible(r, self.ses[p].vruntime);
        if wins {
            if short {
                self.ses[s].protect = self.ses[s].vruntime;
            }
        } else if short || rules.always_cuts {
            let mut from = self.ses[s].vruntime;
            if rules.short_goes_next {
                from = from.min(self.avg_vruntime(r));
            }
            self.cut_protection(s, from, self.shortest_slice(r));
        }
        wins
    }

    /// Whether `p`, which preempts `s`, is picked next whatever its deadline (`set_short_buddy`).
    pub(super) fn goes_next(&self, r: usize, s: usize, p: usize, t: &EevdfTunables) -> bool {
        let slice = self.ses[p].slice;
        let next = self.rqs[r].next;
        t.release.rules().short_goes_next
            && t.preempt_short
            && slice < self.ses[s].slice
            && (next == NONE || self.ses[next as usize].slice >= slice)
    }

    /// Whether `p`, whose slice is shorter than that of `s`, may preempt `s` within its slice.
    fn has_case(&self, r: usize, s: usize, p: usize) -> bool {
        let (cur, new) = (&self.ses[s], &self.ses[p]);
        self.eligible(r, new.vruntime)
            && (new.deadline < cur.deadline || !self.eligible(r, cur.vruntime))
    }

    /// The current entity gives up its CPU for now.
    pub(super) fn yield_eevdf(&mut self, r: usize, s: usize, t: &EevdfTunables) {
        if t.yield_forfeits && !self.eligible(r, self.ses[s].vruntime) {
            return;
        }
        let se = &mut self.ses[s];
        if t.yield_forfeits {
            se.vruntime = se.deadline;
        }
        se.deadline += weight::virtual_time(se.slice, se.weight);
        se.protect = i64::MIN;
        self.update_min_vruntime(r);
    }
}
