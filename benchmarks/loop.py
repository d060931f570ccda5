"""Steps in a training loop: between backward passes, and with units that have died."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch
from figure import Figure, compared
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from thalweg._cli.bench.timing import Contender, busy_elsewhere, measure, no_collection, time_steps
from thalweg.keras.optimizers import Adam

WIDTH, LAYERS, BATCH = 512, 6, 64
UNITS, STEPS = 1000, 1500


def model() -> nn.Sequential:
    """Six layers of 512 units: 1.6 M parameters."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(LAYERS - 1):
        layers += [nn.Linear(WIDTH, WIDTH), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, WIDTH))


def backward(module: nn.Module) -> Callable[[], None]:
    """Gradients that keep their size: inputs and targets are new at every step.

    Where a model can learn its batch, gradients vanish within a few hundred steps, the moments
    become denormal, and what is timed is how the processor deals with those. Units that have died
    do the same, which is why the model has none that can: `dead_units` is about them.
    """
    generator = torch.Generator().manual_seed(1)

    def before() -> None:
        inputs, targets = torch.randn(2, BATCH, WIDTH, generator=generator)
        module.zero_grad()
        mse_loss(module(inputs), targets).backward()

    return before


def training() -> list[Figure]:
    """The step alone, timed between forward-backward passes of a small model."""
    ours, theirs = model(), model()
    optimizer, variables = Adam(1e-4), list(ours.parameters())
    fused = torch.optim.Adam(theirs.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        optimizer.apply_gradients([(var.grad, var) for var in variables])

    timings = measure(
        [
            Contender("thalweg", step, backward(ours)),
            Contender("torch fused", fused.step, backward(theirs)),
        ],
        rounds=15, block=0.3,
    )  # fmt: skip
    return [compared("training_loop", timings, "thalweg", "torch fused", 0.75)]


def dead_units() -> list[Figure]:
    """How much slower a step is after half the gradients have been exactly 0 for 1,500 steps."""
    torch.manual_seed(0)
    values = [torch.randn(UNITS, UNITS).mul_(0.02).requires_grad_() for _ in range(2)]
    grads = [torch.randn(UNITS, UNITS).mul_(1e-3) for _ in range(2)]
    optimizer = Adam(1e-4)
    fused = torch.optim.Adam([values[1]], lr=1e-4, fused=True)
    values[1].grad = grads[1]

    ours = Contender("thalweg", lambda: optimizer.apply_gradients([(grads[0], values[0])]))
    theirs = Contender("torch fused", fused.step)
    for contender in (ours, theirs):
        time_steps(contender, 3)
    _kill(grads)
    blocks: dict[str, list[float]] = {ours.name: [], theirs.name: []}
    with no_collection():
        began, busy = perf_counter(), busy_elsewhere()
        for _ in range(STEPS // 100):
            for contender in (ours, theirs):
                blocks[contender.name].append(median(time_steps(contender, 100)))
        others = (busy_elsewhere() - busy) / (perf_counter() - began)
    slower = {name: each[-1] / each[0] for name, each in blocks.items()}
    note = f"1 M elements, {1e3 * blocks[ours.name][-1]:.3g} ms; torch {slower[theirs.name]:.3g} x"
    return [Figure("dead_units", slower[ours.name], 1.15, note=note, disturbance=others)]


def _kill(grads: list[Tensor]) -> None:
    for grad in grads:
        grad[:, ::2] = 0
