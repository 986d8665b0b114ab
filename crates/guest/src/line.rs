//! A line between a caller and a server: some words in guest memory (or the host's, between two of
//! its threads), and a notification that goes another way.
//!
//! ```text
//! caller                              server
//!   store request = TSC, notify         find a line with request != answer, the oldest first
//!                                       store taken, work, store done
//!   answer == request: answered         store answer = request, notify
//! ```
//!
//! A call is identified by the time it was made, which is never 0 and never the same twice on a line. Other answers are
//! ignored: a peer that answers calls that were not made, or notifies without reason, wakes the other side and gains
//! nothing.

use core::sync::atomic::{AtomicU64, Ordering};

/// The line. Each word has one writer: the caller `request`, the server the rest.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Line {
    request: AtomicU64,
    answer: AtomicU64,
    taken: AtomicU64,
    done: AtomicU64,
    /// 1: the server's vCPU was idle when the call came.
    idle: AtomicU64,
    woken: AtomicU64,
    reserved: [u64; 2],
}

/// How a call was served, as the server reports. Times are TSC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServedCall {
    /// First instruction of the server on this call.
    pub taken: u64,
    /// Last one before the answer.
    pub done: u64,
    /// When the server's kernel last made it ready; for this call only if that is after the call. 0: the server is a
    /// thread of the host, for which that is not known.
    pub woken: u64,
    /// The server's vCPU was idle then.
    pub idle: bool,
}

impl Line {
    /// Caller: makes a call at time `now`; the server is to be notified.
    pub fn call(&self, now: u64) {
        self.request.store(now, Ordering::Release);
    }

    /// Caller: the answer to the call of time `request`, if it is there.
    pub fn answered(&self, request: u64) -> Option<ServedCall> {
        // Pairs with the release in `answer`.
        if self.answer.load(Ordering::Acquire) != request {
            return None;
        }
        let word = |w: &AtomicU64| w.load(Ordering::Relaxed);
        let idle = word(&self.idle) & 1 != 0;
        let (taken, done, woken) = (word(&self.taken), word(&self.done), word(&self.woken));
        Some(ServedCall { taken, done, woken, idle })
    }

    /// Server: the pending call, if any.
    pub fn waiting(&self) -> Option<u64> {
        let request = self.request.load(Ordering::Acquire);
        (request != 0 && request != self.answer.load(Ordering::Relaxed)).then_some(request)
    }

    /// Server: begins to serve the call; `woken` and `idle` as in [`ServedCall`].
    pub fn take(&self, now: u64, woken: u64, idle: bool) {
        self.taken.store(now, Ordering::Relaxed);
        self.woken.store(woken, Ordering::Relaxed);
        self.idle.store(u64::from(idle), Ordering::Relaxed);
    }

    /// Server: answers the call of time `request`; the caller is to be notified.
    pub fn answer(&self, request: u64, now: u64) {
        self.done.store(now, Ordering::Relaxed);
        self.answer.store(request, Ordering::Release);
    }
}

/// Server: the oldest pending call on these lines, and its line.
pub fn oldest<'l>(lines: impl Iterator<Item = &'l Line>) -> Option<(usize, u64)> {
    let waiting = |(i, line): (usize, &Line)| Some((i, line.waiting()?));
    lines.enumerate().filter_map(waiting).min_by_key(|(_, request)| *request)
}

#[cfg(test)]
mod tests {
    use super::{Line, ServedCall, oldest};

    #[test]
    fn an_answer_is_to_the_call_that_was_made() {
        let line = Line::default();
        assert_eq!(line.waiting(), None);
        line.call(100);
        assert_eq!((line.waiting(), line.answered(100)), (Some(100), None));
        line.take(110, 105, true);
        line.answer(100, 120);
        let served = ServedCall { taken: 110, done: 120, woken: 105, idle: true };
        assert_eq!((line.waiting(), line.answered(100)), (None, Some(served)));
        line.call(200);
        assert_eq!(line.answered(200), None, "the last answer is not this one's");
        line.answer(7, 230);
        assert_eq!(line.answered(200), None, "nobody asked for it");
    }

    #[test]
    fn the_oldest_call_is_served_first() {
        let lines = [Line::default(), Line::default(), Line::default()];
        assert_eq!(oldest(lines.iter()), None);
        lines[2].call(5);
        lines[1].call(9);
        assert_eq!(oldest(lines.iter()), Some((2, 5)));
        lines[2].answer(5, 6);
        assert_eq!(oldest(lines.iter()), Some((1, 9)));
    }
}
