"""Sweeps from Python: the bytes of the command's."""

from pathlib import Path

import pytest

import vcoop

SWEEP = """
name = "python"
scenario = "busy-host-1"
policies = ["vanilla", "dynamic"]
[set]
duration = "20ms"
warmup = "1ms"
"policy.dynamic.repay" = false
[repeats]
min = 2
[axes]
"load.hog.count" = { from = 1, to = 5, points = 5 }
"vm.guest.task.cyclictest.interval" = ["500us", "1ms", "2ms", "4ms"]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "s.toml"
    path.write_text(SWEEP)
    return path


def contents(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in out.iterdir()}


def test_a_sweep_is_a_table(file: Path, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    found = vcoop.sweep(file, tmp_path / "out", progress=lambda *at: told.append(at))
    assert (found.points, found.failed, found.failure) == (20, 0, None)
    assert told[-1] == (20, 20) and len(told) == 20
    frame = found.to_pandas()
    assert sorted(frame["point"].unique()) == list(range(20))
    latency = frame[(frame.probe == "guest.cyclictest") & (frame.metric == "latency")]
    by_policy = latency.groupby("policy")["mean"].mean()
    assert by_policy["dynamic"] < by_policy["vanilla"]
    assert set(latency["interval_us"]) == {500.0, 1000.0, 2000.0, 4000.0}
    assert found.to_polars().height == len(frame)


def test_jobs_and_a_second_call_change_nothing(file: Path, tmp_path: Path) -> None:
    vcoop.sweep(file, tmp_path / "one", jobs=1)
    vcoop.sweep(file, tmp_path / "two", jobs=2)
    before = contents(tmp_path / "one")
    assert before == contents(tmp_path / "two")
    assert vcoop.sweep(file, tmp_path / "one").points == 20
    assert contents(tmp_path / "one") == before


def test_an_error_in_progress_stops_it_and_keeps_what_is_done(file: Path, tmp_path: Path) -> None:
    def refuse(done: int, _: int) -> None:
        if done == 3:
            raise LookupError("enough")

    with pytest.raises(LookupError):
        vcoop.sweep(file, tmp_path / "out", jobs=1, progress=refuse)
    told: list[int] = []
    vcoop.sweep(file, tmp_path / "out", jobs=1, progress=lambda done, _: told.append(done))
    assert told[0] >= 4, "what was done is not done again"
    vcoop.sweep(file, tmp_path / "whole")
    assert contents(tmp_path / "whole") == contents(tmp_path / "out")


def test_folders_of_others_are_refused(file: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("precious")
    with pytest.raises(vcoop.FolderError, match="nothing was overwritten"):
        vcoop.sweep(file, tmp_path / "mine")
    with pytest.raises(ValueError, match="neither"):
        vcoop.sweep(file, tmp_path / "out", engine="slurm")
