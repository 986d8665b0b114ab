//! IPIs of a vCPU that are under way.

use std::collections::VecDeque;

/// IPIs of a vCPU under way.
#[derive(Clone, Debug, Default)]
pub(crate) struct IpiVcpu {
    /// Functions to call, each by the vCPU that waits for it; `NONE`: nobody does.
    calls: VecDeque<u32>,
    /// Targets of multicasts under way, in the order of its exits.
    multicast: VecDeque<u32>,
    /// Whom the last function call interrupted.
    mask: Vec<u32>,
    /// Calls that it waits for.
    acks: u32,
    /// It is to yield to one of `mask` when these have been sent.
    yields: bool,
}

impl IpiVcpu {
    /// Has it call a function; whether that takes an interrupt, because none is on its way.
    pub(crate) fn call(&mut self, waiter: u32) -> bool {
        self.calls.push_back(waiter);
        self.calls.len() == 1
    }

    /// The next function that it calls: the vCPU that waits for it, or `NONE`.
    pub(crate) fn next_call(&mut self) -> Option<u32> {
        self.calls.pop_front()
    }

    /// Whom the last function call interrupted.
    pub(crate) fn called(&self) -> &[u32] {
        &self.mask
    }

    /// Room to list whom the next function call is for.
    pub(crate) fn take_mask(&mut self) -> Vec<u32> {
        let mut mask = std::mem::take(&mut self.mask);
        mask.clear();
        mask
    }

    /// It is going to send one IPI to all of these.
    pub(crate) fn multicast(&mut self, targets: &[u32]) {
        self.multicast.extend(targets);
    }

    /// The next target of its multicasts.
    pub(crate) fn next_target(&mut self) -> Option<u32> {
        self.multicast.pop_front()
    }

    /// It has sent function calls to `mask`, and waits for so many.
    pub(crate) fn sent(&mut self, mask: Vec<u32>, waits: u32, yields: bool) {
        self.mask = mask;
        if waits > 0 {
            self.acks += waits;
            self.yields = yields;
        }
    }

    /// One of the functions that it waits for has been called; whether that was the last one.
    pub(crate) fn acked(&mut self) -> bool {
        self.acks -= 1;
        self.acks == 0
    }

    /// Whether it is to yield to one of those that it has interrupted, which it is asked once.
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
