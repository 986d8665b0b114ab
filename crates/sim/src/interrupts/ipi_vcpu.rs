//! IPIs of a vCPU in progress.

use std::collections::VecDeque;

/// IPIs of a vCPU in progress.
#[derive(Clone, Debug, Default)]
pub(crate) struct IpiVcpu {
    /// Functions to call, each as the vCPU that waits for it; `NONE`: no vCPU waits.
    calls: VecDeque<u32>,
    /// Targets of its multicasts in progress, in the order of its exits.
    multicast: VecDeque<u32>,
    /// vCPUs that the last function call interrupted.
    mask: Vec<u32>,
    /// Number of calls that it waits for.
    acks: u32,
    /// It yields to one of `mask` after these have been sent.
    yields: bool,
}

impl IpiVcpu {
    /// Adds a function for it to call; returns whether that needs an interrupt, because none is on its way.
    pub(crate) fn call(&mut self, waiter: u32) -> bool {
        self.calls.push_back(waiter);
        self.calls.len() == 1
    }

    /// Removes the next function that it calls; returns the vCPU that waits for it, or `NONE`.
    pub(crate) fn next_call(&mut self) -> Option<u32> {
        self.calls.pop_front()
    }

    /// vCPUs that the last function call interrupted.
    pub(crate) fn called(&self) -> &[u32] {
        &self.mask
    }

    /// An empty list for the targets of the next function call.
    pub(crate) fn take_mask(&mut self) -> Vec<u32> {
        let mut mask = std::mem::take(&mut self.mask);
        mask.clear();
        mask
    }

    /// Begins to send one IPI to all `targets`.
    pub(crate) fn multicast(&mut self, targets: &[u32]) {
        self.multicast.extend(targets);
    }

    /// The next target of its multicasts.
    pub(crate) fn next_target(&mut self) -> Option<u32> {
        self.multicast.pop_front()
    }

    /// It has sent function calls to `mask`, and waits for `waits` of them.
    pub(crate) fn sent(&mut self, mask: Vec<u32>, waits: u32, yields: bool) {
        self.mask = mask;
        if waits > 0 {
            self.acks += waits;
            self.yields = yields;
        }
    }

    /// One of the functions that it waits for has been called; returns whether it was the last.
    pub(crate) fn acked(&mut self) -> bool {
        self.acks -= 1;
        self.acks == 0
    }

    /// Whether it is to yield to one of the vCPUs that it has interrupted; true only once.
    pub(crate) fn takes_yield(&mut self) -> bool {
        std::mem::take(&mut self.yields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attribution::track::NONE;

    #[test]
    fn a_vcpu_with_calls_in_its_queue_gets_no_second_interrupt() {
        let mut target = IpiVcpu::default();
        assert!(target.call(3) && !target.call(NONE));
        assert_eq!(target.next_call(), Some(3));
        assert_eq!(target.next_call(), Some(NONE));
        assert!(target.call(4));
    }

    #[test]
    fn a_sender_waits_for_all_that_it_called() {
        let mut sender = IpiVcpu::default();
        sender.sent(vec![1, 2], 2, true);
        assert!(sender.takes_yield() && !sender.takes_yield());
        assert!(!sender.acked() && sender.acked());
        sender.sent(vec![1], 0, true);
        assert!(!sender.takes_yield(), "it does not wait");
    }
}
