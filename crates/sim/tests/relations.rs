//! Relations between runs, and laws within a run, that hold whatever the right answer is.

use vcoop_model::recording::{Part, Recording};
use vcoop_model::run::Run;
use vcoop_testing::rig::{latency, plans, scalar};

/// Two VMs in groups of their own beside loads, on a machine without costs.
const BUSY: &str = r#"
name = "busy"
title = "relations"
duration = "1s"
warmup = "200ms"
[host]
profile = "zero"
pcpus = 3
[[vm]]
name = "a"
vcpus = 4
weight = 1024
waits = true
[[vm.task]]
name = "tick"
kind = "cyclictest"
policy = "fifo 50"
[[vm.task]]
name = "burst"
kind = "bursty"
count = 3
[[vm.task]]
name = "pipe"
kind = "pipe"
work = "50us"
[[vm]]
name = "b"
vcpus = 2
weight = 2048
[[vm.task]]
name = "hog"
kind = "hog"
count = 2
[[vm.task]]
name = "lock"
kind = "lock-workers"
count = 3
work = "exp 100us"
"#;

fn run(text: &str, sets: &[&str], seed: u64) -> Recording {
    let plan = plans(text, &[], sets).remove(0);
    vcoop_sim::run(Run::new(&plan, seed)).unwrap()
}

/// All numbers of `before` that are not the same in `after`.
fn changes(before: &Recording, after: &Recording) -> Vec<String> {
    let scalars =
        before.scalars.iter().filter(|(key, value)| after.scalars.get(key) != Some(value));
    let mut all: Vec<String> = scalars.map(|(key, _)| format!("{key:?}")).collect();
    for l in &before.latencies {
        let other = latency(after, &l.probe);
        if (l.hist.len(), l.sum_ns, l.max_ns) != (other.hist.len(), other.sum_ns, other.max_ns) {
            all.push(l.probe.clone());
        }
    }
    all
}

#[test]
fn what_has_no_effect_changes_no_number() {
    let prefer = |vm: &str, all: &str| {
        format!("[[at]]\ntime = \"300ms\"\nvm = \"{vm}\"\nprefer = \"{all}\"\n")
    };
    let policy = |x: &str| format!("[compare]\npolicy = [\"x\"]\n[policy.x]\n{x}\n");
    let off = "[[at]]\ntime = \"0s\"\nboost = \"off\"\n";
    let doubled = ["vm.a.weight=2048", "vm.b.weight=4096"];
    let vanilla = policy("base = \"vanilla\"");
    let table: [(&str, String, &[&str]); 6] = [
        ("weights doubled for all", vanilla.clone(), &doubled),
        ("all vCPUs preferred", prefer("a", "0-3") + &prefer("b", "0-1") + &vanilla, &[]),
        ("static at the level that all have", policy("base = \"static\"\nmeans = \"nice 0\""), &[]),
        ("boosts switched off", off.to_owned() + &policy("base = \"dynamic\""), &[]),
        ("the same for wake-boost", off.to_owned() + &policy("base = \"wake-boost\""), &[]),
        ("a switch of a guest that never polls", vanilla.clone(), &["vm.a.halt_poll=0us"]),
    ];
    for fair in ["cfs", "eevdf"] {
        let set = format!("host.sched.fair={fair}");
        let before = run(&(BUSY.to_owned() + &vanilla), &[&set], 1);
        // Under CFS a sleeper's credit is the same virtual time whatever the weights are.
        let of_all = if fair == "cfs" { &table[1..] } else { &table[..] };
        for (what, more, sets) in of_all {
            let after = run(&(BUSY.to_owned() + more), &[&[set.as_str()], *sets].concat(), 1);
            assert_eq!(changes(&before, &after), [""; 0], "{fair}: {what}");
        }
    }
}

/// Tasks that do nothing but measured rounds: their number is their rate times the mean time of a round (Little's law),
/// however long they wait. A lost wake-up or a lost sample breaks it.
#[test]
fn rounds_take_all_the_time_of_their_tasks() {
    let table = [
        (1.0, "kind = \"pipe\"\nwork = \"20us\""),
        (3.0, "kind = \"barrier\"\ncount = 3\nwork = \"exp 200us\"\nspin = \"0us\""),
        (3.0, "kind = \"barrier\"\ncount = 3\nwork = \"exp 200us\"\nspin = \"1ms\""),
        (3.0, "kind = \"lock-workers\"\ncount = 3\nwork = \"50ns\"\nsection = \"exp 20us\""),
        (
            3.0,
            "kind = \"lock-workers\"\ncount = 3\nwork = \"50ns\"\nsection = \"exp 20us\"\nlock_kind = \"mutex\"",
        ),
        (
            3.0,
            "kind = \"lock-workers\"\ncount = 3\nwork = \"50ns\"\nsection = \"exp 20us\"\nlock_kind = \"futex\"",
        ),
        (
            3.0,
            "kind = \"lock-workers\"\ncount = 3\nwork = \"50ns\"\nsection = \"exp 20us\"\nlock_kind = \"write\"",
        ),
        (
            2.0,
            "kind = \"client\"\ncount = 2\nthink = \"0us\"\nwork = \"50ns\"\nnetwork = \"exp 100us\"",
        ),
        (
            2.0,
            "kind = \"client\"\ncount = 2\nthink = \"0us\"\nwork = \"50ns\"\nserver = \"b.server\"",
        ),
    ];
    let server = "[[vm.task]]\nname = \"server\"\nkind = \"server\"\nwork = \"exp 20us\"\n";
    for costly in [false, true] {
        for (number, keys) in &table {
            // Each pCPU has an LLC of its own: wake-ups cross them.
            let c = format!("[[vm]]\nname = \"c\"\nvcpus = 2\n[[vm.task]]\nname = \"x\"\n{keys}\n");
            let text = BUSY.to_owned() + server + &c + "[compare]\npolicy = [\"vanilla\"]\n";
            let mut sets = vec!["host.topology={ cores_per_llc = 1, llcs = 3 }", "duration=1s"];
            if costly {
                sets.extend(["vm.c.kvm=stock", "vm.c.hints=shared", "host.profile=xeon-server"]);
            }
            let r = run(&text, &sets, 3);
            let l = latency(&r, "c.x");
            let mean_s = l.sum_ns as f64 / l.hist.len() as f64 / 1e9;
            let found = scalar(&r, "c.x", "rate") * mean_s;
            // Rounds that are under way at the begin and the end are not measured; the work of 50 ns is not in them.
            let slack = 0.04 * number + number * l.max_ns as f64 / 1e9;
            assert!((found - number).abs() < slack, "{found} of {number}: {keys} {costly}");
        }
    }
}

/// Who waits for a pCPU is told who ran there instead, for all of the wait.
#[test]
fn others_ran_for_as_long_as_a_sample_waited() {
    let more = r#"
[[vm]]
name = "c"
vcpus = 3
[[vm.task]]
name = "meet"
kind = "barrier"
count = 3
work = "300us"
spin = "100us"
[compare]
policy = ["vanilla"]
"#;
    for seed in 1..4 {
        let r = run(&(BUSY.to_owned() + more), &["duration=2s"], seed);
        for (l, w) in r.latencies.iter().flat_map(|l| l.worst.iter().map(move |w| (l, w))) {
            let waits = [Part::WakeToRun, Part::PreemptedToRun].map(|part| w.parts[part as usize]);
            let (waited, ran) =
                (waits.iter().sum::<u64>(), w.ran_instead.iter().map(|x| x.1).sum::<u64>());
            assert!(waited.abs_diff(ran) < 1_000, "{} waited {waited} ns: {w:?}", l.probe);
        }
    }
}

/// VMs that share nothing with others are as if they were alone on a machine of that size.
#[test]
fn two_halves_of_a_machine_are_two_machines() {
    let vm = |name: &str, keys: &str, pin: &str, task: &str| {
        format!(
            "[[vm]]\nname = \"{name}\"\nvcpus = 2\npin = \"{pin}\"\n{keys}[[vm.task]]\nname = \"t\"\n{task}\n"
        )
    };
    let half = |name: &str, pin: &str| {
        let burst = "kind = \"bursty\"\ncount = 2\nburst = \"exp 2ms\"\nidle = \"exp 2ms\"";
        vm(&format!("{name}h"), "", pin, "kind = \"hog\"\ncount = 2")
            + &vm(&format!("{name}b"), "waits = true\n", pin, burst)
    };
    let head = |pcpus: u32| {
        format!(
            "name = \"halves\"\ntitle = \"halves\"\nduration = \"2s\"\n[compare]\npolicy = [\"vanilla\"]\n\
             [host]\nprofile = \"xeon-server\"\npcpus = {pcpus}\n\
             topology = {{ cores_per_llc = 2, llcs = {} }}\n[host.sched]\nbase_slice = \"1400us\"\n",
            pcpus / 2
        )
    };
    let one = head(2) + &half("x", "0-1");
    let two = head(4) + &half("x", "0-1") + &half("y", "2-3");
    let (mut alone, mut first, mut second) = ([0.0; 3], [0.0; 3], [0.0; 3]);
    for seed in 1..=12 {
        let (a, b) = (run(&one, &[], seed), run(&two, &[], 100 + seed));
        for (sums, r, name) in
            [(&mut alone, &a, "x"), (&mut first, &b, "x"), (&mut second, &b, "y")]
        {
            let waits = latency(r, &format!("{name}b.vcpu0"));
            sums[0] += scalar(r, &format!("{name}h"), "cpu");
            sums[1] += scalar(r, &format!("{name}b"), "cpu");
            sums[2] += waits.sum_ns as f64 / waits.hist.len() as f64;
        }
    }
    for (i, what) in ["the hogs' CPU time", "the others' CPU time", "waits"].iter().enumerate() {
        let near = |x: f64| (x / alone[i] - 1.0).abs() < [0.02, 0.03, 0.15][i];
        assert!(near(first[i]) && near(second[i]), "{what}: {alone:?} {first:?} {second:?}");
    }
}

/// Every period of a probe is a sample or missed, those of a stall that lasts to the end as well.
#[test]
fn periods_without_a_sample_are_missed() {
    let vm = |probe: &str, other: &str| {
        format!(
            "name = \"p\"\ntitle = \"p\"\nwarmup = \"500ms\"\n[compare]\npolicy = [\"vanilla\"]\n\
             [host]\nprofile = \"zero\"\npcpus = 1\n[[vm]]\nname = \"g\"\nvcpus = 1\n{other}\
             [[vm.task]]\nname = \"hog\"\nkind = \"hog\"\n[[vm.task]]\nname = \"x\"\n{probe}\n"
        )
    };
    let never = "sched = { rt_guard = \"off\" }\n[[vm.task]]\nname = \"rt\"\nkind = \"hog\"\npolicy = \"fifo 9\"\n";
    for (others, policy) in [("cpu_max = \"10ms/100ms\"\n", "fifo 5"), (never, "other")] {
        for kind in ["kind = \"cyclictest\"", "kind = \"timer-bench\""] {
            let probe = format!("{kind}\ninterval = \"1ms\"\npolicy = \"{policy}\"");
            for ms in [990, 1050] {
                let r = run(&vm(&probe, others), &[&format!("duration={ms}ms")], 1);
                for l in &r.latencies {
                    let all = l.hist.len() + l.missed;
                    assert!(all.abs_diff(ms) <= 1, "{all} of {ms}: {} {others}{probe}", l.probe);
                    assert!(l.max_ns > 85_000_000, "{} {probe}", l.probe);
                }
            }
        }
    }
}

/// RT throttling has one period for all CPUs: tasks that wait for each other lose as much as one alone.
#[test]
fn throttled_cpus_are_throttled_together() {
    let text = "name = \"t\"\ntitle = \"t\"\nduration = \"5s\"\nwarmup = \"2s\"\n[compare]\npolicy = [\"vanilla\"]\n\
                [host]\nprofile = \"zero\"\npcpus = 4\nsched = { fair = \"cfs\", rt_guard = \"throttle\" }\n\
                [[vm]]\nname = \"g\"\nvcpus = 4\nvcpu_policy = \"fifo 5\"\npin = [\"0\", \"1\", \"2\", \"3\"]\n\
                sched = { rt_guard = \"off\" }\n[[vm.task]]\nname = \"b\"\nkind = \"barrier\"\ncount = 4\n\
                work = \"1ms\"\nspin = \"100ms\"\n";
    for seed in 1..4 {
        let rate = scalar(&run(text, &[], seed), "g.b", "rate") / 4_000.0;
        assert!((rate - 0.95).abs() < 0.02, "{rate}");
    }
}
