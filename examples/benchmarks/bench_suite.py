"""The test command of the README on a fresh clone, in a new environment.

    python examples/benchmarks/bench_suite.py [--out DIR]

Clones the last commit, installs it with pip, and runs pytest. The result is
``suite_x86_64.json`` or ``suite_aarch64.json``, by the processor.
"""

import argparse
import platform
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _machine import write

ROOT = Path(__file__).parents[2]


def run(command, cwd):
    """Run a command; return its output and its seconds. It must succeed."""
    start = time.perf_counter()
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout[-3000:]}{done.stderr}")
    return done.stdout, time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        clone, programs = Path(folder) / "clone", Path(folder) / "venv" / "bin"
        run(["git", "clone", "--quiet", str(ROOT), str(clone)], cwd=folder)
        run([sys.executable, "-m", "venv", str(programs.parent)], cwd=folder)
        install = [str(programs / "pip"), "install", "-e", ".[test]"]
        _, installing = run(install, cwd=clone)
        printed, testing = run([str(programs / "pytest")], cwd=clone)
    counts = re.findall(r"(\d+) (passed|skipped|failed)", printed.splitlines()[-1])
    numbers = {kind: int(count) for count, kind in counts}
    numbers |= {"install_seconds": installing, "test_seconds": testing}
    write(f"suite_{platform.machine()}", numbers, options.out)


if __name__ == "__main__":
    main()
