"""Reads OpenMetrics text with prometheus_client's parser, which refuses what the specification
forbids: exit 77 where that is not installed."""
import json
import sys

try:
    from prometheus_client.openmetrics.parser import text_string_to_metric_families
except ImportError as why:
    print(why)
    sys.exit(77)

path = sys.argv[1]
text = open(path).read()
families = {family.name: family for family in text_string_to_metric_families(text)}
result = json.load(open(path + ".json"))

for family in families.values():
    assert family.type != "unknown" and family.documentation, family
    assert not family.unit or family.name.endswith("_" + family.unit), family
    seen = set()
    for sample in family.samples:
        own = (sample.name, tuple(sorted(sample.labels.items())))
        assert own not in seen, own
        seen.add(own)

latency = {(s.labels["policy"], s.labels["probe"], s.name, s.labels.get("quantile")): s.value
           for s in families["vcoop_latency_seconds"].samples}
series = [s for s in result["series"] if s["metric"] == "latency" and "count" in s]
assert series
for s in series:
    own = (s["policy"], s["probe"])
    assert latency[own + ("vcoop_latency_seconds_count", None)] == s["count"]
    for name, quantile in [("p50", "0.5"), ("p99", "0.99"), ("p999", "0.999")]:
        told = latency.get(own + ("vcoop_latency_seconds", quantile))
        assert (told is None) == (s[name] is None), (own, name)
        assert told is None or abs(told - s[name] / 1e6) < 1e-9 + told * 1e-6, (own, name)
assert families["vcoop_latency_part_seconds"].type == "counter"
assert families["vcoop_run"].type == "info"
print(f"prometheus_client: {len(families)} families, {sum(len(f.samples) for f in families.values())} samples")
