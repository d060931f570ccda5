"""Steps in a training loop: between backward passes, and with units that have died."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch
from figure import Figure, measure_ratio
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from thalweg._cli.bench.timing import Contender, busy_elsewhere, no_collection, time_steps
from thalweg.keras.optimizers import Adam

WIDTH, LAYERS, BATCH = 512, 6, 64
UNITS, STEPS = 1000, 1500


def model() -> nn.Sequential:
    """Build a model of six layers of 512 units: 1.6 M parameters."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(LAYERS - 1):
        layers += [nn.Linear(WIDTH, WIDTH), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, WIDTH))


def backward(module: nn.Module) -> Callable[[], None]:
    """Return a function that computes gradients with new random inputs and targets.

    If a model could learn its batch, gradients would vanish within a few hundred steps, and times
    would be those of denormal moments. Dead units have the same effect, so the model has none;
    `dead_units` measures them.
    """
    generator = torch.Generator().manual_seed(1)

    def before() -> None:
        inputs, targets = torch.randn(2, BATCH, WIDTH, generator=generator)
        module.zero_grad()
        mse_loss(module(inputs), targets).backward()

    return before


def training() -> list[Figure]:
    """Measure the step alone, between forward-backward passes of a small model."""
    own_model, torch_model = model(), model()
    optimizer, variables = Adam(1e-4), list(own_model.parameters())
    fused = torch.optim.Adam(torch_model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        optimizer.apply_gradients([(var.grad, var) for var in variables])

    contenders = [
        Contender("thalweg", step, backward(own_model)),
        Contender("torch fused", fused.step, backward(torch_model)),
    ]
    return [measure_ratio("training_loop", contenders, 0.75, rounds=15, block=0.3)]


def dead_units() -> list[Figure]:
    """Measure the slowdown of a step after 1,500 steps with half of the gradients exactly 0."""
    torch.manual_seed(0)
    values = [torch.randn(UNITS, UNITS).mul_(0.02).requires_grad_() for _ in range(2)]
    grads = [torch.randn(UNITS, UNITS).mul_(1e-3) for _ in range(2)]
    optimizer = Adam(1e-4)
    fused = torch.optim.Adam([values[1]], lr=1e-4, fused=True)
    values[1].grad = grads[1]

    own_step = Contender("thalweg", lambda: optimizer.apply_gradients([(grads[0], values[0])]))
    torch_step = Contender("torch fused", fused.step)
    for contender in (own_step, torch_step):
        time_steps(contender, 3)
    _kill(grads)
    blocks: dict[str, list[float]] = {own_step.name: [], torch_step.name: []}
    with no_collection():
        began, busy = perf_counter(), busy_elsewhere()
        for _ in range(STEPS // 100):
            for contender in (own_step, torch_step):
                blocks[contender.name].append(median(time_steps(contender, 100)))
        cores = (busy_elsewhere() - busy) / (perf_counter() - began)
    slowdown = {name: medians[-1] / medians[0] for name, medians in blocks.items()}
    own_time, torch_slowdown = 1e3 * blocks[own_step.name][-1], slowdown[torch_step.name]
    note = f"1 M elements, {own_time:.3g} ms; torch {torch_slowdown:.3g} x"
    return [Figure("dead_units", slowdown[own_step.name], 1.15, note=note, disturbance=cores)]


def _kill(grads: list[Tensor]) -> None:
    for grad in grads:
        grad[:, ::2] = 0
