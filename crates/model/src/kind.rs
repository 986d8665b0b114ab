//! Recognises kinds of files, for a user who has named a file of the wrong kind.

use crate::diagnostic::Diagnostic;

/// A kind of file that people write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One experiment.
    Scenario,
    /// A scenario at many points.
    Sweep,
    /// A machine.
    Profile,
    /// Published tables and claims.
    Publication,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Scenario, Self::Sweep, Self::Profile, Self::Publication];

    /// Its name, and keys that only such a file has at its top.
    fn about(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Self::Scenario => ("scenario", &["host", "vm", "load"]),
            Self::Sweep => ("sweep", &["axes"]),
            Self::Profile => ("profile", &["costs"]),
            Self::Publication => ("publication", &["table", "histogram", "claim"]),
        }
    }

    /// The command that takes such a file.
    fn command(self, file: &str) -> String {
        match self {
            Self::Scenario => format!("vcoop run {file}"),
            Self::Sweep => format!("vcoop sweep {file} --out DIR"),
            Self::Profile => format!("vcoop run SCENARIO --calibration {file}"),
            Self::Publication => format!("vcoop reproduce {file}"),
        }
    }

    /// Refuses a file of another kind. `keys` are its top-level keys.
    ///
    /// # Errors
    ///
    /// The file has no key of this kind, and one of another.
    pub fn expect<'k>(
        self,
        file: &str,
        keys: impl Iterator<Item = &'k str>,
    ) -> Result<(), Diagnostic> {
        let keys: Vec<&str> = keys.collect();
        let has = |kind: &Self| kind.about().1.iter().any(|key| keys.contains(key));
        let found = if has(&self) { None } else { Self::ALL.into_iter().find(has) };
        let Some(found) = found else { return Ok(()) };
        let message = format!("this is a {}, not a {}", found.about().0, self.about().0);
        let help = format!("the command for it: {}", found.command(file));
        Err(Diagnostic::whole(file, message, Some(help)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_keys_of_another_kind_alone_are_refused() {
        let expect = |kind: Kind, keys: &[&str]| kind.expect("x.toml", keys.iter().copied());
        let refused = expect(Kind::Scenario, &["name", "scenario", "axes"]).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "x.toml: this is a sweep, not a scenario\n   = the command for it: vcoop sweep x.toml --out DIR"
        );
        assert!(expect(Kind::Sweep, &["name", "vm"]).is_err());
        // A slip in a file of the right kind, and one that could be any.
        for keys in [&["axes", "vm"][..], &["name", "title"], &[]] {
            assert_eq!(expect(Kind::Scenario, keys), Ok(()), "{keys:?}");
        }
    }
}
