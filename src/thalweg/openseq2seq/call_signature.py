"""Check that a function accepts the arguments of a config, without calling it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

from thalweg._base.showing import show_value
from thalweg.errors import InvalidTypeError, did_you_mean
from thalweg.v1.train.callable_rate import signature_of

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def check_call(
    function: Callable[..., object], given: Mapping[str, object], supplied: str, title: str
) -> None:
    """Refuse arguments that a function does not take, and those that are missing.

    A function whose signature cannot be read is left to its call.

    Args:
        function: Called with keyword arguments alone.
        given: The arguments that a config has.
        supplied: The one argument that the library adds.
        title: What the function is called in the message.

    Raises:
        TypeError: Names the arguments.
    """
    strangers = [name for name in given if not isinstance(name, str)]
    if strangers:
        raise InvalidTypeError(f"keys must be strings, not {show_value(strangers[0])}.")
    try:
        signature = signature_of(function)
    except (TypeError, ValueError):
        return
    if supplied in given:
        raise InvalidTypeError(f"{supplied!r} is not to be given: {title} gets it in each step.")
    try:
        signature.bind(**{supplied: None}, **given)
    except TypeError as error:
        raise InvalidTypeError(_reason(signature, given, supplied, title, error)) from error


def _reason(
    signature: inspect.Signature,
    given: Mapping[str, object],
    supplied: str,
    title: str,
    error: object,
) -> str:
    """Why a call does not bind, by the names of arguments."""
    parameters = signature.parameters
    known = [name for name, each in parameters.items() if each.kind in _NAMED]
    if supplied not in known and not _takes_any(signature):
        return f"{title} takes no {supplied!r}."
    known = [name for name in known if name != supplied]
    unknown = [] if _takes_any(signature) else [name for name in given if name not in known]
    required = [name for name in known if parameters[name].default is inspect.Parameter.empty]
    said = [f"{title} takes no {name!r}. {did_you_mean(name, known)}".strip() for name in unknown]
    said += [f"{title} needs {name!r}." for name in required if name not in given]
    said = said or [f"{title}: {error}."]
    return f"{' '.join(said)} It takes: {', '.join(known)}."


def _takes_any(signature: inspect.Signature) -> bool:
    kinds = {each.kind for each in signature.parameters.values()}
    return inspect.Parameter.VAR_KEYWORD in kinds
