"""One scenario: what a notebook does with it."""

import threading
import time

import pytest

import vcoop

SHORT = {"duration": "400ms", "warmup": "320ms", "repeats": 5}


@pytest.fixture(scope="module")
def result() -> vcoop.Result:
    return vcoop.run("busy-host-1", policies=["vanilla", "dynamic"], **SHORT)


def test_views_have_the_same_rows(result: vcoop.Result) -> None:
    rows = result.rows()
    frame = result.to_pandas()
    assert len(frame) == len(rows) == result.to_polars().height == result.to_arrow().num_rows
    latency = frame[frame.probe == "guest.cyclictest"].query("metric == 'latency'")
    means = latency.set_index("policy")["mean"]
    assert means["dynamic"] < means["vanilla"]
    assert (latency["mean_lo"] <= latency["mean"]).all()
    assert set(latency["unit"]) == {"us"}


def test_the_same_seed_gives_the_same_numbers_and_another_does_not(result: vcoop.Result) -> None:
    again = vcoop.run("busy-host-1", policies=["vanilla", "dynamic"], jobs=1, **SHORT)
    assert again.rows() == result.rows()
    other = vcoop.run("busy-host-1", policies=["vanilla", "dynamic"], seed=2, **SHORT)
    assert other.rows() != result.rows()


def test_fields_are_set_by_path() -> None:
    more = vcoop.run("busy-host-1", policies=["vanilla"], set={"load.hog.count": 6}, **SHORT)
    less = vcoop.run("busy-host-1", policies=["vanilla"], set={"load.hog.count": 1}, **SHORT)

    def mean(result: vcoop.Result) -> float:
        rows = [r for r in result.rows() if r["probe"] == "guest.cyclictest"]
        return next(r["mean"] for r in rows if r["metric"] == "latency")

    assert mean(more) > mean(less)


def test_limits_of_the_verdict_are_those_of_the_command() -> None:
    lax = vcoop.run("busy-host-1", policies=["vanilla"], may_cost={"p99": "2x"}, **SHORT)
    assert lax.document["limits"] == {"mean": 1.1, "p99": 2.0, "missed": 0.01, "work": 0.95}
    with pytest.raises(vcoop.ScenarioError, match="p99=1.25x"):
        vcoop.run("busy-host-1", may_cost={"p98": "2x"}, **SHORT)


def test_mistakes_are_told_with_their_place() -> None:
    with pytest.raises(vcoop.ScenarioError, match="did you mean `pcpus`"):
        vcoop.run("busy-host-1", set={"host.pcpu": 2})
    with pytest.raises(vcoop.ScenarioError, match="did you mean `busy-host`.*built-in scenarios"):
        vcoop.run("busy-hots")
    assert vcoop.ScenarioError.__module__ == vcoop.MissingError.__module__ == "vcoop"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"policies": "vanilla"}, "give a list of names"),
        ({"policies": []}, "give a list of names"),
        ({"set": "host.pcpus=8"}, "give a dict"),
        ({"set": {"host.pcpus": None}}, "host.pcpus is None"),
        ({"may_cost": "p99=2x"}, "give a dict"),
        ({"seed": None}, "seed is None"),
        ({"jobs": "2"}, "give a whole number"),
        ({"jobs": 0}, "give 1 or more"),
    ],
)
def test_arguments_of_a_wrong_kind_are_told(wrong: dict[str, object], says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=says):
        vcoop.run("busy-host-1", **wrong)  # type: ignore[arg-type]


def test_a_table_is_a_dict() -> None:
    changes = {"matrix": {"load.hog.count": [1, 2]}}
    result = vcoop.run("busy-host-1", policies=["vanilla"], set=changes, **SHORT)
    assert {row["hog_count"] for row in result.rows()} == {1, 2}


def test_python_goes_on_while_it_simulates() -> None:
    ticks = []
    over = threading.Event()

    def tick() -> None:
        while not over.is_set():
            ticks.append(time.monotonic())
            time.sleep(0.005)

    thread = threading.Thread(target=tick)
    thread.start()
    began = time.monotonic()
    vcoop.run("busy-host-1", duration="20s", repeats=4, jobs=1)
    took = time.monotonic() - began
    over.set()
    thread.join()
    during = [t for t in ticks if began <= t <= began + took]
    # Held, the lock would let it tick at the ends only.
    assert len(during) > took / 0.005 / 20, (len(during), took)


def test_the_ratio_is_the_one_that_the_command_prints(result: vcoop.Result) -> None:
    for series, row in zip(result.series, result.rows(), strict=True):
        ratios = series.get("ratio_to_baseline")
        if isinstance(ratios, dict):
            assert row["ratio_of"] == ("mean" if ratios.get("p99") is None else "p99")
            assert row["ratio"] == ratios[row["ratio_of"]] == row[f"ratio_{row['ratio_of']}"]
            assert row["ratio_mean"] == ratios["mean"]
        else:
            assert (row["ratio"], row["ratio_mean"]) == (ratios, None)


def test_what_the_command_refuses_is_refused_here() -> None:
    with pytest.raises(ValueError, match="jobs=0"):
        vcoop.run("busy-host-1", jobs=0, **SHORT)
    with pytest.raises(vcoop.ScenarioError, match="`vanilla` twice"):
        vcoop.run("busy-host-1", policies=["vanilla", "vanilla"], **SHORT)
    with pytest.raises(vcoop.ScenarioError, match="a device, not a regular file"):
        vcoop.run("/dev/zero")
    with pytest.raises(FileNotFoundError):
        vcoop.run("./not-there.toml")
