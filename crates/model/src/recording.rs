//! Results of one run of one plan.
//!
//! Memory does not grow with measured time: histograms, sums, and the few worst samples.

mod in_use;
mod slices;
mod views;

use std::borrow::Cow;
use std::collections::BTreeMap;

use hdrhistogram::Histogram;

use crate::named;
use crate::plan::Ns;
pub use in_use::InUse;
pub use slices::{PolicyEvent, PolicyEvents, Slice, Slices};
pub use views::{Intervals, Mark, MarkKind, Scatter, Span};

/// Results of one repeat from a backend.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// Latency series, in the order of the names in `Plan::probes`.
    pub latencies: Vec<LatencyRecord>,
    /// Scalar results, keyed and ordered by `(probe, metric)`.
    pub scalars: BTreeMap<(String, String), Scalar>,
    /// Engine accounting (simulator only).
    pub engine: Option<EngineStats>,
    /// Events of the VMs of storms, by time.
    pub marks: Vec<Mark>,
    /// Scatter views, in the order of the plan.
    pub scatters: Vec<Scatter>,
    /// Interval views, in the order of the plan.
    pub intervals: Vec<Intervals>,
    /// Policy events over time, if the plan asks for slices; by VM, in the order of the plan.
    pub policy_events: Vec<PolicyEvents>,
    /// vCPUs in use over time, if the plan asks for slices; for VMs that can avoid some.
    pub in_use: Vec<InUse>,
    /// Fault of a simulated guest that ended the run early, with VM and vCPU.
    pub fault: Option<String>,
}

impl Recording {
    /// Adds a scalar.
    pub fn put(&mut self, probe: &str, metric: &str, unit: &'static str, value: f64) {
        self.scalars.insert((probe.to_owned(), metric.to_owned()), Scalar { unit, value });
    }

    /// The value of a scalar.
    pub fn scalar(&self, probe: &str, metric: &str) -> Option<f64> {
        self.scalars.get(&(probe.to_owned(), metric.to_owned())).map(|scalar| scalar.value)
    }
}

/// A scalar result and its unit.
#[derive(Clone, Debug, PartialEq)]
pub struct Scalar {
    /// Unit in plain text (`1/s`, `%`, `count`, `us`).
    pub unit: &'static str,
    /// Value.
    pub value: f64,
}

/// Counters of the simulator that do not depend on how its queue works.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineStats {
    /// Model events executed.
    pub events: u64,
    /// CPU time (user + system) of the thread that ran them.
    pub cpu_ns: u64,
    /// Simulated time.
    pub sim_ns: u64,
}

named! {
    /// Where the time of a sample went. The parts of a sample add up to it exactly.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    #[repr(u8)]
    pub enum Part {
        /// Deliberate timer lateness (slack).
        TimerSlack = "timer_slack",
        /// Leaving an idle state of the pCPU, incl. the IPI that wakes it.
        CState = "cstate",
        /// Host interrupt handling, and waiting for a host CPU that has interrupts off.
        HostIrq = "host_irq",
        /// vCPU (or host thread) on a run queue since its wake-up.
        WakeToRun = "wake_to_run",
        /// vCPU (or host thread) on a run queue since it was preempted.
        PreemptedToRun = "preempted_to_run",
        /// Held back by RT throttling, a quota, a reservation or a cap.
        Throttled = "throttled",
        /// Host scheduler, context switch, priority changes, signals to other threads.
        HostSwitch = "host_switch",
        /// VM exits and entries, and the work done for them.
        EntryExit = "entry_exit",
        /// Interrupt pending but not taken: posted while the guest runs something else or has
        /// interrupts off. Of a round trip also the flight of IPIs.
        Delivery = "delivery",
        /// Guest interrupt and softirq handlers.
        GuestIrq = "guest_irq",
        /// Guest run queue: another guest task had the vCPU.
        GuestWait = "guest_wait",
        /// Guest scheduler and context switch.
        GuestSwitch = "guest_switch",
        /// Round trips: the server worked on earlier calls.
        ServiceQueue = "service_queue",
        /// Round trips: the server's work on this call, including cold caches and its waits. Response times of
        /// desktops: also the desktop's own work.
        Service = "service",
        /// The task itself was still busy with an earlier period, or delayed in it.
        Overrun = "overrun",
        /// In guest mode: spinning for a spinlock, or halted for it, by the task or by another task that so kept it
        /// from its vCPU.
        LockWait = "lock_wait",
        /// In guest mode: spinning until other vCPUs have called a function (a TLB shootdown), likewise.
        CallWait = "call_wait",
    }
}

/// One value for each part, in nanoseconds.
pub type Parts = [Ns; Part::COUNT];

/// A latency series of one repeat.
///
/// A sample that is due but still open when the run ends is recorded as far as it has come: its latency is a lower
/// bound. Otherwise a task that is starved to the end would look better than a late one.
#[derive(Clone, Debug)]
pub struct LatencyRecord {
    /// `host.cyclictest`, `guest.cyclictest`, ...
    pub probe: String,
    /// `latency` (cyclictest and audio: due to first instruction; ping: the round trip, call to
    /// first instruction after the answer; desktop: the response time, due to the end of the action);
    /// [`WAIT`](Self::WAIT) or [`PREEMPTED`](Self::PREEMPTED) of a vCPU.
    pub metric: &'static str,
    /// Nanoseconds, 3 significant digits, up to 60 s; larger values saturate. Sum, minimum and maximum are exact.
    pub hist: Histogram<u64>,
    /// Periods without a sample, because the task was still late when they were due. Includes those still open at the
    /// end.
    pub missed: u64,
    /// Sum over all samples, exactly.
    pub sum_ns: u128,
    /// Smallest sample, exactly.
    pub min_ns: Ns,
    /// Largest sample, exactly.
    pub max_ns: Ns,
    /// Sum of each part over all samples; the total equals `sum_ns`.
    pub parts_sum: [u128; Part::COUNT],
    /// The same by size of the sample: bucket `b` has samples with `floor(log2(ns)) == b`.
    pub parts_by_log2: Box<[[u128; Part::COUNT]; 64]>,
    /// Samples in each such bucket.
    pub count_by_log2: [u64; 64],
    /// Threads on the pCPU while this one waited for it: total time by label.
    pub ran_instead: BTreeMap<String, u128>,
    /// The worst samples, largest first.
    pub worst: Vec<WorstSample>,
    /// Latencies by due time, if the plan asks for slices.
    pub slices: Option<Box<Slices>>,
}

/// One minute.
const HIGHEST_NS: Ns = 60_000_000_000;

impl LatencyRecord {
    /// How many of the worst samples a backend keeps.
    pub const WORST: usize = 16;

    /// Metric of a vCPU's waits for a pCPU, from a wake-up of its thread until it runs.
    pub const WAIT: &str = "wait";

    /// Metric of a vCPU's waits for a pCPU after a preemption of its thread.
    pub const PREEMPTED: &str = "preempted";

    /// Last part of the name of the probe for urgent tasks that a guest's driver measures.
    pub const URGENT: &str = "urgent";

    /// Name of a series: its probe, and its metric if that is not `latency`.
    pub fn name<'n>(probe: &'n str, metric: &str) -> Cow<'n, str> {
        match metric {
            "latency" => Cow::Borrowed(probe),
            metric => Cow::Owned(format!("{probe} {metric}")),
        }
    }

    /// One that counts latencies.
    pub fn histogram() -> Histogram<u64> {
        Histogram::new_with_max(HIGHEST_NS, 3)
            .expect("one minute with three digits is a valid histogram")
    }

    /// A series without samples.
    pub fn new(probe: &str) -> Self {
        Self {
            probe: probe.to_owned(),
            metric: "latency",
            hist: Self::histogram(),
            missed: 0,
            sum_ns: 0,
            min_ns: Ns::MAX,
            max_ns: 0,
            parts_sum: [0; Part::COUNT],
            parts_by_log2: Box::new([[0; Part::COUNT]; 64]),
            count_by_log2: [0; 64],
            ran_instead: BTreeMap::new(),
            worst: Vec::new(),
            slices: None,
        }
    }

    /// Also keeps latencies over time, in so many slices of the measured time; none if 0.
    pub fn sliced(mut self, slices: u32, duration_ns: Ns) -> Self {
        self.slices = (slices > 0).then(|| Box::new(Slices::new(slices, duration_ns)));
        self
    }

    /// Adds a sample. `due`: from the start of the measurement. `ran`: threads on the pCPU meanwhile, by label, largest
    /// first.
    pub fn take<'a>(
        &mut self,
        due: Ns,
        latency: Ns,
        parts: &Parts,
        ran: impl Iterator<Item = (&'a str, Ns)> + Clone,
    ) {
        self.book(latency, parts);
        if let Some(slices) = &mut self.slices {
            slices.book(due, latency);
        }
        for (who, ns) in ran.clone() {
            // A name is copied only when it is new.
            match self.ran_instead.get_mut(who) {
                Some(sum) => *sum += u128::from(ns),
                None => {
                    self.ran_instead.insert(who.to_owned(), u128::from(ns));
                }
            }
        }
        if self.worst.len() < Self::WORST
            || self.worst.last().is_some_and(|w| latency > w.latency_ns)
        {
            let at = self.worst.partition_point(|w| w.latency_ns >= latency);
            self.worst.truncate(Self::WORST - 1);
            let ran_instead = ran.map(|(who, ns)| (who.to_owned(), ns)).collect();
            let worst =
                WorstSample { due_ns: due, latency_ns: latency, parts: *parts, ran_instead };
            self.worst.insert(at.min(self.worst.len()), worst);
        }
    }

    /// Adds a sample to histogram, sums and slices only.
    #[inline]
    pub fn book(&mut self, latency: Ns, parts: &Parts) {
        self.hist.saturating_record(latency);
        self.sum_ns += u128::from(latency);
        self.min_ns = self.min_ns.min(latency);
        self.max_ns = self.max_ns.max(latency);
        let bucket = latency.max(1).ilog2() as usize;
        self.count_by_log2[bucket] += 1;
        for (i, &ns) in parts.iter().enumerate() {
            self.parts_sum[i] += u128::from(ns);
            self.parts_by_log2[bucket][i] += u128::from(ns);
        }
    }
}

/// One of the worst samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorstSample {
    /// When it was due, from the start of the measurement.
    pub due_ns: Ns,
    /// How late it was.
    pub latency_ns: Ns,
    /// Its parts.
    pub parts: Parts,
    /// Threads on the pCPU while it waited: label and time, largest first.
    pub ran_instead: Vec<(String, Ns)>,
}
