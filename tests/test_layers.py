"""Each package imports only from lower layers, and no two modules need each other."""

from __future__ import annotations

import ast
import re
import runpy
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import fresh_process
import thalweg
from case_batches import many

CLOSURE = runpy.run_path(str(Path(__file__).parents[1] / "tools" / "closure.py"))
SOURCE = Path(thalweg.__file__).parent
TESTS = Path(__file__).parent

pytestmark = pytest.mark.usefixtures("without_collector")

# From the bottom up; a module may import its own layer and those before it.
LAYERS = (
    ("errors", "variable", "indexed_slices", "autodiff", "version", "_base"),
    ("_formats",),
    ("formula", "rules"),
    ("_engines",),
    ("schedules", "_core"),
    ("diagnostics",),
    ("distribute",),
    ("keras", "optim"),
    ("checkpoint",),
    ("_graph",),
    ("v1",),
    ("openseq2seq",),
    ("integrations",),
    ("tf",),
    ("_cli.registry",),
    ("checkpoint.tensorflow", "checkpoint.inspection"),
    ("_cli.race", "_cli.bench", "_cli.scan", "conform", "_cli.report"),
    ("_cli", "__main__"),
)
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
MODULES = sorted(SOURCE.rglob("*.py"))
_parsed = cache(ast.parse)


@pytest.fixture(autouse=True, scope="module")
def _forgotten() -> Iterator[None]:
    """Drop cached trees after the tests of this file: they are large."""
    yield
    _parsed.cache_clear()
    _asked.cache_clear()


def _room(path: Path) -> str:
    if path.name == "__main__.py":
        return "__main__"  # a program, whatever package it is run as
    return _room_of(path.relative_to(SOURCE).with_suffix("").parts)


def _room_of(parts: Sequence[str]) -> str:
    inner = ".".join(parts[:2])
    return inner if inner in LEVEL else parts[0]


@cache
def _asked(tree: ast.AST) -> set[str]:
    """Return all imported names, also those in functions, by literal names and for types alone.

    `from p import b` asks for `p.b`, which is a module or a name of `p`.
    """
    modules: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                modules |= {alias.name for alias in node.names}
            case ast.ImportFrom(module=str(module)):
                modules |= {f"{module}.{alias.name}" for alias in node.names}
            case ast.Call(
                func=ast.Name(id="import_module") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(module)), *_],
            ):
                modules.add(module)
    return modules


def _imports(path: Path) -> set[str]:
    parts = [name.split(".") for name in _asked(_parsed(path.read_text()))]
    return {_room_of(part[1:]) for part in parts if part[0] == "thalweg" and len(part) > 1}


def test_every_package_has_a_layer() -> None:
    rooms = {_room(path) for path in MODULES} - {"__init__"}
    assert rooms <= set(LEVEL)


@many("path", MODULES)
def test_packages_import_only_from_lower_layers(path: Path) -> None:
    room = _room(path)
    if room == "__init__":
        return
    modules = _imports(path)
    if path.name == "__init__.py":  # which lists what the package's own modules offer
        modules = {module for module in modules if not module.startswith(f"{room}.")}
    upper = {module for module in modules if LEVEL.get(module, 0) > LEVEL[room]}
    assert not upper, f"{path.name} is in {room!r} and imports {sorted(upper)}"


# What stands on TensorFlow's side registers itself with the core, which knows no name of it.
FRONT_ENDS = {"_graph", "v1", "openseq2seq", "tf"}
NUMBERS = [path for path in MODULES if LEVEL.get(_room(path), 99) <= LEVEL["keras"]]


@many("path", NUMBERS)
def test_numeric_packages_do_not_reference_graphs(path: Path) -> None:
    strings = {
        node.value.split(".")[1]
        for node in ast.walk(_parsed(path.read_text()))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch(r"thalweg(\.\w+)+", node.value)
    }
    assert not (_imports(path) | strings) & FRONT_ENDS


def _title(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _packages(name: str) -> set[str]:
    """Return the packages around a module: `p` and `p.q` of `p.q.x`."""
    return {name[:end] for end, sign in enumerate(name) if sign == "."}


def _needed(title: str, tree: ast.AST, titles: set[str]) -> set[str]:
    """Return the modules among `titles` that a module needs."""
    modules: set[str] = set()
    for name in _asked(tree):
        packages = [package for package in _packages(f"{name}.") if package in titles]
        if packages:
            module = max(packages, key=len)
            modules |= {module, *(_packages(module) & titles) - _packages(title)}
    return modules - {title}


def _reached(start: str, imports: dict[str, set[str]]) -> set[str]:
    """Return the modules that `start` imports, directly or through others."""
    modules: set[str] = set()
    pending = list(imports[start])
    while pending:
        module = pending.pop()
        if module not in modules:
            modules.add(module)
            pending += imports[module]
    return modules


def _circles(sources: dict[str, str]) -> list[set[str]]:
    """Return sets of modules that import each other, with any number of modules between."""
    imports = {
        title: _needed(title, _parsed(source), set(sources)) for title, source in sources.items()
    }
    closures = {title: _reached(title, imports) for title in imports}
    circles: list[set[str]] = []
    for title in sorted(imports):
        if title in closures[title] and not any(title in circle for circle in circles):
            circles.append({member for member in closures[title] if title in closures[member]})
    return circles


def test_modules_have_no_import_cycles() -> None:
    """Package files count, and imports in functions, for types and by `import_module`.

    An import of `p.q.x` needs `p.q.x`, and `p` and `p.q`, whose files run before it. A module needs
    no package that it lies in itself: that has begun to run before any module of it, whatever the
    module imports. But it does need it where it asks for a name that the package file defines, as
    `from p import name` in `p.x`; where `p.name` is a module, only that is needed, as Python finds
    it also in a package that has not run to its end. So a package file may import its modules, and
    they may import each other, but not what the package file makes of them.
    """
    assert _circles({_title(path): path.read_text() for path in MODULES}) == []


@pytest.mark.parametrize(
    "first",
    [
        "import p.b",
        "from p import b",
        "from p.b import x",
        "if TYPE_CHECKING:\n    from p.b import X",
        "def f():\n    from p import b",
        "def f():\n    import_module('p.b')",
        "def f():\n    return importlib.import_module('p.b').x",
    ],
)
def test_import_cycles_are_detected(first: str) -> None:
    sources = {"p.a": first, "p.b": "from p.c import y", "p.c": "from p import a", "p.d": first}
    assert _circles(sources) == [{"p.a", "p.b", "p.c"}]
    assert _circles({**sources, "p.c": ""}) == []


@pytest.mark.parametrize(
    ("of_q", "of_x", "of_y", "circle"),
    [
        ("from p.q import x", "from p.q import name", "", {"p.q", "p.q.x"}),
        ("from p.q import x", "def f():\n    import p.q", "", {"p.q", "p.q.x"}),
        ("from p.q import x", "import p.y", "import p.q.x", {"p.q", "p.q.x", "p.y"}),
        ("import p.y", "", "from p.q.x import name", {"p.q", "p.y"}),
        ("def f():\n    import_module('p.y')", "", "from p.q import x", {"p.q", "p.y"}),
        ("from p.q import x", "from p.q import x", "from p.q import name", set()),
        (
            "from p.q import x",
            "from p import y",
            "from p import name",
            {"p", "p.q", "p.q.x", "p.y"},
        ),
    ],
)
def test_import_cycles_of_packages_are_detected(
    of_q: str, of_x: str, of_y: str, circle: set[str]
) -> None:
    sources = {"p": "import p.q", "p.q": of_q, "p.q.x": of_x, "p.y": of_y}
    assert _circles(sources) == ([circle] if circle else [])


@many("path", (SOURCE / "_engines").rglob("*.py"))
def test_engines_do_not_import_rules(path: Path) -> None:
    assert "rules" not in _imports(path)


RATES = [
    *(path for path in (SOURCE / "schedules").glob("*.py") if path.name != "formulas.py"),
    SOURCE / "v1" / "train" / "decay.py",
    SOURCE / "openseq2seq" / "optimizers" / "lr_policies.py",
]


@many("path", RATES)
def test_schedules_and_decays_only_wrap_formulas(path: Path) -> None:
    nodes = list(ast.walk(_parsed(path.read_text())))
    assert not [node for node in nodes if isinstance(node, ast.Div | ast.Pow)]
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    assert not attributes & {"exp", "log", "cos", "sqrt", "floor", "ceil"}


FACES = [
    path
    for face in ("keras", "v1", "openseq2seq")
    for path in sorted((SOURCE / face).rglob("*.py"))
]


@many("path", FACES)
def test_front_ends_do_not_access_memory(path: Path) -> None:
    inner = re.findall(r"from thalweg\._engines\.(\w+) import", path.read_text())
    assert set(inner) <= {"engine_selection"}


@many("path", (SOURCE / "rules").glob("*.py"))
def test_rules_import_only_mathematics(path: Path) -> None:
    is_list = path.name == "__init__.py"
    assert _imports(path) <= {"formula", "rules", *(["_base"] if is_list else [])}


def test_schedule_formulas_import_only_mathematics() -> None:
    assert _imports(SOURCE / "schedules" / "formulas.py") == {"_base"}


LATE = {
    "distribute": "distribute",
    "_engines": "_engines",
    "_graph.graph_mode_backend": "_graph",
    "rules": "rules",
    "rules.torch": "rules.torch",
    "schedules": "schedules",
}  # what offers names late, with the package whose modules have them


def _waited_for(tree: ast.AST) -> set[str]:
    """Return the modules that are imported while `importing` is held."""
    blocks = [node for node in ast.walk(tree) if isinstance(node, ast.With)]
    guards = [node for node in blocks if "importing" in map(ast.unparse, node.items)]
    nodes = [statement for node in guards for statement in node.body]
    return {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}


def test_lazy_imports_do_not_need_lazy_names() -> None:
    # Else two threads could wait for each other: one for `importing`, one for a module.
    homes = {f"thalweg.{package}": import_module(f"thalweg.{package}")._HOMES for package in LATE}
    trees = {_title(path): _parsed(path.read_text()) for path in MODULES}
    imports = {title: _needed(title, tree, set(trees)) for title, tree in trees.items()}
    late = {
        f"thalweg.{package}.{entry.partition(':')[0]}"
        for owner, package in LATE.items()
        for entry in homes[f"thalweg.{owner}"].values()
    }
    late |= {module for tree in trees.values() for module in _waited_for(tree)}
    assert {"thalweg.rules.adam", "thalweg._engines.offload"} <= late <= set(trees)
    for title in late.union(*(_reached(module, imports) for module in late)):
        for node in trees[title].body:
            if isinstance(node, ast.ImportFrom) and node.module in homes:
                names = {alias.name for alias in node.names}
                assert names.isdisjoint(homes[node.module]), title


def test_folders_of_tests_are_packages() -> None:
    folders = {path.parent.name for path in TESTS.glob("*/*.py")}
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    packages |= {path.parent.name for path in SOURCE.glob("_cli/*/__init__.py")}
    tested = {name.removeprefix("_") for name in packages}
    assert folders - tested == {"attack", "cuda", "faces", "support"}


def test_names_of_test_files_are_unique() -> None:  # they are no packages, but for the attacks
    paths = {*TESTS.rglob("*.py")} - {*TESTS.glob("attack/*.py")} - {*TESTS.rglob("conftest.py")}
    names = Counter(path.stem for path in paths)
    assert max(names.values()) == 1, names.most_common(1)


def test_private_names_are_imported_only_by_tests_of_their_package() -> None:
    names = re.compile(r"^ *from thalweg\.(\w+)\S* import (\([^)]*\)|.*)", re.MULTILINE)
    for path in TESTS.rglob("*.py"):
        for room, imported in names.findall(path.read_text()):
            is_same_package = path.parent.name == room.removeprefix("_")
            assert is_same_package or not re.search(r"\b_[a-zA-Z]", imported), path


def _printed(program: str) -> str:
    process = fresh_process.run(program)
    assert process.returncode == 0, process.stderr
    return process.stdout


@pytest.mark.parametrize("moment", ["import", "training"])
@pytest.mark.parametrize("name", CLOSURE["BOUNDS"])
def test_front_ends_load_a_bounded_number_of_lines(name: str, moment: str) -> None:
    loaded = CLOSURE[f"after_{moment}"](CLOSURE["FACES"][name], _printed)
    (code, total), (code_bound, total_bound) = CLOSURE["add_up"](loaded), CLOSURE["BOUNDS"][name]
    assert code <= code_bound, sorted(loaded)
    assert total <= total_bound, sorted(loaded)
    assert "thalweg.diagnostics" not in loaded


@pytest.mark.parametrize("package", [*LATE, "optim"])
def test_lazy_imports_are_public(package: str) -> None:
    program = f"""
import thalweg.{package} as package
assert set(package.__all__) <= set(dir(package))
from thalweg.{package} import *
missing = [name for name in package.__all__ if name not in globals()]
assert not missing, missing
homes = vars(package).get("_HOMES", {{}}).values()
homes = [each for each in homes if not {{*each}} & {{*".:"}}]
# The backend offers names of the package that it lies in.
is_own = package.__name__ != "thalweg._graph.graph_mode_backend"
assert all(getattr(package, home).__name__.endswith(home) for home in homes if is_own)
assert not hasattr(package, "no_such_name")
"""
    _printed(program)
