use regex::Regex;
use serde_json::Value;
use vcoop_policy::config::{AdvanceConfig, Means};
use vcoop_sched::config::Policy;

use super::*;
use crate::builtin::builtin_scenarios;
use crate::dist::Dist;
use crate::plan::{Program, RogueStep, SampleEnd, Target};
use crate::scenario::keys::storm::StartText;
use crate::scenario::keys::texts::CpuMax;
use crate::scenario::keys::workload::{AudioTime, StartTime};
use crate::toml_read::Text;
use crate::toml_read::units::{CpuList, Time};

#[test]
fn all_parse_and_give_plans_that_survive_serialisation() {
    for builtin in builtin_scenarios() {
        let scenario = Scenario::parse(builtin.name, builtin.text, &[], &Stub)
            .unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(scenario.name, builtin.name);
        let plans = scenario.plans(None).unwrap();
        assert!(!plans.is_empty());
        for plan in &plans {
            // A boot storm without a load after it is there for its curves.
            let measures = !plan.probes.is_empty() || !plan.storms.is_empty();
            // One is about the host's scheduler alone.
            let vms = plan.vms.is_empty() == (builtin.name == "threads-1");
            assert!(measures && vms, "{}", builtin.name);
            for probe in &plan.probes {
                let task = match probe.target {
                    Target::Host(i) => &plan.host_tasks[i as usize],
                    Target::Guest { vm, task } => &plan.vms[vm as usize].tasks[task as usize],
                };
                // Tasks of a routine have one series, and a timer's interrupt one of its own.
                let probed = probe.probe.strip_suffix(".interrupt");
                assert_eq!(probed.is_some(), probe.moment == SampleEnd::Interrupt);
                let probed = probed.unwrap_or(&probe.probe);
                let named = [&task.name, &task.label].map(|name| probed.ends_with(name));
                assert!(named.contains(&true), "{}", probe.probe);
                assert!(task.program.measures());
            }
            let text = serde_json::to_string(plan).unwrap();
            let back: Plan = serde_json::from_str(&text).unwrap();
            assert_eq!(serde_json::to_string(&back).unwrap(), text);
        }
    }
}

#[test]
fn cells_and_policies_are_those_of_the_seed() {
    let cells = |name| {
        let text = crate::builtin::builtin_scenario(name).unwrap();
        Scenario::parse(name, text, &[], &Stub).unwrap().plans(None).unwrap()
    };
    assert_eq!(cells("pvsched-idle").len(), 2 * 3);
    assert_eq!(cells("pvsched-busy").len(), 2 * 3);
    assert_eq!(cells("pvsched-audio").len(), 2 * 3 * 2);
    assert_eq!(cells("busy-host").len(), 4);
    // Host and guest intervals change together.
    for plan in cells("pvsched-busy") {
        let interval = |program: &Program| match program {
            Program::Cyclictest { interval_ns, .. } => *interval_ns,
            other => panic!("{other:?}"),
        };
        let host = plan.host_tasks.iter().find(|t| t.label == "cyclictest").unwrap();
        assert_eq!(interval(&host.program), interval(&plan.vms[0].tasks[0].program));
        assert_eq!(plan.params.len(), 1);
    }
}

#[test]
fn flagship_takes_another_number_of_cpus() {
    let text = crate::builtin::builtin_scenario("busy-host").unwrap();
    let sets = ["host.pcpus=8", "vm.guest.vcpus=2", "load.build.file=mine.txt"];
    let sets: Vec<Set> = sets.iter().map(|s| Set::parse(s).unwrap()).collect();
    let scenario =
        Scenario::parse("busy-host", text, &sets, &Stub).unwrap_or_else(|e| panic!("{e}"));
    let plan = &scenario.plans(None).unwrap()[0];
    assert_eq!(plan.host.sched.cpus(), 8);
    assert_eq!(plan.host.sched.topology().llcs, 2);
}

#[test]
fn the_reference_has_every_key_of_the_schema() {
    let (schema, reference) = (schema(), reference());
    for (name, table) in schema["definitions"].as_object().unwrap() {
        let kinds = table["oneOf"].as_array().into_iter().flatten();
        for (key, value) in
            kinds.chain([table]).filter_map(|t| t["properties"].as_object()).flatten()
        {
            let about = value["description"].as_str().unwrap_or_default();
            let row = format!("- `{key}`: {about}");
            assert!(key == "kind" || reference.contains(&row), "{name}: {row}");
        }
    }
}

/// Just enough of JSON schema for what `schema()` emits.
fn valid(root: &Value, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    if let Some(reference) = schema["$ref"].as_str() {
        let name = reference.rsplit('/').next().unwrap();
        valid(root, &root["definitions"][name], value, at)?;
    }
    for key in ["oneOf", "anyOf"] {
        if let Some(options) = schema[key].as_array() {
            let passed = options.iter().filter(|o| valid(root, o, value, at).is_ok()).count();
            let all: Vec<_> = options.iter().map(|o| valid(root, o, value, at)).collect();
            let fine = if key == "oneOf" { passed == 1 } else { passed > 0 };
            if !fine {
                return Err(format!("{at}: {passed} of {key} pass: {all:?}"));
            }
        }
    }
    if let Some(words) = schema["enum"].as_array()
        && !words.contains(value)
    {
        return Err(format!("{at}: {value} not in {words:?}"));
    }
    if !schema["const"].is_null() && schema["const"] != *value {
        return Err(format!("{at}: {value} is not {}", schema["const"]));
    }
    let kinds = match &schema["type"] {
        Value::String(kind) => vec![kind.as_str()],
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let is = |kind: &str| match kind {
        "string" => value.is_string(),
        "integer" => value.is_i64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("type {other}"),
    };
    if !kinds.is_empty() && !kinds.iter().any(|k| is(k)) {
        return Err(format!("{at}: {value} is not {kinds:?}"));
    }
    if let (Some(pattern), Some(text)) = (schema["pattern"].as_str(), value.as_str())
        && !Regex::new(pattern).unwrap().is_match(text)
    {
        return Err(format!("{at}: {text} is not {pattern}"));
    }
    if let Some(items) = value.as_array() {
        for (i, item) in items.iter().enumerate() {
            valid(root, &schema["items"], item, &format!("{at}[{i}]"))?;
        }
    }
    if let Some(object) = value.as_object() {
        for (key, item) in object {
            let known = &schema["properties"][key];
            let schema = if known.is_null() { &schema["additionalProperties"] } else { known };
            if *schema == Value::Bool(false) {
                return Err(format!("{at}: unknown key {key}"));
            }
            valid(root, schema, item, &format!("{at}.{key}"))?;
        }
        for key in schema["required"].as_array().into_iter().flatten() {
            if !object.contains_key(key.as_str().unwrap()) {
                return Err(format!("{at}: missing {key}"));
            }
        }
    }
    Ok(())
}

#[test]
fn schema_accepts_what_the_reader_accepts_and_refuses_slips() {
    let schema = schema();
    for builtin in builtin_scenarios() {
        let value: Value = toml::from_str(builtin.text).unwrap();
        valid(&schema, &schema, &value, builtin.name).unwrap_or_else(|e| panic!("{e}"));
    }
    for (right, wrong) in [
        ("interval = \"500us\"", "intervall = \"500us\""),
        ("kind = \"bursty\"", "kind = \"burst\""),
        ("vcpus = 2", "vcpus = \"2\""),
    ] {
        let value: Value = toml::from_str(&SMALL.replace(right, wrong)).unwrap();
        assert!(valid(&schema, &schema, &value, "small").is_err(), "{wrong}");
    }
}

/// That an editor and the reader take and refuse the same; a pattern knows no ranges.
fn grammar<T: Text>(good: &[&str], bad: &[&str]) {
    let pattern = Regex::new(T::PATTERN).unwrap();
    let taken = |text: &str| (pattern.is_match(text), T::parse(text).is_ok());
    for text in good {
        assert_eq!(taken(text), (true, true), "`{text}` for {}", T::WHAT);
    }
    for text in bad {
        assert_eq!(taken(text), (false, false), "`{text}` for {}", T::WHAT);
    }
}

#[test]
fn schema_and_reader_agree_about_grammars() {
    grammar::<Time>(
        &["2s", " 1.5 s ", "1m", "1min"],
        &["", "2", ".5s", "1.s", "1 d", "-1s", "1e3us"],
    );
    grammar::<Dist>(
        &["5us", "5 us .. 20 us", "150us..350us", "exp 4 ms", "exp 300us  max 2 ms"],
        &["", "hlt", "25%", "exp", "exp 4", "5us..", "..5us", "5us max 1ms", "exp 1ms..2ms"],
    );
    grammar::<CpuList>(
        &["all", "0", "0,2-5", "1 - 2 , 4"],
        &["", "none", "0-", "-1", "1,,2", "0-1-2"],
    );
    grammar::<AudioTime>(
        &["96 frames", "96frames", "2ms", "1min"],
        &["96", "1.5 frames", "frames"],
    );
    grammar::<StartTime>(&["5s", "login", " login + 5 s"], &["login 5s", "login + 5", "1e3", "1M"]);
    grammar::<StartText>(
        &["5s", "start 20", "login  1 "],
        &["start", "64KiB", "login 1 s", "boot 1"],
    );
    grammar::<CpuMax>(
        &["200ms/100ms", "10 ms / 1 s", "10ms"],
        &["max", "10ms/", "1/2", "1s/1s/1s"],
    );
    grammar::<AdvanceConfig>(&["none", "adaptive", "2 us"], &["auto", "2"]);
    grammar::<Policy>(
        &[
            "other",
            "fifo 1",
            "nice +5",
            "nice -5 slice 1 ms",
            "slice 1 ms",
            "deadline 1 ms / 2 ms/4ms",
        ],
        &["fifo", "slice", "slice 1ms 2ms", "slice 1ms nice 5", "deadline 1ms", "deadline a/b"],
    );
    grammar::<Means>(
        &["ext", "rr 8", "nice -20", "slice 3 ms", "deadline 1ms/4ms"],
        &["other", "slice 1", "slice x", "deadline /", "nice 0 slice 1ms"],
    );
    grammar::<RogueStep>(&["ask", "claim section", "work 300 us"], &["work", "work 300", "claim"]);
    let schema = schema();
    for (text, fits) in
        [("\"vm.a.vcpus\" = [1, 2]", true), ("vm.a.vcpus = [1]", true), ("x = 1", false)]
    {
        let value: Value = toml::from_str(text).unwrap();
        let matrix = &schema["properties"]["matrix"];
        assert_eq!(valid(&schema, matrix, &value, "matrix").is_ok(), fits, "{text}");
    }
}

#[test]
fn schema_carries_defaults_and_reference_names_every_key() {
    let schema = schema();
    assert_eq!(schema["properties"]["duration"]["default"], "5s");
    assert_eq!(schema["definitions"]["HostKeys"]["properties"]["tick_hz"]["default"], 250);
    let text = reference();
    for definition in schema["definitions"].as_object().unwrap().values() {
        for key in definition["properties"].as_object().into_iter().flatten().map(|(k, _)| k) {
            assert!(text.contains(&format!("- `{key}`:")), "{key} is not in the reference");
        }
    }
    for word in keys::workload::Kind::WORDS {
        assert!(text.contains(&format!("### kind = \"{word}\"")));
    }
}
