"""A scenario at many points, here or on a cluster; the same bytes either way."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import _native, _plot
from ._errors import need, threads

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow
    from matplotlib.figure import Figure

Progress = Callable[[int, int], object]


@dataclass(frozen=True)
class SweepResult:
    """The folder of a complete sweep.

    A view has one row for each (point, policy, probe, metric). Its columns are ``point``, one for each axis
    (durations in microseconds, ``_us`` in the name), ``policy``, ``probe``, ``metric``, ``unit``, and the
    numbers that `Result.rows` has; docs, "Sweeps", lists all of them.
    """

    out: Path
    """Folder with ``manifest.json`` and ``part-*.parquet``."""
    points: int
    """Number of points in the folder."""
    failed: int
    """Points of this call that failed: their single row has an ``error``."""
    failure: tuple[int, str] | None
    """The first failed point, and the reason."""

    def _parts(self) -> list[str]:
        return sorted(str(path) for path in self.out.glob("part-*.parquet"))

    def to_arrow(self) -> pyarrow.Table:
        """Every row as an Arrow table, in the order of the points. Needs ``vcoop[arrow]``."""
        need("pyarrow", "arrow")
        parquet: Any = need("pyarrow.parquet", "arrow")
        arrow: Any = need("pyarrow", "arrow")
        return arrow.concat_tables([parquet.read_table(part) for part in self._parts()])

    def to_pandas(self) -> pandas.DataFrame:
        """Every row as a pandas frame, in the order of the points. Needs ``vcoop[pandas]``."""
        need("pandas", "pandas")
        return self.to_arrow().to_pandas()

    def to_polars(self) -> polars.DataFrame:
        """Every row as a polars frame, in the order of the points. Needs ``vcoop[polars]``."""
        frames: Any = need("polars", "polars")
        return frames.read_parquet(self._parts())

    def plot(
        self,
        x: str,
        y: str | None = None,
        probe: str | None = None,
        metric: str = "latency",
        where: Mapping[str, object] | None = None,
    ) -> Figure:
        """Draw a number over an axis of the sweep: a line for each policy, its 95 % interval as a band.

        Needs ``vcoop[plot]`` and ``vcoop[arrow]``. Colours are those of the HTML report.

        Args:
            x: Column of the axis, as ``to_arrow().column_names`` has it: ``"hog_count"``, ``"interval_us"``.
            y: Column of the number: ``"p99"``, ``"mean"``, ``"ratio_p99"``, ``"value"``. Its unit is the row's,
                ``us`` for latencies; ratios have none. Default: ``"p99"`` of a latency, else ``"value"``.
            probe: Whose series. Default: the first that has the metric.
            metric: ``"latency"``, ``"throughput"``, ``"steal"``, or any other.
            where: The value of each other axis that has several: ``{"interval_us": 500.0}``.

        Returns:
            The figure; a notebook shows it, ``figure.savefig("out.svg")`` writes it.

        Raises:
            MissingError: matplotlib or pyarrow is not installed.
            ValueError: There is no such axis, column, probe or metric, or another axis varies, too.
        """
        manifest = json.loads((self.out / "manifest.json").read_text())
        rows = self.to_arrow().to_pylist()
        y = y or ("p99" if metric == "latency" else "value")
        return _plot.sweep(manifest, rows, x, y, probe, metric, where or {})


def sweep(
    file: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    engine: str = "local",
    jobs: int | None = None,
    address: str | None = None,
    progress: Progress | None = None,
    batch_seconds: float = 2.0,
) -> SweepResult:
    """Run a sweep file into a folder, or resume one that was stopped.

    Args:
        file: A sweep file (docs: "Sweeps").
        out: Folder of the results. A folder of anything else is refused, never overwritten.
        engine: ``"local"``: threads of this machine; ``"ray"``: an existing Ray cluster.
        jobs: local: number of threads. Default: one for each CPU.
        address: ray: address of the cluster. Default: what Ray finds (``RAY_ADDRESS``).
        progress: Called after each point, with the number of finished points and of all points.
        batch_seconds: ray: seconds of work in one task, by the cost measured so far.

    Returns:
        The folder, with views of its rows.

    Raises:
        ScenarioError: The sweep or its scenario is wrong; the message says where.
        FolderError: ``out`` is not this sweep's.
        MissingError: Ray, or its cluster, is not there. What was done before is kept.
        KeyboardInterrupt: At Ctrl-C. Finished points are kept, and the same call resumes the sweep.
    """
    path = Path(file)
    made = _native.Sweep(str(path), _native.read_text(str(path)))
    count = threads(jobs)
    if engine not in ("local", "ray"):
        raise ValueError(f"engine {engine!r} is neither 'local' nor 'ray'")
    if engine == "ray":
        from . import _ray

        # Before the folder is touched: without a cluster nothing is begun.
        _ray.connect(address)
        data = _native.Dataset(out, made)
        done, failed, failure = _ray.run(made, data, progress, batch_seconds)
    else:
        data = _native.Dataset(out, made)
        done, failed, failure = data.run_here(count, progress)
    return SweepResult(Path(out), done, failed, failure)
