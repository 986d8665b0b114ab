//! Scheduling policies and boost means, as files write them.

use vcoop_policy::config::Means;
use vcoop_sched::config::Policy;

use crate::plan::Ns;
use crate::toml_read::Text;
use crate::toml_read::units::AtLeast;

/// Range of a custom slice, as `sched_setattr` takes it.
const SLICE: std::ops::RangeInclusive<Ns> = 100_000..=100_000_000;

/// A scheduling policy of a thread or task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PolicyText(pub(crate) Policy);

impl Text for PolicyText {
    const WHAT: &'static str = "\"other\", \"idle\", \"fifo 1..99\", \"rr 1..99\", \"nice -20..19\", \
         \"slice 0.1ms..100ms\" (EEVDF) or \"nice N slice T\"";
    const PATTERN: &'static str = r"^\s*(other|idle|(fifo|rr)\s+[0-9]+|nice\s+-?[0-9]+(\s+slice\s+\S+)?|slice\s+\S+(\s+\S+)?)\s*$";

    fn parse(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let policy = match words[..] {
            ["other"] => Policy::NORMAL,
            ["idle"] => Policy::Idle,
            ["fifo", priority] => Policy::Fifo(rt_priority(priority)?),
            ["rr", priority] => Policy::Rr(rt_priority(priority)?),
            ["nice", value] => Policy::Normal { nice: nice(value)?, slice_ns: None },
            ["slice", time] => Policy::Normal { nice: 0, slice_ns: Some(slice(time)?) },
            ["nice", value, "slice", time] => {
                Policy::Normal { nice: nice(value)?, slice_ns: Some(slice(time)?) }
            }
            _ => return Err(format!("`{text}` is not a scheduling policy")),
        };
        Ok(Self(policy))
    }
}

/// What a boost is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MeansText(pub(crate) Means);

impl Text for MeansText {
    const WHAT: &'static str =
        "\"fifo 1..99\", \"rr 1..99\", \"nice -20..19\" or \"slice 0.1ms..100ms\" (EEVDF)";
    const PATTERN: &'static str = r"^\s*((fifo|rr)\s+[0-9]+|nice\s+-?[0-9]+|slice\s+\S+)\s*$";

    fn parse(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let means = match words[..] {
            ["fifo", priority] => Means::Fifo(rt_priority(priority)?),
            ["rr", priority] => Means::Rr(rt_priority(priority)?),
            ["nice", value] => Means::Nice(nice(value)?),
            ["slice", time] => Means::Slice(slice(time)?),
            _ => return Err(format!("`{text}` is not a means of boosting")),
        };
        Ok(Self(means))
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

fn slice(text: &str) -> Result<Ns, String> {
    let AtLeast::<1>(ns) = AtLeast::parse(text)?;
    if SLICE.contains(&ns) {
        Ok(ns)
    } else {
        Err(format!("`{text}` is no slice the kernel takes: they go from 100us to 100ms"))
    }
}
