"""Tests of the engine for GPUs, which need Triton: `pip install 'thalweg[triton]'`.

Those of its programs run in Triton's interpreter, `TRITON_INTERPRET=1 pytest tests/cuda`; those of
what it compiles run without that, for Triton reads it once in a process.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip the first test of each file that cannot run here, and deselect the others of it."""
    is_missing = importlib.util.find_spec("triton") is None
    selected_items: list[pytest.Item] = []
    deselected: list[pytest.Item] = []
    skipped_files: set[Path] = set()
    for item in items:
        reason = _reason_to_skip(item.path, is_missing)
        if reason and item.path in skipped_files:
            deselected.append(item)
            continue
        if reason:
            skipped_files.add(item.path)
            item.add_marker(pytest.mark.skip(reason=reason))
        selected_items.append(item)
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        items[:] = selected_items


def _reason_to_skip(path: Path, is_missing: bool) -> str:
    """Return why the tests of a file cannot run, empty if they can."""
    if "/tests/cuda/" not in path.as_posix():
        return ""
    if is_missing:
        return "needs Triton"
    if ("interpreted" in path.stem) != INTERPRETED:
        return "runs without TRITON_INTERPRET=1" if INTERPRETED else "needs TRITON_INTERPRET=1"
    return ""


@pytest.fixture(scope="session", autouse=True)
def language_is_patched_once() -> Iterator[None]:
    """Apply the functions of Triton's interpreter to the language once for each program.

    It does so again wherever a program calls a function, to no effect, in half of its time.
    """
    with pytest.MonkeyPatch.context() as patches:
        if INTERPRETED and importlib.util.find_spec("triton"):
            from triton import language
            from triton.runtime import interpreter

            patch, homes = interpreter._patch_lang, (language, language.core)

            def patch_once(function: Any) -> Any:
                global_ids = {id(global_value) for global_value in function.__globals__.values()}
                patched_homes = [home for home in homes if id(home) in global_ids]
                is_new = any(language.core.is_builtin(home.load) for home in patched_homes)
                return patch(function) if is_new else interpreter._LangPatchScope()

            if hasattr(interpreter, "_LangPatchScope"):  # Triton had other names for it
                patches.setattr(interpreter, "_patch_lang", patch_once)
        yield
