//! Observations of threads of this process, which stand for vCPUs, on a CPU that they share with hogs.
//! Without tracefs all are skipped.

use std::process::{Child, Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use vcoop_capture::{Capture, Limits};
use vcoop_model::plan::Ns;
use vcoop_model::recording::{LatencyRecord, Part, Recording};
use vcoop_model::trace_event::{Event, Observer, SampleEvent, ThreadNames};
use vcoop_observe::{NoObserver, Observation, ObservationResult, ObservedVm, Slicing, Vcpu};
use vcoop_testing::rig::scalar_or_zero as scalar;
use vcoop_testing::{Outcome, Skip, test, twice, until};
use vcoop_threads::clock::{ClockId, kernel_clock};
use vcoop_threads::{Stat, allowed_cpus, gettid, run_time, set_affinity};

fn main() -> ExitCode {
    vcoop_testing::main()
}

/// So long is waited for what has to come.
const PATIENCE: Duration = Duration::from_secs(30);

/// A thread that ends with this.
struct Worker {
    tid: i32,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// One that does this again and again, on these CPUs.
    fn new(name: &str, cpus: &[u32], work: impl Fn() + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (sender, tids) = mpsc::channel();
        let (cpus, stopped) = (cpus.to_vec(), stop.clone());
        let body = move || {
            set_affinity(0, &cpus).unwrap();
            sender.send(gettid()).unwrap();
            while !stopped.load(Ordering::Relaxed) {
                work();
            }
        };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(body).unwrap();
        Self { tid: tids.recv().unwrap(), stop, thread: Some(thread) }
    }

    fn hog(cpus: &[u32]) -> Self {
        Self::new("hog", cpus, || spin(Duration::from_millis(1)))
    }

    fn vcpu(&self, index: u32) -> Vcpu {
        let start = Stat::open(self.tid).unwrap().start().unwrap();
        Vcpu { index, kvm_id: None, tid: self.tid, start }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().unwrap().join();
    }
}

/// Computes for so long: what others take of its CPU meanwhile does not count.
fn spin(time: Duration) {
    let used = || kernel_clock(ClockId::ThreadCPUTime);
    let end = used() + time.as_nanos() as Ns;
    while used() < end {}
}

fn subject(vcpus: &[&Worker]) -> ObservedVm {
    ObservedVm {
        name: "web".to_owned(),
        vcpus: (0..).zip(vcpus).map(|(i, worker)| worker.vcpu(i)).collect(),
        ..ObservedVm::default()
    }
}

fn observation(vcpus: &[&Worker]) -> Result<Observation, Skip> {
    of(subject(vcpus))
}

fn of(subject: ObservedVm) -> Result<Observation, Skip> {
    let missing = |missing: vcoop_model::Missing| {
        let remedies = ["mount -t tracefs", "--pid=host"];
        assert!(remedies.iter().any(|r| missing.remedy.contains(r)), "{missing}");
        Skip::because(missing)
    };
    Observation::new(subject).map_err(missing)
}

/// A window of this length.
fn window(
    observation: &mut Observation,
    time: Duration,
    observer: &mut dyn Observer,
) -> ObservationResult {
    let slicing = Slicing { slices: 10, duration_ns: time.as_nanos() as Ns };
    observation.begin(slicing);
    let begun = Instant::now();
    while let Some(left) = time.checked_sub(begun.elapsed()) {
        thread::sleep(left.min(Observation::LOOK));
        observation.poll(observer);
    }
    observation.end(observer).unwrap()
}

fn series<'r>(r: &'r Recording, probe: &str, metric: &str) -> &'r LatencyRecord {
    r.latencies.iter().find(|l| l.probe == probe && l.metric == metric).unwrap()
}

/// What is true of every window of a vCPU: its shares are all of it, and its waits are the steal.
fn assert_sums(observed: &ObservationResult, probe: &str) {
    let r = &observed.recording;
    let shares =
        ["running", "halted", "blocked", "steal", "unknown"].map(|metric| scalar(r, probe, metric));
    assert!((shares.iter().sum::<f64>() - 100.0).abs() < 0.01, "{probe}: {shares:?}");
    let waits = ["wait", "preempted"].map(|metric| series(r, probe, metric));
    let waited: u128 = waits.iter().map(|l| l.sum_ns).sum();
    let steal = scalar(r, probe, "steal") / 100.0 * observed.window_ns as f64;
    assert!((waited as f64 - steal).abs() < 1e4, "{probe}: {waited} ns of waits, {steal} of steal");
    for l in waits {
        assert_eq!(l.parts_sum.iter().sum::<u128>(), l.sum_ns, "{probe} {}", l.metric);
        assert!(l.ran_instead.values().sum::<u128>() <= l.sum_ns, "{probe} {}", l.metric);
        for worst in &l.worst {
            assert_eq!(worst.parts.iter().sum::<Ns>(), worst.latency_ns);
            assert!(worst.due_ns + worst.latency_ns <= observed.window_ns + 1);
        }
    }
}

test!("live", a_vcpu_among_hogs_waits_as_schedstat_says_and_hogs_run_instead, || {
    let cpu = [allowed_cpus().unwrap()[0]];
    let hogs = [Worker::hog(&cpu), Worker::hog(&cpu)];
    let vcpu = Worker::new("vcpu", &cpu, || {
        spin(Duration::from_millis(12));
        thread::sleep(Duration::from_millis(7));
    });
    let mut observation = observation(&[&vcpu])?;
    let outcome = twice(|| {
        let before = run_time(vcpu.tid);
        let observed = window(&mut observation, Duration::from_secs(3), &mut NoObserver);
        let after = run_time(vcpu.tid);
        assert_sums(&observed, "web.vcpu0");
        let r = &observed.recording;
        let share = |ns: Ns| 100.0 * ns as f64 / observed.window_ns as f64;
        let steal = share(after.waited_ns - before.waited_ns);
        let running = share(after.ran_ns - before.ran_ns);
        let seen = ["steal", "running", "halted", "wakeups"].map(|m| scalar(r, "web.vcpu0", m));
        let mut told = Vec::new();
        let near = |a: f64, b: f64| (a / b - 1.0).abs() < 0.02;
        if !near(seen[0], steal) || !near(seen[1], running) {
            told.push(format!("from outside: steal {steal} %, running {running} %; {seen:?}"));
        }
        let counted = scalar(r, "web.vcpu0", "run_delay");
        if !near(seen[0], counted) {
            told.push(format!("schedstat: {counted} %; {seen:?}"));
        }
        if seen[3] < 5.0 || seen[2] < 1.0 {
            told.push(format!("it slept every 12 ms of running: {seen:?}"));
        }
        for metric in ["wait", "preempted"] {
            let l = series(r, "web.vcpu0", metric);
            let hog = l.ran_instead.get("hog").copied().unwrap_or(0);
            // Others work on this host, too. Nearly all of each wait must be attributed to threads.
            let named: u128 = l.ran_instead.values().sum();
            if hog == 0 || 10 * named < 9 * l.sum_ns {
                told.push(format!("{metric}: {hog} of {} ns: {:?}", l.sum_ns, l.ran_instead));
            }
        }
        let part = |metric, part: Part| series(r, "web.vcpu0", metric).parts_sum[part as usize];
        assert_eq!(part("wait", Part::PreemptedToRun), 0);
        assert_eq!(part("preempted", Part::WakeToRun), 0);
        // One CPU: the rest of it is the hogs'.
        let others = scalar(r, "host.others", "throughput");
        if (others + seen[1] / 100.0 - 1.0).abs() > 0.02 {
            told.push(format!("others used {others} CPUs"));
        }
        assert_eq!(scalar(r, "observe", "lost"), 0.0);
        if told.is_empty() { Ok(()) } else { Err(told.join("; ")) }
    });
    drop(hogs);
    outcome
});

test!("live", a_vcpu_alone_or_asleep_is_told_without_any_event_of_it, || {
    let cpus = allowed_cpus().unwrap();
    let (held, hold) = mpsc::channel::<()>();
    let hold = std::sync::Mutex::new(hold);
    let asleep = Worker::new("asleep", &cpus[..1], move || {
        let _ = hold.lock().unwrap().recv();
    });
    // Dropped before the worker, also where the test skips itself: the worker's drop waits for its end.
    let held = held;
    let stat = Stat::open(asleep.tid).unwrap();
    until("it sleeps", || stat.is_asleep());
    let mut observation = observation(&[&asleep])?;
    let observed = window(&mut observation, Duration::from_millis(300), &mut NoObserver);
    assert_sums(&observed, "web.vcpu0");
    assert_eq!(scalar(&observed.recording, "web.vcpu0", "halted"), 100.0);
    assert_eq!(scalar(&observed.recording, "web.vcpu0", "wakeups"), 0.0);
    drop(held);
    Ok(())
});

/// A vCPU whose process is stopped: nothing is heard of it.
struct Stopped(Child);

impl Stopped {
    fn new() -> Self {
        let child = Command::new("sh").args(["-c", "kill -STOP $$"]).spawn().unwrap();
        let stat = Stat::open(child.id().cast_signed()).unwrap();
        until("it is stopped", || stat.is_stopped());
        Self(child)
    }

    fn observed(&self, time: Duration) -> Result<ObservationResult, Skip> {
        let tid = self.0.id().cast_signed();
        let start = Stat::open(tid).unwrap().start().unwrap();
        let vcpu = Vcpu { index: 0, kvm_id: None, tid, start };
        let mut observation = of(ObservedVm { vcpus: vec![vcpu], ..subject(&[]) })?;
        Ok(window(&mut observation, time, &mut NoObserver))
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

test!("live", a_cpu_that_one_thread_has_all_the_time_is_not_idle, || {
    let stopped = Stopped::new();
    let _hogs: Vec<Worker> =
        allowed_cpus().unwrap().iter().map(|cpu| Worker::hog(&[*cpu])).collect();
    // In a window so short there is often no switch on a CPU.
    let mut idle = Vec::new();
    for _ in 0..10 {
        let observed = stopped.observed(Duration::from_millis(60))?;
        idle.push(scalar(&observed.recording, "host", "idle"));
    }
    assert!(idle.iter().all(|percent| *percent < 40.0), "{idle:?}");
    Ok(())
});

test!("live", a_vcpu_that_is_stopped_does_not_wait_for_a_cpu, || {
    let observed = Stopped::new().observed(Duration::from_millis(300))?;
    assert_sums(&observed, "web.vcpu0");
    assert_eq!(scalar(&observed.recording, "web.vcpu0", "halted"), 100.0);
    let told = "the thread of vCPU 0 is stopped";
    assert!(observed.notes.iter().any(|note| note.evidence.starts_with(told)));
    Ok(())
});

test!("live", a_vcpu_that_the_hosts_kernel_blocks_has_not_halted, || {
    let cpus = allowed_cpus().unwrap();
    // A process that starts a program sleeps uninterruptibly until that is loaded (vfork).
    let blocked = Worker::new("blocked", &cpus[..1], || {
        assert!(Command::new("true").status().unwrap().success());
    });
    let mut observation = observation(&[&blocked])?;
    let observed = window(&mut observation, Duration::from_millis(300), &mut NoObserver);
    assert_sums(&observed, "web.vcpu0");
    let part = scalar(&observed.recording, "web.vcpu0", "blocked");
    assert!(part > 1.0, "{part} %");
    let told = "vCPU 0 was in an uninterruptible sleep";
    assert!(observed.notes.iter().any(|note| note.evidence.starts_with(told)));
    Ok(())
});

test!("live", a_wait_at_the_edges_of_a_window_counts_in_both, || {
    let cpu = [allowed_cpus().unwrap()[0]];
    let hogs = [Worker::hog(&cpu), Worker::hog(&cpu), Worker::hog(&cpu)];
    let vcpu = Worker::hog(&cpu);
    let mut observation = observation(&[&vcpu])?;
    // Shorter than its waits: some windows have no end of a wait in them.
    let mut off = 0;
    for _ in 0..40 {
        let observed = window(&mut observation, Duration::from_millis(3), &mut NoObserver);
        assert_sums(&observed, "web.vcpu0");
        let share = |metric| scalar(&observed.recording, "web.vcpu0", metric);
        assert_eq!(share("unknown"), 0.0);
        // In percent of some milliseconds.
        off += u32::from((share("steal") - share("run_delay")).abs() > 5.0);
    }
    assert!(off <= 8, "{off} of 40 windows are not as schedstat counts");
    drop(hogs);
    Ok(())
});

test!("live", a_vcpu_that_is_moved_to_another_cpu_is_seen_there, || {
    let cpus = allowed_cpus().unwrap();
    let [from, to] = cpus[..] else { return Err(Skip::because("needs two CPUs, and no more")) };
    let vcpu = Worker::hog(&[from]);
    let mut observation = observation(&[&vcpu])?;
    let stays = window(&mut observation, Duration::from_millis(200), &mut NoObserver);
    assert!(stays.notes.iter().all(|note| !note.evidence.contains("other CPUs")));
    set_affinity(vcpu.tid, &[to]).unwrap();
    let observed = window(&mut observation, Duration::from_millis(500), &mut NoObserver);
    assert_sums(&observed, "web.vcpu0");
    let share = |metric| scalar(&observed.recording, "web.vcpu0", metric);
    // The time that others took there is in both.
    assert!((share("steal") - share("run_delay")).abs() < 10.0, "{} steal", share("steal"));
    assert!(share("running") > 20.0, "{} running", share("running"));
    let told = observed.notes.iter().any(|note| note.evidence.contains("other CPUs now"));
    assert!(told, "{:?}", observed.notes);
    Ok(())
});

/// What an observer is told.
#[derive(Debug, Default)]
struct Heard {
    names: ThreadNames,
    times: Vec<Ns>,
    switches: u64,
    samples: u64,
    behind: u64,
}

impl Observer for Heard {
    fn windows(&self) -> Vec<(Ns, Ns)> {
        vec![(0, Ns::MAX)]
    }

    fn thread_names(&mut self, names: &ThreadNames) {
        self.names = names.clone();
    }

    fn opens(&mut self, at: Ns) {
        self.times.push(at);
    }

    fn event(&mut self, at: Ns, event: &Event) {
        self.times.push(at);
        if let Event::Switch { from, to, .. } = event {
            assert_ne!(from, to);
            let known =
                |id: &Option<u32>| id.is_none_or(|id| (id as usize) < self.names.threads.len());
            assert!(known(from) && known(to));
            self.switches += 1;
        }
    }

    fn closes(&mut self, at: Ns) {
        self.times.push(at);
    }

    fn sample(&mut self, _: Ns, sample: &SampleEvent<'_>) {
        assert!(sample.probe.starts_with("web.vcpu0 "), "{}", sample.probe);
        self.samples += 1;
        self.behind += u64::from(sample.behind.is_some());
    }
}

test!("live", an_observer_is_told_what_happens_in_the_window, || {
    let cpu = [allowed_cpus().unwrap()[0]];
    let hog = Worker::hog(&cpu);
    let vcpu = Worker::new("vcpu", &cpu, || {
        spin(Duration::from_millis(1));
        thread::sleep(Duration::from_millis(2));
    });
    let mut observation = observation(&[&vcpu])?;
    let mut heard = Heard::default();
    observation.begin(Slicing { slices: 10, duration_ns: 500_000_000 });
    let begun = Instant::now();
    // Until enough has happened, however much else this host does.
    while (heard.switches <= 50 || heard.behind <= 10) && begun.elapsed() < PATIENCE {
        thread::sleep(Observation::LOOK);
        observation.poll(&mut heard);
    }
    let observed = observation.end(&mut heard).unwrap();
    assert!(heard.times.is_sorted(), "time goes back");
    assert_eq!(heard.times.last(), Some(&observed.window_ns));
    assert!(heard.switches > 50 && heard.behind > 10, "{heard:?}");
    let samples = ["wait", "preempted"].map(|m| series(&observed.recording, "web.vcpu0", m));
    assert_eq!(heard.samples, samples.iter().map(|l| l.hist.len()).sum::<u64>());
    assert_eq!(heard.names.threads[0].name, "web/vcpu0");
    assert!(heard.names.threads.iter().any(|thread| thread.name == "hog"));
    drop(hog);
    Ok(())
});

test!("live", what_others_did_becomes_captures_and_hogs, || {
    let cpus = allowed_cpus().unwrap();
    let hog = Worker::hog(&cpus[..1]);
    let _worker = Worker::new("worker", &cpus[..1], || {
        spin(Duration::from_millis(1));
        thread::sleep(Duration::from_millis(4));
    });
    let vcpu = Worker::new("vcpu", &cpus[..1], || {
        spin(Duration::from_millis(1));
        thread::sleep(Duration::from_millis(2));
    });
    thread::sleep(Duration::from_millis(50));
    observation(&[&vcpu])?;
    let mut observation = Observation::of_everybody(subject(&[&vcpu])).unwrap();
    let observed = window(&mut observation, Duration::from_secs(1), &mut NoObserver);
    let scene = observed.scene.unwrap();
    let text = scene.tables("web", cpus.len() as u32, &Some);
    assert!(text.contains("name = \"hog\"\nkind = \"hog\"\n"), "{text}");
    let files = scene.captures();
    let of = |name: &str| {
        let read = |text: &String| Capture::read(text.as_bytes(), &Limits::default()).unwrap();
        let captures = files.iter().map(|(_, text)| read(text));
        captures
            .flat_map(|c| c.threads.into_iter().map(move |t| (t, c.span_ns)))
            .find(|(t, _)| t.name == name)
    };
    // A third of the time that it was not kept from its CPU.
    let time = |metric| scalar(&observed.recording, "web.vcpu0", metric);
    let (running, halted) = (time("running"), time("halted"));
    assert!((0.2..0.45).contains(&(running / (running + halted))), "{running} {halted}");
    // It has as much to do as it did, in as much time.
    let (vcpu, span) = of("vcpu0").expect("the vCPU sleeps");
    let ran = running / 100.0 * observed.window_ns as f64;
    assert!((vcpu.demand_ns as f64 / ran - 1.0).abs() < 0.001, "{} {ran}", vcpu.demand_ns);
    // Waits after its last sleep are none of it.
    let waited = ["wait", "preempted"].map(|m| series(&observed.recording, "web.vcpu0", m).sum_ns);
    let least = observed.window_ns - waited.iter().sum::<u128>() as Ns - 1_000_000;
    assert!((least..=observed.window_ns).contains(&span), "{span}, at least {least}");
    let (worker, _) = of("worker").expect("a thread that sleeps is in a capture");
    assert!(worker.demand_ns > 20_000_000, "{worker:?}");
    assert!(of("hog").is_none() && of("vcpu").is_none());
    drop(hog);
    Ok(())
});

test!("live", a_thread_that_is_gone_is_refused, || -> Outcome {
    let worker = Worker::new("gone", &allowed_cpus().unwrap(), || {
        thread::sleep(Duration::from_millis(1));
    });
    let mut subject = subject(&[&worker]);
    // A thread has its number, but started at another time.
    subject.vcpus[0].start += 1;
    let missing = Observation::new(subject).unwrap_err();
    assert!(missing.to_string().contains("vCPU 0 has ended\n  remedy: vcoop vms"), "{missing}");
    Ok(())
});
