"""Rules that map variables of TensorFlow to parameters, and permute their axes.

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
OMITTED = "-"
# Longer names match no rule, because wildcards backtrack.
_MAX_LENGTH = 2000
_WILD = re.compile(r"\*\*|\*")

Axes = tuple[int, ...]


@dataclass(frozen=True)
class Place:
    """Destination of a variable of a file.

    Attributes:
        target: The name of the parameter; None omits the variable.
        axes: For each axis of the parameter, the variable's axis; None keeps the order.
    """

    target: str | None
    axes: Axes | None = None


@dataclass(frozen=True)
class Line:
    """Rule for variables whose names match a pattern.

    Attributes:
        pattern: The pattern of TensorFlow's names.
        place: The destination; its target has the wildcards of the pattern.
        title: The text of the rule, for messages.
    """

    pattern: str
    place: Place
    title: str

    def forward(self, name: str) -> Place | None:
        """Return the destination of the variable `name`; None if the rule does not match."""
        segments = _match_wildcards(self.pattern, name, "/")
        if segments is None:
            return None
        target = self.place.target
        if target is None:
            return self.place
        separator = "/" if "/" in target else "."
        replaced = [segment.replace("/", separator) for segment in segments]
        return Place(_fill_wildcards(target, replaced), self.place.axes)

    def backward(self, target: str) -> str | None:
        """Return the TensorFlow name of a parameter; None if the rule does not match."""
        if self.place.target is None:
            return None
        separator = "/" if "/" in self.place.target else "."
        segments = _match_wildcards(self.place.target, target, separator)
        if segments is None:
            return None
        return _fill_wildcards(
            self.pattern, [segment.replace(separator, "/") for segment in segments]
        )


Function = Callable[[str], Any]


@dataclass(frozen=True)
class Rules:
    """Rules of a file, a dictionary, or a function.

    Attributes:
        lines: The rules, in order.
        function: `function(variable_name)` returns the name of the parameter, a pair (name, axes as
            in a rules file), or None to omit the variable.
        keep_names: True to keep all names.
    """

    lines: tuple[Line, ...] = ()
    function: Function | None = None
    keep_names: bool = False

    @classmethod
    def of(cls, rules: object) -> Rules | None:
        """Return the rules in a file, a dictionary or a function; return `Rules` or None unchanged.

        Raises:
            MissingFileError: The file does not exist.
            InvalidConfigError: A line is not a rule, or the argument has another type.
        """
        if rules is None or isinstance(rules, Rules):
            return rules
        if isinstance(rules, str | os.PathLike):
            return parse(_read_rules(os.fspath(rules)), os.fspath(rules))
        if isinstance(rules, Mapping):
            pairs = cast(Mapping[Any, Any], rules)
            return cls(tuple(_parse_line(str(name), str(pairs[name]), str(name)) for name in pairs))
        if callable(rules):
            return cls(function=rules)
        raise InvalidConfigError(
            "rules are the path of a file, a dictionary, or a function of a name, not"
            f" {type(rules).__name__}."
        )

    def place(self, name: str) -> Place | None:
        """Return the destination of the TensorFlow variable `name`, or None if no rule matches.

        If the variable is to be omitted, return `Place(None)`. With `keep_names`, the destination
        has the name `name`.

        Raises:
            InvalidConfigError: The result of `function` is invalid.
        """
        if self.keep_names:
            return Place(name)
        if self.function is not None:
            return _check_returned(name, self.function(name))
        return next(
            (destination for line in self.lines if (destination := line.forward(name))), None
        )

    def name(self, target: str) -> tuple[str, Axes | None] | None:
        """Return (TensorFlow name, axes) for a parameter; None if no rule matches.

        Raises:
            InvalidConfigError: The rules are a function, which cannot be inverted.
        """
        if self.keep_names:
            return target, None
        if self.function is not None:
            raise InvalidConfigError(
                "A function gives parameters for TensorFlow's names and not the other way around:"
                " writing needs rules in a file or a dictionary."
            )
        for line in self.lines:
            # The rules must map the name back to `target`; an earlier line may match it, too.
            name = line.backward(target)
            first = name is not None and self.place(name)
            if name is not None and first and first.target == target:
                return name, line.place.axes
        return None


SAME = Rules(keep_names=True)


def parse(text: str, source: str = "rules") -> Rules:
    """Return the rules in the text of a rules file.

    Args:
        source: The name of the text in errors.

    Raises:
        InvalidConfigError: A line is not a rule; the message has the line number and the reason.
    """
    lines: list[Line] = []
    for line_number, line in enumerate(text.splitlines(), 1):
        rule = line.partition("#")[0].strip()
        if not rule:
            continue
        location = f"{source}, line {line_number}"
        pattern, arrow, right = rule.partition("->")
        if not arrow:
            raise InvalidConfigError(f"{location}: {rule!r} is no rule: it has no '->'.")
        lines.append(_parse_line(pattern.strip(), right.strip(), location))
    return Rules(tuple(lines))


def _read_rules(path: str) -> str:
    """Return the text of the rules file at a path.

    Raises:
        MissingFileError: The file does not exist.
        InvalidConfigError: The file is not UTF-8.
    """
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


def _parse_line(pattern: str, right: str, location: str) -> Line:
    """Return the rule "pattern -> right"; errors (InvalidConfigError) contain `location`."""
    fields = right.split()
    if not pattern or not fields:
        raise InvalidConfigError(
            f"{location}: a rule is 'name -> parameter', not {show_value(right)}."
        )
    target, terms = fields[0], fields[1:]
    rule_text = f"{pattern} -> {right}"
    if target == OMITTED and not terms:
        return Line(pattern, Place(None), rule_text)
    if _WILD.findall(pattern) != _WILD.findall(target):
        raise InvalidConfigError(
            f"{location}: '{rule_text}' has not the same '*' and '**' on both sides, in the same"
            " order."
        )
    return Line(pattern, Place(target, _parse_axes(terms, location)), rule_text)


def _parse_axes(terms: list[str], location: str) -> Axes | None:
    """Return the order of axes that `terms` describe; None for [].

    Args:
        terms: A kind of layer, such as ["dense"] or ["conv2d"], or ["transpose", "1", "0"].
        location: The position of the rule, for errors.

    Raises:
        InvalidConfigError: `terms` is anything else.
    """
    if not terms:
        return None
    if len(terms) == 1 and terms[0] in AXES:
        return AXES[terms[0]]
    if terms[0] == "transpose" and all(word.isdecimal() for word in terms[1:]):
        axes = tuple(map(int, terms[1:]))
        if axes and sorted(axes) == list(range(len(axes))):
            return axes
        raise InvalidConfigError(
            f"{location}: '{' '.join(terms)}' does not name each axis once, from 0."
        )
    advice = did_you_mean(terms[0], [*AXES, "transpose"])
    raise InvalidConfigError(
        f"{location}: '{' '.join(terms)}' is none of {', '.join(AXES)}, or transpose and the"
        f" numbers of axes. {advice}".rstrip()
    )


def _check_returned(name: str, returned: object) -> Place | None:
    """Return the destination that a rule function returned; `Place(None)` omits the variable.

    Raises:
        InvalidConfigError: The function returned another type or unknown axes.
    """
    location = f"the rule for {name!r}"
    match returned:
        case None | str():
            return Place(returned)
        case (str() as target, str() as axes) if isinstance(returned, tuple):
            return Place(target, _parse_axes(axes.split(), location))
        case _:
            raise InvalidConfigError(
                f"{location} returned {returned!r}: expected the name of a parameter, a pair of it"
                " and its axes, such as ('layer.weight', 'dense'), or None."
            )


def _match_wildcards(pattern: str, name: str, separator: str) -> list[str] | None:
    """Return the text of each wildcard in `name`; None if `name` does not match the pattern.

    "*" matches text without `separator`, "**" any text; both match at least one character.
    """
    if len(name) > _MAX_LENGTH:
        return None
    segment = f"([^{re.escape(separator)}]+)"
    segments = [re.escape(piece) for piece in _WILD.split(pattern)]
    kinds = [segment if wild == "*" else "(.+)" for wild in _WILD.findall(pattern)]
    text = "".join(piece + kind for piece, kind in zip(segments, [*kinds, ""], strict=True))
    match = re.fullmatch(text, name, re.DOTALL)
    return None if match is None else list(match.groups())


def _fill_wildcards(pattern: str, segments: list[str]) -> str:
    values = iter(segments)
    return _WILD.sub(lambda _: next(values), pattern)
