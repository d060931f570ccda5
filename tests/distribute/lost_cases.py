"""A rank that is lost: what the others find, as JSON. Run by `test_distribute_lost_rank.py`."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from busy import scale_to_load
from thalweg import ReplicaLostError, Variable, checkpoint
from thalweg._engines.reduction_order import LEAF
from thalweg.distribute import Strategy
from thalweg.distribute.buckets import Bucket
from thalweg.distribute.process_group import Ranks
from thalweg.distribute.sharding import sharded_step as shared_step
from thalweg.distribute.sharding.reduce_scatter import Scatter
from thalweg.keras.optimizers import Adam

PATIENCE = 60.0  # seconds, of steps in which nobody is lost, however busy the machine is
TIMEOUT = 3.0  # seconds
AT = 3  # the step in which it is lost


def lose(how: str) -> None:
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif how == "exit":
        sys.exit(3)
    else:
        raise RuntimeError("lost")


class Stalls(threading.Thread):
    """How long the machine kept this process from running where it was to run."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.seconds = 0.0

    def run(self) -> None:
        while True:
            begun = time.monotonic()
            time.sleep(0.05)
            self.seconds += time.monotonic() - begun - 0.05


def main() -> None:
    rank, path, count = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    how, when, *kind = sys.argv[4].split("-")
    is_shared = bool(kind)  # the slots
    patience = scale_to_load(PATIENCE)
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{path}",
        rank=rank,
        world_size=count,
        timeout=timedelta(seconds=patience),
    )
    torch.set_num_threads(1)
    strategy = Strategy(timeout=patience, shard_slots=is_shared)
    size = 2 * LEAF if is_shared else 1000
    w, opt = Variable(torch.zeros(size), name="w"), Adam(0.1)
    number, saved = 0, str(Path(path).parent / "saved")

    def step() -> None:
        if (rank, number, when) == (1, AT, "before"):
            lose(how)
        opt.apply_gradients([(torch.ones(size), w)])
        if is_shared and number == 1:
            checkpoint.save(saved, optimizer=opt, variables=[w])
        if (rank, number, when) == (1, AT, "after"):
            lose(how)

    sender: Any = Scatter if is_shared else Bucket
    real = sender.send

    def send(self: Any, ranks: Ranks, ordered: bool) -> None:
        if (rank, number, when) == (1, AT, "during"):
            lose(how)
        real(self, ranks, ordered)

    sender.send = send
    real_join = shared_step.join_parts

    def join(*args: Any) -> None:
        if (rank, number, when) == (1, AT, "joining"):
            lose(how)
        real_join(*args)

    shared_step.join_parts = join
    stalls = Stalls()
    stalls.start()
    begun = stalled = 0.0
    try:
        while True:
            number += 1
            if number == AT + (when == "after"):
                strategy.ranks._timeout = timedelta(seconds=TIMEOUT)
            begun, stalled = time.monotonic(), stalls.seconds
            strategy.run(step)
    except ReplicaLostError as error:
        seconds = time.monotonic() - begun - (stalls.seconds - stalled)
        again = save = ""
        try:
            strategy.run(step)
        except ReplicaLostError as other:
            again = str(other)
        try:
            checkpoint.save(saved, optimizer=opt, variables=[w])
        except ReplicaLostError as other:
            save = str(other)
        found = {
            "message": str(error),
            "again": again,
            "save": save,
            "seconds": seconds,
            "steps": int(opt.iterations),
            "first": w[0].item(),
            "alike": bool((w == w[0]).all()),
            "slots": [float(slot.flatten()[0]) for slot in opt.weights[1:]],
            "saved": saved,
        }
        print(json.dumps(found), flush=True)
    os._exit(0)  # a group without one of its ranks cannot be left


if __name__ == "__main__":
    main()
