//! Golden output: help, lists, and every kind of error message with its exit code.
//!
//! After a wanted change: `TRYCMD=overwrite cargo test -p vcoop --test cmd`, then read the diff.

#[test]
fn golden() {
    trycmd::TestCases::new()
        .env("NO_COLOR", "1")
        .env("COLUMNS", "100")
        .env("VCOOP_BACKEND", "sim")
        .case("tests/cmd/*.trycmd");
}
