//! A vCPU of a scene, and the tasks that its guest has in a scenario.

use vcoop_policy::thread::Policy;
use vcoop_sources::trace::Tid;

use crate::follow::Step;
use crate::group::Group;

/// A vCPU of a scene.
#[derive(Clone, Debug)]
pub(crate) struct SceneVcpu {
    pub(crate) tid: Tid,
    /// CPUs that its thread may use.
    pub(crate) cpus: Vec<u32>,
    pub(crate) policy: Policy,
    pub(crate) steps: Vec<Step>,
    /// How often a timer woke an urgent task of the guest on it, as far as the guest reports it.
    pub(crate) urgent: u64,
    /// The control groups that its thread is in.
    pub(crate) group: Option<Group>,
}

/// A vCPU's steps as those of two tasks of its guest.
#[derive(Debug, Default, PartialEq, Eq)]
struct Split {
    urgent: Vec<Step>,
    rest: Vec<Step>,
}

impl SceneVcpu {
    /// The tasks of its guest: name, policy in the guest, and steps. `i`: its number.
    pub(crate) fn tasks(
        &self,
        i: usize,
    ) -> impl Iterator<Item = (String, &'static str, Vec<Step>)> {
        let Split { urgent, rest } = self.split();
        let tasks =
            [(format!("vcpu{i}-urgent"), "fifo 50", urgent), (format!("vcpu{i}"), "other", rest)];
        tasks.into_iter().filter(|(_, _, steps)| steps.iter().any(|s| matches!(s, Step::Run(_))))
    }

    pub(crate) fn sleeps(&self) -> usize {
        self.steps.iter().filter(|step| matches!(step, Step::Sleep(_))).count()
    }

    pub(crate) fn runs(&self) -> bool {
        self.steps.iter().any(|step| matches!(step, Step::Run(_)))
    }

    /// Which runs were urgent is not known: as many as the guest reports are taken, evenly spread.
    fn split(&self) -> Split {
        let all = self.sleeps().max(1) as u64;
        let urgent = self.urgent.min(all);
        let mut split = Split::default();
        let mut woken = 0;
        for step in &self.steps {
            let Split { urgent: ours, rest } = &mut split;
            let is_urgent = (woken + 1) * urgent / all > woken * urgent / all;
            let (ran, other) = if is_urgent { (ours, rest) } else { (rest, ours) };
            match *step {
                Step::Run(ns) => {
                    add(ran, Step::Run(ns));
                    add(other, Step::Sleep(ns));
                }
                Step::Sleep(ns) => {
                    add(ran, Step::Sleep(ns));
                    add(other, Step::Sleep(ns));
                    woken += 1;
                }
            }
        }
        split
    }
}

/// Adds a step; one of the same kind extends the last.
fn add(steps: &mut Vec<Step>, step: Step) {
    match (steps.last_mut(), step) {
        (Some(Step::Run(before)), Step::Run(ns)) | (Some(Step::Sleep(before)), Step::Sleep(ns)) => {
            *before += ns;
        }
        _ => steps.push(step),
    }
}

#[cfg(test)]
mod tests {
    use super::SceneVcpu;
    use crate::follow::Step;
    use vcoop_policy::thread::Policy;

    #[test]
    fn runs_are_urgent_as_often_as_the_guest_says() {
        let steps = (1..=5).flat_map(|n| [Step::Sleep(10 * n), Step::Run(n)]).collect();
        let vcpu = |urgent| SceneVcpu {
            tid: 5,
            cpus: vec![0],
            policy: Policy::NORMAL,
            steps: Vec::clone(&steps),
            urgent,
            group: None,
        };
        let none = vcpu(0).split();
        assert_eq!((none.rest, none.urgent), (vcpu(0).steps, vec![Step::Sleep(165)]));
        let two = vcpu(2).split();
        let (sleep, run) = (Step::Sleep, Step::Run);
        assert_eq!(two.urgent.iter().filter(|s| matches!(s, Step::Run(_))).count(), 2);
        assert_eq!(two.rest.iter().filter(|s| matches!(s, Step::Run(_))).count(), 3);
        let span = |steps: &[Step]| {
            steps
                .iter()
                .map(|s| match s {
                    Step::Run(ns) | Step::Sleep(ns) => ns,
                })
                .sum::<u64>()
        };
        assert_eq!((span(&two.urgent), span(&two.rest)), (165, 165));
        assert_eq!(two.urgent[..2], [sleep(10 + 1 + 20), run(2)], "{two:?}");
        assert_eq!(vcpu(9).split().rest, [sleep(165)]);
    }
}
