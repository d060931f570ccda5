"""`from_torch`: the state of an optimizer of `torch.optim`, taken over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from thalweg._base.showing import show_value
from thalweg._core import state
from thalweg.checkpoint.torch_optim import difference_notes
from thalweg.checkpoint.torch_optim.counterparts import Counterpart, counterpart_of
from thalweg.checkpoint.torch_optim.hyperparameters import is_classic
from thalweg.checkpoint.torch_optim.parse_state_dict import (
    Parameter,
    Saved,
    as_number,
    match_parameters,
    number_option,
    read,
)
from thalweg.checkpoint.torch_optim.state_layouts import into_keras, into_v1
from thalweg.errors import InvalidArgumentError

_COUNTS = ("step", "mu_product")  # here they belong to the optimizer, in torch to each parameter
_ALL_TOGETHER = (
    "Here the steps of all variables are counted together; step=... says how many there were."
    " Nothing was loaded."
)

Matched = Sequence[tuple[Parameter, Tensor]]


def from_torch(
    state_dict: Any, into: Any, variables: Any = None, *, step: int | None = None
) -> None:
    """Go on where an optimizer of `torch.optim` was; all or nothing.

    Slots, the number of steps and what follows from it are set; hyperparameters stay what they
    are. Warns of all that differs: of formulas, and of hyperparameters. A variable without a state
    in torch has no slots here, either, until its first gradient.

    Args:
        state_dict: An `Adam`, `AdamW`, `SGD`, `RMSprop`, `Adagrad`, `Adadelta`, `NAdam` or `Adamax`
            of `torch.optim`, or its `state_dict()`.
        into: An optimizer of `thalweg.keras` or `thalweg.v1` that runs the same rule.
        variables: The variables. A dict has them by torch's names. Those of the optimizer, if that
            was given, are known in any order, and are the default; others go by name, where both
            sides have names, and else by the order of torch's parameters.
        step: The number of steps, where torch has not counted them, as in SGD, or for each
            parameter another.

    Raises:
        InvalidTypeError: There is no such optimizer, or no counterpart of the rule.
        CheckpointMismatchError: The classes, names, shapes or dtypes differ, or the steps of the
            parameters. Lists up to ten differences. Nothing was loaded.
        FailedPreconditionError: The optimizer's state is variables of a graph.

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
    counterpart, saved = counterpart_of(into), read(state_dict)
    title = f"From torch.optim.{saved.family} to {type(into).__name__}"
    if saved.family != counterpart.family:
        wrong = f"{type(into).__name__} goes on with the state of torch.optim.{counterpart.family}"
        raise state.mismatch([wrong], title)
    pairs = match_parameters(saved, state_dict, variables)
    owners = into._owners()
    keys = dict(zip(map(id, (var for _, var in pairs)), _keys_of_variables(pairs), strict=True))
    kept = [(own, var) for own, var in pairs if _has_state(own)]
    steps = _counted_steps(saved.family, kept, keys, title) if step is None else _check_step(step)
    products = _momentum_products(kept, keys, title) if saved.family == "NAdam" else []
    slots = {id(var): _slot_values(counterpart, own, var) for own, var in kept}
    _refuse_surplus(counterpart, kept, keys, title)
    said = _collect_notes(counterpart, saved, into)
    late = [keys[id(var)] for own, var in pairs if not _has_state(own)]
    if late and kept and counterpart.powers:
        said.append(
            f"{', '.join(map(repr, late[:4]))} had no gradient yet, and will be corrected as one"
            f" that had {steps}"
        )
    listed = [var for _, var in pairs if id(var) in slots or any(var is each for each in owners)]
    if is_classic(into):
        into_v1(into, listed, slots, steps)
    else:
        into_keras(into, listed, slots, steps, *products[:1])
    difference_notes.warn_of(title, said)


def _collect_notes(counterpart: Counterpart, saved: Saved, into: object) -> list[str]:
    epsilons = [number_option(group, "eps") for group in saved.groups]
    said = difference_notes.of_formula(counterpart, epsilons)
    return said + difference_notes.of_options(counterpart, saved.groups, into)


def _keys_of_variables(pairs: Matched) -> list[str]:
    return state.keys_of([var for _, var in pairs])


def _has_state(parameter: Parameter) -> bool:
    """Return whether it has more than a count."""
    return any(value is not None for key, value in parameter.state.items() if key not in _COUNTS)


def _refuse_surplus(
    counterpart: Counterpart, kept: Matched, keys: Mapping[int, str], title: str
) -> None:
    """Refuse what torch has kept and nothing here goes on with."""
    known = {*_COUNTS, *(slot.key for slot in counterpart.slots.values())}
    surplus = [
        f"'{keys[id(var)]}/{key}' belongs to nothing here"
        for own, var in kept
        for key, value in own.state.items()
        if key not in known and value is not None
    ]
    if surplus:
        raise state.mismatch(surplus, title)


def _counted_steps(family: str, kept: Matched, keys: Mapping[int, str], title: str) -> int | None:
    """How many steps torch has counted; None for SGD, which does not count.

    Raises:
        CheckpointMismatchError: For one parameter others than for another.
    """
    if family == "SGD":
        return None
    found: dict[str, int] = {}
    problems: list[str] = []
    for own, var in kept:
        key, given = keys[id(var)], own.state.get("step")
        value = as_number(given)
        if value is None or not value.is_integer() or not 0 <= value < 2**63:
            shown = state.shown(given) if value is None else f"{value:g}"
            problems.append(f"'{key}' has the step {shown}")
        elif value:  # at 0 torch has made a state without a gradient
            found[key] = int(value)
    if problems:
        raise state.mismatch(problems, title)
    first, steps = next(iter(found.items()), ("", 0))
    others = [
        f"'{key}' has taken {own} steps, '{first}' {steps}"
        for key, own in found.items()
        if own != steps
    ]
    if others:
        raise state.mismatch(others, title, _ALL_TOGETHER)
    return steps


def _check_step(step: object) -> int:
    if not isinstance(step, int) or isinstance(step, bool) or step < 0:
        raise InvalidArgumentError(f"step must be an integer of 0 or more, not {show_value(step)}.")
    return step


def _momentum_products(kept: Matched, keys: Mapping[int, str], title: str) -> list[float]:
    """The products of NAdam's momentum.

    Raises:
        CheckpointMismatchError: They differ: here there is one.
    """
    values = {keys[id(var)]: as_number(own.state.get("mu_product")) for own, var in kept}
    found = {key: value for key, value in values.items() if value is not None}
    first, product = next(iter(found.items()), ("", 1.0))
    problems = [f"'{key}' has no mu_product" for key in values.keys() - found.keys()]
    problems += [
        f"'{key}' has the mu_product {value}, '{first}' {product}"
        for key, value in found.items()
        if value != product
    ]
    if problems:
        raise state.mismatch(sorted(problems), title)
    return list(found.values())


def _slot_values(counterpart: Counterpart, parameter: Parameter, var: Tensor) -> dict[str, object]:
    """What the slots of a variable are set to."""
    found: dict[str, Any] = {}
    rate = number_option(parameter.group, "lr") or 0.0
    for name, kept in counterpart.slots.items():
        value = parameter.state.get(kept.key)
        if value is None and kept.may_lack and not number_option(parameter.group, "momentum"):
            value = torch.zeros_like(var, requires_grad=False)
        if value is None:
            continue
        found[name] = _scale_slot(value, kept.rates * rate) if kept.rates else value
    return found


def _scale_slot(value: Any, factor: float) -> object:
    """A slot times a factor; what cannot be read is refused later."""
    try:
        if state.flaw(value) is not None:
            return value
        plain = state.kept(value)
        return (plain.double() * factor).to(plain.dtype)
    except Exception:
        return value
