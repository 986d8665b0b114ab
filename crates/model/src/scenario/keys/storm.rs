//! The tables `[[storm]]` and `[[view]]`.

use crate::plan::{Milestone, Ns, Score};
use crate::toml_read::table::table;
use crate::toml_read::units::{Period, Span1, Time, time_pattern};
use crate::toml_read::value::{Int, Name, choice};
use crate::toml_read::{Placed, Text};

table! {
    /// VMs created during the run, batch by batch (a boot storm). For each VM the toolstack is called
    /// once and then the backends. The VM's vCPUs may run after the last answer (VMStart). Its task of
    /// kind = "boot" ends with VMLogin.
    pub(crate) struct StormKeys {
        /// Name; `--set` and views refer to it.
        name: Placed<Name>,
        /// The VMs: all copies of this one.
        vm: Placed<String>,
        /// Number of VMs in a batch.
        batch: Placed<Int<1, 1024>> = "1",
        /// Milestone that all VMs of a batch must reach before the next batch begins.
        next: Placed<Milestone> = "login",
        /// The next VM comes as soon as one VM has reached the milestone `next`, so that `batch` VMs are starting at
        /// any time.
        rolling: Placed<bool> = "false",
        /// When the first batch begins, from the start of the warm-up; not before its end. Default: at its end.
        start: Option<Placed<Time>>,
        /// Time from a batch's end to the next one's begin.
        gap: Placed<Time> = "0s",
        /// Server that is called for each VM (domain build): `host.LOAD` or `VM.TASK`; of several copies
        /// each in turn. Default: building takes no time.
        toolstack: Option<Placed<String>>,
        /// Calls of `backend` for each VM's devices, after the toolstack's.
        devices: Placed<Int<0, 1024>> = "0",
        /// Server that they call.
        backend: Option<Placed<String>>,
        /// Density: how many VMs are logged in before the response times of their tasks of kind =
        /// "desktop" pass this limit. Default: no limit, and no density in the result.
        limit: Option<Placed<Span1>>,
        /// Statistic of the response times that is compared with the limit.
        score: Placed<Score> = "p95",
        /// Only actions that begin within this time after a login count. Default: until the next login.
        window: Option<Placed<Span1>>,
    }
}

/// When a view begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartText {
    /// At a time.
    Time(Ns),
    /// With a VM of a storm.
    Reached(Milestone, u32),
}

impl Text for StartText {
    const WHAT: &'static str =
        "a time (\"5s\"), or a VM of a storm: \"start 20\" or \"login 20\" for the twentieth";
    const PATTERN: &'static str =
        concat!(r"^\s*((start|login)\s+[0-9]+|", time_pattern!(), r")\s*$");

    fn parse(text: &str) -> Result<Self, String> {
        let mut words = text.split_whitespace();
        let first = words.next();
        let Some(milestone) = Milestone::ALL.into_iter().find(|of| Some(of.name()) == first) else {
            return Time::parse(text).map(|time| Self::Time(time.0));
        };
        match (words.next().map(str::parse), words.next()) {
            (Some(Ok(number @ 1..)), None) => Ok(Self::Reached(milestone, number)),
            _ => Err(format!("`{}` does not say which VM, from 1", text.trim())),
        }
    }
}

choice! {
    /// A view.
    pub(crate) enum ViewKind {
        /// Every sample of a probe.
        Scatter = "scatter",
        /// What ran on a pCPU, over time.
        Intervals = "intervals",
    }
}

table! {
    /// A view of single runs beside the series; in the result it is that of the first repeat.
    pub(crate) struct ViewKeys {
        /// What it shows.
        kind: Placed<ViewKind>,
        /// scatter: the series, as `[[probe]]` names it.
        probe: Option<Placed<String>>,
        /// scatter: most samples kept.
        most: Placed<Int<1, 10_000_000>> = "100_000",
        /// intervals: pCPU. Default: the first on which the VM of `at` runs from then on.
        pcpu: Option<Placed<Int<0, 1023>>>,
        /// intervals: begin of the view: a time from the start of the warm-up, or "start 20", "login 20"
        /// for the twentieth VM of a storm.
        at: Option<Placed<StartText>>,
        /// intervals: the storm of `at`. Default: the only one.
        storm: Option<Placed<String>>,
        /// intervals: length of the view.
        length: Placed<Period> = "20ms",
    }
}
