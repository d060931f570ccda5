"""What a step of N ranks sends and holds, on paper, from what this machine was measured at.

    python benchmarks/scaling.py

prints the tables of docs/scaling.md.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from torch import distributed

from thalweg._cli.launch import launch_ranks
from thalweg._engines.reduction_order import LEAF
from thalweg.distribute import Strategy
from thalweg.distribute.buckets import SIZE

PARAMETERS = [10**power for power in (8, 9, 10, 11, 12)]
RANKS = (8, 64, 512, 4096)
LINK = 25e9  # bytes a second and direction: an adapter of 200 Gbit/s a rank
HOP = 5e-6  # seconds from rank to rank on such a network
WIDE, NARROW, SLOTS = 4, 2, 8  # bytes of float32, of bfloat16, of Adam's two slots
REPEATS = 20


@dataclass(frozen=True)
class Step:
    """A step of Adam over `parameters` on `ranks`, each number for one rank.

    Attributes:
        parameters: How many there are.
        ranks: How many ranks.
        width: Bytes of a parameter and of its gradient.
        masters: Bytes of its float32 master.
    """

    parameters: int
    ranks: int
    width: int = WIDE
    masters: int = 0

    @property
    def sent(self) -> float:
        """Bytes that a ring sends: a reduce-scatter and an all-gather of the gradients.

        Sharded, the gather is of the variables, which are as many bytes.
        """
        return 2 * (self.ranks - 1) / self.ranks * self.width * self.parameters

    @property
    def seconds(self) -> float:
        """What sending takes at least on the network above: buckets follow one another closely."""
        return self.sent / LINK + 2 * (self.ranks - 1) * HOP

    @property
    def whole(self) -> float:
        """Bytes of variables, gradients, buckets, masters and slots."""
        return (3 * self.width + self.masters + SLOTS) * self.parameters

    @property
    def sharded(self) -> float:
        """As `whole`, with masters and slots of this rank's shard alone."""
        own = (self.masters + SLOTS) * (self.parameters / self.ranks + LEAF)
        return 3 * self.width * self.parameters + own

    @property
    def partials(self) -> float:
        """Bytes of one norm's partial sums, a float64 for each leaf of every rank."""
        return 8 * -(-self.parameters // LEAF)


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 999.5 or unit == "TB":
            return f"{count:.3g} {unit}"
        count /= 1000
    raise AssertionError


def _time(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s"


def _table(width: int, masters: int) -> list[str]:
    lines = [
        "| parameters | ranks | sent a step | at least | memory, whole | sharded | partials |",
        "|---|---|---|---|---|---|---|",
    ]
    for parameters in PARAMETERS:
        for ranks in RANKS:
            step = Step(parameters, ranks, width, masters)
            cells = [_size(each) for each in (step.whole, step.sharded, step.partials)]
            power = len(str(parameters)) - 1
            lines.append(
                f"| 10^{power} | {ranks:,} | {_size(step.sent)} | {_time(step.seconds)} |"
                f" {' | '.join(cells)} |"
            )
    return lines


def _measured(file: str) -> None:
    torch.set_num_threads(1)
    ranks = Strategy().ranks
    found: dict[str, float] = {}
    for name, count in (("small", 1), ("bucket", SIZE // WIDE)):
        tensor, times = torch.zeros(count), list[float]()
        for _ in range(REPEATS):
            distributed.barrier()
            begin = perf_counter()
            ranks.add(tensor)
            times.append(perf_counter() - begin)
        found[name] = median(times)
    if ranks.rank == 0:
        Path(file).write_text(json.dumps(found))


def main() -> None:
    """Print what was measured, and the tables."""
    print("| ranks here | sum of 4 bytes | sum of a bucket (25 MiB) | bytes a second |")
    print("|---|---|---|---|")
    for count in (2, 4):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "found.json"
            launch_ranks(count, _measured, str(file))
            found = json.loads(file.read_text())
        rate = 2 * (count - 1) / count * SIZE / found["bucket"]
        print(
            f"| {count} | {1e3 * found['small']:.3g} ms | {1e3 * found['bucket']:.3g} ms |"
            f" {_size(rate)} |"
        )
    print("\nfloat32:\n", *_table(WIDE, 0), sep="\n")
    print("\nbfloat16 with float32 masters:\n", *_table(NARROW, WIDE), sep="\n")


if __name__ == "__main__":
    main()
