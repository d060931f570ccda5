"""The changes that the search for mutants makes."""

from __future__ import annotations

import ast
from pathlib import Path

import mutants

SOURCE = '''"""A module."""

__all__ = ["f"]


def f(a: "1 + 1", b):
    """A function."""
    c = [each for each in a if each > 0]
    if b == 2 and True:
        raise ValueError(-1)
    return c
'''
EXPECTED = {
    (8, "each > 0", "each >= 0"),
    (8, "0", "1"),
    (9, "b == 2", "b != 2"),
    (9, "2", "3"),
    (9, "True", "False"),
    (9, "b == 2 and True", "b == 2 or True"),
    (10, "-1", "+1"),
    (10, "1", "2"),
    (11, "return c", "return None"),
}


def test_each_mutant_makes_one_change() -> None:
    mutations = mutants.mutants(SOURCE)
    assert {(mutant.line, mutant.old_code, mutant.new_code) for mutant in mutations} >= EXPECTED
    lines = ast.unparse(ast.parse(SOURCE)).splitlines()
    for mutant in mutations:
        new_lines = ast.unparse(ast.parse(mutant.source)).splitlines()
        if len(new_lines) == len(lines):
            assert sum(a != b for a, b in zip(new_lines, lines, strict=True)) == 1, mutant
    assert len({mutant.source for mutant in mutations}) == len(mutations)
    assert not any("function" in mutant.old_code and mutant.line == 1 for mutant in mutations)


def test_mutated_modules_and_their_tests_exist() -> None:
    for module, tests in mutants.MODULES.items():
        assert (mutants.SOURCE / "thalweg" / f"{module}.py").is_file()
        assert all((Path(__file__).parent / name).is_file() for name in tests), module
