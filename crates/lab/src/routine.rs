//! Translates a routine into steps of a guest's task, as far as the lab's guest supports it.

use vcoop_guest::program::{Step, StepOp};
use vcoop_model::plan::{Act, IpiTo, Ns, Phase};

/// Why a routine cannot be told to a guest.
const SIMULATED: &str = "this kind runs in the simulator only";

/// Place of a routine: its vCPU, and the number of vCPUs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoutinePlace {
    pub(crate) vcpu: u64,
    pub(crate) vcpus: u64,
}

/// The steps of one round. `phase` translates phases that loads have as well, `cycles` a time.
///
/// # Errors
///
/// What the guest cannot do.
pub(crate) fn steps(
    acts: &[Act],
    seat: RoutinePlace,
    cycles: impl Fn(Ns) -> u64,
    mut phase: impl FnMut(&Phase) -> Step,
) -> Result<Vec<Step>, &'static str> {
    let timers = acts.iter().filter(|act| matches!(act, Act::Timer { .. })).count();
    if timers > 1 {
        return Err("its guest's tasks have one timer each");
    }
    let plain = |op: StepOp, arg| Step { op: op as u64, arg };
    acts.iter()
        .map(|act| {
            Ok(match act {
                Act::Do(Phase::Busy { .. }) => {
                    return Err("its guest's loads go by CPU time, not by the clock");
                }
                Act::Do(of_loads) => phase(of_loads),
                Act::Begin => plain(StepOp::Begin, 0),
                Act::Sample => plain(StepOp::Sample, 0),
                Act::Done => plain(StepOp::Done, 0),
                Act::Timer { busy: true, .. } => {
                    return Err(
                        "its guest waits for timers asleep; with guest_idle = \"poll\" the \
                                vCPU is kept busy meanwhile",
                    );
                }
                &Act::Timer { period_ns, .. } => plain(StepOp::Timer, cycles(period_ns)),
                &Act::Ipi { to, wait: true } => plain(StepOp::Interrupt, targets(to, seat)),
                _ => return Err(SIMULATED),
            })
        })
        .collect()
}

/// The vCPUs that are to call a function, as a mask.
fn targets(to: IpiTo, RoutinePlace { vcpu, vcpus }: RoutinePlace) -> u64 {
    let all = (1 << vcpus) - 1;
    match to {
        IpiTo::Own => 1 << vcpu,
        IpiTo::Next if vcpus == 1 => 0,
        IpiTo::Next => 1 << ((vcpu + 1) % vcpus),
        IpiTo::Others => all & !(1 << vcpu),
    }
}

#[cfg(test)]
mod tests {
    use vcoop_model::plan::{Act, Dist, IpiTo, Mode, Phase};

    use super::*;

    const SEAT: RoutinePlace = RoutinePlace { vcpu: 2, vcpus: 3 };

    fn told(acts: &[Act]) -> Result<Vec<(u64, u64)>, &'static str> {
        let run = |_: &Phase| Step { op: StepOp::Run as u64, arg: 7 };
        let steps = steps(acts, SEAT, |ns| 2 * ns, run)?;
        Ok(steps.into_iter().map(|s| (s.op, s.arg)).collect())
    }

    #[test]
    fn benchmarks_become_steps() {
        let work = Act::Do(Phase::Run { time: Dist::Const(5), mode: Mode::User });
        let call = Act::Ipi { to: IpiTo::Others, wait: true };
        let ipi = [work.clone(), Act::Begin, call, Act::Sample, Act::Done];
        assert_eq!(told(&ipi), Ok(vec![(0, 7), (5, 0), (8, 0b011), (6, 0), (9, 0)]));
        let timer = Act::Timer { period_ns: 50, busy: false, interrupt: true };
        assert_eq!(told(&[timer, Act::Done, work]), Ok(vec![(7, 100), (9, 0), (0, 7)]));
        for (to, mask) in [(IpiTo::Own, 0b100), (IpiTo::Next, 0b001)] {
            assert_eq!(told(&[Act::Ipi { to, wait: true }]), Ok(vec![(8, mask)]));
        }
        assert_eq!(targets(IpiTo::Next, RoutinePlace { vcpu: 0, vcpus: 1 }), 0);
    }

    #[test]
    fn what_its_guest_cannot_do_is_said() {
        let timer = |busy| Act::Timer { period_ns: 9, busy, interrupt: true };
        assert_eq!(told(&[Act::Flush]), Err(SIMULATED));
        assert!(told(&[timer(true)]).unwrap_err().contains("poll"));
        assert!(told(&[timer(false), timer(false)]).unwrap_err().contains("one timer"));
        assert_eq!(told(&[Act::Ipi { to: IpiTo::Own, wait: false }]), Err(SIMULATED));
    }
}
