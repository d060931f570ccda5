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

SUMMARY = "states of optim and optim.tensorflow with one damage each, or of another class"
CASES = {False: 500, True: 100_000}
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
    """Load one damaged state; return "taken", "refused", or the failure with the damage."""
    dice = random.Random(f"{seed}/{number}")
    is_torchs = number % 3 > 0
    kinds_of_optim = [*OURS, *LACKED, ("Mixed", {})]
    home, kinds = (optim, kinds_of_optim) if is_torchs else (tensorflow, TENSORFLOWS)
    name, kind_options = dice.choice(kinds)
    options = {key: dice.choice(OPTIONS[key]) for key in dice.sample(list(OPTIONS), 1)}
    if dice.random() < 0.5 or (name == "SparseAdam" and options.keys() & {"round", *NARROW}):
        options = {}
    cls = mixed if name == "Mixed" else getattr(home, name)
    if options.keys() & {*NARROW} and not takes(cls, {**kind_options, **options}):
        options = {}
    opt, params = trained(cls, {**kind_options, **options}, name == "SparseAdam")
    title = f"{seed}/{number}/damage"
    state, damage, keys = damaged(opt, title)
    load_options = {"convert": True} if options.keys() & {*NARROW} and dice.random() < 0.5 else {}
    damage = f"{home.__name__}.{name} {kind_options} {options} {load_options}, {damage}"
    state_before = everything(opt, params)
    error = loaded(opt, state, **load_options)
    if damage.endswith(UNSEEN):
        is_good = error is None or isinstance(error, (thalweg.errors.ThalwegError, *TORCHS))
        return "refused" if is_good else f"{damage} raised {type(error).__name__}"
    judge: tuple[Any, list[Tensor]] | None = None
    torch_state: Any = None
    if is_torchs and not options.keys() & {*NARROW}:  # of records torch makes numbers
        # What torch lacks is judged by itself, without options.
        judge = trained(getattr(torch.optim, name, cls), kind_options, name == "SparseAdam")
        # Steps count in the tensor that was given, as torch's do: the judge has one of its own.
        fresh, _ = trained(cls, {**kind_options, **options}, name == "SparseAdam")
        torch_state = state_for_torch(damaged(fresh, title)[0])
    if error is not None:
        peer = loaded(judge[0], torch_state) if judge else None
        if not isinstance(error, thalweg.errors.ThalwegError) and type(error) is not type(peer):
            return f"{damage} raised {type(error).__name__}: {error}"
        if not same(everything(opt, params), state_before):
            return f"half a state: {damage} ({type(error).__name__}: {error})"
        kind_options = peer is not None and str(peer) in str(error)  # torch's words
        is_explained = kind_options or is_named(keys, str(error))
        if type(error) is not type(peer) and not is_explained:
            return f"{damage}: not named in {error}"
        return "refused"
    lone_keys = keys if options.keys() & {*NARROW} else []
    return judged((opt, params), judge, torch_state, damage, not options, lone_keys)


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
    for slot_values in slots.values() if isinstance(slots, dict) else ():
        for name, value in slot_values.items() if isinstance(slot_values, dict) else ():
            if type(value) is Tensor and value.layout is torch.strided and 0 in value.stride():
                slot_values[name] = value.clone(memory_format=torch.contiguous_format)
    return state


def takes(cls: Any, options: dict[str, Any]) -> bool:
    try:
        trained(cls, options)
    except (ValueError, TypeError, NotImplementedError):
        return False
    return True


def is_named(keys: list[Any], message: str) -> bool:
    """Return whether a message names one of the keys, or a value below one."""
    if not keys or not WIDE.isdisjoint(keys):
        return True
    # True is the key 1, and what a parameter has beside a sum alone is no state of a step.
    names = [*keys, *(int(key) for key in keys if isinstance(key, bool))]
    return any(str(key) in message for key in names) or "step' is missing" in message


def damaged(opt: Any, title: str) -> tuple[Any, str, list[Any]]:
    """Return a damaged state or one of another class, the damage and its place."""
    dice = random.Random(title)
    if dice.random() < 0.2:
        donor, donor_options = dice.choice(OURS)
        donor_opt, _ = trained(getattr(torch.optim, donor), donor_options, donor == "SparseAdam")
        return donor_opt.state_dict(), f"from {donor} {donor_options}", []
    state = copy.deepcopy(opt.state_dict())
    return state, *mutations.mutated_at(state, dice)


def trained(cls: Any, options: dict[str, Any], is_sparse: bool = False) -> tuple[Any, list[Tensor]]:
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
    rate = options.pop("lr")
    for group, rule in zip(groups, ("AdamW", "Lion"), strict=True):
        group |= {"rule": rule, "lr": rate}
    return optim.Mixed(groups, **options)


def give(params: list[Tensor], number: float, is_sparse: bool) -> None:
    for param in params:
        grad = torch.full_like(param, number).detach()
        param.grad = grad.to_sparse(1) if is_sparse else grad


def everything(opt: Any, params: list[Tensor]) -> dict[str, Any]:
    values = {f"parameter {k}": param.detach().clone() for k, param in enumerate(params)}
    return {"state": copy.deepcopy(opt.state_dict()), **values}


def loaded(opt: Any, state: Any, **options: bool) -> Exception | None:
    try:
        opt.load_state_dict(state, **options)
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
    training: tuple[Any, list[Tensor]],
    other_training: tuple[Any, list[Tensor]] | None,
    state: Any,
    damage: str,
    comparable: bool,
    lone_keys: list[Any],
) -> str:
    """Take a step with a loaded state; return "taken", "refused", or the failure.

    Args:
        training: The optimizer and its parameters.
        other_training: Torch's optimizer and parameters before the load, if it has a counterpart.
        state: The state.
        damage: A description of the damage.
        comparable: Whether the results must be near those of torch.
        lone_keys: Damaged keys of an option, which torch cannot judge.
    """
    opt, params = training
    state_before = everything(opt, params) if not damage.endswith((": cut", ": freed")) else None
    error = stepped(opt, params)
    if state_before is None:
        is_good = isinstance(error, (thalweg.errors.ThalwegError, *TORCHS))
        return "refused" if is_good else f"{damage}: stepped, {error!r}"
    peer = (
        (loaded(other_training[0], state) or stepped(*other_training)) if other_training else None
    )
    if error is not None:
        is_documented = isinstance(error, thalweg.errors.ThalwegError)
        accepted = not comparable and isinstance(error, NotImplementedError)  # beside an option
        accepted = accepted or "'complex'" in str(error)  # which torch's ASGD keeps for later
        accepted = accepted or (
            is_documented and bool(lone_keys) and is_named(lone_keys, str(error))
        )
        if not accepted and (peer is None or not (is_documented or type(error) is type(peer))):
            return f"{damage}: taken, and a step raised {type(error).__name__}: {error}"
        if not is_of_torch(error) and not same(
            *map(without_sums, (everything(opt, params), state_before))
        ):
            return f"{damage}: a refused step changed something ({error})"
        return "refused"
    if other_training is None or not comparable:
        return "taken"
    if peer is not None and any(quirk in str(peer) for quirk in QUIRKS):
        return "taken"
    if peer is not None:
        return f"{damage}: taken, and torch refuses it ({type(peer).__name__}: {peer})"
    for param, torch_param in zip(params, other_training[1], strict=True):
        if not torch.allclose(param, torch_param, equal_nan=True, **CLOSE):
            return f"{damage}: {param.tolist()}, and torch's is {torch_param.tolist()}"
    return "taken"


def is_of_torch(error: Exception) -> bool:
    """Return whether an error notes that torch took the step, group by group."""
    return any("torch's own" in note for note in getattr(error, "__notes__", ()))


def without_sums(everything: dict[str, Any]) -> dict[str, Any]:
    """Return a copy without sums of gradients, which a failed step may change."""
    everything["state"]["state"] = {
        key: {n: x for n, x in slots.items() if n != "gradient_sum"}
        if isinstance(slots, dict)
        else slots
        for key, slots in everything["state"]["state"].items()
    }
    for group in everything["state"]["param_groups"]:
        group.pop("folded", None)
    return everything


def warm() -> None:
    torch.set_num_threads(1)
    encode_all()
    warnings.simplefilter("ignore")
    for name, options in OURS:
        trained(getattr(optim, name), options, name == "SparseAdam")
    for name, options in TENSORFLOWS:
        trained(getattr(tensorflow, name), options)
    for number in range(200):  # with the options, and what a refusal imports
        attempt(-1, number)


def attack(long: bool, seed: int) -> Figures:
    return figures_of(__name__, seed, CASES[long], BATCH, GOOD)
