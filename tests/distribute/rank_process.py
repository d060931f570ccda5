"""Process of one rank: its process group, and its report on cases."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from busy import scale_to_load


@contextmanager
def joined_group(rank: int, store: str | Path, count: int, seconds: float = 60) -> Iterator[None]:
    """Join a group of `count` ranks that meet in the file `store`; leave it after the block."""
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=count,
        timeout=timedelta(seconds=scale_to_load(seconds)),
    )
    torch.set_num_threads(1)
    yield
    # Not after an error: other ranks may wait for this one.
    distributed.destroy_process_group()


def report_cases(cases: Mapping[str, Callable[[int, Path], Any]]) -> None:
    """Print the results of the cases in the arguments rank, store, count, folder, names."""
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", ".*returned a view tensor")  # torch's own, of FSDP2
    count, folder = int(sys.argv[3]), Path(sys.argv[4])
    with joined_group(int(sys.argv[1]), sys.argv[2], count):
        names = sys.argv[5:] or list(cases)
        sys.stdout.write(json.dumps({name: cases[name](count, folder) for name in names}))
