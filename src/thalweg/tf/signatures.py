"""Signatures of TensorFlow's functions: orders and names of arguments, and common arguments."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from thalweg.tf.operators import name_function

Result = TypeVar("Result")

_REQUIRED = inspect.Parameter.empty


def bind_arguments(
    signature: inspect.Signature, name: str, args: Sequence[object], kwargs: Mapping[str, object]
) -> inspect.BoundArguments:
    """Return the arguments of a call by parameter name, without defaults.

    Raises:
        TypeError: The arguments do not fit the signature; the message lists all parameters.
    """
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        parameter_names = ", ".join(signature.parameters)
        raise TypeError(f"{name}() {error}; its arguments are {parameter_names}.") from None


def with_common_arguments(
    finish: Callable[..., Any], order: str = ""
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds the arguments of `finish` to those of a function.

    The decorated function passes its arguments on by name: it returns
    `finish(function(...), ...)`.

    Args:
        finish: `finish(result, ...)` returns the final result. Its further parameters are added.
        order: Names of all arguments, separated by spaces; by default those of `function` first.
    """
    common_parameters = dict(list(inspect.signature(finish).parameters.items())[1:])

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        inner_parameters = inspect.signature(function).parameters
        parameters = {**inner_parameters, **common_parameters}
        signature = inspect.Signature([parameters[name] for name in order.split() or parameters])

        @functools.wraps(function)
        def apply(*args: object, **kwargs: object) -> Any:
            arguments = bind_arguments(signature, function.__name__, args, kwargs).arguments
            inner = {name: arguments.pop(name) for name in inner_parameters if name in arguments}
            return finish(function(**inner), **arguments)

        apply.__signature__ = signature  # pyright: ignore[reportAttributeAccessIssue]
        return apply

    return decorate


def with_older_arguments(
    function: Callable[..., Result],
    order: str,
    newer_by_older: Mapping[str, str] | None = None,
    label: str = "",
    **defaults: object,
) -> Callable[..., Result]:
    """Return a function with TensorFlow 1's arguments that calls a function of TensorFlow 2.

    Args:
        function: The function of TensorFlow 2, called with keyword arguments.
        order: Names of TensorFlow 1's arguments in order, separated by spaces. Names unknown to
            `function` and without a newer name are ignored.
        newer_by_older: {TensorFlow 1's name: TensorFlow 2's name}. Values for both names raise
            ValueError. If both are None, the default of `function` applies.
        label: Name of the returned function, by default that of `function`.
        defaults: Defaults of TensorFlow 1 that differ from those of `function`. Arguments unknown
            to `function` are None by default.
    """
    newer_parameters, newer_by_older = inspect.signature(function).parameters, newer_by_older or {}
    names, label = order.split(), label or function.__name__

    def find_default(name: str) -> object:
        newer_name = newer_by_older.get(name, name)
        is_alternative = newer_name != name and newer_name in names
        if name in defaults or is_alternative or newer_name not in newer_parameters:
            return defaults.get(name)
        return newer_parameters[newer_name].default

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature(
        [inspect.Parameter(name, kind, default=find_default(name)) for name in names]
    )

    def apply(*args: object, **kwargs: object) -> Any:
        bound = bind_arguments(signature, label, args, kwargs)
        bound.apply_defaults()
        values = bound.arguments
        for older_name, name in newer_by_older.items():
            older_value = values.pop(older_name)
            if values.get(name) is None:
                values[name] = older_value
            elif older_value is not None:
                raise ValueError(f"Cannot specify both '{older_name}' and '{name}' of {label}().")
            if values[name] is None and newer_parameters[name].default is not _REQUIRED:
                del values[name]
        return function(**{name: x for name, x in values.items() if name in newer_parameters})

    apply.__signature__ = signature  # pyright: ignore[reportFunctionMemberAccess]
    doc = _describe(function.__name__, names, newer_by_older, set(newer_parameters))
    return name_function(apply, label, doc)


def _describe(
    name: str, names: Sequence[str], newer_by_older: Mapping[str, str], newer_names: set[str]
) -> str:
    """Return the docstring of a function of TensorFlow 1 that calls TensorFlow 2's `name`."""
    text = f"Compute `{name}` of TensorFlow 2, with TensorFlow 1's arguments"
    text += "".join(
        f"; `{older}` is an older name of `{newer}`" for older, newer in newer_by_older.items()
    )
    ignored = [argument for argument in names if argument not in {*newer_by_older, *newer_names}]
    return text + "".join(f"; `{argument}` is ignored" for argument in ignored) + "."
