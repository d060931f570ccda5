"""Contestants that are objects of a user's file or of other packages."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

import torch
from torch import nn

from thalweg._cli import registry
from thalweg._cli.race.contestant import Contestant, Optimizer
from thalweg._cli.race.entry import RATES, RaceEntry
from thalweg._cli.race.errors import EntryError, RaceError, name_failures
from thalweg._cli.registry.apply_gradients_adapter import ApplyGradientsAdapter
from thalweg._engines.rule_check import check_rule
from thalweg.formula import Rule
from thalweg.keras.optimizers import RuleOptimizer

_MODELS = ("model", "module", "net", "network")
_PARAMETERS = ("params", "parameters")


class TorchForm(ApplyGradientsAdapter):
    """Adapter of an optimizer that a class or function makes from parameters or from a model.

    Args:
        make: The class or function. The first argument receives the parameters, or the model if the
            argument is named so, as `model` or `net`. A list of optimizers may be returned.
        text: The entry, for messages.
        learning_rate: The learning rate; None means the default of `make`.
        options: The other arguments.

    Raises:
        RaceError: `make` does not accept these arguments.
    """

    def __init__(
        self, make: Callable[..., Any], text: str, learning_rate: float | None, /, **options: object
    ) -> None:
        super().__init__(learning_rate, **options)
        self.factory, self._text = make, text
        self._parameters = _parameters_of(make)
        self.rate_argument = _find_rate_argument(self._parameters) or ""
        if learning_rate is not None and not self.rate_argument:
            raise RaceError(
                f"'{text}' has no argument lr, so its learning rate cannot be set; give it one, or"
                " leave the learning rate out."
            )
        try:
            inspect.signature(make).bind([], **self._rate, **options)
        except TypeError as error:
            advice = "; --lr sets it" if "'lr'" in str(error) else ""
            raise RaceError(f"'{text}' cannot be made: {error}{advice}.") from error
        except ValueError:
            # A callable without a signature is checked only by the call itself.
            pass

    @property
    def is_measurable(self) -> bool:
        """Return True if the optimizer can record diagnostics of its steps."""
        return super().is_measurable and _accepts(self._parameters, "diagnostics")

    def begin(self, model: nn.Module) -> None:
        """Call `make` with `model`, or with the parameters of `model`, to build the optimizer.

        Raises:
            EntryError: `make` fails, or returns an object without `step`, or an empty list.
        """
        with name_failures(f"'{self._text}' failed while it was made"):
            if next(iter(self._parameters), "") in _MODELS:
                self._begin(self._call_factory(model))
            else:
                super().begin(model)
        if not self._optimizers:
            raise EntryError(f"'{self._text}' made no optimizer, but an empty list.")
        for optimizer in self._optimizers:
            if not callable(getattr(optimizer, "step", None)):
                raise EntryError(
                    f"'{self._text}' made a {type(optimizer).__name__}, which has no step; it must"
                    " make an optimizer, or a list of them."
                )
        if self.learning_rate is None:
            self.learning_rate = self._find_rate()

    def _find_rate(self) -> float | None:
        """Return the learning rate that all groups share, or None."""
        groups = [
            group
            for optimizer in self._optimizers
            for group in getattr(optimizer, "param_groups", ())
        ]
        rates = {float(group["lr"]) for group in groups if "lr" in group}
        return rates.pop() if len(rates) == 1 else None


def enter_own(entry: RaceEntry, target: Any) -> Contestant:
    """Return a contestant that runs a user's object.

    Args:
        entry: The entry that names the object.
        target: A rule, an optimizer of the library, or a class or function that makes an optimizer.

    Raises:
        RaceError: `target` is something else, such as a built optimizer of torch.
        RuleError: The rule is invalid.
    """
    text, label, rate, options = entry.text, entry.label, entry.rate, entry.options
    make: Callable[[float | None], Optimizer]
    if isinstance(target, Rule):
        check_rule(target)
        label = target.name + text[len(entry.name) :]
        make = partial(RuleOptimizer, target, **options)
    elif isinstance(target, Optimizer):
        if options:
            raise RaceError(f"'{entry.name}' is already made, and takes no options: {text}.")
        make = partial(_with_rate, target, text)
    elif isinstance(target, torch.optim.Optimizer):
        raise RaceError(
            f"'{text}' is a {type(target).__name__} of other parameters; name its class, or a"
            " function that makes one of the parameters it is given."
        )
    elif not callable(target):
        raise RaceError(
            f"'{text}' is a {type(target).__name__}; a thalweg.Rule, an Optimizer, or a class or"
            " function that makes one can race."
        )
    elif _is_torch_form(target):
        rate = _default_rate(target) if rate is None else rate
        make = partial(TorchForm, target, text, **options)
    else:
        make = partial(_make_by_rate, target, entry)
    return Contestant(label, make, rate, text, options)


def _is_torch_form(factory: Any) -> bool:
    """Return True for a class or function whose first argument is parameters or a model."""
    if isinstance(factory, type) and issubclass(factory, Optimizer):
        return False
    if isinstance(factory, type) and issubclass(cast("type[Any]", factory), torch.optim.Optimizer):
        return True
    first = next(iter(_parameters_of(factory).values()), None)
    if first is None or first.kind in (first.KEYWORD_ONLY, first.VAR_KEYWORD):
        return False
    if first.name in (*_MODELS, *_PARAMETERS):
        return True
    return first.default is first.empty and first.name != "learning_rate"


def _parameters_of(make: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(make).parameters
    except (TypeError, ValueError):
        # Callables written in C may have no signature.
        return {}


def _accepts(parameters: Mapping[str, inspect.Parameter], name: str) -> bool:
    return name in parameters or any(
        parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()
    )


def _find_rate_argument(parameters: Mapping[str, inspect.Parameter]) -> str | None:
    rate_name = next((name for name in RATES if name in parameters), None)
    return rate_name or ("lr" if _accepts(parameters, "lr") else None)


def _default_rate(factory: Callable[..., Any]) -> float | None:
    """Return the default of the argument for the learning rate, or None if not a number."""
    parameters = _parameters_of(factory)
    default: Any = getattr(parameters.get(_find_rate_argument(parameters) or ""), "default", None)
    is_scalar = isinstance(default, int | float) and not isinstance(default, bool)
    return float(default) if is_scalar else None


def _make_by_rate(factory: Callable[..., Any], entry: RaceEntry, rate: float | None) -> Optimizer:
    """Return the optimizer of the library that `factory` makes, with the options of `entry`.

    Pass `rate` as the argument `learning_rate`. If `factory` lacks this argument, set the rate of
    the optimizer. If `rate` is None, the optimizer's rate is unchanged.
    """
    takes_rate = "learning_rate" in _parameters_of(factory)
    arguments = {"learning_rate": rate} if takes_rate and rate is not None else {}
    with name_failures(f"'{entry.text}' failed while it was made"):
        optimizer = factory(**arguments, **entry.options)
    if isinstance(optimizer, torch.optim.Optimizer):
        raise RaceError(
            f"'{entry.text}' made a {type(optimizer).__name__} of other parameters; let it take"
            " those of the race as its first argument, as in def make(params, lr)."
        )
    if not isinstance(optimizer, Optimizer):
        raise RaceError(
            f"'{entry.text}' made a {type(optimizer).__name__}, not a thalweg Optimizer."
        )
    return optimizer if takes_rate else _with_rate(optimizer, entry.text, rate)


def _with_rate(optimizer: Any, text: str, rate: float | None) -> Optimizer:
    """Set the learning rate of an optimizer unless `rate` is None; return the optimizer."""
    if rate is not None:
        attribute = registry.rate_name(optimizer)
        if attribute is None:
            raise RaceError(
                f"'{text}' is a {type(optimizer).__name__}, whose learning rate cannot be set from"
                " outside; a function with the argument learning_rate can make one."
            )
        setattr(optimizer, attribute, rate)
    return optimizer
