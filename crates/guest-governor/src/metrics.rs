//! The page of metrics.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType::{Counter, Gauge};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// Counts since the start, and current values, for a page of metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Numbers {
    /// CPUs in use.
    pub width: u32,
    /// CPUs of the guest.
    pub cpus: u32,
    /// Steal that the governor used at its last look, from 0 to 1.
    pub steal_ratio: f64,
    /// Looks at the counters.
    pub looks: u64,
    /// Changes of the width.
    pub decisions: u64,
    /// Changes that the kernel refused.
    pub refusals: u64,
}

impl Collector for Numbers {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let gauges = [
            ("vcoop_guest_width", "CPUs in use", f64::from(self.width)),
            ("vcoop_guest_cpus", "CPUs that there are", f64::from(self.cpus)),
            (
                "vcoop_guest_steal_ratio",
                "Steal that the governor went by at its last look",
                self.steal_ratio,
            ),
        ];
        for (name, help, value) in gauges {
            let metric = encoder.encode_descriptor(name, help, None, Gauge)?;
            ConstGauge::new(value).encode(metric)?;
        }
        let counters = [
            ("vcoop_guest_looks", "Looks at the counters", self.looks),
            ("vcoop_guest_decisions", "Changes of the width", self.decisions),
            ("vcoop_guest_refusals", "Changes that the kernel refused", self.refusals),
        ];
        for (name, help, value) in counters {
            let metric = encoder.encode_descriptor(name, help, None, Counter)?;
            ConstCounter::new(value).encode(metric)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use vcoop_service::metrics;
    use vcoop_testing::metric_names;

    use super::Numbers;

    #[test]
    fn documentation_and_dashboard_name_the_metrics_that_there_are() {
        let exported = metric_names(&metrics::text(Numbers::default()), &["guest_"]);
        assert!(!exported.is_empty());
        for path in ["docs/src/guest-fold.md", "packaging/grafana/vcoop.json"] {
            let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
            let named = metric_names(&fs::read_to_string(text).unwrap(), &["guest_"]);
            assert_eq!(named, exported, "{path}");
        }
    }
}
