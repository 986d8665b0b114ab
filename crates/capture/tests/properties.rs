//! For any trace: CPU time that was recorded is replayed. For any bytes: no panic, and bounded memory.

mod common;

use std::collections::BTreeMap;

use common::{Trace, US};
use proptest::prelude::*;
use vcoop_capture::{Capture, Limits, Shape};
use vcoop_model::plan::Step;

/// One decision of a scheduler without a policy.
#[derive(Clone, Copy, Debug)]
struct Move {
    cpu: u32,
    after_us: u64,
    next: i32,
    sleeps: bool,
    wakes: i32,
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = (0..3u32, 0..500u64, 0..8i32, any::<bool>(), 1..8i32).prop_map(
        |(cpu, after_us, next, sleeps, wakes)| Move { cpu, after_us, next, sleeps, wakes },
    );
    prop::collection::vec(one, 1..200)
}

/// Plays the moves on a machine that keeps its own accounts, and writes its trace.
fn play(moves: &[Move]) -> (Trace, BTreeMap<i32, u64>, u64) {
    let mut trace = Trace::default();
    let mut ran: BTreeMap<i32, u64> = BTreeMap::new();
    let mut current = [0i32; 3];
    let mut since = [0u64; 3];
    let mut now = 0;
    // The first events of all CPUs are at time 0, so that nothing is unknown.
    for cpu in 0..3 {
        trace.switch(0, cpu, 0, "R", 0);
    }
    for m in moves {
        now += m.after_us;
        let cpu = m.cpu as usize;
        trace.wake(now, m.cpu, current[cpu], m.wakes);
        if current.contains(&m.next) && m.next != 0 {
            continue;
        }
        let state = if m.sleeps && current[cpu] != 0 { "S" } else { "R" };
        trace.switch(now, m.cpu, current[cpu], state, m.next);
        *ran.entry(current[cpu]).or_default() += now - since[cpu];
        (current[cpu], since[cpu]) = (m.next, now);
    }
    for cpu in 0..3 {
        *ran.entry(current[cpu]).or_default() += now - since[cpu];
    }
    ran.remove(&0);
    (trace, ran, now)
}

fn small() -> Limits {
    Limits {
        max_text_bytes: 1 << 20,
        max_line_bytes: 512,
        max_threads: 64,
        max_steps: 1 << 12,
        max_cpus: 16,
        max_event_names: 8,
        ..Limits::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn demand_is_time_on_cpu(moves in moves()) {
        let (trace, ran, end) = play(&moves);
        let c = trace.read();
        prop_assert_eq!(c.span_ns, end * US);
        let mut demand: BTreeMap<i32, u64> = BTreeMap::new();
        for t in &c.threads {
            *demand.entry(t.tid).or_default() += t.demand_ns / US;
        }
        demand.retain(|_, ns| *ns > 0);
        let ran: BTreeMap<i32, u64> = ran.into_iter().filter(|(_, us)| *us > 0).collect();
        prop_assert_eq!(demand, ran);
        for time in c.losses.cpus.values() {
            prop_assert_eq!(time.busy_ns + time.idle_ns + time.unattributed_ns, c.span_ns);
            prop_assert_eq!(time.unattributed_ns, 0);
        }
    }

    #[test]
    fn scripts_add_up_and_every_wait_has_its_wake(moves in moves()) {
        let (trace, _, _) = play(&moves);
        let c = trace.read();
        let replay = c.replay(&Shape::default());
        let mut wakes = vec![0usize; replay.threads.len()];
        let mut waits = vec![0usize; replay.threads.len()];
        for (i, (script, thread)) in replay.threads.iter().zip(&c.threads).enumerate() {
            let mut ran = 0;
            for step in script.steps.iter() {
                match step {
                    Step::Run(ns) => ran += ns,
                    Step::Wake(peer) => wakes[*peer as usize] += 1,
                    Step::Wait(_) => waits[i] += 1,
                    _ => {}
                }
            }
            prop_assert_eq!(ran, thread.demand_ns);
        }
        prop_assert_eq!(wakes, waits);
        prop_assert_eq!(replay.dropped.overlong, 0);
    }

    #[test]
    fn damaged_traces_never_panic_and_time_is_never_made(
        moves in moves(),
        cuts in prop::collection::vec((any::<prop::sample::Index>(), 0..4u8), 0..20),
    ) {
        let (trace, _, _) = play(&moves);
        let mut lines: Vec<String> = trace.0.lines().map(str::to_owned).collect();
        for (at, how) in cuts {
            let at = at.index(lines.len());
            match how {
                0 => lines[at] = "CPU:1 [LOST 3 EVENTS]".to_owned(),
                1 => lines[at].truncate(30),
                2 => lines[at] = "t-3 [001] 0.000001: sched_process_fork: comm=a pid=3 \
                                  child_comm=b child_pid=4".to_owned(),
                _ => lines[at] = "t-3 [001] 0.000001: sched_process_exec: filename=a pid=5 \
                                  old_pid=6".to_owned(),
            }
        }
        if let Ok(c) = Capture::read(lines.join("\n").as_bytes(), &Limits::default()) {
            let mut busy = 0;
            for time in c.losses.cpus.values() {
                prop_assert_eq!(time.busy_ns + time.idle_ns + time.unattributed_ns, c.span_ns);
                busy += time.busy_ns;
            }
            prop_assert_eq!(busy, c.demand_ns());
            let _ = c.losses.to_string();
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        let _ = Capture::read(&bytes[..], &small());
    }

    #[test]
    fn any_compressed_bytes_are_read_or_refused(
        bytes in prop::collection::vec(any::<u8>(), 0..500),
        zstd in any::<bool>(),
    ) {
        let mut file = if zstd { vec![0x28, 0xb5, 0x2f, 0xfd] } else { vec![0x1f, 0x8b, 8, 0] };
        file.extend(bytes);
        let _ = Capture::read(&file[..], &small());
    }

    #[test]
    fn any_line_of_the_right_alphabet_is_read_or_refused(
        line in "[ a-c0-9\\[\\]:/=+.,<>#()-]{0,40} ?(\\[[0-9]{1,4}\\])? ?(d[.]h2)? ?[0-9]{1,3}[.][0-9]{1,10}: \
                 ?(sched_switch|sched_waking|sched_process_fork|x): .{0,80}"
    ) {
        let _ = vcoop_capture::line::parse(&line);
    }
}
