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
    """A class with what it should reach.

    Attributes:
        slots: How many slots a parameter has.
        target: Most of the time of torch's best form that a step may take.
        slow: The same of its for-loop and foreach forms.
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
    """Every dense class on resnet50: beside torch's best form, beside the form that people had
    before there were fused ones, and as a share of the bandwidth of one addition.
    """
    figures: list[Figure] = []
    for name, kind in KINDS.items():
        made = workload.make_tensors(shapes.resnet50())
        own = _step(getattr(optim, name), made.variables, kind.options)
        forms = [each for each in FORMS if each != "torch fused" or name in FUSED]
        peers = [
            Contender(
                form, _step(getattr(torch.optim, name), made.variables, kind.options, FORMS[form])
            )
            for form in forms
        ]
        add = roofline.roofline(kind.slots, made.variables, made.gradients)
        contenders = [Contender("thalweg", own), *peers, Contender("roofline", add)]
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
    """Every dense class on resnet50 beside torch's under `torch.compile`, some minutes for each."""
    figures: list[Figure] = []
    for name, kind in KINDS.items():
        made = workload.make_tensors(shapes.resnet50())
        own = _step(getattr(optim, name), made.variables, kind.options)
        theirs = _step(getattr(torch.optim, name), made.variables, kind.options, wrap=torch.compile)
        contenders = [Contender("thalweg", own), Contender("torch compiled", theirs)]
        timings = measure(contenders, rounds=7, block=0.1)
        figure = f"optim_compiled_{name}"
        figures.append(compared(figure, timings, "thalweg", "torch compiled", kind.target))
    return figures


def small() -> list[Figure]:
    """Adam over few and many small tensors, in units of torch's fused Adam."""
    figures: list[Figure] = []
    cases = ((1, 0.25, {}), (10, 0.25, {}), (100, 0.15, {}), (2000, 0.12, {}))
    for count, target, options in (*cases, (2000, 0.08, {"gradients": "flat"})):
        timings = _beside_fused(_parameters(count, 1000), _parameters(count, 1000), options)
        name = f"optim_small{count}" + "_flat" * bool(options)
        figures.append(compared(name, timings, "thalweg", "torch fused", target))
    return figures


def training() -> list[Figure]:
    """The step alone, timed between forward-backward passes of a small model."""
    ours, theirs = model(), model()
    own = _step(optim.Adam, list(ours.parameters()), {})
    fused = _step(torch.optim.Adam, list(theirs.parameters()), FORMS["torch fused"])
    contenders = [
        Contender("thalweg", own, backward(ours)),
        Contender("torch fused", fused, backward(theirs)),
    ]
    timings = measure(contenders, rounds=15, block=0.3)
    return [compared("optim_training_loop", timings, "thalweg", "torch fused", 0.8)]


def recipes() -> list[Figure]:
    """Unscaling, clipping and AdamW by torch's own recipe; Adam with an average of the weights."""
    scaled = _parameters_of(shapes.resnet50()), _parameters_of(shapes.resnet50())
    steps = [
        _scaled(optim.AdamW(scaled[0], RATE, clip_grad_norm=CLIP, fused_unscale=True), []),
        _scaled(torch.optim.AdamW(scaled[1], RATE, fused=True), scaled[1]),
    ]
    contenders = [Contender("thalweg", steps[0]), Contender("torch", steps[1])]
    timings = measure(contenders, rounds=9, block=0.2)
    found = [compared("optim_scaler_clip_adamw", timings, "thalweg", "torch", 0.55)]

    sets = [_parameters_of(shapes.resnet50()) for _ in range(3)]
    module = torch.nn.ParameterList(sets[2])
    for parameter, given in zip(module.parameters(), sets[2], strict=True):
        parameter.grad = given.grad  # a list makes parameters of its own
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
    found.append(compared("optim_ema", timings, "averaged", "torch", 0.75))
    found.append(compared("optim_ema_cost", timings, "averaged", "plain", 1.35))
    return found


def masters() -> list[Figure]:
    """Adam on bfloat16 parameters with float32 masters: what it costs to look in the update for
    what others wrote to the parameters, in units of the same step that only writes them.
    """
    contenders = []
    for name, is_read in (("read", True), ("only written", False)):
        narrow = [each.detach().to(torch.bfloat16) for each in _parameters_of(shapes.resnet50())]
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
    """AdamW over resnet50 in 100 groups, in units of one."""
    sets = [_parameters_of(shapes.resnet50()) for _ in range(2)]
    parts = [{"params": sets[0][k::GROUPS], "lr": RATE * (1 + k)} for k in range(GROUPS)]
    contenders = [
        Contender("100 groups", _step(optim.AdamW, parts, {})),
        Contender("one", _step(optim.AdamW, sets[1], {})),
    ]
    timings = measure(contenders, rounds=9, block=0.1)
    return [compared("optim_groups", timings, "100 groups", "one", 1.1)]


def all_of_them() -> list[Figure]:
    """Every figure of `thalweg.optim`."""
    return [*classes(), *small(), *training(), *recipes(), *groups()]


def _step(
    cls: Callable[..., Any],
    parameters: Sequence[Any],
    *options: Mapping[str, Any],
    wrap: Callable[[Callable[[], object]], Callable[[], object]] | None = None,
) -> Callable[[], object]:
    """A step of an optimizer that has taken some."""
    given = {name: value for each in options for name, value in each.items()}
    step = cls(parameters, lr=RATE, **given).step
    step = step if wrap is None else wrap(step)
    for _ in range(WARM_UP):
        step()
    return step


def _scaled(optimizer: Any, clipped: Sequence[Tensor]) -> Callable[[], object]:
    """One step by torch's recipe: unscale, clip where the optimizer does not, step, update."""
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
    own: Sequence[Tensor], others: Sequence[Tensor], options: Mapping[str, Any]
) -> Timings:
    mine = _step(optim.Adam, own, options)
    if options:  # flat gradients begin as zeros
        for parameter, other in zip(own, others, strict=True):
            parameter.grad.copy_(other.grad)  # pyright: ignore[reportOptionalMemberAccess]
    theirs = _step(torch.optim.Adam, others, FORMS["torch fused"])
    return measure([Contender("thalweg", mine), Contender("torch fused", theirs)], rounds=11)


def _parameters(count: int, size: int) -> list[Tensor]:
    return _parameters_of(shapes.ShapeSet("small", ((size,),) * count, (torch.float32,) * count))


def _parameters_of(chosen: shapes.ShapeSet) -> list[Tensor]:
    """Parameters with gradients of normal size."""
    return workload.make_tensors(chosen).variables
