//! What unit tests of several subsystems share.

use vcoop_model::builtin::builtin_scenario;
use vcoop_model::capture::NoCaptures;
use vcoop_model::plan::Plan;
use vcoop_model::scenario::Scenario;

/// The first plan of a built-in scenario.
pub(crate) fn plan(scenario: &str) -> Plan {
    let text = builtin_scenario(scenario).expect("it is built in");
    let scenario = Scenario::parse(scenario, text, &[], &NoCaptures).expect("it is valid");
    scenario.plans(None).expect("it has policies").remove(0)
}
