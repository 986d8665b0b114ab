//! Where the scheduler of a distribution's kernel puts a thread and CPU loops that may move, in a guest with two CPUs. A
//! test of the simulator compares it with the same numbers.

use std::path::Path;
use std::time::Duration;

use vcoop_stock::{KernelTree, Options, guest_program};
use vcoop_testing::{Outcome, PLACEMENTS, Placement, Trouble, long, test, twice};

use crate::kernels::SOURCE;
use crate::vcoop::{guest, have};

/// Points that a run of a few seconds may be off.
const OFF: f64 = 12.0;

fn as_measured(series: &str, measured: fn(&Placement) -> [f64; 2]) -> Outcome {
    let options = Options {
        name: "places".to_owned(),
        vcpus: 2,
        kernel: Some(have(KernelTree::newest(series))?.kernel),
        programs: vec![have(guest_program(Path::new(SOURCE)))?],
        ..Options::default()
    };
    let vm = guest(&options)?;
    println!("{}", vm.run("uname -r", Duration::from_secs(9)).unwrap().stdout.trim());
    let seconds = long(4, 20);
    // The last cell is the clearest one.
    for cell in PLACEMENTS.iter().skip(long(PLACEMENTS.len() - 1, 0)) {
        let [low, high] = measured(cell);
        let Placement { loops, work_us, .. } = cell;
        twice(|| -> Result<(), Trouble> {
            let line = format!("wakeups other {work_us} {loops} {seconds}");
            let said = vm.run(&line, Duration::from_secs(60)).unwrap().stdout;
            let beside_two: f64 = said.split_whitespace().last().unwrap().parse().unwrap();
            let told =
                format!("{work_us} us, {loops} loops: {beside_two} %, before {low} to {high} %");
            println!("{told}");
            let near = (low - OFF..=high + OFF).contains(&beside_two);
            if near { Ok(()) } else { Err(told.into()) }
        })?;
    }
    Ok(())
}

test!("qemu", linux_places_threads_as_the_simulator_was_told, || -> Outcome {
    as_measured("6.12", |of| of.linux_6_12)?;
    if long(false, true) { as_measured("7", |of| of.linux_7_3) } else { Ok(()) }
});
