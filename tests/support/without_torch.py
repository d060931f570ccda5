"""Programs with `thalweg._formats` but without torch: what the package imports is left out."""

from __future__ import annotations

import sys
from pathlib import Path

import thalweg

_BARE = """
import sys, types
package = types.ModuleType("thalweg")
package.__path__ = [{source!r}]
sys.modules["thalweg"] = package
"""


def command(program: str, *arguments: str) -> list[str]:
    source = str(Path(thalweg.__file__).parent)
    text = _BARE.format(source=source) + program
    return [sys.executable, "-I", "-S", "-c", text, *arguments]
