"""`to_torch`: the state of an optimizer, as one of `torch.optim` loads it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from thalweg._base.scalars import scalar_type
from thalweg._core import state
from thalweg._core.hyperparameters import as_hyper
from thalweg._core.pairs import check_variables, distinct, flatten
from thalweg.checkpoint.step_inference import steps_of
from thalweg.checkpoint.torch_optim import difference_notes
from thalweg.checkpoint.torch_optim.counterparts import Counterpart, counterpart_of
from thalweg.checkpoint.torch_optim.hyperparameters import (
    beta_of,
    constant_hypers,
    current_hypers,
    decay_of,
    is_classic,
)
from thalweg.errors import InvalidArgumentError
from thalweg.variable import name_of

Slots = Sequence[Mapping[str, Tensor]]

_WHOLE = 2**24  # up to it float32 has all integers


def to_torch(optimizer: Any, variables: object, *, step: int | None = None) -> dict[str, Any]:
    """Return the state that an optimizer of `torch.optim` goes on with; warns of all that differs.

    Args:
        optimizer: An optimizer of `thalweg.keras` or `thalweg.v1` that runs the rule of an `Adam`,
            `AdamW`, `SGD`, `RMSprop`, `Adagrad`, `Adadelta`, `NAdam` or `Adamax`. Schedules and
            callables among its hyperparameters are asked for their values now.
        variables: The variables, in the order in which that optimizer has them in one group.
        step: The number of steps, where the optimizer keeps none, as most of `thalweg.v1`: that is
            their `global_step`.

    Returns:
        What `load_state_dict` of the optimizer of torch takes.

    Raises:
        InvalidTypeError: The rule has no counterpart in torch.optim.
        InvalidArgumentError: The number of steps is not known, or a slot that has the learning
            rate as a factor cannot be divided by it.
        FailedPreconditionError: The optimizer's state is variables of a graph.

    Example:
        >>> from thalweg import Variable
        >>> from thalweg.v1.train import MomentumOptimizer
        >>> w, opt = Variable([1.0, 2.0], name="w"), MomentumOptimizer(0.5, 0.75)
        >>> opt.apply_gradients([([4.0, 8.0], w)])
        >>> state = to_torch(opt, [w])
        >>> new = torch.optim.SGD([w], lr=0.1, momentum=0.9)
        >>> new.load_state_dict(state)
        >>> new.state[w]["momentum_buffer"].tolist(), new.param_groups[0]["momentum"]
        ([4.0, 8.0], 0.75)
    """
    counterpart = counterpart_of(optimizer)
    found = distinct(flatten(variables))
    check_variables(found)
    with optimizer._locked():
        slots = (_v1_slots if is_classic(optimizer) else _keras_slots)(optimizer, found)
        hypers = current_hypers(optimizer)
        steps = _count_steps(optimizer) if step is None else step
        group = _export_group(counterpart, optimizer, hypers, found)
        states = _export_states(counterpart, optimizer, slots, hypers, steps)
    if counterpart.family == "Adagrad":  # which makes its state before the first step
        initial = _slot_initial(optimizer, "accumulator")
        for index, var in enumerate(found):
            own = {
                "step": _step_tensor(0),
                "sum": torch.full_like(var, initial, requires_grad=False),
            }
            states.setdefault(index, own)
    family = "AdamW" if group.get("decoupled_weight_decay") else counterpart.family
    said = difference_notes.of_formula(counterpart, [hypers.get("epsilon")])
    title = f"From {type(optimizer).__name__} to torch.optim.{family}"
    difference_notes.warn_of(title, said + _left_behind(optimizer, hypers, group))
    return {"state": dict(sorted(states.items())), "param_groups": [group]}


def _v1_slots(optimizer: Any, variables: Sequence[Tensor]) -> Slots:
    optimizer._check_has_state()
    store = optimizer._slots
    return [{name: store.whole(var, name) for name in store.all_of(var)} for var in variables]


def _keras_slots(optimizer: Any, variables: Sequence[Tensor]) -> Slots:
    """Also those that wait for their variables."""
    kept = optimizer.state_dict()["slots"]
    owners = distinct([*optimizer._owners(), *variables])
    titles = state.distinct([name_of(var) for var in owners])
    known = dict(zip(map(id, owners), zip(titles, state.keys_of(owners)), strict=True))
    slots: Slots = []
    for var in variables:
        own: dict[str, Any] = {}
        slots.append(next((kept[name] for name in known[id(var)] if name in kept), own))
    return slots


def _slot_initial(optimizer: Any, name: str) -> float:
    """What slots of this name begin with."""
    if is_classic(optimizer):
        return next(value for slot, value, _ in optimizer._slot_fills() if slot == name)
    return optimizer._slot_initial(name)


def _count_steps(optimizer: Any) -> int | None:
    """How many steps the optimizer has counted; None if it does not count."""
    if not is_classic(optimizer):
        return int(optimizer.iterations)
    powers: dict[str, str] = getattr(optimizer, "POWERS", {})
    for name, hyper in powers.items():
        own = optimizer._get_non_slot_variable(name)
        if own is None:
            return 0
        kind = scalar_type(own)
        beta = as_hyper(beta_of(optimizer, hyper), kind)
        steps = steps_of(kind(own.item()), kind(beta))
        if steps is not None:
            return steps
    return None


def _export_states(
    counterpart: Counterpart,
    optimizer: Any,
    slots: Slots,
    hypers: dict[str, float],
    steps: int | None,
) -> dict[int, dict[str, Any]]:
    """What torch keeps for each parameter that had a gradient."""
    found: dict[int, dict[str, Any]] = {}
    for index, own in enumerate(slots):
        if not own:
            continue
        made: dict[str, Any] = {}
        if counterpart.family != "SGD":
            if steps is None:
                raise InvalidArgumentError(
                    f"{type(optimizer).__name__} does not know how many steps it has taken: give"
                    " step=..., which is the global step."
                )
            made["step"] = _step_tensor(steps)
        if counterpart.family == "NAdam":
            product = optimizer._extra_weights()["momentum_cache"].detach()
            made["mu_product"] = product.to(torch.float32, copy=True)
        for name, kept in counterpart.slots.items():
            if kept.may_lack and not hypers["momentum"]:
                continue
            made[kept.key] = _convert_slot(own[name], kept.rates, hypers["learning_rate"], name)
        found[index] = made
    return found


def _convert_slot(slot: Tensor, rates: int, rate: float, name: str) -> Tensor:
    value = state.kept(slot)
    if not rates:
        return value
    if not rate:
        raise InvalidArgumentError(
            f"The slot {name} has the learning rate as a factor, which is 0 now: it cannot be"
            " divided by it."
        )
    return (value.double() / (rates * rate)).to(value.dtype)


def _step_tensor(steps: int) -> Tensor:
    dtype = torch.float32 if steps <= _WHOLE else torch.float64
    return torch.tensor(steps, dtype=dtype, device="cpu")


def _export_group(
    counterpart: Counterpart,
    optimizer: object,
    hypers: dict[str, float],
    variables: Sequence[Tensor],
) -> dict[str, Any]:
    """A group with all that this version of torch has in one."""
    is_decayed = counterpart.family == "Adam" and bool(hypers.get("weight_decay"))
    cls = torch.optim.AdamW if is_decayed else getattr(torch.optim, counterpart.family)
    group = _default_options(cls)
    if is_decayed and "decoupled_weight_decay" in _default_options(torch.optim.Adam):
        group["decoupled_weight_decay"] = True
    group |= counterpart.options
    _set_hypers(group, counterpart, hypers)
    if "weight_decay" in group:
        rate = hypers["learning_rate"]
        group["weight_decay"] = hypers["weight_decay"] / rate if is_decayed and rate else 0.0
    if counterpart.family == "Adagrad" and decay_of(optimizer):
        own = constant_hypers(optimizer)
        group["lr"] = own.get("learning_rate", group["lr"])
        group["lr_decay"] = decay_of(optimizer) if "learning_rate" in own else 0.0
    group["params"] = list(range(len(variables)))
    names = [name_of(var).split(":")[0] for var in variables]
    if "Variable" not in names and len({*names}) == len(names):
        group["param_names"] = names
    return group


def _default_options(cls: type[torch.optim.Optimizer]) -> dict[str, object]:
    """What a constructor of this version of torch takes, and its defaults."""
    known = inspect.signature(cls.__init__).parameters.items()
    return {name: each.default for name, each in known if name not in ("self", "params")}


def _set_hypers(
    group: dict[str, Any], counterpart: Counterpart, hypers: Mapping[str, float]
) -> None:
    """Set hyperparameters by torch's names; of "betas.0" the first of a pair."""
    for name, key in counterpart.hypers.items():
        key, _, index = key.partition(".")
        if index:
            pair = list(group[key])
            pair[int(index)] = hypers[name]
            group[key] = tuple(pair)
        else:
            group[key] = hypers[name]
    if "epsilon" not in hypers and "eps" in group:
        group["eps"] = 0.0


def _left_behind(
    optimizer: object, hypers: dict[str, float], group: dict[str, object]
) -> list[str]:
    """What torch has no option for."""
    found: list[str] = []
    if "learning_rate" not in constant_hypers(optimizer):
        found.append(f"the learning rate stays {group['lr']:g}, what the schedule gives now")
    elif decay_of(optimizer) and not group.get("lr_decay"):
        found.append(f"the learning rate stays {group['lr']:g}, without its decay")
    if hypers.get("weight_decay") and not group.get("decoupled_weight_decay"):
        found.append("the decay of weights stays behind")
    options: dict[str, Any] = getattr(optimizer, "_clipping_options", dict)()
    set_options = [name for name, value in options.items() if value is not None]
    if set_options:
        found.append(f"{', '.join(set_options)}: clip before step() by torch.nn.utils")
    return found
