"""Trainings on several ranks of this machine, beside torch's.

    python benchmarks/ranks.py [--ranks 1 2 4] [--bytes]

A step is forward, backward, the sums over all ranks and Adam, of an MLP whose gradients are so many
bytes; one thread a rank, gloo. All take turns in the same processes. With --bytes, it runs
`mesh_bytes.py` instead.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from time import perf_counter
from typing import Any

import mesh_bytes
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
TARGET_PAYLOADS = "10 MB", "40 MB"
LAYERS, BATCH = 4, 16
ROUNDS, STEPS = 15, 4
RATE = 1e-4

ORDERED_NAME = "thalweg ordered"

Step = Callable[[], Any]
# A step, and a function that returns the bytes of the slots of this rank.
StepAndBytes = tuple[Step, Callable[[], int]]


def _model(width: int) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(LAYERS):
        layers += [nn.Linear(width, width), nn.Tanh()]
    return nn.Sequential(*layers)


def _inputs(width: int) -> Callable[[], Sequence[torch.Tensor]]:
    """Return a function that returns a new batch, so that gradients do not vanish."""
    generator = torch.Generator().manual_seed(1 + distributed.get_rank())
    return lambda: torch.randn(2, BATCH, width, generator=generator)


def _ours(width: int, **options: Any) -> StepAndBytes:
    model, optimizer, strategy = _model(width), Adam(RATE), Strategy(**options)
    variables, batch, ranks = list(model.parameters()), _inputs(width), strategy.ranks.size

    def step() -> None:
        inputs, targets = batch()

        def loss() -> torch.Tensor:
            return mse_loss(model(inputs), targets) / ranks

        strategy.run(optimizer.minimize, (loss, variables))

    return step, lambda: _bytes(optimizer.variables()) - optimizer.iterations.nbytes


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of the storages of tensors."""
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def _theirs(width: int, make: Callable[[Any], torch.optim.Optimizer]) -> StepAndBytes:
    model, batch = DistributedDataParallel(_model(width)), _inputs(width)
    optimizer = make(model.parameters())

    def step() -> None:
        inputs, targets = batch()
        optimizer.zero_grad()
        mse_loss(model(inputs), targets).backward()
        optimizer.step()

    def slots() -> int:
        inner = optimizer.optim if isinstance(optimizer, ZeroRedundancyOptimizer) else optimizer
        entries = [entry for state in inner.state.values() for entry in state.values()]
        # Step numbers are not slots.
        return _bytes(entry for entry in entries if entry.dim())

    return step, slots


def _fused(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=RATE, fused=True)


def _zero(parameters: Any) -> torch.optim.Optimizer:
    return ZeroRedundancyOptimizer(parameters, torch.optim.Adam, lr=RATE, fused=True)


CONTENDERS: dict[str, Callable[[int], StepAndBytes]] = {
    "thalweg": _ours,
    "DDP": lambda width: _theirs(width, _fused),
    "thalweg sharded": lambda width: _ours(width, shard_slots=True),
    "ZeRO": lambda width: _theirs(width, _zero),
    ORDERED_NAME: lambda width: _ours(width, reduction="ordered"),
}


UNITS = {"thalweg": "DDP", "thalweg sharded": "ZeRO", ORDERED_NAME: "thalweg"}


def _timed(step: Step) -> float:
    """Return the seconds of a step, between barriers of all ranks."""
    distributed.barrier()
    begin = perf_counter()
    for _ in range(STEPS):
        step()
    distributed.barrier()
    return (perf_counter() - begin) / STEPS


def _measured() -> dict[str, Any]:
    """Measure on one rank; return the seconds of each round by payload and contender."""
    torch.set_num_threads(1)
    ranks = Strategy().ranks
    report: dict[str, Any] = {}
    for payload, width in WIDTHS.items():
        # Ordered sums require a power of 2.
        able = not ranks.size & (ranks.size - 1)
        contenders = {k: make(width) for k, make in CONTENDERS.items() if able or k != ORDERED_NAME}
        steps = {name: step for name, (step, _) in contenders.items()}
        for step in steps.values():
            _timed(step)
        slots = {name: count() for name, (_, count) in contenders.items()}
        times: dict[str, list[float]] = {name: [] for name in steps}
        with no_collection():
            began, busy = perf_counter(), busy_elsewhere()
            for number in range(ROUNDS):
                order = list(steps) if number % 2 == 0 else list(reversed(steps))
                for name in order:
                    times[name].append(_timed(steps[name]))
            cores = (busy_elsewhere() - busy) / (perf_counter() - began) - (ranks.size - 1)
        report[payload] = {"times": times, "slots": slots, "others": max(cores, 0.0)}
    return report


def ranks() -> list[Figure]:
    """Measure steps on two ranks in units of torch's."""
    report = launch_ranks(2, _measured)
    slots = report[TARGET_PAYLOADS[0]]["slots"]
    figures = [
        Figure(
            "ranks_2_slots", slots["thalweg sharded"] / slots["ZeRO"], 1.01,
            note="bytes of slots on rank 0, beside ZeroRedundancyOptimizer's",
        )
    ]  # fmt: skip
    pairs = (("ranks_2", "thalweg", "DDP"), ("ranks_2_sharded", "thalweg sharded", "ZeRO"))
    for payload in TARGET_PAYLOADS:
        payload_report = report[payload]
        times = {name: 1e3 * median(seconds) for name, seconds in payload_report["times"].items()}
        figures += [
            Figure(
                f"{name}_{payload.replace(' ', '')}",
                _ratio(payload_report["times"], own_name, peer_name), 1.0,
                disturbance=payload_report["others"],
                times={contender: times[contender] for contender in (own_name, peer_name)},
            )
            for name, own_name, peer_name in pairs
        ]  # fmt: skip
    return figures


def _ratio(times: dict[str, list[float]], name: str, unit_name: str) -> float:
    return median(a / b for a, b in zip(times[name], times[unit_name], strict=True))


def _print(reports: dict[int, dict[str, Any]]) -> None:
    table = Table(title="milliseconds of a step; in units of torch's, ordered: of thalweg's")
    for heading in ("ranks", "gradients", *CONTENDERS, "MB of slots on rank 0", "noise"):
        table.add_column(heading, justify="right")
    for count, report in reports.items():
        for payload, payload_report in report.items():
            times = payload_report["times"]
            cells = {name: f"{1e3 * median(seconds):.1f}" for name, seconds in times.items()}
            for name, unit in UNITS.items():
                if name in times:
                    cells[name] += f" ({_ratio(times, name, unit):.2f})"
            row = [cells.get(name, "-") for name in CONTENDERS]
            slots = payload_report["slots"]
            row.append(" ".join(f"{size / 1e6:.2f}" for size in slots.values()))
            table.add_row(str(count), payload, *row, f"{payload_report['others']:.1f}")
    Console(width=110).print(table)


def main() -> None:
    """Print the table for each number of ranks, or that of `mesh_bytes`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--bytes", action="store_true", help="the bytes of steps over matrices")
    options = parser.parse_args()
    if options.bytes:
        mesh_bytes.print_table()
    else:
        _print({count: launch_ranks(count, _measured) for count in options.ranks})


if __name__ == "__main__":
    main()
