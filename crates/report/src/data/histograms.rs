//! Full-resolution histograms in the formats of other tools.

use std::fmt::Write;
use std::time::{Duration, UNIX_EPOCH};

use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};
use vcoop_experiment::repeat_summary::Latency;
use vcoop_model::plan::Plan;
use vcoop_statistics::bins::Bins;

/// Most rows of a text histogram: larger values are overflows, as with `cyclictest -h`.
const MOST_ROWS: u64 = 100_000;

/// One repeat of one series, as an interval of a log.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interval<'a> {
    pub(super) backend: &'a str,
    pub(super) plan: &'a Plan,
    pub(super) repeat: u32,
    pub(super) latency: &'a Latency,
}

/// `latency.hlog`: an HdrHistogram log, version 1.3, with one line a series and repeat, tagged
/// `BACKEND:POLICY:SERIES` and the cell. Values are nanoseconds.
///
/// # Errors
///
/// A histogram that cannot be written; runs make none.
pub(super) fn log(intervals: &[Interval<'_>]) -> Result<String, String> {
    let mut bytes = Vec::new();
    let mut serializer = V2DeflateSerializer::new();
    let mut builder = IntervalLogWriterBuilder::new();
    // Times are those of the run: repeats stand one after the other, from zero.
    builder.add_comment("values are nanoseconds; one line a series and repeat");
    builder.with_base_time(UNIX_EPOCH).with_max_value_divisor(1e6);
    let mut writer =
        builder.begin_log_with(&mut bytes, &mut serializer).map_err(|e| e.to_string())?;
    for i in intervals {
        let length = Duration::from_nanos(i.plan.duration_ns);
        let tag = tag(i);
        writer
            .write_histogram(&i.latency.bins.histogram(), length * i.repeat, length, Tag::new(&tag))
            .map_err(|e| format!("{e:?}"))?;
    }
    String::from_utf8(bytes).map_err(|e| e.to_string())
}

/// A tag, without commas and spaces.
fn tag(i: &Interval<'_>) -> String {
    let mut tag = format!("{}:{}:{}", i.backend, i.plan.policy_name, i.latency.name());
    for (key, value) in &i.plan.params {
        let _ = write!(tag, ":{key}={value}");
    }
    tag.replace([',', ' ', '\n', '\r'], "_")
}

/// A percentile distribution as HdrHistogram's tools print and plot it, in microseconds.
pub(super) fn hgrm(repeats: &[&Latency]) -> String {
    let mut all = Bins::default();
    repeats.iter().for_each(|latency| all.merge(&latency.bins));
    let histogram = all.histogram();
    let mut out = String::from("       Value     Percentile TotalCount 1/(1-Percentile)\n\n");
    let mut sum = 0;
    for step in histogram.iter_quantiles(5) {
        sum += step.count_since_last_iteration();
        let value = step.value_iterated_to() as f64 / 1e3;
        let quantile = step.quantile_iterated_to();
        let _ = if quantile < 1.0 {
            let inverse = 1.0 / (1.0 - quantile);
            writeln!(out, "{value:12.3} {quantile:1.12} {sum:10} {inverse:14.2}")
        } else {
            writeln!(out, "{value:12.3} {quantile:1.12} {sum:10}            inf")
        };
    }
    let (mean, deviation) = (histogram.mean() / 1e3, histogram.stdev() / 1e3);
    let (max, count) = (histogram.max() as f64 / 1e3, histogram.len());
    let _ = writeln!(out, "#[Mean    = {mean:12.3}, StdDeviation   = {deviation:12.3}]");
    let _ = writeln!(out, "#[Max     = {max:12.3}, Total count    = {count:12}]");
    let buckets = histogram.buckets();
    let _ = writeln!(out, "#[Buckets = {buckets:12}, SubBuckets     = {:12}]", 2048);
    out
}

/// A column of a text histogram: a policy, and its repeats together.
pub(super) struct Column<'a> {
    pub(super) policy: &'a str,
    pub(super) repeats: Vec<&'a Latency>,
}

/// A histogram in the format of `cyclictest -h`: rows of microseconds, a column for each policy instead of each thread.
/// A sample above 2 ms is in the last row of its bucket, which is at most a thousandth above it.
pub(super) fn cyclictest(columns: &[Column<'_>]) -> String {
    let rows = |column: &Column<'_>| -> Vec<(u64, u64)> {
        let bins = column.repeats.iter().flat_map(|l| l.bins.iter());
        bins.map(|(ns, count)| (ns / 1000, count)).collect()
    };
    let columns: Vec<(&Column<'_>, Vec<(u64, u64)>)> =
        columns.iter().map(|c| (c, rows(c))).collect();
    let last = columns.iter().flat_map(|(_, bins)| bins).map(|(us, _)| *us).max().unwrap_or(0);
    let height = (last + 1).min(MOST_ROWS);
    let mut counts = vec![vec![0u64; columns.len()]; height as usize];
    let mut over = vec![0u64; columns.len()];
    for (c, (_, bins)) in columns.iter().enumerate() {
        for (us, count) in bins {
            match counts.get_mut(*us as usize) {
                Some(row) => row[c] += count,
                None => over[c] += count,
            }
        }
    }
    let names: Vec<&str> = columns.iter().map(|(c, _)| c.policy).collect();
    let mut out = format!("# Columns: {}\n# Histogram\n", names.join(" "));
    let line = |numbers: &mut dyn Iterator<Item = u64>, width: usize, gap: &str| {
        numbers.map(|n| format!("{n:0width$}")).collect::<Vec<_>>().join(gap)
    };
    for (us, row) in counts.iter().enumerate() {
        let _ = writeln!(out, "{us:06} {}", line(&mut row.iter().copied(), 6, "\t"));
    }
    let each = |of: &dyn Fn(&[&Latency]) -> u64| {
        line(&mut columns.iter().map(|(c, _)| of(&c.repeats)), 5, " ")
    };
    let total = |l: &[&Latency]| l.iter().map(|l| l.count).sum::<u64>();
    let _ = writeln!(
        out,
        "# Total: {}",
        line(&mut columns.iter().map(|(c, _)| total(&c.repeats)), 9, " ")
    );
    let with_samples = |l: &[&Latency]| l.iter().any(|l| l.count > 0);
    let min = |l: &[&Latency]| match with_samples(l) {
        true => l.iter().filter(|l| l.count > 0).map(|l| l.min_ns / 1000).min().unwrap_or(0),
        false => 0,
    };
    let _ = writeln!(out, "# Min Latencies: {}", each(&min));
    let mean = |l: &[&Latency]| {
        let sum: u128 = l.iter().map(|l| l.sum_ns).sum();
        (sum / 1000).checked_div(u128::from(total(l))).unwrap_or(0) as u64
    };
    let _ = writeln!(out, "# Avg Latencies: {}", each(&mean));
    let max = |l: &[&Latency]| l.iter().map(|l| l.max_ns / 1000).max().unwrap_or(0);
    let _ = writeln!(out, "# Max Latencies: {}", each(&max));
    let _ = writeln!(out, "# Histogram Overflows: {}", line(&mut over.iter().copied(), 5, " "));
    out
}

#[cfg(test)]
mod tests {
    use super::{Column, cyclictest, hgrm};
    use vcoop_experiment::repeat_summary::Latency;

    fn latency(bins: &[(u64, u64)]) -> Latency {
        Latency {
            probe: "p".into(),
            metric: "latency",
            bins: bins.iter().copied().collect(),
            count: bins.iter().map(|b| b.1).sum(),
            sum_ns: bins.iter().map(|b| u128::from(b.0 * b.1)).sum(),
            min_ns: bins[0].0,
            max_ns: bins[bins.len() - 1].0,
            ..Latency::default()
        }
    }

    #[test]
    fn a_text_histogram_has_a_row_a_microsecond() {
        let (a, b) = (latency(&[(1_500, 2), (3_000, 1)]), latency(&[(999, 5)]));
        let columns = [
            Column { policy: "vanilla", repeats: vec![&a] },
            Column { policy: "dynamic", repeats: vec![&b, &b] },
        ];
        assert_eq!(
            cyclictest(&columns),
            "# Columns: vanilla dynamic\n# Histogram\n000000 000000\t000010\n\
             000001 000002\t000000\n000002 000000\t000000\n000003 000001\t000000\n\
             # Total: 000000003 000000010\n# Min Latencies: 00001 00000\n\
             # Avg Latencies: 00002 00000\n# Max Latencies: 00003 00000\n\
             # Histogram Overflows: 00000 00000\n"
        );
    }

    #[test]
    fn a_distribution_ends_with_all_samples_and_the_largest() {
        let l = latency(&[(1_000, 99), (2_000_000, 1)]);
        let text = hgrm(&[&l]);
        let rows: Vec<&str> = text.lines().skip(2).filter(|l| !l.starts_with('#')).collect();
        let last: Vec<&str> = rows[rows.len() - 1].split_whitespace().collect();
        assert_eq!((last[1], last[2], last[3]), ("1.000000000000", "100", "inf"));
        assert!(last[0].parse::<f64>().is_ok_and(|us| (2000.0..2002.0).contains(&us)));
        let half: Vec<&str> = rows[1].split_whitespace().collect();
        assert!(half[0].parse::<f64>().is_ok_and(|us| (0.99..1.01).contains(&us)), "{text}");
    }
}
