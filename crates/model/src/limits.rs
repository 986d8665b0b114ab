//! Limits on what is read, beside the limits on bytes in [`file`](crate::file). Larger input is refused with a message
//! that names the limit.

/// VMs of a scenario, including copies. Reading and showing them takes time in the square of their number.
pub const MAX_VMS: usize = 1024;

/// vCPUs of a VM.
pub const MAX_VCPUS: i64 = 256;

/// vCPUs of all VMs together.
pub const MAX_TOTAL_VCPUS: usize = 65_536;

/// pCPUs of a host.
pub const MAX_PCPUS: i64 = 1024;

/// Tasks of the host, and of all guests together.
pub const MAX_TASKS: usize = 100_000;

/// Cells of a matrix.
pub const MAX_CELLS: usize = 4096;

/// Tasks in all cells of a matrix: all cells are in memory, so that `plans` cannot fail on them.
pub const MAX_MATRIX_TASKS: usize = 2_000_000;

/// Steps of a rogue's program.
pub const MAX_ROGUE_STEPS: usize = 1_000;

/// Steps of a round of lock-workers.
pub const MAX_ROUND_STEPS: usize = 64;

/// Threads of an rt-app workload.
pub const MAX_RT_APP_THREADS: usize = 10_000;

/// Events of an rt-app workload, over all threads.
pub const MAX_RT_APP_ACTS: usize = 1_000_000;

/// Points of a sweep.
pub const MAX_POINTS: u64 = 1_000_000;
