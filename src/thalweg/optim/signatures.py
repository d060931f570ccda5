"""Signatures and docstrings of constructors for readers, `inspect`, type checkers and frameworks.

The constructors of torch-style classes pass their arguments on: the arguments of torch, and the
options of all optimizers. This module gives each class an explicit constructor: its signature has
every argument with its type, and its docstring describes each. The stubs (`tools/stubs.py`) have
the same signatures.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from functools import cache
from inspect import Parameter, Signature
from types import FunctionType
from typing import Any

from torch.optim.optimizer import ParamsT

from thalweg.optim.argument_docs import NOTES
from thalweg.optim.step_options import OPTIONS

SELF = Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)
Notes = dict[str, str]  # by name
# An entry of a section, such as `    a, b: Text`. Asterisks precede variadic parameters.
_ENTRY = re.compile(r" {4}\*{0,2}(\w[\w, ]*): ")


@cache
def option_parameters() -> tuple[Parameter, ...]:
    """Return a keyword-only parameter for each option, with type and default."""
    mode = Parameter.KEYWORD_ONLY
    return tuple(
        Parameter(
            field.name, mode, default=field.default, annotation=_resolve_type(field.type, kind)
        )
        for kind in OPTIONS
        for field in kind.keywords()
    )


def _resolve_type(annotation: Any, kind: type) -> Any:
    """Return the type of an option's field, evaluated if it is a string."""
    if isinstance(annotation, str):
        # The names of the module that defines the class, whose `__module__` is the public one.
        init: Any = kind.__init__
        return eval(annotation, init.__globals__)
    return annotation


@cache
def _common_notes() -> Notes:
    """Return {argument: description} of arguments that most classes have, and of all options."""
    notes = parse_notes(NOTES, "Args:")
    for kind in OPTIONS:
        notes |= parse_notes(kind.__doc__, "Attributes:")
    return notes


def parse_notes(doc: str | None, label: str) -> Notes:
    """Return {name: description} from the section `label` of the docstring `doc`.

    `label` is a heading, such as "Args:". Descriptions keep line breaks. Return {} without such a
    section.
    """
    notes: Notes = {}
    lines = inspect.cleandoc(doc or "").splitlines()
    names: list[str] = []
    for line in lines[lines.index(label) + 1 :] if label in lines else []:
        if line and not line.startswith(" "):
            break
        if entry := _ENTRY.match(line):
            names = entry[1].split(", ")
            notes |= dict.fromkeys(names, line[entry.end() :])
        elif line:
            notes |= {name: f"{notes[name]}\n{line}" for name in names}
    return notes


def with_options(signature: Signature, *extra_parameters: Parameter) -> Signature:
    """Return a constructor's signature extended by `self` and the keywords of all options.

    Args:
        signature: The signature without options. A parameter `**keywords` stays last.
        *extra_parameters: Parameters to insert before the options.
    """
    args = [arg for arg in signature.parameters.values() if arg.kind is not arg.VAR_KEYWORD]
    var_keywords = [arg for arg in signature.parameters.values() if arg.kind is arg.VAR_KEYWORD]
    args = [_type_params(arg) if arg.name == "params" else arg for arg in args]
    leading = map(_deduplicate, [SELF, *args, *extra_parameters])
    trailing = map(_deduplicate, var_keywords)
    return signature.replace(parameters=[*leading, *option_parameters(), *trailing])


def _deduplicate(parameter: Parameter) -> Parameter:
    """Return an equal parameter of an earlier call, else `parameter` itself; 0 and 0.0 differ."""
    equal_parameters = _parameters.setdefault(type(parameter.default), {})  # pyright: ignore[reportUnknownArgumentType]
    return equal_parameters.setdefault(parameter, parameter)


# Few new objects keep an import from starting a garbage collection over all objects of torch,
# which would take longer than the import.
_parameters: dict[type, dict[Parameter, Parameter]] = {}


def _type_params(parameter: Parameter) -> Parameter:
    """Return `parameter` annotated with torch's type `ParamsT`, unless it has an annotation."""
    is_open = parameter.annotation in (Any, Parameter.empty)
    return parameter.replace(annotation=ParamsT) if is_open else parameter


def document(cls: type, parameters: Mapping[str, Parameter]) -> str:
    """Return a docstring for a constructor, with descriptions of all parameters but `self`.

    Descriptions are searched in the docstring of the class, then of the options, then in `NOTES`.
    A parameter without a description is left out.
    """
    notes = {**_common_notes(), **parse_notes(cls.__doc__, "Args:")}
    lines = [f"Create an optimizer of class `{cls.__name__}`.", "", "Args:"]
    for name, parameter in [*parameters.items()][1:]:
        if name in notes:
            label = f"**{name}" if parameter.kind is parameter.VAR_KEYWORD else name
            lines.append(f"    {label}: {notes[name]}")
    return "\n".join(lines)


def publish(cls: Any, accepted: Signature) -> None:
    """Set the signature and docstring of a class's constructor, in place.

    Args:
        cls: The class. An inherited constructor is first copied to the class.
        accepted: The signature, with `self`.
    """
    # A docstring on the inherited function would document the base class, too.
    if "__init__" not in vars(cls):
        init = cls.__init__
        cls.__init__ = FunctionType(
            init.__code__, init.__globals__, "__init__", init.__defaults__, init.__closure__
        )
        cls.__init__.__qualname__ = f"{cls.__qualname__}.__init__"
        cls.__init__.__module__ = cls.__module__
    cls.__init__.__doc__ = document(cls, accepted.parameters)
    cls.__init__.__signature__ = accepted


class OfConstructor:
    """Descriptor for `__signature__` that returns the signature of a class's constructor.

    `inspect` would use `__new__` otherwise, which accepts anything.
    """

    def __get__(self, instance: object, owner: Any) -> Signature:
        if instance is not None:
            raise AttributeError("__signature__")
        signature = inspect.signature(owner.__init__)
        return signature.replace(parameters=[*signature.parameters.values()][1:])
