"""Each room knows only the rooms below it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import thalweg

SOURCE = Path(thalweg.__file__).parent

# From the bottom up; a module may import its own layer and those before it.
LAYERS = (
    ("errors", "getters", "variable", "indexed_slices", "autodiff", "scalars"),
    ("graph",),
    ("formula", "rules"),
    ("engines",),
    ("schedules", "core"),
    ("keras", "v1"),
    ("openseq2seq",),
    ("integrations",),
    ("tf",),
    ("catalogue",),
    ("race", "bench"),
    ("cli", "__main__"),
)
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
MODULES = sorted(SOURCE.rglob("*.py"))


def _room(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def _imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names if node.module == "thalweg" else {node.module}
    parts = [name.split(".") for name in found]
    return {part[1] for part in parts if part[0] == "thalweg" and len(part) > 1}


def test_every_room_has_a_layer() -> None:
    rooms = {_room(path) for path in MODULES} - {"__init__"}
    assert rooms <= set(LEVEL)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_nothing_imports_upwards(path: Path) -> None:
    room = _room(path)
    if room == "__init__":
        return
    above = {other for other in _imports(path) if LEVEL.get(other, 0) > LEVEL[room]}
    assert not above, f"{path.name} is in {room!r} and imports {sorted(above)}"


@pytest.mark.parametrize("path", sorted((SOURCE / "engines").glob("*.py")), ids=lambda p: p.stem)
def test_engines_know_no_rule(path: Path) -> None:
    assert "rules" not in _imports(path)


FACES = [
    path
    for face in ("keras", "v1", "openseq2seq")
    for path in sorted((SOURCE / face).rglob("*.py"))
]


@pytest.mark.parametrize("path", FACES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_faces_leave_memory_to_the_step(path: Path) -> None:
    inner = re.findall(r"from thalweg\.engines\.(\w+) import", path.read_text())
    assert set(inner) <= {"selection"}


@pytest.mark.parametrize("path", sorted((SOURCE / "rules").glob("*.py")), ids=lambda p: p.stem)
def test_rules_are_mathematics_only(path: Path) -> None:
    assert _imports(path) <= {"formula", "rules"}
