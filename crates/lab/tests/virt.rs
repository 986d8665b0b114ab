//! How a VM is virtualised, on this host's `/dev/kvm`. Without one, every test is skipped.

use crate::support::{
    Outcome, Skip, assert_refused, latency, need, plan, run, scalar, scenario, twice,
};
use vcoop_lab::Error;
use vcoop_model::plan::virt::{ExitsOff, GuestIdle};
use vcoop_model::plan::{GuestTimer, Plan};
use vcoop_model::recording::Recording;
use vcoop_policy::config::{AdvanceConfig, GuestPollConfig, HostPollConfig};

/// A guest that halts between its periods, on a host that does nothing else.
const IDLE: &str = scenario!(
    "duration = '600ms'\nwarmup = '200ms'",
    r#"
[[vm]]
name = "guest"
vcpus = 1

[[vm.task]]
name = "timer"
kind = "cyclictest"
interval = "1ms"
policy = "fifo 80"
"#
);

fn idle() -> Plan {
    plan(IDLE, "vanilla", &[])
}

/// The same with a vCPU that waits for no other thread's slice, whatever else this host does.
fn urgent() -> Plan {
    plan(IDLE, "static", &["policy.static.means=\"fifo 20\""])
}

/// Every period has a sample or is counted as missed.
fn assert_complete(r: &Recording) {
    let l = latency(r, "guest.timer");
    let seen = l.hist.len() + l.missed;
    assert!((530..=670).contains(&seen), "{seen} of 600 periods");
    assert_eq!(scalar(r, "lab", "samples_invalid"), 0.0);
}

live!(a_learned_advance_hides_what_delivery_takes, || -> Outcome {
    twice(|| {
        let p50 = |advance| {
            let mut plan = urgent();
            plan.vms[0].virt.timer.source = Some(GuestTimer::Exitless);
            plan.vms[0].virt.timer.advance = advance;
            let r = run(&plan);
            assert_complete(&r);
            latency(&r, "guest.timer").hist.value_at_quantile(0.5)
        };
        let (plain, learned) = (p50(AdvanceConfig::None), p50(AdvanceConfig::Adaptive));
        let told = format!("p50 {plain} ns, then {learned} ns");
        if 3 * learned < 2 * plain { Ok(()) } else { Err(told) }
    })?;
    let mut plan = idle();
    plan.vms[0].virt.timer.advance = AdvanceConfig::Adaptive;
    assert_refused(&plan, "timer_advance", "KVM advances its own timer");
    Ok(())
});

live!(a_guest_polls_as_its_governor_learns, || -> Outcome {
    twice(|| {
        let polls = |guest, max_ns| {
            let mut plan = idle();
            plan.vms[0].virt.idle.guest = guest;
            plan.vms[0].virt.idle.guest_poll = GuestPollConfig { max_ns, ..GuestPollConfig::LINUX };
            let r = run(&plan);
            assert_complete(&r);
            let won = r.scalar("guest", "guest_polls.won")?;
            Some((won, won + r.scalar("guest", "guest_polls.lost")?))
        };
        assert_eq!(polls(GuestIdle::Hlt, 0), None);
        // Its sleeps last a millisecond. A governor that may poll for longer comes to try it each
        // time (and loses: it counts the halt after the poll only, so it stops growing before its
        // poll is as long as the sleep); one that may not learns to leave it.
        let (_, long) = polls(GuestIdle::Haltpoll, 4_000_000).unwrap_or_default();
        let (_, short) = polls(GuestIdle::Haltpoll, 200_000).unwrap_or_default();
        let (ever, _) = polls(GuestIdle::Poll, 0).unwrap_or_default();
        let told = format!("polls: {long} with 4 ms, {short} with 200 us, {ever} won for ever");
        // A busy host takes many a wait away.
        if long > 100.0 && 4.0 * short < long && ever > 100.0 { Ok(()) } else { Err(told) }
    })
});

live!(the_hosts_polling_is_capped_for_each_vm, || -> Outcome {
    let mut plan = idle();
    plan.vms[0].virt.idle.host_poll = Some(HostPollConfig::KVM);
    need(&plan)?;
    assert_complete(&run(&plan));
    Ok(())
});

live!(which_way_the_host_adapts_its_polling_is_not_for_a_vm_to_say, || {
    let mut plan = idle();
    plan.vms[0].virt.idle.host_poll = Some(HostPollConfig { grow: 7, ..HostPollConfig::KVM });
    assert_refused(&plan, "halt polling", "");
});

const EXITS_ON: ExitsOff = ExitsOff { hlt: false, mwait: false, pause: false, cstate: false };

live!(exits_of_hlt_can_be_off, || -> Outcome {
    exits_are_off("hlt", ExitsOff { hlt: true, ..EXITS_ON })
});

live!(exits_of_mwait_can_be_off, || -> Outcome {
    exits_are_off("mwait", ExitsOff { mwait: true, ..EXITS_ON })
});

live!(exits_of_pause_can_be_off, || -> Outcome {
    exits_are_off("pause", ExitsOff { pause: true, ..EXITS_ON })
});

live!(exits_of_c_states_can_be_off, || -> Outcome {
    exits_are_off("cstate", ExitsOff { cstate: true, ..EXITS_ON })
});

/// Where the host does not offer it, it says which.
fn exits_are_off(name: &str, off: ExitsOff) -> Outcome {
    let mut plan = idle();
    plan.vms[0].virt.exits_off = off;
    match vcoop_lab::check(&plan) {
        Err(Error::PolicyMissing { policy, missing }) => {
            assert_eq!(policy, "vanilla");
            assert!(missing.what.contains(name), "{}", missing.what);
            return Err(Skip::because(missing));
        }
        other => other.unwrap_or_else(|e| panic!("{e}")),
    }
    assert_complete(&run(&plan));
    Ok(())
}
