//! One case for each thing that is refused: what is underlined, what is said, what is advised.

use proptest::prelude::*;

use super::*;
use crate::plan::{Program, RogueStep};

/// Replaces `from` in [`SMALL`] and expects one error, with these texts.
#[track_caller]
fn refused(from: &str, to: &str, message: &str, help: &str) {
    check_marked(&changed(from, to), message, help);
}

/// Expects the same of [`SMALL`] with `tail` appended.
#[track_caller]
fn refused_tail(tail: &str, message: &str, help: &str) {
    check_marked(&format!("{SMALL}{tail}"), message, help);
}

#[track_caller]
fn changed(from: &str, to: &str) -> String {
    assert!(SMALL.contains(from), "{from}");
    SMALL.replacen(from, to, 1)
}

/// Expects the same with more keys of the host.
#[track_caller]
fn host(keys: &str, message: &str, help: &str) {
    check_marked(&with_host(keys), message, help);
}

/// Expects the same with other keys of the VM.
#[track_caller]
fn vm(keys: &str, message: &str, help: &str) {
    refused("weight = 2048", keys, message, help);
}

/// Expects the same with other keys of the task that is `bursty`.
#[track_caller]
fn task(keys: &str, message: &str, help: &str) {
    refused("kind = \"bursty\"", keys, message, help);
}

fn with_host(keys: &str) -> String {
    changed("profile = \"celeron-n4500\"", &format!("profile = \"celeron-n4500\"\n{keys}"))
}

/// Expects one error, with these texts, under what stands between « and ».
#[track_caller]
pub(super) fn check_marked(text: &str, message: &str, help: &str) {
    let marked = text.split(['«', '»']).nth(1).unwrap_or_else(|| panic!("what is wrong in {text}"));
    check(&text.replace(['«', '»'], ""), marked, message, help);
}

#[track_caller]
pub(super) fn check(text: &str, marked: &str, message: &str, help: &str) {
    let found = match parse(text) {
        Ok(scenario) => panic!("accepted: {scenario:?}"),
        Err(found) => found,
    };
    let rendered = found.to_string();
    assert_eq!(found.0.len(), 1, "{rendered}");
    let one = &found.0[0];
    assert!(one.message.contains(message), "{rendered}");
    assert!(one.help.as_deref().unwrap_or_default().contains(help), "{rendered}");
    assert_eq!(one.file, "dir/small.toml");
    let line = text.lines().nth(one.line as usize - 1).unwrap_or_default();
    let under: String =
        line.chars().skip(one.column as usize - 1).take(one.length as usize).collect();
    assert_eq!(under, marked, "{rendered}");
    assert!(rendered.lines().all(|l| l.chars().count() <= 100), "{rendered}");
}

#[test]
fn interrupts_of_the_host() {
    host("nohz_full = «'0-3'»", "keep the time", "leave out one");
    let device = |keys: &str| format!("[[host.interrupt]]\nname = 'nic'\n{keys}");
    host(&device("period = «'1ns'»\nwork = '0us'"), "too often", "1us");
    let keys = device("period = '5us'\nwork = «'5us'»");
    host(&keys, "longer than the time between", "less than `period`");
    host(&device("period = '1ms'\ncpus = «'4'»"), "there is no pCPU 4", "from 0 to 3");
    check(&with_host(&device("")), "[[host.interrupt]]", "missing key `period`", "");
    let same = device("period = '1ms'").replace("'nic'", "«'probe'»");
    host(&same, "a load has this name", "name of its own");
}

#[test]
fn quotas() {
    vm("cpu_max = «'900us'»", "too short: Linux takes 1ms", "");
    vm("cpu_max = «'2ms/2s'»", "Linux takes 1ms to 1s", "");
    vm("cpu_max = «'half'»", "duration", "");
    vm("cpu_max_burst = «'1ms'»", "of a group with `cpu_max`", "take this out");
    let long = "cpu_max = '50ms'\ncpu_max_burst = «'60ms'»";
    vm(long, "longer than the quota", "at most the quota");
}

#[test]
fn groups_of_the_host() {
    let weight = "weight = 2048";
    let group = "\n[[group]]\nname = \"a\"\n";
    let with = |from: &str, to: &str| format!("{}{group}", SMALL.replacen(from, to, 1));
    check(&with(weight, "group = \"b\""), "\"b\"", "there is no [[group]] named `b`", "groups: a");
    let task = "name = \"background\"";
    let inside = format!("{task}\ngroup = \"a\"");
    check(&with(task, &inside), "\"a\"", "those of the host's threads", "take it out");
    let twice = format!("{SMALL}{group}{group}");
    check(&twice, "\"a\"", "name `a`", "");
    for (outer, message, help) in [
        ("a", "group `a` does not stand before this one", "write the outer one first"),
        ("b", "group `b` does not stand before this one", "write the outer one first"),
        ("c", "there is no [[group]] named `c`", "groups: a, b"),
    ] {
        let inner = format!("{group}group = \"{outer}\"\n");
        let text = format!("{SMALL}{inner}\n[[group]]\nname = \"b\"\n");
        check(&text, &format!("\"{outer}\""), message, help);
    }
}

#[test]
fn clocks_and_slack() {
    vm("clock_skew = «'600ppm'»", "by more than 500ppm", "");
    vm("clock_skew = «'20'»", "lacks its `ppm`", "");
    let slack = |text: &str| format!("\"fifo 80\"\nslack = {text}");
    refused("\"fifo 80\"", &slack("«'50us'»"), "no timer slack", "take `slack` out");
    assert!(parse(&changed("\"fifo 80\"", &slack("'0us'"))).is_ok(), "that is what it has");
}

#[test]
fn a_speed_beside_siblings() {
    host("smt_speed = «'60%'»", "one thread each", "threads_per_core = 2");
    let on = |topology: &str, speed: &str| format!("topology = {topology}\nsmt_speed = {speed}");
    let pairs = |speed| on("{ threads_per_core = 2, cores_per_llc = 2 }", speed);
    host(&pairs("«'5%'»"), "ever get done", "at least 10%");
    host(&pairs("«'60%, 40%'»"), "1 sibling(s), and here are 2", "busy siblings");
    let fours = |speed| on("{ threads_per_core = 4, cores_per_llc = 1 }", speed);
    host(&fours("«'40%, 60%'»"), "faster beside more", "beside one");
    host(&fours("«'60%, 40'»"), "`40` lacks its percent sign", "");
    for (keys, speeds) in [
        (pairs("'60%'"), &[600_000][..]),
        (fours("'100%'"), &[]),
        (fours("'100%, 80%'"), &[1_000_000, 800_000]),
    ] {
        assert_eq!(plan_of(&with_host(&keys)).host.smt_ppm, speeds, "{keys}");
    }
}

#[test]
fn core_scheduling() {
    host("core_scheduling = «'vm'»", "one thread each", "threads_per_core = 2");
    let with = |word: &str| {
        let smt = "topology = { threads_per_core = 2, cores_per_llc = 2 }";
        format!("{smt}\ncore_scheduling = {word}")
    };
    host(&with("«'vms'»"), "not known", "`vm`?");
    let plan = plan_of(&with_host(&with("'vm'")));
    assert_eq!(plan.host.core_scheduling, CoreScheduling::Vm);
}

#[test]
fn unknown_keys_and_words() {
    refused("repeats = 3", "«repeat» = 3", "unknown key `repeat`", "did you mean `repeats`?");
    refused("pin = [", "«pins» = [", "unknown key `pins`", "did you mean `pin`?");
    refused("interval = \"500us\"", "«intervl» = \"1ms\"", "unknown key", "`interval`?");
    refused("[[vm.device]]", "[[vm.«devices»]]", "unknown key", "did you mean `device`?");
    task("kind = «'brusty'»", "there is no kind `brusty`", "did you mean `bursty`?");
    refused("boost = \"off\"", "boost = «\"oof\"»", "`oof` is not known", "`off`?");
    refused("base = \"dynamic\"", "base = «\"dinamic\"»", "no policy", "`dynamic`?");
    let tail = "[policy.own]\nbase = «'dinamic'»\n[compare]\npolicy = ['own']\nbaseline = 'own'\n";
    refused_tail(tail, "no policy", "`dynamic`?");
    let wrong = "«'celeron-n450'»";
    refused("\"celeron-n4500\"", wrong, "there is no profile", "did you mean `celeron-n4500`?");
    let tail = "[compare]\npolicy = [\"vanilla\", «\"dynamc\"»]\n";
    refused_tail(tail, "there is no policy `dynamc`", "did you mean `dynamic`?");
    let none = changed("kind = \"bursty\"", "");
    check(&none, "[[vm.task]]", "missing key `kind`", "one of cyclictest, hog");
    check(&changed("title = \"For tests\"", ""), "n", "missing key `title`", "a string");
}

#[test]
fn the_host_has_no_rogues() {
    let tail = "[[load]]\nname = \"r\"\nkind = «\"rogue\"»\n";
    refused_tail(tail, "there is no kind `rogue` on the host", "kinds: cyclictest");
}

#[test]
fn programs_of_rogues() {
    let tail = |keys: &str| format!("[[vm.task]]\nname = \"r\"\nkind = \"rogue\"\n{keys}");
    let check = |keys: &str, message: &str, help: &str| refused_tail(&tail(keys), message, help);
    check("mode = «\"program\"»\n", "a program has steps", "add `steps = [...]`");
    check("steps = «[\"ask\", \"work 1ms\"]»\n", "steps of its own", "mode = \"program\"");
    let program = |steps: &str| format!("mode = \"program\"\nsteps = {steps}\n");
    check(&program("«[\"ask\"]»"), "take no time", "\"halt 1ms\"");
    check(&program("[«\"aks\"»]"), "`aks` is no step", "a step like \"ask\"");
    let many = format!("«[{}]»", ["\"work 1us\""; 1001].join(","));
    check(&program(&many), "these are 1001 steps", "at most 1000");
    let plan = parse(&format!("{SMALL}{}", tail(&program("[\"ask\", \"halt 2ms\"]"))));
    let plan = plan.unwrap().plans(None).unwrap().remove(0);
    let Program::Rogue { steps } = &plan.vms[0].tasks.last().unwrap().program else { panic!() };
    assert_eq!(**steps, [RogueStep::Ask, RogueStep::Halt(2_000_000)]);
}

#[test]
fn calls_that_nobody_would_answer() {
    let tail = |server: &str, more: &str| {
        format!("[[load]]\nname = \"p\"\nkind = \"ping\"\nserver = «\"{server}\"»\n{more}")
    };
    let serve = "[[load]]\nname = \"s\"\nkind = \"server\"\n";
    let check = |server: &str, more: &str, message: &str, help: &str| {
        refused_tail(&tail(server, more), message, help);
    };
    check("host.x", "", "there is no task `host.x` to call", "add a task of kind = \"server\"");
    check("host.t", serve, "there is no task `host.t` to call", "did you mean `host.s`?");
    check("guest.background", "", "`guest.background` does not serve", "kind = \"server\"");
    check("host.p", "", "it would call itself", "kind = \"server\"");
    let off = format!("{serve}enabled = false\n");
    check("host.s", &off, "`host.s` is not enabled", "enable both");
    let two = format!("{serve}count = 2\n");
    check("host.s/2", &two, "there is no copy `host.s/2`", "`host.s` has 2");
    let call = "kind = 'bursty'\nserver = «'host.build'»";
    task(call, "`host.build` does not serve", "kind = \"server\"");
    task("kind = 'server'\nirq_vcpu = «2»", "there is no vCPU 2", "vCPUs go from 0 to 1");
}

#[test]
fn units() {
    refused("\"2s\"", "«\"2\"»", "`2` has no unit", "a duration with its unit");
    refused("\"2s\"", "«2»", "`2` has no unit", "like \"500us\"");
    refused("\"2s\"", "«2.5»", "`2.5` has no unit", "like \"500us\"");
    refused("\"2s\"", "«\"2 sec\"»", "`sec` is not a unit", "\"500us\"");
    refused("\"2s\"", "«\"1.5ns\"»", "whole nanoseconds", "");
    refused("\"exp 1ms\"", "«\"exp 5\"»", "`5` has no unit", "exponential");
    refused("\"nice -20\"", "«\"nice\"»", "is not a means", "\"fifo 1..99\"");
    refused_tail("[policy.dynamic]\nvcpu_refill = «\"25\"»\n", "lacks its percent sign", "\"25%\"");
}

#[test]
fn types() {
    refused("vcpus = 2", "vcpus = «\"2\"»", "expected an integer, found a string", "1 to 256");
    refused("repeats = 3", "repeats = «3.5»", "found a float", "1 to 10000");
    refused("\"celeron-n4500\"", "«5»", "expected a string, found an integer", "");
    vm("cooperative = «\"yes\"»", "true or false", "without quotes");
    let small = SMALL.replace("[[load]]\nname = \"build\"", "[load]\nname = \"build\"");
    let small = small.replace("[[load]]\nname = \"probe\"", "[[vm]]\nname = \"probe\"");
    let found = parse(&small).unwrap_err().to_string();
    assert!(found.contains("array of tables: [[...load]]"), "{found}");
}

#[test]
fn impossible_numbers() {
    refused("vcpus = 2", "vcpus = «0»", "0 is out of range", "from 1 to 256");
    refused("vcpus = 2", "vcpus = «257»", "out of range", "from 1 to 256");
    refused("repeats = 3", "repeats = «0»", "out of range", "from 1 to 10000");
    refused("\"500us\"", "«\"0us\"»", "it cannot be 0", "");
    refused("\"500us\"", "«\"10ns\"»", "at least 1us", "");
    vm("tick_hz = «0»", "out of range", "from 10 to 10000");
    vm("weight = «1»", "out of range", "from 2 to 262144");
    host("pcpus = «1025»", "1025 is out of range", "from 1 to 1024");
    refused("\"fifo 80\"", "«\"fifo 100\"»", "real-time priority", "fifo 1..99");
    refused("\"fifo 80\"", "«\"rr 0\"»", "real-time priority", "rr 1..99");
    refused("\"nice -20\"", "«\"nice 20\"»", "nice value", "-20..19");
    refused("\"nice -20\"", "«\"slice 50us\"»", "100us to 100ms", "");
    refused("\"fifo 80\"", "«\"slice 200ms\"»", "100us to 100ms", "");
    refused_tail("[policy.dynamic]\nvcpu_burst = «\"0ms\"»\n", "it cannot be 0", "");
    refused_tail("[policy.dynamic]\nvcpu_refill = «\"101%\"»\n", "more than 100%", "a percentage");
    for scale in ["0", "1e-9", "5e-7", "1000.1"] {
        let to = format!("file = \"a.txt\"\nscale = «{scale}»");
        refused("file = \"a.txt\"", &to, "out of range", "above 0, from 0.000001 to 1000");
    }
    refused("vcpus = 2", "vcpus = «99999999999999999999»", "out of range", "");
}

#[test]
fn workloads_that_cannot_be() {
    task("kind = 'bursty'\nburst = «'0us'»", "too short for a loop", "at least 50ns");
    task("kind = 'duty'\non = «'20ms'»", "more CPU time than the period", "");
    task("kind = 'duty'\nutil = «'0%'»", "no CPU time", "");
    task("kind = 'duty'\non = '1ms'\nutil = «'5%'»", "say the same thing", "");
    task("kind = 'audio'\nbuffer = «'48 frames'»", "less than one burst", "");
    let tail = "[[load]]\nname = 'a'\nkind = 'audio'\nsource = «'device'»\n";
    refused_tail(tail, "this is the host", "timer");
    let file = |value: &str, more: &str, message: &str, help: &str| {
        refused("\"a.txt\"", &format!("{value}\n{more}"), message, help);
    };
    file("'a.txt'", "of_vcpu = «true»", "no time of a vCPU", "take `of_vcpu` out");
    file("«'missing.txt'»", "", "no such capture", "builtin:build-serve");
    file("'a.txt'", "count = «2»", "a capture cannot have copies", "second table");
    refused("\"exp 1ms\"", "«'exp 10ns'»", "interrupts too often", "1us");
}

#[test]
fn cpus_that_are_not_there() {
    refused("\"1-2\"", "«\"1-4\"»", "there is no pCPU 4", "from 0 to 3");
    refused("\"1-2\"", "«\"2-1\"»", "runs backwards", "CPU list");
    refused("\"1-2\"", "«\"x\"»", "no CPU number", "\"0,2-5\"");
    refused("count = 2", "cpus = «\"2\"»", "there is no vCPU 2", "from 0 to 1");
    refused("period = \"exp", "vcpu = «2»\nperiod = \"exp", "there is no vCPU 2", "0 to 1");
    refused("interval = \"500us\"", "cpus = «\"4000000000\"»", "above 1023", "");
    refused("pin = [\"0\", \"1-2\"]", "pin = «[\"0\"]»", "a list of 1 for 2 vCPUs", "one for all");
}

#[test]
fn names() {
    refused("name = \"probe\"", "name = «\"build\"»", "used twice", "of its own");
    let text = SMALL.replace("vm = \"guest\"", "").replace("\"guest\"", "\"build\"");
    check(&text, "\"build\"", "used twice", "of its own");
    let text = SMALL.replace("wakes = \"background\"", "");
    let text = text.replace("\"background\"", "\"cyclictest\"");
    check(&text, "\"cyclictest\"", "used twice", "");
    let text = SMALL.replace("vm = \"guest\"", "").replace("\"guest\"", "\"host\"");
    check(&text, "\"host\"", "cannot be named `host`", "another name");
    refused("name = \"probe\"", "name = «\"a.b\"»", "cannot contain `.`", "letters");
    refused("name = \"probe\"", "name = «\"höhe\"»", "cannot contain `ö`", "letters");
    refused("name = \"probe\"", "name = «\"\"»", "cannot be empty", "");
    refused("\"background\"\n\n[p", "«\"ground\"»\n\n[p", "no task `ground`", "`background`?");
    refused("vm = \"guest\"", "vm = «\"gust\"»", "there is no VM `gust`", "`guest`?");
}

#[test]
fn probes() {
    let probe = |task: &str| format!("[[probe]]\ntask = {task}\n");
    let help = "did you mean `guest.cyclictest`?";
    refused_tail(&probe("«'guest.cyclictst'»"), "names no task", help);
    refused_tail(&probe("«'guest.background'»"), "measures nothing", "audio");
    let twice = probe("'guest.cyclictest/0'") + &probe("«'guest.cyclictest'»");
    refused_tail(&twice, "probed twice", "");
}

#[test]
fn times_that_contradict() {
    refused("time = \"1s\"", "time = «\"3s\"»", "the run ends at 2100ms", "");
    refused_tail(
        "[[load]]\nname = 'late'\nkind = 'hog'\nstart = «'3s'»",
        "the run ends at 2100ms",
        "",
    );
    let none = changed("boost = \"off\"", "");
    check(&none, "\"1s\"", "an entry switches exactly one thing", "give `boost`");
    let at = "vcpu = «2»\npolicy = 'idle'";
    refused("boost = \"off\"", at, "there is no vCPU 2", "from 0 to 1");
}

#[test]
fn machines_and_schedulers_that_contradict() {
    let topology = "topology = «{ threads_per_core = 2, cores_per_llc = 4 }»";
    let four = format!("pcpus = 4\n{topology}");
    host(&four, "2 threads x 4 cores x 1 LLCs = 8 CPUs, but there are 4", "");
    host(&four, "", "take out `cores_per_llc`, and it follows from host.pcpus");
    let four = format!("vcpus = 4\n{topology}");
    refused("vcpus = 2", &four, "8 CPUs, but there are 4", "follows from vm.");
    let smt = "topology = «{ threads_per_core = 2 }»";
    let three = format!("pcpus = 3\n{smt}");
    host(&three, "3 CPUs are no multiple of 2 threads x 1 LLCs", "number of CPUs");
    host(smt, "nothing says how many CPUs", "add `cores_per_llc`");
    host(&topology.replace('4', "1024"), "more than 1024", "");
    let sched = |keys: &str, message: &str, help: &str| {
        host(&format!("sched = {{ {keys} }}"), message, help);
    };
    let cfs = "fair = 'cfs', base_slice = «'1ms'»";
    sched(cfs, "`base_slice` is a tunable of eevdf", "set fair = \"eevdf\"");
    sched("rt_runtime = «'2s'»", "rt_runtime 2s is more than its period 1s", "");
    sched("rt_period = «'999ns'»", "`999ns` is too short: at least 1us", "");
    sched("rt_guard = 'off', rt_runtime = «'2s'»", "has no meaning", "");
    sched("fair = «'eevdf-6.13'»", "is not known here", "eevdf-6.12");
    for fair in ["cfs", "eevdf-6.6"] {
        let text = with_host(&format!("sched = {{ fair = '{fair}' }}"));
        let text = text.replace("\"nice -20\"", "«'slice 1ms'»");
        check_marked(&text, "has no slices", "[host.sched]");
    }
    let text = changed("weight = 2048", "sched = { fair = 'cfs' }");
    let text = text.replace("\"fifo 80\"", "«'slice 1ms'»");
    check_marked(&text, "the guest's fair class has no slices", "[vm.sched]");
}

#[test]
fn policies_that_contradict() {
    let base = "base = \"dynamic\"";
    check(&changed(base, ""), "dynamic-nice", "has no base", "one of");
    refused(base, "base = «'dynamic-nice'»", "leads back to itself", "");
    let tail = "[policy.static]\nvcpu_burst = «'1ms'»\n";
    refused_tail(tail, "`vcpu_burst` means nothing to `static`", "means");
    refused_tail("[policy.dynamic]\nbase = «'static'»\n", "it has no base", "a name of its own");
    let compare = |keys: &str, message: &str, help: &str| {
        refused_tail(&format!("[compare]\npolicy = {keys}\n"), message, help);
    };
    let other = "['vanilla']\nbaseline = «'dynamic'»";
    compare(other, "baseline `dynamic` is not compared", "compared: vanilla");
    compare("«[]»", "there is no policy to run", "policies: ");
    compare("['static', «'static'»]", "compared twice", "");
}

#[test]
fn matrices() {
    let matrix = |line: &str, message: &str, help: &str| {
        refused_tail(&format!("[matrix]\n{line}\n"), message, help);
    };
    matrix("«'vm.gest.vcpus'» = [1, 2]", "`vm` has no entry `gest`", "`guest`?");
    matrix("«'vm.guest.vcpu'» = [1, 2]", "unknown key `vcpu`", "`vcpus`?");
    matrix("seed = «5»", "not a list of values", "the values to try");
    matrix("seed = «[]»", "has no value to try", "the values to try");
    matrix("seed = [1, 2, «1»]", "1 is there twice", "");
    let line = "'vm.guest.vcpus, host.tick_hz' = [[1, \"2ms\"], «[1, \"2000us\"]»]";
    matrix(line, "there twice, also as [1, \"2ms\"]", "");
    matrix("«name» = ['a']", "a matrix cannot vary `name`", "");
    matrix("'host.tick_hz' = [100, «0»]", "0 is out of range", "from 10 to 10000");
    matrix("«'seed, seed'» = [1]", "`seed` is varied twice", "");
    let many = (10..80).map(|n| n.to_string()).collect::<Vec<_>>().join(", ");
    let lines = format!("seed = [{many}]\n«'host.tick_hz'» = [{many}]");
    matrix(&lines, "4900 cells, more than 4096", "");
}

#[test]
fn broken_syntax_has_a_place() {
    let found = parse("name = \"x\"\ntitle = = 3\n").unwrap_err();
    assert_eq!(found.0[0].line, 2);
    assert!(found.0[0].message.starts_with("not valid TOML"), "{found}");
    let twice = parse("seed = 1\nseed = 2\n").unwrap_err();
    assert_eq!((twice.0[0].line, twice.0[0].column), (2, 1), "{twice}");
}

#[test]
fn an_empty_scenario_is_refused() {
    check("name = \"x\"\ntitle = \"t\"\n", "\"x\"", "there is nothing to run", "[[vm]]");
}

#[test]
fn several_errors_come_together() {
    let text = SMALL
        .replace("repeats = 3", "repeats = 0")
        .replace("interval", "intervl")
        .replace("vcpus = 2", "vcpus = 0");
    assert_eq!(parse(&text).unwrap_err().0.len(), 3);
    let text = SMALL.replace("\"1-2\"", "\"9\"").replace("time = \"1s\"", "time = \"3s\"");
    assert_eq!(parse(&text).unwrap_err().0.len(), 2);
}

/// Text pieces a slip of the hand, or a mean user, may put anywhere.
const PIECES: [&str; 18] = [
    "0",
    "-1",
    "99999999999",
    "\"",
    "[",
    "]",
    "=",
    "\n",
    ".",
    "\"exp 1ns\"",
    "1e400",
    "\u{1F980}",
    "name = \"x\"\n",
    "[[vm]]\n",
    "[matrix]\nseed = [1, 2]\n",
    "\"99999d\"",
    "true",
    "{}",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever becomes of a scenario's text, it is read or refused, and errors can be shown.
    #[test]
    fn mutated_text_never_panics(
        which in 0usize..7,
        edits in prop::collection::vec((0usize..10_000, 0usize..12, 0usize..PIECES.len()), 1..4),
    ) {
        let builtin = crate::builtin::builtin_scenarios();
        let mut text: Vec<char> = builtin.get(which).map_or(SMALL, |b| b.text).chars().collect();
        for (at, cut, piece) in edits {
            let at = at % text.len().max(1);
            let end = (at + cut).min(text.len());
            text.splice(at..end, PIECES[piece].chars());
        }
        let text: String = text.into_iter().collect();
        match parse(&text) {
            Ok(scenario) => prop_assert!(scenario.plans(None).is_ok()),
            Err(found) => prop_assert!(!found.to_string().is_empty()),
        }
    }

    /// The same for overrides.
    #[test]
    fn overrides_never_panic(path in "[a-z.0-9\"]{0,24}", value in "\\PC{0,12}") {
        if let Ok(set) = Set::parse(&format!("{path}={value}")) {
            let read = Scenario::parse("small.toml", SMALL, &[set], &Stub);
            if let Err(found) = read {
                prop_assert!(!found.to_string().is_empty());
            }
        }
    }
}

/// A host with two pCPUs, and one VM.
const PAIR: &str = r#"name = "pair"
title = "For tests"
duration = "2s"
warmup = "100ms"

[host]
profile = "celeron-n4500"
pcpus = 2

[[load]]
name = "probe"
kind = "cyclictest"
interval = "500us"
policy = "other"

[[vm]]
name = "guest"
vcpus = 2
pin = "0-1"

[[vm.task]]
name = "work"
kind = "hog"

[policy.reserved]
base = "static"
means = "deadline 2ms/4ms"

[compare]
policy = ["vanilla", "reserved"]
"#;

#[test]
fn reservations_that_the_kernel_would_refuse() {
    let pair = |from: &str, to: &str| {
        assert!(PAIR.contains(from), "{from}");
        PAIR.replacen(from, to, 1)
    };
    let scenario = parse(PAIR).unwrap();
    assert_eq!(scenario.plans(None).unwrap().len(), 2);
    let means = "\"deadline 2ms/4ms\"";
    let off = "dl_admission = false in [host.sched]";
    check(&pair("\"0-1\"", "\"0\""), means, "allowed on every CPU", off);
    check(&pair("2ms/4ms", "3800us/4ms"), "\"deadline 3800us/4ms\"", "exceed 95 %", off);
    // 95 % less 5 % for the fair servers.
    parse(&pair("2ms/4ms", "3600us/4ms")).unwrap();
    let load = "\"deadline 1ms/1s\"";
    let text = pair("\"other\"", load).replacen("2ms/4ms", "3600us/4ms", 1);
    check(&text, "\"deadline 3600us/4ms\"", "exceed 95 %", off);
    let text = pair("\"other\"", &format!("{load}\ncpus = \"1\""));
    check(&text, load, "allowed on every CPU", off);
    let text =
        pair("kind = \"hog\"", "kind = \"hog\"\npolicy = \"deadline 1ms/2ms\"\ncpus = \"1\"");
    check(&text, "\"deadline 1ms/2ms\"", "allowed on every CPU", "in [vm.sched]");
    let text = pair("pin = \"0-1\"", "pin = \"1\"\nvcpu_policy = \"deadline 1ms/2ms\"");
    let text = text.replacen("\"vanilla\", \"reserved\"", "\"vanilla\"", 1);
    check(&text, "\"deadline 1ms/2ms\"", "allowed on every CPU", off);
    // A boost that comes and goes is refused while running; and without admission control, nothing is.
    let text = pair("\"0-1\"", "\"0\"").replacen("\"static\"", "\"dynamic\"", 1);
    parse(&text).unwrap();
    let text =
        pair("\"0-1\"", "\"0\"").replacen("-n4500\"", "-n4500\"\nsched.dl_admission = false", 1);
    parse(&text).unwrap();
    for wrong in ["deadline 2ms", "deadline 2ms/4ms/6ms/8ms"] {
        check(&pair("deadline 2ms/4ms", wrong), &format!("\"{wrong}\""), "is not `deadline", "");
    }
    for wrong in ["deadline 4ms/2ms", "deadline 1us/1ms", "deadline 10us/50us", "deadline 1s/5s"] {
        check(&pair("deadline 2ms/4ms", wrong), &format!("\"{wrong}\""), "does not hold", "");
    }
}
