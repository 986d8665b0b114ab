//! Policies that pin vCPUs and move the host's loads.

use super::refusals::check;
use super::*;

/// Two VMs, one of them twice: four vCPUs on six pCPUs, and three loads.
const TEXT: &str = r#"name = "small"
title = "For tests"
[host]
pcpus = 6
[[load]]
name = "free"
kind = "hog"
count = 2
[[load]]
name = "bound"
kind = "hog"
cpus = "0"
[[vm]]
name = "a"
vcpus = 2
[[vm]]
name = "b"
vcpus = 1
count = 2
"#;

fn with(tail: &str) -> String {
    format!("{TEXT}{tail}")
}

/// pCPUs of every vCPU, and of every load.
fn places(text: &str, policy: &str) -> (Vec<Vec<u32>>, Vec<Vec<u32>>) {
    let scenario = parse(text).unwrap_or_else(|e| panic!("{e}"));
    let plans = scenario.plans(Some(&[policy.to_owned()])).unwrap_or_else(|e| panic!("{e}"));
    let vcpus = plans[0].vms.iter().flat_map(|vm| vm.vcpu_cpus.clone()).collect();
    (vcpus, plans[0].host_tasks.iter().map(|task| task.cpus.clone()).collect())
}

#[test]
fn vcpus_have_their_own_pcpus_and_loads_the_others() {
    let all = vec![Vec::new(); 4];
    let one_each = [0, 1, 2, 3].map(|cpu| vec![cpu]).to_vec();
    let loads = |free: &[u32]| vec![free.to_vec(), free.to_vec(), vec![0]];
    assert_eq!(places(TEXT, "vanilla"), (all.clone(), loads(&[])));
    assert_eq!(places(TEXT, "pinned"), (one_each.clone(), loads(&[])));
    assert_eq!(places(TEXT, "isolated"), (one_each, loads(&[4, 5])));
    let off = with("[policy.off]\nbase = \"vanilla\"\nload_cpus = \"2-5\"");
    assert_eq!(places(&off, "off"), (all.clone(), loads(&[2, 3, 4, 5])));
    // No vCPU is pinned, so all pCPUs are others.
    let others = with("[policy.others]\nbase = \"vanilla\"\nload_cpus = \"others\"");
    assert_eq!(places(&others, "others").1, loads(&[0, 1, 2, 3, 4, 5]));
    // A variant takes back what its base says.
    let back = with("[policy.back]\nbase = \"isolated\"\npin = \"all\"\nload_cpus = \"all\"");
    assert_eq!(places(&back, "back"), (all, loads(&[])));
}

#[test]
fn lists_are_as_a_vm_has_them_and_own_takes_what_they_leave() {
    let one = TEXT.replacen("count = 2\n[[load]]", "[[load]]", 1);
    let one = one.replacen("[[vm]]\nname = \"b\"\nvcpus = 1\ncount = 2\n", "", 1);
    let pins = |pin: &str| format!("{one}[policy.x]\nbase = \"dynamic\"\npin = {pin}\n");
    let vcpus = |pin: &str| places(&pins(pin), "x").0;
    assert_eq!(vcpus("\"2-3\""), [vec![2, 3], vec![2, 3]]);
    assert_eq!(vcpus("[\"0\", \"all\"]"), [vec![0], Vec::new()]);
    assert_eq!(vcpus("[\"own\", 0]"), [vec![1], vec![0]]);
    let plans = parse(&pins("\"own\"")).unwrap().plans(Some(&["x".to_owned()])).unwrap();
    assert!(matches!(plans[0].policy, PolicyPlan::Dynamic(_)));
}

/// The refusal of a policy that `--policy` names.
fn unfit(text: &str, policy: &str) -> String {
    let scenario = parse(text).unwrap_or_else(|e| panic!("{e}"));
    scenario.plans(Some(&[policy.to_owned()])).unwrap_err().to_string()
}

#[test]
fn what_cannot_be_pinned_is_refused_with_a_remedy() {
    let compare = |policy: &str| with(&format!("[compare]\npolicy = [\"vanilla\", \"{policy}\"]"));
    let quoted = |policy: &str| format!("\"{policy}\"");
    for (from, to, policy, message, help) in [
        ("pcpus = 6", "pcpus = 3", "pinned", "4 vCPUs, and 3 pCPUs", "lists that share"),
        ("pcpus = 6", "pcpus = 4", "isolated", "no pCPU: vCPUs are pinned to all 4", "`pinned`"),
        (
            "vcpus = 2",
            "vcpus = 2\npin = [\"all\", \"0\"]",
            "pinned",
            "VM `a` has pins",
            "take `pin`",
        ),
    ] {
        let text = compare(policy).replacen(from, to, 1);
        check(&text, &quoted(policy), message, help);
        // The error is the same if an option names the policy. Without it the others can be run.
        let text = TEXT.replacen(from, to, 1);
        let said = unfit(&text, policy);
        assert!(said.contains(message) && said.contains(help), "{said}");
        assert!(parse(&text).unwrap().plans(None).is_ok());
    }
    // As many vCPUs as pCPUs can be pinned, and isolated where no load could be elsewhere anyway.
    let text = TEXT.replacen("pcpus = 6", "pcpus = 4", 1);
    assert_eq!(places(&text, "pinned").0.concat(), [0, 1, 2, 3]);
    let bound = text.replacen("count = 2\n[[load]]", "cpus = \"1\"\n[[load]]", 1);
    assert_eq!(places(&bound, "isolated").1, [[1], [0]]);
    let own = |keys: &str| with(&format!("[policy.x]\nbase = \"vanilla\"\n{keys}"));
    check(&own("pin = \"6\""), "\"6\"", "there is no pCPU 6", "from 0 to 5");
    check(&own("pin = [\"1\", \"7\"]"), "\"7\"", "there is no pCPU 7", "from 0 to 5");
    check(&own("load_cpus = \"4-8\""), "\"4-8\"", "there is no pCPU 6", "from 0 to 5");
    check(&own("pin = \"each\""), "\"each\"", "no CPU number", "\"own\"");
    check(&own("load_cpus = \"rest\""), "\"rest\"", "no CPU number", "\"others\"");
    let said = unfit(&own("pin = [\"1\", \"2\"]"), "x");
    assert!(said.contains("2 pins, and VM `b` has 1 vCPUs"), "{said}");
}

#[test]
fn a_cell_of_a_matrix_that_cannot_be_is_refused() {
    let matrix = "[matrix]\n\"vm.a.vcpus\" = [2, 8]\n";
    let said = unfit(&with(matrix), "pinned");
    assert!(said.contains("10 vCPUs, and 6 pCPUs"), "{said}");
    let compared = with("[compare]\npolicy = [\"pinned\"]\n") + matrix;
    assert!(parse(&compared).unwrap_err().to_string().contains("10 vCPUs, and 6 pCPUs"));
}

#[test]
fn other_hypervisors_pin_what_they_can() {
    let of = |class: &str, vm: &str| {
        let head = "name = \"x\"\ntitle = \"x\"\n[host]\npcpus = 6\n[host.sched]\n";
        let vm = format!("[[vm]]\nname = \"a\"\nvcpus = 4\n{vm}");
        format!("{head}class = \"{class}\"\n{vm}[compare]\npolicy = [\"vanilla\"]\n")
    };
    let xen = of("credit1", "");
    assert_eq!(places(&xen, "pinned").0.concat(), [0, 1, 2, 3]);
    assert!(unfit(&xen, "isolated").contains("Xen has no threads of its own"));
    let pool = of("powervm", "entitled = 2\n");
    assert!(unfit(&pool, "pinned").contains("a shared pool pins nobody"));
}

#[test]
fn pins_make_room_for_housekeeping_and_take_it_from_reservations() {
    let posted = "timer = \"posted\"\napicv = true\ndisable_exits = [\"hlt\"]\n";
    let text = |keys: &str| with(&format!("[policy.x]\nbase = \"vanilla\"\n{keys}{posted}"));
    check(&text(""), "\"posted\"", "no pCPU is kept for housekeeping", "pin vCPUs");
    let plans = parse(&text("pin = \"own\"\n")).unwrap().plans(Some(&["x".to_owned()])).unwrap();
    assert_eq!(plans[0].housekeeping(), Some(5));
    // A thread with a reservation may use all pCPUs or is refused one.
    let text = with("[policy.x]\nbase = \"static\"\nmeans = \"deadline 1ms/4ms\"\n");
    let compare = "[compare]\npolicy = [\"x\"]\n";
    assert!(parse(&format!("{text}{compare}")).is_ok());
    let pinned = format!("{text}pin = \"own\"\n{compare}");
    check(&pinned, "\"own\"", "", "take out the pinning");
    let load = TEXT.replacen("count = 2", "policy = \"deadline 1ms/4ms\"", 1);
    let moved = format!("{load}[policy.x]\nbase = \"vanilla\"\nload_cpus = \"4-5\"\n{compare}");
    check(&moved, "\"4-5\"", "", "take out the pinning");
}
