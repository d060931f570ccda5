"""Optimizers of this library by name, as candidates."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from thalweg._base.literals import names_file
from thalweg.conform import external_optimizers
from thalweg.conform.candidate import Candidate, ConformError
from thalweg.errors import NotFoundError
from thalweg.formula import Rule

_API_NAMES = ("optim", "torch", "v1", "openseq2seq")
_NAMES = {"learning_rate": "lr"}
_IGNORED = {"self", "name", "use_locking", "gradient_aggregator", "gradient_transformers"}


def find_rule(name: str) -> Candidate:
    """Return the candidate for the name of an optimizer, as the command `thalweg rules` lists it.

    The name may also be `file.py:NAME`, a rule in a file, or `PACKAGE:CLASS`, an optimizer of
    another package. Raise ConformError, which suggests similar names, if the name is unknown.
    """
    if names_file(name):
        return _load_rule(name)
    from thalweg._cli import registry

    if ":" in name and name.lower().partition(":")[0] not in _API_NAMES:
        return replace(external_optimizers.load_class(name)[0], name=name)
    try:
        full_name = registry.spelled(name)
    except NotFoundError as error:
        raise ConformError(str(error)) from error
    entry = registry.named(full_name)
    if full_name.startswith((registry.OPTIM, registry.TORCH)):
        return Candidate(partial(entry.cls.factory, **entry.options), full_name)
    parameters = inspect.signature(entry.cls.__init__).parameters
    defaults = {key: entry.options.get(key, parameter.default)
                for key, parameter in parameters.items()
                if key not in _IGNORED and parameter.kind is not parameter.VAR_KEYWORD}  # fmt: skip
    return Candidate(_adapt(entry.make, defaults), full_name)


def find_like(name: str) -> Candidate:
    """Return the candidate for a class name, searched in `thalweg.optim` first, then in other APIs.

    Raise ConformError if the name is unknown.
    """
    try:
        return find_rule(f"optim:{name}")
    except ConformError as error:
        try:
            return find_rule(name)
        except ConformError:
            raise ConformError(f"{error} Name ours with --rule.") from error


def _load_rule(name: str) -> Candidate:
    """Return a candidate for the rule `file.py:NAME`; raise ConformError if it is not found."""
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
    make = partial(RuleOptimizer, rule=rule)
    return Candidate(_with_signature(make, as_options(defaults_of(rule))), rule.name)


def _adapt(make: Callable[..., object], defaults: Mapping[str, object]) -> Callable[..., object]:
    """Return a torch-style constructor, whose result has a method `step`.

    Args:
        make: `make(lr, **options)` returns the optimizer of Keras or TensorFlow 1 for `step`.
        defaults: {argument: default} of this optimizer, for the signature of the constructor.
    """

    from thalweg._cli.registry import applied

    def make_optimizer(params: Iterable[Tensor], *, lr: float, **options: object) -> Any:
        """Return an object with the method `step`, around the optimizer that `make` returns."""
        apply, all_params = applied(make(lr, **options)), list(params)
        return SimpleNamespace(step=lambda: apply([(param.grad, param) for param in all_params]))

    torch_defaults = {_NAMES.get(key, key): default for key, default in defaults.items()}
    return _with_signature(make_optimizer, torch_defaults)


def _with_signature(make: Any, defaults: Mapping[str, Any]) -> Callable[..., object]:
    """Set a signature of `params` and keyword arguments with defaults, and return the function."""
    first = inspect.Parameter("params", inspect.Parameter.POSITIONAL_ONLY)
    keyword_only = inspect.Parameter.KEYWORD_ONLY
    options = [inspect.Parameter(k, keyword_only, default=d) for k, d in defaults.items()]
    make.__signature__ = inspect.Signature([first, *options])
    return make
