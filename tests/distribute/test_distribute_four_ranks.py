"""Wide tests of ranks: four of them, Keras' `fit`, and one that is killed and started again."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import distributed

import distribute_cases
import elastic_killed
from parallel_workers import run_ranks
from test_distribute import check_resumed
from thalweg._cli.registry import by_rule
from thalweg._formats import container
from thalweg.checkpoint import latest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not distributed.is_available(), reason="torch without torch.distributed"),
]

FIT = """
import json, os, sys, warnings
os.environ["KERAS_BACKEND"] = "torch"
import numpy as np
import torch
from torch import distributed
import thalweg.tf as tf

warnings.simplefilter("ignore", DeprecationWarning)  # Keras' own
rank, path, count = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
torch.set_num_threads(1)
generator = np.random.default_rng(0)
x, y = generator.standard_normal((2, 24, 3)).astype("float32")
y = y[:, :1]

def trained(strategy, examples, batch_size):
    tf.keras.utils.set_random_seed(0)
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(4, "tanh"), tf.keras.layers.Dense(1)])
        model.compile(tf.keras.optimizers.Adam(0.01, global_clipnorm=0.1), "mse")
        model.fit(x[examples], y[examples], batch_size=batch_size, epochs=3, shuffle=False,
                  verbose=0)
    return [each.tolist() for each in model.get_weights()]

alone = trained(tf.distribute.get_strategy(), slice(None), 6 * count)
distributed.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=count)
replicas = trained(tf.distribute.MirroredStrategy(), slice(rank, None, count), 6)
distributed.destroy_process_group()
print(json.dumps([alone, replicas]))
"""

ENDS = """
import atexit, json, pathlib

def tell():
    tasks = pathlib.Path("/proc/self/task").iterdir()
    print(json.dumps([(task / "comm").read_text().strip() for task in tasks]))

atexit.register(tell)  # after all that is registered later
import torch
from thalweg.distribute import Strategy

torch.set_num_threads(1)
ranks = Strategy(timeout=60).ranks
ranks.take_maximum(torch.ones(1))
tell()
"""


def test_fit_on_ranks_equals_one_process(tmp_path: Path) -> None:
    first, *peers = run_ranks(FIT, tmp_path)
    single, replicas = first
    assert all(peer == first for peer in peers)
    for expected, actual in zip(single, replicas, strict=True):
        assert actual == [pytest.approx(row, rel=1e-4, abs=1e-6) for row in expected]


def test_four_ranks_resume_sum_and_write_files(tmp_path: Path) -> None:
    names = "resumed_jobs", "ordered_sums", "files_that_several_ranks_write", "many_buckets"
    kernels = "replicas_hold_equal_bits_in_kernels"
    reports = run_ranks(Path(distribute_cases.__file__), tmp_path, 4, *names, kernels)
    check_resumed(reports, 4)
    for report in reports:
        assert report["ordered_sums"][:3] == [True, True, [1.0, 2.0]]
        assert report["files_that_several_ranks_write"][0] == [True] * 3
        assert report["many_buckets"] == [True] * 3
        names, differ = report[kernels]
        assert len(names) == len(by_rule())
        assert differ == []


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads as Linux does")
def test_threads_of_a_joined_group_end_before_exit() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    meeting = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", ENDS],
            env={**os.environ, **meeting, "RANK": rank},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    ]
    try:
        for process in ranks:
            outputs = map(json.loads, process.communicate(timeout=100)[0].splitlines())
            old, new = [[name for name in names if "gloo" in name] for names in outputs]
            assert (bool(old), new) == (True, [])
            assert process.returncode == 0
    finally:
        for process in ranks:
            process.kill()
            process.communicate()


def test_killed_rank_is_restarted(tmp_path: Path) -> None:
    example = str(Path(__file__).parents[2] / "examples/elastic.py")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    elastic = [*torchrun, "--nproc-per-node", "2", "--max-restarts", "1", elastic_killed.__file__]
    outputs = {}
    for name, command in (("killed", elastic), ("whole", [sys.executable])):
        outputs[name] = subprocess.run(
            [*command, example, str(tmp_path / name)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=200,
        ).stdout.strip()
    first_step = elastic_killed.KILL_STEP // 4 * 4  # the step after the last checkpoint
    loss = outputs["whole"].removeprefix("1 ranks, steps 0 to 19: loss ")
    assert outputs["killed"] == f"2 ranks, steps {first_step} to 19: loss {loss}"
    files = [latest(tmp_path / name) for name in outputs]
    tensors, other_tensors = [container.mapped(path).tensors for path in files if path is not None]
    assert tensors.keys() == other_tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(tensor.tensor(), other_tensors[name].tensor()), name
