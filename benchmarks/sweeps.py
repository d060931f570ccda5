"""From raw gradients to updated variables in two sweeps, against torch's sweeps one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from figure import Figure, measure_ratio
from host import measure_memory
from torch import Tensor

from thalweg._cli.bench import roofline, shapes, workload
from thalweg._cli.bench.timing import Contender
from thalweg.openseq2seq.optimizers import optimize_loss

Step = Callable[[], Any]
SCALE, CLIP, RATE, DECAY = 1024.0, 1.0, 1e-4, 0.01
ETA, SMALLEST, EPSILON, MOMENTUM = 0.001, 1e-7, 1e-7, 0.9
ROOM = 1 << 20  # bytes
NAMES = ("resnet50", "gpt2")


def adamw() -> list[Figure]:
    """Measure unscaling, checks, clipping by the global norm and AdamW, in units of torch's with
    `GradScaler.unscale_` and `clip_grad_norm_`.
    """
    figures = []
    for name in NAMES:
        step = _swept("AdamW", {"weight_decay": DECAY}, name, clip_gradients=CLIP)
        contenders = [Contender("thalweg", step), _torch_adamw(name)]
        figures.append(measure_ratio(f"swept_adamw_{name}", contenders, 0.60, block=0.2))
    return figures


def larc() -> list[Figure]:
    """Measure unscaling, checks, LARC and momentum, in units of torch's foreach arithmetic."""
    figures = []
    for name in NAMES:
        step = _swept("Momentum", {"momentum": MOMENTUM}, name, larc_params={"larc_eta": ETA})
        contenders = [Contender("thalweg", step), _torch_larc(name)]
        figures.append(measure_ratio(f"swept_larc_{name}", contenders, 0.35, block=0.2))
    return figures


def masters() -> list[Figure]:
    """Measure Adam on bfloat16 variables with float32 masters, as a share of the bandwidth of one
    add over gradient, master, slots and copy.
    """
    figures = []
    for name in NAMES:
        problem = workload.make_tensors(shapes.load(name))
        variables, gradients = _halved(problem.variables), _halved(problem.gradients)
        step = _step("Adam", {}, variables, loss_scaling=SCALE)
        apply = _with_gradients(step, gradients)
        apply()
        targets = [step.optimizer.get_master(var).detach() for var in variables]
        add = roofline.roofline(2, targets, gradients, [var.detach() for var in variables])
        contenders = [Contender("roofline", add), Contender("thalweg", apply)]
        figures.append(measure_ratio(f"masters_{name}", contenders, 0.88, ">=", block=0.2))
    return figures


def room() -> list[Figure]:
    """Measure the peak bytes that a steady step of each kind allocates, on resnet50."""
    steps = {
        "adamw": _swept("AdamW", {"weight_decay": DECAY}, "resnet50", clip_gradients=CLIP),
        "larc": _swept(
            "Momentum", {"momentum": MOMENTUM}, "resnet50", larc_params={"larc_eta": ETA}
        ),
        "masters": _swept("Adam", {}, "resnet50", dtype=torch.bfloat16),
    }
    return [measure_memory(f"swept_room_{name}", step, ROOM) for name, step in steps.items()]


def _step(
    optimizer: str, params: dict[str, Any], variables: Sequence[Tensor], **options: Any
) -> Any:
    """Return a training step that is called with gradients."""
    return optimize_loss(
        lambda: torch.zeros(()),
        optimizer,
        params,
        lambda step: RATE,
        var_list=[var.requires_grad_() for var in variables],
        dtype="mixed",
        **{"loss_scaling": "Backoff", **options},
    )


def _with_gradients(step: Any, gradients: Sequence[Tensor]) -> Step:
    return lambda: step.apply_gradients(gradients)


def _swept(
    optimizer: str,
    params: dict[str, Any],
    name: str,
    dtype: torch.dtype = torch.float32,
    **options: Any,
) -> Step:
    problem = workload.make_tensors(shapes.load(name))
    variables, gradients = problem.variables, problem.gradients
    if dtype != torch.float32:
        variables, gradients = _halved(variables), _halved(gradients)
    return _with_gradients(_step(optimizer, params, variables, **options), gradients)


def _halved(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.detach().to(torch.bfloat16) for tensor in tensors]


def _scaled_again(problem: workload.Workload) -> Step:
    """Return a function that restores the gradients, which torch unscales in place."""
    scaled = [grad.clone() for grad in problem.gradients]

    def again() -> None:
        for grad, scaled_grad in zip(problem.gradients, scaled, strict=True):
            grad.copy_(scaled_grad)

    return again


def _torch_adamw(name: str) -> Contender:
    problem = workload.make_tensors(shapes.load(name))
    optimizer = torch.optim.AdamW(problem.variables, lr=RATE, weight_decay=DECAY, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE, growth_interval=1 << 30)
    scaler.scale(torch.zeros(()))

    def step() -> None:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(problem.variables, CLIP, foreach=True)
        scaler.step(optimizer)
        scaler.update()

    return Contender("torch", step, prepare=_scaled_again(problem))


def _torch_larc(name: str) -> Contender:
    problem = workload.make_tensors(shapes.load(name))
    variables = [var.detach() for var in problem.variables]
    velocities = [torch.zeros_like(var) for var in variables]

    def step() -> None:
        gradients = torch._foreach_mul(problem.gradients, 1 / SCALE)
        lengths, sizes = torch._foreach_norm(gradients), torch._foreach_norm(variables)
        if not torch.stack(lengths).isfinite().all():
            return
        bounds = torch._foreach_mul(torch._foreach_add(lengths, EPSILON), RATE)
        ratios = torch._foreach_div(torch._foreach_mul(sizes, ETA), bounds)
        torch._foreach_clamp_min_(ratios, SMALLEST)
        torch._foreach_clamp_max_(ratios, 1.0)
        torch._foreach_mul_(gradients, ratios)
        torch._foreach_mul_(velocities, MOMENTUM)
        torch._foreach_add_(velocities, gradients)
        torch._foreach_add_(variables, velocities, alpha=-RATE)

    return Contender("torch", step)
