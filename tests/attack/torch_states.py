"""Hostile states of `thalweg.optim`: one damage at a time, with torch as the judge.

A state that is refused leaves every bit of the optimizer and the parameters as they were. One that
is taken is one that torch takes, too, and the step after it gives torch's number. Options keep
state that torch has not: such an optimizer is judged by itself.
"""

from __future__ import annotations

import copy
import random
import warnings
from typing import Any

import torch
from torch import Tensor

import thalweg
from attack import mutations
from attack.figures import Figures
from attack.server import figures_of
from attack.states import same
from attack.torch_trainings import OPTIONS, OURS, TENSORFLOWS
from thalweg import optim
from thalweg.optim import tensorflow

TRIED = "states of optim and optim.tensorflow with one damage each, or of another class"
CASES = {False: 5000, True: 100_000}
GOOD = ("taken", "refused")
BATCH = 250
DOCUMENTED = (thalweg.errors.ThalwegError, ValueError, TypeError, RuntimeError)
UNSEEN = (": wrapper", ": unwritten", ": unreadable")  # what nobody can look at
CLOSE = {"rtol": 1e-4, "atol": 1e-6}


def attempt(seed: int, number: int) -> str:
    """What became of a state: "taken", "refused", or what went wrong, with the damage."""
    dice = random.Random(f"{seed}/{number}")
    is_torchs = number % 3 > 0
    home, kinds = (optim, OURS) if is_torchs else (tensorflow, TENSORFLOWS)
    name, own = dice.choice(kinds)
    added = {key: dice.choice(OPTIONS[key]) for key in dice.sample(list(OPTIONS), 1)}
    added = {} if dice.random() < 0.5 else added
    opt, params = trained(getattr(home, name), {**own, **added}, name == "SparseAdam")
    title = f"{seed}/{number}/damage"
    given, damage = damaged(opt, title)
    damage = f"{home.__name__}.{name} {own} {added}, {damage}"
    before = everything(opt, params)
    refused = loaded(opt, given)
    if damage.endswith(UNSEEN):
        is_good = refused is None or isinstance(refused, DOCUMENTED)
        return "refused" if is_good else f"{damage} raised {type(refused).__name__}"
    if refused is not None:
        if not isinstance(refused, DOCUMENTED):
            return f"{damage} raised {type(refused).__name__}: {refused}"
        if not same(everything(opt, params), before):
            return f"half a state: {damage} ({type(refused).__name__}: {refused})"
        return "refused"
    if not is_torchs or added:
        return judged_by_itself(opt, params, damage)
    fresh, _ = trained(getattr(home, name), own, name == "SparseAdam")
    judge, theirs = trained(getattr(torch.optim, name), own, name == "SparseAdam")
    # Steps count in the tensor that was given, as torch's do: the judge has one of its own.
    again, _ = damaged(fresh, title)
    return judged_by_torch((opt, params), (judge, theirs), again, damage)


def damaged(opt: Any, title: str) -> tuple[Any, str]:
    """The state of an optimizer with one damage, or that of another class, and what it is."""
    dice = random.Random(title)
    if dice.random() < 0.2:
        other, theirs = dice.choice(OURS)
        made, _ = trained(getattr(torch.optim, other), theirs, other == "SparseAdam")
        return made.state_dict(), f"from {other} {theirs}"
    given = copy.deepcopy(opt.state_dict())
    return given, mutations.mutated(given, dice)


def trained(cls: Any, options: dict[str, Any], is_sparse: bool = False) -> tuple[Any, list[Tensor]]:
    """An optimizer after two steps."""
    params = [torch.nn.Parameter(torch.ones(shape)) for shape in ((3,), (2, 3))]
    is_wide = options.get("masters") or options.get("wide_sums")
    if is_wide:
        params[0].data = params[0].data.bfloat16()
    opt = cls([{"params": params[:1]}, {"params": params[1:]}], lr=0.5, **options)
    for number in (1.0, 2.0):
        give(params, number, is_sparse)
        opt.step()
    return opt, params


def give(params: list[Tensor], number: float, is_sparse: bool) -> None:
    for param in params:
        grad = torch.full_like(param, number).detach()
        param.grad = grad.to_sparse(1) if is_sparse else grad


def everything(opt: Any, params: list[Tensor]) -> dict[str, Any]:
    found = {f"parameter {k}": param.detach().clone() for k, param in enumerate(params)}
    return {"state": copy.deepcopy(opt.state_dict()), **found}


def loaded(opt: Any, given: Any) -> Exception | None:
    try:
        opt.load_state_dict(given)
    except Exception as error:
        return error
    return None


def stepped(opt: Any, params: list[Tensor]) -> Exception | None:
    is_sparse = isinstance(opt, torch.optim.SparseAdam)
    give(params, 0.5, is_sparse)
    try:
        opt.step()
    except Exception as error:
        return error
    return None


def judged_by_itself(opt: Any, params: list[Tensor], damage: str) -> str:
    """A state that was taken can be stepped from, or the step is refused and changes nothing."""
    if damage.endswith((": cut", ": freed")):
        refused = stepped(opt, params)
        return "refused" if isinstance(refused, DOCUMENTED) else f"{damage}: stepped, {refused!r}"
    before = everything(opt, params)
    refused = stepped(opt, params)
    if refused is None:
        return "taken"
    if not isinstance(refused, DOCUMENTED):
        return f"{damage}: a step raised {type(refused).__name__}: {refused}"
    if not same(everything(opt, params), before):
        return f"{damage}: a refused step changed something ({refused})"
    return "refused"


def judged_by_torch(
    ours: tuple[Any, list[Tensor]], judge: tuple[Any, list[Tensor]], given: Any, damage: str
) -> str:
    found = judged_by_itself(*ours, damage)
    if found != "taken":
        return found
    refused = loaded(judge[0], given) or stepped(*judge)
    if refused is not None:
        return f"{damage}: taken, and torch refuses it ({type(refused).__name__}: {refused})"
    for one, other in zip(ours[1], judge[1], strict=True):
        if not torch.allclose(one, other, equal_nan=True, **CLOSE):
            return f"{damage}: {one.tolist()}, and torch's is {other.tolist()}"
    return "taken"


def warm() -> None:
    """Have the kernels in memory."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name, own in OURS:
        trained(getattr(optim, name), own, name == "SparseAdam")
    for name, own in TENSORFLOWS:
        trained(getattr(tensorflow, name), own)


def attack(long: bool, seed: int) -> Figures:
    """Load states in children, so that a signal is a failure of one."""
    return figures_of(__name__, seed, CASES[long], BATCH, GOOD)
