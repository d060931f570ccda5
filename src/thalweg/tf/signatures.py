"""Signatures of TensorFlow's functions: orders and names of arguments, and common arguments."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from thalweg.tf.operators import name_function

Result = TypeVar("Result")

_MISSING = inspect.Parameter.empty


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


def set_signature(function: Any, signature: inspect.Signature) -> None:
    """Set `__signature__` and `__annotations__` of a function from a signature."""
    hints = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    hints["return"] = signature.return_annotation
    function.__signature__ = signature
    function.__annotations__ = {name: x for name, x in hints.items() if x is not _MISSING}


def with_common_arguments(
    finish: Callable[..., Any], order: str = ""
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds the arguments of `finish` to a function.

    The decorated function returns `finish(function(...), ...)`, and passes arguments by name.

    Args:
        finish: `finish(result, ...)` returns the final result. Its further parameters are added.
        order: Names of all arguments, separated by spaces. By default those of `finish` are last.
    """
    finish_signature = inspect.signature(finish)
    common_parameters = dict(list(finish_signature.parameters.items())[1:])

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        inner_parameters = inspect.signature(function).parameters
        parameters = {**inner_parameters, **common_parameters}
        signature = finish_signature.replace(
            parameters=[parameters[name] for name in order.split() or parameters]
        )

        @functools.wraps(function)
        def apply(*args: object, **kwargs: object) -> Any:
            arguments = bind_arguments(signature, function.__name__, args, kwargs).arguments
            inner = {name: arguments.pop(name) for name in inner_parameters if name in arguments}
            return finish(function(**inner), **arguments)

        set_signature(apply, signature)
        return apply

    return decorate


def _rename_arguments(
    values: dict[str, Any],
    newer_by_older: Mapping[str, str],
    newer_parameters: Mapping[str, inspect.Parameter],
    label: str,
) -> None:
    """Rename arguments in the dict `values` in place; remove a None if the parameter has a default.

    Args:
        values: {TensorFlow 1's name: argument}.
        newer_by_older: {TensorFlow 1's name: TensorFlow 2's name}.
        newer_parameters: {TensorFlow 2's name: parameter}.
        label: Name of the function, for the ValueError if an argument has a value under both names.
    """
    for older_name, name in newer_by_older.items():
        older_value = values.pop(older_name)
        if values.get(name) is None:
            values[name] = older_value
        elif older_value is not None:
            raise ValueError(f"Cannot specify both '{older_name}' and '{name}' of {label}().")
        if values[name] is None and newer_parameters[name].default is not _MISSING:
            del values[name]


def with_older_arguments(
    module: str,
    function: Callable[..., Result],
    order: str,
    newer_by_older: Mapping[str, str] | None = None,
    label: str = "",
    note: str = "",
    **defaults: object,
) -> Callable[..., Result]:
    """Return a function with TensorFlow 1's arguments that calls a function of TensorFlow 2.

    Args:
        module: Name of the module that defines the returned function.
        function: The function of TensorFlow 2, called with keyword arguments.
        order: Names of TensorFlow 1's arguments in order, separated by spaces. Names unknown to
            `function` and without a newer name are ignored.
        newer_by_older: {TensorFlow 1's name: TensorFlow 2's name}. Values for both names raise
            ValueError. If both are None, the default of `function` applies.
        label: Name of the returned function; by default the name of `function`.
        note: Optional end of the docstring's sentence about the arguments.
        defaults: Defaults of TensorFlow 1 that differ from those of `function`. Arguments unknown
            to `function` are None by default.
    """
    newer_signature = inspect.signature(function, eval_str=True)
    newer_parameters, newer_by_older = newer_signature.parameters, newer_by_older or {}
    names, label = order.split(), label or function.__name__
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    unknown = inspect.Parameter("unknown", kind, default=None, annotation=object)

    def convert_parameter(name: str) -> inspect.Parameter:
        newer_name = newer_by_older.get(name, name)
        is_alternative = newer_name != name and newer_name in names
        newer = newer_parameters.get(newer_name, unknown)
        default = defaults.get(name, None if is_alternative else newer.default)
        return inspect.Parameter(name, kind, default=default, annotation=newer.annotation)

    signature = newer_signature.replace(parameters=[convert_parameter(name) for name in names])

    def apply(*args: object, **kwargs: object) -> Any:
        bound = bind_arguments(signature, label, args, kwargs)
        bound.apply_defaults()
        values = bound.arguments
        _rename_arguments(values, newer_by_older, newer_parameters, label)
        return function(**{name: x for name, x in values.items() if name in newer_parameters})

    set_signature(apply, signature)
    ignored = [name for name in names if name not in {*newer_by_older, *newer_parameters}]
    notes = [f"`{older}` is an older name of `{name}`" for older, name in newer_by_older.items()]
    notes += [f"`{name}` is ignored" for name in ignored] + [note] * bool(note)
    first_line = (function.__doc__ or "").partition("\n")[0]
    doc = f"{first_line}\n\n{'; '.join(['The arguments are those of TensorFlow 1', *notes])}."
    return name_function(apply, label, doc, module)
