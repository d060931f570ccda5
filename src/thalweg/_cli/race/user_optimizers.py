"""Contestants that are objects of a user's file or of another package."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from thalweg._cli import registry
from thalweg._cli.race.contestant import Contestant, Optimizer
from thalweg._cli.race.entry import RATES, RaceEntry
from thalweg._cli.race.errors import EntryError, RaceError
from thalweg._cli.registry.apply_gradients_adapter import ApplyGradientsAdapter
from thalweg._engines.rule_check import check_rule
from thalweg.formula import Rule
from thalweg.keras.optimizers import RuleOptimizer

_MODELS = ("model", "module", "net", "network")
_PARAMETERS = ("params", "parameters")


class TorchForm(ApplyGradientsAdapter):
    """An optimizer that a class or function makes of parameters, or of a model.

    Args:
        make: The class or function. Its first argument is the parameters, or the model if it has
            such a name. A function may return several optimizers.
        text: The entry, for messages.
        learning_rate: The learning rate; None takes the default.
        options: The other arguments.

    Raises:
        RaceError: It cannot be called with these arguments.
    """

    def __init__(
        self, make: Callable[..., Any], text: str, learning_rate: float | None, /, **options: object
    ) -> None:
        super().__init__(learning_rate, **options)
        self.made_of, self._text = make, text
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
            hint = "; --lr sets it" if "'lr'" in str(error) else ""
            raise RaceError(f"'{text}' cannot be made: {error}{hint}.") from error
        except ValueError:
            # A callable without a signature shows what it takes when it is called.
            pass

    @property
    def is_measurable(self) -> bool:
        """True if its steps can be measured, as those of a class of `thalweg.optim`."""
        return super().is_measurable and _accepts(self._parameters, "diagnostics")

    def begin(self, model: nn.Module) -> None:
        """Make the optimizer of all parameters of a model, or of the model.

        Raises:
            EntryError: It cannot be made, or cannot take steps.
        """
        try:
            if next(iter(self._parameters), "") in _MODELS:
                self._begin([model])
            else:
                super().begin(model)
        except Exception as error:
            raise EntryError(
                f"'{self._text}' failed while it was made: {type(error).__name__}: {error}"
            ) from error
        if not self._made:
            raise EntryError(f"'{self._text}' made no optimizer, but an empty list.")
        for made in self._made:
            if not callable(getattr(made, "step", None)):
                raise EntryError(
                    f"'{self._text}' made a {type(made).__name__}, which has no step; it must make"
                    " an optimizer, or a list of them."
                )
        if self.learning_rate is None:
            self.learning_rate = self._find_rate()

    def _make(self, variables: list[Any]) -> list[Any]:
        if isinstance(variables[0], nn.Module):
            made = self.made_of(variables[0], **self._rate, **self._options)
            return list(made) if isinstance(made, list | tuple) else [made]
        return super()._make(variables)

    def _find_rate(self) -> float | None:
        """Return the learning rate of all groups, if they have the same one."""
        groups = [group for made in self._made for group in getattr(made, "param_groups", ())]
        rates = {float(group["lr"]) for group in groups if "lr" in group}
        return rates.pop() if len(rates) == 1 else None


def enter_own(entry: RaceEntry, thing: Any) -> Contestant:
    """Return the contestant of an object.

    Args:
        entry: The entry that names the object.
        thing: A rule, an optimizer of the library, or a class or function that makes an optimizer.

    Raises:
        RaceError: It is none of these.
        RuleError: The rule cannot take a step.
    """
    text, title, rate, options = entry.text, entry.title, entry.rate, entry.options
    make: Callable[[float | None], Optimizer]
    if isinstance(thing, Rule):
        check_rule(thing)
        title = thing.name + text[len(entry.name) :]
        make = partial(RuleOptimizer, thing, **options)
    elif isinstance(thing, Optimizer):
        if options:
            raise RaceError(f"'{entry.name}' is already made, and takes no options: {text}.")
        make = partial(_with_rate, thing, text)
    elif isinstance(thing, torch.optim.Optimizer):
        raise RaceError(
            f"'{text}' is a {type(thing).__name__} of other parameters; name its class, or a"
            " function that makes one of the parameters it is given."
        )
    elif not callable(thing):
        raise RaceError(
            f"'{text}' is a {type(thing).__name__}; a thalweg.Rule, an Optimizer, or a class or"
            " function that makes one can race."
        )
    elif _is_torch_form(thing):
        rate = _default_rate(thing) if rate is None else rate
        make = partial(TorchForm, thing, text, **options)
    else:
        make = partial(_make_by_rate, thing, entry)
    return Contestant(title, make, rate, text, options)


def _is_torch_form(thing: Any) -> bool:
    """Return True for a class or function whose first argument is parameters or a model."""
    if isinstance(thing, type) and issubclass(thing, Optimizer):
        return False
    if isinstance(thing, type) and issubclass(thing, torch.optim.Optimizer):
        return True
    first = next(iter(_parameters_of(thing).values()), None)
    if first is None or first.kind in (first.KEYWORD_ONLY, first.VAR_KEYWORD):
        return False
    if first.name in (*_MODELS, *_PARAMETERS):
        return True
    return first.default is first.empty and first.name != "learning_rate"


def _parameters_of(make: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(make).parameters
    except (TypeError, ValueError):
        # Callables that are written in C have none.
        return {}


def _accepts(parameters: Mapping[str, inspect.Parameter], name: str) -> bool:
    return name in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())


def _find_rate_argument(parameters: Mapping[str, inspect.Parameter]) -> str | None:
    named = next((name for name in RATES if name in parameters), None)
    return named or ("lr" if _accepts(parameters, "lr") else None)


def _default_rate(thing: Callable[..., Any]) -> float | None:
    """Return the default of the argument for the learning rate, if it is a number."""
    parameters = _parameters_of(thing)
    default: Any = getattr(parameters.get(_find_rate_argument(parameters) or ""), "default", None)
    is_number = isinstance(default, int | float) and not isinstance(default, bool)
    return float(default) if is_number else None


def _make_by_rate(thing: Callable[..., Any], entry: RaceEntry, rate: float | None) -> Optimizer:
    """Make an optimizer of the library, which takes no parameters, but a learning rate."""
    takes_rate = "learning_rate" in _parameters_of(thing)
    arguments = {"learning_rate": rate} if takes_rate and rate is not None else {}
    try:
        made = thing(**arguments, **entry.options)
    except Exception as error:
        raise EntryError(
            f"'{entry.text}' failed while it was made: {type(error).__name__}: {error}"
        ) from error
    if isinstance(made, torch.optim.Optimizer):
        raise RaceError(
            f"'{entry.text}' made a {type(made).__name__} of other parameters; let it take those of"
            " the race as its first argument, as in def make(params, lr)."
        )
    if not isinstance(made, Optimizer):
        raise RaceError(f"'{entry.text}' made a {type(made).__name__}, not a thalweg Optimizer.")
    return made if takes_rate else _with_rate(made, entry.text, rate)


def _with_rate(optimizer: Any, text: str, rate: float | None) -> Optimizer:
    """Set the learning rate of an optimizer, and return it."""
    if rate is not None:
        attribute = registry.rate_name(optimizer)
        if attribute is None:
            raise RaceError(
                f"'{text}' is a {type(optimizer).__name__}, whose learning rate cannot be set from"
                " outside; a function with the argument learning_rate can make one."
            )
        setattr(optimizer, attribute, rate)
    return optimizer
