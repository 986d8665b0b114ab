"""Cooperative vCPU scheduling: run scenarios and sweeps on the simulator.

``run`` gives one scenario's `Result`, ``sweep`` the `SweepResult` of a scenario at many points. Both
have views as Arrow tables and as pandas and polars frames, in which a row is one series: one policy, one
probe and one metric (at one point).

Every row has a ``unit`` for its numbers: ``us`` for latencies, ``1/s``, ``%``, ``cpu`` (CPU time a
second) and others for the rest. Ratios have none. The same scenario, seed and version give the same
numbers on every machine.

>>> import vcoop
>>> result = vcoop.run("busy-host-1", policies=["vanilla", "dynamic"], duration="1s", repeats=5)
>>> frame = result.to_pandas()
>>> late = frame[(frame.probe == "guest.cyclictest") & (frame.metric == "latency")]
>>> late[["policy", "unit", "mean", "p99"]]  # doctest: +SKIP
"""

from __future__ import annotations

from ._errors import MissingError
from ._native import VERSION as __version__
from ._native import FolderError, ScenarioError, scenarios
from ._result import Result, run
from ._sweep import SweepResult, sweep

__all__ = [
    "FolderError",
    "MissingError",
    "Result",
    "ScenarioError",
    "SweepResult",
    "__version__",
    "run",
    "scenarios",
    "sweep",
]
