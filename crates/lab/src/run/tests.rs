//! A defect of ours in the middle of a run: threads, and what was measured until then.

use vcoop_model::run::Run;
use vcoop_testing::rig::plan;
use vcoop_testing::{assert_no_thread, need_kvm, scenario};

use super::run;
use crate::error::{Error, RequestTarget};
use crate::{Options, fault_injection};

/// A boosted vCPU whose thread panics (its VM's name is what [`fault_injection`] goes by) beside one that does not.
const PANICS: &str = scenario!(
    "duration = '20s'\nwarmup = '100ms'",
    r#"
[[vm]]
name = "panics"
vcpus = 1
[[vm.task]]
name = "rogue"
kind = "rogue"
mode = "msr-flood"
[[vm]]
name = "other"
vcpus = 1
[[vm.task]]
name = "cyclictest"
kind = "cyclictest"
interval = "1ms"
policy = "fifo 80"
"#
);

#[test]
fn a_panic_in_a_vcpu_thread_ends_the_run_and_leaves_nothing() {
    if let Err(skip) = need_kvm(crate::available()) {
        return skip.tell();
    }
    let plan = plan(PANICS, "dynamic", &[]);
    let (recording, failure) = run(Run::new(&plan, 1), &Options::default()).unwrap();
    let Some(Error::Panicked(RequestTarget::Vcpu(vm, 0))) = &failure else { panic!("{failure:?}") };
    assert_eq!(vm, fault_injection::PANICS);
    // The samples of the other VM until then are there.
    let samples: u64 = recording.latencies.iter().map(|l| l.hist.len()).sum();
    assert!((1..15_000).contains(&samples), "{samples} samples of a run cut short");
    assert_no_thread(|name| name.contains("panics"));
}
