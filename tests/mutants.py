"""Mutants of a few modules, and the share of them that the tests of the modules detect.

    python tests/mutants.py [--count N] [--seed S] [MODULE ...]

A change is one of: a comparison, an operation, a condition or a bool turned round, a number moved
by 1, a statement taken out, a result forgotten. The tests see a copy of the library with the
change in its source, from which engines trace formulas. Each mutant runs in a process forked
from this one. Printed are the mutants that no test noticed, and the share of those that were.
"""

from __future__ import annotations

import argparse
import ast
import copy
import faulthandler
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src"
# The tests of each module, the quick ones first, and what keeps them short.
MODULES: dict[str, list[str]] = {
    "formula": [
        "test_formula.py", "engines/test_check_rule.py", "core/test_core_step.py",
        "engines/test_engines.py",
    ],
    "_engines/reference": [
        "engines/test_reference.py", "engines/test_engines.py", "engines/test_sparse_engines.py",
        "engines/test_reduction_order.py",
    ],
    "_engines/layout": [
        "engines/test_dispatcher.py", "test_errors.py", "engines/test_memory.py",
        "engines/test_moved_memory.py", "engines/test_layouts.py",
    ],
    "_engines/dispatcher": [
        "engines/test_dispatcher.py", "engines/test_moved_memory.py", "engines/test_memory.py",
        "engines/test_engines.py", "engines/test_sparse_engines.py",
    ],
}  # fmt: skip
CPU_SECONDS = 240  # more than the tests of any module take
PATIENCE = 3600  # on a machine that does other things, too

COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
OPERATIONS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip
REMOVED = (ast.Expr, ast.Assign, ast.AugAssign, ast.Raise)


@dataclass
class Mutant:
    """A module with one change.

    Attributes:
        line: The line of the change.
        old_code, new_code: The changed part before and after.
        source: The whole module with it.
    """

    line: int
    old_code: str
    new_code: str
    source: str


def mutants(source: str) -> list[Mutant]:
    """Return all mutants, in the order of the source."""
    tree = ast.parse(source)
    mutations: list[Mutant] = []
    for node, change in _changes(tree):
        old = ast.unparse(node)
        attributes = copy.copy(node.__dict__)
        attributes = {key: copy.copy(value) for key, value in attributes.items()}
        change()
        new = ast.unparse(node)
        if new != old:
            mutations.append(Mutant(getattr(node, "lineno", 0), old, new, ast.unparse(tree)))
        node.__dict__.update(attributes)
    return sorted(mutations, key=lambda mutant: mutant.line)


def _changes(tree: ast.Module) -> Iterator[tuple[ast.AST, Callable[[], None]]]:  # noqa: C901
    """Yield nodes, and functions that change each in place; callers restore its fields."""
    for node in _code(tree):
        if isinstance(node, ast.Compare):
            for place, op in enumerate(node.ops):
                yield node, lambda n=node, k=place, o=op: _put(n.ops, k, COMPARISONS[type(o)]())
        elif isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
            yield node, lambda n=node: setattr(n, "op", OPERATIONS[type(n.op)]())
        elif isinstance(node, ast.BoolOp):
            operator = ast.Or if isinstance(node.op, ast.And) else ast.And
            yield node, lambda n=node, o=operator: setattr(n, "op", o())
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            yield node, lambda n=node: setattr(n, "op", ast.UAdd())
        elif isinstance(node, ast.Constant) and type(node.value) is bool:
            yield node, lambda n=node: setattr(n, "value", not n.value)
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
            yield node, lambda n=node: setattr(n, "value", n.value + 1)
        elif isinstance(node, ast.If | ast.IfExp | ast.While):
            yield node, lambda n=node: setattr(n, "test", ast.UnaryOp(ast.Not(), n.test))
        elif isinstance(node, ast.Return) and node.value is not None:
            yield node, lambda n=node: setattr(n, "value", ast.Constant(None))
        if isinstance(node, ast.comprehension):
            for place in range(len(node.ifs)):
                yield node, lambda n=node, k=place: _put(n.ifs, k, ast.UnaryOp(ast.Not(), n.ifs[k]))
        body = getattr(node, "body", None)
        if isinstance(body, list) and isinstance(node, ast.stmt):
            for place, statement in enumerate(body):
                if isinstance(statement, REMOVED) and not _is_text(statement):
                    yield node, lambda b=node, k=place: _put(b.body, k, ast.Pass())


def _put(home: list, place: int, value: ast.AST) -> None:
    home[place] = value


def _is_text(node: ast.AST) -> bool:
    """Return whether a statement is a docstring, or another string on its own."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _code(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes inside functions and classes, and values of the module; no annotations."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, ast.Import | ast.ImportFrom):
                if _is_text(child) or _is_listing(child):
                    continue
                yield child
                yield from _code(child)


def _is_listing(node: ast.AST) -> bool:
    """Return whether a statement assigns `__all__`."""
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"


class Library:
    """A copy of the library in a temporary folder, in which one module is changed at a time."""

    def __init__(self, folder: Path, module: str) -> None:
        shutil.copytree(SOURCE, folder, ignore=shutil.ignore_patterns("__pycache__"))
        self.folder, self.path = folder, folder / "thalweg" / f"{module}.py"
        self.source = self.path.read_text()

    def outcome(self, source: str, tests: list[str]) -> str:
        """Return the outcome of the tests with this source: "passed", "failed" or "hung"."""
        self.path.write_text(source)
        child = os.fork()
        if not child:
            status = 3
            try:
                status = _test(self.folder, tests)
            finally:
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status in (-signal.SIGXCPU, -signal.SIGALRM, -signal.SIGKILL):
            return "hung"
        return "passed" if status == 0 else "failed"


def _test(folder: Path, tests: list[str]) -> int:
    """Run tests in this process until one fails; return the status of pytest."""
    import pytest

    faulthandler.disable()
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    signal.alarm(PATIENCE)
    sys.path[:0] = [str(folder)]
    os.environ["PYTHONPATH"] = str(folder)
    paths = [str(TESTS / name) for name in tests if (TESTS / name).exists()]
    options = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--timeout", "0"]
    return int(pytest.main([*options, "--rootdir", str(TESTS.parent), *paths]))


def main() -> int:
    parser = argparse.ArgumentParser(description="How many random changes tests notice.")
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=f"of {', '.join(MODULES)}")
    parser.add_argument("--count", type=int, default=25, help="changes of each module")
    parser.add_argument("--seed", type=int, default=0, help="chooses the changes; 0 by default")
    options = parser.parse_args()
    if unknown := set(options.modules) - set(MODULES):
        parser.error(f"no tests are named for {', '.join(sorted(unknown))}")
    _warm()
    killed = total = 0
    for module in options.modules or MODULES:
        with tempfile.TemporaryDirectory() as folder:
            hits, size = _measured(Path(folder) / "src", module, options.count, options.seed)
        killed, total = killed + hits, total + size
    sys.stdout.write(f"all: {killed} of {total} mutants killed, {killed / max(total, 1):.0%}\n")
    return 0


def _warm() -> None:
    """Import modules outside of the library, once for all children."""
    sys.dont_write_bytecode = True
    sys.path[:] = [path for path in sys.path if Path(path).resolve() != SOURCE]
    import llvmlite.ir
    import torch.testing

    _ = llvmlite, torch


def _measured(folder: Path, module: str, count: int, seed: int) -> tuple[int, int]:
    library, tests = Library(folder, module), MODULES[module]
    if library.outcome(ast.unparse(ast.parse(library.source)), tests) != "passed":
        raise SystemExit(f"{module}: its tests fail without a change")
    all_mutants = mutants(library.source)
    sample = random.Random(seed).sample(all_mutants, min(count, len(all_mutants)))
    outcomes: list[str] = []
    begin = time.perf_counter()
    for mutant in sample:
        outcomes.append(library.outcome(mutant.source, tests))
        if outcomes[-1] == "passed":
            sys.stdout.write(f"  {module}.py:{mutant.line}: {_shown(mutant)}\n")
            sys.stdout.flush()
    killed = len(sample) - outcomes.count("passed")
    sys.stdout.write(
        f"{module}: {killed} of {len(sample)} mutants killed, {outcomes.count('hung')} of them"
        f" hung, of {len(all_mutants)} there are; seed {seed},"
        f" {time.perf_counter() - begin:.0f} s\n"
    )
    sys.stdout.flush()
    return killed, len(sample)


def _shown(mutant: Mutant) -> str:
    """Return the lines that differ."""
    old, new = mutant.old_code.splitlines(), mutant.new_code.splitlines()
    if len(old) == len(new):
        pairs = [(a.strip(), b.strip()) for a, b in zip(old, new, strict=True) if a != b]
        return "; ".join(f"{a} -> {b}" for a, b in pairs)
    return f"without {[line.strip() for line in old if line not in new]}"


if __name__ == "__main__":
    sys.exit(main())
