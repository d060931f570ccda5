"""Print how much of the library each face loads: on import, and after two steps, save and load.

    python tools/closure.py              a table of lines, one row per face
    python tools/closure.py keras        the modules of one face, the largest rooms first

Lines are those of the files of `thalweg` that are loaded in a fresh process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

MODEL = """
import torch
weight = torch.nn.Parameter(torch.zeros(4, 3))
bias = torch.nn.Parameter(torch.zeros(3))
def loss():
    return ((torch.ones(2, 4) @ weight + bias - 1) ** 2).sum()
"""
# Of each face: what is imported, what a first training does with it, the most lines after each.
FACES = {
    "optim": (
        "from thalweg import optim",
        """
optimizer = optim.Adam([weight, bias])
for _ in range(2):
    optimizer.zero_grad()
    loss().backward()
    optimizer.step()
torch.save(optimizer.state_dict(), path)
optimizer.load_state_dict(torch.load(path))
""",
    ),
    "optim.tensorflow": (
        "from thalweg.optim import tensorflow",
        """
optimizer = tensorflow.Adam([weight, bias])
for _ in range(2):
    optimizer.zero_grad()
    loss().backward()
    optimizer.step()
torch.save(optimizer.state_dict(), path)
optimizer.load_state_dict(torch.load(path))
""",
    ),
    "keras": (
        "from thalweg import keras",
        """
optimizer = keras.optimizers.Adam()
for _ in range(2):
    optimizer.minimize(loss, [weight, bias])
torch.save(optimizer.get_weights(), path)
optimizer.set_weights(torch.load(path, weights_only=False))
""",
    ),
    "v1": (
        "from thalweg import v1",
        """
optimizer = v1.train.AdamOptimizer()
for _ in range(2):
    optimizer.minimize(loss, var_list=[weight, bias])
""",
    ),
    "checkpoint": (
        "from thalweg import checkpoint, optim",
        """
model = torch.nn.Linear(4, 3)
optimizer = optim.Adam(model.parameters())
for _ in range(2):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
checkpoint.save(path, optimizer, model=model)
checkpoint.restore(path, optimizer, model=model)
""",
    ),
}
COUNT = """
import json, sys
from pathlib import Path
files = {name: module.__file__ for name, module in sorted(sys.modules.items())
         if name.split(".")[0] == "thalweg" and getattr(module, "__file__", None)}
print(json.dumps({name: len(Path(file).read_text().splitlines()) for name, file in files.items()}))
"""


def loaded(source: str) -> dict[str, int]:
    """The lines of each module of the library that a fresh process has after running `source`."""
    run = subprocess.run(
        [sys.executable, "-c", source + COUNT], capture_output=True, text=True, check=False
    )
    if run.returncode:
        raise SystemExit(run.stderr)
    return json.loads(run.stdout.splitlines()[-1])


if __name__ == "__main__":
    name = sys.argv[1]
    imp, train = FACES[name]
    for src in (imp, "import tempfile\npath = tempfile.mkdtemp()+'/x.pt'\n" + MODEL + imp + train):
        files = loaded(src)
        rooms = Counter()
        for k, v in files.items():
            rooms[".".join(k.split(".")[1:2])] += v
        print(sum(files.values()), len(files))
        print(rooms)
    for k, v in files.items():
        print(v, k)
