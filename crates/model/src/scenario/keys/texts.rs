//! Scheduling policies and boost means, as files write them.

use vcoop_policy::config::{AdvanceConfig, Means};
use vcoop_sched::check_reservation;
use vcoop_sched::config::{Policy, Quota};

use crate::plan::Ns;
use crate::toml_read::Text;
use crate::toml_read::units::{AtLeast, Time, time_pattern};

/// A reservation of SCHED_DEADLINE in the pattern of a [`Text`].
macro_rules! reservation_pattern {
    () => {
        concat!(r"deadline\s+", time_pattern!(), r"(\s*/\s*", time_pattern!(), "){1,2}")
    };
}

/// Range of a custom slice, as `sched_setattr` takes it.
pub(crate) const SLICES: std::ops::RangeInclusive<Ns> = 100_000..=100_000_000;

impl Text for Policy {
    const WHAT: &'static str = "\"other\", \"idle\", \"fifo 1..99\", \"rr 1..99\", \"nice -20..19\", \
         \"slice 0.1ms..100ms\" (EEVDF), \"nice N slice T\", \"deadline RUNTIME/PERIOD\" or \
         \"deadline RUNTIME/DEADLINE/PERIOD\"";
    const PATTERN: &'static str = concat!(
        r"^\s*(other|idle|(fifo|rr)\s+\+?[0-9]+|nice\s+[+-]?[0-9]+(\s+slice\s+",
        time_pattern!(),
        r")?|slice\s+",
        time_pattern!(),
        "|",
        reservation_pattern!(),
        r")\s*$"
    );

    fn parse(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        Ok(match words[..] {
            ["other"] => Self::NORMAL,
            ["idle"] => Self::Idle,
            ["fifo", priority] => Self::Fifo(rt_priority(priority)?),
            ["rr", priority] => Self::Rr(rt_priority(priority)?),
            ["nice", value] => Self::Normal { nice: nice(value)?, slice_ns: None },
            ["slice", ref time @ ..] => Self::Normal { nice: 0, slice_ns: Some(slice(time)?) },
            ["nice", value, "slice", ref time @ ..] => {
                Self::Normal { nice: nice(value)?, slice_ns: Some(slice(time)?) }
            }
            ["deadline", ..] => {
                let (runtime_ns, deadline_ns, period_ns) = reservation(text)?;
                Self::Deadline { runtime_ns, deadline_ns, period_ns }
            }
            _ => return Err(format!("`{text}` is not a scheduling policy")),
        })
    }
}

impl Text for Means {
    const WHAT: &'static str = "\"fifo 1..99\", \"rr 1..99\", \"nice -20..19\", \"slice 0.1ms..100ms\" (EEVDF), \
         \"deadline RUNTIME/PERIOD\" or \"deadline RUNTIME/DEADLINE/PERIOD\", \"ext\" (scx_vcoop)";
    const PATTERN: &'static str = concat!(
        r"^\s*(ext|(fifo|rr)\s+\+?[0-9]+|nice\s+[+-]?[0-9]+|slice\s+",
        time_pattern!(),
        "|",
        reservation_pattern!(),
        r")\s*$"
    );

    fn parse(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        Ok(match words[..] {
            ["fifo", priority] => Self::Fifo(rt_priority(priority)?),
            ["rr", priority] => Self::Rr(rt_priority(priority)?),
            ["nice", value] => Self::Nice(nice(value)?),
            ["ext"] => Self::Ext,
            ["slice", ref time @ ..] => Self::Slice(slice(time)?),
            ["deadline", ..] => {
                let (runtime_ns, deadline_ns, period_ns) = reservation(text)?;
                Self::Deadline { runtime_ns, deadline_ns, period_ns }
            }
            _ => return Err(format!("`{text}` is not a means of boosting")),
        })
    }
}

/// A limit on CPU time in each period, as of the file `cpu.max`: both in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CpuMax {
    pub(crate) runtime_ns: Ns,
    pub(crate) period_ns: Ns,
}

impl CpuMax {
    /// Default of `cpu.max`.
    const PERIOD: Ns = 100_000_000;
}

impl Text for CpuMax {
    const WHAT: &'static str =
        "\"QUOTA/PERIOD\", such as \"200ms/100ms\" for two CPUs, or \"QUOTA\" in a period of 100ms";
    const PATTERN: &'static str =
        concat!(r"^\s*", time_pattern!(), r"(\s*/\s*", time_pattern!(), r")?\s*$");

    fn parse(text: &str) -> Result<Self, String> {
        let time = |text: &str| AtLeast::<1>::parse(text.trim()).map(|AtLeast(ns)| ns);
        let (runtime, period) = match text.split_once('/') {
            Some((runtime, period)) => (runtime, time(period)?),
            None => (text, Self::PERIOD),
        };
        let runtime_ns = time(runtime)?;
        if runtime_ns < Quota::LEAST_NS {
            return Err(format!(
                "a quota of {} is too short: Linux takes 1ms or more",
                runtime.trim()
            ));
        }
        if !(Quota::LEAST_NS..=Quota::LONGEST_NS).contains(&period) {
            return Err(format!("the period of `{text}`: Linux takes 1ms to 1s"));
        }
        Ok(Self { runtime_ns, period_ns: period })
    }
}

/// Longest fixed advance of a guest's timer: the vCPU spins until the deadline.
const MAX_ADVANCE_NS: Ns = 1_000_000;

impl Text for AdvanceConfig {
    const WHAT: &'static str =
        "\"none\", \"adaptive\", or a duration of at most \"1ms\", like \"2us\"";
    const PATTERN: &'static str = concat!(r"^\s*(none|adaptive|", time_pattern!(), r")\s*$");

    fn parse(text: &str) -> Result<Self, String> {
        match text.trim() {
            "none" => Ok(Self::None),
            "adaptive" => Ok(Self::Adaptive),
            other => match Time::parse(other)?.0 {
                ns @ ..=MAX_ADVANCE_NS => Ok(Self::Fixed(ns)),
                _ => Err(format!("`{other}` is more than 1ms")),
            },
        }
    }
}

fn rt_priority(text: &str) -> Result<u8, String> {
    match text.parse() {
        Ok(priority @ 1..=99) => Ok(priority),
        _ => Err(format!("`{text}` is no real-time priority: they go from 1 to 99, 99 highest")),
    }
}

fn nice(text: &str) -> Result<i8, String> {
    match text.parse() {
        Ok(nice @ -20..=19) => Ok(nice),
        _ => Err(format!("`{text}` is no nice value: they go from -20 (most) to 19")),
    }
}

/// A slice, of the words of its time.
fn slice(time: &[&str]) -> Result<Ns, String> {
    let text = time.join(" ");
    let AtLeast::<1>(ns) = AtLeast::parse(&text)?;
    if SLICES.contains(&ns) {
        Ok(ns)
    } else {
        Err(format!("`{text}` is no slice the kernel takes: they go from 100us to 100ms"))
    }
}

/// Runtime, deadline and period of `deadline RUNTIME/PERIOD` or `deadline RUNTIME/DEADLINE/PERIOD`.
fn reservation(text: &str) -> Result<(Ns, Ns, Ns), String> {
    let times = text.trim_start().strip_prefix("deadline").unwrap_or_default();
    let times: Result<Vec<Ns>, String> =
        times.split('/').map(|t| AtLeast::<1>::parse(t.trim()).map(|AtLeast(ns)| ns)).collect();
    let (runtime, deadline, period) = match times?[..] {
        [runtime, period] => (runtime, period, period),
        [runtime, deadline, period] => (runtime, deadline, period),
        _ => {
            let text = text.trim();
            return Err(format!("`{text}` is not `deadline 1ms/4ms` or `deadline 1ms/2ms/4ms`"));
        }
    };
    check_reservation(runtime, deadline, period).map_err(|why| why.to_string())?;
    Ok((runtime, deadline, period))
}
