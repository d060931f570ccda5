"""Check that a function accepts the arguments of a config, without calling it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

from thalweg._base.showing import show_value
from thalweg.errors import InvalidTypeError, did_you_mean
from thalweg.v1.train.callable_rate import signature_of

_KEYWORD_KINDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def check_call(
    function: Callable[..., object], arguments: Mapping[str, object], supplied: str, title: str
) -> None:
    """Raise unless a function accepts the given arguments; functions without a signature pass.

    Args:
        function: The function, which will be called with keyword arguments.
        arguments: The arguments of the config.
        supplied: The name of the argument that the library adds.
        title: The name of the function in messages.

    Raises:
        TypeError: An argument is unknown or missing; the message names it.
    """
    strangers = [name for name in arguments if not isinstance(name, str)]
    if strangers:
        raise InvalidTypeError(f"keys must be strings, not {show_value(strangers[0])}.")
    try:
        signature = signature_of(function)
    except (TypeError, ValueError):
        return
    if supplied in arguments:
        raise InvalidTypeError(f"{supplied!r} is not to be given: {title} gets it in each step.")
    try:
        signature.bind(**{supplied: None}, **arguments)
    except TypeError as error:
        raise InvalidTypeError(_reason(signature, arguments, supplied, title, error)) from error


def _reason(
    signature: inspect.Signature,
    arguments: Mapping[str, object],
    supplied: str,
    title: str,
    error: object,
) -> str:
    """Return why the arguments do not bind to the signature, naming them."""
    parameters = signature.parameters
    accepted = [name for name, parameter in parameters.items() if parameter.kind in _KEYWORD_KINDS]
    if supplied not in accepted and not _takes_any(signature):
        return f"{title} takes no {supplied!r}."
    accepted = [name for name in accepted if name != supplied]
    unknown = [] if _takes_any(signature) else [name for name in arguments if name not in accepted]
    required = [name for name in accepted if parameters[name].default is inspect.Parameter.empty]
    problems = [
        f"{title} takes no {name!r}. {did_you_mean(name, accepted)}".strip() for name in unknown
    ]
    problems += [f"{title} needs {name!r}." for name in required if name not in arguments]
    problems = problems or [f"{title}: {error}."]
    return f"{' '.join(problems)} It takes: {', '.join(accepted)}."


def _takes_any(signature: inspect.Signature) -> bool:
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    return inspect.Parameter.VAR_KEYWORD in kinds
