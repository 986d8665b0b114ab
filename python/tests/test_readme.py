"""What the README and the tutorial show, works."""

import re
import runpy
from pathlib import Path

import pytest

HERE = Path(__file__).parents[1]
README = HERE / "README.md"


def test_the_code_of_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    assert len(blocks) == 4
    assert len(names["rows"]) > 0
    printed = capsys.readouterr().out
    assert "dynamic" in printed and "p99" in printed
    assert all((tmp_path / name).stat().st_size > 0 for name in ("latency.svg", "p99-by-hogs.svg"))


def test_the_tutorial_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names = runpy.run_path(str(HERE / "examples" / "tutorial.py"))
    assert "dynamic" in capsys.readouterr().out
    # What its text says of the numbers.
    p99 = names["p99"]
    assert p99["dynamic"] < p99["vanilla"] / 3
    assert names["study"].failed == 0
    assert all(path.stat().st_size > 0 for path in tmp_path.glob("*.svg"))
    assert len(list(tmp_path.glob("*.svg"))) == 3
