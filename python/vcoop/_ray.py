"""Points as Ray tasks.

Workers compute, the driver writes: a worker that dies has written nothing, its points run again
elsewhere, and a point that comes twice is written once.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from typing import Any

from . import _native
from ._errors import MissingError, need

# Times a batch is tried before its last error is raised.
_TRIES = 5
# Seconds to wait for the next batch before looking at the cluster again.
_PATIENCE = 15
# Seconds that an address has to answer.
_ANSWER = 5
# Most points of a batch.
_MOST = 1024


def connect(address: str | None) -> None:
    """Reach the cluster, unless this process is on it already."""
    ray: Any = need("ray", "ray")
    if ray.is_initialized():
        return
    where = address or os.environ.get("RAY_ADDRESS") or "auto"
    try:
        _answers(where)
        ray.init(address=where, log_to_driver=False, logging_level="error")
    except (ConnectionError, TimeoutError, RuntimeError, ValueError, OSError) as error:
        said = str(error).strip().splitlines()
        raise MissingError(
            f"no Ray cluster at {where}: {said[0] if said else type(error).__name__}\n"
            "  remedy: `ray start --head` on one machine, `ray start --address=...` on the others, or "
            "name another address; what was done before is kept"
        ) from error


def _answers(where: str) -> None:
    """Raise OSError if nobody listens there who could be Ray: Ray itself would try for minutes."""
    host, colon, port = where.rpartition("://")[2].rpartition(":")
    if not (colon and port.isdigit()):
        return
    with socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER) as link:
        if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
            return
        # Ray speaks gRPC, so HTTP/2: who is greeted (RFC 9113, 3.4) says SETTINGS first.
        link.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
        head = b""
        try:
            while len(head) < 9 and (more := link.recv(9 - len(head))):
                head += more
        except TimeoutError:
            pass
        if head[3:4] != b"\x04":
            raise ConnectionError("what listens there does not answer as Ray does")


def _work(
    build: str,
    file: str,
    text: str,
    base: tuple[str, str],
    fingerprint: str,
    points: list[int],
) -> tuple[float, list[str]]:
    """On a worker: seconds it took, and each point as JSON."""
    from vcoop import _native as here

    if here.BUILD != build:
        raise MissingError(
            f"a worker has vcoop {here.BUILD}, the driver {build}\n  remedy: install the same"
        )
    began = time.monotonic()
    sweep = _cached(here, file, text, base)
    if sweep.fingerprint() != fingerprint:
        raise MissingError(
            "a worker sees another capture or profile than the driver\n"
            "  remedy: put the files that the scenario names at the same path on every node"
        )
    rows = sweep.run_points(points)
    return time.monotonic() - began, rows


_sweeps: dict[tuple[str, str, tuple[str, str]], Any] = {}


def _cached(here: Any, file: str, text: str, base: tuple[str, str]) -> Any:
    """The sweep, made once a worker."""
    key = (file, text, base)
    if key not in _sweeps:
        _sweeps.clear()
        _sweeps[key] = here.Sweep(file, text, base)
    return _sweeps[key]


def run(
    sweep: _native.Sweep,
    data: _native.Dataset,
    progress: Callable[[int, int], object] | None,
    batch_seconds: float,
) -> tuple[int, int, tuple[int, str] | None]:
    """Run what is missing of a sweep. Gives points done, failed, and the first failure."""
    ray: Any = need("ray", "ray")
    work = ray.remote(num_cpus=1, max_retries=0)(_work)
    fixed = (_native.BUILD, *sweep.parts(), sweep.fingerprint())
    waiting = data.missing()
    total = len(sweep)
    done = total - len(waiting)
    failed, failure = 0, None
    waiting.reverse()
    again: list[tuple[list[int], int]] = []
    flying: dict[Any, tuple[list[int], int]] = {}
    each = 0.0

    def batch(cpus: int) -> list[int]:
        """The next points: work of so many seconds, and not too far ahead of what is written."""
        most = 1 if each == 0.0 else max(1, min(_MOST, int(batch_seconds / each)))
        # Near the end smaller ones, so that no worker waits for the last.
        most = max(1, min(most, -(-len(waiting) // (2 * cpus))))
        limit = data.frontier() + max(2 * data.part_points(), 4 * cpus * most)
        points = []
        while waiting and len(points) < most and waiting[-1] < limit:
            points.append(waiting.pop())
        return points

    try:
        while waiting or again or flying:
            cpus = max(1, int(ray.cluster_resources().get("CPU", 1)))
            # Two a CPU: one runs, one is on its way.
            while len(flying) < 2 * cpus and (again or waiting):
                points, tries = again.pop() if again else (batch(cpus), 0)
                if not points:
                    break
                flying[work.remote(*fixed, points)] = (points, tries)
            ready, _ = ray.wait(list(flying), num_returns=1, timeout=_PATIENCE)
            for task in ready:
                points, tries = flying.pop(task)
                try:
                    seconds, rows = ray.get(task)
                except (
                    ray.exceptions.WorkerCrashedError,
                    ray.exceptions.NodeDiedError,
                    ray.exceptions.ObjectLostError,
                    ray.exceptions.RaySystemError,
                    ray.exceptions.OutOfMemoryError,
                ):
                    if tries + 1 >= _TRIES:
                        raise
                    again.append((points, tries + 1))
                    continue
                except ray.exceptions.RayTaskError as error:
                    cause = error.cause if isinstance(error.cause, Exception) else error
                    raise cause from error
                each = seconds / max(1, len(points)) if each == 0.0 else (
                    0.7 * each + 0.3 * seconds / max(1, len(points))
                )
                for row in rows:
                    why = data.add(row)
                    if why is not None:
                        failed += 1
                        point = _number(row)
                        if failure is None or point < failure[0]:
                            failure = (point, why)
                    done += 1
                    if progress is not None:
                        progress(done, total)
    finally:
        # Left over after an error or Ctrl-C: nobody waits for them.
        for task in flying:
            ray.cancel(task, force=False)
    return done, failed, failure


def _number(row: str) -> int:
    import json

    return int(json.loads(row)["point"])
