"""Rules that say which parameter a variable of TensorFlow becomes, and how its axes are turned.

A rules file has a line for each kind of variable::

    # TensorFlow's name        parameter         axes
    layer*/kernel           -> layer*.weight     dense
    conv*/kernel            -> conv*.weight      conv2d
    encoder/**/bias         -> encoder.**.bias
    old_head/**             -> -

`*` stands for any part of a name between two "/", `**` for any part at all; each is put in the
same place on the right, where "." stands between the parts of a parameter's name. The first line
that fits a variable counts. `-` leaves it out. Axes are those of the parameter, each the number of
an axis of TensorFlow's variable: `transpose 1 0`, or one of the words in `AXES`.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from thalweg._base.showing import show_value
from thalweg._formats import atomic_write
from thalweg.errors import InvalidConfigError, MissingFileError, did_you_mean

AXES = {"dense": (1, 0), "conv1d": (2, 1, 0), "conv2d": (3, 2, 0, 1), "conv3d": (4, 3, 0, 1, 2)}
LEFT_OUT = "-"
_LONGEST = 2000  # characters of a name
_WILD = re.compile(r"\*\*|\*")

Axes = tuple[int, ...]


@dataclass(frozen=True)
class Place:
    """Destination of a variable.

    Attributes:
        target: The name of the parameter; None leaves the variable out.
        axes: For each axis of the parameter that of the variable; None changes nothing.
    """

    target: str | None
    axes: Axes | None = None


@dataclass(frozen=True)
class Line:
    """Rule for variables whose names match a pattern.

    Attributes:
        pattern: The pattern of TensorFlow's names.
        place: Their destination; the target has the same `*` as the pattern.
        title: The rule in a message.
    """

    pattern: str
    place: Place
    title: str

    def forward(self, name: str) -> Place | None:
        """Return the destination of a variable; None if the rule is not for it."""
        found = _match_wildcards(self.pattern, name, "/")
        if found is None:
            return None
        target = self.place.target
        if target is None:
            return self.place
        separator = "/" if "/" in target else "."
        parts = [part.replace("/", separator) for part in found]
        return Place(_fill_wildcards(target, parts), self.place.axes)

    def backward(self, target: str) -> str | None:
        """Return TensorFlow's name of the variable of a parameter; None if the rule is not for
        it.
        """
        if self.place.target is None:
            return None
        separator = "/" if "/" in self.place.target else "."
        found = _match_wildcards(self.place.target, target, separator)
        if found is None:
            return None
        return _fill_wildcards(self.pattern, [part.replace(separator, "/") for part in found])


Function = Callable[[str], Any]


@dataclass(frozen=True)
class Rules:
    """The rules of a file, a dictionary, or a function.

    Attributes:
        lines: The rules, in order.
        function: Takes the name of a variable and returns that of its parameter, a pair of it and
            its axes as a file has them, or None.
        are_none: Whether all names stay as they are.
    """

    lines: tuple[Line, ...] = ()
    function: Function | None = None
    are_none: bool = False

    @classmethod
    def of(cls, given: object) -> Rules | None:
        """Return the rules that were given: a path, a dictionary, a function, `Rules`, or None.

        Raises:
            MissingFileError: There is no such file.
            InvalidConfigError: A line of it is no rule.
        """
        if given is None or isinstance(given, Rules):
            return given
        if isinstance(given, str | os.PathLike):
            return parse(_read_rules(os.fspath(given)), os.fspath(given))
        if isinstance(given, Mapping):
            pairs = cast(Mapping[Any, Any], given)
            return cls(tuple(_parse_line(str(name), str(pairs[name]), str(name)) for name in pairs))
        if callable(given):
            return cls(function=given)
        raise InvalidConfigError(
            "rules are the path of a file, a dictionary, or a function of a name, not"
            f" {type(given).__name__}."
        )

    def place(self, name: str) -> Place | None:
        """Return the destination of a variable; None if no rule is for it."""
        if self.are_none:
            return Place(name)
        if self.function is not None:
            return _place_returned(name, self.function(name))
        return next((place for line in self.lines if (place := line.forward(name))), None)

    def name(self, target: str) -> tuple[str, Axes | None] | None:
        """Return the name of the variable that a parameter is, and its axes; None if no rule is for
        it.

        Raises:
            InvalidConfigError: The rules are a function, which has no way back.
        """
        if self.are_none:
            return target, None
        if self.function is not None:
            raise InvalidConfigError(
                "A function gives parameters for TensorFlow's names and not the other way around:"
                " writing needs rules in a file or a dictionary."
            )
        for line in self.lines:
            name = line.backward(target)
            first = name is not None and self.place(name)
            if name is not None and first and first.target == target:
                return name, line.place.axes
        return None


SAME = Rules(are_none=True)


def parse(text: str, title: str = "rules") -> Rules:
    """Return the rules in the text of a rules file.

    Args:
        text: The text.
        title: What an error calls it.

    Raises:
        InvalidConfigError: A line is no rule; says which, and what is wrong with it.
    """
    lines: list[Line] = []
    for number, line in enumerate(text.splitlines(), 1):
        rule = line.partition("#")[0].strip()
        if not rule:
            continue
        where = f"{title}, line {number}"
        pattern, arrow, right = rule.partition("->")
        if not arrow:
            raise InvalidConfigError(f"{where}: {rule!r} is no rule: it has no '->'.")
        lines.append(_parse_line(pattern.strip(), right.strip(), where))
    return Rules(tuple(lines))


def _read_rules(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        if error.errno not in (errno.EISDIR, *atomic_write.NOWHERE):
            raise
        raise MissingFileError(
            f"{path}: there is no such rules file ({error.strerror})."
        ) from error
    except UnicodeDecodeError as error:
        raise InvalidConfigError(f"{path} is no text in UTF-8.") from error


def _parse_line(pattern: str, right: str, where: str) -> Line:
    words = right.split()
    if not pattern or not words:
        raise InvalidConfigError(
            f"{where}: a rule is 'name -> parameter', not {show_value(right)}."
        )
    target, how = words[0], words[1:]
    title = f"{pattern} -> {right}"
    if target == LEFT_OUT and not how:
        return Line(pattern, Place(None), title)
    if _WILD.findall(pattern) != _WILD.findall(target):
        raise InvalidConfigError(
            f"{where}: '{title}' has not the same '*' and '**' on both sides, in the same order."
        )
    return Line(pattern, Place(target, _parse_axes(how, where)), title)


def _parse_axes(words: list[str], where: str) -> Axes | None:
    if not words:
        return None
    if len(words) == 1 and words[0] in AXES:
        return AXES[words[0]]
    if words[0] == "transpose" and all(word.isdecimal() for word in words[1:]):
        axes = tuple(map(int, words[1:]))
        if axes and sorted(axes) == list(range(len(axes))):
            return axes
        raise InvalidConfigError(
            f"{where}: '{' '.join(words)}' does not name each axis once, from 0."
        )
    hint = did_you_mean(words[0], [*AXES, "transpose"])
    raise InvalidConfigError(
        f"{where}: '{' '.join(words)}' is none of {', '.join(AXES)}, or transpose and the numbers"
        f" of axes. {hint}".rstrip()
    )


def _place_returned(name: str, value: object) -> Place | None:
    """What a function of a user returned for a name."""
    where = f"the rule for {name!r}"
    if value is None:
        return Place(None)
    if isinstance(value, str):
        return Place(value)
    if isinstance(value, tuple):
        match cast(tuple[Any, ...], value):
            case (str() as target, str() as how):
                return Place(target, _parse_axes(how.split(), where))
            case _:
                pass
    raise InvalidConfigError(
        f"{where} returned {value!r}: expected the name of a parameter, a pair of it and its axes,"
        " such as ('layer.weight', 'dense'), or None."
    )


def _match_wildcards(pattern: str, name: str, separator: str) -> list[str] | None:
    """What the wildcards of a pattern stand for in a name; None if it does not fit."""
    if len(name) > _LONGEST:
        return None
    one = f"([^{re.escape(separator)}]+)"
    parts = [re.escape(part) for part in _WILD.split(pattern)]
    kinds = [one if wild == "*" else "(.+)" for wild in _WILD.findall(pattern)]
    text = "".join(part + kind for part, kind in zip(parts, [*kinds, ""], strict=True))
    match = re.fullmatch(text, name, re.DOTALL)
    return None if match is None else list(match.groups())


def _fill_wildcards(pattern: str, parts: list[str]) -> str:
    given = iter(parts)
    return _WILD.sub(lambda _: next(given), pattern)
