//! Samples as slices. A sample that is due before the previous one has ended gets another lane.

use std::io::Write;

use vcoop_experiment::format;
use vcoop_model::plan::Ns;
use vcoop_model::recording::Part;
use vcoop_model::trace_event::SampleEvent;

use super::packets::{Facts, Packets, number, text};
use super::schema::Type;
use super::tracks::{lane, lane_row};

/// The lanes of each probe's samples.
#[derive(Clone, Debug, Default)]
pub(super) struct Lanes {
    probes: Vec<Probe>,
}

#[derive(Clone, Debug)]
struct Probe {
    name: String,
    /// Samples of the measurement so far.
    count: u64,
    /// End of the last slice of each lane.
    ends: Vec<Ns>,
}

impl Lanes {
    /// Counts a sample, and writes it if the window is open.
    pub(super) fn sample<W: Write>(
        &mut self,
        packets: &mut Packets<W>,
        zero: Ns,
        open: bool,
        sample: &SampleEvent<'_>,
    ) {
        let known = self.probes.iter().position(|p| p.name == sample.probe);
        let p = known.unwrap_or_else(|| {
            let name = sample.probe.to_owned();
            self.probes.push(Probe { name, count: 0, ends: Vec::new() });
            self.probes.len() - 1
        });
        let probe = &mut self.probes[p];
        probe.count += u64::from(sample.counts);
        if !open || !sample.counts {
            return;
        }
        let begin = sample.due_ns.saturating_sub(zero);
        let end = (sample.due_ns + sample.latency_ns).saturating_sub(zero);
        let free = probe.ends.iter().position(|last| *last <= begin);
        let index = free.unwrap_or(probe.ends.len());
        if index == probe.ends.len() {
            probe.ends.push(0);
            packets.describe(lane_row(p, index, &probe.name));
        }
        probe.ends[index] = end;
        let name = format!("sample {}: {}", probe.count - 1, describe(sample));
        let mut notes = vec![number("latency_ns", sample.latency_ns)];
        for (part, ns) in Part::ALL.iter().zip(sample.parts).filter(|(_, ns)| **ns > 0) {
            notes.push(number(&format!("{}_ns", part.name()), *ns));
        }
        if let Some((who, ns)) = sample.behind {
            notes.push(text("behind", who));
            notes.push(number("behind_ns", ns));
        }
        let track = lane(p, index);
        let facts =
            Facts { category: "sample", name: &name, notes, single: true, ..Facts::default() };
        packets.event(track, begin, Type::SliceBegin, facts);
        packets.end(track, end);
    }
}

/// `6.2 ms, 5.9 ms host wait behind load`.
pub(crate) fn describe(sample: &SampleEvent<'_>) -> String {
    let time = |ns: Ns| format::time(ns as f64 / 1e3);
    let part = |p: Part| sample.parts[p as usize];
    let wait = part(Part::WakeToRun) + part(Part::PreemptedToRun);
    let (most, ns) = Part::ALL
        .iter()
        .map(|p| (*p, part(*p)))
        .filter(|(p, _)| !matches!(p, Part::WakeToRun | Part::PreemptedToRun))
        .fold((Part::TimerSlack, 0), |best, next| if next.1 > best.1 { next } else { best });
    let (cause, ns) = if wait >= ns {
        ("host wait".to_owned(), wait)
    } else {
        (most.name().replace('_', " "), ns)
    };
    let behind = match sample.behind {
        Some((who, _)) if cause == "host wait" => format!(" behind {who}"),
        _ => String::new(),
    };
    format!("{}, {} {cause}{behind}", time(sample.latency_ns), time(ns))
}
