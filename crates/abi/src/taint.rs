//! What a guest wrote, not yet checked.

use core::fmt;

use crate::words::Word;

/// A value read once from memory that a guest can write at any time.
///
/// The wrapper has no accessor for the raw value. The ways out are [`decode`](Self::decode), which is total,
/// [`bounded`](Self::bounded), and [`validate`](Self::validate), which takes a checking function. The value that comes
/// out is a local copy: the guest can no longer change it between check and use.
///
/// `Debug` prints no value, so that a guest cannot write into a host's log. The type does *not* promise that the
/// checking function checks enough, or that the values of two words belong to one moment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FromGuest<T>(T);

impl<T> FromGuest<T> {
    /// Wraps a value at the place where it is read.
    pub const fn new(raw: T) -> Self {
        Self(raw)
    }

    /// Unwraps through a check. Returns what the check returns.
    ///
    /// # Errors
    ///
    /// The check's own error.
    pub fn validate<U, E>(self, check: impl FnOnce(T) -> Result<U, E>) -> Result<U, E> {
        check(self.0)
    }
}

impl<T: Ord> FromGuest<T> {
    /// The value, or `max` if it is larger.
    pub fn bounded(self, max: T) -> T {
        self.0.min(max)
    }
}

impl FromGuest<u64> {
    /// The word as a fact. Total: a word that no honest guest writes decodes to a defined, harmless
    /// value (see each [`Word`]).
    pub fn decode<W: Word>(self) -> W {
        W::from_word(self.0)
    }

    /// Whether an honest guest of this version writes this word: no bit of it is ignored.
    pub fn is_canonical<W: Word>(self) -> bool {
        W::from_word(self.0).to_word() == self.0
    }
}

impl<T> fmt::Debug for FromGuest<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FromGuest(..)")
    }
}
