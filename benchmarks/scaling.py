"""Estimated traffic and memory of a step on N ranks, with measurements of this machine.

    python benchmarks/scaling.py

prints the tables of docs/scaling.md.
"""

from __future__ import annotations

from dataclasses import dataclass
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
    """Estimates for a step of Adam, per rank.

    Attributes:
        parameters: The number of parameters.
        ranks: The number of ranks.
        width: Bytes of a parameter and of its gradient.
        masters: Bytes of its float32 master.
    """

    parameters: int
    ranks: int
    width: int = WIDE
    masters: int = 0

    @property
    def sent(self) -> float:
        """Return the bytes that a ring sends: a reduce-scatter and an all-gather of gradients.

        With shards, the gather is of the variables, which have as many bytes.
        """
        return 2 * (self.ranks - 1) / self.ranks * self.width * self.parameters

    @property
    def seconds(self) -> float:
        """Return the minimum seconds of sending on the network above, without gaps."""
        return self.sent / LINK + 2 * (self.ranks - 1) * HOP

    @property
    def whole(self) -> float:
        """Return the bytes of variables, gradients, buckets, masters and slots."""
        return (3 * self.width + self.masters + SLOTS) * self.parameters

    @property
    def sharded(self) -> float:
        """Return the bytes as in `whole`, with masters and slots of this rank's shard only."""
        shard_bytes = (self.masters + SLOTS) * (self.parameters / self.ranks + LEAF)
        return 3 * self.width * self.parameters + shard_bytes

    @property
    def partials(self) -> float:
        """Return the bytes of one norm's partial sums, a float64 per leaf and rank."""
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
            cells = [_size(size) for size in (step.whole, step.sharded, step.partials)]
            power = len(str(parameters)) - 1
            lines.append(
                f"| 10^{power} | {ranks:,} | {_size(step.sent)} | {_time(step.seconds)} |"
                f" {' | '.join(cells)} |"
            )
    return lines


def _measured() -> dict[str, float]:
    """Measure on one rank; return the seconds of a sum over all ranks by the size of the tensor."""
    torch.set_num_threads(1)
    ranks = Strategy().ranks
    seconds_by_name: dict[str, float] = {}
    for name, count in (("small", 1), ("bucket", SIZE // WIDE)):
        tensor, times = torch.zeros(count), list[float]()
        for _ in range(REPEATS):
            distributed.barrier()
            begin = perf_counter()
            ranks.add(tensor)
            times.append(perf_counter() - begin)
        seconds_by_name[name] = median(times)
    return seconds_by_name


def main() -> None:
    """Print the measurements and the tables."""
    print("| ranks here | sum of 4 bytes | sum of a bucket (25 MiB) | bytes a second |")
    print("|---|---|---|---|")
    for count in (2, 4):
        seconds = launch_ranks(count, _measured)
        rate = 2 * (count - 1) / count * SIZE / seconds["bucket"]
        print(
            f"| {count} | {1e3 * seconds['small']:.3g} ms | {1e3 * seconds['bucket']:.3g} ms |"
            f" {_size(rate)} |"
        )
    print("\nfloat32:\n", *_table(WIDE, 0), sep="\n")
    print("\nbfloat16 with float32 masters:\n", *_table(NARROW, WIDE), sep="\n")


if __name__ == "__main__":
    main()
