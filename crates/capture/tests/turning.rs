//! Small traces with known answers: demand, sleeps, and wakers.

mod common;

use common::{Trace, US, script};
use vcoop_capture::{GIVE_UP_FACTOR, GIVE_UP_SLACK_NS};
use vcoop_model::plan::Step::{Run, SetPolicy, Sleep, Wait, Wake};
use vcoop_sched::config::Policy;

fn waits(us: u64) -> vcoop_model::plan::Step {
    Wait(us * US * GIVE_UP_FACTOR + GIVE_UP_SLACK_NS)
}

#[test]
fn preemption_does_not_split_demand_and_run_queue_time_is_no_sleep() {
    let mut t = Trace::default();
    t.timer(0, 0, 0, 1)
        .switch(0, 0, 0, "R", 1)
        .timer(300, 0, 1, 2)
        .switch(300, 0, 1, "R+", 2)
        .switch(450, 0, 2, "S", 1)
        .switch(650, 0, 1, "S", 0)
        .timer(1000, 0, 0, 1)
        .switch(1000, 0, 0, "R", 1)
        .switch(1100, 0, 1, "S", 0)
        .timer(2000, 0, 0, 1);
    let c = t.read();
    assert_eq!(c.span_ns, 2000 * US);
    // 300 + 200, the sleep 350, then 100; the sleep at the end, and 150 of run queue, pad the loop.
    assert_eq!(
        script(&c, 1),
        [Run(500 * US), Sleep(350 * US), Run(100 * US), Sleep((900 + 150) * US)]
    );
    assert_eq!(script(&c, 2), [Sleep(300 * US), Run(150 * US), Sleep(1550 * US)]);
    assert_eq!(c.demand_ns(), 750 * US);
    let time = c.losses.cpus[&0];
    assert_eq!((time.busy_ns, time.idle_ns, time.unattributed_ns), (750 * US, 1250 * US, 0));
    assert_eq!(c.losses.cut_at_end, 1, "thread 1 was just woken");
}

#[test]
fn a_thread_that_wakes_another_does_so_at_its_place_in_its_run() {
    let mut t = Trace::default();
    t.timer(0, 0, 0, 1)
        .switch(0, 0, 0, "R", 1)
        .wake(40, 0, 1, 2)
        .switch(40, 1, 0, "R", 2)
        .switch(100, 0, 1, "S", 0)
        .wake(160, 1, 2, 1)
        .switch(165, 0, 0, "R", 1)
        .switch(200, 1, 2, "S", 0)
        .switch(205, 0, 1, "S", 0);
    let c = t.read();
    let (one, two) = (0, 1);
    assert_eq!((c.threads[0].tid, c.threads[1].tid), (1, 2));
    assert_eq!(
        script(&c, 1),
        [Run(40 * US), Wake(two), Run(60 * US), waits(60), Run(40 * US), Sleep(5 * US)]
    );
    assert_eq!(script(&c, 2), [waits(40), Run(120 * US), Wake(one), Run(40 * US), Sleep(5 * US)]);
    assert_eq!(c.losses.wakes_by_thread, 2);
}

#[test]
fn interrupts_wake_by_time_and_soft_interrupts_for_their_thread() {
    let mut t = Trace::default();
    t.timer(0, 0, 0, 1).switch(0, 0, 0, "R", 1);
    t.timer(10, 0, 1, 2).wake_in(20, 0, 1, 3, "d.s4.");
    t.switch(30, 0, 1, "S", 2).switch(40, 0, 2, "S", 3).switch(50, 0, 3, "S", 0);
    let c = t.read();
    assert_eq!(script(&c, 2)[0], Sleep(10 * US));
    assert_eq!(script(&c, 3)[0], waits(20));
    assert_eq!(script(&c, 1), [Run(20 * US), Wake(2), Run(10 * US), Sleep(20 * US)]);
    assert_eq!((c.losses.wakes_by_interrupt, c.losses.wakes_by_softirq), (2, 1));
}

#[test]
fn a_short_lived_thread_waits_for_its_parent_and_fills_the_loop() {
    let mut t = Trace::default();
    t.timer(0, 0, 0, 1)
        .switch(0, 0, 0, "R", 1)
        .event(100, 0, 1, ".....", "sched_process_fork: comm=t1 pid=1 child_comm=t1 child_pid=9")
        .event(101, 0, 1, "d..2.", "sched_wakeup_new: comm=t1 pid=9 prio=120 target_cpu=000")
        .switch(150, 0, 1, "S", 9)
        .event(160, 0, 9, ".....", "sched_process_exec: filename=/bin/cc pid=9 old_pid=9")
        .event(340, 0, 9, ".....", "sched_process_exit: comm=t9 pid=9 prio=120")
        .wake(345, 0, 9, 1)
        .switch(350, 0, 9, "Z", 1)
        .switch(400, 0, 1, "S", 0)
        .timer(1000, 0, 0, 1);
    let c = t.read();
    assert_eq!(
        script(&c, 9),
        [waits(100), Run(195 * US), Wake(0), Run(5 * US), Sleep((1000 - 300) * US)]
    );
    assert_eq!(script(&c, 1)[..3], [Run(100 * US), Wake(1), Run(50 * US)]);
    assert_eq!(c.threads[1].name, "t9", "renamed by its exec");
}

#[test]
fn a_reused_thread_id_is_another_thread() {
    let fork = "sched_process_fork: comm=t1 pid=1 child_comm=t1 child_pid=9";
    let mut t = Trace::default();
    t.timer(0, 0, 0, 1).switch(0, 0, 0, "R", 1);
    for start in [100, 500] {
        t.event(start, 0, 1, ".....", fork).switch(start + 10, 0, 1, "R", 9).switch(
            start + 30,
            0,
            9,
            "X",
            1,
        );
    }
    t.switch(1000, 0, 1, "S", 0);
    let c = t.read();
    let lives: Vec<u64> = c.threads.iter().filter(|t| t.tid == 9).map(|t| t.demand_ns).collect();
    assert_eq!(lives, [20 * US, 20 * US]);
}

#[test]
fn threads_on_a_cpu_at_either_end_are_cut_and_keep_their_demand() {
    let mut t = Trace::default();
    t.timer(0, 1, 0, 5).switch(400, 0, 3, "S", 4).timer(1000, 1, 0, 5);
    let c = t.read();
    assert_eq!(script(&c, 3), [Run(400 * US), Sleep(600 * US)]);
    assert_eq!(script(&c, 4), [Sleep(400 * US), Run(600 * US)]);
    assert_eq!(c.losses.cut_at_start, 2);
    assert_eq!(c.losses.cut_at_end, 2, "4 on a CPU, 5 woken");
    assert_eq!(c.losses.silent_threads, 1, "5 never ran");
}

#[test]
fn after_lost_events_nothing_is_attributed_until_the_next_switch() {
    let mut t = Trace::default();
    t.timer(0, 0, 0, 1)
        .switch(0, 0, 0, "R", 1)
        .wake(100, 0, 1, 2)
        .line("CPU:0 [LOST 12 EVENTS]")
        .switch(700, 0, 3, "S", 1)
        .switch(800, 0, 1, "S", 0)
        .timer(1000, 0, 0, 2);
    let c = t.read();
    assert_eq!((c.losses.lost_events, c.losses.cut_by_loss), (12, 1));
    assert_eq!(c.losses.cpus[&0].unattributed_ns, 600 * US);
    assert_eq!(c.demand_ns(), 200 * US);
    let one = script(&c, 1);
    assert_eq!(one[0], Run(100 * US));
    assert!(one.contains(&Sleep(600 * US)) && one.contains(&Run(100 * US)), "{one:?}");
    assert!(c.losses.to_string().contains("lost: at least 12 events"), "{}", c.losses);
}

#[test]
fn a_missing_switch_is_counted_and_its_time_belongs_to_nobody() {
    let mut t = Trace::default();
    t.timer(0, 0, 0, 1).switch(0, 0, 0, "R", 1).switch(500, 0, 2, "S", 1).switch(600, 0, 1, "S", 0);
    let c = t.read();
    assert_eq!(c.losses.unmatched_switches, 1);
    assert_eq!(c.losses.cpus[&0].unattributed_ns, 500 * US);
    assert_eq!(c.demand_ns(), 100 * US);
}

#[test]
fn an_untraced_switch_from_idle_follows_the_wake_up() {
    let mut t = Trace::default();
    t.switch(0, 0, 1, "S", 0).timer(300, 1, 0, 1).switch(350, 0, 1, "S", 0).timer(400, 1, 0, 1);
    let c = t.read();
    assert_eq!((c.losses.inferred_switches, c.losses.unmatched_switches), (1, 0));
    assert_eq!(script(&c, 1), [Sleep(300 * US), Run(50 * US), Sleep(50 * US)]);
}

#[test]
fn priorities_become_policies_and_their_changes_steps_but_not_inherited_ones() {
    let mut t = Trace::default();
    t.timer(0, 0, 0, 8)
        .switch_prio(0, 0, (0, 120), "R", (1, 49))
        .switch_prio(100, 0, (1, 49), "S", (2, 130))
        .switch_prio(200, 0, (2, 110), "R", (3, 120))
        .event(250, 0, 3, "d..2.", "sched_pi_setprio: comm=t3 pid=3 oldprio=120 newprio=49")
        .switch_prio(300, 0, (3, 49), "R", (1, 49))
        .switch_prio(400, 0, (1, 49), "S", (3, 49))
        .event(450, 0, 3, "d..2.", "sched_pi_setprio: comm=t3 pid=3 oldprio=49 newprio=120")
        .switch_prio(500, 0, (3, 120), "S", (0, 120));
    let c = t.read();
    let policy = |tid| c.threads.iter().find(|t| t.tid == tid).unwrap().policy;
    assert_eq!(policy(1), Policy::Fifo(50));
    assert_eq!(policy(2), Policy::Normal { nice: 10, slice_ns: None });
    let (nicer, back) = (Policy::Normal { nice: -10, slice_ns: None }, policy(2));
    assert_eq!(
        script(&c, 2),
        [Sleep(100 * US), Run(100 * US), SetPolicy(nicer), SetPolicy(back), Sleep(300 * US)]
    );
    assert_eq!(script(&c, 3), [Sleep(200 * US), Run(200 * US), Sleep(100 * US)]);
}

#[test]
fn per_cpu_kernel_threads_are_bound_to_their_cpu() {
    let trace = "\
a-1 [000] 1.000000: sched_wakeup: a:1 [120] CPU:001
a-1 [001] 1.000200: sched_switch: a:1 [120] S ==> ksoftirqd/1:22 [120]
ksoftirqd/1-22 [001] 1.000300: sched_switch: ksoftirqd/1:22 [120] S ==> swapper/1:0 [120]
";
    let c = Trace(trace.to_owned()).read();
    let cpus = |tid| c.threads.iter().find(|t| t.tid == tid).unwrap().cpus.clone();
    assert_eq!(cpus(22), [1]);
    assert!(cpus(1).is_empty());
}

#[test]
fn without_wake_ups_in_the_trace_sleeps_last_until_the_switch() {
    let mut t = Trace::default();
    t.switch(0, 0, 0, "R", 1).switch(100, 0, 1, "S", 0).switch(300, 0, 0, "R", 1);
    t.switch(350, 0, 1, "S", 0);
    let c = t.read();
    assert_eq!(script(&c, 1), [Run(100 * US), Sleep(200 * US), Run(50 * US)]);
    assert_eq!(c.losses.sleeps_without_wake, 1);
}
