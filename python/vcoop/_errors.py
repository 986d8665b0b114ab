"""Errors that are not about a scenario or a folder, and arguments that calls share."""

from __future__ import annotations

import os


class MissingError(RuntimeError):
    """A package, a cluster or another facility is missing. The message has the remedy."""


MissingError.__module__ = "vcoop"


def need(module: str, extra: str) -> object:
    """Import an optional package, or say how to get it."""
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingError(
            f"{module} is not installed\n  remedy: pip install 'vcoop[{extra}]'"
        ) from error


def threads(jobs: int | None) -> int:
    """So many threads, or one a CPU."""
    if jobs is None:
        return os.cpu_count() or 1
    if not isinstance(jobs, int):
        raise TypeError(f"jobs={jobs!r}: give a whole number")
    if jobs < 1:
        raise ValueError(f"jobs={jobs}: nothing would run; give 1 or more")
    return jobs
