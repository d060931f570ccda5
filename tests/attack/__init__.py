"""Attacks: generators of what goes wrong outside, each with a judge that tells what must not.

`python tests/attack/run.py` runs them and prints a line of figures each; docs/reliability.md tells
what they try. An attack is a module with `SUMMARY`, in words, and `attack(long, seed)`.
"""

import importlib
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "support"))  # pytest is told of it by its settings

ATTACKS = (
    "layouts",
    "changes",
    "interruptions",
    "caches",
    "states",
    "torch_states",
    "beside_torch",
    "files",
    "commits",
    "kills",
    "bundles",
    "keras_files",
    "restores",
    "resealed",
    "package_states",
)


def load(name: str) -> Any:
    return importlib.import_module(f"{__name__}.{name}")
