//! Charts for a result, by the same rules for every scenario.

mod distribution;
mod gain;
mod lanes;
mod pairs;
mod parts;
pub(crate) mod published;
mod storm;
mod time;
pub(crate) mod validation;

use std::collections::BTreeSet;

use vcoop_experiment::result::Document;

use super::Chart;
use lanes::{Panel, titled};
pub(crate) use lanes::{colours, place_words, probes};
pub(crate) use parts::slowest;

/// Most charts of one kind for one probe; a large matrix has more cells than readers look at.
const MOST: usize = 24;

/// Charts that belong together.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Group {
    /// Name for links.
    pub id: &'static str,
    /// Heading.
    pub title: &'static str,
    /// How to read them.
    pub about: String,
    /// Charts.
    pub charts: Vec<Chart>,
    /// Number of charts left out, because there are too many.
    pub left_out: usize,
}

/// Every chart of a result, in groups in the order of a report; groups without any are left out.
pub(crate) fn groups(document: &Document) -> Vec<Group> {
    let all = [
        distribution::slower(document),
        gain::gain_and_cost(document),
        parts::by_size(document),
        distribution::quantiles(document),
        distribution::histograms(document),
        storm::curves(document),
        storm::scatters(document),
        storm::intervals(document),
        time::latency(document),
        time::policy_events(document),
    ];
    let mut ids = BTreeSet::new();
    let mut found = Vec::new();
    for mut group in all {
        group.charts.retain(|chart| !chart.is_empty());
        for chart in &mut group.charts {
            // Two probes may have names that make one.
            while !ids.insert(chart.id.clone()) {
                chart.id.push_str("-again");
            }
        }
        if !group.charts.is_empty() {
            found.push(group);
        }
    }
    found
}

impl Group {
    fn new(id: &'static str, title: &'static str, about: &str) -> Self {
        Self { id, title, about: about.to_owned(), charts: Vec::new(), left_out: 0 }
    }

    /// Adds a chart of one probe for each panel, and gives them ids and titles.
    fn each_panel(
        &mut self,
        id: &str,
        title: &str,
        panels: &[Panel],
        chart: impl Fn(usize, &Panel) -> Chart,
    ) {
        let chart = |(i, panel): (usize, &Panel)| Chart {
            id: format!("{id}-{i}"),
            title: titled(title, &panel.title),
            ..chart(i, panel)
        };
        self.add(panels.iter().enumerate().map(chart).collect());
    }

    /// Adds charts of one probe, up to the limit. One or two have room to be wide.
    fn add(&mut self, mut charts: Vec<Chart>) {
        charts.retain(|chart| !chart.is_empty());
        if charts.len() <= 2 {
            charts.iter_mut().for_each(|chart| chart.wide = true);
        }
        self.left_out += charts.len().saturating_sub(MOST);
        charts.truncate(MOST);
        self.charts.extend(charts);
    }
}
