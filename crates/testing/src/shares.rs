//! What Linux gives a control group on one CPU, while a thread of it works and sleeps on another.

/// Two loops on one CPU, in control groups of equal weight, and a thread of the first group that works and sleeps on
/// another CPU. Measured in a guest: the share of the first loop in the time of both, in hundredths; the lowest and the
/// highest of several runs.
#[derive(Clone, Copy, Debug)]
pub struct GroupShare {
    /// Whether the thread is in the real-time class while it sleeps.
    pub leaves: bool,
    /// How long it works, in milliseconds.
    pub on_ms: u32,
    /// How long it sleeps.
    pub off_ms: u32,
    /// With Linux 6.1.
    pub linux_6_1: [f64; 2],
    /// With Linux 6.12.95.
    pub linux_6_12: [f64; 2],
    /// With Linux 7.3.4.
    pub linux_7_3: [f64; 2],
}

impl GroupShare {
    /// Points that a run of a few seconds, or a simulation, may be off.
    pub const OFF: f64 = 2.0;

    /// The arguments of the guest's program `shares`, but for the seconds.
    pub fn line(&self) -> String {
        let away = if self.leaves { "fifo" } else { "other" };
        format!("{away} {} {}", self.on_ms, self.off_ms)
    }
}

const fn share(
    (leaves, on_ms, off_ms): (bool, u32, u32),
    linux_6_1: [f64; 2],
    linux_6_12: [f64; 2],
    linux_7_3: [f64; 2],
) -> GroupShare {
    GroupShare { leaves, on_ms, off_ms, linux_6_1, linux_6_12, linux_7_3 }
}

/// What was measured, by `VCOOP_LONG=1 cargo test -p vcoop --test real -- --ignored weighs_groups`.
pub const GROUP_SHARES: [GroupShare; 6] = [
    share((false, 40, 40), [38.8, 39.0], [39.1, 39.5], [39.3, 40.3]),
    share((false, 10, 40), [44.4, 44.5], [44.6, 44.8], [44.0, 44.6]),
    share((false, 2, 8), [44.9, 45.9], [45.8, 46.4], [45.7, 46.2]),
    share((true, 40, 40), [44.5, 45.1], [42.5, 43.5], [42.4, 43.5]),
    share((true, 10, 40), [49.3, 49.3], [46.6, 46.8], [46.4, 47.2]),
    share((true, 2, 8), [49.7, 50.0], [45.8, 47.5], [46.2, 46.7]),
];
