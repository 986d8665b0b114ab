//! What a program has said by its end.

use std::fmt;
use std::process::{Command, Output};

use serde_json::Value;

use crate::Skip;

/// Exit code and output of a program that has ended.
#[derive(Clone, Debug)]
pub struct ProgramOutput {
    /// The command, where it is known, for messages of assertions.
    command: String,
    /// `None`: a signal ended it.
    pub code: Option<i32>,
    /// What it wrote to stdout.
    pub out: String,
    /// What it wrote to stderr.
    pub err: String,
}

impl ProgramOutput {
    /// Runs a program to its end, without input.
    ///
    /// # Panics
    ///
    /// It cannot be started, or its output is not text.
    #[track_caller]
    pub fn by(command: &mut Command) -> Self {
        let output = command.output().expect("it can be started");
        Self { command: format!("{command:?}: "), ..Self::from(output) }
    }

    /// Itself, of a program that has succeeded.
    ///
    /// # Panics
    ///
    /// It has failed.
    #[track_caller]
    pub fn well(self) -> Self {
        assert_eq!(self.code, Some(0), "{self}");
        self
    }

    /// The same, unless it says that this host lacks something: exit code 3.
    ///
    /// # Errors
    ///
    /// What is lacking.
    ///
    /// # Panics
    ///
    /// It has failed otherwise.
    #[track_caller]
    pub fn or_skip(self) -> Result<Self, Skip> {
        if self.code == Some(3) { Err(Skip::because(self.err)) } else { Ok(self.well()) }
    }

    /// Asserts that it has failed with this code, and that stderr has each of these texts.
    ///
    /// # Panics
    ///
    /// It has not.
    #[track_caller]
    pub fn fails(&self, code: i32, texts: &[&str]) {
        assert_eq!(self.code, Some(code), "{self}");
        for text in texts {
            assert!(self.err.contains(text), "no {text:?}: {self}");
        }
    }

    /// The document on stdout.
    ///
    /// # Panics
    ///
    /// It is no JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {self}"))
    }
}

impl From<Output> for ProgramOutput {
    fn from(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).expect("its output is text");
        let (out, err) = (text(output.stdout), text(output.stderr));
        Self { command: String::new(), code: output.status.code(), out, err }
    }
}

impl fmt::Display for ProgramOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}exit code {:?}\n{}{}", self.command, self.code, self.out, self.err)
    }
}
