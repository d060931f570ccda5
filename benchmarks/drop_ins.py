"""`thalweg.optim` beside `torch.optim`: every class, small tensors, loops, recipes and groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from figure import Figure, compared
from loop import backward, model
from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from thalweg import optim
from thalweg._cli.bench import roofline, shapes, workload
from thalweg._cli.bench.timing import Contender, Timings, measure
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
        step = _step(getattr(optim, name), problem.variables, kind.options)
        forms = [form_name for form_name in FORMS if form_name != "torch fused" or name in FUSED]
        peers = [
            Contender(
                form,
                _step(getattr(torch.optim, name), problem.variables, kind.options, FORMS[form]),
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
        own_step = _step(getattr(optim, name), problem.variables, kind.options)
        torch_step = _step(
            getattr(torch.optim, name), problem.variables, kind.options, wrap=torch.compile
        )
        contenders = [Contender("thalweg", own_step), Contender("torch compiled", torch_step)]
        timings = measure(contenders, rounds=7, block=0.1)
        figure = f"optim_compiled_{name}"
        figures.append(compared(figure, timings, "thalweg", "torch compiled", kind.target))
    return figures


def small() -> list[Figure]:
    """Measure Adam over few and many small tensors, in units of torch's fused Adam."""
    figures: list[Figure] = []
    cases = ((1, 0.25, {}), (10, 0.25, {}), (100, 0.15, {}), (2000, 0.12, {}))
    for count, target, options in (*cases, (2000, 0.08, {"gradients": "flat"})):
        timings = _beside_fused(_parameters(count, 1000), _parameters(count, 1000), options)
        name = f"optim_small{count}" + "_flat" * bool(options)
        figures.append(compared(name, timings, "thalweg", "torch fused", target))
    return figures


def training() -> list[Figure]:
    """Measure the step alone, between forward-backward passes of a small model."""
    own_model, torch_model = model(), model()
    step = _step(optim.Adam, list(own_model.parameters()), {})
    fused = _step(torch.optim.Adam, list(torch_model.parameters()), FORMS["torch fused"])
    contenders = [
        Contender("thalweg", step, backward(own_model)),
        Contender("torch fused", fused, backward(torch_model)),
    ]
    timings = measure(contenders, rounds=15, block=0.3)
    return [compared("optim_training_loop", timings, "thalweg", "torch fused", 0.8)]


def recipes() -> list[Figure]:
    """Measure unscaling, clipping and AdamW by torch's recipe, and Adam with averaged weights."""
    scaled_params = _parameters_of(shapes.resnet50()), _parameters_of(shapes.resnet50())
    steps = [
        _scaled(optim.AdamW(scaled_params[0], RATE, clip_grad_norm=CLIP, fused_unscale=True), []),
        _scaled(torch.optim.AdamW(scaled_params[1], RATE, fused=True), scaled_params[1]),
    ]
    contenders = [Contender("thalweg", steps[0]), Contender("torch", steps[1])]
    timings = measure(contenders, rounds=9, block=0.2)
    figures = [compared("optim_scaler_clip_adamw", timings, "thalweg", "torch", 0.55)]

    sets = [_parameters_of(shapes.resnet50()) for _ in range(3)]
    module = torch.nn.ParameterList(sets[2])
    for parameter, source in zip(module.parameters(), sets[2], strict=True):
        # `ParameterList` has new parameters.
        parameter.grad = source.grad
    average = AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(AVERAGE))
    fused = _step(torch.optim.Adam, list(module.parameters()), FORMS["torch fused"])

    def averaged() -> None:
        fused()
        average.update_parameters(module)

    averaging = _step(optim.Adam, sets[0], {"ema_decay": AVERAGE})
    contenders = [
        Contender("averaged", averaging),
        Contender("plain", _step(optim.Adam, sets[1], {})),
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
        step = _step(optim.Adam, narrow, {"masters": True})
        contenders.append(Contender(name, step, choose))
    timings = measure(contenders, rounds=15, block=0.2)
    ParamGroupAdapter.from_copies = True
    return [compared("optim_masters_read", timings, "read", "only written", 1.08)]


def groups() -> list[Figure]:
    """Measure AdamW over resnet50 in 100 groups, in units of one group."""
    sets = [_parameters_of(shapes.resnet50()) for _ in range(2)]
    parts = [{"params": sets[0][k::GROUPS], "lr": RATE * (1 + k)} for k in range(GROUPS)]
    contenders = [
        Contender("100 groups", _step(optim.AdamW, parts, {})),
        Contender("one", _step(optim.AdamW, sets[1], {})),
    ]
    timings = measure(contenders, rounds=9, block=0.1)
    return [compared("optim_groups", timings, "100 groups", "one", 1.1)]


def all_of_them() -> list[Figure]:
    """Measure all figures of `thalweg.optim`."""
    return [*classes(), *small(), *training(), *recipes(), *groups()]


def _step(
    cls: Callable[..., Any],
    parameters: Sequence[Any],
    *options: Mapping[str, Any],
    wrap: Callable[[Callable[[], object]], Callable[[], object]] | None = None,
) -> Callable[[], object]:
    """Return the step of an optimizer after some warm-up steps."""
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


def _beside_fused(
    params: Sequence[Tensor], torch_params: Sequence[Tensor], options: Mapping[str, Any]
) -> Timings:
    own_step = _step(optim.Adam, params, options)
    if options:  # flat gradients begin as zeros
        for parameter, source in zip(params, torch_params, strict=True):
            parameter.grad.copy_(source.grad)  # pyright: ignore[reportOptionalMemberAccess]
    torch_step = _step(torch.optim.Adam, torch_params, FORMS["torch fused"])
    return measure(
        [Contender("thalweg", own_step), Contender("torch fused", torch_step)], rounds=11
    )


def _parameters(count: int, size: int) -> list[Tensor]:
    return _parameters_of(shapes.ShapeSet("small", ((size,),) * count, (torch.float32,) * count))


def _parameters_of(shape_set: shapes.ShapeSet) -> list[Tensor]:
    """Return parameters with gradients."""
    return workload.make_tensors(shape_set).variables
