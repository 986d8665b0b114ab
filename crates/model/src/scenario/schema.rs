//! The file format as a JSON schema for editors, and as a reference.

use std::fmt::Write as _;

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::keys::ScenarioKeys;

/// JSON schema (draft 7, which TOML language servers read) of scenario files.
///
/// Made from the declarations that read the files, so keys, types, defaults and documentation agree. Relations between
/// values are not in it.
pub fn schema() -> Value {
    let generator = SchemaSettings::draft07().into_generator();
    let mut schema = generator.into_root_schema_for::<ScenarioKeys>().to_value();
    schema["title"] = json!("vcoop scenario");
    // Lists of values by path; a path without quotes is a table in a table.
    schema["properties"]["matrix"]["additionalProperties"] = json!({ "type": ["array", "object"] });
    schema
}

/// Every table and key of scenario files, with type, default and meaning, as Markdown.
pub fn reference() -> String {
    let schema = schema();
    let empty = Map::new();
    let defs = schema["definitions"].as_object().unwrap_or(&empty);
    let mut out = String::new();
    section(&mut out, "Top level", &schema);
    let tables = [
        ("[host]", "HostKeys"),
        ("[[host.interrupt]]", "InterruptKeys"),
        ("[host.sched] and [vm.sched]", "SchedKeys"),
        ("[host.credit1]", "Credit1Keys"),
        ("[host.credit1.patches]", "PatchKeys"),
        ("[host.powervm]", "PowerVmKeys"),
        ("topology", "TopologyTable"),
        ("[[group]]", "GroupKeys"),
        ("[[vm]]", "VmKeys"),
        ("[[vm.device]]", "DeviceKeys"),
        ("[policy.NAME]", "PolicyKeys"),
        ("[compare]", "CompareKeys"),
        ("[[probe]]", "ProbeKeys"),
        ("[[at]]", "AtKeys"),
        ("[[storm]]", "StormKeys"),
        ("[[view]]", "ViewKeys"),
    ];
    for (title, name) in tables {
        if let Some(table) = defs.get(name) {
            section(&mut out, title, table);
        }
    }
    // Writing to a String cannot fail.
    let _ = write!(out, "## Built-in policies\n\n```toml\n{}```\n\n", super::policies::BUILTIN);
    let kinds = defs.get("GuestTask").and_then(|t| t["oneOf"].as_array());
    workloads(&mut out, kinds.map_or(&[], Vec::as_slice));
    out.push('\n');
    section(&mut out, "[[vm.task.step]]", &defs["StepKeys"]);
    out
}

/// Keys common to all kinds once, then each kind's own.
fn workloads(out: &mut String, kinds: &[Value]) {
    let Some(first) = kinds.first().and_then(|k| k["properties"].as_object()) else { return };
    let everywhere = |key: &str| kinds.iter().all(|k| k["properties"].get(key).is_some());
    let _ = write!(out, "## [[load]] and [[vm.task]]\n\nKeys of every kind:\n\n");
    for (key, value) in first.iter().filter(|(key, _)| *key != "kind" && everywhere(key)) {
        row(out, key, value);
    }
    for kind in kinds {
        let word = kind["properties"]["kind"]["const"].as_str().unwrap_or_default();
        let about = kind["description"].as_str().unwrap_or_default();
        let _ = write!(out, "\n### kind = \"{word}\"\n\n{about}\n\n");
        let own = kind["properties"].as_object().into_iter().flatten();
        for (key, value) in own.filter(|(key, _)| !everywhere(key)) {
            row(out, key, value);
        }
    }
}

/// One table: its meaning and its keys.
pub(crate) fn section(out: &mut String, title: &str, table: &Value) {
    let about = table["description"].as_str().unwrap_or_default();
    let _ = write!(out, "## {title}\n\n{about}\n\n");
    for (key, value) in table["properties"].as_object().into_iter().flatten() {
        row(out, key, value);
    }
    out.push('\n');
}

fn row(out: &mut String, key: &str, value: &Value) {
    let about = value["description"].as_str().unwrap_or_default();
    let words = value["enum"].as_array().map(|words| {
        let words: Vec<String> = words.iter().map(Value::to_string).collect();
        format!(" One of {}.", words.join(", "))
    });
    let default = value.get("default").map(|d| format!(" Default: `{d}`."));
    let _ = writeln!(
        out,
        "- `{key}`: {about}{}{}",
        words.unwrap_or_default(),
        default.unwrap_or_default()
    );
}
