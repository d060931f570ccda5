"""Files with one value changed under right checksums, from which the same training goes on.

An optimizer of every class, with every option, is saved, one value of the file is changed, and an
optimizer that was made alike restores it. What is accepted takes steps and is saved again: a state
that stops an optimizer later is a failure, as is an error that is not one of the library's.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attack import restores
from attack.torch_states import give, mixed
from attack.torch_trainings import LACKED, OF_MATRICES, OPTIONS, OURS, TENSORFLOWS
from thalweg import ThalwegError, checkpoint, optim
from thalweg._formats.stored_tensor import StoredTensor, of_tensor
from thalweg.optim import tensorflow

Dice = random.Random
Training = tuple[Any, list[Tensor]]
Make = Callable[[], Training]

FACES: list[tuple[Any, list[tuple[str, dict[str, Any]]]]] = [
    (optim, [*OURS, *LACKED, *OF_MATRICES, ("Mixed", {})]),
    (tensorflow, TENSORFLOWS),
    (torch.optim, OURS),
]
STEPS = 3
_made: list[Make] = []


def make_training(name: str, home: Any, options: dict[str, Any]) -> Training:
    first = (2, 2) if name in {rule for rule, _ in OF_MATRICES} else () if home is optim else (3,)
    shapes = ((3,) if name == "SparseAdam" else first, (2, 3))
    params = [torch.nn.Parameter(torch.ones(shape)) for shape in shapes]
    is_wide = options.get("masters") or options.get("wide_sums")
    for param in params if options.get("weights") else params[:1] if is_wide else ():
        param.data = param.data.bfloat16()
    cls = mixed if name == "Mixed" else getattr(home, name)
    return cls([{"params": params[:1]}, {"params": params[1:]}], lr=0.5, **options), params


def make_other(name: str) -> Training:
    """Return an optimizer of another front end that has taken no step, and its variables."""
    variables = restores.variables()
    return restores.trainings()[name](variables), list(variables)


def step_training(training: Training, count: int) -> None:
    opt, params = training
    for number in range(count):
        if isinstance(opt, torch.optim.Optimizer):
            give(params, 0.5 + number, isinstance(opt, torch.optim.SparseAdam))
            opt.step()
        elif callable(opt):  # a step of optimize_loss
            opt()
        else:
            opt.apply_gradients([(torch.full_like(param, 0.5 + number), param) for param in params])


def read_training(training: Training) -> str:
    opt, params = training
    state = opt.state_dict() if hasattr(opt, "state_dict") else None
    return repr(([param.detach() for param in params], state))


def choose_training(dice: Dice) -> Make:
    """Return a function that makes one of the trainings, with none or one of the options."""
    if dice.random() < 0.2:
        return partial(make_other, dice.choice(["keras", "noisy", "v1", "averages", "step"]))
    home, kinds = dice.choice(FACES)
    name, kind_options = dice.choice(kinds)
    key = dice.choice(list(OPTIONS))
    options = {key: dice.choice(OPTIONS[key])}
    is_unsaved = name == "SparseAdam" and key == "accumulate"  # no file holds sparse sums
    if home is torch.optim or is_unsaved or dice.random() < 0.4:
        options = {}
    make = partial(make_training, name, home, {**kind_options, **options})
    return make if _can_step(make) else partial(make_training, name, home, kind_options)


def _can_step(make: Make) -> bool:
    try:
        step_training(make(), 1)
    except (ValueError, TypeError, NotImplementedError):
        return False
    return True


def save_training(make: Make, path: Path) -> None:
    training = make()
    step_training(training, 2)
    checkpoint.save(path, optimizer=training[0], variables=_by_name(training))
    _made[:] = [make]


def _by_name(training: Training) -> dict[str, Tensor]:
    return dict(zip("wb", training[1], strict=True))


def damage_tensor(stored_value: StoredTensor, dice: Dice) -> StoredTensor:
    """Return a tensor of another dtype, shape or value, as a file holds it."""
    value = stored_value.tensor().clone()
    wide = value.double()
    changes: list[Callable[[], Tensor]] = [
        lambda: value.to(dice.choice(DTYPES)),
        lambda: value.to(dice.choice(DTYPES)),
        lambda: value.flatten(),
        lambda: value[None],
        lambda: value.flatten()[:1].reshape(()),
        lambda: torch.cat([value.flatten(), value.flatten()]),
        lambda: value.mT if value.dim() > 1 else value.flatten()[:0],
        lambda: (-1 - wide).to(value.dtype),
        lambda: torch.full_like(wide, dice.choice(EXTREMES)).to(value.dtype),
        lambda: torch.full_like(wide, dice.choice(EXTREMES)).to(dice.choice(DTYPES)),
    ]
    return of_tensor(dice.choice(changes)())


EXTREMES = (0.0, 0.5, 3.0, -2.0, 127.0, 255.0, 1e38, float("nan"), float("inf"), float("-inf"))
DTYPES = (
    torch.float64, torch.float16, torch.bfloat16, torch.float32, torch.int64, torch.int32,
    torch.int8, torch.uint8, torch.bool, torch.complex64,
)  # fmt: skip


def resumed(path: str, dice: Dice) -> list[Any]:
    """Restore the training that was saved last; what is accepted takes steps and is saved."""
    training = _made[0]()
    if dice.random() < 0.5:
        step_training(training, 1)
    state_before = read_training(training)
    try:
        checkpoint.restore(
            path,
            optimizer=training[0],
            variables=_by_name(training),
            check_arguments=dice.random() < 0.6,
            convert=dice.random() < 0.3,
        )
    except ThalwegError:
        return [torch.ones(1) if state_before == read_training(training) else torch.zeros(1)]
    step_training(training, STEPS)
    second_path = Path(path).with_name("again")
    checkpoint.save(second_path, optimizer=training[0], variables=_by_name(training))
    return []
