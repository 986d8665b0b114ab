//! The lab, and stock guests with the driver.

use serde_json::Value;
use vcoop_testing::{CheckFailure, Outcome, test, twice};

use crate::host::{Host, series, value};

/// Budgets for a host whose exits take 30 us and interrupts 100 us.
const BUDGETS: [&str; 5] =
    ["vcpu_refill=50%", "vcpu_burst=20ms", "vm_refill=80%", "vm_burst=40ms", "longest_boost=0s"];

fn budgets() -> String {
    BUDGETS.map(|budget| format!(" --set policy.dynamic.{budget}")).concat()
}

test!("box", the_lab_runs_on_a_real_kvm_host, || Host::usual(the_lab_runs));

fn the_lab_runs(host: &Host) -> Outcome {
    let told = host.sh("vcoop doctor");
    for line in ["KVM flavour: svm", "kvm/kvm_entry, kvm/kvm_exit", "micro-VM lab: runs here"] {
        assert!(told.contains(line), "{line}: {told}");
    }
    let profile = host.sh("vcoop calibrate --quick -o /tmp/host.toml >&2 && cat /tmp/host.toml");
    assert!(profile.contains("exit = { ns = "), "{profile}");
    host.sh("vcoop run /tmp/none.toml 2>/dev/null; vcoop run busy-host-1 --calibration /tmp/host.toml --repeats 2");

    let run = "vcoop run busy-host-1 --backend kvm --policy vanilla,wake-boost,dynamic,static \
               --repeats 2 --duration 2s";
    twice(|| -> Result<(), CheckFailure> {
        let ran = host.run(&format!("{run}{} --json", budgets()));
        // Seen once in some sixty runs, on no other host: the emulated processor is suspected.
        if ran.status == 1 && ran.stderr.contains("triple fault") {
            return Err(ran.stderr.into());
        }
        assert_eq!(ran.status, 0, "{}{}", ran.stdout, ran.stderr);
        let document: Value = serde_json::from_str(&ran.stdout).unwrap();
        let latency = |policy| series(&document, policy, "guest.cyclictest", "latency");
        let mean = |policy| latency(policy)["mean"].as_f64().unwrap();
        for policy in ["vanilla", "wake-boost", "dynamic", "static"] {
            // With the entries and exits of a real KVM, guest mode is told from the rest.
            let parts = latency(policy)["parts_mean"].as_object().unwrap();
            assert!(parts["entry_exit"].as_f64().unwrap() > 1.0, "{policy}: {parts:?}");
            // Of these two the first is a sum of others, and so is none of them.
            let whole = |part: &str| !matches!(part, "host_wait");
            let sum: f64 = parts
                .iter()
                .filter(|(part, _)| whole(part))
                .map(|(_, us)| us.as_f64().unwrap())
                .sum();
            assert!(
                (sum / mean(policy) - 1.0).abs() < 0.001,
                "{policy}: {sum} of {}",
                mean(policy)
            );
        }
        let told = format!(
            "vanilla {}, dynamic {}, static {}",
            mean("vanilla"),
            mean("dynamic"),
            mean("static")
        );
        eprintln!("{told}");
        let holds =
            mean("dynamic") < mean("vanilla") / 2.0 && mean("static") < mean("vanilla") / 2.0;
        if holds { Ok(()) } else { Err(told.into()) }
    })
}

test!("box", stock_guests_of_a_real_kvm_host_are_seen_and_helped, || Host::usual(
    guests_are_helped
));

fn guests_are_helped(host: &Host) -> Outcome {
    let window = host.daemon();
    // One as libvirt's are, with a window, and one of two vCPUs on a smaller machine without.
    host.sh(&format!(
        "start-guest told {window} >/tmp/told.log 2>&1 & \
         start-guest plain -smp 2 -machine microvm,rtc=on -device isa-serial,chardev=control || exit; \
         wait $! || {{ cat /tmp/told.log >&2; exit 1; }}"
    ));
    host.sh("guest told insmod /lib/modules/vcoop.ko");

    let vms = host.json("vcoop vms");
    let vms = vms["vms"].as_array().unwrap();
    let find =
        |name: &str| vms.iter().find(|vm| vm["name"] == name).unwrap_or_else(|| panic!("{vms:?}"));
    for (name, vcpus) in [("told", 1), ("plain", 2)] {
        assert_eq!(find(name)["accel"], "KVM", "{name}");
        assert_eq!(find(name)["vcpus"].as_array().unwrap().len(), vcpus, "{name}");
    }
    let tids = |name: &str| -> Vec<String> {
        find(name)["vcpus"].as_array().unwrap().iter().map(|v| v["tid"].to_string()).collect()
    };

    // More vCPUs than CPUs, a hog, and work in both guests.
    for tid in ["told", "plain"].iter().flat_map(|name| tids(name)) {
        host.sh(&format!("taskset -pc 1 {tid}"));
    }
    host.sh("taskset 2 sh -c 'while :; do :; done' >/dev/null 2>&1 &");
    host.sh("guest told 'cyclictest -q -m -p 80 -i 4000 >/dev/null 2>&1 &'");
    host.sh("guest told 'while :; do :; done >/dev/null 2>&1 &'");
    for _ in 0..2 {
        host.sh("guest plain 'while :; do :; done >/dev/null 2>&1 &'");
    }

    let seen = host.json("vcoop observe told --for 4s");
    let share = |metric| value(&seen, "", "told.vcpu0", metric);
    let (steal, counted) = (share("steal"), share("run_delay"));
    assert!(
        steal > 40.0 && (steal / counted - 1.0).abs() < 0.02,
        "{steal} %, schedstat {counted} %"
    );
    let whole = steal + share("running") + share("halted");
    assert!((whole - 100.0).abs() < 0.01, "{whole} %");
    let exits = host.sh("vcoop observe told --for 2s");
    assert!(exits.contains("Exits of told") && exits.contains("msr"), "{exits}");

    // The guests know it as well, by KVM's own steal clock.
    let folds = host.sh("guest plain vcoop guest --dry-run --for 6s --set governor_interval=1s");
    assert!(folds.contains("would use 1"), "{folds}");

    let policy = || host.sh(&format!("vcoop vms | grep ' {} '", tids("told")[0]));
    host.sh("vcoop attach told --policy static >/tmp/attach.log 2>&1 & attach=$!; \
             until vcoop vms | grep -q 'policy static'; do kill -0 $attach || exit; sleep 0.1; done");
    assert!(policy().contains("SCHED_RR"), "{}", policy());
    assert_eq!(host.sh("vcoop vms | grep -c 'policy static'"), "1\n");
    host.sh("vcoop detach told >&2; wait $!");
    assert!(policy().contains("SCHED_OTHER"), "{}", policy());

    let compare = "vcoop compare told --policy vanilla,static,dynamic --rounds 2 --each 3s";
    let outcome = twice(|| -> Result<(), CheckFailure> {
        let document = host.json(&format!("{compare}{}", budgets()));
        let urgent = |policy| value(&document, policy, "told.urgent", "latency");
        let told = format!(
            "vanilla {}, static {}, dynamic {}",
            urgent("vanilla"),
            urgent("static"),
            urgent("dynamic")
        );
        eprintln!("{told}");
        let holds = urgent("dynamic") < urgent("vanilla") / 2.0
            && urgent("static") < urgent("vanilla") / 2.0;
        if holds { Ok(()) } else { Err(told.into()) }
    });
    assert!(policy().contains("SCHED_OTHER"), "{}", policy());
    host.sh("killall -TERM vcoop; while pidof vcoop >/dev/null; do sleep 0.1; done");
    assert_eq!(host.sh("vcoop restore"), "nothing was left changed\n");
    outcome
}
