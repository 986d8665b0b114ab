//! Criterion on CPU time (user + system) of the benchmark's thread: what a shared machine takes
//! away does not count.

use criterion::Throughput;
use criterion::measurement::{Measurement, ValueFormatter, WallTime};

/// The measurement.
#[derive(Debug)]
pub(crate) struct CpuTime;

impl Measurement for CpuTime {
    type Intermediate = u64;
    type Value = u64;

    fn start(&self) -> u64 {
        vcoop_sim::cpu_time_ns()
    }

    fn end(&self, start: u64) -> u64 {
        vcoop_sim::cpu_time_ns() - start
    }

    fn add(&self, a: &u64, b: &u64) -> u64 {
        a + b
    }

    fn zero(&self) -> u64 {
        0
    }

    fn to_f64(&self, value: &u64) -> f64 {
        *value as f64
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        self
    }
}

/// Values are nanoseconds, as wall time's are.
impl ValueFormatter for CpuTime {
    fn scale_values(&self, typical: f64, values: &mut [f64]) -> &'static str {
        WallTime.formatter().scale_values(typical, values)
    }

    fn scale_throughputs(
        &self,
        typical: f64,
        throughput: &Throughput,
        values: &mut [f64],
    ) -> &'static str {
        WallTime.formatter().scale_throughputs(typical, throughput, values)
    }

    fn scale_for_machines(&self, values: &mut [f64]) -> &'static str {
        WallTime.formatter().scale_for_machines(values)
    }
}
