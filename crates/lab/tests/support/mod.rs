//! What all tests on this host's `/dev/kvm` need.

use vcoop_lab::{Error, Options};
use vcoop_model::plan::Plan;
use vcoop_model::recording::Recording;
use vcoop_model::run::Run;

pub(crate) use vcoop_testing::rig::{BUSY, latency, plan, scalar};
pub(crate) use vcoop_testing::{CheckFailure, Outcome, Skip, need_kvm, scenario, twice};

/// Registers a test that needs the lab.
macro_rules! live {
    ($name:ident, $run:expr) => {
        vcoop_testing::test!("kvm", $name, || {
            crate::support::need_kvm(vcoop_lab::available())?;
            vcoop_testing::IntoOutcome::into_outcome(($run)())
        });
    };
}

/// Needs what a plan takes.
///
/// # Errors
///
/// This host lacks it.
pub(crate) fn need(plan: &Plan) -> Outcome {
    vcoop_lab::check(plan).map_err(Skip::because)
}

/// Asserts that the lab cannot run a plan: what of it, and why, have these words.
#[track_caller]
pub(crate) fn assert_refused(plan: &Plan, of: &str, because: &str) {
    match vcoop_lab::check(plan) {
        Err(Error::Unsupported { what, why }) => {
            assert!(what.contains(of) && why.contains(because), "{what}: {why}");
        }
        other => panic!("{other:?}"),
    }
}

pub(crate) fn run(plan: &Plan) -> Recording {
    run_with(plan, Options::default())
}

pub(crate) fn run_with(plan: &Plan, options: Options) -> Recording {
    let ran = vcoop_lab::run(Run::new(plan, 1), &Options { check_pages: true, ..options });
    whole(ran).unwrap_or_else(|e| panic!("{e}"))
}

/// The recording of a run that did not fail half way.
pub(crate) fn whole(ran: Result<(Recording, Option<Error>), Error>) -> Result<Recording, Error> {
    let (recording, failure) = ran?;
    failure.map_or(Ok(recording), Err)
}
