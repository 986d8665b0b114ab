"""Builds and tests the package in an environment of its own, under target/.

``prepare`` makes the environment and installs what pyproject.toml names for tests; ``prepare ray`` Ray too;
``test`` and ``test ray`` build, install, test, and end with a line that `cargo xtask` counts. Everything has an end:
a network or a cluster that hangs costs minutes.
"""

import os
import shutil
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ElementTree
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUILT = Path(os.environ.get("CARGO_TARGET_DIR", HERE.parent / "target")).resolve()
TARGET = BUILT / "python"
VENV = TARGET / "venv"
PYTHON = VENV / "bin" / "python"


# Seconds for packages, Ray's apart, and for tests.
INSTALL = (900, 300)
TEST = (1200, 420)


def run(*command: object, **more: object) -> int:
    """Run a command; its exit code."""
    words = [str(word) for word in command]
    try:
        return subprocess.run(words, check=False, **more).returncode
    except subprocess.TimeoutExpired as late:
        print(f"{words[0]}: ended after {late.timeout:.0f} s without a result", file=sys.stderr)
        return 1


def prepare(with_ray: bool) -> int:
    """Make the environment; it is kept, so a second time costs nothing."""
    if not PYTHON.exists() and run(sys.executable, "-m", "venv", VENV) != 0:
        return 1
    project = tomllib.loads((HERE / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    wanted = project["build-system"]["requires"] + extras["test"] + project["dependency-groups"]["foreign"]
    wanted += extras["ray"] if with_ray else []
    # What the tests import is compiled then; all that there is takes half of the installation.
    pip = [PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    return run(*pip, *wanted, timeout=INSTALL[with_ray])


def install() -> int:
    """Install what a wheel has, with the native half out of the workspace's build.

    maturin would build the one package alone, with other features than the workspace: most crates a second
    time. It makes the metadata, which holds pyproject.toml against its rules. The command comes along, for it
    hands sweeps over to the package.
    """
    # As `cargo xtask test` has built it.
    workspace = os.environ.get("VCOOP_BUILD", "--workspace").split()
    build = ["cargo", "build", "--quiet", *workspace, "--lib", "--test", "foreign"]
    if run(*build, cwd=HERE.parent) != 0:
        return 1
    site = next(VENV.glob("lib/python*/site-packages"))
    metadata = f"import maturin; maturin.prepare_metadata_for_build_wheel({str(site)!r})"
    path = f"{VENV / 'bin'}{os.pathsep}{os.environ['PATH']}"
    quiet = {"env": os.environ | {"PATH": path}, "stdout": subprocess.DEVNULL}
    if run(PYTHON, "-c", metadata, cwd=HERE, **quiet) != 0:
        return 1
    shutil.rmtree(site / "vcoop", ignore_errors=True)
    shutil.copytree(HERE / "vcoop", site / "vcoop", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    shutil.copy(BUILT / "debug" / "lib_native.so", site / "vcoop" / "_native.abi3.so")
    return 0


def test(with_ray: bool) -> int:
    """Install into the environment and run the tests."""
    if install() != 0:
        return 1
    env = os.environ | {"VCOOP_BIN": str(BUILT / "debug" / "vcoop")} if with_ray else None
    report = TARGET / "pytest.xml"
    report.unlink(missing_ok=True)
    tests = HERE / "tests"
    ray = [tests / "test_ray.py"] if with_ray else [f"--ignore={tests / 'test_ray.py'}", tests]
    # The program and not the module, and elsewhere: both would find the package in this folder, which has no
    # native half. So would Ray's workers.
    command = [VENV / "bin" / "pytest", "-q", f"--config-file={HERE / 'pyproject.toml'}"]
    command += [f"--rootdir={HERE}", f"--junit-xml={report}", *ray]
    code = run(*command, cwd=TARGET, env=env, timeout=TEST[with_ray])
    if report.exists():
        counts = [suite.attrib for suite in ElementTree.parse(report).iter("testsuite")]
        count = lambda key: sum(int(c.get(key, 0)) for c in counts)  # noqa: E731
        failed = count("failures") + count("errors")
        passed = count("tests") - failed - count("skipped")
        for case in ElementTree.parse(report).iter("testcase"):
            for skipped in case.iter("skipped"):
                print(f"test {case.get('name')} ... ignored ({skipped.get('message')})")
        print(f"test result: {'ok' if code == 0 else 'FAILED'}. {passed} passed; {failed} failed")
    return code


if __name__ == "__main__":
    what, ray = sys.argv[1], "ray" in sys.argv[2:]
    sys.exit({"prepare": prepare, "test": test}[what](ray))
