//! Where the scheduler of a distribution's kernel puts a thread and CPU loops that may move, and what it gives groups on
//! one of two CPUs, in a guest. Tests of the simulator compare it with the same numbers.

use std::path::Path;
use std::time::Duration;

use vcoop_stock::{KernelTree, Options, StockVm, guest_program};
use vcoop_testing::{
    CheckFailure, GROUP_SHARES, GroupShare, Outcome, PLACEMENTS, Placement, Skip, long, test, twice,
};

use crate::kernels::SOURCE;
use crate::vcoop::{guest, have};

/// Points that a run of a few seconds may be off.
const OFF: f64 = 12.0;

const SHARES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../stock/guest/shares.c");

/// A guest with a kernel of `series`, or with that of a Debian 12, which is a 6.1.
fn two_cpus(name: &str, series: Option<&str>, program: &str) -> Result<StockVm, Skip> {
    let options = Options {
        name: name.to_owned(),
        vcpus: 2,
        kernel: match series {
            Some(series) => Some(have(KernelTree::newest(series))?.kernel),
            None => None,
        },
        programs: vec![have(guest_program(Path::new(program)))?],
        ..Options::default()
    };
    let vm = guest(&options)?;
    let release = vm.run("uname -r", Duration::from_secs(9)).unwrap().stdout;
    println!("{}", release.trim());
    if series.is_some() || release.starts_with("6.1.") {
        return Ok(vm);
    }
    Err(Skip::because("the guest's kernel is not a 6.1"))
}

/// Runs a program of which the last word is what is measured; that has to be as before, but for `off`.
fn near(vm: &StockVm, line: &str, [low, high]: [f64; 2], off: f64) -> Outcome {
    twice(|| -> Result<(), CheckFailure> {
        let said = vm.run(line, Duration::from_secs(60)).unwrap().stdout;
        let measured: f64 = said.split_whitespace().last().unwrap().parse().unwrap();
        let told = format!("{line}: {measured} %, before {low} to {high} %");
        println!("{told}");
        let near = (low - off..=high + off).contains(&measured);
        if near { Ok(()) } else { Err(told.into()) }
    })
}

fn places(series: &str, measured: fn(&Placement) -> [f64; 2]) -> Outcome {
    let vm = two_cpus("places", Some(series), SOURCE)?;
    let seconds = long(4, 20);
    // The last cell is the clearest one.
    for cell in PLACEMENTS.iter().skip(long(PLACEMENTS.len() - 1, 0)) {
        let Placement { loops, work_us, .. } = cell;
        near(&vm, &format!("wakeups other {work_us} {loops} {seconds}"), measured(cell), OFF)?;
    }
    Ok(())
}

fn weighs(series: Option<&str>, measured: fn(&GroupShare) -> [f64; 2]) -> Outcome {
    let vm = two_cpus("weighs", series, SHARES)?;
    // A CPU whose load has gone tells it late: the last cell is where 6.12 differs most from 6.1.
    for cell in GROUP_SHARES.iter().skip(long(GROUP_SHARES.len() - 1, 0)) {
        let line = format!("shares {} {}", cell.line(), long(2, 6));
        near(&vm, &line, measured(cell), GroupShare::OFF)?;
    }
    Ok(())
}

test!("qemu", linux_places_threads_as_the_simulator_was_told, || -> Outcome {
    places("6.12", |of| of.linux_6_12)?;
    if long(false, true) { places("7", |of| of.linux_7_3) } else { Ok(()) }
});

test!("qemu", linux_weighs_groups_as_the_simulator_was_told, || -> Outcome {
    weighs(Some("6.12"), |of| of.linux_6_12)?;
    if long(false, true) {
        weighs(None, |of| of.linux_6_1)?;
        weighs(Some("7"), |of| of.linux_7_3)?;
    }
    Ok(())
});
