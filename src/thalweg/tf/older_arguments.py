"""Functions of TensorFlow 1 that take TensorFlow 2's arguments in another order, or renamed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

Result = TypeVar("Result")

_REQUIRED = inspect.Parameter.empty


def bind_arguments(
    signature: inspect.Signature, name: str, args: Sequence[object], kwargs: Mapping[str, object]
) -> inspect.BoundArguments:
    """Return the arguments of a call by their names, without those that are not given.

    Raises:
        TypeError: The arguments do not fit the signature; the message lists its parameters.
    """
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        parameter_names = ", ".join(signature.parameters)
        raise TypeError(f"{name}() {error}; its arguments are {parameter_names}.") from None


def with_older_arguments(
    function: Callable[..., Result],
    order: str,
    renamed: Mapping[str, str] | None = None,
    title: str = "",
    **defaults: object,
) -> Callable[..., Result]:
    """Return a function with the arguments of TensorFlow 1 that calls one of TensorFlow 2.

    Args:
        function: The function of TensorFlow 2; it is called with keyword arguments.
        order: Names of TensorFlow 1's arguments, in their order. One that `function` does not take
            and that is not renamed is ignored.
        renamed: TensorFlow 2's names by older names. The value of an older name is used if the
            other argument is None; if both are, the default of `function` applies.
        title: Name of the returned function, by default that of `function`.
        defaults: Defaults of TensorFlow 1 that are not those of `function`. By default an argument
            that `function` does not take is None.
    """
    newer_parameters, renamed = inspect.signature(function).parameters, renamed or {}
    names, title = order.split(), title or function.__name__

    def find_default(name: str) -> object:
        newer_name = renamed.get(name, name)
        is_alternative = newer_name != name and newer_name in names
        if name in defaults or is_alternative or newer_name not in newer_parameters:
            return defaults.get(name)
        return newer_parameters[newer_name].default

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature(
        [inspect.Parameter(name, kind, default=find_default(name)) for name in names]
    )

    def apply(*args: object, **kwargs: object) -> Any:
        bound = bind_arguments(signature, title, args, kwargs)
        bound.apply_defaults()
        values = bound.arguments
        for older_name, name in renamed.items():
            older_value = values.pop(older_name)
            if values.get(name) is None:
                values[name] = older_value
            if values[name] is None and newer_parameters[name].default is not _REQUIRED:
                del values[name]
        return function(**{name: x for name, x in values.items() if name in newer_parameters})

    apply.__name__ = apply.__qualname__ = title
    apply.__doc__ = _describe(function.__name__, names, renamed, set(newer_parameters))
    apply.__signature__ = signature  # pyright: ignore[reportFunctionMemberAccess]
    return apply


def _describe(
    name: str, names: Sequence[str], renamed: Mapping[str, str], newer_names: set[str]
) -> str:
    """Return the docstring of a function of TensorFlow 1 that calls TensorFlow 2's `name`."""
    text = f"Compute `{name}` of TensorFlow 2, with TensorFlow 1's arguments"
    text += "".join(
        f"; `{older}` is an older name of `{newer}`" for older, newer in renamed.items()
    )
    ignored = [argument for argument in names if argument not in {*renamed, *newer_names}]
    return text + "".join(f"; `{argument}` is ignored" for argument in ignored) + "."
