//! `--fail-if`: conditions that end a command with a separate exit code.

use vcoop_experiment::judge::LimitResult;
use vcoop_experiment::params;
use vcoop_experiment::result::{Document, Params};
use vcoop_sweep::slo::{Quantity, Slo, quantities};

use crate::failure::Failure;
use crate::scenario::refuse;

/// Evaluates conditions for every policy in every cell.
pub(crate) fn fail_if(texts: &[String], result: &Document) -> Result<(), Failure> {
    if texts.is_empty() {
        return Ok(());
    }
    let conditions = conditions(texts, &quantities(result))?;
    let of_cell = |cell| {
        let mut own = result.clone();
        own.series.retain(|series| series.key().is_in(&cell));
        (cell, own)
    };
    let cells: Vec<_> = result.cells().into_iter().map(of_cell).collect();
    let mut found = Vec::new();
    for condition in &conditions {
        let mut places = Vec::new();
        for (cell, own) in &cells {
            for policy in &result.policies {
                let place = place(result, policy, cell);
                match condition.quantity.read(own, policy) {
                    Some(reading) if condition.held(reading) < LimitResult::Likely => {}
                    Some(reading) => {
                        let value = condition.quantity.show(reading.value);
                        places.push(format!("is {value} under {place}"));
                    }
                    None => places.push(format!("has no value under {place}")),
                }
            }
        }
        if !places.is_empty() {
            found.push(format!("{} {}", condition.quantity.name, places.join(", ")));
        }
    }
    match found.is_empty() {
        true => Ok(()),
        false => Err(Failure::Condition(format!("--fail-if: {}", found.join("; ")))),
    }
}

/// The conditions, parsed with the names in the result.
pub(crate) fn conditions(texts: &[String], known: &[Quantity]) -> Result<Vec<Slo>, Failure> {
    texts.iter().map(|text| Slo::parse("--fail-if", text, known).map_err(refuse)).collect()
}

/// A policy, and the cell if there are several.
fn place(result: &Document, policy: &str, (backend, cell): &(String, Params)) -> String {
    let words = params::words(cell);
    let several = result.backends.len() > 1;
    let parts = [policy, if several { backend } else { "" }, words.as_str()];
    let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    parts.join(", ")
}
