//! Bounds on the memory that an input can take.

use vcoop_model::plan::Ns;

/// Bounds that keep a hostile or very large input from using up the machine's memory.
///
/// If `max_text_bytes`, `max_threads` or `max_steps` is reached, the input is refused with the name of the limit; the
/// others make single lines "not understood".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of text after decompression.
    pub max_text_bytes: u64,
    /// Bytes of one line; the rest of a longer line is skipped.
    pub max_line_bytes: usize,
    /// Threads, counting each life of a recycled thread id.
    pub max_threads: usize,
    /// Steps over all threads (16 bytes each).
    pub max_steps: usize,
    /// Upper bound of CPU numbers, exclusive.
    pub max_cpus: u32,
    /// Different names of other events than scheduler events; further names share one counter.
    pub max_event_names: usize,
    /// Time from the first event to the last. A line beyond it has a broken time stamp.
    pub max_span_ns: Ns,
}

impl Default for Limits {
    /// 1 GiB of text, 16 KiB a line, 65 536 threads, 8 Mi steps, 4096 CPUs, 64 names, one day.
    fn default() -> Self {
        Self {
            max_text_bytes: 1 << 30,
            max_line_bytes: 16 << 10,
            max_threads: 1 << 16,
            max_steps: 8 << 20,
            max_cpus: 4096,
            max_event_names: 64,
            max_span_ns: 86_400_000_000_000,
        }
    }
}
