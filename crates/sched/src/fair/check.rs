//! Invariants of the fair class, checked by plain recomputation.

use super::FairClass;
use crate::config::Fair;
use crate::heap::NONE;

impl FairClass {
    pub(crate) fn check(&self) {
        for r in 0..self.rqs.len() {
            self.check_queue(r);
        }
        self.check_loads();
        self.check_quotas();
    }

    fn check_queue(&self, r: usize) {
        let rq = &self.rqs[r];
        if self.flat && rq.se != NONE {
            return self.check_flat(r);
        }
        rq.heap.check(&self.pos);
        let mut all: alloc::vec::Vec<u32> = rq.heap.nodes().iter().map(|n| n.se).collect();
        for n in rq.heap.nodes() {
            let se = &self.ses[n.se as usize];
            assert_eq!(se.vruntime, n.vruntime, "vruntime in the heap");
            let key = if self.is_eevdf() { se.deadline } else { se.vruntime };
            assert_eq!(key, n.key, "key in the heap");
        }
        if rq.curr != NONE {
            assert!(!self.ses[rq.curr as usize].delayed, "a sleeper runs");
            all.push(rq.curr);
        }
        let ses = || all.iter().map(|&s| &self.ses[s as usize]);
        assert!(ses().all(|se| se.on_rq && se.rq == r as u32 && !se.relative), "state on a queue");
        assert_eq!(all.len() as u32, rq.nr, "entities on the queue");
        if self.flat {
            self.check_members(r);
        } else {
            assert_eq!(ses().map(|se| se.weight).sum::<u64>(), rq.load, "load of the queue");
        }
        assert_eq!(ses().filter(|se| se.custom).count() as u32, rq.customs, "custom slices");
        let counts = |se: &&super::queue::Se| se.on_rq && !(self.flat && se.owns != NONE);
        let on = self.ses.iter().filter(counts).filter(|se| se.rq == r as u32).count();
        assert_eq!(on, all.len(), "entities that think they are on the queue");
        if rq.se != NONE {
            let g = &self.ses[rq.se as usize];
            assert_eq!(self.rqs[g.rq as usize].depth + 1, rq.depth, "depth");
            if rq.nr > 0 && !self.is_throttled(r) {
                assert!(g.on_rq && !g.delayed, "the group of a busy queue is queued");
            }
            let curr = self.rqs[g.rq as usize].curr == rq.se;
            assert!(rq.curr == NONE || curr, "the group of a running task runs");
        }
        if let Fair::Eevdf(_) = self.kind
            && rq.nr > 0
        {
            self.check_eevdf(r, &all);
        }
    }

    /// Mean and pick against the definitions.
    fn check_eevdf(&self, r: usize, all: &[u32]) {
        let rq = &self.rqs[r];
        let ses = || all.iter().map(|&s| &self.ses[s as usize]);
        let w: i128 = ses().map(|se| i128::from(se.weight)).sum();
        let wv: i128 = ses().map(|se| i128::from(se.weight) * i128::from(se.vruntime)).sum();
        let mean = wv.div_euclid(w) as i64;
        assert_eq!(self.avg_vruntime(r), mean, "weighted mean");
        for se in ses() {
            assert_eq!(self.eligible(r, se.vruntime), se.vruntime <= mean, "eligibility");
        }
        let best = rq.heap.earliest(|v| v <= mean);
        let waiting = all.iter().filter(|s| **s != rq.curr).map(|&s| &self.ses[s as usize]);
        let least = waiting.filter(|se| se.vruntime <= mean).map(|se| se.deadline).min();
        let found = best.map(|s| self.ses[s as usize].deadline);
        assert_eq!(found, least, "earliest eligible deadline");
    }

    /// The weight with which an entity competes, in units of which a thread of nice 0 has 1024.
    #[cfg(test)]
    pub(crate) fn competing_weight(&self, e: crate::EntId) -> u64 {
        self.ses[self.se_of(e)].weight >> super::weight::SHIFT
    }

    /// Smallest virtual time a queue accepts, by queue.
    #[cfg(test)]
    pub(crate) fn minima(&self) -> alloc::vec::Vec<i64> {
        self.rqs.iter().map(|rq| rq.min_vruntime).collect()
    }
}
