//! Where threads are that may move, against measurements of Linux.

use vcoop_model::plan::Ns;
use vcoop_model::run::Run;
use vcoop_model::trace_event::{Event, Observer};
use vcoop_testing::rig::plans;
use vcoop_testing::{PLACEMENTS, Placement};

const RUN_S: u64 = 60;

/// CPU loops, and a thread that works for a while in each period of 8.3 ms.
fn text(loops: u32, work_us: u32, fair: &str) -> String {
    format!(
        r#"
name = "placement"
title = "Loops and a periodic thread"
duration = "{RUN_S}s"
warmup = "0s"
[host]
profile = "xeon-server"
pcpus = 2
tick_hz = 250
preemption = "voluntary"
[host.sched]
fair = "{fair}"
[[load]]
name = "hog"
kind = "hog"
count = {loops}
[[load]]
name = "periodic"
kind = "cyclictest"
policy = "other"
interval = "8300us"
work = "{work_us}us"
[compare]
policy = ["vanilla"]
"#
    )
}

/// The pCPU of each thread, and how long the last thread was where two others were.
#[derive(Debug)]
struct Places {
    at: Vec<Option<u32>>,
    since: Ns,
    beside_two: Ns,
}

impl Observer for Places {
    fn windows(&self) -> Vec<(Ns, Ns)> {
        vec![(0, Ns::MAX)]
    }

    fn event(&mut self, now: Ns, event: &Event) {
        let (thread, pcpu) = match *event {
            Event::Switch { pcpu, to: Some(thread), .. } | Event::Wake { thread, pcpu, .. } => {
                (thread, pcpu)
            }
            Event::Move { thread, to, .. } => (thread, to),
            _ => return,
        };
        let (own, others) = self.at.split_last().unwrap();
        if own.is_some() && others.iter().filter(|at| *at == own).count() == 2 {
            self.beside_two += now - self.since;
        }
        self.since = now;
        self.at[thread as usize] = Some(pcpu);
    }
}

/// How many points the simulation may be off.
const OFF: f64 = 8.0;

#[test]
fn a_periodic_thread_is_beside_two_loops_for_as_long_as_in_linux() {
    for of in &PLACEMENTS {
        let Placement { loops, work_us, .. } = *of;
        for (fair, [low, high]) in [("eevdf-6.12", of.linux_6_12), ("eevdf-7.3", of.linux_7_3)] {
            let plan = plans(&text(loops, work_us, fair), &[], &[]).remove(0);
            let at = vec![None; loops as usize + 1];
            let mut places = Places { at, since: 0, beside_two: 0 };
            vcoop_sim::run(Run::new(&plan, 1).watched(&mut places)).unwrap();
            let share = places.beside_two as f64 / (RUN_S * 10_000_000) as f64;
            let told = format!(
                "{fair}, {loops} loops, {work_us} us: {share:.0} %, and {low} to {high} % in Linux"
            );
            println!("{told}");
            assert!((low - OFF..=high + OFF).contains(&share), "{told}");
        }
    }
}
