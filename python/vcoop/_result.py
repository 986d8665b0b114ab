"""One scenario: run it, look at it."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import _native, _plot
from ._errors import need, threads

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow
    from matplotlib.figure import Figure

_NUMBERS = ("mean", "p50", "p90", "p99", "p999", "p9999")
_RATIOS = ("mean", "p50", "p99", "p999")


def _toml(value: object) -> str:
    """A value as an override has it; words need no quotes there."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        entries = (f"{json.dumps(key)} = {_item(item)}" for key, item in value.items())
        return "{ " + ", ".join(entries) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_item(v) for v in value) + "]"
    return str(value)


def _item(value: object) -> str:
    return json.dumps(value) if isinstance(value, str) else _toml(value)


def _text(scenario: str | os.PathLike[str]) -> tuple[str, str]:
    """Name and text of a scenario: a built-in name, or a file."""
    name = os.fspath(scenario)
    if "/" not in name and not name.endswith(".toml"):
        text = _native.builtin(name)
        if text is not None:
            return name, text
        if not Path(name).exists():
            known = _native.scenarios()
            near = difflib.get_close_matches(name, known, 1)
            meant = f"did you mean `{near[0]}`? " if near else ""
            raise _native.ScenarioError(
                f"no scenario and no file `{name}`; {meant}built-in scenarios: {', '.join(known)}"
            )
    return name, _native.read_text(name)


def _changes(name: str, given: object) -> Mapping[str, object]:
    """An argument that has names and values."""
    if not isinstance(given, Mapping):
        raise TypeError(f"{name}={given!r}: give a dict, as {{{_EXAMPLES[name]}}}")
    for path, value in given.items():
        if value is None:
            raise _native.ScenarioError(f"{name}: {path} is None; leave it out, or give a value")
    return given


_EXAMPLES = {"set": '"host.pcpus": 8', "may_cost": '"p99": "2x"', "overrides": '"seed": 2'}


def _policies(given: Iterable[str] | None) -> list[str] | None:
    """Names of policies."""
    if given is None:
        return None
    names = [] if isinstance(given, str) else list(given)
    if not names:
        raise TypeError(f'policies={given!r}: give a list of names, as ["vanilla", "dynamic"]')
    return names


def run(
    scenario: str | os.PathLike[str],
    *,
    policies: list[str] | None = None,
    set: dict[str, object] | None = None,  # noqa: A002
    may_cost: dict[str, str] | None = None,
    jobs: int | None = None,
    **overrides: object,
) -> Result:
    """Run a scenario on the simulator, without holding the interpreter's lock.

    Example: ``run("busy-host-1", policies=["vanilla", "dynamic"], duration="1s").to_pandas()``.

    Args:
        scenario: Path of a scenario file, or name of a built-in one (`vcoop.scenarios()`).
        policies: Policies to compare instead of the scenario's, including the baseline.
        set: Fields to change, by path: ``{"host.pcpus": 8, "vm.guest.task.cyclictest.interval": "1ms"}``.
        may_cost: What the best policy may cost others, as ``--may-cost`` has it:
            ``{"p99": "2x", "work": "0.9x"}``.
        jobs: Number of threads. Results do not depend on it. Default: one for each CPU.
        **overrides: Fields at the top level: ``duration="1s"``, ``warmup="100ms"``, ``repeats=10``,
            ``seed=2``. Times are texts with a unit.

    Returns:
        What was measured. Latencies are microseconds.

    Raises:
        ScenarioError: The scenario or a change is wrong; the message says where, and what is allowed.
        FileNotFoundError: There is no such file.
    """
    name, text = _text(scenario)
    changes = {**_changes("set", set or {}), **_changes("overrides", overrides)}
    sets = [f"{path}={_toml(value)}" for path, value in changes.items()]
    limits = [f"{key}={limit}" for key, limit in _changes("may_cost", may_cost or {}).items()]
    document = _native.run(name, text, sets, _policies(policies), limits, threads(jobs))
    return Result(json.loads(document))


class Result:
    """What a run measured: the document of ``vcoop run --json``, and views of it.

    Attributes:
        document: The whole document, schema ``vcoop.result/1`` (docs: "The report", result.json).
    """

    def __init__(self, document: dict[str, Any]) -> None:
        """Take a parsed ``vcoop.result/1`` document, from ``run`` or from a file."""
        self.document = document

    @property
    def series(self) -> list[dict[str, Any]]:
        """Every series as the document has it: one for each (backend, cell, policy, probe, metric).

        Numbers have the unit that ``unit`` names; ``..._ci95`` are pairs. A latency's ``detail`` has its
        distribution: ``count`` samples of at most ``le_us`` microseconds, in lists of equal length.
        """
        return self.document["series"]

    @property
    def verdicts(self) -> list[str]:
        """The verdict in words, a text for each cell of the matrix: the best policy, and what it costs."""
        return [verdict["text"] for verdict in self.document["verdicts"]]

    def rows(self) -> list[dict[str, Any]]:
        """One flat row for each (cell, policy, probe, metric); all rows have the same keys.

        =============================================  ==========================================
        keys                                           meaning
        =============================================  ==========================================
        coordinates of the cell                        values of the matrix, the unit in the name
        ``policy``, ``probe``, ``metric``              what the row is about
        ``unit``                                       of all numbers below but counts and ratios
        ``repeats``                                    repeats in the row
        ``count``, ``missed``                          samples, and periods without one (latency)
        ``min``, ``max``                               extremes (latency)
        ``mean``, ``p50``, ``p90``, ``p99``,           latency; each with ``_lo`` and ``_hi``, the
        ``p999``, ``p9999``                            ends of its 95 % interval over repeats
        ``value``                                      any other metric, with ``_lo`` and ``_hi``
        ``ratio``, ``ratio_lo``, ``ratio_hi``          to the baseline policy, as ``vcoop run`` has it
        ``ratio_of``                                   of what: ``"p99"``, ``"mean"``, ``"value"``
        ``ratio_mean``, ``ratio_p50``, ``ratio_p99``,  each ratio of a latency, with ``_lo`` and
        ``ratio_p999``                                 ``_hi``
        =============================================  ==========================================

        A number that does not exist is ``None``, such as a quantile with fewer than ten samples beyond it.
        """
        return [self._row(series) for series in self.series]

    @staticmethod
    def _row(series: dict[str, Any]) -> dict[str, Any]:
        names = ("policy", "probe", "metric", "unit", "repeats")
        row = {**series["params"], **{key: series[key] for key in names}}
        for key in ("count", "missed", "min", "max"):
            row[key] = series.get(key)
        for key in ("value", *_NUMBERS):
            low, high = series.get(f"{key}_ci95") or (None, None)
            row |= {key: series.get(key), f"{key}_lo": low, f"{key}_hi": high}
        ratio, interval = series.get("ratio_to_baseline"), series.get("ratio_ci95")
        of = None if ratio is None else "value"
        ratios = ratio if isinstance(ratio, dict) else {}
        intervals = interval if isinstance(interval, dict) else {}
        for key in _RATIOS:
            low, high = intervals.get(key) or (None, None)
            name = f"ratio_{key}"
            row |= {name: ratios.get(key), f"{name}_lo": low, f"{name}_hi": high}
        if ratios:
            of = "mean" if ratios.get("p99") is None else "p99"
            ratio, interval = ratios[of], intervals.get(of)
        low, high = interval or (None, None)
        return row | {"ratio": ratio, "ratio_lo": low, "ratio_hi": high, "ratio_of": of}

    def to_arrow(self) -> pyarrow.Table:
        """`rows()` as an Arrow table: a row for each series, a column for each key. Needs ``vcoop[arrow]``."""
        return need("pyarrow", "arrow").Table.from_pylist(self.rows())  # type: ignore[attr-defined]

    def to_pandas(self) -> pandas.DataFrame:
        """`rows()` as a pandas frame: a row for each series, a column for each key. Needs ``vcoop[pandas]``."""
        return need("pandas", "pandas").DataFrame(self.rows())  # type: ignore[attr-defined]

    def to_polars(self) -> polars.DataFrame:
        """`rows()` as a polars frame: a row for each series, a column for each key. Needs ``vcoop[polars]``."""
        frame = need("polars", "polars").DataFrame  # type: ignore[attr-defined]
        return frame(self.rows(), infer_schema_length=None)

    def plot(self, probe: str | None = None, metric: str = "latency") -> Figure:
        """Draw the policies beside each other, in the colours of the HTML report.

        Needs ``vcoop[plot]``. A latency gets two axes: the share of samples that are later than a
        time, down to ten samples, and mean and quantiles with their 95 % intervals over repeats. Any other
        metric gets one: the values with their intervals, in its own unit. A matrix has a row of
        axes for each cell, up to eight.

        Args:
            probe: Whose series: ``"guest.cyclictest"``, a VM, a load. Default: the first that has the metric.
            metric: ``"latency"``, ``"throughput"``, ``"steal"``, or any other of `rows()`.

        Returns:
            The figure; a notebook shows it, ``figure.savefig("out.svg")`` writes it.

        Raises:
            MissingError: matplotlib is not installed.
            ValueError: There is no such probe or metric, or there are too many cells.
        """
        return _plot.result(self.document, probe, metric)

    def __repr__(self) -> str:
        """The scenario, the policies, and how many series there are."""
        d = self.document
        return f"<vcoop.Result {d['scenario']}: {', '.join(d['policies'])}, {len(self.series)} series>"
