"""Run the tests of replays with other versions of torch.

    python tools/other_torch.py 2.6.0 2.9.1

Each is installed in a virtual environment of its own, in a temporary folder: several gigabytes
where torch comes with CUDA. Prints a line for each version, and exits with 1 if one fails.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

HOME = Path(__file__).parents[1]
PACKAGES = (
    "numpy",
    "llvmlite",
    "safetensors",
    "pytest",
    "pytest-xdist",
    "pytest-timeout",
    "hypothesis",
)


def outcome_of(version: str, folder: str) -> tuple[bool, str]:
    """Run the tests with a version of torch; return whether they pass, and the last line."""
    venv.create(folder, with_pip=True)
    python = Path(folder, "bin", "python")
    install = [python, "-m", "pip", "install", "-q", f"torch=={version}", *PACKAGES]
    subprocess.run(install, check=True)
    files = sorted(HOME.glob("tests/*/test_*replay*.py"))
    command = [python, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", *files]
    environment = {**os.environ, "PYTHONPATH": str(HOME / "src")}
    process = subprocess.run(
        command, cwd=HOME, env=environment, capture_output=True, text=True, check=False
    )
    return not process.returncode, (process.stdout.strip() or process.stderr).splitlines()[-1]


def main() -> int:
    parser = argparse.ArgumentParser(description="Tests of replays with other versions of torch.")
    parser.add_argument("versions", nargs="+")
    failed = False
    for version in parser.parse_args().versions:
        with tempfile.TemporaryDirectory() as folder:
            has_passed, summary = outcome_of(version, folder)
        sys.stdout.write(f"torch {version}: {'passed' if has_passed else 'failed'}, {summary}\n")
        sys.stdout.flush()
        failed = failed or not has_passed
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
