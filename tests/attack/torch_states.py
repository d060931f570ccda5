"""Hostile states of `thalweg.optim`: one damage at a time, with torch as the judge.

A state that is refused leaves every bit of the optimizer and the parameters as they were, and the
error names what was damaged; an error that is not of ours is torch's own. One that is taken is one
that torch takes, too, and the step after it gives torch's number; where torch steps, so do we.
Options keep state that torch has not: such an optimizer is judged by itself, but for that.
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
from attack.torch_trainings import LACKED, NARROW, OPTIONS, OURS, TENSORFLOWS, encode_all
from thalweg import optim
from thalweg.optim import tensorflow

TRIED = "states of optim and optim.tensorflow with one damage each, or of another class"
CASES = {False: 3000, True: 100_000}
GOOD = ("taken", "refused")
BATCH = 250
TORCHS = (ValueError, TypeError, RuntimeError, NotImplementedError)
UNSEEN = (": wrapper", ": unwritten", ": unreadable")  # what nobody can look at
# What shows elsewhere: in the parameters that groups have, or in slots that an option asks for.
WIDE = {"state", "param_groups", "params", "amsgrad", "centered", "momentum"}
# What torch says of numbers that are booleans or beyond float32, and steps here compute with.
QUIRKS = ("without overflow", "can't convert negative int", "int too big", "Boolean alpha")
CLOSE = {"rtol": 1e-4, "atol": 1e-6}


def attempt(seed: int, number: int) -> str:
    """What became of a state: "taken", "refused", or what went wrong, with the damage."""
    dice = random.Random(f"{seed}/{number}")
    is_torchs = number % 3 > 0
    ours = [*OURS, *LACKED, ("Mixed", {})]
    home, kinds = (optim, ours) if is_torchs else (tensorflow, TENSORFLOWS)
    name, own = dice.choice(kinds)
    added = {key: dice.choice(OPTIONS[key]) for key in dice.sample(list(OPTIONS), 1)}
    if dice.random() < 0.5 or (name == "SparseAdam" and added.keys() & {"round", *NARROW}):
        added = {}
    cls = mixed if name == "Mixed" else getattr(home, name)
    if added.keys() & {*NARROW} and not takes(cls, {**own, **added}):
        added = {}
    opt, params = trained(cls, {**own, **added}, name == "SparseAdam")
    title = f"{seed}/{number}/damage"
    given, damage, keys = damaged(opt, title)
    how = {"convert": True} if added.keys() & {*NARROW} and dice.random() < 0.5 else {}
    damage = f"{home.__name__}.{name} {own} {added} {how}, {damage}"
    before = everything(opt, params)
    refused = loaded(opt, given, **how)
    if damage.endswith(UNSEEN):
        is_good = refused is None or isinstance(refused, (thalweg.errors.ThalwegError, *TORCHS))
        return "refused" if is_good else f"{damage} raised {type(refused).__name__}"
    judge: tuple[Any, list[Tensor]] | None = None
    again: Any = None
    if is_torchs and not added.keys() & {*NARROW}:  # of records torch makes numbers
        # What torch lacks is judged by itself, without options.
        judge = trained(getattr(torch.optim, name, cls), own, name == "SparseAdam")
        # Steps count in the tensor that was given, as torch's do: the judge has one of its own.
        fresh, _ = trained(cls, {**own, **added}, name == "SparseAdam")
        again = state_for_torch(damaged(fresh, title)[0])
    if refused is not None:
        theirs = loaded(judge[0], again) if judge else None
        if not isinstance(refused, thalweg.errors.ThalwegError) and type(refused) is not type(
            theirs
        ):
            return f"{damage} raised {type(refused).__name__}: {refused}"
        if not same(everything(opt, params), before):
            return f"half a state: {damage} ({type(refused).__name__}: {refused})"
        own = theirs is not None and str(theirs) in str(refused)  # torch's words
        is_told = own or is_named(keys, str(refused))
        if type(refused) is not type(theirs) and not is_told:
            return f"{damage}: not named in {refused}"
        return "refused"
    alone = keys if added.keys() & {*NARROW} else []
    return judged((opt, params), judge, again, damage, not added, alone)


def state_for_torch(state: Any) -> Any:
    """Return the state that torch's optimizer loads: without rounding, and without overlaps.

    Its groups know nothing of rounding, and its steps refuse a slot whose elements share memory,
    which is copied here.
    """
    if not isinstance(state, dict):
        return state
    groups = state.get("param_groups")
    for group in groups if isinstance(groups, list) else ():
        for name in ("round", "seed") if isinstance(group, dict) else ():
            group.pop(name, None)
    slots = state.get("state")
    for own in slots.values() if isinstance(slots, dict) else ():
        for name, value in own.items() if isinstance(own, dict) else ():
            if type(value) is Tensor and value.layout is torch.strided and 0 in value.stride():
                own[name] = value.clone(memory_format=torch.contiguous_format)
    return state


def takes(cls: Any, options: dict[str, Any]) -> bool:
    """Whether a class takes options."""
    try:
        trained(cls, options)
    except (ValueError, TypeError, NotImplementedError):
        return False
    return True


def is_named(keys: list[Any], message: str) -> bool:
    """Whether a message tells of one of the keys, or of something where one is."""
    if not keys or not WIDE.isdisjoint(keys):
        return True
    # True is the key 1, and what a parameter has beside a sum alone is no state of a step.
    own = [*keys, *(int(key) for key in keys if isinstance(key, bool))]
    return any(str(key) in message for key in own) or "step' is missing" in message


def damaged(opt: Any, title: str) -> tuple[Any, str, list[Any]]:
    """The state of an optimizer with one damage, or that of another class; what and where it is."""
    dice = random.Random(title)
    if dice.random() < 0.2:
        other, theirs = dice.choice(OURS)
        made, _ = trained(getattr(torch.optim, other), theirs, other == "SparseAdam")
        return made.state_dict(), f"from {other} {theirs}", []
    given = copy.deepcopy(opt.state_dict())
    return given, *mutations.mutated_at(given, dice)


def trained(cls: Any, options: dict[str, Any], is_sparse: bool = False) -> tuple[Any, list[Tensor]]:
    """An optimizer after two steps."""
    params = [torch.nn.Parameter(torch.ones(shape)) for shape in ((3,), (2, 3))]
    is_wide = options.get("masters") or options.get("wide_sums")
    for param in params if options.get("weights") else params[:1] if is_wide else ():
        param.data = param.data.bfloat16()
    opt = cls([{"params": params[:1]}, {"params": params[1:]}], lr=0.5, **options)
    for number in (1.0, 2.0):
        give(params, number, is_sparse)
        opt.step()
    return opt, params


def mixed(groups: list[dict[str, Any]], **options: Any) -> Any:
    """An optimizer of several rules."""
    rate = options.pop("lr")
    for group, rule in zip(groups, ("AdamW", "Lion"), strict=True):
        group |= {"rule": rule, "lr": rate}
    return optim.Mixed(groups, **options)


def give(params: list[Tensor], number: float, is_sparse: bool) -> None:
    for param in params:
        grad = torch.full_like(param, number).detach()
        param.grad = grad.to_sparse(1) if is_sparse else grad


def everything(opt: Any, params: list[Tensor]) -> dict[str, Any]:
    found = {f"parameter {k}": param.detach().clone() for k, param in enumerate(params)}
    return {"state": copy.deepcopy(opt.state_dict()), **found}


def loaded(opt: Any, given: Any, **how: bool) -> Exception | None:
    try:
        opt.load_state_dict(given, **how)
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


def judged(
    ours: tuple[Any, list[Tensor]],
    judge: tuple[Any, list[Tensor]] | None,
    given: Any,
    damage: str,
    is_alike: bool,
    alone: list[Any],
) -> str:
    """What becomes of a step with a state that was taken.

    Args:
        ours: The optimizer and its parameters.
        judge: Torch's, which has not loaded the state yet; None if there is none.
        given: The state.
        damage: What is wrong with it.
        is_alike: Whether the numbers are torch's.
        alone: What was damaged, where nobody else can tell whether a step may refuse it.
    """
    opt, params = ours
    before = everything(opt, params) if not damage.endswith((": cut", ": freed")) else None
    refused = stepped(opt, params)
    if before is None:
        is_good = isinstance(refused, (thalweg.errors.ThalwegError, *TORCHS))
        return "refused" if is_good else f"{damage}: stepped, {refused!r}"
    theirs = (loaded(judge[0], given) or stepped(*judge)) if judge else None
    if refused is not None:
        is_ours = isinstance(refused, thalweg.errors.ThalwegError)
        is_left = not is_alike and isinstance(refused, NotImplementedError)  # beside an option
        is_left = is_left or "'complex'" in str(refused)  # which torch's ASGD keeps for later
        is_left = is_left or (is_ours and bool(alone) and is_named(alone, str(refused)))
        if not is_left and (theirs is None or not (is_ours or type(refused) is type(theirs))):
            return f"{damage}: taken, and a step raised {type(refused).__name__}: {refused}"
        if not is_of_torch(refused) and not same(
            *map(without_sums, (everything(opt, params), before))
        ):
            return f"{damage}: a refused step changed something ({refused})"
        return "refused"
    if judge is None or not is_alike:
        return "taken"
    if theirs is not None and any(each in str(theirs) for each in QUIRKS):
        return "taken"
    if theirs is not None:
        return f"{damage}: taken, and torch refuses it ({type(theirs).__name__}: {theirs})"
    for one, other in zip(params, judge[1], strict=True):
        if not torch.allclose(one, other, equal_nan=True, **CLOSE):
            return f"{damage}: {one.tolist()}, and torch's is {other.tolist()}"
    return "taken"


def is_of_torch(refused: Exception) -> bool:
    """Whether an error says that the step was torch's, which writes one group after the other."""
    return any("torch's own" in note for note in getattr(refused, "__notes__", ()))


def without_sums(everything: dict[str, Any]) -> dict[str, Any]:
    """The same without sums of gradients: those of a step that was refused stay."""
    everything["state"]["state"] = {
        key: {n: x for n, x in own.items() if n != "gradient_sum"} if isinstance(own, dict) else own
        for key, own in everything["state"]["state"].items()
    }
    for group in everything["state"]["param_groups"]:
        group.pop("folded", None)
    return everything


def warm() -> None:
    """Have the kernels in memory."""
    torch.set_num_threads(1)
    encode_all()
    warnings.simplefilter("ignore")
    for name, own in OURS:
        trained(getattr(optim, name), own, name == "SparseAdam")
    for name, own in TENSORFLOWS:
        trained(getattr(tensorflow, name), own)
    for number in range(200):  # with the options, and what a refusal imports
        attempt(-1, number)


def attack(long: bool, seed: int) -> Figures:
    """Load states in children, so that a signal is a failure of one."""
    return figures_of(__name__, seed, CASES[long], BATCH, GOOD)
