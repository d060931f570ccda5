"""Cost of a steady step of Adam in units of `torch.optim.Adam(fused=True)`.

Steps of several rules (`Mixed`, SGD with and without momentum) are compared with equivalent torch
optimizers, and a rule that torch lacks (LAMB) with AdamW.

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
    """Measurement of a step.

    Attributes:
        name: The tensors.
        mode: The state of caches and gradients before the step.
        own_cost, torch_cost: The costs of thalweg and of torch.
        replayed: The share of the steps that were one native call.
        target: The maximum ratio of processor times, or None.
    """

    name: str
    mode: str
    own_cost: Cost
    torch_cost: Cost
    replayed: float
    target: float | None

    @property
    def ratio(self) -> float:
        return self.own_cost.processor / self.torch_cost.processor

    @property
    def wall(self) -> float:
        return self.own_cost.wall / self.torch_cost.wall


class OfTorch:
    """Loop of an optimizer with torch's interface.

    Args:
        params: The parameters.
        make: Builds the optimizer from parameters.
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
        """Return the number of steps that were one native call."""
        return getattr(self.optimizer.step_cache.replay, "taken", 0)


class OfKeras:
    """Loop of thalweg's Keras Adam through `apply_gradients`."""

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
    """Loop of two torch optimizers, one per half of the parameters."""

    def __init__(self, params: list[Parameter], *make: Callable[[list[Parameter]], Any]) -> None:
        half = len(params) // 2
        super().__init__(params[:half], make[0])
        self.params, self._second_optimizer = params, make[1](params[half:])

    def step(self) -> None:
        self.optimizer.step()
        self._second_optimizer.step()


def _of_torch(params: list[Parameter]) -> OfTorch:
    return OfTorch(params, lambda params: torch.optim.Adam(params, fused=True))


def _here(face: str, values: Sequence[Tensor]) -> Any:
    if face == "keras":
        return OfKeras([Variable(value) for value in values])
    return OfTorch([Parameter(value) for value in values], optim.Adam)


def cost(loop: Any) -> Cost:
    """Return the cost of a step in this thread."""
    wall, begin = time.perf_counter_ns(), time.thread_time_ns()
    loop.step()
    return Cost((time.thread_time_ns() - begin) / 1e3, (time.perf_counter_ns() - wall) / 1e3)


def lowest(costs: Sequence[Cost]) -> Cost:
    return Cost(*(sorted(times)[len(times) // 5] for times in zip(*costs, strict=True)))


def compared(
    own_loop: Any, torch_loop: Any, rounds: int, prepare: Callable[[Any], object]
) -> tuple[Cost, Cost, float]:
    """Return both costs after `prepare` of each loop, and the share of replayed steps."""
    costs_by_loop: dict[Any, list[Cost]] = {own_loop: [], torch_loop: []}
    replayed_before = own_loop.taken()
    for _ in range(rounds):
        for loop, costs in costs_by_loop.items():
            prepare(loop)
            costs.append(cost(loop))
    return (
        lowest(costs_by_loop[own_loop]),
        lowest(costs_by_loop[torch_loop]),
        (own_loop.taken() - replayed_before) / rounds,
    )


def small(face: str, repeats: int) -> Iterator[Row]:
    """Yield rows of steps over tensors of few elements."""
    scratch = torch.zeros(COLD)
    ways: dict[str, Callable[[Any], object]] = {
        "warm": lambda loop: None,
        "new": _with_new,
        "cold": lambda own: scratch.add_(1),
    }
    for count, size in SIZES:
        own_loop = _here(face, [torch.randn(size) for _ in range(count)])
        torch_loop = _of_torch([Parameter(torch.randn(size)) for _ in range(count)])
        for loop in (own_loop, torch_loop):
            loop.give([torch.randn(size) for _ in range(count)])
        for loop in (own_loop, torch_loop) * 4:
            loop.step()
        rounds = max(10, repeats if count < 2000 else repeats // 8)
        target, cold_target = TARGETS[face][count]
        for mode in MODES:
            costs = compared(own_loop, torch_loop, rounds, ways[mode])
            yield Row(f"{count} of {size}", mode, *costs, cold_target if mode == "cold" else target)


def _mixed(params: list[Parameter]) -> Any:
    first_half, second_half = _halves(params, {"rule": "AdamW"}, {"rule": "SGD", "momentum": 0.9})
    return optim.Mixed([first_half, second_half])


def _halves(params: list[Parameter], *options: dict[str, Any]) -> list[dict[str, Any]]:
    half = len(params) // 2
    return [
        {"params": half_params, **group_options}
        for half_params, group_options in zip((params[:half], params[half:]), options, strict=True)
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
    """Yield rows of mixed rules and of LAMB, with new gradients at each step."""
    for name, makers in RULES.items():
        for count, size in ((2, 64), (10, 64), (100, 64)):
            own_loop, torch_loop = (
                make([Parameter(torch.randn(size)) for _ in range(count)]) for make in makers
            )
            for loop in (own_loop, torch_loop):
                loop.give([torch.randn(size) for _ in range(count)])
            for loop in (own_loop, torch_loop) * 4:
                loop.step()
            costs = compared(own_loop, torch_loop, repeats, _with_new)
            yield Row(f"{name}, {count} of {size}", "new", *costs, None)


def _with_new(loop: Any) -> None:
    loop.give([torch.empty_like(grad).copy_(grad) for grad in loop.gradients()])


def training(face: str, repeats: int) -> Row:
    """Return the row of a training of 1.6 M parameters, with its passes between steps."""
    own_model, torch_model = model(), model()
    torch_loop = _of_torch(list(torch_model.parameters()))
    params: Any = list(own_model.parameters())
    own_loop: Any = OfKeras(params) if face == "keras" else OfTorch(params, optim.Adam)
    passes = {own_loop: backward(own_model), torch_loop: backward(torch_model)}

    def before(loop: Any) -> None:
        passes[loop]()
        if isinstance(loop, OfKeras):
            loop.give([var.grad for var in params])

    for loop in (own_loop, torch_loop) * 4:
        before(loop)
        loop.step()
    costs = compared(own_loop, torch_loop, max(10, repeats // 4), before)
    return Row("1.6 M", LOOP, *costs, LOOPS[face])


def rows(face: str, repeats: int) -> Iterator[Row]:
    """Yield all rows of an API, on one thread."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield from small(face, repeats)
    if face == "optim":
        yield from of_rules(repeats)
    yield training(face, repeats)


def figures(repeats: int = 200) -> list[Figure]:
    """Measure processor time of one thread in units of torch's; notes have the wall time."""
    figures_: list[Figure] = []
    for face in TARGETS:
        with watched(figures_):
            figures_ += [
                _figure(face, row) for row in rows(face, repeats) if row.target is not None
            ]
    return figures_


def _figure(face: str, row: Row) -> Figure:
    own_cost, torch_cost = row.own_cost, row.torch_cost
    note = (
        f"{own_cost.processor:.3g} us of the processor, torch fused {torch_cost.processor:.3g};"
        f" wall {row.wall:.3g} x; {row.replayed:.0%} in one call"
    )
    name = f"steady_{face}_{row.mode}"
    if row.mode != LOOP:
        name += "_" + row.name.replace(" of ", "x")
    return Figure(name, row.ratio, row.target, note=note)


def main() -> None:
    parser = argparse.ArgumentParser(description="A steady step beside torch's fused Adam.")
    parser.add_argument("--face", choices=TARGETS, default="optim")
    parser.add_argument("--repeats", type=int, default=200)
    arguments = parser.parse_args()
    print(
        f"{'tensors':>18} {'mode':>5} {'thalweg us':>11} {'torch us':>9} {'ratio':>6}"
        f" {'wall':>6}   once  target"
    )
    for row in rows(arguments.face, arguments.repeats):
        target = "" if row.target is None else f"<= {row.target:.2f}"
        print(
            f"{row.name:>18} {row.mode:>5} {row.own_cost.processor:11.1f}"
            f" {row.torch_cost.processor:9.1f} {row.ratio:6.2f} {row.wall:6.2f}"
            f" {row.replayed:6.0%} {target:>8}",
            flush=True,
        )


if __name__ == "__main__":
    main()
