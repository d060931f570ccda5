"""Find calls that allocate a tensor of a default type or place: `python tools/factories.py`.

Torch fills in its default device and dtype, which belong to the user: memory that a kernel is to
write would then lie elsewhere. A call must have the keywords `device=` and `dtype=`; a call that
uses the user's default has `device=torch.get_default_device()`. `**options` do not count, as a
reader cannot see what is in them. `*_like` functions and `new_*` methods follow a tensor.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "thalweg"
FACTORIES = {
    "arange", "as_tensor", "asarray", "bartlett_window", "blackman_window", "empty",
    "empty_permuted", "empty_strided", "eye", "full", "hamming_window", "hann_window",
    "kaiser_window", "linspace", "logspace", "ones", "rand", "randint", "randn", "randperm",
    "range", "scalar_tensor", "sparse_bsc_tensor", "sparse_bsr_tensor", "sparse_compressed_tensor",
    "sparse_coo_tensor", "sparse_csc_tensor", "sparse_csr_tensor", "tensor", "tril_indices",
    "triu_indices", "zeros",
}  # fmt: skip
# What is always on the CPU, and keywords that are still needed.
SPECIAL_FACTORIES = {"frombuffer": ("dtype",), "from_file": ("dtype",), "Generator": ("device",)}
# Constructors of a type, which take neither keyword.
LEGACY = {
    "BFloat16Tensor", "BoolTensor", "ByteTensor", "CharTensor", "DoubleTensor", "FloatTensor",
    "HalfTensor", "IntTensor", "LongTensor", "ShortTensor",
}  # fmt: skip
KEYWORDS = ("device", "dtype")
_REQUIRED = dict.fromkeys(FACTORIES, KEYWORDS) | SPECIAL_FACTORIES


def find_incomplete(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line of each incomplete call in a module's text, and what it lacks."""
    tree = ast.parse(source)
    modules = {"torch"}
    imported: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {name.asname for name in node.names if name.name == "torch" and name.asname}
        elif isinstance(node, ast.ImportFrom) and node.module == "torch":
            imported |= {name.asname or name.name: name.name for name in node.names}
    called_ids: set[int] = set()
    # A call comes before the nodes inside of it.
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            function = _called_function(node)
            name = _torch_name(function, modules, imported)
            called_ids.add(id(function))
            if missing := _missing_keywords(name, node):
                yield node.lineno, f"torch.{name} without {' and '.join(missing)}"
        elif isinstance(node, ast.Attribute | ast.Name) and id(node) not in called_ids:
            name = _torch_name(node, modules, imported)
            if name in FACTORIES:
                yield node.lineno, f"torch.{name} passed on, to be called without keywords"


def _called_function(call: ast.Call) -> ast.expr:
    """Return what a call calls: that of `partial(f, ...)` is `f`, which gets its keywords."""
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return call.args[0] if name == "partial" and call.args else function


def _torch_name(node: ast.expr, modules: set[str], imported: dict[str, str]) -> str:
    """Return the name in torch of what an expression names; "" if it is not torch's."""
    if isinstance(node, ast.Name):
        return imported.get(node.id, "")
    is_member = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    return node.attr if is_member and node.value.id in modules else ""


def _missing_keywords(name: str, call: ast.Call) -> list[str]:
    if name in LEGACY or (name == "Tensor" and call.args):
        return ["a dtype: call torch.tensor or torch.empty"]
    keywords = {keyword.arg for keyword in call.keywords}
    return [f"{keyword}=" for keyword in _REQUIRED.get(name, ()) if keyword not in keywords]


def main(folder: Path = SOURCE) -> int:
    """Print the incomplete calls in a folder, and return 1 if there are any."""
    problems = [
        f"{path}:{line}: {problem}"
        for path in sorted(folder.rglob("*.py"))
        for line, problem in find_incomplete(path.read_text(encoding="utf-8"))
    ]
    sys.stdout.writelines(f"{line}\n" for line in problems)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))
