//! Where Linux puts threads that may move.

/// CPU loops, and a thread that works for a while every 8.3 ms, on two CPUs. Measured in a guest: of a hundred wake-ups
/// of the thread, those at which it was on a CPU with two of the loops; the lowest and the highest of several runs.
#[derive(Clone, Copy, Debug)]
pub struct Placement {
    /// Number of loops.
    pub loops: u32,
    /// Work of the thread in microseconds.
    pub work_us: u32,
    /// With Linux 6.12.95.
    pub linux_6_12: [f64; 2],
    /// With Linux 7.3.4.
    pub linux_7_3: [f64; 2],
}

const fn placement(
    loops: u32,
    work_us: u32,
    linux_6_12: [f64; 2],
    linux_7_3: [f64; 2],
) -> Placement {
    Placement { loops, work_us, linux_6_12, linux_7_3 }
}

/// What was measured, by `VCOOP_LONG=1 cargo test -p vcoop --test real -- --ignored places_threads`.
pub const PLACEMENTS: [Placement; 5] = [
    placement(4, 3000, [66.0, 77.0], [64.0, 71.0]),
    placement(4, 1000, [68.0, 100.0], [76.0, 100.0]),
    placement(3, 1000, [37.0, 54.0], [40.0, 52.0]),
    placement(3, 100, [45.0, 50.0], [48.0, 48.0]),
    placement(3, 3000, [0.0, 1.0], [0.0, 25.0]),
];
