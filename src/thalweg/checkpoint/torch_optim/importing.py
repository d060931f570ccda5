"""`from_torch`: the state of an optimizer of `torch.optim`, taken over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from thalweg.checkpoint.powers import running_power
from thalweg.checkpoint.torch_optim import notes
from thalweg.checkpoint.torch_optim.families import Counterpart, counterpart_of
from thalweg.checkpoint.torch_optim.hypers import beta_of
from thalweg.checkpoint.torch_optim.reading import Parameter, matched, number, option, read
from thalweg.core import state
from thalweg.core.hyperparameters import as_hyper
from thalweg.core.pairs import distinct
from thalweg.errors import InvalidArgumentError
from thalweg.keras.optimizers.state_dict import FORMAT
from thalweg.scalars import scalar_type
from thalweg.v1 import train
from thalweg.variable import name_of, to_tensor

_COUNTS = (
    "step",
    "mu_product",
)  # what belongs to the optimizer here, and in torch to each parameter
_ALL_TOGETHER = (
    "Here the steps of all variables are counted together; step=... says how many there were."
    " Nothing was loaded."
)

Matched = Sequence[tuple[Parameter, Tensor]]


def from_torch(
    state_dict: Any,
    into: Any,
    variables: Any = None,
    *,
    step: int | None = None,
) -> None:
    """Go on where an optimizer of `torch.optim` was; all or nothing.

    Slots, the number of steps and what follows from it are set; hyperparameters stay what they
    are. Warns of all that differs: of formulas, and of hyperparameters. A variable without a state
    in torch has no slots here, either, until its first gradient.

    Args:
        state_dict: An `Adam`, `AdamW`, `SGD`, `RMSprop`, `Adagrad`, `Adadelta`, `NAdam` or `Adamax`
            of `torch.optim`, or its `state_dict()`.
        into: An optimizer of `thalweg.keras` or `thalweg.v1` that runs the same rule.
        variables: The variables, in the order of torch's parameters, or by names where both have
            them, or as a dict by torch's names. Those of the optimizer, if that was given.
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
    pairs = matched(saved, state_dict, variables)
    owners = into._slots.owners()
    keys = dict(zip(map(id, (var for _, var in pairs)), _keys(pairs), strict=True))
    kept = [(own, var) for own, var in pairs if _has_state(own)]
    steps = _steps(kept, keys, title) if step is None else _checked(step)
    _check_products(kept, keys, title)
    slots = {id(var): _slots(counterpart, own, var) for own, var in kept}
    surplus = [
        f"'{keys[id(var)]}/{key}' belongs to nothing here"
        for own, var in kept
        for key in _surplus(counterpart, own)
    ]
    if surplus:
        raise state.mismatch(surplus, title)
    listed = [var for own, var in pairs if id(var) in slots or any(var is each for each in owners)]
    if isinstance(into, train.Optimizer):
        _into_v1(into, listed, slots, steps)
    else:
        _into_keras(into, listed, slots, steps, kept)
    epsilons = [option(group, "eps") for group in saved.groups]
    said = notes.of_formula(counterpart, epsilons)
    said += notes.of_options(counterpart, saved.groups, into)
    late = [keys[id(var)] for own, var in pairs if not _has_state(own)]
    if late and kept and counterpart.powers:
        said.append(
            f"{', '.join(map(repr, late[:4]))} had no gradient yet, and will be corrected as one"
            f" that had {steps}"
        )
    notes.say(title, said)


def _keys(pairs: Matched) -> list[str]:
    return state.keys_of([var for _, var in pairs])


def _has_state(parameter: Parameter) -> bool:
    """Whether it has more than a count."""
    return any(value is not None for key, value in parameter.state.items() if key not in _COUNTS)


def _surplus(counterpart: Counterpart, parameter: Parameter) -> list[str]:
    known = {*_COUNTS, *(kept.key for kept in counterpart.slots.values())}
    return [key for key, value in parameter.state.items() if key not in known and value is not None]


def _steps(kept: Matched, keys: Mapping[int, str], title: str) -> int | None:
    """How many steps torch has counted; None if it has not.

    Raises:
        CheckpointMismatchError: For one parameter others than for another.
    """
    counted: dict[str, Any] = {
        keys[id(var)]: own.state["step"] for own, var in kept if "step" in own.state
    }
    found: dict[str, int] = {}
    problems: list[str] = []
    for key, given in counted.items():
        value = number(given)
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
    return steps if counted else None


def _checked(step: Any) -> int:
    if not isinstance(step, int) or isinstance(step, bool) or step < 0:
        raise InvalidArgumentError(f"step must be an integer of 0 or more, not {step!r}.")
    return step


def _check_products(kept: Matched, keys: Mapping[int, str], title: str) -> None:
    """Refuse products of NAdam's momentum that differ: here there is one."""
    found = {
        keys[id(var)]: own.state["mu_product"] for own, var in kept if "mu_product" in own.state
    }
    values = {key: number(value) for key, value in found.items()}
    problems = [f"'{key}' has no mu_product" for key, value in values.items() if value is None]
    first, product = next(iter(values.items()), ("", None))
    problems += [
        f"'{key}' has the mu_product {value}, '{first}' {product}"
        for key, value in values.items()
        if value is not None and value != product
    ]
    if problems:
        raise state.mismatch(problems, title)


def _slots(counterpart: Counterpart, parameter: Parameter, var: Tensor) -> dict[str, Any]:
    """What the slots of a variable are set to."""
    found: dict[str, Any] = {}
    rate = option(parameter.group, "lr")
    for name, kept in counterpart.slots.items():
        value = parameter.state.get(kept.key)
        if value is None and kept.may_lack and not option(parameter.group, "momentum"):
            value = torch.zeros_like(var, requires_grad=False)
        if value is None:
            continue
        if kept.rates and rate is not None and state.flaw(value) is None:
            value = state.kept(value)
            value = (value.double() * (kept.rates * rate)).to(value.dtype)
        found[name] = value
    return found


def _into_v1(
    into: train.Optimizer, variables: Sequence[Tensor], slots: Mapping[int, Any], steps: int | None
) -> None:
    made: dict[str, Any] = {}
    for key, var in zip(state.keys_of(variables), variables, strict=True):
        made |= {f"{key}/{name}": value for name, value in slots.get(id(var), {}).items()}
    powers: dict[str, str] = getattr(into, "POWERS", {}) if variables else {}
    for name, hyper in powers.items():
        beta = beta_of(into, hyper)
        own = into._get_non_slot_variable(name)
        own = to_tensor(beta) if own is None else own
        kind = scalar_type(own)
        power = running_power(as_hyper(beta, kind), kind, steps or 0)
        made[name] = torch.full_like(own, float(power), requires_grad=False)
    into.load_state_dict(made, variables or None)


def _into_keras(
    into: Any,
    variables: Sequence[Tensor],
    slots: Mapping[int, Any],
    steps: int | None,
    kept: Matched,
) -> None:
    owners = distinct([*into._slots.owners(), *variables])
    titles = state.distinct([name_of(var) for var in owners])
    own = {title: slots.get(id(var), {}) for title, var in zip(titles, owners, strict=True)}
    weights: dict[str, Tensor] = {}
    for name in into.EXTRA if kept else ():
        known = into._extra_weights().get(name)
        dtype = variables[0].dtype if known is None else known.dtype
        product = number(kept[0][0].state.get("mu_product"))
        weights[name] = torch.tensor(1.0 if product is None else product, dtype=dtype)
    count = into.iterations.item() if steps is None else steps
    made = {
        "class_name": type(into).__name__,
        "format": FORMAT,
        "iterations": torch.tensor(count, dtype=torch.int64),
        "hyperparameters": {},
        "weights": weights,
        "slots": own,
    }
    into.load_state_dict(made, variables or None)
