//! Which lines share a chart, and which charts are side by side.
//!
//! A *lane* is a line of a chart: one policy in one cell on one backend. A *panel* is one chart: the policies of a
//! cell; or, if only one policy was run, the cells of a matrix, which are then compared.

use std::borrow::Cow;

use vcoop_experiment::params;
use vcoop_experiment::result::{Document, Key, LatencySeries, Params, Place};
use vcoop_model::distinct;

use crate::chart::{Key as LegendKey, LegendSymbol, Slot};

/// Most lines in one chart.
const MOST_LANES: usize = 8;

/// Policies with the same colour in every report: the ones that are most often compared with the baseline.
const USUAL: [(&str, usize); 3] = [("wake-boost", 1), ("dynamic", 2), ("static", 3)];

/// A line of a chart.
#[derive(Clone, Debug)]
pub(crate) struct Lane {
    pub(crate) label: String,
    pub(crate) slot: Slot,
    backend: String,
    policy: String,
    params: Params,
}

/// The lanes of one chart.
#[derive(Clone, Debug)]
pub(crate) struct Panel {
    /// What distinguishes it from the other panels; empty if it is the only one.
    pub(crate) title: String,
    /// The same without the backend.
    cell: String,
    /// Common part of the labels of its lanes, which they leave out; empty if there is none.
    pub(crate) place: String,
    pub(crate) lanes: Vec<Lane>,
}

impl Lane {
    /// Its series of a probe.
    pub(crate) fn latency<'d>(
        &self,
        document: &'d Document,
        probe: &str,
    ) -> Option<&'d LatencySeries> {
        document.latencies().find(|s| s.key.is_named(probe) && self.has(&s.key))
    }

    pub(crate) fn has(&self, key: &Key) -> bool {
        key.backend == self.backend && key.policy == self.policy && key.params == self.params
    }

    pub(crate) fn is_at(&self, place: &Place) -> bool {
        place.backend == self.backend && place.policy == self.policy && place.params == self.params
    }

    pub(crate) fn is_baseline(&self, document: &Document) -> bool {
        self.policy == document.baseline
    }

    fn is_simulated(&self) -> bool {
        self.backend == "sim"
    }

    /// The same lane for a panel that has others of its colour.
    fn beside(&self) -> Self {
        let slot = match self.slot {
            Slot::Series(n) if self.is_simulated() => Slot::Simulated(n),
            slot => slot,
        };
        Self { label: format!("{}, {}", self.label, self.backend), slot, ..self.clone() }
    }

    /// The cell that it is in.
    pub(crate) fn cell(&self) -> (String, Params) {
        (self.backend.clone(), self.params.clone())
    }

    /// Its entry in a legend.
    pub(crate) fn key(&self, sign: LegendSymbol) -> LegendKey {
        LegendKey { slot: self.slot, sign, label: self.label.clone() }
    }
}

/// A backend and a cell in words; empty if there is only one of both.
pub(crate) fn place_words(document: &Document, backend: &str, params: &Params) -> String {
    let words = params::words(params);
    match (document.backends.len() > 1, words.is_empty()) {
        (true, true) => backend.to_owned(),
        (true, false) => format!("{backend}, {words}"),
        (false, _) => words,
    }
}

pub(crate) fn panels(document: &Document) -> Vec<Panel> {
    let cells = document.cells();
    let lane = |label: String, n: usize, backend: &str, policy: &str, params: &Params| Lane {
        label,
        slot: Slot::Series(n),
        backend: backend.to_owned(),
        policy: policy.to_owned(),
        params: params.clone(),
    };
    if document.policies.len() > 1 || cells.len() <= document.backends.len() {
        let colours = colours(&document.policies, &document.baseline);
        let panel = |(backend, params): &(String, Params)| Panel {
            title: place_words(document, backend, params),
            cell: params::words(params),
            place: place_words(document, backend, params),
            lanes: document
                .policies
                .iter()
                .zip(&colours)
                .map(|(policy, n)| lane(policy.clone(), *n, backend, policy, params))
                .collect(),
        };
        return cells.iter().map(panel).collect();
    }
    let mut all = Vec::new();
    for backend in &document.backends {
        let own: Vec<&Params> =
            cells.iter().filter(|(b, _)| b == backend).map(|(_, params)| params).collect();
        let chunks = own.chunks(MOST_LANES);
        let several = document.backends.len() > 1;
        for (i, chunk) in chunks.enumerate() {
            let place = if several { backend.clone() } else { String::new() };
            let mut cell = String::new();
            if own.len() > MOST_LANES {
                let (from, to) = (i * MOST_LANES + 1, i * MOST_LANES + chunk.len());
                cell = format!("cells {from} to {to} of {}", own.len());
            }
            let parts = [place.as_str(), &cell].into_iter().filter(|part| !part.is_empty());
            let title = parts.collect::<Vec<_>>().join(", ");
            let lanes = chunk.iter().enumerate().flat_map(|(n, params)| {
                document
                    .policies
                    .iter()
                    .map(move |policy| lane(params::words(params), n, backend, policy, params))
            });
            all.push(Panel { title, cell, place, lanes: lanes.collect() });
        }
    }
    all
}

/// The panels of a document, where panels that differ only by the backend are one: simulated beside measured.
pub(crate) fn panels_across(document: &Document) -> Vec<Panel> {
    let mut groups: Vec<Vec<Panel>> = Vec::new();
    for panel in panels(document) {
        let same = |(a, b): (&Lane, &Lane)| (&a.policy, &a.params) == (&b.policy, &b.params);
        let alike = |group: &&mut Vec<Panel>| {
            let lanes = &group[0].lanes;
            lanes.len() == panel.lanes.len() && lanes.iter().zip(&panel.lanes).all(same)
        };
        match groups.iter_mut().find(alike) {
            Some(group) => group.push(panel),
            None => groups.push(vec![panel]),
        }
    }
    groups.into_iter().map(joined).collect()
}

/// Joins panels of the same lanes on several backends: equal lanes are adjacent, the measured one first.
fn joined(mut group: Vec<Panel>) -> Panel {
    if group.len() == 1 {
        return group.remove(0);
    }
    group.sort_by_key(|panel| panel.lanes.first().is_some_and(Lane::is_simulated));
    let cell = group[0].cell.clone();
    let lanes = (0..group[0].lanes.len())
        .flat_map(|i| group.iter().map(move |panel| panel.lanes[i].beside()))
        .collect();
    Panel { title: cell.clone(), place: cell.clone(), cell, lanes }
}

/// The colours of policies as numbers of [`Slot::Series`]. The baseline is grey, the usual policies have their own, and
/// others get the remaining ones in order.
pub(crate) fn colours(policies: &[String], baseline: &str) -> Vec<usize> {
    let own = |policy: &String| {
        let usual = USUAL.iter().find(|(name, _)| policy == name);
        (policy != baseline).then_some(usual).flatten().map(|(_, n)| *n)
    };
    let any_usual = policies.iter().any(|policy| own(policy).is_some());
    // Where none of the usual ones is, no reader takes another policy for it.
    let first = if any_usual { USUAL.len() + 1 } else { 1 };
    let taken: Vec<usize> = policies.iter().filter_map(own).collect();
    let mut left = (first..MOST_LANES).chain(1..first).chain(MOST_LANES..);
    let mut next = || left.find(|n| !taken.contains(n)).unwrap_or(0);
    let colour = |policy: &String| match own(policy) {
        _ if policy == baseline => 0,
        Some(n) => n,
        None => next(),
    };
    policies.iter().map(colour).collect()
}

/// Addition to the explanation for charts of [`panels_across`].
pub(crate) fn across_words(document: &Document) -> &'static str {
    if document.backends.len() > 1 { " What is pale or hollow is simulated." } else { "" }
}

/// Names of latency series in the order of a report: guests first.
pub(crate) fn probes(document: &Document) -> Vec<Cow<'_, str>> {
    let mut probes = distinct(document.latencies().map(|series| series.key.name()));
    probes.sort_by_key(|probe| probe.starts_with("host."));
    probes
}

/// A title with the place of a panel, if it has one.
pub(crate) fn titled(title: &str, place: &str) -> String {
    if place.is_empty() { title.to_owned() } else { format!("{title}: {place}") }
}
