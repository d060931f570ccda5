"""Print how much of the library each front end loads: on import and after two steps and a save.

    python tools/closure.py              a table of lines and files, one row per front end
    python tools/closure.py keras        the modules of one front end, the largest modules first

Lines are those of the files of `thalweg` that a fresh process has loaded: of code, which are all
but docstrings and own-line comments, and in total. What compiles kernels is not among them: the
process before has left them in the store.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

# The most lines (of code, in total) of a front end on import and after training, which
# tests/test_layers.py holds. A total is the present one, rounded up to 50.
BOUNDS = {
    "optim": (17_800, 23_850),
    "optim.tensorflow": (18_700, 24_950),
    "keras": (16_950, 22_850),
    "checkpoint": (21_950, 29_400),
}

_MODEL = """
import io, torch
model, file = torch.nn.Linear(4, 3), io.BytesIO()
weights = list(model.parameters())
def loss():
    return model(torch.ones(2, 4)).square().sum()
"""
_TORCHS_STEPS = """
for _ in range(2):
    optimizer.zero_grad()
    loss().backward()
    optimizer.step()
"""
_STATE = """
torch.save(optimizer.state_dict(), file)
file.seek(0)
optimizer.load_state_dict(torch.load(file))
"""
_COUNT = """
import ast, io, json, sys, tokenize
from pathlib import Path
documented = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
def count(text):
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, documented)]
    docs = [node.body[0] for node in nodes if ast.get_docstring(node) is not None]
    lines = text.splitlines()
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = sum(
        token.type == tokenize.COMMENT and token.line.lstrip().startswith("#") for token in tokens
    )
    described = sum(doc.end_lineno - doc.lineno + 1 for doc in docs)
    return len(lines) - described - comments, len(lines)
print(json.dumps({
    name: count(Path(module.__file__).read_text())
    for name, module in sys.modules.items()
    if name.split(".")[0] == "thalweg" and getattr(module, "__file__", None)
}))
"""
_COMPILER = "thalweg._engines.cpu.compiler"

Lines = dict[str, list[int]]  # [of code, in total] of each module


class Face(NamedTuple):
    """First lines of a user's program.

    Attributes:
        imports: What is imported.
        training: Two steps of `model`; its state is saved and loaded.
    """

    imports: str
    training: str


FACES = {
    "optim": Face(
        "from thalweg import optim",
        f"optimizer = optim.Adam(weights)\n{_TORCHS_STEPS}{_STATE}",
    ),
    "optim.tensorflow": Face(
        "from thalweg.optim import tensorflow",
        f"optimizer = tensorflow.Adam(weights)\n{_TORCHS_STEPS}{_STATE}",
    ),
    "keras": Face(
        "from thalweg import keras",
        f"""
optimizer = keras.optimizers.Adam()
for _ in range(2):
    optimizer.minimize(loss, weights)
{_STATE}""",
    ),
    "v1": Face(
        "from thalweg import v1",
        """
optimizer = v1.train.AdamOptimizer()
for _ in range(2):
    optimizer.minimize(loss, var_list=weights)
torch.save(optimizer.state_dict(weights), file)
file.seek(0)
optimizer.load_state_dict(torch.load(file), weights)
""",
    ),
    "checkpoint": Face(
        "from thalweg import checkpoint, optim",
        f"""
import tempfile
optimizer = optim.Adam(weights)
{_TORCHS_STEPS}
with tempfile.TemporaryDirectory() as folder:
    checkpoint.save(f"{{folder}}/a", optimizer=optimizer, module=model)
    checkpoint.restore(f"{{folder}}/a", optimizer=optimizer, module=model)
""",
    ),
}


def after_import(face: Face, run: Callable[[str], str]) -> Lines:
    """Return the lines of each module that is loaded when a front end has been imported.

    Args:
        face: The front end.
        run: Runs a program in a fresh process, and gives what it printed.
    """
    return json.loads(run(f"{face.imports}\n{_COUNT}"))


def after_training(face: Face, run: Callable[[str], str]) -> Lines:
    """Return the lines of each module that is loaded after a first training."""
    program = f"{face.imports}\n{_MODEL}{face.training}\n{_COUNT}"
    lines_by_module: Lines = json.loads(run(program))
    return json.loads(run(program)) if _COMPILER in lines_by_module else lines_by_module


def add_up(lines_by_module: Lines) -> tuple[int, int]:
    """Return the lines (of code, in total) of all modules."""
    code, total = map(sum, zip(*lines_by_module.values(), strict=True))
    return code, total


def _run(program: str) -> str:
    command = [sys.executable, "-c", program]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        raise SystemExit(process.stderr)
    return process.stdout


def _table() -> str:
    columns = "imported", "total", "files", "trained", "total", "files", "bound", "total"
    rows: list[tuple[str, ...]] = [("", *columns)]
    for name, face in FACES.items():
        figures: list[str] = []
        for lines in (after_import(face, _run), after_training(face, _run)):
            figures += [*(f"{count:,}" for count in add_up(lines)), str(len(lines))]
        rows.append((name, *figures, *(f"{bound:,}" for bound in BOUNDS.get(name, ()))))
    return "\n".join(
        f"{name:<18}" + "".join(f"{cell:>10}" for cell in cells) for name, *cells in rows
    )


def _rooms(face: Face) -> str:
    imported, trained = after_import(face, _run), after_training(face, _run)
    rooms: Counter[str] = Counter()
    for name, (code, _) in trained.items():
        rooms[".".join(name.split(".")[:2])] += code
    text: list[str] = []
    for room, lines in rooms.most_common():
        text.append(f"{lines:>7,}  {room}")
        for name in sorted(trained):
            if name == room or name.startswith(f"{room}."):
                late = "" if name in imported else "   (in training)"
                text.append(f"{trained[name][0]:>7,}      {name}{late}")
    return "\n".join(text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("face", nargs="?", choices=FACES)
    chosen = parser.parse_args().face
    sys.stdout.write((_rooms(FACES[chosen]) if chosen else _table()) + "\n")
