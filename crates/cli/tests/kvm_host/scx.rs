//! A host that is scheduled by `scx_vcoop`.

use serde_json::json;
use vcoop_testing::{CheckFailure, Outcome, Skip, long, test, twice};

use crate::host::{Host, NO_BPF, Threads, series, value};

/// Loads of the scheduler in one command.
const LOADS: u32 = 5;

/// What must not be in the kernel's log.
const FAILURES: [&str; 6] = ["Oops", "BUG", "WARNING", "stall", "hung", "lockup"];

/// Least part of their fair share that hogs keep beside a guest that asks all the time. In windows of 5 s they keep
/// 0.94 to 0.99.
const FAIR: f64 = 0.9;

/// What a guest does to be boosted as often as it can.
const ROGUES: [(&str, &str); 2] = [
    (
        "spins after each halt",
        "while usleep 2000; do i=0; while [ $i -lt 2000 ]; do i=$((i+1)); done; done",
    ),
    ("has timers all the time", "cyclictest -q -m -p 80 -i 300 & while :; do :; done"),
];

fn state(host: &Host) -> String {
    host.sh("cat /sys/kernel/sched_ext/state; cat /sys/kernel/sched_ext/root/ops 2>/dev/null; true")
}

/// Names of the kernel's threads, but for workers, which come and go. One that a scheduler had ends some time after it,
/// when no CPU can look at it any more.
fn kernel_threads(host: &Host) -> String {
    host.sh("sleep 2; for s in $(grep -lx 'PPid:.2' /proc/[0-9]*/status 2>/dev/null); do head -n 1 $s; done 2>/dev/null | \
             grep -v ':.kworker' | sort")
}

/// The scheduler comes and goes under load, and leaves nothing behind.
fn comes_and_goes(host: &Host) {
    // The kernel keeps a thread from the first time on.
    host.sh("vcoop scx --for 1ms --quiet");
    let before = kernel_threads(host);
    let loads = |host: &Host| {
        host.sh("cat /sys/kernel/sched_ext/enable_seq").trim().parse::<u32>().unwrap()
    };
    let rounds = long(1, 20);
    let first = loads(host);
    for _ in 0..rounds {
        let load = "vcoop scx --for 100ms --quiet >/dev/null || exit; ";
        host.sh(&load.repeat(LOADS as usize));
        assert_eq!(state(host), "disabled\n");
    }
    assert_eq!(loads(host) - first, rounds * LOADS);
    // A killed process leaves nothing behind either.
    host.sh("vcoop scx --quiet >/dev/null 2>&1 & pid=$!; until grep -q enabled /sys/kernel/sched_ext/state; \
             do sleep 0.1; done; kill -9 $pid; wait $pid; \
             until grep -q disabled /sys/kernel/sched_ext/state; do sleep 0.1; done");
    assert_eq!(kernel_threads(host), before);
}

/// What the kernel has ended is applied again by its rule, and goes with that.
fn comes_back_after_the_kernel_has_ended_it(host: &Host) {
    let until = |state: &str| {
        format!("until grep -q {state} /sys/kernel/sched_ext/state; do sleep 0.1; done; ")
    };
    let (enabled, disabled) = (until("enabled"), until("disabled"));
    let reload = "kill -HUP $(head -n 1 /run/vcoop/lock); ";
    let rule = r#"[[rule]]\npolicy = "wake-boost"\nsettings = { means = "ext" }\n"#;
    host.sh(&format!("printf '{rule}' >/etc/vcoop/vcoop.toml; {reload}{enabled}"));
    // The key S of SysRq.
    host.sh(&format!("echo S >/proc/sysrq-trigger; {disabled}{enabled}"));
    let log = host.sh("cat /tmp/daemon.log");
    assert!(log.contains("a: its policy has ended by itself; again in 10 s"), "{log}");
    host.sh(&format!(": >/etc/vcoop/vcoop.toml; {reload}{disabled}"));
}

/// A CPU that goes and comes back does not end the scheduler.
fn stays_through_hotplug(host: &Host) {
    let cpu = "/sys/devices/system/cpu/cpu1/online";
    let state = "cat /sys/kernel/sched_ext/state";
    let told = host.sh(&format!(
        "vcoop scx --quiet >/dev/null & until grep -q enabled /sys/kernel/sched_ext/state; do sleep 0.1; done; \
         echo 0 >{cpu}; {state}; echo 1 >{cpu}; {state}; kill $!; wait"
    ));
    assert_eq!(told, "enabled\nenabled\n");
}

/// A thread that slept while others of its queue ran for seconds takes an idle CPU. There it makes no thread wait for
/// the CPU time that it did not use.
fn makes_nobody_wait_behind_one_that_slept(host: &Host) {
    let told = host.sh("mkfifo /tmp/never; vcoop scx --quiet >/dev/null & pid=$!; \
         until grep -q enabled /sys/kernel/sched_ext/state; do sleep 0.1; done; \
         sh -c 'read -t 6 x <>/tmp/never; while :; do :; done' & slept=$!; hogs=; \
         for i in 1 2 3 4; do sh -c 'while :; do :; done' & hogs=\"$hogs $!\"; done; \
         sleep 5.5; kill $hogs; sleep 1; on=$(cut -d ' ' -f 39 /proc/$slept/stat); \
         cut -d ' ' -f 1 /proc/uptime; taskset $((1 << on)) true; cut -d ' ' -f 1 /proc/uptime; \
         kill $slept $pid; wait");
    let times: Vec<f64> = told.lines().map(|line| line.parse().unwrap()).collect();
    assert!(times[1] - times[0] < 0.5, "another one waited for {:.2} s", times[1] - times[0]);
}

/// Nanoseconds that threads have had of a CPU.
fn times(host: &Host, threads: &Threads) -> [f64; 3] {
    let [one, other] = &threads.hogs;
    let told = host.sh(&format!(
        "cut -d ' ' -f 1 /proc/{}/schedstat /proc/{one}/schedstat /proc/{other}/schedstat",
        threads.vcpu
    ));
    let times: Vec<f64> = told.lines().map(|line| line.parse().unwrap()).collect();
    times.try_into().unwrap()
}

/// A guest that always asks has its budget, and no more than its share.
fn bounds_a_rogue(host: &Host, threads: &Threads) -> Result<(), CheckFailure> {
    for (what, command) in ROGUES {
        let pid =
            host.sh(&format!("guest a \"setsid sh -c '{command}' >/dev/null 2>&1 & echo \\$!\""));
        host.sh("rm -f /tmp/attach.json; \
             vcoop attach a --policy wake-boost --set policy.wake-boost.means=ext \
             --set policy.wake-boost.boost_on_injection=true --for 8s --json >/tmp/attach.json & \
             until grep -q enabled /sys/kernel/sched_ext/state; do sleep 0.1; done; sleep 1");
        let before = times(host, threads);
        host.sh("sleep 5");
        let after = times(host, threads);
        host.sh("until [ -s /tmp/attach.json ]; do sleep 0.1; done");
        host.sh(&format!("guest a 'kill -KILL -{}'", pid.trim()));
        let told: serde_json::Value =
            serde_json::from_str(&host.sh("cat /tmp/attach.json")).unwrap();
        let vcpu = &told["vcpus"][0];
        let number = |key: &str| vcpu[key].as_f64().unwrap();
        // The defaults; a run's timer may be late by a tick, which the next run pays for.
        let budget = 3e6 + 0.25 * told["for_ns"].as_f64().unwrap() + 5e6;
        let [ran, one, other] = [0, 1, 2].map(|i| after[i] - before[i]);
        let kept = 1.5 * (one + other) / (ran + one + other);
        let told = format!(
            "a guest that {what}: {} boosts, {} throttles, boosted {:.0} of {:.0} ms; hogs keep {kept:.2} of their share",
            number("boosts"),
            number("throttles"),
            number("boosted_ns") / 1e6,
            budget / 1e6
        );
        eprintln!("{told}");
        assert!(number("boosts") > 50.0 && number("boosted_ns") < budget, "{told}");
        if kept < FAIR {
            return Err(told.into());
        }
    }
    Ok(())
}

/// How `dynamic` is set, with budgets for a host whose exits take 30 us.
fn of_guest() -> String {
    let sets =
        ["means=ext", "vcpu_refill=50%", "vm_refill=80%", "vcpu_burst=20ms", "vm_burst=40ms"];
    sets.map(|set| format!(" --set policy.dynamic.{set}")).concat()
}

/// A guest that never sleeps says what is urgent, and when: it is boosted for that within its budget, and the urgent
/// task waits less than under the same scheduler without.
fn listens_to_the_guest(host: &Host) -> Result<(), CheckFailure> {
    let sets = of_guest();
    // A guest that never sleeps is never boosted by `wake-boost`.
    let compare = "vcoop compare a --policy wake-boost,dynamic --set policy.wake-boost.means=ext \
                   --rounds 2 --each 3s --set policy.dynamic.longest_boost=0s";
    let document = host.json(&format!("{compare}{sets}"));
    let boosts = |policy| value(&document, policy, "a", "boosts");
    assert_eq!(boosts("wake-boost"), 0.0);
    let urgent = |policy| value(&document, policy, "a.urgent", "latency");
    let (without, with) = (urgent("wake-boost"), urgent("dynamic"));
    let told = format!(
        "urgent: scx_vcoop {without} us, with dynamic {with} us; {} boosts/s",
        boosts("dynamic")
    );
    eprintln!("{told}");
    assert!(boosts("dynamic") > 20.0, "{told}");
    if with < without / 2.0 { Ok(()) } else { Err(told.into()) }
}

/// A guest whose urgent task sleeps, and which is not boosted across idle, wakes up boosted for the deadline that it
/// has announced.
fn sleeps_until_its_deadline(host: &Host) -> Result<(), CheckFailure> {
    let alone = ["boost_across_idle=false", "boost_on_request=false", "longest_boost=0s"];
    let alone = alone.map(|set| format!(" --set policy.dynamic.{set}")).concat();
    let told = host.json(&format!("vcoop attach a --policy dynamic{}{alone} --for 3s", of_guest()));
    eprintln!("asleep until a deadline: {}", told["vcpus"][0]);
    let count = |key: &str| told["vcpus"][0][key].as_u64().unwrap();
    let holds = count("deadlines") > 100 && count("boosts") > 100;
    if holds { Ok(()) } else { Err(told.to_string().into()) }
}

/// A kernel that is locked down, which it can be made at any time, has no boosts that write into a VMM's memory, and
/// says so.
fn is_refused_where_the_kernel_is_locked_down(host: &Host) {
    host.sh("mount -t securityfs none /sys/kernel/security 2>/dev/null; \
             echo integrity >/sys/kernel/security/lockdown");
    let attach = |policy: &str, set: &str| {
        host.run(&format!(
            "vcoop attach a --policy {policy} --set policy.{policy}.means=ext {set} --for 1s --json"
        ))
    };
    let refused = attach("dynamic", "");
    assert_eq!(refused.status, 3, "{}{}", refused.stdout, refused.stderr);
    assert!(refused.stderr.contains("kernel is locked down"), "{}", refused.stderr);
    let heard = attach("wake-boost", "--set policy.wake-boost.boost_on_injection=true");
    assert_eq!(heard.status, 0, "{}{}", heard.stdout, heard.stderr);
    assert!(heard.stdout.contains("fentry of KVM"), "{}", heard.stdout);
    let doctor = host.json("vcoop doctor").to_string();
    for line in ["heard by fentry of KVM", "dynamic is refused"] {
        assert!(doctor.contains(line), "{line}: {doctor}");
    }
}

test!("box", interrupts_and_wake_ups_are_answered_by_scx_vcoop, || -> Outcome {
    if !cfg!(feature = "bpf") {
        return Err(Skip::because(NO_BPF));
    }
    Host::own("7", is_answered)
});

fn is_answered(host: &Host) -> Outcome {
    // First, because threads that are pinned to this CPU would lose that.
    stays_through_hotplug(host);
    makes_nobody_wait_behind_one_that_slept(host);
    let threads = host.crowd(host.daemon());
    host.sh("guest a insmod /lib/modules/vcoop.ko");
    assert_eq!(state(host), "disabled\n");
    host.sh("guest a 'cyclictest -q -m -p 80 -i 4300 >/dev/null 2>&1 &'");
    comes_and_goes(host);
    comes_back_after_the_kernel_has_ended_it(host);
    let refused = host.run("vcoop attach a --policy static --set policy.static.means=ext --for 1s");
    assert_eq!(refused.status, 2, "{}{}", refused.stdout, refused.stderr);
    assert!(refused.stderr.contains("wake-boost and dynamic"), "{}", refused.stderr);

    let sets = [
        "means=ext",
        "run=3ms",
        "vcpu_refill=50%",
        "vm_refill=80%",
        "vcpu_burst=20ms",
        "vm_burst=40ms",
    ];
    let sets = sets.map(|set| format!(" --set policy.wake-boost.{set}")).concat();
    let injection = " --set policy.wake-boost.boost_on_injection=true";
    let deadlines = twice(|| sleeps_until_its_deadline(host));
    let waits = twice(|| -> Result<(), CheckFailure> {
        let compare = "vcoop compare a --policy vanilla,wake-boost --rounds 2 --each 2s";
        let document = host.json(&format!("{compare}{sets}"));
        let wait = |policy| value(&document, policy, "a.vcpu0", "wait");
        let told = format!("waits: vanilla {} us, ext {} us", wait("vanilla"), wait("wake-boost"));
        eprintln!("{told}");
        if wait("wake-boost") < wait("vanilla") / 5.0 { Ok(()) } else { Err(told.into()) }
    });
    let shares = twice(|| bounds_a_rogue(host, &threads));
    // A guest that does not sleep is boosted for its timer, within its budget.
    host.sh("guest a 'while :; do :; done >/dev/null 2>&1 &'");
    let told = host.json(&format!("vcoop attach a --policy wake-boost{sets}{injection} --for 4s"));
    assert_eq!(told["hears"], json!(["scx_vcoop", "fentry of KVM"]), "{told}");
    let vcpu = &told["vcpus"][0];
    let (boosts, boosted) =
        (vcpu["boosts"].as_u64().unwrap(), vcpu["boosted_ns"].as_f64().unwrap());
    let budget = 20e6 + 0.5 * told["for_ns"].as_f64().unwrap();
    // A run's timer may be late by a tick, and is paid for by the next.
    assert!(boosts > 50 && boosted < budget + 5e6, "{told}");
    // A boosted vCPU does not wait until the others have had as much time.
    let compare = "vcoop compare a --policy vanilla,wake-boost --rounds 1 --each 2s";
    let document = host.json(&format!("{compare}{sets}{injection}"));
    let longest =
        |policy| series(&document, policy, "a.vcpu0", "preempted")["max"].as_f64().unwrap();
    let (without, with) = (longest("vanilla"), longest("wake-boost"));
    eprintln!("longest waits after a preemption: vanilla {without} us, ext {with} us");
    assert!(with < 15.0 * without, "{with} us, {without} us without");
    let urgent = twice(|| listens_to_the_guest(host));
    assert_eq!(state(host), "disabled\n");
    let log = host.sh("dmesg");
    for bad in FAILURES {
        assert!(!log.contains(bad), "{bad}: {log}");
    }
    is_refused_where_the_kernel_is_locked_down(host);
    waits.and(shares).and(urgent).and(deadlines)
}
