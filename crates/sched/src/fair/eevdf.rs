//! EEVDF (earliest eligible virtual deadline first) as of Linux 6.15.
//!
//! An entity's *lag* is the service it is owed: `lag = weight * (V - vruntime)`, where `V` is the
//! weighted mean of all vruntimes on the queue. It is *eligible* while its lag is not negative.
//! It asks for `slice` of CPU time and should have it by `deadline = vruntime + slice/weight`.
//! The eligible entity with the earliest deadline runs.
//!
//! The algorithm is that of I. Stoica and H. Abdel-Wahab, "Earliest Eligible Virtual Deadline
//! First", 1995; the rules for sleep, preemption and slices are the kernel's.
//!
//! ```text
//! V = min + sum(w_i * (v_i - min)) / sum(w_i)
//! v is eligible  <=>  (v - min) * sum(w_i) <= sum(w_i * (v_i - min))        (no division)
//! ```

use super::{FairClass, weight};
use crate::class::Enqueue;
use crate::config::EevdfTunables;
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

    /// Records the lag of an entity on the queue. It is bounded by what two slices (or a tick)
    /// are worth, so that no history lets an entity dominate or be shut out for longer.
    pub(super) fn update_lag(&mut self, r: usize, s: usize) {
        let avg = self.avg_vruntime(r);
        let tick = self.tick_ns;
        let se = &mut self.ses[s];
        let limit = weight::virtual_time((2 * se.slice).max(tick), se.weight);
        se.vlag = (avg - se.vruntime).clamp(-limit, limit);
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
        if !se.custom && se.owns == NONE {
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
        if !se.custom && se.owns == NONE {
            se.slice = base;
        }
        se.deadline = se.vruntime + weight::virtual_time(se.slice, se.weight);
        true
    }

    /// Whether the current entity lost its protection to a shorter slice and is not eligible any
    /// more.
    #[inline]
    pub(super) fn was_outrun(&self, r: usize, s: usize, t: &EevdfTunables) -> bool {
        let se = &self.ses[s];
        t.preempt_short && se.protect != se.deadline && !self.eligible(r, se.vruntime)
    }

    /// The earliest eligible deadline, or the current entity while its slice protects it. The
    /// queue must not be empty.
    #[inline]
    pub(super) fn pick_eevdf(&self, r: usize, t: &EevdfTunables) -> usize {
        let rq = &self.rqs[r];
        let (wv, w) = self.sums(r, NONE);
        let eligible = |v: i64| i128::from(v - rq.min_vruntime) * i128::from(w) <= wv;
        let Some(first) = rq.heap.first() else {
            return rq.curr as usize;
        };
        // Somebody yielded to it (PICK_BUDDY).
        if rq.next != NONE && eligible(self.ses[rq.next as usize].vruntime) {
            return rq.next as usize;
        }
        let mut curr = NONE;
        if rq.curr != NONE {
            let se = &self.ses[rq.curr as usize];
            if eligible(se.vruntime) {
                if t.run_to_parity && se.protect == se.deadline {
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

    /// Whether `p`, just queued beside the current `s`, should run now.
    pub(super) fn preempts_eevdf(
        &mut self,
        r: usize,
        s: usize,
        p: usize,
        t: &EevdfTunables,
    ) -> bool {
        if t.preempt_short && self.short_wins(r, s, p) {
            self.ses[s].protect = i64::MIN;
        }
        self.pick_eevdf(r, t) == p
    }

    /// Whether `p` asks for a shorter slice and is entitled to interrupt `s` within its own.
    fn short_wins(&self, r: usize, s: usize, p: usize) -> bool {
        let (cur, new) = (&self.ses[s], &self.ses[p]);
        new.slice < cur.slice
            && self.eligible(r, new.vruntime)
            && (new.deadline < cur.deadline || !self.eligible(r, cur.vruntime))
    }
}
