"""Cooperative vCPU scheduling: run scenarios and sweeps on the simulator.

Units are in names or beside values: latencies are microseconds unless a ``unit`` column says
otherwise. The same scenario, seed and version give the same numbers everywhere.
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
