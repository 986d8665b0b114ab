//! Costs that are distributions.

use std::slice::from_ref;

use crate::support::*;
use vcoop_model::plan::Plan;
use vcoop_model::profile::{Costs, Noise, NoiseBy};
use vcoop_model::quantiles::{LEVELS, Quantiles};
use vcoop_model::recording::Recording;
use vcoop_sched::config::Policy;

/// A host's probe on an idle machine.
fn idle(costs: Costs) -> Plan {
    let mut p = plan(eevdf(1), costs);
    p.host_tasks.push(task("probe", cyclictest(MS, 0), Policy::NORMAL, &[]));
    p.duration_ns = 20 * S;
    probe_all(&mut p);
    p
}

/// Everything but the CPU time that it took.
fn bytes(mut r: Recording) -> String {
    r.engine = None;
    format!("{r:?}")
}

#[test]
fn a_distribution_of_one_value_is_that_constant() {
    let mut constant = dear();
    let same = |(key, ns): (&str, u64)| (key.to_owned(), Quantiles::ascending([ns; LEVELS]));
    constant.spread = constant.entries().into_iter().map(same).collect();
    for state in dear().cstates {
        let quantiles = Quantiles::ascending([state.exit_ns; LEVELS]);
        constant.spread.insert(format!("cstate.{}", state.name), quantiles);
    }
    assert_eq!(bytes(run(&idle(constant))), bytes(run(&idle(dear()))));
}

#[test]
fn an_idle_machine_has_a_tail_where_its_costs_have_one() {
    let (constant, drawn) = (run(&idle(dear())), run(&idle(varying(dear()))));
    let (constant, drawn) = (latency(&constant, "host.probe"), latency(&drawn, "host.probe"));
    assert!(constant.max_ns < 2 * constant.hist.value_at_quantile(0.5), "{}", constant.max_ns);
    assert!(drawn.max_ns > 5 * drawn.hist.value_at_quantile(0.5), "{}", drawn.max_ns);
    let (mean, typical) = (drawn.hist.mean(), constant.hist.mean());
    assert!(mean > 1.05 * typical && mean < 1.5 * typical, "{mean} {typical}");
    assert_eq!(drawn.parts_sum.iter().sum::<u128>(), drawn.sum_ns);
}

#[test]
fn the_same_seed_draws_the_same() {
    let mut p = idle(varying(dear()));
    p.duration_ns = S;
    assert_eq!(bytes(run(&p)), bytes(run(&p)));
}

/// A stall of 1 ms in every 100 ms, or a thread that runs for as long.
fn noise(by: NoiseBy) -> Noise {
    let takes = Quantiles::ascending([MS; LEVELS]);
    Noise { name: "n".into(), by, period_ns: 100 * MS, takes, mean_ns: MS }
}

#[test]
fn noise_makes_an_idle_machine_wait() {
    let max = |noise: &[Noise], policy| {
        let mut p = idle(dear());
        p.host.noise = noise.to_vec();
        p.host_tasks[0].policy = policy;
        let r = run(&p);
        let l = latency(&r, "host.probe");
        assert_eq!(l.parts_sum.iter().sum::<u128>(), l.sum_ns);
        l.max_ns
    };
    let fair = Policy::NORMAL;
    let (stalls, threads) = (noise(NoiseBy::Interrupts), noise(NoiseBy::Threads));
    assert!(max(&[], fair) < 100 * US);
    assert!((500 * US..5 * MS).contains(&max(from_ref(&stalls), fair)));
    assert!(
        (500 * US..5 * MS).contains(&max(from_ref(&stalls), Policy::Fifo(50))),
        "nothing stops a stall"
    );
    assert!(max(from_ref(&threads), Policy::Fifo(50)) < 100 * US, "FIFO goes before threads");
    assert!(max(from_ref(&threads), fair) > 100 * US);
}

#[test]
fn noise_takes_as_much_time_as_was_measured() {
    let mut p = idle(dear());
    // Nine of ten times are shorter than twice the mean: straight lines between the quantiles make it 9.9 us.
    let takes = Quantiles::ascending([160, 200, 1_211, 17_916, 82_432, 150_113, 226_687, 322_991]);
    let (by, period_ns) = (NoiseBy::Interrupts, 1_100 * US);
    p.host.noise = vec![Noise { name: "n".into(), by, period_ns, takes, mean_ns: 6_088 }];
    let r = run(&p);
    let [count, time] = ["interrupts", "interrupt_time"].map(|of| scalar(&r, "host.noise.n", of));
    let mean_ns = time / 100.0 * 1e9 / count;
    assert!((5_800.0..6_400.0).contains(&mean_ns), "{mean_ns}");
}

#[test]
fn noise_moves_no_timer_to_another_cpu() {
    let mut p = idle(dear());
    p.host.noise = vec![noise(NoiseBy::Threads)];
    let mut quiet = p.clone();
    quiet.host.noise.clear();
    assert_eq!(p.housekeeping(), quiet.housekeeping());
    let names = |r: &Recording| r.scalars.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&run(&p)), names(&run(&quiet)), "noise is nobody's work");
}
