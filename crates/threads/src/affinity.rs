//! Which CPUs a thread may use.
#![allow(unsafe_code, reason = "affinity has no safe wrapper")]

use std::collections::BTreeSet;
use std::marker::PhantomData;

use crate::error::Error;

/// CPUs in a mask: the most that a Linux kernel is built for.
pub const MOST_CPUS: u32 = 8192;

/// A kernel's CPU mask.
type Mask = [u64; MOST_CPUS as usize / 64];

/// CPUs that the process may use, ascending.
///
/// # Errors
///
/// [`Error`].
pub fn allowed_cpus() -> Result<Vec<u32>, Error> {
    // SAFETY: no arguments, cannot fail.
    affinity(unsafe { libc::getpid() })
}

/// CPUs that a thread may use, ascending, without offline CPUs; 0 = the calling thread.
///
/// # Errors
///
/// [`Error`].
pub fn affinity(tid: i32) -> Result<Vec<u32>, Error> {
    let mut mask: Mask = [0; _];
    // SAFETY: the kernel writes at most the mask's size.
    let rc = unsafe { libc::sched_getaffinity(tid, size_of::<Mask>(), mask.as_mut_ptr().cast()) };
    if rc != 0 {
        return Err(Error::last_os("sched_getaffinity"));
    }
    Ok(cpus_of(mask))
}

/// The CPUs of a mask, ascending.
fn cpus_of(mask: Mask) -> Vec<u32> {
    let some = (0..).zip(mask).filter(|(_, word)| *word != 0);
    let cpus = |(n, word): (u32, u64)| {
        (0..u64::BITS).filter(move |bit| word >> bit & 1 != 0).map(move |bit| n * u64::BITS + bit)
    };
    some.flat_map(cpus).collect()
}

/// The mask of these CPUs, without those beyond its end.
fn mask_of(cpus: &[u32]) -> Mask {
    let mut mask: Mask = [0; _];
    for cpu in cpus {
        if let Some(word) = mask.get_mut(*cpu as usize / 64) {
            *word |= 1 << (cpu % 64);
        }
    }
    mask
}

/// Formats CPUs as the kernel lists them: `0-3,7`.
pub fn cpu_list(cpus: &[u32]) -> String {
    let runs = cpus.chunk_by(|a, b| a + 1 == *b);
    let run = |run: &[u32]| match run {
        [first, .., last] => format!("{first}-{last}"),
        one => one.iter().map(u32::to_string).collect(),
    };
    runs.map(run).collect::<Vec<String>>().join(",")
}

/// Parses what [`cpu_list`] and the kernel write, with or without a newline. An empty text is the empty set. `None`:
/// not a list, or a CPU number is too large.
pub fn parse_cpu_list(text: &str) -> Option<BTreeSet<u32>> {
    // Digits only: `parse` would take a sign.
    let number =
        |word: &str| word.bytes().all(|b| b.is_ascii_digit()).then(|| word.parse().ok()).flatten();
    let mut cpus = BTreeSet::new();
    let text = text.trim_ascii();
    if text.is_empty() {
        return Some(cpus);
    }
    for run in text.split(',') {
        let (first, last) = run.split_once('-').unwrap_or((run, run));
        let (first, last): (u32, u32) = (number(first)?, number(last)?);
        if first > last || last >= MOST_CPUS {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

/// Restricts a thread to these CPUs; 0 = the calling thread.
///
/// # Errors
///
/// [`Error`], also if none of the CPUs exists.
pub fn set_affinity(tid: i32, cpus: &[u32]) -> Result<(), Error> {
    let mask = mask_of(cpus);
    // SAFETY: the kernel reads at most the mask's size.
    let rc = unsafe { libc::sched_setaffinity(tid, size_of::<Mask>(), mask.as_ptr().cast()) };
    if rc == 0 { Ok(()) } else { Err(Error::last_os("sched_setaffinity")) }
}

/// Pins the calling thread; an empty list leaves it alone.
///
/// # Errors
///
/// [`Error`].
pub fn pin(cpus: &[u32]) -> Result<(), Error> {
    if cpus.is_empty() { Ok(()) } else { set_affinity(0, cpus) }
}

/// CPUs of `cpus` that are not `taken`, so that the calling thread disturbs nothing there; all of `cpus` if none is
/// left. Looks at `taken` until none is left: mostly the first thread that is asked may use all CPUs.
pub fn apart_from(cpus: &[u32], taken: impl IntoIterator<Item = u32>) -> Vec<u32> {
    let (mut free, mut taken) = (BTreeSet::from_iter(cpus), taken.into_iter());
    while !free.is_empty()
        && let Some(cpu) = taken.next()
    {
        free.remove(&cpu);
    }
    if free.is_empty() { cpus.to_vec() } else { free.into_iter().copied().collect() }
}

/// Keeps the calling thread on some CPUs while it lives, if the kernel allows it. On drop the thread gets its old CPUs
/// back. Cannot be sent to another thread.
#[derive(Debug)]
pub struct AffinityGuard(Vec<u32>, PhantomData<*const ()>);

impl AffinityGuard {
    /// Moves to these CPUs; an empty list changes nothing.
    pub fn on(cpus: &[u32]) -> Self {
        let before = affinity(0).unwrap_or_default();
        let kept = pin(cpus).map(|()| before);
        Self(kept.unwrap_or_default(), PhantomData)
    }
}

impl Drop for AffinityGuard {
    fn drop(&mut self) {
        // A failure cannot be reported here.
        let _ = pin(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    use super::{
        AffinityGuard, MOST_CPUS, affinity, apart_from, cpu_list, cpus_of, mask_of,
        parse_cpu_list as parse, pin, set_affinity,
    };

    #[test]
    fn lists_are_read_as_the_kernel_writes_them() {
        assert_eq!(parse("0-2,5,7-7\n"), Some(BTreeSet::from([0, 1, 2, 5, 7])));
        for empty in ["", "\n", " \n"] {
            assert_eq!(parse(empty), Some(BTreeSet::new()), "{empty:?}");
        }
        assert_eq!(parse("0-4095").map(|cpus| cpus.len()), Some(4096));
        for none in ["a", "1-", "-1", "3-1", "0,,1", "0-8192", "+1", "1 2", "0-99999999999"] {
            assert_eq!(parse(none), None, "{none:?}");
        }
    }

    #[test]
    fn a_thread_stays_apart_where_there_is_room() {
        assert_eq!(apart_from(&[0, 1, 2, 3], [1, 2]), [0, 3]);
        assert_eq!(apart_from(&[0, 1], []), [0, 1]);
        // Each look at another thread is a system call.
        let mut looks = 0;
        let taken = (0..5_000).inspect(|_| looks += 1).flat_map(|_| [0, 1, 2]);
        assert_eq!(apart_from(&[0, 1], taken), [0, 1]);
        assert_eq!(looks, 1);
    }

    proptest! {
        #[test]
        fn any_list_is_read_or_refused(text in any::<String>()) {
            if let Some(cpus) = parse(&text) {
                prop_assert!(cpus.iter().all(|cpu| *cpu < MOST_CPUS));
                let shown = cpu_list(&cpus.iter().copied().collect::<Vec<u32>>());
                prop_assert_eq!(parse(&shown), Some(cpus));
            }
        }
    }

    /// This host may have fewer than the first word of a mask has.
    #[test]
    fn masks_have_as_many_cpus_as_linux_can_have() {
        let cpus = [0, 1, 63, 64, 130, MOST_CPUS - 1];
        let mask = mask_of(&cpus);
        assert_eq!((mask[0], mask[1], mask[2]), (1 << 63 | 3, 1, 4));
        assert_eq!(cpus_of(mask), cpus);
    }

    #[test]
    fn who_stayed_goes_back() {
        std::thread::spawn(|| {
            let before = affinity(0).unwrap();
            let stay = AffinityGuard::on(&before[..1]);
            assert_eq!(affinity(0).unwrap(), before[..1]);
            drop(stay);
            pin(&[]).unwrap();
            assert_eq!(affinity(0).unwrap(), before);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn cpus_that_cannot_be_are_refused() {
        for none in [&[][..], &[MOST_CPUS][..], &[u32::MAX][..]] {
            assert!(set_affinity(0, none).is_err());
        }
    }
}
