//! What a search can set: policies, and the keys of each.

use vcoop_model::scenario::Set;
use vcoop_model::sweep::{Range, RangeKind};

/// Name of the policy that a search makes.
pub const TUNED: &str = "tuned";

/// Policies that a search tries where the user names none.
pub const BASES: [&str; 5] = ["vanilla", "static", "dynamic", "wake-boost", "ratelimit-auto"];

/// A key of a policy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// Policies that have it.
    pub of: &'static [&'static str],
    /// What it can be.
    pub values: Choice,
}

/// What a key can be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Choice {
    /// One of these, as TOML has them.
    Words(&'static [&'static str]),
    /// A duration in nanoseconds, evenly in the logarithm.
    Time(f64, f64),
    /// A percentage, evenly in the logarithm.
    Percent(f64, f64),
}

const BOOSTING: [&str; 2] = ["dynamic", "wake-boost"];

const YES_NO: Choice = Choice::Words(&["true", "false"]);

/// Every key a search sets. Ranges reach an order of magnitude to either side of the defaults.
pub const KEYS: [Key; 11] = [
    Key {
        name: "means",
        of: &["static", "dynamic", "wake-boost"],
        values: Choice::Words(&[
            "\"fifo 8\"",
            "\"rr 8\"",
            "\"nice -20\"",
            "\"nice -10\"",
            "\"slice 100us\"",
        ]),
    },
    Key { name: "vcpu_burst", of: &BOOSTING, values: Choice::Time(1e5, 3e7) },
    Key { name: "vcpu_refill", of: &BOOSTING, values: Choice::Percent(1.0, 100.0) },
    Key { name: "run", of: &["wake-boost"], values: Choice::Time(5e4, 1e7) },
    Key { name: "max_preempt_off", of: &["dynamic"], values: Choice::Time(1e5, 1e7) },
    Key { name: "boost_on_injection", of: &["dynamic"], values: YES_NO },
    Key { name: "boost_on_request", of: &["dynamic"], values: YES_NO },
    Key { name: "boost_across_idle", of: &["dynamic"], values: YES_NO },
    Key { name: "repay", of: &["dynamic", "wake-boost"], values: YES_NO },
    Key { name: "interval", of: &["ratelimit-auto"], values: Choice::Time(1e7, 1e9) },
    Key { name: "confirm", of: &["ratelimit-auto"], values: Choice::Words(&["1", "2", "4", "8"]) },
];

impl Choice {
    /// The value at a share of the choice, 0 up to 1, as TOML has it.
    pub fn at(self, share: f64) -> String {
        let range = |from, to, kind| Range { from, to, log: true, points: None, kind };
        match self {
            Self::Words(words) => {
                let i = ((share * words.len() as f64) as usize).min(words.len() - 1);
                words[i].to_owned()
            }
            Self::Time(from, to) => range(from, to, RangeKind::Duration).at(share).toml,
            Self::Percent(from, to) => range(from, to, RangeKind::Percent).at(share).toml,
        }
    }
}

/// A policy with some of its keys set.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Setting {
    /// Policy it starts from.
    pub base: String,
    /// Keys that are not as that policy has them, and their values as TOML has them.
    pub keys: Vec<(String, String)>,
}

impl Setting {
    /// A policy as it is.
    pub fn plain(base: &str) -> Self {
        Self { base: base.to_owned(), keys: Vec::new() }
    }

    /// The changes that put it into a scenario under the name [`TUNED`].
    pub fn sets(&self) -> Vec<Set> {
        let mut sets =
            vec![Set::of(&format!("policy.{TUNED}.base"), &format!("\"{}\"", self.base))];
        let key =
            |(key, value): &(String, String)| Set::of(&format!("policy.{TUNED}.{key}"), value);
        sets.extend(self.keys.iter().map(key));
        sets
    }

    /// The same without one of its keys.
    pub fn without(&self, key: &str) -> Self {
        let mut other = self.clone();
        other.keys.retain(|(name, _)| name != key);
        other
    }

    /// As a scenario file has it.
    pub fn toml(&self) -> String {
        let mut text = format!("[policy.{TUNED}]\nbase = \"{}\"\n", self.base);
        for (key, value) in &self.keys {
            text += &format!("{key} = {value}\n");
        }
        text
    }

    /// In a line.
    pub fn words(&self) -> String {
        let keys: Vec<String> =
            self.keys.iter().map(|(k, v)| format!("{k} {}", v.trim_matches('"'))).collect();
        if keys.is_empty() {
            self.base.clone()
        } else {
            format!("{}: {}", self.base, keys.join(", "))
        }
    }
}
