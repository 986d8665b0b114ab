//! The study of boost policies: its data are of the sweep that stands beside them, and points that run again give
//! their numbers.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use vcoop_capture::Loader;
use vcoop_model::sweep::Sweep;
use vcoop_sweep::job::Job;
use vcoop_sweep::manifest::manifest;
use vcoop_sweep::parquet_reader::records;
use vcoop_sweep::point;

/// What is compared, and how far a number may be off before the study has to be run again: a change of the simulator's
/// costs that moves nothing else moves medians and means by less. Tails of so few samples move more.
const COMPARED: [(&str, f64); 4] = [("mean", 1.15), ("p50", 1.15), ("p99", 1.4), ("value", 1.1)];

fn sweeps() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../sweeps")
}

fn job() -> Job {
    let file = sweeps().join("boost-policy.toml");
    let text = fs::read_to_string(&file).unwrap();
    let sweep = Sweep::parse(file.to_str().unwrap(), &text).unwrap_or_else(|e| panic!("{e}"));
    Job::new(sweep).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn points_of_the_study_run_again_give_its_numbers() {
    let (job, dir) = (job(), sweeps().join("boost-policy/data"));
    let manifest = manifest(&dir).unwrap();
    let again = "run it again: vcoop sweep sweeps/boost-policy.toml --out sweeps/boost-policy/data";
    assert_eq!(manifest.spec, job.sweep.text, "the data are of another sweep; {again}");
    assert_eq!(manifest.scenario, job.base_text, "the data are of another scenario; {again}");
    let numbers = COMPARED.map(|(name, _)| name);
    let known = records(&dir, &manifest, &numbers).unwrap();
    let vms = manifest.axes.iter().position(|axis| axis.name == "vms").unwrap();
    // Points with many VMs take long: one of each of the others.
    for count in ["1", "4"] {
        let point = known.iter().find(|r| r.axes[vms] == count).unwrap().point;
        let stop = AtomicBool::new(false);
        let found = point::run(&job, point, &Loader::default(), &stop).unwrap().unwrap();
        assert_eq!(found.error(), None);
        let kept: Vec<_> = known.iter().filter(|r| r.point == point).collect();
        assert_eq!(kept.len(), found.rows.len(), "point {point} has other rows; {again}");
        let mut same = 0;
        for (old, new) in kept.iter().zip(&found.rows) {
            let name = format!("point {point}, {} of {}", old.metric, old.probe);
            assert_eq!(Some(old.policy.as_str()), new.policy.as_deref(), "{name}");
            assert_eq!(Some(old.probe.as_str()), new.probe.as_deref(), "{name}");
            same +=
                usize::from(numbers.iter().all(|n| old.numbers.get(*n).copied() == new.number(n)));
            for (column, far) in COMPARED {
                let (Some(a), Some(b)) = (old.numbers.get(column), new.number(column)) else {
                    continue;
                };
                let near = *a == b || (a / b).max(b / a) <= far;
                assert!(near, "{name}, {column} under {}: {a} is now {b}; {again}", old.policy);
            }
        }
        println!("point {point}: {same} of {} rows to the last bit", kept.len());
    }
}

#[test]
fn the_study_covers_what_it_says() {
    let job = job();
    let dir = sweeps().join("boost-policy/data");
    let manifest = manifest(&dir).unwrap();
    let known = records(&dir, &manifest, &[]).unwrap();
    assert_eq!(known.iter().filter(|r| r.error.is_some()).count(), 0, "no point failed");
    let mut points: Vec<u32> = known.iter().map(|r| r.point).collect();
    points.dedup();
    assert_eq!(points.len() as u32, job.points());
    // Each cell of the study's map has points.
    let (ratio, vms) = (
        manifest.axes.iter().position(|axis| axis.name == "vcpus_per_pcpu").unwrap(),
        manifest.axes.iter().position(|axis| axis.name == "vms").unwrap(),
    );
    for wanted in ["0.5", "1", "2", "4"] {
        for count in ["1", "4", "16", "64"] {
            let there = known.iter().any(|r| r.axes[ratio] == wanted && r.axes[vms] == count);
            assert!(there, "no point with {count} VMs at {wanted} vCPUs a pCPU");
        }
    }
    let size: u64 = fs::read_dir(&dir).unwrap().map(|e| e.unwrap().metadata().unwrap().len()).sum();
    assert!(size < 1 << 20, "{size} bytes are too many for a repository");
}
