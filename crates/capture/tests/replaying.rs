//! Selection, scaling, and the loop.

mod common;

use common::{Trace, US};
use vcoop_capture::{Capture, Shape};
use vcoop_model::plan::Step;

/// Thread 1 wakes thread 2 on another CPU; thread 3 is woken by a timer.
fn capture() -> Capture {
    let mut t = Trace::default();
    t.timer(0, 0, 0, 1)
        .switch(0, 0, 0, "R", 1)
        .wake(40, 0, 1, 2)
        .switch(40, 1, 0, "R", 2)
        .switch(100, 0, 1, "S", 0)
        .switch(300, 1, 2, "S", 0)
        .timer(310, 0, 0, 3)
        .switch(310, 0, 0, "R", 3)
        .switch(320, 0, 3, "S", 0)
        .timer(1000, 0, 0, 9);
    t.read()
}

fn length(steps: &[Step]) -> u64 {
    steps
        .iter()
        .map(|s| match s {
            Step::Run(ns) | Step::Sleep(ns) => *ns,
            Step::Wait(give_up) => (give_up - vcoop_capture::GIVE_UP_SLACK_NS) / 2,
            _ => 0,
        })
        .sum()
}

#[test]
fn every_script_has_the_length_of_the_capture() {
    let replay = capture().replay(&Shape::default());
    assert_eq!(replay.threads.len(), 3);
    for thread in &replay.threads {
        assert_eq!(length(&thread.steps), 1000 * US, "{thread:?}");
        assert!(thread.repeat);
    }
    assert_eq!(replay.demand_ns, 370 * US);
}

#[test]
fn a_dropped_thread_takes_its_wake_ups_with_it() {
    let shape = Shape { max_threads: Some(2), ..Shape::default() };
    let replay = capture().replay(&shape);
    let names: Vec<&str> = replay.threads.iter().map(|t| t.name.as_str()).collect();
    assert_eq!(names, ["t1", "t2"], "the thread with the smallest demand goes");
    assert_eq!((replay.dropped.over_limit, replay.dropped.demand_ns), (1, 10 * US));

    let shape = Shape { comms: vec!["t2".to_owned(), "other*".to_owned()], ..Shape::default() };
    let replay = capture().replay(&shape);
    assert_eq!(replay.threads.len(), 1);
    assert_eq!(
        *replay.threads[0].steps,
        [Step::Sleep(40 * US), Step::Run(260 * US), Step::Sleep(700 * US)]
    );
    assert_eq!((replay.dropped.other_names, replay.dropped.waits_timed), (2, 1));

    let shape = Shape { comms: vec!["t1".to_owned()], ..Shape::default() };
    let steps = capture().replay(&shape).threads[0].steps.to_vec();
    assert_eq!(steps, [Step::Run(100 * US), Step::Sleep(900 * US)], "no Wake is left");

    let shape = Shape { comms: vec!["t*".to_owned()], ..Shape::default() };
    assert_eq!(capture().replay(&shape).threads.len(), 3);
}

#[test]
fn wakes_name_the_thread_at_their_index() {
    let shape = Shape { comms: vec!["t2".to_owned(), "t3".to_owned()], ..Shape::default() };
    for shape in [Shape::default(), shape] {
        let replay = capture().replay(&shape);
        for thread in &replay.threads {
            for step in thread.steps.iter() {
                if let Step::Wake(peer) = step {
                    assert_eq!(replay.threads[*peer as usize].name, "t2");
                }
            }
        }
    }
}

#[test]
fn scaling_multiplies_demand_exactly_and_keeps_the_loop() {
    let capture = capture();
    for (ppm, demand) in [(500_000, 185 * US), (2_000_000, 740 * US), (1_000_003, 370_001)] {
        let replay = capture.replay(&Shape { demand_ppm: ppm, ..Shape::default() });
        assert!(replay.demand_ns.abs_diff(demand) <= 3, "{ppm}: {}", replay.demand_ns);
        assert_eq!(replay.dropped.overlong, 0);
        assert!(replay.threads.iter().all(|t| length(&t.steps) == 1000 * US));
    }
    let replay = capture.replay(&Shape { demand_ppm: 10_000_000, ..Shape::default() });
    assert_eq!(replay.dropped.overlong, 1, "2.6 ms of demand do not fit into 1 ms");
}
