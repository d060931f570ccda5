"""Numbers in files that are mapped for writing, then for reading only, at the same addresses."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys, warnings
import numpy as np
import torch
import thalweg.v1 as tf

warnings.simplefilter("ignore")
path, results = sys.argv[1], []
np.zeros(1, np.int64).tofile(path)
param, optimizer = torch.nn.Parameter(torch.ones(3)), tf.train.GradientDescentOptimizer(0.1)
for turn in range(8):
    for mode in ("r+", "r"):
        step = torch.from_numpy(np.memmap(path, mode=mode, dtype=np.int64)).view(())
        try:
            optimizer.apply_gradients([(torch.ones(3), param)], global_step=step)
            results.append("taken")
        except ValueError as error:
            results.append(type(error).__name__)
        del step
print(*results)
"""


def test_remapped_read_only_memory_raises(tmp_path) -> None:
    command = [sys.executable, "-X", "faulthandler", "-c", SCRIPT, str(tmp_path / "step")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert run.stdout.split() == ["taken", "LayoutError"] * 8, run.stderr
