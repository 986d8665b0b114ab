//! Published against simulated: nothing is dropped, and nothing is better than it is.

use std::sync::atomic::AtomicBool;

use vcoop_lab::published::Publication;
use vcoop_lab::reproduce::{Reproduction, Selection, Setup};
use vcoop_lab::runner::Control;
use vcoop_model::capture::NoCaptures;
use vcoop_model::scenario::Set;

fn reproduce(ids: &[&str], jobs: usize) -> Reproduction {
    let ids: Vec<String> = ids.iter().map(|id| (*id).to_owned()).collect();
    let selection = Selection::new(&Publication::builtin(), &ids).unwrap();
    let sets = ["duration=1s", "warmup=100ms", "repeats=2"].map(|s| Set::parse(s).unwrap());
    let setup = Setup::new(&selection, &sets, &NoCaptures).unwrap();
    let stop = AtomicBool::new(false);
    setup.run(&selection, jobs, Control { stop: &stop, progress: &|_| () }).unwrap()
}

#[test]
fn every_cell_of_a_table_is_there() {
    let result = reproduce(&["idle-avg", "audio"], 2);
    assert_eq!(result.cells.len(), 24);
    assert!(result.cells.iter().all(|cell| cell.simulated.is_some()), "{:?}", result.cells);
    let first = &result.cells[0];
    assert_eq!((first.row.as_str(), first.column.as_str()), ("500", "guest vanilla"));
    assert_eq!(first.published, 9.0);
    let ratio = first.simulated.unwrap() / 9.0;
    assert!((first.ratio.unwrap() / ratio - 1.0).abs() < 1e-3);
    assert_eq!(first.within_2x, (0.5..=2.0).contains(&ratio));
    let zero = result.cells.iter().find(|c| c.published == 0.0).unwrap();
    assert_eq!(zero.ratio, None);
    let summary = &result.summary;
    assert_eq!((summary.cells, summary.cells_comparable, summary.claims), (24, 12, 0));
    assert_eq!(summary.within_2x, result.cells.iter().filter(|c| c.within_2x).count());
}

#[test]
fn claims_come_with_a_check_for_each_cell() {
    let result = reproduce(&["busy-near-static", "idle-no-difference"], 2);
    let checks: Vec<usize> = result.claims.iter().map(|c| c.evidence.checks.len()).collect();
    assert_eq!(checks, [2, 4], "two intervals; two policies at two intervals");
    for claim in &result.claims {
        let kept = claim.evidence.checks.iter().all(|check| {
            let value = check.value.unwrap();
            check.at_least.is_none_or(|b| value >= b) && check.at_most.is_none_or(|b| value <= b)
        });
        assert_eq!(claim.holds, kept);
    }
    assert_eq!(result.summary.claims_held, result.claims.iter().filter(|c| c.holds).count());
}

#[test]
fn jobs_do_not_change_a_byte() {
    let text = |jobs| serde_json::to_string(&reproduce(&["audio"], jobs)).unwrap();
    assert_eq!(text(1), text(2));
}

#[test]
fn the_contract_of_the_json() {
    let json = serde_json::to_value(reproduce(&["audio", "audio-small-buffers"], 2)).unwrap();
    assert_eq!(json["schema"], "vcoop.reproduce/1");
    let cell = json["cells"][0].as_object().unwrap();
    for key in ["table", "row", "column", "unit", "published", "simulated", "ratio"] {
        assert!(cell.contains_key(key), "{key}");
    }
    let claim = json["claims"][0].as_object().unwrap();
    assert!(claim["id"].is_string() && claim["statement"].is_string());
    assert!(claim["holds"].is_boolean() && claim["evidence"].is_object());
    for key in ["cells", "within_2x", "median_abs_log2", "claims", "claims_held"] {
        assert!(json["summary"].as_object().unwrap().contains_key(key), "{key}");
    }
}

#[test]
fn names_that_are_nothing_are_refused() {
    let names = ["idle-avg".to_owned(), "idle-average".to_owned()];
    let error = Selection::new(&Publication::builtin(), &names).unwrap_err();
    assert_eq!(error, "idle-average");
    let all = Selection::new(&Publication::builtin(), &[]).unwrap();
    assert_eq!(all.scenarios().len(), 5);
}
