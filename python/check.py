"""Builds and tests the package in an environment of its own, under target/.

``prepare`` makes the environment and installs what pyproject.toml names; ``prepare ray`` Ray too;
``test`` and ``test ray`` build, test, and end with a line that `cargo xtask` counts. Everything has an end:
a network or a cluster that hangs costs minutes.
"""

import os
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ElementTree
from pathlib import Path

HERE = Path(__file__).resolve().parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", HERE.parent / "target")).resolve() / "python"
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
    wanted = project["build-system"]["requires"] + extras["test"]
    wanted += extras["ray"] if with_ray else []
    pip = [PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    return run(*pip, *wanted, timeout=INSTALL[with_ray])


def test(with_ray: bool) -> int:
    """Build into the environment and run the tests."""
    env = os.environ | {"VIRTUAL_ENV": str(VENV), "CARGO_TARGET_DIR": str(TARGET)}
    env["PATH"] = f"{VENV / 'bin'}{os.pathsep}{env['PATH']}"
    develop = [VENV / "bin" / "maturin", "develop", "--quiet"]
    if run(*develop, cwd=HERE, env=env) != 0:
        return 1
    if with_ray:
        # The command hands sweeps over to the package: that is tried, too. Its tests need it as well: so it
        # has the features of the other tests' build, and nothing is built twice.
        build = ["cargo", "test", "--quiet", "--workspace", "--no-run", "--test", "foreign"]
        if run(*build, cwd=HERE.parent, env=env | {"CARGO_TARGET_DIR": str(TARGET.parent)}) != 0:
            return 1
        env["VCOOP_BIN"] = str(TARGET.parent / "debug" / "vcoop")
    report = TARGET / "pytest.xml"
    report.unlink(missing_ok=True)
    ray = ["tests/test_ray.py"] if with_ray else ["--ignore=tests/test_ray.py", "tests"]
    command = [PYTHON, "-m", "pytest", "-q", f"--junit-xml={report}", *ray]
    code = run(*command, cwd=HERE, env=env, timeout=TEST[with_ray])
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
