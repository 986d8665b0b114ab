//! Glitches, what it costs the host, what the guest gets: a row a quantity, a column a policy.

use vcoop_experiment::format;
use vcoop_experiment::result::{Document, Interval, Key, LatencySeries, Params, Series};
use vcoop_experiment::result::{EXEC_METRIC, VM};
use vcoop_experiment::verdict;
use vcoop_model::distinct;

use crate::compare::{Better, mark};
use crate::style::{POLICY, Style, Tone, cut, finish, name, side_by_side};

/// A number of a policy.
pub(crate) struct Entry {
    pub(crate) text: String,
    pub(crate) ratio: Option<f64>,
    pub(crate) interval: Option<Interval>,
    /// Repeats that it is from.
    pub(crate) repeats: u32,
}

/// A quantity: of each policy, in the order of the document.
pub(crate) struct Row {
    pub(crate) label: String,
    pub(crate) better: Better,
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

/// The signs of a cell's judged ratios, but for those that the latency table has.
pub(crate) fn signs(document: &Document, cell: &(String, Params)) -> Vec<&'static str> {
    let rows = rows(document, cell);
    let own =
        rows.iter().filter(|row| row.better != Better::Neutral && !row.label.ends_with(" p99"));
    own.flat_map(|row| row.entries.iter().flatten().map(|e| (e, row.better)))
        .map(|(entry, better)| mark(entry.interval, entry.repeats, better).0)
        .collect()
}

/// The quantities of a cell.
pub(crate) fn rows(document: &Document, cell: &(String, Params)) -> Vec<Row> {
    let mut rows = Vec::new();
    for probe in probes_with(document, cell, "glitches") {
        let label = format!("{probe} glitches");
        rows.push(scalar_row(document, cell, label, probe, "glitches", Better::Less));
    }
    for probe in probes_with(document, cell, EXEC_METRIC) {
        let is_time = verdict::exec_times(document, cell).any(|s| s.key.probe == probe);
        let better = if is_time { Better::Less } else { Better::Neutral };
        rows.push(scalar_row(document, cell, probe.to_owned(), probe, EXEC_METRIC, better));
    }
    let hosts = document.latencies().filter(|s| s.key.is_in(cell) && !s.is_of_a_guest());
    for probe in distinct(hosts.map(|series| series.key.name())) {
        let of = |policy: &str| {
            document
                .latencies()
                .find(|s| s.key.is_in(cell) && s.key.is_named(&probe) && s.key.policy == policy)
        };
        rows.push(latency_row(document, format!("{probe} mean"), of, |s| Entry {
            text: format::maybe_time(s.mean),
            ratio: s.ratio_to_baseline.and_then(|r| r.mean),
            interval: s.ratio_ci95.and_then(|r| r.mean),
            repeats: s.key.repeats,
        }));
        rows.push(latency_row(document, format!("{probe} p99"), of, |s| Entry {
            text: format::maybe_time(s.p99),
            ratio: s.ratio_to_baseline.and_then(|r| r.p99),
            interval: s.ratio_ci95.and_then(|r| r.p99),
            repeats: s.key.repeats,
        }));
    }
    for (load, _) in verdict::loads(document, cell, &document.baseline) {
        let label = format!("{} work", load.key.probe);
        rows.push(scalar_row(document, cell, label, &load.key.probe, "throughput", Better::More));
    }
    for (metric, word) in [("rate", "rate"), ("served", "served")] {
        let better = if metric == "rate" { Better::More } else { Better::Neutral };
        for probe in probes_with(document, cell, metric) {
            let label = format!("{} {word}", vm_words(probe));
            rows.push(scalar_row(document, cell, label, probe, metric, better));
        }
    }
    for guest in probes_with(document, cell, "started") {
        let row = |word: &str, metric, better| {
            scalar_row(document, cell, format!("{guest} {word}"), guest, metric, better)
        };
        let of = |policy: &str, metric: &str| {
            let is = |key: &Key| key.probe == guest && key.metric == metric && key.policy == policy;
            document.scalars().find(|s| s.key.is_in(cell) && is(&s.key)).and_then(|s| s.value)
        };
        // How many VMs the host carries; where not every repeat passed the limit, at least so many.
        let open = |policy: &str| of(policy, "limit_passed") < Some(1.0);
        rows.push(bounded(document, row("density", "density", Better::More), open));
        for (word, metric, reached) in
            [("VMStart mean", "start_mean", "started"), ("VMLogin mean", "login_mean", "logged_in")]
        {
            let open = |policy: &str| of(policy, reached) < of(policy, "asked");
            rows.push(bounded(document, row(word, metric, Better::Less), open));
        }
    }
    let host = |label: &str, metric| {
        scalar_row(document, cell, label.to_owned(), "host", metric, Better::Neutral)
    };
    rows.push(host("host CPU", "cpu"));
    rows.push(host("vcoop's engine", "engine"));
    rows.push(host("host idle", "idle"));
    rows.push(host("host polling", "polling"));
    rows.push(host("host slowed by siblings", "slowed"));
    rows.push(host("host idle by force", "forced_idle"));
    rows.push(host("host switches", "switches"));
    let label = "host unfairness".to_owned();
    rows.push(scalar_row(document, cell, label, "host", "fairness_error", Better::Less));
    let vcpus = probes_with(document, cell, "halted");
    let guests = probes_with(document, cell, "steal").into_iter();
    for guest in guests.filter(|guest| !vcpus.contains(guest)) {
        for (metric, word) in [
            ("cpu", "CPU"),
            ("steal", "steal"),
            ("boosted", "boosted"),
            ("lowered", "nice levels repaid"),
            ("exits", "exits"),
            ("halt_poll", "halt polling"),
            ("halt_polls.won", "polls won"),
            ("halt_polls.lost", "polls lost"),
            ("halts.p50", "halts p50"),
            ("halts.p90", "halts p90"),
            ("guest_poll", "own polling"),
            ("guest_rest", "rest, no exit"),
            ("timer.blind", "blind deadlines"),
        ] {
            let label = format!("{} {word}", vm_words(guest));
            rows.push(scalar_row(document, cell, label, guest, metric, Better::Neutral));
        }
        // Of simulated ones there are more telling numbers.
        let of_vm: &[&str] = if cell.0 == VM { &["boosts", "throttles"] } else { &[] };
        for metric in of_vm {
            let label = format!("{guest} {metric}");
            rows.push(scalar_row(document, cell, label, guest, metric, Better::Neutral));
        }
    }
    rows.retain(|row| row.entries.iter().any(Option::is_some));
    rows
}

/// All VMs together have no name.
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

fn latency_row<'d>(
    document: &Document,
    label: String,
    of: impl Fn(&str) -> Option<&'d LatencySeries>,
    entry: impl Fn(&LatencySeries) -> Entry,
) -> Row {
    let entries = document.policies.iter().map(|policy| of(policy).map(&entry)).collect();
    Row { label, better: Better::Less, entries }
}

/// The row, with the values of policies marked that are lower bounds.
fn bounded(document: &Document, mut row: Row, is_bound: impl Fn(&str) -> bool) -> Row {
    for (policy, entry) in document.policies.iter().zip(&mut row.entries) {
        if let Some(entry) = entry.as_mut().filter(|_| is_bound(policy)) {
            entry.text = format!(">= {}", entry.text);
        }
    }
    row
}

fn scalar_row(
    document: &Document,
    cell: &(String, Params),
    label: String,
    probe: &str,
    metric: &str,
    better: Better,
) -> Row {
    let of = |policy: &String| {
        let series = document.series.iter().find_map(|series| match series {
            Series::Scalar(s)
                if s.key.is_in(cell)
                    && s.key.probe == probe
                    && s.key.metric == metric
                    && s.key.policy == *policy =>
            {
                Some(s)
            }
            _ => None,
        })?;
        Some(Entry {
            text: format::maybe(series.value, |value| format::with_unit(value, &series.key.unit)),
            ratio: series.ratio_to_baseline,
            interval: series.ratio_ci95,
            repeats: series.key.repeats,
        })
    };
    Row { label, better, entries: document.policies.iter().map(of).collect() }
}
