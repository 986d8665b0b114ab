"""Sweeps on a real Ray cluster of two nodes on this machine. Left out where Ray is not installed."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import vcoop

ray: Any = pytest.importorskip("ray")

SWEEP = """
name = "cluster"
scenario = "busy-host-1"
policies = ["vanilla", "dynamic"]
[set]
duration = "100ms"
warmup = "1ms"
[repeats]
min = 3
[axes]
"load.hog.count" = { from = 1, to = 10, points = 10 }
"vm.guest.task.cyclictest.interval" = { from = "300us", to = "3ms", points = 6, scale = "log" }
"""

POINTS = 60


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes of one CPU each, as two machines would be, ended when the tests are."""
    from ray.cluster_utils import Cluster

    # Ray's workers are nice (15): beside other work of the machine they would hardly run.
    os.environ["RAY_worker_niceness"] = "0"
    nodes = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "object_store_memory": 100 << 20, "include_dashboard": False},
    )
    nodes.add_node(num_cpus=1, object_store_memory=100 << 20)
    nodes.wait_for_nodes()
    yield nodes
    ray.shutdown()
    nodes.shutdown()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "s.toml"
    path.write_text(SWEEP)
    return path


def contents(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in out.iterdir()}


def test_the_bytes_are_those_of_the_local_engine(cluster: Any, file: Path, tmp_path: Path) -> None:
    vcoop.sweep(file, tmp_path / "here")
    found = vcoop.sweep(
        file, tmp_path / "there", engine="ray", address=cluster.address, batch_seconds=0.3
    )
    assert (found.points, found.failed) == (POINTS, 0)
    assert len([n for n in ray.nodes() if n["Alive"]]) == 2
    assert contents(tmp_path / "here") == contents(tmp_path / "there")


def workers() -> list[int]:
    """Processes that run batches: Ray names them after their task."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if b"ray::_work" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def test_a_killed_worker_costs_nothing_but_time(cluster: Any, file: Path, tmp_path: Path) -> None:
    # Long enough to be met at work on any machine.
    file.write_text(SWEEP.replace('"100ms"', '"4s"'))
    killed: list[int] = []
    over = threading.Event()

    def kill() -> None:
        while not over.is_set() and len(killed) < 2:
            for pid in workers()[:1]:
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
                time.sleep(0.3)
            time.sleep(0.02)

    thread = threading.Thread(target=kill)
    thread.start()
    counted: list[int] = []
    try:
        vcoop.sweep(
            file,
            tmp_path / "there",
            engine="ray",
            address=cluster.address,
            batch_seconds=0.3,
            progress=lambda done, _: counted.append(done),
        )
    finally:
        over.set()
        thread.join()
    assert killed, "nothing was killed, nothing was tested"
    assert counted == list(range(1, POINTS + 1)), "each point once"
    vcoop.sweep(file, tmp_path / "here")
    assert contents(tmp_path / "here") == contents(tmp_path / "there")


def test_cancelled_it_keeps_what_is_done(cluster: Any, file: Path, tmp_path: Path) -> None:
    def stop(done: int, _: int) -> None:
        if done >= 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        vcoop.sweep(file, tmp_path / "out", engine="ray", address=cluster.address, progress=stop)
    told: list[int] = []
    vcoop.sweep(file, tmp_path / "out", progress=lambda done, _: told.append(done))
    assert told[0] > 10
    vcoop.sweep(file, tmp_path / "whole")
    assert contents(tmp_path / "whole") == contents(tmp_path / "out")


def command(*words: object) -> subprocess.CompletedProcess[str]:
    """`vcoop sweep ...`, the binary, with this interpreter for what Ray needs."""
    binary = os.environ.get("VCOOP_BIN")
    if not binary:
        pytest.skip("VCOOP_BIN names no binary")
    env = os.environ | {"VCOOP_PYTHON": sys.executable}
    line = [binary, "sweep", *(str(word) for word in words)]
    return subprocess.run(line, env=env, capture_output=True, text=True, timeout=300, check=False)


def test_the_command_runs_on_the_cluster(cluster: Any, file: Path, tmp_path: Path) -> None:
    ray_words = ("--engine", "ray", "--ray-address", cluster.address)
    there = command(file, "--out", tmp_path / "there", *ray_words, "--json")
    assert there.returncode == 0, there.stderr
    here = command(file, "--out", tmp_path / "here", "--json")
    assert here.returncode == 0, here.stderr
    assert contents(tmp_path / "here") == contents(tmp_path / "there")
    summaries = [json.loads(done.stdout) | {"out": None} for done in (here, there)]
    assert summaries[0] == summaries[1], "the same summary"
    assert summaries[0]["done"] == POINTS
    # Complete already: said at once, and nothing is written anew.
    again = command(file, "--out", tmp_path / "there", *ray_words, "--quiet")
    assert (again.returncode, again.stdout.splitlines()[0].split()[1]) == (0, str(POINTS))


def test_the_command_loses_nothing_where_no_cluster_is(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ray_words = ("--engine", "ray", "--ray-address", "127.0.0.1:1")
    nowhere = command(file, "--out", out, *ray_words)
    assert nowhere.returncode == 3
    assert "no Ray cluster at 127.0.0.1:1" in nowhere.stderr and "remedy" in nowhere.stderr
    assert not out.exists(), "nothing was begun"

    def stop(done: int, _: int) -> None:
        if done >= 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        vcoop.sweep(file, out, progress=stop)
    before = contents(out)
    assert command(file, "--out", out, *ray_words).returncode == 3
    assert contents(out) == before
    assert command(file, "--out", out, "--quiet").returncode == 0


def test_no_cluster_is_a_sentence(file: Path, tmp_path: Path) -> None:
    if ray.is_initialized():
        ray.shutdown()
    with pytest.raises(vcoop.MissingError, match="no Ray cluster at 127.0.0.1:1"):
        vcoop.sweep(file, tmp_path / "out", engine="ray", address="127.0.0.1:1")
    assert not (tmp_path / "out").exists(), "nothing was begun"


def test_who_listens_and_is_not_ray_is_found_out_soon(file: Path, tmp_path: Path) -> None:
    for says in (b"", b"220 mail.example.org ESMTP\r\n"):
        with socket.create_server(("127.0.0.1", 0)) as server:
            here = f"127.0.0.1:{server.getsockname()[1]}"

            def answer(server: socket.socket = server, says: bytes = says) -> None:
                link, _ = server.accept()
                # Until the other side goes.
                with contextlib.suppress(OSError):
                    link.sendall(says)
                    while link.recv(1 << 16):
                        pass

            threading.Thread(target=answer, daemon=True).start()
            began = time.monotonic()
            with pytest.raises(vcoop.MissingError, match="does not answer as Ray does"):
                vcoop.sweep(file, tmp_path / "out", engine="ray", address=here)
            assert time.monotonic() - began < 30
    assert not (tmp_path / "out").exists(), "nothing was begun"
