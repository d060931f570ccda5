"""What a steady step of Adam costs here beside `torch.optim.Adam(fused=True)`.

Steps of several rules (`Mixed`, SGD with and without momentum) stand beside torch's optimizers that
it takes for them, and a rule that torch lacks (LAMB) beside AdamW.

    python benchmarks/steady.py [--face keras] [--repeats N]

Processor time of one thread, interleaved, the lowest fifth of the repeats: warm, with new gradients
at each step, cold, with 64 MB written between two steps, and between the passes of a training.
`figures.py` has the same as figures with targets.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from figure import Figure, watched
from loop import backward, model
from torch import Tensor
from torch.nn import Parameter

from thalweg import Variable, optim
from thalweg.keras import optimizers

SIZES = ((1, 64), (10, 64), (100, 64), (2000, 64), (2000, 1000))
MODES = ("warm", "new", "cold")
COLD = 16 << 20  # floats
LOOP = "loop"

# The most of torch's time that a step may take, by number of tensors: warm, with new gradients, and
# cold; and in the loop of a training.
TARGETS = {
    "optim": {1: (0.25, 0.45), 10: (0.25, 0.45), 100: (0.15, 0.25), 2000: (0.20, None)},
    "keras": {1: (0.35, 0.50), 10: (0.35, 0.50), 100: (0.25, 0.35), 2000: (0.22, None)},
}
LOOPS = {"optim": 0.88, "keras": 0.90}


class Cost(NamedTuple):
    """Microseconds of a step."""

    processor: float
    wall: float


class Row(NamedTuple):
    """What was measured of a step.

    Attributes:
        name: Its tensors.
        mode: What comes before it.
        own, other: What it costs here, and in torch.
        once: The share of the steps that were taken in one call.
        target: The most that `own` may be of `other`, if anything was promised.
    """

    name: str
    mode: str
    own: Cost
    other: Cost
    once: float
    target: float | None

    @property
    def ratio(self) -> float:
        return self.own.processor / self.other.processor

    @property
    def wall(self) -> float:
        return self.own.wall / self.other.wall


class OfTorch:
    """An optimizer over parameters.

    Args:
        params: The parameters; those that have no gradient get one.
        make: Makes it.
    """

    def __init__(self, params: list[Parameter], make: Callable[[list[Parameter]], Any]) -> None:
        self.params = params
        self.optimizer = make(params)

    def give(self, gradients: Sequence[Tensor]) -> None:
        for param, grad in zip(self.params, gradients, strict=True):
            param.grad = grad

    def gradients(self) -> list[Any]:
        return [param.grad for param in self.params]

    def step(self) -> None:
        self.optimizer.step()

    def taken(self) -> int:
        """How many steps were taken in one call."""
        return getattr(self.optimizer._cache.replay, "taken", 0)


class OfKeras:
    """The same through `apply_gradients`."""

    def __init__(self, variables: Sequence[Tensor]) -> None:
        self.variables = variables
        self.optimizer = optimizers.Adam()

    def give(self, gradients: Sequence[Tensor]) -> None:
        self.pairs = list(zip(gradients, self.variables, strict=True))

    def gradients(self) -> list[Any]:
        return [grad for grad, _ in self.pairs]

    def step(self) -> None:
        self.optimizer.apply_gradients(self.pairs)

    def taken(self) -> int:
        return getattr(self.optimizer._plans.now().replay, "taken", 0)


class Several(OfTorch):
    """One optimizer of torch for each half of the parameters."""

    def __init__(self, params: list[Parameter], *make: Callable[[list[Parameter]], Any]) -> None:
        half = len(params) // 2
        super().__init__(params[:half], make[0])
        self.params, self._other = params, make[1](params[half:])

    def step(self) -> None:
        self.optimizer.step()
        self._other.step()


def _of_torch(params: list[Parameter]) -> OfTorch:
    return OfTorch(params, lambda params: torch.optim.Adam(params, fused=True))


def _here(face: str, values: Sequence[Tensor]) -> Any:
    if face == "keras":
        return OfKeras([Variable(value) for value in values])
    return OfTorch([Parameter(value) for value in values], optim.Adam)


def cost(own: Any) -> Cost:
    """Of a step, in this thread."""
    wall, begin = time.perf_counter_ns(), time.thread_time_ns()
    own.step()
    return Cost((time.thread_time_ns() - begin) / 1e3, (time.perf_counter_ns() - wall) / 1e3)


def lowest(costs: Sequence[Cost]) -> Cost:
    return Cost(*(sorted(times)[len(times) // 5] for times in zip(*costs, strict=True)))


def compared(
    own: Any, other: Any, rounds: int, before: Callable[[Any], object]
) -> tuple[Cost, Cost, float]:
    """What a step costs here and there after `before` of each, and how many were one call."""
    found: dict[Any, list[Cost]] = {own: [], other: []}
    taken = own.taken()
    for _ in range(rounds):
        for each, costs in found.items():
            before(each)
            costs.append(cost(each))
    return lowest(found[own]), lowest(found[other]), (own.taken() - taken) / rounds


def small(face: str, repeats: int) -> Iterator[Row]:
    """Steps over tensors of few elements."""
    between = torch.zeros(COLD)
    ways: dict[str, Callable[[Any], object]] = {
        "warm": lambda own: None,
        "new": _with_new,
        "cold": lambda own: between.add_(1),
    }
    for count, size in SIZES:
        own = _here(face, [torch.randn(size) for _ in range(count)])
        other = _of_torch([Parameter(torch.randn(size)) for _ in range(count)])
        for each in (own, other):
            each.give([torch.randn(size) for _ in range(count)])
        for each in (own, other) * 4:
            each.step()
        rounds = max(10, repeats if count < 2000 else repeats // 8)
        often, rarely = TARGETS[face][count]
        for mode in MODES:
            costs = compared(own, other, rounds, ways[mode])
            yield Row(f"{count} of {size}", mode, *costs, rarely if mode == "cold" else often)


def _mixed(params: list[Parameter]) -> Any:
    one, other = _halves(params, {"rule": "AdamW"}, {"rule": "SGD", "momentum": 0.9})
    return optim.Mixed([one, other])


def _halves(params: list[Parameter], *options: dict[str, Any]) -> list[dict[str, Any]]:
    half = len(params) // 2
    return [
        {"params": own, **each}
        for own, each in zip((params[:half], params[half:]), options, strict=True)
    ]


def _sgd(home: Any, **how: Any) -> Callable[[list[Parameter]], Any]:
    return lambda params: home.SGD(_halves(params, {"momentum": 0.9}, {}), lr=0.1, **how)


def _adamw(params: list[Parameter]) -> Any:
    return torch.optim.AdamW(params, fused=True)


def _momentum(params: list[Parameter]) -> Any:
    return torch.optim.SGD(params, lr=1e-3, momentum=0.9, fused=True)


# What is measured beside Adam: here and in torch.
RULES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "Mixed": (lambda own: OfTorch(own, _mixed), lambda own: Several(own, _adamw, _momentum)),
    "two SGD": (
        lambda own: OfTorch(own, _sgd(optim)),
        lambda own: OfTorch(own, _sgd(torch.optim, fused=True)),
    ),
    "LAMB": (lambda own: OfTorch(own, optim.LAMB), lambda own: OfTorch(own, _adamw)),
}


def of_rules(repeats: int) -> Iterator[Row]:
    """Steps of several rules, and of those that measure, with new gradients at each."""
    for name, makers in RULES.items():
        for count, size in ((2, 64), (10, 64), (100, 64)):
            own, other = (
                make([Parameter(torch.randn(size)) for _ in range(count)]) for make in makers
            )
            for each in (own, other):
                each.give([torch.randn(size) for _ in range(count)])
            for each in (own, other) * 4:
                each.step()
            costs = compared(own, other, repeats, _with_new)
            yield Row(f"{name}, {count} of {size}", "new", *costs, None)


def _with_new(own: Any) -> None:
    own.give([torch.empty_like(grad).copy_(grad) for grad in own.gradients()])


def training(face: str, repeats: int) -> Row:
    """The step of a training of 1.6 M parameters, between its passes."""
    ours, theirs = model(), model()
    other = _of_torch(list(theirs.parameters()))
    params: Any = list(ours.parameters())
    own: Any = OfKeras(params) if face == "keras" else OfTorch(params, optim.Adam)
    passes = {own: backward(ours), other: backward(theirs)}

    def before(each: Any) -> None:
        passes[each]()
        if isinstance(each, OfKeras):
            each.give([var.grad for var in params])

    for each in (own, other) * 4:
        before(each)
        each.step()
    costs = compared(own, other, max(10, repeats // 4), before)
    return Row("1.6 M", LOOP, *costs, LOOPS[face])


def rows(face: str, repeats: int) -> Iterator[Row]:
    """All of a face, on one thread."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield from small(face, repeats)
    if face == "optim":
        yield from of_rules(repeats)
    yield training(face, repeats)


def figures(repeats: int = 200) -> list[Figure]:
    """Processor time of one thread in units of torch's; the note has the ratio of wall time."""
    found: list[Figure] = []
    for face in TARGETS:
        with watched(found):
            found += [_figure(face, row) for row in rows(face, repeats) if row.target is not None]
    return found


def _figure(face: str, row: Row) -> Figure:
    own, other = row.own, row.other
    note = (
        f"{own.processor:.3g} us of the processor, torch fused {other.processor:.3g};"
        f" wall {row.wall:.3g} x; {row.once:.0%} in one call"
    )
    name = f"steady_{face}_{row.mode}"
    if row.mode != LOOP:
        name += "_" + row.name.replace(" of ", "x")
    return Figure(name, row.ratio, row.target, note=note)


def main() -> None:
    parser = argparse.ArgumentParser(description="A steady step beside torch's fused Adam.")
    parser.add_argument("--face", choices=TARGETS, default="optim")
    parser.add_argument("--repeats", type=int, default=200)
    asked = parser.parse_args()
    print(
        f"{'tensors':>18} {'mode':>5} {'thalweg us':>11} {'torch us':>9} {'ratio':>6}"
        f" {'wall':>6}   once  target"
    )
    for row in rows(asked.face, asked.repeats):
        target = "" if row.target is None else f"<= {row.target:.2f}"
        print(
            f"{row.name:>18} {row.mode:>5} {row.own.processor:11.1f} {row.other.processor:9.1f}"
            f" {row.ratio:6.2f} {row.wall:6.2f} {row.once:6.0%} {target:>8}",
            flush=True,
        )


if __name__ == "__main__":
    main()
