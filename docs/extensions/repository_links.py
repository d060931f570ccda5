"""Links of the pages to files of the repository lead to where that is published."""

from __future__ import annotations

import re
import tomllib
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SOURCE = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"]
_LINK = re.compile(r"\]\((\.\.?/[^)#\s]+)(#[^)\s]+)?\)")


def publish(app: Any, docname: str, source: list[str]) -> None:
    """Replace paths that leave the documentation; of one to no file Sphinx warns."""
    folder = (Path(app.srcdir) / docname).parent

    def address(match: re.Match[str]) -> str:
        target = (folder / match[1]).resolve()
        if target.is_relative_to(app.srcdir) or not target.exists():
            return match[0]
        return f"]({SOURCE}/blob/main/{target.relative_to(ROOT)}{match[2] or ''})"

    source[0] = _LINK.sub(address, source[0])


def resolve(domain: str, info: dict[str, str]) -> str | None:
    """Where the source of a documented object is, for `sphinx.ext.linkcode`."""
    if domain != "py" or not info["module"].startswith("thalweg"):
        return None
    module = _defining_module(info["module"], info["fullname"])
    path = ROOT / "src" / module.replace(".", "/")
    found = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return f"{SOURCE}/blob/main/{found.relative_to(ROOT)}" if found.exists() else None


def _defining_module(module: str, name: str) -> str:
    """Return the module with the code of an object that may be exported from another one."""
    try:
        found = attrgetter(name)(import_module(module))
    except (ImportError, AttributeError):
        return module
    function = found if hasattr(found, "__globals__") else getattr(found, "__init__", None)
    home = getattr(function, "__globals__", {}).get("__name__", module)
    return home if home.startswith("thalweg") else module


def setup(app: Any) -> dict[str, bool]:
    """What Sphinx calls."""
    app.connect("source-read", publish)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
