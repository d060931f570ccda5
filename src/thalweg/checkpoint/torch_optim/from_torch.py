"""`from_torch`: load the state of a `torch.optim` optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from thalweg._base.scalars import scalar_type
from thalweg._base.showing import show_value
from thalweg._core import state
from thalweg._core.grads_and_vars import distinct
from thalweg._core.hyperparameters import as_hyper
from thalweg.checkpoint.step_inference import power_after
from thalweg.checkpoint.torch_optim import difference_notes
from thalweg.checkpoint.torch_optim.counterparts import (
    Counterpart,
    beta_of,
    counterpart_of,
    is_classic,
)
from thalweg.checkpoint.torch_optim.parse_state_dict import (
    Parameter,
    as_number,
    match_parameters,
    number_option,
    read,
)
from thalweg.errors import InvalidArgumentError
from thalweg.keras.optimizers.state_dict import FORMAT
from thalweg.variable import name_of, to_tensor

# Counts of the optimizer here, and of each parameter in torch.
_COUNTS = ("step", "mu_product")
_ONE_COUNTER = (
    "Here the steps of all variables are counted together; step=... says how many there were."
    " Nothing was loaded."
)

Pairs = Sequence[tuple[Parameter, Tensor]]


def from_torch(
    state_dict: Any, into: Any, variables: Any = None, *, step: int | None = None
) -> None:
    """Load the state of a `torch.optim` optimizer into `into`; on an error, change nothing.

    Slots and step counters are set, hyperparameters are not. A NumericsWarning lists differences of
    formulas and hyperparameters. A variable without a state in torch has no slots until its first
    gradient.

    Args:
        state_dict: An `Adam`, `AdamW`, `SGD`, `RMSprop`, `Adagrad`, `Adadelta`, `NAdam` or `Adamax`
            of `torch.optim`, or its `state_dict()`.
        into: An optimizer of `thalweg.keras` or `thalweg.v1` with the update rule of `state_dict`.
        variables: The variables, or {torch's name: variable}. By default, the parameters of the
            torch optimizer `state_dict`. Parameters of this optimizer are matched by identity. All
            other variables are matched by name if all parameters and variables have names, and by
            order if not.
        step: Optional. The step count, if torch has none (SGD) or counts that differ between
            parameters.

    Raises:
        InvalidTypeError: `state_dict` is of another class, or the rule has no counterpart.
        CheckpointMismatchError: Classes, names, shapes, dtypes or the parameters' step counts
            differ; lists up to ten. Nothing was loaded.
        FailedPreconditionError: The optimizer is in graph mode: a graph has its state.

    Example:
        >>> import warnings
        >>> from thalweg.keras.optimizers import RMSprop
        >>> w = torch.nn.Parameter(torch.ones(2))
        >>> old = torch.optim.RMSprop([w], lr=0.001, alpha=0.9, eps=1e-7)
        >>> w.sum().backward()
        >>> old.step()
        >>> opt = RMSprop()
        >>> from_torch(old, into=opt)
        >>> int(opt.iterations), opt.get_slot(w, "rms").tolist()
        (1, [0.10000000149011612, 0.10000000149011612])
    """
    counterpart, saved_state = counterpart_of(into), read(state_dict)
    subject = f"From torch.optim.{saved_state.family} to {type(into).__name__}"
    if saved_state.family != counterpart.family:
        problem = (
            f"{type(into).__name__} goes on with the state of torch.optim.{counterpart.family}"
        )
        raise state.mismatch([problem], subject)
    pairs = match_parameters(saved_state, state_dict, variables)
    owned, matched = into._owners(), [var for _, var in pairs]
    keys = dict(zip(map(id, matched), state.keys_of(matched), strict=True))
    trained = [(parameter, var) for parameter, var in pairs if _has_state(parameter)]
    steps = (
        _counted_steps(saved_state.family, trained, keys, subject)
        if step is None
        else _check_step(step)
    )
    products = _momentum_products(trained, keys, subject) if saved_state.family == "NAdam" else []
    slots = {id(var): _slot_values(counterpart, parameter, var) for parameter, var in trained}
    _check_surplus(counterpart, trained, keys, subject)
    epsilons = [number_option(group, "eps") for group in saved_state.groups]
    notes = difference_notes.formula_notes(counterpart, epsilons)
    notes += difference_notes.option_notes(counterpart, saved_state.groups, into)
    untrained = [keys[id(var)] for parameter, var in pairs if not _has_state(parameter)]
    if untrained and trained and counterpart.powers:
        notes.append(
            f"{', '.join(map(repr, untrained[:4]))} had no gradient yet, and will be corrected as"
            f" one that had {steps}"
        )
    targets = [var for var in matched if id(var) in slots or any(var is owner for owner in owned)]
    if is_classic(into):
        load_v1(into, targets, slots, steps)
    else:
        load_keras(into, targets, slots, steps, *products[:1])
    difference_notes.warn_of(subject, notes)


def _has_state(parameter: Parameter) -> bool:
    """Return True if a parameter's state has more than step counts."""
    return any(entry is not None for key, entry in parameter.state.items() if key not in _COUNTS)


def _check_surplus(
    counterpart: Counterpart, trained: Pairs, keys: Mapping[int, str], subject: str
) -> None:
    """Raise CheckpointMismatchError if torch's state has an entry without a corresponding slot.

    `trained` has pairs (torch's parameter, variable); `keys` and `subject` are for messages.
    """
    expected = {*_COUNTS, *(slot.key for slot in counterpart.slots.values())}
    problems = [
        f"'{keys[id(var)]}/{key}' belongs to nothing here"
        for parameter, var in trained
        for key, entry in parameter.state.items()
        if key not in expected and entry is not None
    ]
    state.raise_mismatch(problems, subject)


def _counted_steps(
    class_name: str, trained: Pairs, keys: Mapping[int, str], subject: str
) -> int | None:
    """Return the step count that all parameters share; None for SGD, which has no count.

    Counts of 0 are ignored; if there is no other count, return 0. `trained` has pairs (torch's
    parameter, variable); `keys` and `subject` are for messages.

    Raises:
        CheckpointMismatchError: The counts differ, or an entry is not a step count.
    """
    if class_name == "SGD":
        return None
    counts: dict[str, int] = {}
    problems: list[str] = []
    for parameter, var in trained:
        key, step = keys[id(var)], parameter.state.get("step")
        step_count = as_number(step)
        if step_count is None or not step_count.is_integer() or not 0 <= step_count < 2**63:
            text = state.shown(step) if step_count is None else f"{step_count:g}"
            problems.append(f"'{key}' has the step {text}")
        # A count of 0 belongs to a state that torch made without a gradient.
        elif step_count:
            counts[key] = int(step_count)
    state.raise_mismatch(problems, subject)
    first, steps = next(iter(counts.items()), ("", 0))
    mismatches = [
        f"'{key}' has taken {count} steps, '{first}' {steps}"
        for key, count in counts.items()
        if count != steps
    ]
    state.raise_mismatch(mismatches, subject, _ONE_COUNTER)
    return steps


def _check_step(step: object) -> int:
    """Return `step`; raise InvalidArgumentError unless it is an int of 0 or more."""
    if not isinstance(step, int) or isinstance(step, bool) or step < 0:
        raise InvalidArgumentError(f"step must be an integer of 0 or more, not {show_value(step)}.")
    return step


def _momentum_products(trained: Pairs, keys: Mapping[int, str], subject: str) -> list[float]:
    """Return NAdam's momentum product of each parameter; [] if no parameter has a product.

    `trained` has pairs (torch's parameter, variable); `keys` and `subject` are for messages.

    Raises:
        CheckpointMismatchError: The products differ, or only some parameters have a product.
    """
    entries = {keys[id(var)]: parameter.state.get("mu_product") for parameter, var in trained}
    factors = {key: as_number(entry) for key, entry in entries.items()}
    products = {key: product for key, product in factors.items() if product is not None}
    first, product = next(iter(products.items()), ("", 1.0))
    problems = [f"'{key}' has no mu_product" for key in factors.keys() - products.keys()]
    problems += [
        f"'{key}' has the mu_product {other}, '{first}' {product}"
        for key, other in products.items()
        if other != product
    ]
    state.raise_mismatch(sorted(problems), subject)
    return list(products.values())


def _slot_values(counterpart: Counterpart, parameter: Parameter, var: Tensor) -> dict[str, object]:
    """Return {slot name: value} of a variable. Slots that torch's state lacks are omitted.

    A missing momentum buffer becomes zeros if the momentum is 0.
    """
    values: dict[str, Any] = {}
    rate = number_option(parameter.group, "lr") or 0.0
    for name, entry in counterpart.slots.items():
        tensor = parameter.state.get(entry.key)
        if tensor is None and entry.may_lack and not number_option(parameter.group, "momentum"):
            tensor = torch.zeros_like(var, requires_grad=False)
        if tensor is None:
            continue
        values[name] = _scale_slot(tensor, entry.rates * rate) if entry.rates else tensor
    return values


def _scale_slot(slot: Any, factor: float) -> object:
    """Return a slot times a factor; an invalid value is returned as it is, and loading raises."""
    try:
        if state.flaw(slot) is not None:
            return slot
        tensor = state.kept(slot)
        return (tensor.double() * factor).to(tensor.dtype)
    except Exception:
        return slot


def load_v1(
    optimizer: Any, variables: Sequence[Tensor], slots: Mapping[int, Any], steps: int | None
) -> None:
    """Set all slots and beta powers of a `thalweg.v1` optimizer; on an error, set nothing.

    Args:
        variables: The variables. Slots that the optimizer does not have yet are created.
        slots: {id(variable): {slot name: tensor}}.
        steps: The step count, from which beta powers are computed; None stands for 0.

    Raises:
        CheckpointMismatchError: `slots` lacks a slot, or has an unknown slot or another shape.
    """
    state_dict: dict[str, Any] = {}
    for key, var in zip(state.keys_of(variables), variables, strict=True):
        state_dict |= {f"{key}/{name}": slot for name, slot in slots.get(id(var), {}).items()}
    powers: dict[str, str] = getattr(optimizer, "POWERS", {}) if variables else {}
    for name, hyper in powers.items():
        beta = beta_of(optimizer, hyper)
        power_tensor = optimizer._get_non_slot_variable(name)
        power_tensor = to_tensor(beta) if power_tensor is None else power_tensor
        dtype = scalar_type(power_tensor)
        power = power_after(as_hyper(beta, dtype), steps or 0)
        state_dict[name] = torch.full_like(power_tensor, float(power), requires_grad=False)
    optimizer.load_state_dict(state_dict, variables or None)


def load_keras(
    optimizer: Any,
    variables: Sequence[Tensor],
    slots: Mapping[int, Any],
    steps: int | None,
    product: float = 1.0,
) -> None:
    """Set slots, iterations and Nadam's product of a Keras optimizer; on an error, set nothing.

    Args:
        variables: The variables. Slots that the optimizer does not have yet are created.
        slots: {id(variable): {slot name: tensor}}. All variables that have slots need an entry.
        steps: The new value of `iterations`; None for no change.
        product: The product of all steps' momentum factors, for Nadam only.

    Raises:
        CheckpointMismatchError: `slots` lacks a slot, or has an unknown slot or another shape.
    """
    all_variables = distinct([*optimizer._slots.owners(), *variables])
    names = state.distinct([name_of(var) for var in all_variables])
    slots_by_name = {
        name: slots.get(id(var), {}) for name, var in zip(names, all_variables, strict=True)
    }
    weights: dict[str, Tensor] = {}
    for name in optimizer.EXTRA if slots else ():
        weight = optimizer._extra_weights().get(name)
        dtype = variables[0].dtype if weight is None else weight.dtype
        weights[name] = torch.tensor(product, dtype=dtype, device="cpu")
    iterations = optimizer.iterations.item() if steps is None else steps
    state_dict = {
        "class_name": type(optimizer).__name__,
        "format": FORMAT,
        "iterations": torch.tensor(iterations, dtype=torch.int64, device="cpu"),
        "hyperparameters": {},
        "weights": weights,
        "slots": slots_by_name,
    }
    optimizer.load_state_dict(state_dict, variables or None)
