"""A rank that is lost: reports of the others, as JSON. Run by `test_distribute_lost_rank.py`."""

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
LOST_STEP = 3  # the step in which it is lost


def lose(fault: str) -> None:
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault == "exit":
        sys.exit(3)
    else:
        raise RuntimeError("lost")


class Stalls(threading.Thread):
    """Seconds for which the machine kept this process from running."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.seconds = 0.0

    def run(self) -> None:
        while True:
            start = time.monotonic()
            time.sleep(0.05)
            self.seconds += time.monotonic() - start - 0.05


def main() -> None:  # noqa: C901
    rank, path, count = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    fault, moment, *kind = sys.argv[4].split("-")
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
    number, checkpoint_path = 0, str(Path(path).parent / "saved")

    def step() -> None:
        if (rank, number, moment) == (1, LOST_STEP, "before"):
            lose(fault)
        opt.apply_gradients([(torch.ones(size), w)])
        if is_shared and number == 1:
            checkpoint.save(checkpoint_path, optimizer=opt, variables=[w])
        if (rank, number, moment) == (1, LOST_STEP, "after"):
            lose(fault)

    sender: Any = Scatter if is_shared else Bucket
    real = sender.send

    def send(self: Any, ranks: Ranks, ordered: bool) -> None:
        if (rank, number, moment) == (1, LOST_STEP, "during"):
            lose(fault)
        real(self, ranks, ordered)

    sender.send = send
    real_join = shared_step.join_parts

    def join(*args: Any) -> None:
        if (rank, number, moment) == (1, LOST_STEP, "joining"):
            lose(fault)
        real_join(*args)

    shared_step.join_parts = join
    stalls = Stalls()
    stalls.start()
    start = stalled = 0.0
    try:
        while True:
            number += 1
            if number == LOST_STEP + (moment == "after"):
                strategy.ranks._timeout = timedelta(seconds=TIMEOUT)
            start, stalled = time.monotonic(), stalls.seconds
            strategy.run(step)
    except ReplicaLostError as error:
        seconds = time.monotonic() - start - (stalls.seconds - stalled)
        second_error = save = ""
        try:
            strategy.run(step)
        except ReplicaLostError as later_error:
            second_error = str(later_error)
        try:
            checkpoint.save(checkpoint_path, optimizer=opt, variables=[w])
        except ReplicaLostError as later_error:
            save = str(later_error)
        report = {
            "message": str(error),
            "again": second_error,
            "save": save,
            "seconds": seconds,
            "steps": int(opt.iterations),
            "first": w[0].item(),
            "alike": bool((w == w[0]).all()),
            "slots": [float(slot.flatten()[0]) for slot in opt.weights[1:]],
            "saved": checkpoint_path,
        }
        print(json.dumps(report), flush=True)
    os._exit(0)  # a group without one of its ranks cannot be left


if __name__ == "__main__":
    main()
