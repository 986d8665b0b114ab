"""Reads a run's data files with other people's readers: exit 77 where none is installed."""
import json
import os
import sys

folder = sys.argv[1]
result = json.load(open(os.path.join(folder, "result.json")))
latencies = {
    (s["policy"], s["probe"]): s for s in result["series"] if s["metric"] == "latency" and "count" in s
}
read = []
try:
    import pyarrow.parquet as pq

    table = pq.read_table(os.path.join(folder, "samples.parquet"))
    assert pq.read_schema(os.path.join(folder, "samples.parquet")).metadata[b"vcoop.schema"] == b"vcoop.samples/1"
    types = {f.name: str(f.type) for f in table.schema}
    assert types["seed"] == "uint64" and types["repeat"] == "int32" and types["policy"] == "string"
    assert types["open"] == "bool" and types["due_ns"] == types["latency_ns"] == "int64"
    parts = [n for n in types if n.endswith("_ns") and n not in ("due_ns", "latency_ns", "behind_ns")]
    named = next(iter(latencies.values()))["parts_mean"]
    assert {p.removesuffix("_ns") for p in parts} == set(named) - {"host_wait"}
    columns = table.to_pydict()
    for i in range(table.num_rows):
        assert sum(columns[p][i] for p in parts) == columns["latency_ns"][i], i
    for (policy, probe), series in latencies.items():
        own = [
            columns["latency_ns"][i]
            for i in range(table.num_rows)
            if columns["policy"][i] == policy and columns["probe"][i] == probe
        ]
        assert len(own) == series["count"], (policy, probe)
        if own:
            assert abs(max(own) / 1e3 - series["max"]) < 1e-6
            assert abs(sum(own) / len(own) / 1e3 - series["mean"]) < 1e-2
    read.append(f"pyarrow: {table.num_rows} rows")
except ImportError as why:
    print(why)
try:
    import duckdb

    file = os.path.join(folder, "samples.parquet")
    rows = duckdb.sql(f"select policy, probe, count(*), max(latency_ns) from '{file}' group by all").fetchall()
    assert {(p, q): n for p, q, n, _ in rows} == {k: s["count"] for k, s in latencies.items() if s["count"]}
    read.append("duckdb")
except ImportError as why:
    print(why)
try:
    from hdrh.log import HistogramLogReader
    from hdrh.histogram import HdrHistogram

    reference = HdrHistogram(1, 60_000_000_000, 3)
    reader = HistogramLogReader(os.path.join(folder, "latency.hlog"), reference)
    count = 0
    while True:
        histogram = reader.get_next_interval_histogram()
        if histogram is None:
            break
        count += histogram.get_total_count()
    assert count == sum(s["count"] for s in latencies.values()), count
    read.append("hdrhistogram")
except ImportError as why:
    print(why)
print(", ".join(read))
sys.exit(0 if read else 77)
