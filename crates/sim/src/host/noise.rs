//! The noise of a machine: what runs on its pCPUs and is not in the plan.

use std::borrow::Cow;

use vcoop_model::plan::{Dist, InterruptPlan, Mode, Phase, Plan, Program, TaskPlan};
use vcoop_model::profile::NoiseBy;
use vcoop_sched::config::Policy;

/// Prefix of the names of its interrupts and threads.
const PREFIX: &str = "noise.";

/// Whether threads of this label are noise.
pub(crate) fn is_noise(label: &str) -> bool {
    label.starts_with(PREFIX)
}

/// The plan with the noise of its machine added: interrupts of one more device, and a thread on each pCPU behind all
/// other tasks. Only Linux has such threads.
pub(crate) fn with_noise(plan: &Plan) -> Cow<'_, Plan> {
    if plan.host.noise.is_empty() {
        return Cow::Borrowed(plan);
    }
    let mut noisy = plan.clone();
    let linux = plan.host.sched.linux().is_some();
    for noise in std::mem::take(&mut noisy.host.noise) {
        let mean_ns = noise.period_ns;
        let period = Dist::Exp { mean_ns, max_ns: mean_ns.saturating_mul(10) };
        let name = format!("{PREFIX}{}", noise.name);
        let quantiles = noise.takes;
        let work = Dist::Measured { quantiles, exponent: quantiles.exponent(noise.mean_ns) };
        let cpus = 0..plan.host.sched.cpus();
        match noise.by {
            NoiseBy::Interrupts => {
                let cpus = cpus.collect();
                noisy.host.interrupts.push(InterruptPlan { name, period, work, cpus });
            }
            NoiseBy::Threads if linux => noisy.host_tasks.extend(cpus.map(|cpu| TaskPlan {
                name: format!("{name}/{cpu}"),
                label: name.clone(),
                program: Program::Cycle {
                    phases: vec![
                        Phase::Sleep { time: period },
                        Phase::Run { time: work, mode: Mode::User },
                    ],
                },
                policy: Policy::NORMAL,
                cpus: vec![cpu],
                start_ns: 0,
                together: false,
                after_login: false,
                timer_slack_ns: 0,
                group: None,
                process: None,
                stress_ng: None,
                of_vcpu: false,
            })),
            NoiseBy::Threads => {}
        }
    }
    Cow::Owned(noisy)
}
