"""The CI script runs all steps and stops at a failing one."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / ".ci" / "run"
STEPS = ["pip", "pytest", "ruff", "mypy"]

pytestmark = pytest.mark.skipif(
    not SCRIPT.exists() or shutil.which("bash") is None,
    reason="a copy without .ci/run, or a system without bash",
)


def write_tool(folder, name, text):
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def run_with(failing, tmp_path):
    """Run the script with tools that only record their calls."""
    tools, calls = tmp_path / "tools", tmp_path / "calls"
    tools.mkdir()
    calls.touch()
    write_tool(tools, "python3", 'mkdir -p "$3/bin" && : > "$3/bin/activate"')
    for name in STEPS:
        code = int(name == failing)
        write_tool(tools, name, f"echo {name} >> {calls}; exit {code}")
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", str(SCRIPT)], env={"PATH": path, "TMPDIR": str(tmp_path)}, check=False
    )
    return done.returncode, list(dict.fromkeys(calls.read_text().split()))


@pytest.mark.parametrize("failing", STEPS)
def test_script_stops_at_a_failing_step(failing, tmp_path):
    code, called = run_with(failing, tmp_path)
    assert code != 0
    assert called == STEPS[: STEPS.index(failing) + 1]


def test_script_runs_all_steps(tmp_path):
    assert run_with(None, tmp_path) == (0, STEPS)
