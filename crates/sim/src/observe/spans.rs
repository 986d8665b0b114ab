//! The observer of a run, and its windows.

use vcoop_model::trace_event::{Event, Observer, ThreadNames};

use crate::queue::Ns;

/// An observer and its windows.
#[derive(Debug)]
pub(crate) struct Spans<'p> {
    observer: Option<&'p mut dyn Observer>,
    /// Windows that are not over, last one first.
    windows: Vec<(Ns, Ns)>,
    /// A window is open.
    on: bool,
    /// When the next window opens, or the open one ends.
    turns: Ns,
    ends: bool,
}

impl<'p> Spans<'p> {
    /// Without an observer.
    pub(crate) fn off() -> Self {
        Self { observer: None, windows: Vec::new(), on: false, turns: Ns::MAX, ends: false }
    }

    /// With an observer.
    pub(crate) fn new(observer: &'p mut dyn Observer) -> Self {
        let mut windows = observer.windows();
        windows.reverse();
        let turns = windows.last().map_or(Ns::MAX, |w| w.0);
        let ends = observer.ends_with_windows();
        Self { observer: Some(observer), windows, on: false, turns, ends }
    }

    /// Whether a window is open, so that events are reported.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.on
    }

    /// Whether a window opens or ends by this time.
    #[inline]
    pub(crate) fn is_due(&self, at: Ns) -> bool {
        at >= self.turns
    }

    /// The next window opens, or the open one ends.
    pub(super) fn turn(&mut self) -> (Ns, WindowChange) {
        let at = self.turns;
        let turn = if self.on {
            self.close(at);
            self.windows.pop();
            self.turns = self.windows.last().map_or(Ns::MAX, |w| w.0);
            if self.windows.is_empty() && self.ends {
                WindowChange::Over
            } else {
                WindowChange::Closed
            }
        } else {
            self.on = true;
            self.turns = self.windows.last().map_or(Ns::MAX, |w| w.1);
            if let Some(observer) = &mut self.observer {
                observer.opens(at);
            }
            WindowChange::Opened
        };
        (at, turn)
    }

    fn close(&mut self, at: Ns) {
        self.on = false;
        if let Some(observer) = &mut self.observer {
            observer.closes(at);
        }
    }

    /// The run is over.
    pub(crate) fn end(&mut self, at: Ns) {
        if self.on {
            self.close(at);
        }
        self.turns = Ns::MAX;
    }

    /// Whether anything will be reported, so that all entities need names.
    pub(super) fn thread_names(&mut self, names: impl FnOnce() -> ThreadNames) -> bool {
        let Some(observer) = self.observer.as_mut().filter(|_| !self.windows.is_empty()) else {
            return false;
        };
        observer.thread_names(&names());
        true
    }

    /// The observer, for samples, in a window or not.
    #[inline]
    pub(crate) fn observer(&mut self) -> Option<&mut dyn Observer> {
        Some(&mut **self.observer.as_mut()?)
    }

    #[inline]
    pub(super) fn tell(&mut self, at: Ns, event: Event) {
        if let Some(observer) = &mut self.observer {
            observer.event(at, &event);
        }
    }
}

/// Change of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WindowChange {
    Opened,
    Closed,
    /// It was the last one, and the run ends with it.
    Over,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two windows, and what it was told: openings, ends and the times of events.
    #[derive(Debug, Default)]
    struct Windows(Vec<(char, Ns)>, bool);

    impl Observer for Windows {
        fn windows(&self) -> Vec<(Ns, Ns)> {
            vec![(10, 20), (40, 50)]
        }
        fn ends_with_windows(&self) -> bool {
            self.1
        }
        fn opens(&mut self, at: Ns) {
            self.0.push(('(', at));
        }
        fn event(&mut self, at: Ns, _: &Event) {
            self.0.push(('.', at));
        }
        fn closes(&mut self, at: Ns) {
            self.0.push((')', at));
        }
    }

    #[test]
    fn events_are_told_while_a_window_is_open() {
        let mut seen = Windows::default();
        let mut spans = Spans::new(&mut seen);
        for at in [5, 12, 25, 44] {
            while spans.is_due(at) {
                spans.turn();
            }
            if spans.is_on() {
                spans.tell(at, Event::Mask { vm: 0, vcpus: 1 });
            }
        }
        spans.end(45);
        assert!(!spans.is_due(Ns::MAX - 1));
        let all = [('(', 10), ('.', 12), (')', 20), ('(', 40), ('.', 44), (')', 45)];
        assert_eq!(seen.0, all);
    }

    #[test]
    fn a_run_can_end_with_the_last_window() {
        let mut seen = Windows(Vec::new(), true);
        let mut spans = Spans::new(&mut seen);
        let turns: Vec<(Ns, WindowChange)> = (0..4).map(|_| spans.turn()).collect();
        let [first, second] = [(20, WindowChange::Closed), (50, WindowChange::Over)];
        assert_eq!(turns, [(10, WindowChange::Opened), first, (40, WindowChange::Opened), second]);
    }
}
