"""Pictures: what is drawn is what was measured."""

import sys
from pathlib import Path

import pytest

import vcoop

matplotlib = pytest.importorskip("matplotlib", reason="matplotlib could not be installed")

SHORT = {"duration": "400ms", "warmup": "320ms", "repeats": 5}


@pytest.fixture(scope="module")
def result() -> vcoop.Result:
    return vcoop.run("busy-host-1", policies=["vanilla", "dynamic"], **SHORT)


def series(result: vcoop.Result, policy: str, probe: str, metric: str) -> dict:
    keys = {"policy": policy, "probe": probe, "metric": metric}
    return next(s for s in result.series if keys.items() <= s.items())


def test_a_latency_has_its_tail_and_its_quantiles(result: vcoop.Result) -> None:
    tail, quantiles = result.plot("guest.cyclictest").axes
    labels = [text.get_text() for text in tail.get_legend().get_texts()]
    assert labels == ["vanilla", "dynamic"]
    assert tail.get_xscale() == tail.get_yscale() == "log"
    for i, policy in enumerate(labels):
        own = series(result, policy, "guest.cyclictest", "latency")
        line, dots = tail.lines[2 * i], tail.lines[2 * i + 1]
        shares = list(line.get_ydata())
        assert shares[0] == 1.0 and shares == sorted(shares, reverse=True)
        # Nothing is drawn that fewer than ten samples carry.
        assert shares[-1] == pytest.approx(10 / own["count"])
        assert own["p50"] in dots.get_xdata()
    ticks = [tick.get_text() for tick in quantiles.get_xticklabels()]
    assert ticks == ["mean", "p50", "p90", "p99"]
    drawn = {float(y) for bar in quantiles.containers for y in bar[0].get_ydata()}
    own = series(result, "dynamic", "guest.cyclictest", "latency")
    assert {own["mean"], own["p50"]} <= drawn
    ends = [tuple(map(float, s[:, 1])) for bar in quantiles.containers for s in bar[2][0].get_segments()]
    assert any(pytest.approx(own["mean_ci95"]) == list(pair) for pair in ends)


def test_colours_are_those_of_the_report(result: vcoop.Result) -> None:
    style = Path(__file__).parents[2] / "crates/report/assets/light.css"
    named = dict(part.strip().split(":") for part in style.read_text().split(";") if ":" in part)
    tail, _ = result.plot().axes
    assert [line.get_color() for line in tail.lines[::2]] == [named["--s0"], named["--s2"]]


def test_other_metrics_have_values_with_intervals(result: vcoop.Result) -> None:
    [axes] = result.plot("host.hog", metric="throughput").axes
    assert "throughput (cpu)" in axes.get_ylabel()
    found = [float(bar[0].get_ydata()[0]) for bar in axes.containers]
    policies = ("vanilla", "dynamic")
    assert found == [series(result, p, "host.hog", "throughput")["value"] for p in policies]


def test_what_is_not_there_is_refused_with_what_is(result: vcoop.Result) -> None:
    with pytest.raises(ValueError, match="'guest.cyclicttest'; there is guest.cyclictest"):
        result.plot("guest.cyclicttest")
    with pytest.raises(ValueError, match="'latencies'; there is .*latency"):
        result.plot(metric="latencies")


def test_without_matplotlib_it_says_how_to_get_it(
    result: vcoop.Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(vcoop.MissingError, match=r"remedy: pip install 'vcoop\[plot\]'"):
        result.plot()


def test_a_sweep_is_drawn_over_an_axis(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_text("""
name = "drawn"
scenario = "busy-host-1"
policies = ["vanilla", "dynamic"]
[set]
duration = "100ms"
warmup = "10ms"
[repeats]
min = 2
max = 2
[axes]
"load.hog.count" = [1, 2]
"vm.guest.task.cyclictest.interval" = ["1ms", "2ms"]
""")
    found = vcoop.sweep(file, tmp_path / "out")
    with pytest.raises(ValueError, match="interval_us varies, too.*1000"):
        found.plot("hog_count")
    with pytest.raises(ValueError, match="no axis 'hog_counts'; there is hog_count, interval_us"):
        found.plot("hog_counts")
    [axes] = found.plot("hog_count", y="mean", where={"interval_us": 1000}).axes
    frame = found.to_pandas().query("metric == 'latency' and interval_us == 1000")
    own = frame[frame.probe == frame.probe.iloc[0]]
    for line, policy in zip(axes.lines, ("vanilla", "dynamic"), strict=True):
        rows = own[own.policy == policy].sort_values("hog_count")
        assert list(line.get_xdata()) == [1, 2]
        assert list(line.get_ydata()) == list(rows["mean"])
    assert axes.get_ylabel().startswith("latency mean (us)")
    [ratios] = found.plot("hog_count", y="ratio", where={"interval_us": 1000}).axes
    assert len(ratios.lines) == 1 and "ratio to the baseline" in ratios.get_ylabel()
