//! Random ways of virtualising a VM, all that can be together.

use proptest::prelude::*;
use vcoop_model::plan::virt::{
    ApicVirt, ExitsOff, GuestIdle, GuestTimer, IdleVirt, TimerMode, TimerVirt, Virt,
};
use vcoop_policy::config::{AdvanceConfig, GuestPollConfig, HostPollConfig};

fn timer() -> impl Strategy<Value = TimerVirt> {
    let source = prop_oneof![
        1 => Just(None),
        1 => Just(Some(GuestTimer::Hrtimer)),
        3 => Just(Some(GuestTimer::HvTimer)),
        1 => Just(Some(GuestTimer::Posted)),
        1 => Just(Some(GuestTimer::Exitless)),
    ];
    let mode = prop_oneof![
        3 => Just(TimerMode::TscDeadline),
        1 => Just(TimerMode::Oneshot),
        1 => Just(TimerMode::Periodic),
    ];
    let advance = prop_oneof![
        Just(AdvanceConfig::None),
        (0u64..40_000).prop_map(AdvanceConfig::Fixed),
        Just(AdvanceConfig::Adaptive),
    ];
    // Four seconds and less are out of the range of the second one.
    let ratio = prop_oneof![3 => Just(1_000_000u64), 1 => 1u64..5_000_000];
    (source, mode, advance, any::<bool>(), ratio, 0u32..500).prop_map(
        |(source, mode, advance, sw, tsc_ratio_ppm, skew_ppm)| TimerVirt {
            source,
            mode: if source == Some(GuestTimer::Exitless) { TimerMode::TscDeadline } else { mode },
            advance,
            arm_sw_on_preempt: sw && source == Some(GuestTimer::HvTimer),
            tsc_ratio_ppm,
            skew_ppm,
        },
    )
}

fn idle() -> impl Strategy<Value = IdleVirt> {
    let guest = prop_oneof![
        2 => Just(GuestIdle::Hlt),
        1 => Just(GuestIdle::Poll),
        2 => Just(GuestIdle::Haltpoll),
        1 => Just(GuestIdle::Mwait),
    ];
    let host = prop_oneof![
        Just(HostPollConfig::OFF),
        Just(HostPollConfig::KVM),
        (1u64..3_000_000).prop_map(|max_ns| HostPollConfig { max_ns, ..HostPollConfig::KVM }),
    ];
    let guest_poll = (0u64..400_000, any::<bool>()).prop_map(|(max_ns, allow_shrink)| {
        GuestPollConfig { max_ns, allow_shrink, ..GuestPollConfig::LINUX }
    });
    (guest, guest_poll, host).prop_map(|(guest, guest_poll, host_poll)| IdleVirt {
        guest,
        guest_poll,
        host_poll: Some(host_poll),
    })
}

/// Any way that KVM can have.
pub(crate) fn any_virt() -> impl Strategy<Value = Virt> {
    (timer(), idle(), any::<[bool; 6]>()).prop_map(
        |(timer, idle, [posted, eoi, window, fastpath, hlt, mwait])| Virt {
            timer,
            idle,
            apic: ApicVirt {
                posted,
                eoi_exits: eoi && !posted,
                window_exits: window && !posted,
                fastpath,
            },
            exits_off: ExitsOff {
                hlt,
                mwait: mwait || idle.guest == GuestIdle::Mwait,
                ..ExitsOff::default()
            },
            ..Virt::default()
        },
    )
}
