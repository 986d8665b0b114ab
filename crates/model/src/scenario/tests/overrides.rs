use super::*;
use crate::plan::Program;
use vcoop_policy::config::Means;

#[test]
fn every_documented_form_works() {
    let plans = small_plans(&[
        "host.pcpus=8",
        "vm.guest.vcpus=3",
        "vm.guest.pin=all",
        "vm.guest.task.cyclictest.interval=2ms",
        "load.build.file=mine.txt.gz",
        "policy.dynamic.means=\"nice -20\"",
        "compare.policy=[\"vanilla\",\"dynamic\"]",
        "host.sched.fair = cfs",
        "vm.guest.device.net.vcpu=1",
        "at.0.boost=on",
        "seed=7",
    ]);
    assert_eq!(plans.len(), 2);
    let plan = &plans[1];
    assert_eq!(plan.host.sched.cpus(), 8);
    assert_eq!(plan.vms[0].level.topology.cpus(), 3);
    assert_eq!(plan.vms[0].devices[0].vcpu, 1);
    assert_eq!(plan.seed, 7);
    let Program::Cyclictest { interval_ns, .. } = plan.vms[0].tasks[0].program else { panic!() };
    assert_eq!(interval_ns, 2_000_000);
    let crate::plan::PolicyPlan::Dynamic(config) = &plan.policy else { panic!() };
    assert_eq!(config.means, Means::Nice(-20));
    assert!(matches!(plan.host.sched.linux().unwrap().fair, vcoop_sched::config::Fair::Cfs(_)));
}

#[test]
fn a_policy_that_is_named_like_an_array_has_keys() {
    let sets = ["policy.step.steal_low=1%", "compare.policy=[\"vanilla\",\"step\"]"];
    assert_eq!(small_plans(&sets)[1].policy_name, "step");
    assert!(refused("vm.guest.step.times=2").1.contains("there is no [[step]] here"));
}

#[test]
fn a_topology_follows_the_number_of_cpus() {
    let smt = "host.topology={ threads_per_core = 2, llcs = 2 }";
    let plans = small_plans(&[smt, "host.pcpus=12"]);
    let topology = plans[0].host.sched.topology();
    assert_eq!((topology.threads_per_core, topology.cores_per_llc, topology.llcs), (2, 3, 2));
}

#[test]
fn later_ones_win_and_list_items_have_an_index() {
    let plans = small_plans(&["seed=7", "seed=8", "vm.guest.pin.0=3"]);
    assert_eq!(plans[0].seed, 8);
    assert_eq!(plans[0].vms[0].vcpu_cpus, [vec![3], vec![1, 2]]);
}

#[test]
fn files_of_the_command_line_are_relative_to_the_working_directory() {
    // The loader sees the path: the scenario's own is relative to the scenario.
    struct Paths(std::cell::RefCell<Vec<String>>);
    impl CaptureLoader for Paths {
        fn load(&self, path: &str, shape: &Shape) -> Result<Vec<CapturedThread>, String> {
            self.0.borrow_mut().push(path.to_owned());
            Stub.load(path, shape)
        }
    }
    let paths = Paths(std::cell::RefCell::default());
    Scenario::parse("dir/small.toml", SMALL, &[], &paths).unwrap();
    let set = Set::parse("load.build.file=mine.txt").unwrap();
    Scenario::parse("dir/small.toml", SMALL, &[set], &paths).unwrap();
    assert_eq!(*paths.0.borrow(), ["dir/a.txt", "mine.txt"]);
}

/// What a wrong `--set` says: column, message, help.
fn refused(set: &str) -> (u32, String, String) {
    let found = parse_set(SMALL, &[set]).expect_err(set);
    let one = &found.0[0];
    assert_eq!((one.file.as_str(), one.line), ("--set", 1), "{found}");
    assert_eq!(one.snippet, set);
    assert!(found.to_string().lines().all(|l| l.chars().count() <= 100), "{found}");
    (one.column, one.message.clone(), one.help.clone().unwrap_or_default())
}

#[test]
fn errors_point_into_the_option() {
    let (column, message, help) = refused("vm.gest.vcpus=2");
    assert_eq!((column, message.as_str()), (4, "`vm` has no entry `gest`"));
    assert!(help.contains("did you mean `guest`?"));

    let (column, message, help) = refused("vm.guest.vcpu=2");
    assert_eq!((column, message.as_str()), (10, "unknown key `vcpu`"));
    assert!(help.contains("did you mean `vcpus`?"));

    let (column, message, _) = refused("vm.guest.vcpus=0");
    assert_eq!((column, message.as_str()), (16, "0 is out of range"));

    let (column, message, _) = refused("load.probe.interval=5");
    assert_eq!((column, message.as_str()), (21, "`5` has no unit"));
}

#[test]
fn an_override_can_make_the_file_wrong() {
    // The list is in the file, so that is where the error points.
    let found = parse_set(SMALL, &["vm.guest.vcpus=3"]).unwrap_err();
    assert_eq!(found.0[0].message, "a list of 2 for 3 vCPUs");
    assert_eq!(found.0[0].snippet, "pin = [\"0\", \"1-2\"]");
}

#[test]
fn a_thing_that_is_not_there_is_said() {
    assert!(refused("probe.0.task=guest.x").1.contains("there is no [[probe]]"));
    assert!(refused("name.x=1").1.contains("has no fields"));
    assert_eq!(refused("load.nightly=5").1, "`load` has no entry `nightly`");
    let (_, message, help) = refused("load.probe=5");
    assert_eq!(message, "`probe` has fields: one value cannot replace them");
    assert_eq!(help, "go on with a field: load.probe....");
    assert!(refused("load=5").1.contains("one value cannot replace"));
    let text = Set::parse("host.pcpus").unwrap_err().to_string();
    assert!(text.contains("PATH=VALUE"), "{text}");
    assert!(Set::parse("=3").is_err());
}

#[test]
fn more_vms_than_are_read_in_time_are_refused() {
    let text = |n: usize| {
        let vms: String = (0..n).map(|i| format!("[[vm]]\nname = \"v{i}\"\nvcpus = 1\n")).collect();
        format!("name = \"m\"\ntitle = \"m\"\n[host]\npcpus = 4\n{vms}")
    };
    let found = parse_set(&text(10_000), &[]).unwrap_err();
    assert_eq!(found.0[0].message, "10000 VMs; at most 1024");
    let few = parse_set(&text(10), &[]);
    assert!(few.is_ok_and(|scenario| scenario.plans(None).is_ok()));
}
