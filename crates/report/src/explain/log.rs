//! Records the events around known samples: the run is simulated again, now with an observer.

use vcoop_model::plan::Ns;
use vcoop_model::trace_event::{Event, Observer, ThreadNames};

/// Most events kept of one window: enough for several seconds.
const MOST: usize = 200_000;

/// Recorded time before a sample is due, to know the thread on the pCPU then.
const BEFORE_NS: Ns = 100_000;

/// The events around some samples.
#[derive(Clone, Debug, Default)]
pub struct Log {
    windows: Vec<(Ns, Ns)>,
    pub(super) names: ThreadNames,
    /// By window.
    pub(super) events: Vec<Vec<(Ns, Event)>>,
}

impl Log {
    /// Records around samples with this due time and latency, from the start of the run.
    pub fn around(samples: impl Iterator<Item = (Ns, Ns)>) -> Self {
        let mut windows: Vec<(Ns, Ns)> = samples
            .map(|(due, latency)| (due.saturating_sub(BEFORE_NS), due + latency + 1))
            .collect();
        windows.sort_unstable();
        // Those that touch are one.
        let mut merged: Vec<(Ns, Ns)> = Vec::new();
        for (from, to) in windows {
            match merged.last_mut() {
                Some(last) if from <= last.1 => last.1 = last.1.max(to),
                _ => merged.push((from, to)),
            }
        }
        Self { windows: merged, ..Self::default() }
    }

    /// The events of the window that contains a time.
    pub(super) fn at(&self, at: Ns) -> &[(Ns, Event)] {
        let i = self.windows.iter().position(|(from, to)| (*from..=*to).contains(&at));
        i.and_then(|i| self.events.get(i)).map_or(&[], Vec::as_slice)
    }
}

impl Observer for Log {
    fn windows(&self) -> Vec<(Ns, Ns)> {
        self.windows.clone()
    }

    fn ends_with_windows(&self) -> bool {
        true
    }

    fn thread_names(&mut self, names: &ThreadNames) {
        self.names = names.clone();
    }

    fn opens(&mut self, _: Ns) {
        self.events.push(Vec::new());
    }

    fn event(&mut self, at: Ns, event: &Event) {
        if let Some(events) = self.events.last_mut()
            && events.len() < MOST
        {
            events.push((at, *event));
        }
    }
}
