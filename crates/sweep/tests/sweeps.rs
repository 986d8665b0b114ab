//! Whole sweeps: same bytes, failed points, refusals.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use vcoop_capture::Loader;
use vcoop_model::sweep::Sweep;
use vcoop_sweep::dataset::{Dataset, DatasetError};
use vcoop_sweep::engine::{Control, Outcome, run};
use vcoop_sweep::job::Job;
use vcoop_sweep::manifest::manifest;
use vcoop_sweep::parquet_reader::{Record, records};
use vcoop_sweep::point;
use vcoop_sweep::row::PointRows;
use vcoop_sweep::tally::Tally;

/// Small points: one vCPU, a hog or none, 20 simulated milliseconds.
const SMALL: &str = "name = \"small\"\nscenario = \"busy-host-1\"\npolicies = [\"vanilla\", \"dynamic\"]\n\
    [set]\nduration = \"20ms\"\nwarmup = \"1ms\"\n\"policy.dynamic.repay\" = false\n[repeats]\nmin = 2\n[axes]\n\
    \"load.hog.count\" = { from = 1, to = 4, points = 4 }\n\
    \"vm.guest.task.cyclictest.interval\" = [\"500us\", \"1ms\", \"2ms\", \"4ms\", \"8ms\", \"3ms\", \"5ms\", \"6ms\", \"7ms\"]\n";

/// What the tests' datasets say of the build that wrote them.
const BUILD: &str = "0.1.0 (0123456789ab)";

fn job(text: &str) -> Job {
    job_of("s.toml", text)
}

fn job_of(file: &str, text: &str) -> Job {
    let sweep = Sweep::parse(file, text).unwrap_or_else(|e| panic!("{e}"));
    Job::new(sweep).unwrap_or_else(|e| panic!("{e}"))
}

fn refused(text: &str) -> String {
    Job::new(Sweep::parse("s.toml", text).unwrap()).unwrap_err().to_string()
}

fn folder(name: &str) -> PathBuf {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("sweeps-{name}"));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    dir
}

/// Runs until so many points were added, or to the end.
fn sweep(job: &Job, dir: &Path, jobs: usize, most: u32) -> Outcome {
    let stop = AtomicBool::new(false);
    let mut dataset = Dataset::open(dir, job, BUILD).unwrap();
    let progress = |p: vcoop_sweep::engine::Progress| {
        if p.done - p.before >= most {
            stop.store(true, Ordering::Relaxed);
        }
    };
    run(job, &mut dataset, jobs, Control { stop: &stop, progress: &progress }).unwrap()
}

/// A point, run by itself.
fn at(job: &Job, point: u32) -> PointRows {
    let stop = AtomicBool::new(false);
    point::run(job, point, &Loader::default(), &stop).unwrap().unwrap()
}

fn bytes(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(dir).unwrap().map(Result::unwrap);
    entries.map(|e| (e.file_name().into_string().unwrap(), fs::read(e.path()).unwrap())).collect()
}

#[test]
fn jobs_and_stops_leave_the_same_bytes() {
    let job = job(SMALL);
    assert_eq!(job.points(), 36);
    let (one, two, pieces) = (folder("one"), folder("two"), folder("pieces"));
    let whole = sweep(&job, &one, 1, u32::MAX);
    assert_eq!((whole.progress.done, whole.interrupted, &whole.failure), (36, false, &None));
    sweep(&job, &two, 3, u32::MAX);
    let names: Vec<String> = bytes(&one).into_keys().collect();
    let parts =
        ["manifest.json", "part-000000.parquet", "part-000001.parquet", "part-000002.parquet"];
    assert_eq!(names, parts);
    assert!(bytes(&one) == bytes(&two));
    let mut runs = 0;
    while sweep(&job, &pieces, 2, 5).interrupted {
        runs += 1;
        assert!(runs < 10, "no stop loses what was done");
    }
    assert!(runs >= 3);
    assert!(bytes(&one) == bytes(&pieces));
    let tally = Tally::of(&one).unwrap();
    assert_eq!((tally.points, tally.failed, tally.unsettled), (36, 0, 0));
    // Two repeats are no reason to say that no policy is best.
    assert_eq!((tally.few, tally.best.len()), (36, 0));
    // Parts end in any order: after a stop there may be a hole before the last one.
    fs::remove_file(one.join("part-000001.parquet")).unwrap();
    assert_eq!(Tally::of(&one).unwrap().points, 20);
}

#[test]
fn what_a_killed_sweep_leaves_is_made_whole_by_the_next() {
    let (job, whole, dir) = (job(SMALL), folder("unkilled"), folder("killed"));
    sweep(&job, &whole, 2, u32::MAX);
    // Killed before its manifest had its name.
    fs::write(dir.join(".manifest.json.part"), "{").unwrap();
    assert!(sweep(&job, &dir, 1, 5).interrupted);
    // Killed with the last point of a part in the journal, before the part was written. The journal of a part says
    // nothing about points of another one.
    let done = Dataset::open(&dir, &job, BUILD).unwrap();
    let left: Vec<u32> = (0..16).filter(|point| !done.has(*point)).collect();
    assert!(!left.is_empty() && !done.has(20));
    drop(done);
    let journal = dir.join("part-000000.journal");
    let mut lines = fs::read_to_string(&journal).unwrap();
    for point in [20].iter().chain(&left) {
        lines += &serde_json::to_string(&at(&job, *point)).unwrap();
        lines.push('\n');
    }
    fs::write(&journal, &lines).unwrap();
    let mut dataset = Dataset::open(&dir, &job, BUILD).unwrap();
    assert_eq!((dataset.frontier(), dataset.has(15), dataset.has(20)), (16, true, false));
    assert_eq!(bytes(&dir)["part-000000.parquet"], bytes(&whole)["part-000000.parquet"]);
    assert!(!journal.exists());
    dataset.add(PointRows { point: 36, ..at(&job, 35) }, &job).unwrap();
    assert!(!dir.join("part-000002.journal").exists(), "the sweep has no such point");
    drop(dataset);
    // Killed after the part was written, before its journal was removed.
    fs::write(&journal, &lines).unwrap();
    assert!(!sweep(&job, &dir, 2, u32::MAX).interrupted);
    fs::remove_file(dir.join(".manifest.json.part")).unwrap_or(());
    assert!(bytes(&dir) == bytes(&whole));
    assert_eq!(Dataset::open(&dir, &job, BUILD).unwrap().frontier(), 48);
}

#[test]
fn the_points_of_a_stopped_sweep_are_read_as_they_are_once_its_parts_are_complete() {
    let (job, dir) = (job(SMALL), folder("stopped"));
    let read = || {
        let manifest = manifest(&dir).unwrap();
        records(&dir, &manifest, &["mean", "ratio_p99", "value"]).unwrap()
    };
    assert!(sweep(&job, &dir, 1, 5).interrupted);
    let stopped = read();
    let points = |all: &[Record]| all.iter().map(|r| r.point).collect::<BTreeSet<u32>>();
    assert!((5..16).contains(&points(&stopped).len()), "no part is complete");
    assert!(!sweep(&job, &dir, 1, u32::MAX).interrupted);
    let mut whole = read();
    assert_eq!(points(&whole).len(), 36);
    whole.retain(|record| points(&stopped).contains(&record.point));
    assert_eq!(stopped, whole);
}

#[test]
fn points_share_the_workload_and_differ_by_their_axes() {
    let job = job(SMALL);
    let (a, b) = (at(&job, 0), at(&job, 27));
    assert_eq!(a, at(&job, 0));
    assert_ne!(a.rows, b.rows, "four hogs are not one");
    let mean = |p: &PointRows, policy: &str| {
        let row = p.rows.iter().find(|r| {
            r.policy.as_deref() == Some(policy) && r.probe.as_deref() == Some("guest.cyclictest")
        });
        row.and_then(|r| r.number("mean")).unwrap()
    };
    assert!(mean(&b, "vanilla") > mean(&b, "dynamic"));
}

#[test]
fn a_point_that_cannot_be_is_recorded_and_the_rest_goes_on() {
    // One pin for each of two vCPUs fits no guest of one.
    let text = "name = \"s\"\nscenario = \"busy-host-1\"\npolicies = [\"vanilla\"]\n[set]\nduration = \"20ms\"\n\
        warmup = \"1ms\"\n[repeats]\nmin = 2\n[axes]\n\"vm.guest.pin\" = [\"0\", [\"0\", \"1\"]]\n\
        \"vm.guest.vcpus\" = [2, 1]\n";
    let (dir, job) = (folder("failed"), job(text));
    let outcome = sweep(&job, &dir, 2, u32::MAX);
    assert_eq!((outcome.progress.done, outcome.progress.failed), (4, 1));
    let (point, why) = outcome.failure.unwrap();
    assert_eq!(point, 3);
    assert!(why.contains("pin"), "{why}");
    let tally = Tally::of(&dir).unwrap();
    assert_eq!((tally.points, tally.failed), (4, 1));
}

#[test]
fn what_names_nothing_is_refused_before_anything_runs() {
    let of = |axes: &str| {
        refused(&format!("name = \"s\"\nscenario = \"busy-host-1\"\n[axes]\n{axes}\n"))
    };
    let field = of("\"host.pcpu\" = [1, 2]");
    assert!(field.contains("did you mean `pcpus`") && field.starts_with("s.toml:4:"), "{field}");
    assert!(of("\"load.hug.count\" = [1]").contains("did you mean `hog`"));
    assert!(of("\"vm.guest.task.cyclictest.interval\" = [5]").contains("duration"));
    assert!(of("\"vm.guest.task.cyclictest.interval\" = [\"5%\"]").contains("unit of time"));
    assert!(of("\"host.pcpus\" = { from = -1, to = 9, points = 2 }").contains("out of range"));
    let policy = "name = \"s\"\nscenario = \"busy-host-1\"\npolicies = [\"dynamc\"]\n[axes]\n\"host.pcpus\" = [2]\n";
    assert!(refused(policy).contains("did you mean `dynamic`"));
    let probe = "name = \"s\"\nscenario = \"busy-host-1\"\n[axes]\n\"load.hog.count\" = [2]\n[stop]\nwidth = \"10%\"\nprobes = [\"guest.cyclictst\"]\n";
    assert!(refused(probe).contains("did you mean `guest.cyclictest`"));
    let scenario = "name = \"s\"\nscenario = \"busy-hots-1\"\n[axes]\n\"host.pcpus\" = [2]\n";
    assert!(refused(scenario).contains("did you mean `busy-host-1`"));
    let matrix = "name = \"s\"\nscenario = \"pvsched-busy\"\n[axes]\n\"host.pcpus\" = [2]\n";
    let found = Sweep::parse("s.toml", matrix).map(Job::new).unwrap();
    if let Err(e) = found {
        assert!(e.to_string().contains("matrix"), "{e}");
    }
}

/// Policies by their means, cases, a ratio, and a dataset that keeps little.
const AXES: &str = "name = \"axes\"\nscenario = \"busy-host-1\"\n\
    policies = [\"vanilla\", \"dynamic:fifo\", \"dynamic:nice\", \"static:slice 200us\"]\n\
    [set]\nduration = \"20ms\"\nwarmup = \"1ms\"\n\"vm.guest.pin\" = \"all\"\n\
    \"load.hog.cpus\" = \"all\"\n\"load.cyclictest.cpus\" = \"all\"\n\
    [repeats]\nmin = 2\n[axes]\nvcpus_per_pcpu = { by = \"vm.guest.count\", values = [0.5, 2] }\n\
    preemption = [{ name = \"as-shipped\", set.host = { preemption = \"none\", tick_hz = 250 } },\n\
    { name = \"low-latency\", set = { \"host.preemption\" = \"full\", \"host.tick_hz\" = 1000 } }]\n\
    \"policy.wake-boost.means\" = [\"fifo 8\", \"nice -20\"]\n\
    [keep]\nprobes = [\"guest.cyclictest\"]\ncolumns = [\"mean\", \"ratio\"]\n";

#[test]
fn ratios_cases_and_means_reach_the_scenario() {
    let job = job(AXES);
    assert_eq!(job.points(), 8);
    let loader = Loader::default();
    for (point, count, preemption) in
        [(0, 1, "None"), (3, 1, "Full"), (4, 4, "None"), (7, 4, "Full")]
    {
        let sets = job.sets(point, &loader).unwrap();
        let plans = job.scenario(&sets, &loader).unwrap().plans(Some(&job.policies)).unwrap();
        assert_eq!(plans[0].vms.len(), count, "point {point}");
        assert_eq!(format!("{:?}", plans[0].host.preemption), preemption, "point {point}");
        let means: Vec<String> = plans.iter().map(|p| format!("{:?}", p.policy)).collect();
        assert_eq!(means[0], "Vanilla");
        for (policy, part) in [(1, "Fifo(8)"), (2, "Nice(-20)"), (3, "Slice(200000)")] {
            assert!(means[policy].contains(part), "{}", means[policy]);
        }
    }
    let rows = at(&job, 4).rows;
    let latencies = rows.iter().filter(|row| row.metric.as_deref() == Some("latency"));
    assert_eq!(latencies.clone().count(), 4, "a row a policy");
    assert!(rows.iter().all(|row| row.probe.as_deref() == Some("guest.cyclictest")));
    for row in latencies {
        assert!(row.number("mean").is_some() && row.number("min").is_none());
    }
}

#[test]
fn what_a_ratio_a_means_or_a_list_cannot_be_is_told() {
    let head = "name = \"s\"\nscenario = \"busy-host-1\"\n";
    let of = |rest: &str| refused(&format!("{head}{rest}"));
    let far = of("[axes]\nvcpus_per_pcpu = { by = \"vm.guest.count\", values = [0.5, 0.2] }\n");
    assert!(far.contains("0.2 vCPUs a pCPU") && far.starts_with("s.toml:4:"), "{far}");
    let still = of("[axes]\nvcpus_per_pcpu = { by = \"load.hog.count\", values = [1] }\n");
    assert!(still.contains("changes neither"), "{still}");
    let all = of("[axes]\nvcpus_per_pcpu = [1, 2]\n");
    assert!(all.contains("no `host.pcpus` makes it 2 vCPUs a pCPU"), "{all}");
    let fixed = of("set.\"host.topology.cores_per_llc\" = 2\n[axes]\nvcpus_per_pcpu = [1]\n");
    assert!(fixed.contains("`host.pcpus` cannot be 3 in this scenario"), "{fixed}");
    assert!(fixed.contains("vm.NAME.count") && fixed.matches("s.toml:").count() == 1, "{fixed}");
    let none = of("[axes]\nvcpus_per_pcpu = { by = \"vm.gust.count\", values = [1] }\n");
    assert!(none.contains("no entry `gust`"), "{none}");
    let case = of("[axes]\nx = [{ name = \"a\", set.host.pcpu = 3 }]\n");
    assert!(case.contains("did you mean `pcpus`") && case.starts_with("s.toml:4:"), "{case}");
    let means = of("policies = [\"vanilla\", \"dynamic:nise\"]\n[axes]\nhost.tick_hz = [100]\n");
    assert!(means.contains("nise") && means.starts_with("s.toml:3:"), "{means}");
    let base = of("policies = [\"vanilla:fifo\"]\n[axes]\nhost.tick_hz = [100]\n");
    assert!(base.contains("`vanilla`") && base.starts_with("s.toml:3:"), "{base}");
    let probe = of("[axes]\nhost.tick_hz = [100]\n[keep]\nprobes = [\"guest.cyclictst\"]\n");
    assert!(probe.contains("did you mean `guest.cyclictest`"), "{probe}");
    let column = of("[axes]\nhost.tick_hz = [100]\n[keep]\ncolumns = [\"meen\"]\n");
    assert!(column.contains("did you mean `mean`"), "{column}");
}

#[test]
fn waits_of_vcpus_can_be_kept() {
    job("name = \"s\"\nscenario = \"busy-host-1\"\nset.\"vm.guest.waits\" = true\n\
         [axes]\nhost.tick_hz = [100]\n[keep]\nprobes = [\"guest.vcpu0\"]\n");
}

#[test]
fn folders_of_anything_else_are_refused_and_left_alone() {
    let open = |text: &str, dir: &Path| Dataset::open(dir, &job(text), BUILD);
    let dir = folder("refusals");
    let first = open(SMALL, &dir).unwrap();
    assert!(why(open(SMALL, &dir)).contains("another process"));
    drop(first);
    let before = bytes(&dir);
    assert!(why(open(&SMALL.replace("\"small\"", "\"other\""), &dir)).contains("sweep `small`"));
    assert!(
        why(open(&SMALL.replace("20ms", "30ms"), &dir))
            .contains("before the sweep's file was changed")
    );
    let manifest = fs::read_to_string(dir.join("manifest.json")).unwrap();
    for (from, to, says) in [
        ("vcoop.sweep/1", "vcoop.sweep/2", "schema vcoop.sweep/2"),
        (BUILD, "0.9.0 (ba9876543210)", "written by vcoop 0.9.0 (ba9876543210)"),
        ("\"build\"", "\"maker\"", "of a build that it does not name"),
        ("vcoop.sweep/1", "vcoop.result/1", "did not write"),
    ] {
        fs::write(dir.join("manifest.json"), manifest.replace(from, to)).unwrap();
        assert!(why(open(SMALL, &dir)).contains(says), "{says}");
    }
    fs::write(dir.join("manifest.json"), &manifest).unwrap();
    assert!(bytes(&dir) == before);
    let foreign = folder("foreign");
    fs::write(foreign.join("thesis.tex"), "precious").unwrap();
    assert!(why(open(SMALL, &foreign)).contains("thesis.tex"));
    assert_eq!(bytes(&foreign).len(), 1);
}

fn why(result: Result<Dataset, DatasetError>) -> String {
    match result {
        Err(e @ DatasetError::Refused { .. }) => e.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn of_two_starters_one_writes() {
    let (dir, job) = (folder("starters"), job(SMALL));
    // The first starter has the folder before it has any file.
    let lock = fs::File::open(&dir).unwrap();
    lock.lock().unwrap();
    assert!(why(Dataset::open(&dir, &job, BUILD)).contains("another process"));
    assert_eq!(bytes(&dir).len(), 0);
    drop(lock);
    for _ in 0..50 {
        fs::remove_dir_all(&dir).unwrap();
        let open = || Dataset::open(&dir, &job, BUILD);
        let both = thread::scope(|scope| {
            let starters = [scope.spawn(open), scope.spawn(open)];
            starters.map(|starter| starter.join().unwrap())
        });
        assert_eq!(both.iter().filter(|found| found.is_ok()).count(), 1, "{both:?}");
    }
}

/// A sweep over files: two captures, two profiles, and one workload in the scenario itself. Its
/// folder has all of them.
fn of_files(name: &str) -> (PathBuf, Job) {
    let dir = folder(name);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for (from, to) in [
        ("captures/build-serve.txt.gz", "a.gz"),
        ("captures/build-serve.txt.gz", "b.gz"),
        ("captures/rt-app-mixed.json", "mixed.json"),
        ("profiles/zero.toml", "p.toml"),
        ("profiles/zero.toml", "q.toml"),
    ] {
        fs::copy(root.join(from), dir.join(to)).unwrap();
    }
    let scenario = "name = \"files\"\ntitle = \"Files\"\nduration = \"5ms\"\nwarmup = \"1ms\"\n\
        repeats = 2\n[host]\nprofile = \"zero\"\npcpus = 4\n\
        [[load]]\nname = \"recorded\"\nkind = \"capture\"\nfile = \"builtin:build-serve\"\n\
        [[vm]]\nname = \"guest\"\nvcpus = 1\n[[vm.task]]\nname = \"cyclictest\"\n\
        kind = \"cyclictest\"\ninterval = \"1ms\"\n\
        [[vm.task]]\nname = \"app\"\nkind = \"rt-app\"\nfile = \"mixed.json\"\n";
    fs::write(dir.join("base.toml"), scenario).unwrap();
    let at = |file: &str| dir.join(file).display().to_string();
    let text = format!(
        "name = \"s\"\nscenario = \"base.toml\"\npolicies = [\"vanilla\"]\n[repeats]\nmin = 2\n[axes]\n\
         \"host.tick_hz\" = [100, 250]\n\"load.recorded.file\" = [\"{}\", \"{}\"]\n\
         \"host.profile\" = [\"{}\", \"{}\"]\n",
        at("a.gz"),
        at("b.gz"),
        at("p.toml"),
        at("q.toml")
    );
    fs::write(dir.join("s.toml"), &text).unwrap();
    let job = job_of(&at("s.toml"), &text);
    (dir, job)
}

#[test]
fn a_file_of_any_point_that_changed_is_named_and_refused() {
    let (dir, job) = of_files("changed");
    let names: Vec<&str> = job.files.keys().map(String::as_str).collect();
    assert_eq!(names, ["a.gz", "b.gz", "mixed.json", "p.toml", "q.toml"]);
    let out = dir.join("out");
    drop(Dataset::open(&out, &job, BUILD).unwrap());
    for name in names {
        let before = fs::read(dir.join(name)).unwrap();
        // Says the same, and is another file: a blank at its end, or an empty gzip member.
        let more: &[u8] = match name.ends_with(".gz") {
            true => &[31, 139, 8, 0, 0, 0, 0, 0, 0, 3, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            false => b"\n",
        };
        fs::write(dir.join(name), [&before[..], more].concat()).unwrap();
        let changed = Job::new(job.sweep.clone()).unwrap_or_else(|e| panic!("{e}"));
        let said = why(Dataset::open(&out, &changed, BUILD));
        assert!(said.contains(&format!("another {name} than")), "{said}");
        assert_ne!(changed.fingerprint(), job.fingerprint());
        fs::write(dir.join(name), before).unwrap();
    }
    drop(Dataset::open(&out, &job, BUILD).unwrap());
}

#[test]
fn a_point_whose_file_cannot_be_read_is_tried_again() {
    let (dir, job) = of_files("unread");
    let (out, aside) = (dir.join("out"), dir.join("aside"));
    let control = Control { stop: &AtomicBool::new(false), progress: &|_| () };
    for name in ["q.toml", "mixed.json", "b.gz"] {
        fs::rename(dir.join(name), &aside).unwrap();
        let mut dataset = Dataset::open(&out, &job, BUILD).unwrap();
        let why = run(&job, &mut dataset, 2, control).unwrap_err().to_string();
        assert!(why.starts_with("cannot read") && why.contains(name), "{why}");
        fs::rename(&aside, dir.join(name)).unwrap();
    }
    sweep(&job, &out, 2, u32::MAX);
    let tally = Tally::of(&out).unwrap();
    assert_eq!((tally.points, tally.failed), (8, 0));
}

#[test]
fn repeats_are_added_until_ratios_are_sharp_and_no_further() {
    let text = "name = \"s\"\nscenario = \"busy-host-1\"\npolicies = [\"vanilla\", \"dynamic\"]\n[set]\n\
        duration = \"50ms\"\nwarmup = \"1ms\"\n[axes]\n\"load.hog.count\" = [2]\n[repeats]\nmin = 5\nmax = 12\n";
    let run = |stop: &str| at(&job(&format!("{text}{stop}")), 0);
    let loose = run("[stop]\nwidth = \"900%\"\n");
    assert_eq!((loose.settled, loose.rows[0].repeats), (true, 5));
    let tight = run("[stop]\nwidth = \"0.01%\"\n");
    assert_eq!((tight.settled, tight.rows[0].repeats), (false, 12));
    let poor = run("[stop]\nwidth = \"0.01%\"\n[budget]\nruns = 14\n");
    assert_eq!((poor.settled, poor.rows[0].repeats), (false, 7));
    // Added repeats are those that a run of so many has.
    let at_once = text.replace("min = 5", "min = 12");
    assert_eq!(at(&job(&at_once), 0).rows, tight.rows);
}

#[test]
fn sweeps_that_ship_and_the_one_in_the_docs_hold() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files: Vec<PathBuf> =
        fs::read_dir(root.join("sweeps")).unwrap().map(|e| e.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|e| e == "toml"));
    files.sort();
    assert!(!files.is_empty());
    let mut texts: Vec<String> =
        files.iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    let page = fs::read_to_string(root.join("docs/src/sweep.md")).unwrap();
    let block = page.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next());
    texts.push(block.unwrap().to_owned());
    let file = root.join("sweeps/s.toml");
    for text in texts {
        assert!(job_of(file.to_str().unwrap(), &text).points() > 1);
    }
}
