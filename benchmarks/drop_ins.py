"""`thalweg.optim` beside `torch.optim`: every class, small tensors, loops, recipes and groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from figure import Figure, compared, measure_ratio
from loop import backward, model
from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from thalweg import optim
from thalweg._cli.bench import roofline, shapes, workload
from thalweg._cli.bench.timing import Contender, measure
from thalweg.optim.step_adapter import ParamGroupAdapter

RATE, DECAY, CLIP, AVERAGE, GROUPS = 1e-4, 0.01, 1.0, 0.999, 100
FORMS: dict[str, dict[str, Any]] = {
    "torch fused": {"fused": True},
    "torch foreach": {"foreach": True},
    "torch for-loop": {"foreach": False},
}
FUSED = ("Adam", "AdamW", "SGD", "Adagrad")


class Kind(NamedTuple):
    """Targets of a class.

    Attributes:
        slots: The number of slots of a parameter.
        target: Maximum step time in units of torch's best form.
        slow: Maximum step time in units of torch's for-loop and foreach forms.
        options: Arguments of the constructor.
    """

    slots: int
    target: float = 1.0
    slow: float | None = None
    options: Mapping[str, Any] = {}


KINDS = {
    "Adam": Kind(2, 0.95),
    "AdamW": Kind(2, 0.95),
    "SGD": Kind(1, 0.95, options={"momentum": 0.9}),
    "RMSprop": Kind(1, slow=0.45),
    "Adagrad": Kind(1),
    "Adadelta": Kind(2, slow=0.3),
    "Adamax": Kind(2, slow=0.45),
    "NAdam": Kind(2, slow=0.3),
    "RAdam": Kind(2, slow=0.3),
    "ASGD": Kind(1, slow=0.6),
    "Rprop": Kind(2, slow=0.15),
}
WARM_UP = 6  # steps; RAdam's formula is another up to the fifth


def classes() -> list[Figure]:
    """Measure dense classes on resnet50: beside torch's best form, beside its form before fused
    ones, and as a share of the bandwidth of one addition.
    """
    figures: list[Figure] = []
    for name, kind in KINDS.items():
        problem = workload.make_tensors(shapes.resnet50())
        step = make_step(getattr(optim, name), problem.variables, kind.options)
        forms = [form_name for form_name in FORMS if form_name != "torch fused" or name in FUSED]
        peers = [
            Contender(
                form,
                make_step(getattr(torch.optim, name), problem.variables, kind.options, FORMS[form]),
            )
            for form in forms
        ]
        add = roofline.roofline(kind.slots, problem.variables, problem.gradients)
        contenders = [Contender("thalweg", step), *peers, Contender("roofline", add)]
        timings = measure(contenders, rounds=7, block=0.1)
        best = min(forms, key=timings.median)
        figures.append(compared(f"optim_{name}", timings, "thalweg", best, kind.target))
        if kind.slow is not None:
            slow = min(("torch foreach", "torch for-loop"), key=timings.median)
            figures.append(compared(f"optim_{name}_slow", timings, "thalweg", slow, kind.slow))
        share = f"optim_roofline_{name}"
        figures.append(compared(share, timings, "roofline", "thalweg", 0.9, ">="))
    return figures


def compiled() -> list[Figure]:
    """Measure dense classes on resnet50 beside torch's under `torch.compile`, for minutes each."""
    figures: list[Figure] = []
    for name, kind in KINDS.items():
        problem = workload.make_tensors(shapes.resnet50())
        own_step = make_step(getattr(optim, name), problem.variables, kind.options)
        torch_step = make_step(
            getattr(torch.optim, name), problem.variables, kind.options, wrap=torch.compile
        )
        contenders = [Contender("thalweg", own_step), Contender("torch compiled", torch_step)]
        figures.append(measure_ratio(f"optim_compiled_{name}", contenders, kind.target, rounds=7))
    return figures


def small() -> list[Figure]:
    """Measure Adam over few and many small tensors, in units of torch's fused Adam."""
    figures: list[Figure] = []
    cases = ((1, 0.25, {}), (10, 0.25, {}), (100, 0.15, {}), (2000, 0.12, {}))
    for count, target, options in (*cases, (2000, 0.08, {"gradients": "flat"})):
        params, torch_params = (
            workload.make_tensors(shapes.of("small", [(1000,)] * count)).variables for _ in range(2)
        )
        step = make_step(optim.Adam, params, options)
        if options:  # flat gradients begin as zeros
            for parameter, source in zip(params, torch_params, strict=True):
                parameter.grad.copy_(source.grad)  # pyright: ignore[reportOptionalMemberAccess]
        fused = make_step(torch.optim.Adam, torch_params, FORMS["torch fused"])
        contenders = [Contender("thalweg", step), Contender("torch fused", fused)]
        name = f"optim_small{count}" + "_flat" * bool(options)
        figures.append(measure_ratio(name, contenders, target, rounds=11))
    return figures


def training() -> list[Figure]:
    """Measure the step alone, between forward-backward passes of a small model."""
    own_model, torch_model = model(), model()
    step = make_step(optim.Adam, list(own_model.parameters()))
    fused = make_step(torch.optim.Adam, list(torch_model.parameters()), FORMS["torch fused"])
    contenders = [
        Contender("thalweg", step, backward(own_model)),
        Contender("torch fused", fused, backward(torch_model)),
    ]
    return [measure_ratio("optim_training_loop", contenders, 0.8, rounds=15, block=0.3)]


def recipes() -> list[Figure]:
    """Measure unscaling, clipping and AdamW by torch's recipe, and Adam with averaged weights."""
    scaled_params = _parameters_of(shapes.resnet50()), _parameters_of(shapes.resnet50())
    steps = [
        _scaled(optim.AdamW(scaled_params[0], RATE, clip_grad_norm=CLIP, fused_unscale=True), []),
        _scaled(torch.optim.AdamW(scaled_params[1], RATE, fused=True), scaled_params[1]),
    ]
    contenders = [Contender("thalweg", steps[0]), Contender("torch", steps[1])]
    figures = [measure_ratio("optim_scaler_clip_adamw", contenders, 0.55, block=0.2)]

    sets = [_parameters_of(shapes.resnet50()) for _ in range(3)]
    module = torch.nn.ParameterList(sets[2])
    for parameter, source in zip(module.parameters(), sets[2], strict=True):
        # `ParameterList` has new parameters.
        parameter.grad = source.grad
    average = AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(AVERAGE))
    fused = make_step(torch.optim.Adam, list(module.parameters()), FORMS["torch fused"])

    def averaged() -> None:
        fused()
        average.update_parameters(module)

    averaging = make_step(optim.Adam, sets[0], {"ema_decay": AVERAGE})
    contenders = [
        Contender("averaged", averaging),
        Contender("plain", make_step(optim.Adam, sets[1])),
        Contender("torch", averaged),
    ]
    timings = measure(contenders, rounds=9, block=0.2)
    figures.append(compared("optim_ema", timings, "averaged", "torch", 0.75))
    figures.append(compared("optim_ema_cost", timings, "averaged", "plain", 1.35))
    return figures


def masters() -> list[Figure]:
    """Measure Adam on bfloat16 parameters with float32 masters, which detects foreign writes to the
    parameters, in units of a step that only writes them.
    """
    contenders = []
    for name, is_read in (("read", True), ("only written", False)):
        narrow = [param.detach().to(torch.bfloat16) for param in _parameters_of(shapes.resnet50())]
        for parameter in narrow:
            parameter.grad = torch.randn_like(parameter)
        choose = partial(setattr, ParamGroupAdapter, "from_copies", is_read)
        choose()
        step = make_step(optim.Adam, narrow, {"masters": True})
        contenders.append(Contender(name, step, choose))
    figure = measure_ratio("optim_masters_read", contenders, 1.08, rounds=15, block=0.2)
    ParamGroupAdapter.from_copies = True
    return [figure]


def groups() -> list[Figure]:
    """Measure AdamW over resnet50 in 100 groups, in units of one group."""
    sets = [_parameters_of(shapes.resnet50()) for _ in range(2)]
    parts = [{"params": sets[0][k::GROUPS], "lr": RATE * (1 + k)} for k in range(GROUPS)]
    contenders = [
        Contender("100 groups", make_step(optim.AdamW, parts)),
        Contender("one", make_step(optim.AdamW, sets[1])),
    ]
    return [measure_ratio("optim_groups", contenders, 1.1)]


def all_of_them() -> list[Figure]:
    """Measure all figures of `thalweg.optim`."""
    return [*classes(), *small(), *training(), *recipes(), *groups()]


def beside_torch(
    name: str, step: Callable[[], object], torch_step: Callable[[], object], target: float
) -> Figure:
    """Return the figure of a step's time in units of torch's step."""
    contenders = [Contender("thalweg", step), Contender("torch", torch_step)]
    return measure_ratio(name, contenders, target)


def make_step(
    cls: Callable[..., Any],
    parameters: Sequence[Any],
    *options: Mapping[str, Any],
    wrap: Callable[[Callable[[], object]], Callable[[], object]] | None = None,
) -> Callable[[], object]:
    """Return the step of a new optimizer after some warm-up steps.

    Args:
        cls: The class of the optimizer.
        parameters: The parameters, with gradients.
        options: Arguments of the class besides the learning rate.
        wrap: Optional. Compiles the step.
    """
    arguments = {name: value for mapping in options for name, value in mapping.items()}
    step = cls(parameters, lr=RATE, **arguments).step
    step = step if wrap is None else wrap(step)
    for _ in range(WARM_UP):
        step()
    return step


def _scaled(optimizer: Any, clipped: Sequence[Tensor]) -> Callable[[], object]:
    """Return a step by torch's recipe: unscale, clip `clipped`, step, update the scale."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=10**9)
    scaler.scale(torch.zeros(()))  # makes its scale

    def step() -> None:
        if clipped:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(clipped, CLIP)
        scaler.step(optimizer)
        scaler.update()

    return step


def _parameters_of(shape_set: shapes.ShapeSet) -> list[Tensor]:
    """Return parameters with gradients."""
    return workload.make_tensors(shape_set).variables
