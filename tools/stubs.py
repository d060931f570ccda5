"""Write the stubs of the classes of torch's kind: `python tools/stubs.py`.

Their constructors pass on what they are given, which type checkers and editors cannot follow; a
stub beside each module says what each takes, as `inspect.signature` does, and what it is for.
"""

from __future__ import annotations

import ast
import inspect
import math
import re
import sys
import textwrap
from importlib import import_module
from pathlib import Path
from typing import Any

from torch.optim.optimizer import ParamsT

from thalweg.optim.fused_optimizer import FusedOptimizer
from thalweg.optim.rule_names import HOMES

ROOT = Path(__file__).parents[1] / "src" / "thalweg" / "optim"
MODULES = ("classes", "mixed", "rule_optimizer", "tensorflow", *dict.fromkeys(HOMES.values()))
_WIDTH = 100
_IMPORTS = {
    "Tensor": "from torch import Tensor",
    "ParamsT": "from torch.optim.optimizer import ParamsT",
    "MatrixLayout": "from thalweg.optim import MatrixLayout",
    "Rule": "from thalweg.formula import Rule",
    "torch": "import torch",
}
_MODULE_OF = re.compile(
    r"\b(?:collections\.abc|typing|thalweg\.formula|thalweg\.optim(?=\.MatrixLayout)|torch(?=\.Tensor))\."
)
_AT_UNION = re.compile(r" \| (?![^\[\]]*\])")  # but for those inside of brackets
_Function = ast.FunctionDef


def path_of(module: str) -> Path:
    """Return the path of a module's stub."""
    return ROOT / f"{module.replace('.', '/')}.pyi"


def stub_of(module: str) -> str:
    """Return the text of a stub."""
    source = path_of(module).with_suffix(".py").read_text()
    tree, module_object = ast.parse(source), import_module(f"thalweg.optim.{module}")
    parts = [_class(node, module_object) for node in tree.body if isinstance(node, ast.ClassDef)]
    assignments = [node for node in tree.body if isinstance(node, ast.Assign)]
    names = [node for node in assignments if ast.unparse(node.targets[0]) == "__all__"]
    class_names = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    head = "# Written by tools/stubs.py from what constructors take.\n\n"
    text = "\n".join(parts)
    imports = _imports(tree, _names_in(text) - class_names)
    text = f"{head}{imports}\n{_list(names[0])}\n{text}" if names else f"{head}{imports}\n{text}"
    return text


def _list(node: ast.Assign) -> str:
    names = "".join(f'    "{name}",\n' for name in ast.literal_eval(node.value))
    return f"__all__ = [\n{names}]\n"


def _names_in(text: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}


def _imports(tree: ast.Module, used: set[str]) -> str:
    """Return the imports of a stub, in the order of isort."""
    names_by_module: dict[str, set[str]] = {}
    plain_imports: set[str] = set()
    for name in used:
        if name in _IMPORTS:
            line = _IMPORTS[name]
        elif name in ("Any", "ClassVar"):
            line = f"from typing import {name}"
        elif name in ("Callable", "Iterable", "Mapping", "Sequence"):
            line = f"from collections.abc import {name}"
        else:
            line = next(
                (
                    import_line
                    for import_line in map(str, _lines(tree))
                    if import_line.endswith(f" {name}")
                ),
                "",
            )
        if line.startswith("import "):
            plain_imports.add(line)
        elif line:
            module_name, _, imported_name = line.removeprefix("from ").partition(" import ")
            names_by_module.setdefault(module_name, set()).add(imported_name)
    ranks: dict[int, list[str]] = {}
    for line in sorted(plain_imports):
        ranks.setdefault(1, []).append(line)
    for module_name in sorted(names_by_module):
        rank = (
            2 if module_name.startswith("thalweg") else 1 if module_name.startswith("torch") else 0
        )
        ranks.setdefault(rank, []).append(
            f"from {module_name} import {', '.join(sorted(names_by_module[module_name]))}"
        )
    return "\n\n".join("\n".join(ranks[rank]) for rank in sorted(ranks)) + "\n"


def _lines(tree: ast.Module) -> list[str]:
    # Imports for type checkers are in the body of a condition.
    bodies = [tree.body, *(node.body for node in tree.body if isinstance(node, ast.If))]
    froms = [node for body in bodies for node in body if isinstance(node, ast.ImportFrom)]
    return [f"from {node.module} import {alias.name}" for node in froms for alias in node.names]


def _class(node: ast.ClassDef, module: Any) -> str:
    cls = getattr(module, node.name)
    bases = ", ".join(map(ast.unparse, node.bases))
    body = [
        f"    {ast.unparse(field.target)}: {ast.unparse(field.annotation)}\n"
        for field in node.body
        if isinstance(field, ast.AnnAssign)
    ]
    # Bases of the other classes of a module are not called.
    is_base = any(heir.__module__ == cls.__module__ for heir in cls.__subclasses__())
    if issubclass(cls, FusedOptimizer) and not is_base:
        body.append(_constructor(cls))
    visible_methods = [
        field_ for field_ in node.body if isinstance(field_, _Function) and _is_shown(field_, body)
    ]
    body += [_method(method) for method in visible_methods]
    head = f"class {node.name}({bases})" if bases else f"class {node.name}"
    return f"{head}:\n{''.join(body)}" if body else f"{head}: ...\n"


def _is_shown(node: _Function, body: list[str]) -> bool:
    is_written = node.name == "__init__" and any("def __init__" in text for text in body)
    is_public = not node.name.startswith("_") or node.name == "__init__"
    return is_public and not is_written


def _method(node: _Function) -> str:
    lines = [f"    @{ast.unparse(decorator)}\n" for decorator in node.decorator_list]
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    arguments = _arguments(node.args)
    line = f"    def {node.name}({', '.join(arguments)}){returns}: ...\n"
    if len(line) > _WIDTH + 1:
        inner = "".join(f"        {argument},\n" for argument in arguments)
        line = f"    def {node.name}(\n{inner}    ){returns}: ...\n"
    return "".join([*lines, line])


def _arguments(node: ast.arguments) -> list[str]:
    """Return the arguments of a method, with types and defaults."""
    defaults = [*[None] * (len(node.args) - len(node.defaults)), *node.defaults]
    texts: list[str] = []
    for argument, default in zip(node.args, defaults, strict=True):
        value = "" if default is None else ast.unparse(default)
        texts.append(ast.unparse(argument) + (f" = {value}" if value else ""))
    texts += ["*"] if node.kwonlyargs else []
    for argument, default in zip(node.kwonlyargs, node.kw_defaults, strict=True):
        value = "" if default is None else f" = {ast.unparse(default)}"
        texts.append(ast.unparse(argument) + value)
    return [*texts, *([f"**{ast.unparse(node.kwarg)}"] if node.kwarg else [])]


def _constructor(cls: Any) -> str:
    lines = ["    def __init__(\n", "        self,\n"]
    previous_kind = None
    for parameter in inspect.signature(cls).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and previous_kind is not parameter.KEYWORD_ONLY:
            lines.append("        *,\n")
        previous_kind = parameter.kind
        stars = "**" if parameter.kind is parameter.VAR_KEYWORD else ""
        default = (
            "" if parameter.default is parameter.empty else f" = {_written(parameter.default)}"
        )
        line = f"        {stars}{parameter.name}: {_typed(parameter.annotation)}{default},\n"
        if len(line) > _WIDTH + 1:
            line = _AT_UNION.sub("\n        | ", line)
        lines.append(line)
    return "".join([*lines, "    ) -> None:\n", _docstring(cls.__init__.__doc__)])


def _typed(annotation: object) -> str:
    if annotation == ParamsT:
        return "ParamsT"
    return _MODULE_OF.sub("", inspect.formatannotation(annotation))


def _written(default: object) -> str:
    if isinstance(default, float) and not math.isfinite(default):
        return f'float("{default}")'
    return f'"{default}"' if isinstance(default, str) else repr(default)


def _docstring(text: str) -> str:
    lines: list[str] = []
    entry: list[str] = []
    for line in [*text.splitlines(), ""]:
        continues = line.startswith(" " * 8)
        if entry and not continues:
            indent = " " * 12
            paragraph = " ".join(entry)
            lines += textwrap.wrap(
                paragraph, _WIDTH, initial_indent=indent, subsequent_indent=f"{indent}    ",
                break_long_words=False, break_on_hyphens=False,
            )  # fmt: skip
            entry = []
        if continues or line.startswith(" " * 4):
            entry.append(line.strip())
        elif line:
            lines += ["", f"        {line}"] if lines else [f'        """{line}']
    return "\n".join([*lines, '        """\n'])


if __name__ == "__main__":
    for module in MODULES:
        path_of(module).write_text(stub_of(module))
        sys.stdout.write(f"{path_of(module)}\n")
