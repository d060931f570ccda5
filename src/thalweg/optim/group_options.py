"""Options of parameter groups, and their conversion to hyperparameters of rules."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping
from copy import copy
from functools import cache
from itertools import chain
from operator import is_
from typing import Any, cast

import numpy as np
from torch import Tensor

from thalweg._base.showing import show_value
from thalweg._core.hyperparameters import check_scalar, check_size
from thalweg._core.param_groups import Group
from thalweg.errors import InvalidTypeError
from thalweg.formula import Rule
from thalweg.variable import check_held, check_number

# Flags of torch that select an implementation and do not change the result.
STEP_FLAGS = ("foreach", "fused", "capturable", "differentiable")

_NAMES = {"lr": "learning_rate", "eps": "epsilon"}
PAIRS = {
    "betas": ("beta1", "beta2"),
    "betas_1d": ("beta1_1d", "beta2_1d"),
    "etas": ("eta_minus", "eta_plus"),
    "step_sizes": ("step_size_min", "step_size_max"),
}
# Options beyond this magnitude are only read by a step that is planned from scratch.
MOST_READ = 1e30
# Classes whose arithmetic is float64.
FLOAT_CLASSES = {float, np.float64}
# The hyperparameter of the last of three betas.
LAST_BETA = "last_beta"


class Options:
    """Snapshot of the options of a group.

    Args:
        fixed: {hyperparameter: value} of those that the group may lack.

    Attributes:
        lists: The lists among the options, such as `betas` from a file.
        entries: {key of the group: its hyperparameters} of keys with floats that the rule reads.
    """

    def __init__(self, group: Group, rule: Rule, fixed: Mapping[str, object]) -> None:
        self._names, self._snapshot = list(group), list(group.values())
        pairs: list[list[Any]] = [
            pair for key, pair in group.items() if key in PAIRS and isinstance(pair, list)
        ]
        self.lists = pairs
        # An item of a list can be replaced, so that copies are compared.
        self._lists = [(pair, [*pair]) for pair in pairs]
        options = {**fixed, **hypers_by_name(group, rule)}
        self._hypers = {hyper.name: options.get(hyper.name, hyper.default) for hyper in rule.hypers}
        # A schedule writes to tensors and arrays in place, so that their identity says nothing.
        kinds = (Tensor, np.ndarray)
        self._moving = [name for name, hyper in self._hypers.items() if isinstance(hyper, kinds)]
        self._numbers = {name: _as_float(name, hyper) for name, hyper in self._hypers.items()}
        self._prepare_names = _arguments_of(rule.prepare)
        self.entries = _number_entries(group, self._hypers)

    def hold(self, group: Group) -> bool:
        """Return True if a group still has these options."""
        snapshot = self._snapshot
        if len(group) != len(snapshot) or not all(map(is_, group.values(), snapshot)):
            return False
        return not self._lists or self._are_lists_alike()

    def _are_lists_alike(self) -> bool:
        """Return True if lists among the options still have the same elements."""
        return all(len(x) == len(former) and all(map(is_, x, former)) for x, former in self._lists)

    @property
    def moves(self) -> bool:
        """True if a hyperparameter is a tensor or an array, which other code may write to."""
        return bool(self._moving)

    @property
    def moving_rate(self) -> Tensor | None:
        """The learning rate if it is a plain tensor of shape () and no other option is a tensor."""
        rate = self._hypers.get("learning_rate")
        if type(rate) is not Tensor or rate.dim() or rate.is_neg() or not rate.data_ptr():
            return None
        return rate if self._moving == ["learning_rate"] else None

    def hold_beside_rate(self, group: Group) -> bool:
        """Return True if a group's options other than `lr` are unchanged since this snapshot.

        Options are compared by identity. Their names must have the same order.
        """
        names, snapshot = self._names, self._snapshot
        return (
            list(group) == names
            and all(
                option is former or name == "lr"
                for name, option, former in zip(names, group.values(), snapshot, strict=True)
            )
            and self._are_lists_alike()
        )

    def with_rate(self, group: Group) -> Options | None:
        """Return a copy of this snapshot with the `lr` of a group.

        Return None if another option changed or is a tensor. Also return None unless `lr` is a
        float of magnitude below 1e30.
        """
        rate: Any = group.get("lr")
        if type(rate) not in FLOAT_CLASSES or not -MOST_READ < rate < MOST_READ or self._moving:
            return None
        if "lr" not in self.entries or not self.hold_beside_rate(group):
            return None
        # Schedules replace `lr` before each step, and leave all else as validated.
        options = copy(self)
        options._snapshot = list(group.values())
        options._hypers = {**self._hypers, "learning_rate": rate}
        options._numbers = {**self._numbers, "learning_rate": float(rate)}
        return options

    def check_memory(self) -> None:
        """Raise LayoutError if a hyperparameter is a tensor with freed storage."""
        for name in self._moving:
            if isinstance(value := self._hypers[name], Tensor):
                check_number(value, title_of(name))

    def given(self) -> dict[str, Any]:
        """Return a copy of the hyperparameters by name."""
        return dict(self._hypers)

    def given_to_prepare(self, overrides: Mapping[str, object]) -> dict[str, Any]:
        """Return arguments of the rule's `prepare` by name: `overrides`, else hyperparameters."""
        hypers = self._hypers
        names = self._prepare_names
        return {name: overrides[name] if name in overrides else hypers[name] for name in names}

    def numbers(self, keeps_tensor: Callable[[Any], bool]) -> dict[str, Any]:
        """Return {hyperparameter: float}; tensors for which `keeps_tensor` is True stay tensors."""
        if self._moving:
            moving = {name: self._hypers[name] for name in self._moving}
            moving = {name: x if keeps_tensor(x) else number(x) for name, x in moving.items()}
            return {**self._numbers, **moving}
        return self._numbers


def as_options(hypers: Mapping[str, object]) -> Group:
    """Return hyperparameters under the keys of groups: `lr`, `eps`, and pairs as `betas`."""
    pairs: Group = {}
    remaining = dict(hypers)
    for key in PAIRS:
        names = members_of(key, remaining)
        if all(name in remaining for name in names):
            pairs[key] = tuple(remaining.pop(name) for name in names)
    return {**{title_of(name): value for name, value in remaining.items()}, **pairs}


def hypers_of(group: Group, rule: Rule) -> dict[str, Any]:
    """Return {hyperparameter: value} of a rule from a group; defaults replace missing options.

    Raises:
        InvalidTypeError: A value is not a number; names the hyperparameter.
        InvalidArgumentError: A value is NaN, or a tensor with a shape.
    """
    options = hypers_by_name(group, rule)
    hypers = {hyper.name: options.get(hyper.name, hyper.default) for hyper in rule.hypers}
    for name, value in hypers.items():
        check_scalar(title_of(name), value, "number or a tensor of shape ()")
    return hypers


def members_of(key: str, hypers: Container[str]) -> tuple[str, ...]:
    """Return the hyperparameters, among `hypers`, that a group stores under one key, as `betas`."""
    names = PAIRS[key]
    return (*names, LAST_BETA) if key == "betas" and LAST_BETA in hypers else names


def number(value: Any) -> float:
    """Return a number or tensor of one element as a float.

    Raises:
        LayoutError: The storage of the tensor was freed.
    """
    if isinstance(value, Tensor):
        check_number(value)
        return float(value.item())
    # `float` would drop the imaginary part.
    if isinstance(value, np.complexfloating):
        raise InvalidTypeError(f"a number must be real, not {value!r}.")
    return float(value)


def read_eps(eps: Any, allows_none: bool = False) -> tuple[Any, float]:
    """Return Adafactor's option `eps`, a pair of numbers, as floats.

    With `allows_none`, the first number may be None and stays None. Raise InvalidTypeError for any
    other value.
    """
    try:
        first, second = eps
        return None if allows_none and first is None else float(first), float(second)
    except (TypeError, ValueError, RuntimeError) as error:
        expected = f"two numbers{', or None and a number' * allows_none}"
        raise InvalidTypeError(f"eps must be {expected}, not {show_value(eps)}.") from error


def tensors_in(options: Mapping[str, object]) -> Iterator[tuple[str, Tensor]]:
    """Yield (option, tensor) for all tensors in options, except parameters."""
    for name, value in options.items():
        items: Any = cast("dict[str, Any]", value).values() if isinstance(value, dict) else value
        if name == "params" or not isinstance(value, Tensor | list | tuple | dict):
            continue
        for item in (value,) if isinstance(value, Tensor) else items:
            if isinstance(item, Tensor):
                yield name, item


def check_options_held(options: Mapping[str, object]) -> None:
    """Raise LayoutError if an option is a tensor with freed storage, before anything reads it."""
    for name, tensor in tensors_in(options):
        check_held(tensor, title_of(name))


def title_of(name: str) -> str:
    """Return the name that groups use for a hyperparameter, such as `lr` for `learning_rate`."""
    return next((key for key, hyper_name in _NAMES.items() if hyper_name == name), name)


def _as_float(name: str, value: object) -> float:
    """Return a hyperparameter as a float; raise InvalidTypeError if it is not a number."""
    check_size(title_of(name), value)
    try:
        # `float` would parse strings.
        if not isinstance(value, str | bytes | bytearray):
            return number(value)
    # A tensor of several elements raises RuntimeError.
    except (TypeError, ValueError, RuntimeError):
        pass
    raise InvalidTypeError(f"{title_of(name)} must be a number, not {show_value(value)}.")


@cache
def _arguments_of(prepare: Callable[..., object] | None) -> tuple[str, ...]:
    """Return the names of the arguments of a rule's `prepare`."""
    return () if prepare is None else tuple(inspect.signature(prepare).parameters)


def _number_entries(group: Mapping[str, Any], hypers: Container[str]) -> dict[str, tuple[str, ...]]:
    """Return {option: hyperparameters that it sets} for options that are floats or pairs of floats.

    If several options set one hyperparameter, leave out all these options.
    """
    entries: dict[str, tuple[str, ...]] = {}
    for key, value in group.items():
        names = members_of(key, hypers) if key in PAIRS else (_NAMES.get(key, key),)
        items: tuple[Any, ...] = value if key in PAIRS and type(value) is tuple else (value,)  # pyright: ignore[reportUnknownVariableType]
        if all(name in hypers for name in names) and set(map(type, items)) <= FLOAT_CLASSES:
            entries[key] = names
    counts = Counter(chain.from_iterable(entries.values()))
    return {key: names for key, names in entries.items() if all(counts[n] == 1 for n in names)}


def hypers_by_name(
    group: Mapping[str, Any], rule: Rule | None = None, hyper_names: Container[str] = ()
) -> dict[str, Any]:
    """Return {hyperparameter: value} for the options of a group; `lr` becomes `learning_rate`.

    Args:
        rule: Optional. Options that the rule does not read are left out.
        hyper_names: The names of hyperparameters if `rule` is None. They decide if `betas` must
            have two or three numbers.

    Raises:
        InvalidTypeError: An option such as `betas` has the wrong number of numbers.
    """
    hypers: dict[str, Any] = {}
    read = group
    if rule is not None:
        hyper_names = [hyper.name for hyper in rule.hypers]
        read = as_options(dict.fromkeys(hyper_names))
    # If two keys are the same hyperparameter, the later one counts.
    for key, value in group.items():
        if key not in read:
            continue
        if key in PAIRS:
            names = members_of(key, hyper_names)
            try:
                hypers.update(zip(names, value, strict=True))
            except (TypeError, ValueError):
                expected = "a pair of numbers" if len(names) == 2 else "three numbers"
                problem = f"{key} must be {expected}, not {show_value(value)}."
                raise InvalidTypeError(problem) from None
        else:
            hypers[_NAMES.get(key, key)] = value
    return hypers
