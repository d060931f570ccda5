"""Trainings on several ranks of this machine, beside torch's.

    python benchmarks/ranks.py [--ranks 1 2 4]

A step is forward, backward, the sums over all ranks and Adam, of an MLP whose gradients are so many
bytes; one thread a rank, gloo. All take turns in the same processes.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from figure import Figure
from rich.console import Console
from rich.table import Table
from torch import distributed, nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

from thalweg._cli.bench.timing import busy_elsewhere, no_collection
from thalweg._cli.launch import launch_ranks
from thalweg.distribute import Strategy
from thalweg.keras.optimizers import Adam

WIDTHS = {"4 kB": 16, "1 MB": 256, "10 MB": 800, "40 MB": 1600}  # of four layers
JUDGED = "10 MB", "40 MB"
LAYERS, BATCH = 4, 16
ROUNDS, STEPS = 15, 4
RATE = 1e-4

ORDERED = "thalweg ordered"

Step = Callable[[], Any]
Made = tuple[Step, Callable[[], int]]  # a step, and the bytes of the slots that a rank has after it


def _model(width: int) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(LAYERS):
        layers += [nn.Linear(width, width), nn.Tanh()]
    return nn.Sequential(*layers)


def _inputs(width: int) -> Callable[[], Sequence[torch.Tensor]]:
    """New batches at every step, so that gradients keep their size."""
    generator = torch.Generator().manual_seed(1 + distributed.get_rank())
    return lambda: torch.randn(2, BATCH, width, generator=generator)


def _ours(width: int, **options: Any) -> Made:
    model, optimizer, strategy = _model(width), Adam(RATE), Strategy(**options)
    variables, batch, ranks = list(model.parameters()), _inputs(width), strategy.ranks.size

    def step() -> None:
        given, wanted = batch()

        def loss() -> torch.Tensor:
            return mse_loss(model(given), wanted) / ranks

        strategy.run(optimizer.minimize, (loss, variables))

    return step, lambda: _bytes(optimizer.variables()) - optimizer.iterations.nbytes


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    """The memory that tensors lie in."""
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sum({each.data_ptr(): each.nbytes() for each in storages}.values())


def _theirs(width: int, make: Callable[[Any], torch.optim.Optimizer]) -> Made:
    model, batch = DistributedDataParallel(_model(width)), _inputs(width)
    optimizer = make(model.parameters())

    def step() -> None:
        given, wanted = batch()
        optimizer.zero_grad()
        mse_loss(model(given), wanted).backward()
        optimizer.step()

    def slots() -> int:
        own = optimizer.optim if isinstance(optimizer, ZeroRedundancyOptimizer) else optimizer
        kept = [each for state in own.state.values() for each in state.values()]
        return _bytes(each for each in kept if each.dim())  # step numbers are none

    return step, slots


def _fused(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=RATE, fused=True)


def _zero(parameters: Any) -> torch.optim.Optimizer:
    return ZeroRedundancyOptimizer(parameters, torch.optim.Adam, lr=RATE, fused=True)


CONTENDERS: dict[str, Callable[[int], Made]] = {
    "thalweg": _ours,
    "DDP": lambda width: _theirs(width, _fused),
    "thalweg sharded": lambda width: _ours(width, shard_slots=True),
    "ZeRO": lambda width: _theirs(width, _zero),
    ORDERED: lambda width: _ours(width, reduction="ordered"),
}


UNITS = {"thalweg": "DDP", "thalweg sharded": "ZeRO", ORDERED: "thalweg"}


def _timed(step: Step) -> float:
    """Seconds of a step, from when all ranks begin."""
    distributed.barrier()
    begin = perf_counter()
    for _ in range(STEPS):
        step()
    distributed.barrier()
    return (perf_counter() - begin) / STEPS


def _measured(file: str) -> None:
    """What one rank does; rank 0 writes the seconds of each round, by payload and contender."""
    torch.set_num_threads(1)
    ranks = Strategy().ranks
    found: dict[str, Any] = {}
    for payload, width in WIDTHS.items():
        able = not ranks.size & (ranks.size - 1)  # to add in order
        made = {k: make(width) for k, make in CONTENDERS.items() if able or k != ORDERED}
        steps = {name: step for name, (step, _) in made.items()}
        for step in steps.values():
            _timed(step)
        slots = {name: count() for name, (_, count) in made.items()}
        times: dict[str, list[float]] = {name: [] for name in steps}
        with no_collection():
            began, busy = perf_counter(), busy_elsewhere()
            for number in range(ROUNDS):
                order = list(steps) if number % 2 == 0 else list(reversed(steps))
                for name in order:
                    times[name].append(_timed(steps[name]))
            others = (busy_elsewhere() - busy) / (perf_counter() - began) - (ranks.size - 1)
        found[payload] = {"times": times, "slots": slots, "others": max(others, 0.0)}
    if ranks.rank == 0:
        Path(file).write_text(json.dumps(found))


def measured(count: int) -> dict[str, Any]:
    """Seconds of each round by payload and contender, on so many ranks."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "found.json"
        launch_ranks(count, _measured, str(file))
        return json.loads(file.read_text())


def ranks() -> list[Figure]:
    """Steps on two ranks in units of torch's."""
    all_found = measured(2)
    slots = all_found[JUDGED[0]]["slots"]
    figures = [
        Figure(
            "ranks_2_slots", slots["thalweg sharded"] / slots["ZeRO"], 1.01,
            note="bytes of slots on rank 0, beside ZeroRedundancyOptimizer's",
        )
    ]  # fmt: skip
    pairs = (("ranks_2", "thalweg", "DDP"), ("ranks_2_sharded", "thalweg sharded", "ZeRO"))
    for payload in JUDGED:
        found = all_found[payload]
        times = {name: 1e3 * median(each) for name, each in found["times"].items()}
        figures += [
            Figure(
                f"{name}_{payload.replace(' ', '')}", _ratio(found["times"], one, other), 1.0,
                disturbance=found["others"], times={each: times[each] for each in (one, other)},
            )
            for name, one, other in pairs
        ]  # fmt: skip
    return figures


def _ratio(times: dict[str, list[float]], one: str, other: str) -> float:
    return median(a / b for a, b in zip(times[one], times[other], strict=True))


def _print(all_found: dict[int, dict[str, Any]]) -> None:
    table = Table(title="milliseconds of a step; in units of torch's, ordered: of thalweg's")
    for heading in ("ranks", "gradients", *CONTENDERS, "MB of slots on rank 0", "noise"):
        table.add_column(heading, justify="right")
    for count, found in all_found.items():
        for payload, one in found.items():
            times = one["times"]
            cells = {name: f"{1e3 * median(each):.1f}" for name, each in times.items()}
            for name, unit in UNITS.items():
                if name in times:
                    cells[name] += f" ({_ratio(times, name, unit):.2f})"
            row = [cells.get(name, "-") for name in CONTENDERS]
            slots = one["slots"]
            row.append(" ".join(f"{each / 1e6:.2f}" for each in slots.values()))
            table.add_row(str(count), payload, *row, f"{one['others']:.1f}")
    Console(width=110).print(table)


def main() -> None:
    """Print the table for each number of ranks."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    _print({count: measured(count) for count in parser.parse_args().ranks})


if __name__ == "__main__":
    main()
