//! How much load a scenario can have before a limit breaks.
//!
//! A knob has an easy and a hard end: more VMs, or fewer pCPUs. The hardest step that holds is found by doubling and
//! bisection, which assumes that a harder step is never better. That assumption is checked against every step that was
//! tried, and a few more that are tried for it; contradictions are reported.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use vcoop_experiment::judge::LimitResult;
use vcoop_model::scenario::Set;

use crate::ratio::size;
use crate::slo::Slo;
use crate::trial::{BASELINE, Bench, Score, SearchError};

/// A whole-numbered field, from its easy to its hard end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Knob {
    /// Path of the field.
    pub path: String,
    /// Where it begins.
    pub from: i64,
    /// Where it ends; below `from` for a field that is harder when it is smaller.
    pub to: i64,
}

impl Knob {
    /// Steps from the easy end to the hard one.
    pub fn steps(&self) -> u32 {
        u32::try_from(self.from.abs_diff(self.to)).unwrap_or(u32::MAX - 1) + 1
    }

    /// The value at a step.
    pub fn value(&self, step: u32) -> i64 {
        let step = i64::from(step);
        if self.to >= self.from { self.from + step } else { self.from - step }
    }

    /// The change that sets a scenario to a step.
    pub fn set(&self, step: u32) -> Set {
        Set::of(&self.path, &self.value(step).to_string())
    }
}

/// A step that was tried.
#[derive(Clone, Debug)]
pub struct CapacityStep {
    /// Value of the knob.
    pub value: i64,
    /// vCPUs of all VMs.
    pub vcpus: u32,
    /// pCPUs of the host.
    pub pcpus: u32,
    /// Result of the limits.
    pub score: Score,
}

/// Result of a search for a policy.
#[derive(Clone, Debug)]
pub struct Capacity {
    /// Policy.
    pub policy: String,
    /// Hardest step at which every limit holds, by its value; `None`: not even the easy end.
    pub most: Option<CapacityStep>,
    /// Hardest step at which the whole interval of every limit holds.
    pub surely: Option<i64>,
    /// Hardest step at which no limit is broken by its whole interval: harder ones certainly fail.
    pub at_best: Option<i64>,
    /// Whether the hard end of the knob was reached without a limit breaking.
    pub open: bool,
    /// Steps that hold though an easier one does not: they contradict the assumption.
    pub contradictions: Vec<i64>,
    /// Everything that was tried, easy end first.
    pub tried: Vec<CapacityStep>,
}

/// Finds the capacity under a policy. Limits are checked with all the scenario's repeats at each step, with the same
/// random numbers.
///
/// # Errors
///
/// A step that is impossible, a run that failed, or the stop flag.
pub fn capacity(
    bench: &Bench,
    policy: &str,
    knob: &Knob,
    slos: &[Slo],
    stop: &AtomicBool,
    told: &dyn Fn(&CapacityStep),
) -> Result<Capacity, SearchError> {
    let mut tried: BTreeMap<u32, CapacityStep> = BTreeMap::new();
    let last = knob.steps() - 1;
    let mut hold = |step: u32, least: LimitResult| -> Result<bool, SearchError> {
        if let Some(known) = tried.get(&step) {
            return Ok(known.score.held >= least);
        }
        // What fills the host costs others, too, so the cost of the policy is measured against the same step without
        // it.
        let mut plans = vec![bench.plan(&[knob.set(step)], BASELINE)?];
        if policy != BASELINE {
            plans.push(bench.plan(&[knob.set(step)], policy)?);
        }
        let document = bench.run(&mut plans, stop)?;
        let (vcpus, pcpus) = size(&plans[0]);
        let found = CapacityStep {
            value: knob.value(step),
            vcpus,
            pcpus,
            score: Score::of(&document, policy, slos, None),
        };
        told(&found);
        let holds = found.score.held >= least;
        tried.insert(step, found);
        Ok(holds)
    };
    // The likely answer, the certain one and the best case. The last two mostly find their steps tried already.
    let most = hardest(last, &mut |step| hold(step, LimitResult::Likely))?;
    let surely = hardest(last, &mut |step| hold(step, LimitResult::Yes))?;
    let at_best = hardest(last, &mut |step| hold(step, LimitResult::Unlikely))?;
    // Bisection tried few steps below the answer and beyond it.
    let answer = most.unwrap_or(0);
    for step in [answer / 4, answer / 2, answer * 3 / 4, answer + 2, answer + answer / 2 + 1] {
        if step <= last {
            hold(step, LimitResult::Likely)?;
        }
    }
    let first_broken =
        tried.iter().find(|(_, t)| t.score.held == LimitResult::No).map(|(step, _)| *step);
    let beyond = |(step, t): &(&u32, &CapacityStep)| {
        first_broken.is_some_and(|broken| **step > broken) && t.score.held >= LimitResult::Likely
    };
    let contradictions = tried.iter().filter(beyond).map(|(_, t)| t.value).collect();
    Ok(Capacity {
        policy: policy.to_owned(),
        most: most.and_then(|step| tried.get(&step).cloned()),
        surely: surely.map(|step| knob.value(step)),
        at_best: at_best.map(|step| knob.value(step)),
        open: most == Some(last),
        contradictions,
        tried: tried.into_values().collect(),
    })
}

/// The last step that holds, assuming that a step never holds when an easier one does not; `None` if step 0 does not.
fn hardest<E>(last: u32, hold: &mut dyn FnMut(u32) -> Result<bool, E>) -> Result<Option<u32>, E> {
    if !hold(0)? {
        return Ok(None);
    }
    let (mut good, mut stride) = (0, 1);
    let mut bad = loop {
        if good == last {
            return Ok(Some(last));
        }
        let next = last.min(good.saturating_add(stride));
        if !hold(next)? {
            break next;
        }
        good = next;
        stride = stride.saturating_mul(2);
    };
    while bad - good > 1 {
        let middle = good + (bad - good) / 2;
        if hold(middle)? { good = middle } else { bad = middle }
    }
    Ok(Some(good))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    #[test]
    fn the_last_that_holds_is_found_wherever_it_is() {
        for last in 0..40 {
            for answer in 0..=last {
                let mut asked = 0;
                let mut hold = |step| -> Result<bool, Infallible> {
                    asked += 1;
                    Ok(step <= answer)
                };
                assert_eq!(hardest(last, &mut hold), Ok(Some(answer)));
                assert!(asked <= 14, "{asked} questions for {answer} of {last}");
            }
            assert_eq!(hardest(last, &mut |_| Ok::<_, Infallible>(false)), Ok(None));
        }
    }

    #[test]
    fn knobs_run_from_easy_to_hard_in_either_direction() {
        let fewer = Knob { path: "host.pcpus".to_owned(), from: 8, to: 2 };
        assert_eq!((fewer.steps(), fewer.value(0), fewer.value(6)), (7, 8, 2));
        assert_eq!(fewer.set(1).text(), "host.pcpus=7");
    }
}
