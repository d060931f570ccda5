"""Lookup of names of TensorFlow in `thalweg.tf`: present, different, or missing."""

from __future__ import annotations

import functools
import inspect
import re
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Literal, NamedTuple

import torch

from thalweg import tf
from thalweg._cli.scan.name_usage import CallArguments, Path, Use
from thalweg.errors import ThalwegError
from thalweg.tf import private_modules
from thalweg.tf.behavior_differences import CHANGED
from thalweg.tf.missing import INSTEAD
from thalweg.tf.module_views import MergedModules
from thalweg.v1.missing import INSTEAD as OF_VERSION_1

State = Literal["there", "changed", "missing"]
V1: Path = ("compat", "v1")
PRIVATE: Path = ("python",)


class Reached(NamedTuple):
    """Object of a dotted name.

    Attributes:
        value: The object, if all of the name is there.
        missing: The beginning of the name that has no object; empty if all is there.
        words: The facade's message about it.
    """

    value: Any
    missing: Path
    words: str


class Verdict(NamedTuple):
    """Verdict on a name.

    Attributes:
        state: "there", "changed" or "missing".
        name: The name, or the beginning of it that is missing.
        words: How it differs, or what to use instead; empty if it is there.
    """

    state: State
    name: Path
    words: str


@functools.cache
def reached(path: Path) -> Reached:
    """Look a name up as Python does, attribute by attribute."""
    found: Any = tf
    for depth, name in enumerate(path, start=1):
        # Attributes of other objects, such as flags, are no names of TensorFlow.
        if not isinstance(found, ModuleType | type | torch.dtype):
            break
        try:
            found = getattr(found, name)
        except (AttributeError, ImportError, ThalwegError) as error:
            return Reached(None, *_missing(path, depth, error))
    return Reached(found, (), "")


def _missing(path: Path, depth: int, error: Exception) -> tuple[Path, str]:
    """How much of the name is missing, and what to use: by the longest beginning that is known."""
    own = path[2:] if path[:2] == V1 else path
    first = len(path) - len(own)
    for length in range(len(own), depth - first - 1, -1):
        words = _instead(own[:length])
        if words:
            return path[: first + length], words
    said = str(error).rstrip(".")
    if "; " in said:
        return path[:depth], said.partition("; ")[2].rpartition("for the rest ")[2]
    # What Keras lacks may be of TensorFlow 1, as tf.losses is.
    return path[:depth], _instead(own[: depth - first - 1]) or said


def _instead(path: Path) -> str:
    name = ".".join(path)
    return INSTEAD.get(name) or OF_VERSION_1.get(name) or ""


# What TensorFlow 2 has, too, where the facade has it in `tf.compat.v1` alone.
_IN_BOTH = {
    "device",
    "get_logger",
    "python",
    "random_normal_initializer",
    "random_uniform_initializer",
    "tuple",
    *(("summary", name) for name in ("histogram", "image", "scalar", "text")),
}


def _is_of_keras(path: Path) -> bool:
    """Return whether it may be a class of Keras', which `tf` has in these modules in TensorFlow
    2.
    """
    module, last = path[:1], path[1:2]
    is_class = not last or last[0][:1].isupper()
    return is_class and module in (("initializers",), ("losses",), ("metrics",))


def is_of_version_1(path: Path) -> bool:
    """Return True if TensorFlow 1 alone has the name where the script uses it."""
    head = path[:1]
    if path[:2] == V1:
        return True
    if not head or head[0] in vars(tf) or head[0] in _IN_BOTH or path[:2] in _IN_BOTH:
        return False
    if head[0] in vars(tf.compat.v1):
        return not _is_of_keras(path)
    known = head[0] in OF_VERSION_1 and head[0] not in INSTEAD
    return known and bool(reached(head).missing)


def verdict(use: Use, version_1: bool) -> Verdict:
    """Return the verdict on a name in a script.

    Args:
        use: The name, and how it is used.
        version_1: Whether the script is for TensorFlow 1: its `tf` is `tf.compat.v1`.
    """
    if version_1 and use.path[:1] != V1[:1]:
        older = use._replace(path=(*V1, *use.path))
        if not reached(older.path).missing:
            state, name, words = _verdict(older)
            return Verdict(state, name[len(V1) :], words)
    return _verdict(use)


def private_verdict(use: Use) -> Verdict:
    """Return the verdict on a name in TensorFlow's private modules, some of which scripts
    import.
    """
    found: Any = private_modules.module("tensorflow.python")
    for depth, name in enumerate(use.path[1:], start=2):
        if not isinstance(found, ModuleType | MergedModules):
            break
        module = ".".join(("tensorflow", *use.path[:depth]))
        try:
            found = (
                private_modules.module(module)
                if private_modules.has(module)
                else getattr(found, name)
            )
        except AttributeError:
            if use.caught:
                return Verdict("changed", use.path[:depth], "missing, which the script catches")
            return Verdict("missing", use.path[:depth], _instead(PRIVATE))
    return Verdict("changed", PRIVATE, "there by `import tensorflow` alone: python -m thalweg.tf")


def _verdict(use: Use) -> Verdict:
    found = reached(use.path)
    if found.missing:
        if use.caught:
            return Verdict("changed", found.missing, "missing, which the script catches")
        return Verdict("missing", found.missing, found.words)
    if use.module is not None and not _importable(use.module):
        last, whole = use.path[-1], title(use.path)
        return Verdict("changed", use.path, f"no module to import from: write {last} = {whole}")
    if use.call is not None:
        refused = _wrong(found.value, use.call)
        if refused:
            return Verdict("missing", use.path, refused)
        ignored = _ignored(found.value, use.call)
        if ignored:
            return Verdict("changed", use.path, ignored)
    name, words = differs(use.path)
    return Verdict("changed" if words else "there", name, words)


def title(path: Path) -> str:
    """Return the name as a script has it."""
    return ".".join(("tf", *path))


def differs(path: Path) -> tuple[Path, str]:
    """Return the difference of an existing name, or of the beginning of it, from TensorFlow's.

    Returns:
        The name, and the words; empty if it does not differ.
    """
    own = path[2:] if path[:2] == V1 else path
    for length in range(len(own), 0, -1):
        words = CHANGED.get(".".join(own[:length]))
        if words is not None:
            return (path[: length + len(path) - len(own)] if words else path), words
    value = reached(path).value
    home = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    if str(home).partition(".")[0] == "keras":
        return path[: 1 + len(path) - len(own)], "Keras 3, on its torch backend"
    whole = inspect.unwrap(value) if callable(value) else value
    same = (words for words, other in _by_object() if other is whole)
    return path, next(same, "")


@functools.cache
def _by_object() -> tuple[tuple[str, object], ...]:
    """What differs under one name differs under another too."""
    found: list[tuple[str, Any]] = []
    for name, words in CHANGED.items():
        value = reached(tuple(name.split("."))).value
        if isinstance(value, ModuleType):  # without what it imports for its own use
            several = [getattr(value, each) for each in getattr(value, "__all__", vars(value))]
        else:
            several = [value]
        found += [(words, each) for each in several if inspect.isfunction(each)]
    return tuple(found)


@functools.cache
def _importable(module: Path) -> bool:
    try:
        return find_spec(".".join(("thalweg", "tf", *module))) is not None
    except ModuleNotFoundError:
        return False


# Calls


def _places(function: object) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, _EITHER)
    return [each.name for each in _signature(function).parameters.values() if each.kind in kinds]


def _wrong(function: object, call: CallArguments) -> str:
    """Which arguments of the call are not taken; empty if all are."""
    try:
        parameters = _signature(function).parameters.values()
    except (TypeError, ValueError):
        return ""
    kinds = {each.kind for each in parameters}
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        named = {each.name for each in parameters if each.kind is not each.POSITIONAL_ONLY}
        unknown = [name for name in call.keywords if name not in named]
        if unknown:
            return f"takes no argument {', '.join(map(repr, unknown))}"
    places = _places(function)
    if inspect.Parameter.VAR_POSITIONAL not in kinds and call.positional > len(places):
        return f"takes {len(places)} arguments by position, not {call.positional}"
    return ""


def _signature(function: Any) -> inspect.Signature:
    """The arguments that a function takes, which may be others than those of what it wraps."""
    found = inspect.signature(function, follow_wrapped=False)
    takes_all = any(each.kind is each.VAR_KEYWORD for each in found.parameters.values())
    wrapped = getattr(function, "__wrapped__", None)
    return _signature(wrapped) if takes_all and wrapped is not None else found


_EITHER = inspect.Parameter.POSITIONAL_OR_KEYWORD


def _ignored(function: object, call: CallArguments) -> str:
    """Which arguments of the call its docstring calls ignored."""
    document = " ".join(filter(None, (inspect.getdoc(function), _of_constructor(function))))
    ignored = set(re.findall(r"(\w+): (?:Optional\. )?Ignored\b", document))
    for others in re.findall(r": (?:Optional\. )?Ignored,? as (?:is|are) ([^:.]*)", document):
        ignored |= set(re.findall(r"`(\w+)`", others))
    given = [name for name in call.keywords if name in ignored]
    return f"ignores {', '.join(map(repr, given))}" if given else ""


def _of_constructor(function: object) -> str | None:
    return inspect.getdoc(function.__init__) if isinstance(function, type) else None
