"""What constructors take, as people, `inspect`, type checkers and frameworks read it.

The constructors of classes of torch's kind pass on what they are given: torch's own arguments, and
the options of all optimizers. Here each class is given one that says so: its signature has every
argument with its type, and its docstring what each is for. Stubs (`tools/stubs.py`) say the same.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping
from functools import cache
from inspect import Parameter, Signature
from types import FunctionType
from typing import Any

from torch.optim.optimizer import ParamsT

from thalweg.optim.arguments import NOTES
from thalweg.optim.step_options import OPTIONS

SELF = Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)
Notes = dict[str, list[str]]  # lines by name
_ENTRY = re.compile(r" {4}\*{0,2}(\w[\w, ]*): ")


@cache
def option_parameters() -> tuple[Parameter, ...]:
    """The keywords of options, with their types."""
    how = Parameter.KEYWORD_ONLY
    return tuple(
        Parameter(each.name, how, default=each.default, annotation=_type_of(each.type, kind))
        for kind in OPTIONS
        for each in kind.keywords()
    )


def _type_of(annotation: Any, kind: type) -> Any:
    """The type that a field of an option has; `get_type_hints` looks at all others, too."""
    if isinstance(annotation, str):
        return eval(annotation, vars(sys.modules[kind.__module__]))
    return annotation


@cache
def _option_notes() -> Notes:
    found: Notes = {}
    for kind in OPTIONS:
        found |= notes_in(kind.__doc__, "Attributes:")
    return found


@cache
def _argument_notes() -> Notes:
    return notes_in(NOTES, "Args:")


def notes_in(doc: str | None, title: str) -> Notes:
    """What a section of a docstring says of each name, as lines that begin with its text."""
    found: Notes = {}
    lines = inspect.cleandoc(doc or "").splitlines()
    own: list[str] = []
    for line in lines[lines.index(title) + 1 :] if title in lines else []:
        if line and not line.startswith(" "):
            break
        if entry := _ENTRY.match(line):
            own = [line[entry.end() :]]
            found |= dict.fromkeys(entry[1].split(", "), own)
        elif line:
            own.append(line)
    return found


def with_options(own: Signature, *beside: Parameter) -> Signature:
    """A signature with the keywords of all options, before its `**keywords` if it has such."""
    plain = [each for each in own.parameters.values() if each.kind is not each.VAR_KEYWORD]
    rest = [each for each in own.parameters.values() if each.kind is each.VAR_KEYWORD]
    plain = [_of_params(each) if each.name == "params" else each for each in plain]
    return own.replace(parameters=[*plain, *beside, *option_parameters(), *rest])


def _of_params(parameter: Parameter) -> Parameter:
    is_open = parameter.annotation in (Any, Parameter.empty)
    return parameter.replace(annotation=ParamsT) if is_open else parameter


def document(cls: type, parameters: Mapping[str, Parameter]) -> str:
    """A docstring that says what each parameter of a constructor is for.

    What the docstring of the class says of one comes first, then what options say of theirs, then
    what an argument of that name is in most classes.
    """
    known: list[Notes] = [notes_in(cls.__doc__, "Args:"), _option_notes(), _argument_notes()]
    lines = [f"Make one; see `{cls.__name__}`.", "", "Args:"]
    for name, each in parameters.items():
        note = next((own[name] for own in known if name in own), None)
        if note is not None:
            title = f"**{name}" if each.kind is each.VAR_KEYWORD else name
            lines += [f"    {title}: {note[0]}", *note[1:]]
    return "\n".join(lines)


def publish(cls: Any, accepted: Signature) -> None:
    """Have the constructor of a class of this package say what it takes.

    Args:
        cls: The class. If it has no constructor of its own, it gets that of its parent, which says
            what this class takes.
        accepted: What it takes, without `self`.
    """
    if "__init__" not in vars(cls):
        its = cls.__init__
        cls.__init__ = FunctionType(
            its.__code__, its.__globals__, "__init__", its.__defaults__, its.__closure__
        )
        cls.__init__.__qualname__ = f"{cls.__qualname__}.__init__"
        cls.__init__.__module__ = cls.__module__
    made: Any = cls.__init__
    made.__doc__ = document(cls, accepted.parameters)
    made.__signature__ = accepted.replace(parameters=[SELF, *accepted.parameters.values()])
    made.__annotations__ = {
        **{each.name: each.annotation for each in accepted.parameters.values()},
        "return": None,
    }
    cls.__signature__ = accepted


def tell_own_constructor(cls: Any, accepted: Signature) -> None:
    """Have a subclass of the user's say what its own constructor takes, if it has one.

    Args:
        cls: The class.
        accepted: What classes take that have none.
    """
    try:
        own = inspect.signature(cls.__init__)
    except (TypeError, ValueError):  # such as one in C
        cls.__signature__ = accepted
        return
    cls.__signature__ = own.replace(parameters=[*own.parameters.values()][1:])
