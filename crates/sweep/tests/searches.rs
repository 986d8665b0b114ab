//! Searches whose answers are known.

use std::sync::atomic::AtomicBool;

use vcoop_capture::Loader;
use vcoop_experiment::result::{Document, Limits};
use vcoop_model::builtin::builtin_scenario;
use vcoop_model::scenario::Set;
use vcoop_sweep::capacity::{Capacity, Knob, capacity};
use vcoop_sweep::slo::{Slo, quantities};
use vcoop_sweep::space::{Parts, Setting};
use vcoop_sweep::trial::{Bench, Objective, SearchError};
use vcoop_sweep::tune::{ConfirmedSetting, Goal, Tuned, tune};

fn bench(jobs: usize) -> Bench {
    let sets = ["duration=350ms", "warmup=320ms", "repeats=3"];
    Bench {
        name: "busy-host-1".to_owned(),
        text: builtin_scenario("busy-host-1").unwrap().to_owned(),
        sets: sets.iter().map(|s| Set::parse(s).unwrap()).collect(),
        jobs,
        limits: Limits::default(),
        loader: Loader::default(),
    }
}

fn look(bench: &Bench) -> Document {
    let mut plans = [bench.plan(&[], "vanilla").unwrap()];
    bench.run(&mut plans, &AtomicBool::new(false)).unwrap()
}

fn fill(slo: &str, knob: &Knob) -> Capacity {
    let bench = bench(2);
    let slos = [Slo::parse("--slo", slo, &quantities(&look(&bench))).unwrap()];
    capacity(&bench, "vanilla", knob, &slos, &AtomicBool::new(false), &|_| ()).unwrap()
}

/// One busy vCPU and `h` hogs share a pCPU fairly: the vCPU has `1 / (h + 1)` of it.
#[test]
fn a_fair_share_breaks_where_arithmetic_says() {
    let hogs = |from, to| Knob { path: "load.hog.count".to_owned(), from, to };
    let found = fill("guest.cpu > 0.22 cpu", &hogs(1, 16));
    assert_eq!(found.most.as_ref().map(|t| t.value), Some(3), "1/4 is above 0.22, 1/5 below");
    assert!(found.contradictions.is_empty() && !found.open);
    assert!(found.surely <= Some(3) && found.at_best >= Some(3));
    assert!(found.tried.len() < 12, "not every step was tried");
    assert!(fill("guest.cpu > 0.01 cpu", &hogs(1, 6)).open);
    assert!(fill("guest.cpu > 0.9 cpu", &hogs(1, 6)).most.is_none());
    let fewer = fill("guest.cpu < 0.3 cpu", &hogs(9, 1));
    assert_eq!(fewer.most.map(|t| t.value), Some(3), "from the other end");
}

fn goal(bench: &Bench, slo: &str, cost: &str) -> Goal {
    let look = look(bench);
    Goal {
        slos: vec![Slo::parse("--slo", slo, &quantities(&look)).unwrap()],
        cost: Objective::find("--minimize", cost, &look).unwrap(),
        bases: Vec::new(),
        parts: Parts::default(),
        trials: 24,
        confirm: 4,
        seed: 1,
    }
}

fn search(jobs: usize, slo: &str, cost: &str) -> Tuned {
    // A probe that hardly ever waits, and then for a slice, has neither to hold a policy against.
    let limits = Limits { mean: 5.0, p99: 1000.0, ..Limits::default() };
    let bench = Bench { limits, ..bench(jobs) };
    tune(&bench, &goal(&bench, slo, cost), &AtomicBool::new(false), &|_, _| ()).unwrap()
}

#[test]
fn a_limit_that_only_boosting_holds_is_held_by_boosting() {
    let found = search(2, "guest.cyclictest.p90 < 500us", "host.cyclictest.mean");
    let best = found.best.expect("dynamic holds it, as scenario busy-host-1 shows");
    assert_ne!(best.tried.setting.base, "vanilla");
    assert!(best.tried.score.excess <= 0.0);
    assert!(best.held.0 >= 1 && best.held.1 == 4, "{:?}", best.held);
    let policy = found.contributions.iter().find(|c| c.what == "policy").unwrap();
    assert!(policy.without.excess > 0.0, "vanilla breaks it");
    // ratelimit-auto is for hosts with credit1.
    assert!(found.unfit.iter().any(|(policy, _)| policy == "ratelimit-auto"));
    for pair in found.front.windows(2) {
        assert!(pair[0].score.excess > pair[1].score.excess, "cheaper only where it is worse");
    }
    assert!((20..=24).contains(&found.trials), "{} settings, hardly one twice", found.trials);
    // 300 samples a repeat carry no p99: alone they say nothing, together they do.
    let far = search(2, "guest.cyclictest.p99 < 500us", "host.cyclictest.mean").best.unwrap();
    assert_eq!(far.held, (0, 0));
}

#[test]
fn threads_do_not_change_what_is_found() {
    let of = |jobs| search(jobs, "guest.cyclictest.p99 < 500us", "host.cyclictest.mean");
    let settings = |found: &Tuned| -> Vec<Setting> {
        found.confirmed.iter().map(|c| c.tried.setting.clone()).collect()
    };
    assert_eq!(settings(&of(1)), settings(&of(2)));
}

#[test]
fn what_nothing_holds_is_said_and_the_nearest_is_named() {
    let found = search(2, "guest.cyclictest.mean < 1ns", "host.cpu");
    assert!(found.best.is_none());
    let nearest = &found.confirmed[0];
    assert_eq!(nearest.held.0, 0);
    assert_ne!(nearest.tried.setting.base, "vanilla");
}

fn of(text: &str, slo: &str, cost: &str, trials: usize) -> (Parts, Tuned) {
    let sets = ["duration=300ms", "warmup=20ms", "repeats=2"];
    let sets = sets.iter().map(|s| Set::parse(s).unwrap()).collect();
    let (name, text) = ("scenario".to_owned(), text.to_owned());
    let bench = Bench { name, text, sets, ..bench(2) };
    let plans = bench.scenario(&[]).unwrap().plans(None).unwrap();
    let goal = goal(&bench, slo, cost);
    let goal = Goal { parts: Parts::of(&plans), trials, confirm: 2, ..goal };
    (goal.parts, tune(&bench, &goal, &AtomicBool::new(false), &|_, _| ()).unwrap())
}

fn has_key(found: &Tuned, key: &str) -> bool {
    found.front.iter().any(|t| t.setting.keys.iter().any(|(name, _)| name == key))
}

#[test]
fn timers_are_searched_where_the_scenario_has_them() {
    let text = builtin_scenario("timer-ablation").unwrap();
    let (parts, found) = of(text, "guest.cyclictest.min < 1ns", "host.cpu", 40);
    assert_eq!(parts, Parts { timers: true, ..Parts::default() });
    assert!(found.best.is_none(), "nothing is that fast");
    assert!(has_key(&found, "timer") || has_key(&found, "timer_advance"), "{:?}", found.front);
    let nearest = &found.confirmed[0].tried.setting;
    let early = nearest.keys.iter().any(|(name, _)| name == "timer_advance");
    assert!(early, "only a timer that fires early comes near: {nearest:?}");
    // Without the key it is another setting, and says what the key brought.
    let without = found.contributions.iter().find(|c| c.what == "timer_advance").unwrap();
    assert!(without.without.excess > found.confirmed[0].tried.score.excess);
}

/// Two busy guests on a pCPU under credit1.
const XEN: &str = "name = \"xen\"\ntitle = \"t\"\n[host]\nprofile = \"xeon-server\"\npcpus = 1\n\
    [host.sched]\nclass = \"credit1\"\n[[vm]]\nname = \"guest\"\nvcpus = 1\ncount = 2\n\
    [[vm.task]]\nname = \"cyclictest\"\nkind = \"cyclictest\"\npolicy = \"fifo 80\"\n\
    [[vm.task]]\nname = \"background\"\nkind = \"hog\"\n[compare]\npolicy = [\"vanilla\"]\n";

#[test]
fn patches_are_searched_on_hosts_of_xen() {
    let (parts, found) = of(XEN, "guest.cyclictest.p90 < 1s", "gain", 24);
    assert_eq!(parts, Parts { patches: true, ..Parts::default() });
    assert!(found.trials > 16, "each version of each patch by itself, at least: {}", found.trials);
    let toml = Setting {
        base: "vanilla".to_owned(),
        keys: vec![
            ("waker-local".to_owned(), "waker-local".to_owned()),
            ("long-slice-alone".to_owned(), "long-slice-alone-as-meant".to_owned()),
        ],
    };
    let list = "patches = [\"waker-local\", \"long-slice-alone-as-meant\"]";
    assert!(toml.toml().contains(list), "{}", toml.toml());
    assert_eq!(toml.words(), "vanilla: waker-local, long-slice-alone-as-meant");
    assert!(!toml.without("waker-local").toml().contains("waker-local"));
}

/// At a fixed real-time priority the guest is served at once, and the host's probe never.
#[test]
fn a_policy_that_starves_a_probe_holds_no_limit() {
    let sets = vec![Set::parse("repeats=2").unwrap()];
    let (name, text) = ("starving".to_owned(), vcoop_testing::rig::one_cpu());
    let bench = Bench { name, text, sets, ..bench(2) };
    let (look, stop) = (look(&bench), AtomicBool::new(false));
    let slo = "guest.cyclictest.mean < 20us";
    let bases = vec!["vanilla".to_owned(), "static".to_owned()];
    let goal = Goal { bases, trials: 4, confirm: 2, ..goal(&bench, slo, "host.switches") };
    let slo = || Slo::parse("--slo", slo, &quantities(&look)).unwrap();
    let found = tune(&bench, &goal, &stop, &|_, _| ()).unwrap();
    let real_time =
        |c: &&ConfirmedSetting| c.tried.setting.keys.is_empty() && c.tried.setting.base == "static";
    let score = &found.confirmed.iter().find(real_time).unwrap().tried.score;
    assert!(score.limits[0].unwrap().value < 20.0, "the limit itself is held");
    assert!(!score.holds(), "{score:?}");
    assert!(score.too_much[0].starts_with("host.cyclictest is starved"), "{score:?}");
    let vanilla = found.front.iter().chain(found.confirmed.iter().map(|c| &c.tried));
    let vanilla: Vec<_> = vanilla.filter(|t| t.setting == Setting::plain("vanilla")).collect();
    assert!(!vanilla.is_empty() && vanilla.iter().all(|t| t.score.too_much.is_empty()));
    let knob = Knob { path: "load.small1.count".to_owned(), from: 1, to: 2 };
    let filled = |policy| capacity(&bench, policy, &knob, &[slo()], &stop, &|_| ()).unwrap();
    let static_ = filled("static");
    assert!(static_.most.is_none() && !static_.tried[0].score.too_much.is_empty());
    assert!(filled("vanilla").tried.iter().all(|t| t.score.too_much.is_empty()));
}

/// Two hogs fill the host: only who keeps them from their work saves its CPU time.
#[test]
fn a_saturated_host_has_no_cpu_time_to_save() {
    let named = |text: &str, cost: &str| {
        let bench = Bench { name: "x".to_owned(), text: text.to_owned(), ..bench(2) };
        Objective::find("--minimize", cost, &look(&bench)).map_err(|why| why.to_string())
    };
    let why = named(XEN, "host.cpu").unwrap_err();
    assert!(why.contains("the host is saturated") && why.contains("gain"), "{why}");
    assert_eq!(named(XEN, "gain"), Ok(Objective::Gain));
    let alone = "name = 'x'\ntitle = 'x'\n[[load]]\nname = 'hog'\nkind = 'hog'\n";
    let alone = named(alone, "gain").unwrap_err();
    assert!(alone.contains("no guest has a latency") && alone.contains("host.cpu"), "{alone}");
    assert!(named(builtin_scenario("timer-ablation").unwrap(), "host.cpu").is_ok());
}

#[test]
fn a_stop_ends_a_search() {
    let bench = bench(1);
    let look = look(&bench);
    let slos = [Slo::parse("--slo", "guest.cpu > 0.2 cpu", &quantities(&look)).unwrap()];
    let knob = Knob { path: "load.hog.count".to_owned(), from: 1, to: 4 };
    let found = capacity(&bench, "vanilla", &knob, &slos, &AtomicBool::new(true), &|_| ());
    assert!(matches!(found, Err(SearchError::Interrupted)), "{found:?}");
}
