//! How VMs are virtualised: what keys of a VM and of a policy say together.

use vcoop_policy::config::{AdvanceConfig, HostPollConfig};

use super::*;
use crate::plan::virt::{GuestIdle, GuestTimer, TimerMode, Virt};

/// The VM under each policy compared, by name.
fn virts(vm: &str, rest: &str) -> Vec<(String, Virt)> {
    let scenario = with(vm, rest).unwrap_or_else(|e| panic!("{e}"));
    let plans = scenario.plans(None).unwrap_or_else(|e| panic!("{e}"));
    plans.into_iter().map(|plan| (plan.policy_name, plan.vms[0].virt.clone())).collect()
}

#[test]
fn nothing_is_switched_on_by_itself() {
    for (name, virt) in virts("", "") {
        assert_eq!(virt, Virt::default(), "{name}");
    }
}

#[test]
fn a_stock_kvm_is_several_switches_and_each_can_be_set_alone() {
    let virt = |keys: &str| virts(keys, "")[0].1.clone();
    let stock = virt("kvm = 'stock'\n");
    let apic = |virt: &Virt| (virt.apic.posted, virt.apic.fastpath, virt.apic.eoi_exits);
    assert_eq!(apic(&stock), (true, true, false));
    assert_eq!(stock.timer.source, Some(GuestTimer::HvTimer));
    assert_eq!(stock.timer.advance, AdvanceConfig::Adaptive);
    assert_eq!(stock.idle.host_polls(), HostPollConfig::KVM);
    let own = "kvm = 'stock'\napicv = false\nhalt_poll = '0us'\ntimer = 'hrtimer'\n";
    let own = virt(own);
    assert_eq!((apic(&own), own.idle.host_polls().max_ns), ((false, true, true), 0));
    assert_eq!(own.timer.source, Some(GuestTimer::Hrtimer));
    // A policy says it of all VMs, and its own key goes before.
    let rest = "[compare]\npolicy = ['s']\n[policy.s]\nbase = 'vanilla'\nkvm = 'stock'\nexit_fastpath = false\n";
    assert_eq!(apic(&virts("", rest)[0].1), (true, false, false));
}

#[test]
fn a_policy_says_it_over_the_vm_key_by_key() {
    let vm = "timer = \"hv-timer\"\nhalt_poll = \"100us\"\nguest_halt_poll = \"50us\"\n";
    let rest = "[compare]\npolicy = ['vanilla', 'base', 'more']\n\
        [policy.base]\nbase = 'vanilla'\ntimer_advance = 'adaptive'\napicv = true\n\
        [policy.more]\nbase = 'base'\nguest_idle = 'haltpoll'\ntimer = 'hrtimer'\n\
        disable_exits = ['hlt', 'pause']\n";
    let virts = virts(vm, rest);
    let [vanilla, base, more] = [0, 1, 2].map(|i| &virts[i].1);
    assert_eq!(vanilla.timer.source, Some(GuestTimer::HvTimer));
    assert_eq!(vanilla.idle.host_polls().max_ns, 100_000);
    assert_eq!((vanilla.timer.advance, vanilla.apic.posted), (AdvanceConfig::None, false));
    assert_eq!(base.timer.source, Some(GuestTimer::HvTimer), "as the VM has it");
    assert_eq!((base.timer.advance, base.apic.posted), (AdvanceConfig::Adaptive, true));
    assert_eq!(more.timer.source, Some(GuestTimer::Hrtimer), "the policy, not the VM");
    assert_eq!(more.timer.advance, AdvanceConfig::Adaptive, "of its base");
    assert_eq!((more.idle.guest, more.idle.guest_poll.max_ns), (GuestIdle::Haltpoll, 50_000));
    let off = more.exits_off;
    assert_eq!((off.hlt, off.mwait, off.pause, off.cstate), (true, false, true, false));
}

#[test]
fn every_key_arrives() {
    let vm = "timer_mode = 'oneshot'\ntimer = 'hv-timer'\ntimer_advance = '2us'\ntsc_ratio = 0.5\nclock_skew = '20ppm'\napicv = false\n\
        exit_fastpath = true\nguest_halt_poll_grow = 3\nguest_halt_poll_grow_start = '1us'\n\
        guest_halt_poll_shrink = 4\nguest_halt_poll_allow_shrink = false\nhalt_poll_grow = 5\n\
        halt_poll_grow_start = '6us'\nhalt_poll_shrink = 7\n";
    // Those of polling need something that polls: one policy has the guest poll, and the other the host.
    let rest = "[compare]\npolicy = ['host', 'guest']\n\
        [policy.host]\nbase = 'vanilla'\nhalt_poll = '9us'\n\
        [policy.guest]\nbase = 'vanilla'\nguest_idle = 'haltpoll'\n";
    let virt = &virts(vm, rest)[0].1;
    assert_eq!((virt.timer.mode, virt.timer.tsc_ratio_ppm), (TimerMode::Oneshot, 500_000));
    assert_eq!(virt.timer.advance, AdvanceConfig::Fixed(2_000));
    assert_eq!(virt.timer.skew_ppm, 20);
    let apic = virt.apic;
    assert_eq!(
        (apic.posted, apic.eoi_exits, apic.window_exits, apic.fastpath),
        (false, true, true, true)
    );
    let g = virt.idle.guest_poll;
    assert_eq!((g.grow, g.grow_start_ns, g.shrink, g.allow_shrink), (3, 1_000, 4, false));
    let h = virt.idle.host_polls();
    assert_eq!((h.max_ns, h.grow, h.grow_start_ns, h.shrink), (9_000, 5, 6_000, 7));
}

#[test]
fn what_kvm_cannot_have_is_refused_where_it_is_written() {
    let vm = "apicv = false\nposted_interrupts = true\n";
    refused(vm, "", "posted_interrupts = true", "a part of APICv");
    refused("guest_idle = 'mwait'\n", "", "guest_idle = 'mwait'", "where it does not exit");
    refused("arm_sw_on_preempt = true\n", "", "arm_sw_on_preempt", "something to stand in for it");
    let mode = "timer = 'exitless'\ntimer_mode = 'periodic'\n";
    refused(mode, "", "timer_mode = 'periodic'", "holds TSC deadlines");
    refused("timer_advance = '2ms'\n", "", "timer_advance", "more than 1ms");
    refused("timer_advance = '2ms'\n", "", "timer_advance", "at most \"1ms\"");
    refused("ipi = 'posted'\napicv = false\n", "", "ipi = 'posted'", "a part of APICv");
    let bench = "timer_mode = 'periodic'\n[[vm.task]]\nname = 'b'\nkind = 'timer-bench'\n";
    refused(bench, "", "timer_mode = 'periodic'", "measures deadlines");
    refused("disable_exits = ['hlt', 'cpuid']\n", "", "disable_exits", "`cpuid` is not known");
    // Fine by itself, and not under this policy.
    let rest = "[policy.odd]\nbase = 'vanilla'\ntimer = 'lapic'\n";
    let vm = "timer = 'hv-timer'\narm_sw_on_preempt = true\n";
    refused(vm, rest, "arm_sw_on_preempt = true", "something to stand in for it");
    let rest = "[policy.odd]\nbase = 'vanilla'\ndisable_exits = []\n";
    let vm = "guest_idle = 'mwait'\ndisable_exits = ['mwait']\n";
    refused(vm, rest, "guest_idle = 'mwait'", "where it does not exit");
}

#[test]
fn a_preemption_timer_is_refused_where_the_cpu_has_none() {
    let on = |profile: &str, vm: &str, rest: &str| {
        let text = format!(
            "name = \"x\"\ntitle = \"x\"\n[host]\nprofile = \"{profile}\"\npcpus = 8\n\
             topology = {{ threads_per_core = 1 }}\n[[vm]]\nname = \"a\"\nvcpus = 1\n{vm}\
             [[vm.task]]\nname = \"h\"\nkind = \"hog\"\n{rest}"
        );
        parse(&text).map(|_| ()).map_err(|e| e.to_string())
    };
    let (own, none) = ("timer = \"hv-timer\"\n", "has no VMX preemption timer");
    let policy = "[policy.p]\nbase = \"vanilla\"\ntimer = \"hv-timer\"\n";
    for (vm, rest) in [(own, ""), ("", policy), ("timer = \"lapic\"\n", policy)] {
        on("xeon-server", vm, rest).unwrap();
        let error = on("epyc-server", vm, rest).unwrap_err();
        assert_eq!(error.matches(none).count(), 1, "{error}");
    }
    // Said once, and not under each policy that says nothing of timers.
    let silent = "[policy.q]\nbase = \"vanilla\"\nhalt_poll = \"9us\"\n";
    let error = on("epyc-server", own, silent).unwrap_err();
    assert_eq!(error.matches(none).count(), 1, "{error}");
    // A stock KVM takes the timer that the machine has.
    on("epyc-server", "kvm = \"stock\"\n", silent).unwrap();
}

#[test]
fn a_posted_timer_needs_what_kvm_needs() {
    let apicv = "timer = 'posted'\ndisable_exits = ['hlt']\n";
    refused(apicv, "", "timer = 'posted'", "posted where interrupts are");
    refused("timer = 'posted'\napicv = true\n", "", "timer = 'posted'", "does not exit");
    let vm = format!("{apicv}apicv = true\n");
    assert_eq!(virts(&vm, "")[0].1.timer.source, Some(GuestTimer::Posted));
    let text = SMALL.replace("weight = 2048\n", &vm).replace("pin = [\"0\", \"1-2\"]\n", "");
    let error = parse(&text).map(|_| ()).expect_err("vCPUs are everywhere").to_string();
    assert!(
        error.contains("kept for housekeeping") && error.contains("timer = 'posted'"),
        "{error}"
    );
    // The same of a policy; with nohz_full there always is one.
    let policy = "[policy.p]\nbase = 'vanilla'\ntimer = 'posted'\n";
    let text = text.replace("timer = 'posted'\n", "") + policy;
    let error = parse(&text).map(|_| ()).expect_err("vCPUs are everywhere").to_string();
    assert!(error.contains("kept for housekeeping"), "{error}");
    let full = text.replace("[host]\n", "[host]\nnohz_full = \"1\"\n");
    parse(&full).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn rules_of_yielding_and_polling_need_what_they_are_about() {
    let vm = "yield_in_kernel = false\ndisable_exits = ['pause']\n";
    refused(vm, "", "yield_in_kernel", "PAUSE loops do not exit");
    // Under one policy of two it has an effect.
    let policy = "[policy.p]\nbase = 'vanilla'\ndisable_exits = ['pause']\n";
    assert!(!virts("yield_in_kernel = false\n", policy)[0].1.spin.candidates.in_kernel);
    let vm = "yield_queue_heads = false\nyield_interrupted = false\nyield_alone = true\n";
    let to = virts(vm, "")[0].1.spin.candidates;
    let rules = (to.in_kernel, to.woken, to.interrupted, to.queue_heads, to.not_alone);
    assert_eq!(rules, (true, true, false, false, false));
    let vm = "yield_ipi = true\ndisable_exits = ['pause']\n";
    refused(vm, "", "yield_ipi", "PAUSE loops do not exit");
    refused("yield_ipi = true\nyield_woken = false\n", "", "yield_woken", "rules of its own");
    assert!(virts("yield_ipi = true\n", "")[0].1.spin.candidates.ipi);
    refused("halt_poll_fixed = true\n", "", "halt_poll_fixed", "how long it polls");
    let vm = "halt_poll = '50us'\nhalt_poll_fixed = true\nhalt_poll_grow = 3\n";
    refused(vm, "", "halt_poll_grow = 3", "does not adapt");
    assert!(virts(&vm.replace("halt_poll_grow = 3\n", ""), "")[0].1.idle.host_polls().fixed);
}

#[test]
fn keys_that_would_do_nothing_are_refused() {
    for (vm, marked, message) in [
        ("guest_halt_poll = '50us'\n", "guest_halt_poll", "does not poll before it halts"),
        ("guest_halt_poll_allow_shrink = false\n", "allow_shrink", "does not poll before"),
        ("guest_idle = 'poll'\nguest_halt_poll_grow = 3\n", "guest_halt_poll_grow", "not poll"),
        ("halt_poll_grow = 3\n", "halt_poll_grow", "the host does not poll"),
        ("halt_poll = '0us'\nhalt_poll_shrink = 0\n", "halt_poll_shrink", "host does not poll"),
        ("halt_poll = '50us'\nguest_idle = 'haltpoll'\n", "halt_poll = '50us'", "not poll"),
        ("halt_poll = '50us'\nhints = 'dedicated'\n", "halt_poll = '50us'", "not poll"),
        ("spin_threshold = '3us'\n", "spin_threshold", "only waiters for paravirtual"),
        ("ple_grow = 1\ndisable_exits = ['pause']\n", "ple_grow", "so the host does not yield"),
        ("timer_advance = '2us'\ntimer_mode = 'oneshot'\n", "timer_advance", "TSC deadlines"),
        ("timer_advance = '2us'\ntimer_mode = 'periodic'\n", "timer_advance", "TSC deadlines"),
    ] {
        refused(vm, "", marked, message);
    }
    refused("", "[policy.p]\nbase = 'vanilla'\nspin_threshold = '3us'\n", "'3us'", "paravirtual");
    // Fine by itself, and nowhere in force.
    let rest = "[compare]\npolicy = ['p']\n[policy.p]\nbase = 'vanilla'\nspinlocks = 'pv'\n";
    let own = format!("{rest}spin_threshold = '4us'\n");
    refused("spin_threshold = '3us'\n", &own, "'3us'", "paravirtual");
    // In force under one policy or in one cell of the matrix.
    assert_eq!(virts("spin_threshold = '3us'\n", rest)[0].1.spin.threshold_ns, Some(3_000));
    let matrix = "[matrix]\n'vm.guest.spinlocks' = ['native', 'pv']\n";
    assert_eq!(virts("spin_threshold = '3us'\n", matrix)[0].1.spin.threshold_ns, Some(3_000));
    // What holds without it does not harm.
    virts("halt_poll = '0us'\nguest_idle = 'haltpoll'\n", "");
}

#[test]
fn full_nohz_cpus_leave_one_that_keeps_the_time() {
    assert_eq!(virts("nohz_full = '1'\n", "")[0].1.nohz_full, [1]);
    refused("nohz_full = '0-1'\n", "", "nohz_full = '0-1'", "has to keep the time");
    refused("nohz_full = 'all'\n", "", "nohz_full = 'all'", "has to keep the time");
    refused("nohz_full = '2'\n", "", "nohz_full = '2'", "there is no vCPU 2");
    let periodic = "nohz_full = '1'\ntimer_mode = 'periodic'\n";
    refused(periodic, "", "nohz_full = '1'", "never stops");
    let rest = "[policy.p]\nbase = 'vanilla'\nnohz_full = '7'\n";
    refused("", rest, "nohz_full = '7'", "there is no vCPU 7");
    let rest = "[compare]\npolicy = ['p']\n[policy.p]\nbase = 'vanilla'\nnohz_full = 'none'\n";
    assert!(virts("nohz_full = '1'\n", rest)[0].1.nohz_full.is_empty(), "the policy goes first");
}

#[test]
fn xen_has_other_mechanisms() {
    let xen = "\n[host.sched]\nclass = \"credit1\"\n";
    let text = "name = \"x\"\ntitle = \"x\"\n[host]\npcpus = 2\n".to_owned()
        + xen
        + "[[vm]]\nname = \"a\"\nvcpus = 1\nhalt_poll = \"1us\"\n\
           [[vm.task]]\nname = \"h\"\nkind = \"hog\"\n";
    let error = parse(&text).map(|_| ()).expect_err("KVM polls, Xen does not").to_string();
    assert!(error.contains("halt_poll"), "{error}");
    let timer = text.replace("halt_poll = \"1us\"", "timer = \"hv-timer\"");
    let error = parse(&timer).map(|_| ()).expect_err("a KVM timer").to_string();
    assert!(error.contains("hv-timer"), "{error}");
}
