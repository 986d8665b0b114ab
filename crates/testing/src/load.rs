//! Second attempts on a host that others use as well.

use vcoop_threads::HostUse;

use crate::{Outcome, Skip};

/// Why a check did not succeed.
#[derive(Debug)]
pub enum CheckFailure {
    /// It does not hold; the text has the measured value.
    Wrong(String),
    /// It cannot be judged here.
    Skip(Skip),
}

impl From<String> for CheckFailure {
    fn from(measured: String) -> Self {
        Self::Wrong(measured)
    }
}

impl From<Skip> for CheckFailure {
    fn from(skip: Skip) -> Self {
        Self::Skip(skip)
    }
}

/// Checks something that has to hold at the first or the second attempt.
///
/// # Errors
///
/// It cannot be judged; or it fails twice on a host that others used meanwhile, which proves nothing.
///
/// # Panics
///
/// It fails twice.
pub fn twice<E: Into<CheckFailure>>(mut holds: impl FnMut() -> Result<(), E>) -> Outcome {
    let before = HostUse::now();
    let mut once = || match holds().map_err(Into::into) {
        Ok(()) => Ok(None),
        Err(CheckFailure::Wrong(measured)) => Ok(Some(measured)),
        Err(CheckFailure::Skip(skip)) => Err(skip),
    };
    let Some(first) = once()? else { return Ok(()) };
    eprintln!("once more: {first}");
    let Some(second) = once()? else { return Ok(()) };
    let others = before.by_competitors();
    assert!(others > MOST_BY_OTHERS, "{first}; then {second}");
    let percent = 100.0 * others;
    let reason = format!("others used {percent:.0} % of this host: {first}; then {second}");
    Err(Skip::because(reason))
}

/// Maximum share of the host's CPU time that others of usual priority may have used if a failure is to count: half a CPU
/// of four.
const MOST_BY_OTHERS: f64 = 0.125;
