"""Cost of a steady step of Adam in units of `torch.optim.Adam(fused=True)`.

Steps of several rules (`Mixed`, SGD with and without momentum) are compared with equivalent torch
optimizers, and a rule that torch lacks (LAMB) with AdamW.

Processor time of one thread, interleaved, the lowest fifth of the repeats: warm, with new gradients
at each step, cold, with 64 MB written between two steps, and between the passes of a training.
"""

from __future__ import annotations

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

Make = Callable[[list[Parameter]], Any]
SIZES = ((1, 64), (10, 64), (100, 64), (2000, 64), (2000, 1000))
COLD = 16 << 20  # floats
REPEATS = 200

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


class Comparison(NamedTuple):
    """Costs of a step of Thalweg and of a peer's.

    Attributes:
        own_cost, peer_cost: The costs.
        replayed: The share of Thalweg's steps that were one native call.
    """

    own_cost: Cost
    peer_cost: Cost
    replayed: float

    def as_figure(self, name: str, target: float | None, peer_name: str = "torch fused") -> Figure:
        """Return the figure of processor time in units of the peer's; the note has the others."""
        own_cost, peer_cost = self.own_cost, self.peer_cost
        note = (
            f"{own_cost.processor:.3g} us of the processor, {peer_name} {peer_cost.processor:.3g};"
            f" wall {own_cost.wall / peer_cost.wall:.3g} x; {self.replayed:.0%} in one call"
        )
        return Figure(name, own_cost.processor / peer_cost.processor, target, note=note)


class TorchLoop:
    """Loop of an optimizer with torch's interface.

    Args:
        params: The parameters.
        make: Builds the optimizer from parameters.
    """

    def __init__(self, params: list[Parameter], make: Make) -> None:
        self.params = params
        self.optimizer = make(params)

    def give(self, gradients: Sequence[Tensor]) -> None:
        """Set the gradients of the next step."""
        for param, grad in zip(self.params, gradients, strict=True):
            param.grad = grad

    def gradients(self) -> list[Any]:
        """Return the gradients of the last step."""
        return [param.grad for param in self.params]

    def step(self) -> None:
        """Take a step."""
        self.optimizer.step()

    def taken(self) -> int:
        """Return the number of steps that were one native call."""
        return getattr(self.optimizer.step_cache.replay, "taken", 0)


class PairsLoop:
    """Loop of an optimizer with `apply_gradients`.

    Args:
        variables: The variables.
        optimizer: The optimizer.
        options: Arguments of `apply_gradients` besides the pairs.
    """

    def __init__(self, variables: Sequence[Tensor], optimizer: Any, **options: Any) -> None:
        self.variables, self.optimizer, self.options = variables, optimizer, options

    def give(self, gradients: Sequence[Tensor]) -> None:
        """Set the gradients of the next step."""
        self.pairs = list(zip(gradients, self.variables, strict=True))

    def gradients(self) -> list[Any]:
        """Return the gradients of the last step."""
        return [grad for grad, _ in self.pairs]

    def step(self) -> None:
        """Take a step."""
        self.optimizer.apply_gradients(self.pairs, **self.options)

    def taken(self) -> int:
        """Return the number of steps that were one native call."""
        return getattr(self.optimizer._plans.now().replay, "taken", 0)


class HalvesLoop(TorchLoop):
    """Loop of two torch optimizers, one per half of the parameters."""

    def __init__(self, params: list[Parameter], *make: Make) -> None:
        half = len(params) // 2
        super().__init__(params[:half], make[0])
        self.params, self._second_optimizer = params, make[1](params[half:])

    def step(self) -> None:
        self.optimizer.step()
        self._second_optimizer.step()


def make_params(count: int, size: int, dtype: torch.dtype = torch.float32) -> list[Parameter]:
    """Return parameters of random numbers."""
    return [Parameter(torch.randn(size).to(dtype)) for _ in range(count)]


def _fused_adam(params: list[Parameter]) -> TorchLoop:
    return TorchLoop(params, lambda params: torch.optim.Adam(params, fused=True))


def _own_adam(face: str, params: list[Parameter]) -> Any:
    if face == "keras":
        return PairsLoop([Variable(param.detach()) for param in params], optimizers.Adam())
    return TorchLoop(params, optim.Adam)


def _cost_of(loop: Any) -> Cost:
    """Take a step; return its cost in this thread."""
    wall, begin = time.perf_counter_ns(), time.thread_time_ns()
    loop.step()
    return Cost((time.thread_time_ns() - begin) / 1e3, (time.perf_counter_ns() - wall) / 1e3)


def lowest_fifth(times: Sequence[float]) -> float:
    """Return the largest of the lowest fifth of times."""
    return sorted(times)[len(times) // 5]


def compare_loops(
    own_loop: Any,
    peer_loop: Any,
    rounds: int,
    prepare: Callable[[Any], object],
    summarize: Callable[[Sequence[float]], float] = lowest_fifth,
) -> Comparison:
    """Take steps of two loops in turn and return their costs.

    Args:
        own_loop: A loop of Thalweg.
        peer_loop: The loop to compare with.
        rounds: The number of steps of each.
        prepare: Called with a loop before each of its steps.
        summarize: Returns one number of the times of all rounds.
    """
    costs_by_loop: dict[Any, list[Cost]] = {own_loop: [], peer_loop: []}
    replayed_before = own_loop.taken()
    for _ in range(rounds):
        for loop, costs in costs_by_loop.items():
            prepare(loop)
            costs.append(_cost_of(loop))
    own_cost, peer_cost = (
        Cost(*map(summarize, zip(*costs, strict=True))) for costs in costs_by_loop.values()
    )
    return Comparison(own_cost, peer_cost, (own_loop.taken() - replayed_before) / rounds)


def warm_up(
    loops: Sequence[Any], count: int, size: int, dtype: torch.dtype = torch.float32
) -> None:
    """Give loops of `count` tensors random gradients, and take four steps of each."""
    for loop in loops:
        loop.give([torch.randn(size).to(dtype) for _ in range(count)])
    for loop in (*loops,) * 4:
        loop.step()


def _measure_sizes(face: str, repeats: int) -> Iterator[Figure]:
    scratch = torch.zeros(COLD)
    modes: dict[str, Callable[[Any], object]] = {
        "warm": lambda loop: None,
        "new": _renew,
        "cold": lambda loop: scratch.add_(1),
    }
    for count, size in SIZES:
        loops = _own_adam(face, make_params(count, size)), _fused_adam(make_params(count, size))
        warm_up(loops, count, size)
        rounds = max(10, repeats if count < 2000 else repeats // 8)
        target, cold_target = TARGETS[face][count]
        for mode, prepare in modes.items():
            yield compare_loops(*loops, rounds, prepare).as_figure(
                f"steady_{face}_{mode}_{count}x{size}", cold_target if mode == "cold" else target
            )


def _mixed(params: list[Parameter]) -> Any:
    return optim.Mixed(_halves(params, {"rule": "AdamW"}, {"rule": "SGD", "momentum": 0.9}))


def _halves(params: list[Parameter], *options: dict[str, Any]) -> list[dict[str, Any]]:
    half = len(params) // 2
    return [
        {"params": half_params, **group_options}
        for half_params, group_options in zip((params[:half], params[half:]), options, strict=True)
    ]


def _sgd(package: Any, **options: Any) -> Make:
    return lambda params: package.SGD(_halves(params, {"momentum": 0.9}, {}), lr=0.1, **options)


def fused_adamw(params: list[Parameter]) -> Any:
    """Return torch's fused AdamW."""
    return torch.optim.AdamW(params, fused=True)


def _momentum(params: list[Parameter]) -> Any:
    return torch.optim.SGD(params, lr=1e-3, momentum=0.9, fused=True)


# What is measured beside Adam: here and in torch.
RULES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "Mixed": (
        lambda own: TorchLoop(own, _mixed),
        lambda own: HalvesLoop(own, fused_adamw, _momentum),
    ),
    "two_SGD": (
        lambda own: TorchLoop(own, _sgd(optim)),
        lambda own: TorchLoop(own, _sgd(torch.optim, fused=True)),
    ),
    "LAMB": (lambda own: TorchLoop(own, optim.LAMB), lambda own: TorchLoop(own, fused_adamw)),
}


def _measure_rules(repeats: int) -> Iterator[Figure]:
    """Yield figures of mixed rules and of LAMB, with new gradients at each step."""
    for name, (make_own, make_peer) in RULES.items():
        for count, size in ((2, 64), (10, 64), (100, 64)):
            loops = make_own(make_params(count, size)), make_peer(make_params(count, size))
            warm_up(loops, count, size)
            comparison = compare_loops(*loops, repeats, _renew)
            yield comparison.as_figure(f"steady_optim_new_{name}_{count}x{size}", None)


def _renew(loop: Any) -> None:
    """Give a loop copies of its gradients."""
    loop.give([torch.empty_like(grad).copy_(grad) for grad in loop.gradients()])


def _measure_training(face: str, repeats: int) -> Figure:
    """Return the figure of a training of 1.6 M parameters, with its passes between steps."""
    own_model, torch_model = model(), model()
    torch_loop = _fused_adam(list(torch_model.parameters()))
    params: Any = list(own_model.parameters())
    is_keras = face == "keras"
    own_loop: Any = (
        PairsLoop(params, optimizers.Adam()) if is_keras else TorchLoop(params, optim.Adam)
    )
    passes = {own_loop: backward(own_model), torch_loop: backward(torch_model)}

    def prepare(loop: Any) -> None:
        passes[loop]()
        if isinstance(loop, PairsLoop):
            loop.give([var.grad for var in params])

    for loop in (own_loop, torch_loop) * 4:
        prepare(loop)
        loop.step()
    comparison = compare_loops(own_loop, torch_loop, max(10, repeats // 4), prepare)
    return comparison.as_figure(f"steady_{face}_loop", LOOPS[face])


def figures(repeats: int = REPEATS) -> list[Figure]:
    """Measure processor time of one thread in units of torch's; notes have the wall time."""
    torch.set_num_threads(1)
    figures_: list[Figure] = []
    for face in TARGETS:
        torch.manual_seed(0)
        with watched(figures_):
            figures_ += _measure_sizes(face, repeats)
            figures_ += _measure_rules(repeats) if face == "optim" else []
            figures_.append(_measure_training(face, repeats))
    return figures_
