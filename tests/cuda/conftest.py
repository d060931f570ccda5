"""Tests of the engine for GPUs, which need Triton: `pip install 'thalweg[triton]'`.

Those of its programs run in Triton's interpreter, `TRITON_INTERPRET=1 pytest tests/cuda`; those of
what it compiles run without that, for Triton reads it once in a process.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from typing import Any

import pytest

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = importlib.util.find_spec("triton") is None
    for item in items:
        if "/tests/cuda/" not in item.path.as_posix():
            continue
        if missing:
            item.add_marker(pytest.mark.skip(reason="needs Triton"))
        elif ("interpreted" in item.path.stem) != INTERPRETED:
            reason = (
                "runs without TRITON_INTERPRET=1" if INTERPRETED else "needs TRITON_INTERPRET=1"
            )
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session", autouse=True)
def language_is_patched_once() -> Iterator[None]:
    """Triton's interpreter puts its own functions into the language once for each program.

    It does so again wherever a program calls a function, to no effect, in half of its time.
    """
    with pytest.MonkeyPatch.context() as changed:
        if INTERPRETED and importlib.util.find_spec("triton"):
            from triton import language
            from triton.runtime import interpreter

            patch, homes = interpreter._patch_lang, (language, language.core)

            def patch_once(function: Any) -> Any:
                known = {id(each) for each in function.__globals__.values()}
                own = [home for home in homes if id(home) in known]
                is_new = any(language.core.is_builtin(home.load) for home in own)
                return patch(function) if is_new else interpreter._LangPatchScope()

            if hasattr(interpreter, "_LangPatchScope"):  # Triton had other names for it
                changed.setattr(interpreter, "_patch_lang", patch_once)
        yield
