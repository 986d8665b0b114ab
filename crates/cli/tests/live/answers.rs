//! What the lab answers.

use std::process::Command;

use serde_json::Value;
use vcoop_testing::{Outcome, ProgramOutput, Skip, need_kvm, test};

/// What a short run prints.
fn run(policies: &str, more: &[&str]) -> Result<ProgramOutput, Skip> {
    need_kvm(vcoop_lab::available())?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_vcoop"));
    command.args(["run", "busy-host-1", "--backend", "kvm", "--policy", policies]);
    command.args(["--duration", "100ms", "--warmup", "10ms", "--repeats", "5"]);
    ProgramOutput::by(command.args(more)).or_skip()
}

test!("kvm", the_lab_answers_in_the_same_document, || -> Outcome {
    let json = run("vanilla,dynamic", &["--json", "--quiet"])?.json();
    assert_eq!(json["backends"], serde_json::json!(["kvm"]));
    assert!(json["environment"]["kernel"].is_string() && json["engine"].is_null());
    let series = json["series"].as_array().unwrap();
    let guest = |s: &&Value| s["probe"] == "guest.cyclictest" && s["metric"] == "latency";
    assert!(series.iter().filter(guest).all(|s| s["count"].as_u64().unwrap() > 0));
    Ok(())
});

test!("kvm", what_is_too_big_for_this_host_runs_scaled_down_and_says_so, || -> Outcome {
    let shape = ["--set", "host.pcpus=64", "--set", "host.topology.cores_per_llc=64", "--fit"];
    let table = run("vanilla", &shape)?.out;
    assert!(table.contains("scaled from 64 to "), "{table}");
    Ok(())
});
