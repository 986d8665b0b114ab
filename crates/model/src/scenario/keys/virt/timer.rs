//! Keys of a guest's timer.

use vcoop_policy::config::AdvanceConfig;

use super::{set, shared_keys};
use crate::plan::virt::{GuestTimer, TimerMode, Virt};
use crate::toml_read::Text;
use crate::toml_read::units::{NohzCpus, Skew, Time};
use crate::toml_read::value::Factor;

/// How early a guest's timer fires.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdvanceText(AdvanceConfig);

impl Text for AdvanceText {
    const WHAT: &'static str =
        "\"none\", \"adaptive\", or a duration of at most \"1ms\", like \"2us\"";
    const PATTERN: &'static str =
        r"^\s*(none|adaptive|[0-9]+(\.[0-9]+)?\s*(ns|us|µs|ms|s|m|h))\s*$";

    fn parse(text: &str) -> Result<Self, String> {
        match text.trim() {
            "none" => Ok(Self(AdvanceConfig::None)),
            "adaptive" => Ok(Self(AdvanceConfig::Adaptive)),
            other => {
                let ns = Time::parse(other)?.0;
                if ns > MAX_ADVANCE_NS {
                    return Err(format!("`{other}` is more than 1ms"));
                }
                Ok(Self(AdvanceConfig::Fixed(ns)))
            }
        }
    }
}

/// Longest fixed advance: the vCPU spins until the deadline.
const MAX_ADVANCE_NS: u64 = 1_000_000;

shared_keys! {
    /// A guest's timer.
    pub(crate) struct TimerKeys {
        /// What fires the guest's timer deadlines: `lapic` (what the host's KVM does; in the simulator an
        /// hrtimer), `hrtimer`, `hv-timer` (refused where the profile's CPU has no preemption timer, as AMD's),
        /// `posted` (simulator), `exitless`. `posted` is KVM's `pi_inject_timer` and needs APICv, `disable_exits` with
        /// "hlt" or "mwait", and a pCPU that vCPUs are kept off; it differs from `exitless` in that writing a deadline
        /// exits. Default: the policy's, else `lapic`; on real vCPUs `exitless` under policies that boost, because only
        /// the injector boosts together with the interrupt.
        timer: GuestTimer,
        /// Mode in which the guest programs its timer. A guest with `periodic` has no other timer than its tick, which
        /// never stops. Default: tsc-deadline.
        timer_mode: TimerMode,
        /// How early the host fires the timer, so that the guest has the interrupt when it is due: "none", a
        /// duration, or "adaptive" (KVM's `lapic_timer_advance`). Default: none.
        timer_advance: AdvanceText,
        /// hv-timer: an hrtimer takes the place of the preemption timer while the vCPU is preempted, so that the host
        /// sees its deadline (KVM does not have this). Default: false.
        arm_sw_on_preempt: bool,
        /// vCPUs that have no periodic tick while one task runs there (`nohz_full` of the guest's kernel); one
        /// vCPU has to keep it. Default: "none".
        nohz_full: NohzCpus,
        /// Cycles of the guest's TSC in one of the host's: with TSC scaling, other than 1. Default: 1.
        tsc_ratio: Factor,
        /// Largest difference between the rates of the guest's clock and the host's (simulator). The rate of each VM is
        /// drawn once, evenly. The VM's ticks and the sleeps of its tasks drift by this rate. Crystals differ by some
        /// 20ppm, and NTP steers a guest's clock by at most 500ppm. Default: 0ppm.
        clock_skew: Skew,
    }
}

impl TimerKeys {
    pub(super) fn apply(&self, virt: &mut Virt) {
        set(&self.nohz_full, &mut virt.nohz_full, |cpus| cpus.0.clone());
        let timer = &mut virt.timer;
        set(&self.timer, &mut timer.source, |kind| Some(*kind));
        set(&self.timer_mode, &mut timer.mode, |mode| *mode);
        set(&self.timer_advance, &mut timer.advance, |advance| advance.0);
        set(&self.arm_sw_on_preempt, &mut timer.arm_sw_on_preempt, |on| *on);
        set(&self.tsc_ratio, &mut timer.tsc_ratio_ppm, |ratio| ratio.ppm);
        set(&self.clock_skew, &mut timer.skew_ppm, |skew| skew.ppm);
    }
}
