//! The real program on a real KVM host, which QEMU emulates: SVM, Debian's kernel, kvm-amd, and stock guests
//! under KVM. `cargo test --workspace --test kvm_host -- --ignored` runs them; each skips itself where what it
//! needs cannot be had.
//!
//! Time in such a host means little. What is checked is that everything works there, and who comes first.

#[cfg(target_os = "linux")]
mod linux {
    use std::time::Duration;

    use serde_json::Value;
    use vcoop_stock::{GuestImage, HostOptions, Kernel, KvmHost, Output, StockError, program};
    use vcoop_testing::{Outcome, Skip, Trouble, test, twice};

    const VCOOP: &str = env!("CARGO_BIN_EXE_vcoop");

    /// How long the host may take for a command.
    const LIMIT: Duration = Duration::from_secs(120);

    /// Budgets for a host whose exits take 30 us and interrupts 100 us.
    const BUDGETS: [&str; 5] = [
        "vcpu_refill=50%",
        "vcpu_burst=20ms",
        "vm_refill=80%",
        "vm_burst=40ms",
        "longest_boost=0s",
    ];

    /// What is missing is a reason to skip; everything else fails.
    fn have<T>(result: Result<T, StockError>) -> Result<T, Skip> {
        result.map_err(|error| {
            assert!(error.is_missing(), "{error}");
            Skip::because(error)
        })
    }

    struct Host(KvmHost);

    impl Host {
        fn start(guest: Option<GuestImage>) -> Result<Self, Skip> {
            Self::of("6.12", guest)
        }

        fn of(series: &str, guest: Option<GuestImage>) -> Result<Self, Skip> {
            let programs = vec![VCOOP.into(), have(program("taskset", "util-linux"))?];
            let options = HostOptions { series: series.to_owned(), programs, guest };
            have(KvmHost::start(&options)).map(Self)
        }

        fn run(&self, command: &str) -> Output {
            self.0
                .run(command, LIMIT)
                .unwrap_or_else(|e| panic!("{command}: {e}; {}", self.0.vm().console()))
        }

        /// What a command that succeeds prints.
        fn sh(&self, command: &str) -> String {
            let output = self.run(command);
            assert_eq!(output.status, 0, "{command}: {}{}", output.stdout, output.stderr);
            output.stdout
        }

        fn json(&self, command: &str) -> Value {
            let told = self.sh(&format!("{command} --json"));
            serde_json::from_str(&told).unwrap_or_else(|e| panic!("{command}: {e}: {told}"))
        }
    }

    fn series<'a>(document: &'a Value, policy: &str, probe: &str, metric: &str) -> &'a Value {
        let found = document["series"].as_array().unwrap().iter().find(|s| {
            s["probe"] == probe
                && s["metric"] == metric
                && (s["policy"] == policy || policy.is_empty())
        });
        found.unwrap_or_else(|| panic!("no {probe} {metric} under {policy}: {document}"))
    }

    fn value(document: &Value, policy: &str, probe: &str, metric: &str) -> f64 {
        let series = series(document, policy, probe, metric);
        series.get("value").or(series.get("mean")).unwrap().as_f64().unwrap()
    }

    fn budgets() -> String {
        BUDGETS.map(|budget| format!(" --set policy.dynamic.{budget}")).concat()
    }

    test!("box", the_lab_runs_on_a_real_kvm_host, || -> Outcome {
        let host = Host::start(None)?;
        let told = host.sh("vcoop doctor");
        for line in ["KVM flavour: svm", "kvm/kvm_entry, kvm/kvm_exit", "micro-VM lab: runs here"] {
            assert!(told.contains(line), "{line}: {told}");
        }
        let profile =
            host.sh("vcoop calibrate --quick -o /tmp/host.toml >&2 && cat /tmp/host.toml");
        assert!(profile.contains("exit = { ns = "), "{profile}");
        host.sh("vcoop run /tmp/none.toml 2>/dev/null; vcoop run busy-host-1 --calibration /tmp/host.toml --repeats 2");

        let run = "vcoop run busy-host-1 --backend kvm --policy vanilla,wake-boost,dynamic,static \
                   --repeats 2 --duration 2s";
        twice(|| -> Result<(), Trouble> {
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
    });

    test!("box", stock_guests_of_a_real_kvm_host_are_seen_and_helped, || -> Outcome {
        let kernel = have(Kernel::get())?;
        let module = have(kernel.driver())?;
        let image = GuestImage { kernel, programs: vec![VCOOP.into()], modules: vec![module] };
        let host = Host::start(Some(image))?;
        host.sh("mkdir -p /etc/vcoop; : >/etc/vcoop/vcoop.toml; \
                 vcoop daemon --config /etc/vcoop/vcoop.toml >/tmp/daemon.log 2>&1 & \
                 until [ -e /run/vcoop/window.sock ]; do sleep 0.1; done");
        // One as libvirt's are, with a window, and one of two vCPUs on a smaller machine without.
        host.sh("start-guest told -chardev socket,id=vcoop,path=/run/vcoop/window.sock \
                 -device ivshmem-doorbell,chardev=vcoop,vectors=1 >/tmp/told.log 2>&1 & \
                 start-guest plain -smp 2 -machine microvm,rtc=on -device isa-serial,chardev=control; \
                 wait $! || { cat /tmp/told.log >&2; exit 1; }");
        host.sh("guest told insmod /lib/modules/vcoop.ko");

        let vms = host.json("vcoop vms");
        let vms = vms["vms"].as_array().unwrap();
        let find = |name: &str| {
            vms.iter().find(|vm| vm["name"] == name).unwrap_or_else(|| panic!("{vms:?}"))
        };
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
        let folds =
            host.sh("guest plain vcoop guest --dry-run --for 6s --set governor_interval=1s");
        assert!(folds.contains("would use 1"), "{folds}");

        let policy = || host.sh(&format!("vcoop vms | grep ' {} '", tids("told")[0]));
        host.sh("vcoop attach told --policy static >/tmp/attach.log 2>&1 & sleep 3");
        assert!(policy().contains("SCHED_RR"), "{}", policy());
        assert_eq!(host.sh("vcoop vms | grep -c 'policy static'"), "1\n");
        host.sh("vcoop detach told >&2; wait $!");
        assert!(policy().contains("SCHED_OTHER"), "{}", policy());

        let compare = "vcoop compare told --policy vanilla,static,dynamic --rounds 2 --each 3s";
        let outcome = twice(|| -> Result<(), Trouble> {
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
    });

    /// Part of the timers that expire while a vCPU is preempted which have it boosted before it runs again.
    const IN_TIME: f64 = 0.95;

    /// What a trace says of a vCPU that was preempted.
    #[derive(Debug, Default)]
    struct Preempted {
        /// Times that its timer expired meanwhile.
        expired: u32,
        /// ... and it was real-time when it ran again.
        boosted: u32,
    }

    /// Reads a trace of `sched_switch` and `hrtimer_expire_entry`, in text.
    fn preempted(trace: &str, tid: &str) -> Preempted {
        let (mut out, mut expired, mut sum) = (false, false, Preempted::default());
        let of = |line: &str, key: &str| {
            line.split_once(key)
                .and_then(|(_, rest)| rest.split(' ').next())
                .unwrap_or("")
                .to_owned()
        };
        for line in trace.lines() {
            if line.contains("sched_switch:") && of(line, "prev_pid=") == tid {
                // R or R+: it would have gone on.
                (out, expired) = (of(line, "prev_state=").starts_with('R'), false);
            } else if line.contains("sched_switch:") && of(line, "next_pid=") == tid {
                if expired {
                    let priority: u32 = of(line, "next_prio=").parse().unwrap();
                    sum.expired += 1;
                    sum.boosted += u32::from(priority < 100);
                }
                (out, expired) = (false, false);
            } else if line.contains("function=apic_timer_fn") {
                expired |= out;
            }
        }
        sum
    }

    test!("box", interrupts_of_a_guest_without_a_driver_are_heard, || -> Outcome {
        if !cfg!(feature = "bpf") {
            return Err(Skip::because("built without the feature `bpf`"));
        }
        let (kernel, nothing) = (have(Kernel::get())?, Vec::new());
        let host =
            Host::start(Some(GuestImage { kernel, programs: nothing, modules: Vec::new() }))?;
        host.sh("start-guest a");
        let doctor = host.sh("vcoop doctor");
        assert!(doctor.contains("interrupts of VMs: heard by fentry of KVM"), "{doctor}");
        let vms = host.json("vcoop vms");
        let tid = vms["vms"][0]["vcpus"][0]["tid"].to_string();
        host.sh(&format!("taskset -pc 1 {tid}"));
        for _ in 0..2 {
            host.sh("taskset 2 sh -c 'while :; do :; done' >/dev/null 2>&1 &");
        }
        // A period that is not in step with the ticks of host and guest.
        host.sh("guest a 'cyclictest -q -m -p 80 -i 2300 >/dev/null 2>&1 &'");
        host.sh("guest a 'while :; do :; done >/dev/null 2>&1 &'");
        let sets = "--set policy.wake-boost.boost_on_injection=true --set policy.wake-boost.vcpu_refill=60% \
                    --set policy.wake-boost.vm_refill=80% --set policy.wake-boost.vcpu_burst=20ms \
                    --set policy.wake-boost.vm_burst=40ms";
        let trace = "cd /sys/kernel/tracing; echo 8192 >buffer_size_kb; echo nop >current_tracer; \
                     for e in sched/sched_switch timer/hrtimer_expire_entry; do echo 1 >events/$e/enable; done; \
                     sleep 4; echo 0 >tracing_on; cat trace >/tmp/trace; echo >trace; echo 0 >events/enable; \
                     echo 1 >tracing_on";
        twice(|| -> Result<(), Trouble> {
            host.sh(&format!(
                "vcoop attach a --policy wake-boost {sets} --for 8s --json >/tmp/attach.json & sleep 2; \
                 vcoop vms --json >/tmp/vms.json; ({trace}); wait"
            ));
            let told: Value = serde_json::from_str(&host.sh("cat /tmp/attach.json")).unwrap();
            assert_eq!(told["hears"], serde_json::json!(["perf", "fentry of KVM"]), "{told}");
            let vms: Value = serde_json::from_str(&host.sh("cat /tmp/vms.json")).unwrap();
            assert_eq!(vms["vms"][0]["heard_by"], told["hears"], "{vms}");
            let interrupts = &told["interrupts"];
            let count = |key: &str| interrupts[key].as_u64().unwrap();
            let was = preempted(&host.sh("grep -E 'CPU.0/KVM|apic_timer_fn' /tmp/trace"), &tid);
            let told = format!("{was:?}, {interrupts}");
            eprintln!("{told}");
            assert!(count("heard") > 100 && count("lost") == 0 && was.expired > 50, "{told}");
            // Without interrupts a vCPU that never sleeps is never boosted. How many boosts come in time depends
            // on how fast the daemon's CPU is emulated: a slow machine is said to be one.
            let in_time = f64::from(was.boosted) / f64::from(was.expired);
            if in_time >= IN_TIME {
                Ok(())
            } else if in_time < IN_TIME / 2.0 {
                Err(told.into())
            } else {
                let percent = 100.0 * in_time;
                let reason = format!("this machine is too slow: {percent:.0} % in time, {told}");
                Err(Skip::because(reason).into())
            }
        })
    });

    test!("box", interrupts_and_wake_ups_are_answered_by_scx_vcoop, || -> Outcome {
        if !cfg!(feature = "bpf") {
            return Err(Skip::because("built without the feature `bpf`"));
        }
        let (kernel, nothing) = (have(Kernel::get())?, Vec::new());
        let image = GuestImage { kernel, programs: nothing, modules: Vec::new() };
        let host = Host::of("7", Some(image))?;
        let state = || {
            host.sh("cat /sys/kernel/sched_ext/state; cat /sys/kernel/sched_ext/root/ops 2>/dev/null; true")
        };
        assert_eq!(state(), "disabled\n");
        host.sh("start-guest a");
        let tid = host.json("vcoop vms")["vms"][0]["vcpus"][0]["tid"].to_string();
        host.sh(&format!("taskset -pc 1 {tid}"));
        for _ in 0..2 {
            host.sh("taskset 2 sh -c 'while :; do :; done' >/dev/null 2>&1 &");
        }
        host.sh("guest a 'cyclictest -q -m -p 80 -i 4300 >/dev/null 2>&1 &'");

        // Under load, again and again; and whoever is killed leaves nothing behind.
        for _ in 0..5 {
            host.sh("vcoop scx --for 100ms --quiet");
        }
        host.sh("vcoop scx --quiet >/dev/null 2>&1 & pid=$!; until grep -q enabled /sys/kernel/sched_ext/state; \
                 do sleep 0.1; done; kill -9 $pid; wait $pid; \
                 until grep -q disabled /sys/kernel/sched_ext/state; do sleep 0.1; done");
        let refused =
            host.run("vcoop attach a --policy static --set policy.static.means=ext --for 1s");
        assert_eq!(refused.status, 1, "{}{}", refused.stdout, refused.stderr);
        assert!(refused.stderr.contains("wake-boost only"), "{}", refused.stderr);

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
        let outcome = twice(|| -> Result<(), Trouble> {
            let compare = "vcoop compare a --policy vanilla,wake-boost --rounds 2 --each 2s";
            let document = host.json(&format!("{compare}{sets}"));
            let wait = |policy| value(&document, policy, "a.vcpu0", "wait");
            let told =
                format!("waits: vanilla {} us, ext {} us", wait("vanilla"), wait("wake-boost"));
            eprintln!("{told}");
            if wait("wake-boost") < wait("vanilla") / 3.0 { Ok(()) } else { Err(told.into()) }
        });
        // A guest that does not sleep is boosted for its timer, within its budget.
        host.sh("guest a 'while :; do :; done >/dev/null 2>&1 &'");
        let told =
            host.json(&format!("vcoop attach a --policy wake-boost{sets}{injection} --for 4s"));
        assert_eq!(told["hears"], serde_json::json!(["scx_vcoop", "fentry of KVM"]), "{told}");
        let vcpu = &told["vcpus"][0];
        let (boosts, boosted) =
            (vcpu["boosts"].as_u64().unwrap(), vcpu["boosted_ns"].as_f64().unwrap());
        let budget = 20e6 + 0.5 * told["for_ns"].as_f64().unwrap();
        // A run's timer may be late by a tick, and is paid for by the next.
        assert!(boosts > 50 && boosted < budget + 5e6, "{told}");
        // Who was boosted does not wait for as long as it takes the others to have as much.
        let compare = "vcoop compare a --policy vanilla,wake-boost --rounds 1 --each 4s";
        let document = host.json(&format!("{compare}{sets}{injection}"));
        let longest =
            |policy| series(&document, policy, "a.vcpu0", "preempted")["max"].as_f64().unwrap();
        let (without, with) = (longest("vanilla"), longest("wake-boost"));
        eprintln!("longest waits after a preemption: vanilla {without} us, ext {with} us");
        assert!(with < 15.0 * without, "{with} us, {without} us without");
        assert_eq!(state(), "disabled\n");
        let log = host.sh("dmesg");
        for bad in ["Oops", "BUG", "stall"] {
            assert!(!log.contains(bad), "{log}");
        }
        outcome
    });

    test!("unit", a_trace_tells_who_was_boosted_in_time, || {
        let trace = "\
            CPU 0/KVM-7 [001] d..2. 1.0: sched_switch: prev_comm=CPU 0/KVM prev_pid=7 prev_prio=120 prev_state=R ==> next_comm=sh next_pid=9 next_prio=120\n\
            sh-9 [001] d.h1. 1.1: hrtimer_expire_entry: hrtimer=0 function=apic_timer_fn [kvm] now=1\n\
            sh-9 [001] d..2. 1.2: sched_switch: prev_comm=sh prev_pid=9 prev_prio=120 prev_state=R ==> next_comm=CPU 0/KVM next_pid=7 next_prio=91\n\
            CPU 0/KVM-7 [001] d.h1. 1.3: hrtimer_expire_entry: hrtimer=0 function=apic_timer_fn [kvm] now=1\n\
            CPU 0/KVM-7 [001] d..2. 1.4: sched_switch: prev_comm=CPU 0/KVM prev_pid=7 prev_prio=120 prev_state=S ==> next_comm=sh next_pid=9 next_prio=120\n\
            sh-9 [001] d.h1. 1.5: hrtimer_expire_entry: hrtimer=0 function=apic_timer_fn [kvm] now=1\n\
            sh-9 [001] d..2. 1.6: sched_switch: prev_comm=sh prev_pid=9 prev_prio=120 prev_state=R ==> next_comm=CPU 0/KVM next_pid=7 next_prio=120\n";
        let sum = preempted(trace, "7");
        assert_eq!((sum.expired, sum.boosted), (1, 1));
    });
}

fn main() -> std::process::ExitCode {
    vcoop_testing::layer_main()
}
