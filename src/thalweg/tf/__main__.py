"""`python -m thalweg.tf script.py`: run a script that imports tensorflow, as it is."""

from __future__ import annotations

import argparse
import importlib
import runpy
import sys
from pathlib import Path

from thalweg.tf.install import install_as_tensorflow

_DESCRIPTION = "Run a Python script that imports tensorflow with thalweg.tf in its place."


def main(arguments: list[str]) -> None:
    """Parse the command line `arguments`; run the script with `thalweg.tf` as tensorflow."""
    parser = argparse.ArgumentParser("python -m thalweg.tf", description=_DESCRIPTION)
    parser.add_argument(
        "--version",
        type=int,
        choices=(1, 2),
        help="1 for a script of TensorFlow 1, with graphs and sessions; 2 for TensorFlow 2, and"
        " scripts that import tensorflow.compat.v1; by default told by the names in the script",
    )
    parser.add_argument("script", help="its path")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="what the script is given")
    options = parser.parse_args(arguments)
    install_as_tensorflow(options.version or _version_of(options.script))
    sys.argv = [options.script, *options.arguments]
    sys.path[0] = str(Path(options.script).resolve().parent)
    runpy.run_path(options.script, run_name="__main__")


def _version_of(script: str) -> int:
    # Imported late, because it needs all of `tf`.
    scanning = importlib.import_module("thalweg._cli.scan.script")
    try:
        return scanning.version_of(script)
    except scanning.ScanError:
        # Python's own error describes the script better.
        return 2


if __name__ == "__main__":
    main(sys.argv[1:])
