//! Random values that are the same in each run.

use proptest::strategy::{Strategy, ValueTree as _};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// `count` values of a strategy.
///
/// # Panics
///
/// The strategy gives no value.
pub fn random<S: Strategy>(of: S, count: usize) -> Vec<S::Value> {
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    (0..count).map(|_| of.new_tree(&mut runner).expect("it has values").current()).collect()
}
