//! Glitches, costs for the host, and work of the guests: a row for each quantity, a column for each policy.

use vcoop_experiment::format;
use vcoop_experiment::result::{Document, EXEC_METRIC, Interval, Params, Statistic, VM};
use vcoop_experiment::verdict;
use vcoop_model::distinct;

use crate::compare::{Direction, mark};
use crate::style::{POLICY, Style, Tone, cut, finish, name, side_by_side};

/// A number for a policy.
pub(crate) struct Entry {
    pub(crate) text: String,
    pub(crate) ratio: Option<f64>,
    pub(crate) interval: Option<Interval>,
    /// Repeats that it is from.
    pub(crate) repeats: u32,
}

/// A quantity, for each policy in the order of the document.
pub(crate) struct Row {
    pub(crate) label: String,
    pub(crate) better: Direction,
    pub(crate) entries: Vec<Option<Entry>>,
}

/// The costs of a cell; empty where nothing was measured.
pub(crate) fn render(document: &Document, cell: &(String, Params), style: Style) -> String {
    let rows = rows(document, cell);
    if rows.is_empty() {
        return String::new();
    }
    side_by_side(document, style, |columns| {
        let mut header = vec![String::new()];
        header.extend(columns.iter().map(|policy| cut(policy, POLICY)));
        let mut table = style.table(header.iter().map(String::as_str));
        for row in &rows {
            let mut cells = vec![style.cell(name(&row.label), Tone::Plain)];
            for policy in columns {
                let place = document.policies.iter().position(|p| p == policy);
                let entry = place.and_then(|i| row.entries.get(i)).and_then(Option::as_ref);
                cells.push(match entry {
                    Some(entry) => {
                        let (sign, tone) = mark(entry.interval, entry.repeats, row.better);
                        let ratio = entry.ratio.map(format::ratio).unwrap_or_default();
                        let text = format!("{} {ratio:>6} {sign:1}", entry.text);
                        style.cell(text.trim_end_matches(' '), tone)
                    }
                    None => style.cell("", Tone::Plain),
                });
            }
            table.add_row(cells);
        }
        finish(table, 1)
    })
}

/// The marks of a cell's ratios, without those of the latency table.
pub(crate) fn signs(document: &Document, cell: &(String, Params)) -> Vec<&'static str> {
    let rows = rows(document, cell);
    let own =
        rows.iter().filter(|row| row.better != Direction::Neutral && !row.label.ends_with(" p99"));
    own.flat_map(|row| row.entries.iter().flatten().map(|e| (e, row.better)))
        .map(|(entry, better)| mark(entry.interval, entry.repeats, better).0)
        .collect()
}

/// Numbers of the host that a policy may change in either direction: label and metric.
const OF_HOST: [(&str, &str); 7] = [
    ("host CPU", "cpu"),
    ("vcoop's engine", "engine"),
    ("host idle", "idle"),
    ("host polling", "polling"),
    ("host slowed by siblings", "slowed"),
    ("host idle by force", "forced_idle"),
    ("host switches", "switches"),
];

/// The same for a VM.
const OF_VM: [(&str, &str); 13] = [
    ("CPU", "cpu"),
    ("steal", "steal"),
    ("boosted", "boosted"),
    ("nice levels repaid", "lowered"),
    ("exits", "exits"),
    ("halt polling", "halt_poll"),
    ("polls won", "halt_polls.won"),
    ("polls lost", "halt_polls.lost"),
    ("halts p50", "halts.p50"),
    ("halts p90", "halts.p90"),
    ("own polling", "guest_poll"),
    ("rest, no exit", "guest_rest"),
    ("blind deadlines", "timer.blind"),
];

/// The quantities of a cell.
pub(crate) fn rows(document: &Document, cell: &(String, Params)) -> Vec<Row> {
    let of = Quantities { document, cell };
    let parts = [of.values(), of.host_latency(), of.work(), of.storms(), of.host(), of.vms()];
    let mut rows: Vec<Row> = parts.into_iter().flatten().collect();
    rows.retain(|row| row.entries.iter().any(Option::is_some));
    rows
}

/// Makes the rows of a cell.
struct Quantities<'d> {
    document: &'d Document,
    cell: &'d (String, Params),
}

impl<'d> Quantities<'d> {
    /// Glitches, and values printed by commands.
    fn values(&self) -> Vec<Row> {
        let glitches = self.probes("glitches").into_iter().map(|probe| {
            self.scalar(format!("{probe} glitches"), probe, "glitches", Direction::Less)
        });
        let printed = self.probes(EXEC_METRIC).into_iter().map(|probe| {
            let mut times = verdict::exec_times(self.document, self.cell);
            let is_time = times.any(|s| s.key.probe == probe);
            let better = if is_time { Direction::Less } else { Direction::Neutral };
            self.scalar(probe.to_owned(), probe, EXEC_METRIC, better)
        });
        glitches.chain(printed).collect()
    }

    fn host_latency(&self) -> Vec<Row> {
        let own = self.document.latencies().filter(|s| s.key.is_in(self.cell));
        let hosts = own.filter(|series| !series.is_of_a_guest());
        let row = |probe: &str, of: Statistic| {
            let entry = |policy: &String| {
                let series = self.document.latency(self.cell, probe, policy)?;
                let (ratio, interval) = series.ratio(of);
                let text = format::maybe_time(series.statistic(of).0);
                Some(Entry { text, ratio, interval, repeats: series.key.repeats })
            };
            let entries = self.document.policies.iter().map(entry).collect();
            Row { label: format!("{probe} {}", of.name()), better: Direction::Less, entries }
        };
        let probes = distinct(hosts.map(|series| series.key.name()));
        let both = |probe| [Statistic::Mean, Statistic::P99].map(|of| row(probe, of));
        probes.iter().flat_map(|probe| both(probe)).collect()
    }

    /// Work of loads, and calls.
    fn work(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for (load, _) in verdict::loads(self.document, self.cell, &self.document.baseline) {
            let probe = &load.key.probe;
            rows.push(self.scalar(format!("{probe} work"), probe, "throughput", Direction::More));
        }
        for (metric, better) in [("rate", Direction::More), ("served", Direction::Neutral)] {
            for probe in self.probes(metric) {
                let label = format!("{} {metric}", vm_words(probe));
                rows.push(self.scalar(label, probe, metric, better));
            }
        }
        rows
    }

    /// How many VMs were created, and how fast. If not every repeat passed the limit, or not all VMs came, a value is a
    /// lower bound.
    fn storms(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for guest in self.probes("started") {
            let row = |word: &str, metric, better| {
                self.scalar(format!("{guest} {word}"), guest, metric, better)
            };
            let of = |policy: &str, metric: &str| {
                self.document.scalar(self.cell, guest, metric, policy)?.value
            };
            let open = |policy: &str| of(policy, "limit_passed") < Some(1.0);
            rows.push(self.bounded(row("density", "density", Direction::More), open));
            for (word, metric, reached) in [
                ("VMStart mean", "start_mean", "started"),
                ("VMLogin mean", "login_mean", "logged_in"),
            ] {
                let open = |policy: &str| of(policy, reached) < of(policy, "asked");
                rows.push(self.bounded(row(word, metric, Direction::Less), open));
            }
        }
        rows
    }

    fn host(&self) -> Vec<Row> {
        let row =
            |label: &str, metric, better| self.scalar(label.to_owned(), "host", metric, better);
        let moved = OF_HOST.iter().map(|(label, metric)| row(label, metric, Direction::Neutral));
        moved.chain([row("host unfairness", "fairness_error", Direction::Less)]).collect()
    }

    /// Use and work of each VM, except observed vCPUs.
    fn vms(&self) -> Vec<Row> {
        let vcpus = self.probes("halted");
        let mut rows = Vec::new();
        for guest in self.probes("steal").into_iter().filter(|guest| !vcpus.contains(guest)) {
            for (word, metric) in OF_VM {
                let label = format!("{} {word}", vm_words(guest));
                rows.push(self.scalar(label, guest, metric, Direction::Neutral));
            }
            // Of simulated ones there are more telling numbers.
            let of_vm: &[&str] = if self.cell.0 == VM { &["boosts", "throttles"] } else { &[] };
            for metric in of_vm {
                let label = format!("{guest} {metric}");
                rows.push(self.scalar(label, guest, metric, Direction::Neutral));
            }
        }
        rows
    }

    fn probes(&self, metric: &str) -> Vec<&'d str> {
        probes_with(self.document, self.cell, metric)
    }

    fn scalar(&self, label: String, probe: &str, metric: &str, better: Direction) -> Row {
        let entry = |policy: &String| {
            let series = self.document.scalar(self.cell, probe, metric, policy)?;
            Some(Entry {
                text: format::maybe(series.value, |v| format::with_unit(v, &series.key.unit)),
                ratio: series.ratio_to_baseline,
                interval: series.ratio_ci95,
                repeats: series.key.repeats,
            })
        };
        Row { label, better, entries: self.document.policies.iter().map(entry).collect() }
    }

    /// Marks the values of policies that are lower bounds.
    fn bounded(&self, mut row: Row, is_bound: impl Fn(&str) -> bool) -> Row {
        for (policy, entry) in self.document.policies.iter().zip(&mut row.entries) {
            if let Some(entry) = entry.as_mut().filter(|_| is_bound(policy)) {
                entry.text = format!(">= {}", entry.text);
            }
        }
        row
    }
}

/// Label of a VM; the one for all VMs has no name.
fn vm_words(probe: &str) -> String {
    probe.strip_prefix('*').map_or_else(|| probe.to_owned(), |rest| format!("all VMs{rest}"))
}

/// Probes that have a scalar of this metric, in order.
pub(crate) fn probes_with<'d>(
    document: &'d Document,
    cell: &(String, Params),
    metric: &str,
) -> Vec<&'d str> {
    let found = document.scalars().filter(|s| s.key.is_in(cell) && s.key.metric == metric);
    distinct(found.map(|series| series.key.probe.as_str()))
}
