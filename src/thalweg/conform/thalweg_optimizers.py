"""Our optimizers by name, as something that is made of parameters and takes steps."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from thalweg._base.literals import names_file
from thalweg.conform import external_optimizers
from thalweg.conform.candidate import Candidate
from thalweg.conform.errors import ConformError
from thalweg.errors import NotFoundError
from thalweg.formula import Rule

_FACES = ("optim", "torch", "v1", "openseq2seq")
_NAMES = {"learning_rate": "lr"}
_LEFT_OUT = ("self", "name", "use_locking", "gradient_aggregator", "gradient_transformers")


def find_rule(name: str) -> Candidate:
    """Return the optimizer that a name stands for: one of `thalweg rules`, or `file.py:NAME` of a
    rule.

    `PACKAGE:CLASS` stands for one of another package, which is imported.

    Raises:
        ConformError: There is none; says which are near it.
    """
    if names_file(name):
        return _load_rule(name)
    from thalweg._cli import registry

    if ":" in name and name.lower().partition(":")[0] not in _FACES:
        return replace(external_optimizers.load_class(name)[0], name=name)
    try:
        known = registry.spelled(name)
    except NotFoundError as error:
        raise ConformError(str(error)) from error
    named = registry.named(known)
    if known.startswith((registry.OPTIM, registry.TORCH)):
        return Candidate(partial(named.cls.factory, **named.options), known)
    own = inspect.signature(named.cls.__init__).parameters
    defaults = {key: named.options.get(key, each.default) for key, each in own.items()
                if key not in _LEFT_OUT and each.kind is not each.VAR_KEYWORD}  # fmt: skip
    return Candidate(_adapt(named.make, defaults), known)


def find_like(title: str) -> Candidate:
    """Ours of the name of a class: that of `thalweg.optim`, or else another of the catalogue.

    Raises:
        ConformError: There is none.
    """
    try:
        return find_rule(f"optim:{title}")
    except ConformError as error:
        try:
            return find_rule(title)
        except ConformError:
            raise ConformError(f"{error} Name ours with --rule.") from error


def _load_rule(name: str) -> Candidate:
    from thalweg._cli.race.entry import load
    from thalweg._cli.race.errors import EntryError, RaceError
    from thalweg._core.step_scalars import defaults_of
    from thalweg.optim.group_options import as_options
    from thalweg.optim.rule_optimizer import RuleOptimizer

    try:
        rule = load(name)
    except (EntryError, RaceError) as error:
        raise ConformError(str(error)) from error
    if not isinstance(rule, Rule):
        raise ConformError(f"'{name}' is a {type(rule).__name__}, not a thalweg.Rule.")

    def make(params: Any, **options: Any) -> object:
        return RuleOptimizer(params, rule, **options)

    return Candidate(_with_signature(make, as_options(defaults_of(rule))), rule.name)


def _adapt(make: Callable[..., object], defaults: Mapping[str, object]) -> Callable[..., object]:
    """An optimizer that is given gradients in pairs, in the form of torch's."""

    def made(params: Iterable[Tensor], *, lr: float, **options: object) -> Any:
        return PairsOptimizer(make(lr, **options), list(params))

    return _with_signature(made, {_NAMES.get(key, key): each for key, each in defaults.items()})


class PairsOptimizer:
    """Takes steps as an optimizer of torch does.

    Args:
        made: An optimizer of Keras' or of TensorFlow 1's kind.
        params: Its parameters.
    """

    def __init__(self, made: object, params: list[Tensor]) -> None:
        from thalweg._cli.registry import applied

        self._apply, self._params = applied(made), params

    def step(self) -> None:
        """Apply the gradients that the parameters have."""
        self._apply([(param.grad, param) for param in self._params])


def _with_signature(make: Any, defaults: Mapping[str, Any]) -> Callable[..., object]:
    kind = inspect.Parameter
    make.__signature__ = inspect.Signature(
        [
            kind("params", kind.POSITIONAL_ONLY),
            *(kind(key, kind.KEYWORD_ONLY, default=each) for key, each in defaults.items()),
        ]
    )
    return make
