"""Measure names and docstrings per package, and fail where they are worse than recorded.

    python tools/language.py             print a table, one row per package
    python tools/language.py --check     also raise an error for values above those in language.json
    python tools/language.py --record    write the present values into language.json
    python tools/language.py --list B1 --package optim   print the names or docstrings that count

Columns, in percent of all bindings (parameters, locals, attributes), docstrings or parameters:

    B1      bindings whose name consists of pronouns, prepositions, adverbs and participles alone
    short   bindings with a name of one letter, or a generic one (result, data, value, ...)
    B2      docstrings that begin with a clause: What, Whether, The same, ...
    types   annotated parameters whose name has no type that covers half of its uses

The row "documentation" counts what/which/whose/where per 1,000 words of prose instead.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[1]
RECORD = Path(__file__).with_name("language.json")
WORDS = Path(__file__).with_name("language_words.txt")
FOLDERS = ("tests", "benchmarks", "tools", "examples")
GENERIC = {"result", "data", "value", "item", "obj", "tmp"}
# Packages whose APIs this project mirrors, if they are installed.
EXTERNAL = ("torch/optim", "torch/nn", "torch/amp", "keras/src", "absl", "safetensors")
PARTS_OF_NAME = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")
CLAUSE = re.compile(r"^\W*(What|Whether|Which|Who|Whose|Where|How|Why|That|Those|The same)\b")
RELATIVE = {"what", "which", "whose", "where", "whoever", "whatever"}
# A share may differ by rounding alone.
TOLERANCE = 0.05

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Package:
    """Names and docstrings of a package, with the place of each."""

    bindings: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    docstrings: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    parameters: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])


def package_of(path: Path) -> str:
    """Return the row of a Python file: its folder below src/thalweg, or its top-level folder."""
    parts = path.relative_to(ROOT).parts
    if parts[0] != "src":
        return parts[0]
    return parts[2] if len(parts) > 3 else "thalweg"


def read_packages() -> dict[str, Package]:
    """Read all Python files of the project."""
    packages: dict[str, Package] = defaultdict(Package)
    for folder in ("src", *FOLDERS):
        for path in sorted((ROOT / folder).rglob("*.py")):
            read_file(path, packages[package_of(path)])
    return dict(packages)


def read_file(path: Path, package: Package) -> None:
    """Add the names and docstrings of a file to its package."""
    tree = ast.parse(path.read_text())
    place = str(path.relative_to(ROOT))
    for node in ast.walk(tree):
        node_place = f"{place}:{getattr(node, 'lineno', 1)}"
        if isinstance(node, Function | ast.ClassDef | ast.Module):
            text = ast.get_docstring(node)
            if text and text.strip():
                package.docstrings.append((text.strip(), node_place))
        if isinstance(node, Function):
            for argument in arguments_of(node):
                if (node.name, argument.arg) in external_parameters():
                    continue
                package.bindings.append((argument.arg, node_place))
                if argument.annotation is not None:
                    annotation = ast.unparse(argument.annotation).strip("\"'")
                    package.parameters.append((argument.arg, annotation, node_place))
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            package.bindings.append((node.id, node_place))
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            package.bindings.append((node.attr, node_place))


def arguments_of(function: Function) -> Iterator[ast.arg]:
    """Yield the parameters of a function, without self and cls."""
    arguments = function.args
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        if argument.arg not in ("self", "cls"):
            yield argument


@cache
def external_parameters() -> frozenset[tuple[str, str]]:
    """Return pairs of function and parameter of the installed packages in `EXTERNAL`."""
    return frozenset().union(*map(read_parameters, EXTERNAL))


def read_parameters(name: str) -> set[tuple[str, str]]:
    """Return pairs of function and parameter of a folder of an installed package."""
    pairs: set[tuple[str, str]] = set()
    package, *folders = name.split("/")
    spec = find_spec(package)
    for folder in (spec and spec.submodule_search_locations) or ():
        for path in Path(folder, *folders).rglob("*.py"):
            tree = ast.parse(path.read_text(errors="replace"))
            for node in ast.walk(tree):
                if isinstance(node, Function):
                    pairs |= {(node.name, argument.arg) for argument in arguments_of(node)}
    return pairs


@cache
def nameless_words() -> frozenset[str]:
    """Return the words that name nothing, from language_words.txt."""
    lines = WORDS.read_text().splitlines()
    return frozenset(word for line in lines if not line.startswith("#") for word in line.split())


def is_nameless(name: str) -> bool:
    """Return whether a name of several letters consists of words that name nothing."""
    words = [word.lower() for word in PARTS_OF_NAME.findall(name)]
    is_candidate = len(name) > 1 and not name.startswith("__")
    return is_candidate and bool(words) and all(word in nameless_words() for word in words)


def is_short(name: str) -> bool:
    """Return whether a name has one letter or is generic; `_` and names of loops count, too."""
    return len(name.strip("_")) == 1 or name.strip("_") in GENERIC


def ambiguous_names(package: Package) -> set[str]:
    """Return parameter names used five times or more without a type that covers half of them."""
    types: dict[str, Counter[str]] = defaultdict(Counter)
    for name, annotation, _ in package.parameters:
        types[name][annotation] += 1
    frequent = {
        name: type_counts for name, type_counts in types.items() if type_counts.total() >= 5
    }
    return {
        name
        for name, type_counts in frequent.items()
        if type_counts.most_common(1)[0][1] < type_counts.total() / 2
    }


def count_relative(paths: Iterable[Path]) -> float:
    """Return what/which/whose/where per 1,000 words of the prose of Markdown files."""
    words: list[str] = []
    for path in paths:
        text = re.sub(r"```.*?```", " ", path.read_text(), flags=re.DOTALL)
        code = ("|", ">>>", "...", "#", "<!--", ".. ", ":", "![", "    ")
        lines = [line for line in text.split("\n") if not line.startswith(code)]
        text = re.sub(r"`[^`]*`", "CODE", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", "\n".join(lines)))
        words += [word.lower() for word in re.findall(r"[A-Za-z']+", text)]
    return 1000 * sum(word in RELATIVE for word in words) / max(1, len(words))


def documents() -> list[Path]:
    """Return the Markdown files of the documentation, without the changelog."""
    paths = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("benchmarks/*.md")]
    generated_folders = {"_build", "classes"}
    candidates = [path for path in paths if path.name != "CHANGELOG.md"]
    return sorted(path for path in candidates if not generated_folders & {*path.parts})


def counted(package: Package, column: str) -> tuple[list[str], int]:
    """Return what counts in a column, with its places, and out of how many."""
    match column:
        case "B1":
            hits = [f"{name}  {place}" for name, place in package.bindings if is_nameless(name)]
            return hits, len(package.bindings)
        case "short":
            hits = [f"{name}  {place}" for name, place in package.bindings if is_short(name)]
            return hits, len(package.bindings)
        case "B2":
            texts = [(text.splitlines()[0], place) for text, place in package.docstrings]
            return [f"{t}  {place}" for t, place in texts if CLAUSE.match(t)], len(texts)
        case _:
            names, parameters = ambiguous_names(package), package.parameters
            hits = [f"{name}: {t}  {place}" for name, t, place in parameters if name in names]
            return hits, len(parameters)


COLUMNS = ("B1", "short", "B2", "types")


def measure() -> dict[str, dict[str, float]]:
    """Return the values of each package by column, in percent, and those of the documentation."""
    packages = read_packages()
    table: dict[str, dict[str, float]] = {}
    for name, package in sorted(packages.items()):
        shares = {column: counted(package, column) for column in COLUMNS}
        table[name] = {c: round(100 * len(hits) / max(1, n), 1) for c, (hits, n) in shares.items()}
    table["documentation"] = {"B4": round(count_relative(documents()), 1)}
    return table


def find_worse(table: dict[str, dict[str, float]]) -> list[str]:
    """Return one line for each value above the recorded one."""
    saved_values: dict[str, dict[str, float]] = json.loads(RECORD.read_text())
    lines: list[str] = []
    for name, row in table.items():
        if name not in saved_values:
            lines.append(f"{name}: not in {RECORD.name}; add it with --record")
        for column, share in row.items():
            bound = saved_values.get(name, {}).get(column, share)
            if share > bound + TOLERANCE:
                lines.append(f"{name}: {column} is {share}, recorded {bound}; see --list {column}")
    return lines


def show(table: dict[str, dict[str, float]]) -> str:
    """Return the values as a table."""
    lines = [f"{'':16}" + "".join(f"{column:>8}" for column in COLUMNS)]
    for name, row in table.items():
        if name != "documentation":
            lines.append(f"{name:16}" + "".join(f"{row[column]:8.1f}" for column in COLUMNS))
    return "\n".join([*lines, f"documentation: {table['documentation']['B4']} per 1,000 words"])


def main() -> None:
    """Print, check, record or list."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail where a value is worse")
    parser.add_argument("--record", action="store_true", help="write language.json")
    parser.add_argument("--list", choices=COLUMNS, help="print what counts in a column")
    parser.add_argument("--package", help="the package of --list; all by default")
    options = parser.parse_args()
    if options.list:
        packages = read_packages()
        for name, package in packages.items():
            if options.package in (None, name):
                print("\n".join(counted(package, options.list)[0]))
        return
    table = measure()
    print(show(table))
    if options.record:
        RECORD.write_text(json.dumps(table, indent=1) + "\n")
    worse = find_worse(table) if options.check else []
    if worse:
        sys.exit("\n".join(["Language is worse than recorded:", *worse]))


if __name__ == "__main__":
    main()
