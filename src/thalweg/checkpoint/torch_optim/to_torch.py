"""`to_torch`: export optimizer state for `torch.optim`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from thalweg._base.scalars import scalar_type
from thalweg._core import state
from thalweg._core.grads_and_vars import check_variables, distinct, flatten
from thalweg._core.hyperparameters import as_hyper
from thalweg.checkpoint.step_inference import steps_of
from thalweg.checkpoint.torch_optim import difference_notes
from thalweg.checkpoint.torch_optim.counterparts import (
    Counterpart,
    beta_of,
    constant_hypers,
    counterpart_of,
    current_hypers,
    decay_of,
    is_classic,
)
from thalweg.errors import InvalidArgumentError
from thalweg.variable import name_of

Slots = Sequence[Mapping[str, Tensor]]

# Float32 cannot hold all larger integers.
_MAX_FLOAT32_INTEGER = 2**24


def to_torch(optimizer: Any, variables: object, *, step: int | None = None) -> dict[str, Any]:
    """Return a state dict for an optimizer of `torch.optim`, to continue the training.

    A NumericsWarning lists the differences of formulas and options.

    Args:
        optimizer: An optimizer of `thalweg.keras` or `thalweg.v1` that runs the rule of an `Adam`,
            `AdamW`, `SGD`, `RMSprop`, `Adagrad`, `Adadelta`, `NAdam` or `Adamax`. Schedules and
            callables among its hyperparameters are evaluated now.
        variables: The variables, in the order of the torch optimizer's only group.
        step: Optional. The step count if the optimizer has none, such as the `global_step` of most
            `thalweg.v1` optimizers.

    Returns:
        The argument for `load_state_dict` of the optimizer of torch.

    Raises:
        InvalidTypeError: The rule has no counterpart in torch.optim.
        InvalidArgumentError: The step count is unknown, or a slot must be divided by a learning
            rate of 0.
        FailedPreconditionError: The optimizer is in graph mode: a graph has its state.

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
    tensors = distinct(flatten(variables))
    check_variables(tensors)
    with optimizer._locked():
        slots = (_v1_slots if is_classic(optimizer) else _keras_slots)(optimizer, tensors)
        values = current_hypers(optimizer)
        steps = _count_steps(optimizer) if step is None else step
        group = _export_group(counterpart, optimizer, values, tensors)
        states = _export_states(counterpart, optimizer, slots, values, steps)
    # Adagrad of torch has state before the first step.
    if counterpart.family == "Adagrad":
        initial = _slot_initial(optimizer, "accumulator")
        for index, var in enumerate(tensors):
            param_state = {
                "step": _step_tensor(0),
                "sum": torch.full_like(var, initial, requires_grad=False),
            }
            states.setdefault(index, param_state)
    family = "AdamW" if group.get("decoupled_weight_decay") else counterpart.family
    notes = difference_notes.formula_notes(counterpart, [values.get("epsilon")])
    subject = f"From {type(optimizer).__name__} to torch.optim.{family}"
    difference_notes.warn_of(subject, notes + _describe_omissions(optimizer, values, group))
    return {"state": dict(sorted(states.items())), "param_groups": [group]}


def _v1_slots(optimizer: Any, variables: Sequence[Tensor]) -> Slots:
    """Return {slot name: tensor} for each variable; sharded slots are full tensors."""
    optimizer._check_has_state()
    store = optimizer._slots
    return [{name: store.whole(var, name) for name in store.all_of(var)} for var in variables]


def _keras_slots(optimizer: Any, variables: Sequence[Tensor]) -> Slots:
    """Return one {slot name: tensor} per variable; {} for a variable without slots.

    Slots that were loaded before the optimizer had variables are found by the variables' names.
    """
    saved = optimizer.state_dict()["slots"]
    all_variables = distinct([*optimizer._owners(), *variables])
    names = state.distinct([name_of(var) for var in all_variables])
    slots = {
        id(var): saved.get(name, saved.get(key, {}))
        for var, name, key in zip(all_variables, names, state.keys_of(all_variables), strict=True)
    }
    return [slots[id(var)] for var in variables]


def _slot_initial(optimizer: Any, name: str) -> float:
    """Return the number that slots of this name are filled with."""
    if is_classic(optimizer):
        return next(initial for slot, initial, _ in optimizer._slot_fills() if slot == name)
    return optimizer._slot_initial(name)


def _count_steps(optimizer: Any) -> int | None:
    """Return the step count; None if unknown. For `thalweg.v1`, infer it from beta powers."""
    if not is_classic(optimizer):
        return int(optimizer.iterations)
    powers: dict[str, str] = getattr(optimizer, "POWERS", {})
    for name, hyper in powers.items():
        power = optimizer._get_non_slot_variable(name)
        if power is None:
            return 0
        dtype = scalar_type(power)
        beta = as_hyper(beta_of(optimizer, hyper), dtype)
        steps = steps_of(dtype(power.item()), dtype(beta))
        if steps is not None:
            return steps
    return None


def _export_states(
    counterpart: Counterpart,
    optimizer: Any,
    slots: Slots,
    values: dict[str, float],
    steps: int | None,
) -> dict[int, dict[str, Any]]:
    """Return {index of a parameter: torch's state}; parameters without slots are left out.

    `values` is {hyperparameter: number}. Raise InvalidArgumentError if a state needs a step count
    and `steps` is None, or if a slot must be divided by a learning rate of 0.
    """
    states: dict[int, dict[str, Any]] = {}
    for index, param_slots in enumerate(slots):
        if not param_slots:
            continue
        param_state: dict[str, Any] = {}
        if counterpart.family != "SGD":
            if steps is None:
                raise InvalidArgumentError(
                    f"{type(optimizer).__name__} does not know how many steps it has taken: give"
                    " step=..., which is the global step."
                )
            param_state["step"] = _step_tensor(steps)
        if counterpart.family == "NAdam":
            product = optimizer._extra_weights()["momentum_cache"].detach()
            param_state["mu_product"] = product.to(torch.float32, copy=True)
        for name, entry in counterpart.slots.items():
            if entry.may_lack and not values["momentum"]:
                continue
            param_state[entry.key] = _convert_slot(
                param_slots[name], entry.rates, values["learning_rate"], name
            )
        states[index] = param_state
    return states


def _convert_slot(slot: Tensor, rates: int, rate: float, name: str) -> Tensor:
    """Return a copy of a slot, divided by the product of `rates` and the learning rate `rate`.

    If `rates` is 0, the slot is not divided. `name` is for messages.
    """
    tensor = state.kept(slot)
    if not rates:
        return tensor
    if not rate:
        raise InvalidArgumentError(
            f"The slot {name} has the learning rate as a factor, which is 0 now: it cannot be"
            " divided by it."
        )
    return (tensor.double() / (rates * rate)).to(tensor.dtype)


def _step_tensor(steps: int) -> Tensor:
    """Return a step count as torch stores it, a float32 scalar."""
    dtype = torch.float32 if steps <= _MAX_FLOAT32_INTEGER else torch.float64
    return torch.tensor(steps, dtype=dtype, device="cpu")


def _export_group(
    counterpart: Counterpart,
    optimizer: Any,
    values: dict[str, float],
    variables: Sequence[Tensor],
) -> dict[str, Any]:
    """Return the only param group, with all options that the installed version of torch has."""
    decouples = counterpart.family == "Adam" and bool(values.get("weight_decay"))
    cls = torch.optim.AdamW if decouples else getattr(torch.optim, counterpart.family)
    group = _default_options(cls)
    if decouples and "decoupled_weight_decay" in _default_options(torch.optim.Adam):
        group["decoupled_weight_decay"] = True
    group |= counterpart.options
    _set_hypers(group, counterpart, values)
    # Torch multiplies the decay by the learning rate; the rule here does not.
    if "weight_decay" in group:
        rate = values["learning_rate"]
        group["weight_decay"] = values["weight_decay"] / rate if decouples and rate else 0.0
    if counterpart.family == "Adagrad" and decay_of(optimizer):
        constants = constant_hypers(optimizer)
        group["lr"] = constants.get("learning_rate", group["lr"])
        group["lr_decay"] = decay_of(optimizer) if "learning_rate" in constants else 0.0
    group["params"] = list(range(len(variables)))
    names = [name_of(var).split(":")[0] for var in variables]
    if "Variable" not in names and len({*names}) == len(names):
        group["param_names"] = names
    return group


def _default_options(cls: type[torch.optim.Optimizer]) -> dict[str, object]:
    """Return {option: default} of a constructor in the installed version of torch."""
    parameters = inspect.signature(cls.__init__).parameters.items()
    return {name: p.default for name, p in parameters if name not in ("self", "params")}


def _set_hypers(
    group: dict[str, Any], counterpart: Counterpart, values: Mapping[str, float]
) -> None:
    """Set `values` in `group` by torch's names; "betas.0" sets `group["betas"][0]`."""
    for name, key in counterpart.hypers.items():
        key, _, index = key.partition(".")
        if index:
            pair = list(group[key])
            pair[int(index)] = values[name]
            group[key] = tuple(pair)
        else:
            group[key] = values[name]
    # The rule has no epsilon; torch's default would change its steps.
    if "epsilon" not in values and "eps" in group:
        group["eps"] = 0.0


def _describe_omissions(
    optimizer: Any, values: dict[str, float], group: dict[str, object]
) -> list[str]:
    """Return one note per option of the optimizer for which torch has no option."""
    notes: list[str] = []
    if "learning_rate" not in constant_hypers(optimizer):
        notes.append(f"the learning rate stays {group['lr']:g}, what the schedule gives now")
    elif decay_of(optimizer) and not group.get("lr_decay"):
        notes.append(f"the learning rate stays {group['lr']:g}, without its decay")
    if values.get("weight_decay") and not group.get("decoupled_weight_decay"):
        notes.append("the decay of weights stays behind")
    options: dict[str, Any] = getattr(optimizer, "_clipping_options", dict)()
    set_options = [name for name, option in options.items() if option is not None]
    if set_options:
        notes.append(f"{', '.join(set_options)}: clip before step() by torch.nn.utils")
    return notes
