//! Ways in which a command can fail, and their exit codes.

use std::fmt::Display;

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The run, or something around it, failed: 1.
    Run(String),
    /// Bad usage or a bad scenario: 2.
    Usage(String),
    /// A needed facility is missing: 3.
    Missing(String),
    /// A condition of `--fail-if` holds; the result is printed already: 4.
    Condition(String),
    /// Points of a sweep failed; the others are in its folder: 5.
    Points(String),
    /// Interrupted; the result so far is printed already: 130.
    Interrupted,
    /// The reader of stdout has gone: no message is needed, and this is no error.
    ClosedPipe,
}

impl Failure {
    pub(crate) fn run(why: impl Display) -> Self {
        Self::Run(why.to_string())
    }

    /// Bad usage or a bad scenario.
    pub(crate) fn usage(why: impl Display) -> Self {
        Self::Usage(why.to_string())
    }

    /// The message.
    pub(crate) fn text(self) -> String {
        match self {
            Self::Run(text)
            | Self::Usage(text)
            | Self::Missing(text)
            | Self::Condition(text)
            | Self::Points(text) => text,
            Self::Interrupted => "interrupted".to_owned(),
            Self::ClosedPipe => "nobody reads stdout".to_owned(),
        }
    }

    /// The exit code.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::ClosedPipe => 0,
            Self::Run(_) => 1,
            Self::Usage(_) => 2,
            Self::Missing(_) => 3,
            Self::Condition(_) => 4,
            Self::Points(_) => 5,
            Self::Interrupted => 130,
        }
    }
}

/// The end of a run: why it failed, or whether it was interrupted.
pub(crate) fn ended(failure: Option<impl Display>, interrupted: bool) -> Result<(), Failure> {
    match failure {
        Some(failure) => Err(Failure::run(failure)),
        None if interrupted => Err(Failure::Interrupted),
        None => Ok(()),
    }
}
