"""Each room knows only the rooms below it, and no two modules need each other."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import thalweg
from many import many

SOURCE = Path(thalweg.__file__).parent

# From the bottom up; a module may import its own layer and those before it.
LAYERS = (
    (
        "errors",
        "variable",
        "indexed_slices",
        "autodiff",
        "fetching",
        "counters",
        "scalars",
        "running",
        "locks",
        "lazily",
        "tracing",
        "static_shape",
        "scattering",
        "switches",
        "tensorflow_names",
    ),
    ("storage",),
    ("formula", "rules"),
    ("engines",),
    ("schedules", "core"),
    ("distribute",),
    ("keras", "optim"),
    ("graph",),
    ("v1",),
    ("openseq2seq",),
    ("integrations",),
    ("tf",),
    ("by_pairs",),
    ("catalogue",),
    ("checkpoint",),
    ("tables", "race", "bench", "scan"),
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


@many("path", MODULES)
def test_nothing_imports_upwards(path: Path) -> None:
    room = _room(path)
    if room == "__init__":
        return
    above = {other for other in _imports(path) if LEVEL.get(other, 0) > LEVEL[room]}
    assert not above, f"{path.name} is in {room!r} and imports {sorted(above)}"


# What stands on TensorFlow's side registers itself with the core, which knows no name of it.
BEYOND = {"graph", "v1", "openseq2seq", "tf"}
NUMBERS = [path for path in MODULES if LEVEL.get(_room(path), 99) <= LEVEL["keras"]]


@many("path", NUMBERS)
def test_nothing_of_the_numbers_knows_a_graph(path: Path) -> None:
    strings = {
        node.value.split(".")[1]
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch(r"thalweg(\.\w+)+", node.value)
    }
    assert not (_imports(path) | strings) & BEYOND


def _title(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)


def _imported(tree: ast.AST, known: set[str]) -> set[str]:
    """The modules among `known` that are imported anywhere, also for type checking alone."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names & known


def _reached(start: str, imports: dict[str, set[str]]) -> set[str]:
    """What `start` imports, directly or by way of others."""
    reached: set[str] = set()
    pending = list(imports[start])
    while pending:
        module = pending.pop()
        if module not in reached:
            reached.add(module)
            pending += imports[module]
    return reached


def _circles(sources: dict[str, str]) -> list[set[str]]:
    """The sets of modules that import each other, however many others lie between."""
    imports = {
        title: _imported(ast.parse(source), set(sources)) for title, source in sources.items()
    }
    reached = {title: _reached(title, imports) for title in imports}
    circles: list[set[str]] = []
    for title in sorted(imports):
        if title in reached[title] and not any(title in circle for circle in circles):
            circles.append({other for other in reached[title] if title in reached[other]})
    return circles


def test_no_modules_import_each_other() -> None:
    # A package's `__init__` lists what its modules offer, and so stands apart from them.
    modules = [path for path in MODULES if path.name != "__init__.py"]
    assert _circles({_title(path): path.read_text() for path in modules}) == []


@pytest.mark.parametrize(
    "first",
    [
        "import p.b",
        "from p import b",
        "from p.b import x",
        "if TYPE_CHECKING:\n    from p.b import X",
        "def f():\n    from p import b",
    ],
)
def test_circles_are_found(first: str) -> None:
    sources = {"p.a": first, "p.b": "from p.c import y", "p.c": "from p import a", "p.d": first}
    assert _circles(sources) == [{"p.a", "p.b", "p.c"}]
    assert _circles({**sources, "p.c": ""}) == []


@many("path", (SOURCE / "engines").rglob("*.py"))
def test_engines_know_no_rule(path: Path) -> None:
    assert "rules" not in _imports(path)


FACES = [
    path
    for face in ("keras", "v1", "openseq2seq")
    for path in sorted((SOURCE / face).rglob("*.py"))
]


@many("path", FACES)
def test_faces_leave_memory_to_the_step(path: Path) -> None:
    inner = re.findall(r"from thalweg\.engines\.(\w+) import", path.read_text())
    assert set(inner) <= {"selection"}


@many("path", (SOURCE / "rules").glob("*.py"))
def test_rules_are_mathematics_only(path: Path) -> None:
    assert _imports(path) <= {"formula", "rules"}


def test_formulas_of_schedules_are_mathematics_only() -> None:
    assert _imports(SOURCE / "schedules" / "formulas.py") == {"scalars"}
