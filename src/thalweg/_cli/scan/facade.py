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
    """Result of looking up a dotted name.

    Attributes:
        value: The object, if the full name exists.
        missing: The shortest missing prefix of the name; empty if the full name exists.
        words: Advice about the missing name; empty if the full name exists.
    """

    value: Any
    missing: Path
    words: str


class Verdict(NamedTuple):
    """State of a name of TensorFlow in `thalweg.tf`, with advice.

    Attributes:
        state: "there", "changed" (unlike TensorFlow) or "missing".
        name: The full name, or the missing prefix of the name.
        words: The difference, or the replacement; empty if the name exists unchanged.
    """

    state: State
    name: Path
    words: str


@functools.cache
def reached(path: Path) -> Reached:
    """Look up a dotted name in `thalweg.tf`; `path` has the parts of the name."""
    target: Any = tf
    for depth, name in enumerate(path, start=1):
        # Attributes of other objects, such as flags, are not names of TensorFlow.
        if not isinstance(target, ModuleType | type | torch.dtype):
            break
        try:
            target = getattr(target, name)
        except (AttributeError, ImportError, ThalwegError) as error:
            return Reached(None, *_missing(path, depth, error))
    return Reached(target, (), "")


def _missing(path: Path, depth: int, error: Exception) -> tuple[Path, str]:
    """Find advice about a missing name; return (missing prefix of the name, advice).

    The prefix of `depth` parts is the shortest that is missing. Return the longest missing prefix
    for which advice exists. If there is none, return the shortest missing prefix with advice about
    an existing prefix, or with the message of `error`.
    """
    short_path = path[2:] if path[:2] == V1 else path
    # Advice is listed for names without the prefix `compat.v1`.
    first = len(path) - len(short_path)
    for length in range(len(short_path), depth - first - 1, -1):
        words = _instead(short_path[:length])
        if words:
            return path[: first + length], words
    message = str(error).rstrip(".")
    if "; " in message:
        return path[:depth], message.partition("; ")[2].rpartition("for the rest ")[2]
    # A name that Keras lacks may belong to TensorFlow 1, such as tf.losses.
    return path[:depth], _instead(short_path[: depth - first - 1]) or message


def _instead(path: Path) -> str:
    name = ".".join(path)
    return INSTEAD.get(name) or OF_VERSION_1.get(name) or ""


# Names of both versions that the facade has only in `tf.compat.v1`.
_SHARED_NAMES = {
    "device",
    "get_logger",
    "python",
    "random_normal_initializer",
    "random_uniform_initializer",
    "tuple",
    *(("summary", name) for name in ("histogram", "image", "scalar", "text")),
}


def _is_of_keras(path: Path) -> bool:
    """Return True if a name may be a Keras class in a module of TensorFlow 2."""
    module, class_name = path[:1], path[1:2]
    is_class = not class_name or class_name[0][:1].isupper()
    return is_class and module in (("initializers",), ("losses",), ("metrics",))


def is_of_version_1(path: Path) -> bool:
    """Return True if only TensorFlow 1 has the name."""
    head = path[:1]
    if path[:2] == V1:
        return True
    if not head or head[0] in vars(tf) or head[0] in _SHARED_NAMES or path[:2] in _SHARED_NAMES:
        return False
    if head[0] in vars(tf.compat.v1):
        return not _is_of_keras(path)
    has_advice = head[0] in OF_VERSION_1 and head[0] not in INSTEAD
    return has_advice and bool(reached(head).missing)


def verdict(use: Use, version_1: bool) -> Verdict:
    """Return the verdict on a name in a script.

    Args:
        use: The use of the name.
        version_1: True if the script is for TensorFlow 1: `tf` then means `tf.compat.v1`.
    """
    if version_1 and use.path[:1] != V1[:1]:
        older = use._replace(path=(*V1, *use.path))
        if not reached(older.path).missing:
            state, name, words = _verdict(older)
            return Verdict(state, name[len(V1) :], words)
    return _verdict(use)


def private_verdict(use: Use) -> Verdict:
    """Return the verdict on a name below `tensorflow.python`."""
    target: Any = private_modules.module("tensorflow.python")
    for depth, name in enumerate(use.path[1:], start=2):
        if not isinstance(target, ModuleType | MergedModules):
            break
        module = ".".join(("tensorflow", *use.path[:depth]))
        try:
            target = (
                private_modules.module(module)
                if private_modules.has(module)
                else getattr(target, name)
            )
        except AttributeError:
            if use.caught:
                return Verdict("changed", use.path[:depth], "missing, which the script catches")
            return Verdict("missing", use.path[:depth], _instead(PRIVATE))
    return Verdict("changed", PRIVATE, "there by `import tensorflow` alone: python -m thalweg.tf")


def _verdict(use: Use) -> Verdict:
    lookup = reached(use.path)
    if lookup.missing:
        if use.caught:
            return Verdict("changed", lookup.missing, "missing, which the script catches")
        return Verdict("missing", lookup.missing, lookup.words)
    if use.module is not None and not _importable(use.module):
        short_name, full_name = use.path[-1], title(use.path)
        return Verdict(
            "changed", use.path, f"no module to import from: write {short_name} = {full_name}"
        )
    if use.call is not None:
        objection = _wrong(lookup.value, use.call)
        if objection:
            return Verdict("missing", use.path, objection)
        ignored = _ignored(lookup.value, use.call)
        if ignored:
            return Verdict("changed", use.path, ignored)
    name, words = differs(use.path)
    return Verdict("changed" if words else "there", name, words)


def title(path: Path) -> str:
    """Return a path as a dotted name that begins with tf."""
    return ".".join(("tf", *path))


def differs(path: Path) -> tuple[Path, str]:
    """Find the documented difference from TensorFlow of an existing name.

    Returns:
        (name or prefix to which the difference belongs, text about the difference). Without a
        difference, (name, "").
    """
    short_path = path[2:] if path[:2] == V1 else path
    for length in range(len(short_path), 0, -1):
        words = CHANGED.get(".".join(short_path[:length]))
        if words is not None:
            return (path[: length + len(path) - len(short_path)] if words else path), words
    value = reached(path).value
    module_name = (
        value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    )
    if str(module_name).partition(".")[0] == "keras":
        return path[: 1 + len(path) - len(short_path)], "Keras 3, on its torch backend"
    function = inspect.unwrap(value) if callable(value) else value
    matches = (words for words, listed_object in _by_object() if listed_object is function)
    return path, next(matches, "")


@functools.cache
def _by_object() -> tuple[tuple[str, object], ...]:
    """Return (text about a difference from TensorFlow, function) pairs from `CHANGED`."""
    pairs: list[tuple[str, Any]] = []
    for name, words in CHANGED.items():
        value = reached(tuple(name.split("."))).value
        # Without the module's own imports.
        if isinstance(value, ModuleType):
            objects = [
                getattr(value, attribute) for attribute in getattr(value, "__all__", vars(value))
            ]
        else:
            objects = [value]
        pairs += [(words, member) for member in objects if inspect.isfunction(member)]
    return tuple(pairs)


@functools.cache
def _importable(module: Path) -> bool:
    try:
        return find_spec(".".join(("thalweg", "tf", *module))) is not None
    except ModuleNotFoundError:
        return False


def _wrong(function: object, call: CallArguments) -> str:
    """Return the reason why a call has invalid arguments; "" if `function` accepts all."""
    try:
        parameters = _signature(function).parameters.values()
    except (TypeError, ValueError):
        return ""
    kinds = {parameter.kind for parameter in parameters}
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        keyword_names = {
            parameter.name
            for parameter in parameters
            if parameter.kind is not parameter.POSITIONAL_ONLY
        }
        unknown = [name for name in call.keywords if name not in keyword_names]
        if unknown:
            return f"takes no argument {', '.join(map(repr, unknown))}"
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    count = sum(parameter.kind in by_position for parameter in parameters)
    if inspect.Parameter.VAR_POSITIONAL not in kinds and call.positional > count:
        return f"takes {count} arguments by position, not {call.positional}"
    return ""


def _signature(function: Any) -> inspect.Signature:
    """Return a function's signature. For a wrapper with `**kwargs`, use the wrapped function."""
    signature = inspect.signature(function, follow_wrapped=False)
    has_var_keyword = any(
        parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values()
    )
    wrapped = getattr(function, "__wrapped__", None)
    return _signature(wrapped) if has_var_keyword and wrapped is not None else signature


def _ignored(function: object, call: CallArguments) -> str:
    """Describe arguments of the call that the function ignores by its docstring, or return ""."""
    documented = (function, *((function.__init__,) if isinstance(function, type) else ()))
    document = " ".join(" ".join(filter(None, map(inspect.getdoc, documented))).split())
    entries = re.findall(r"((?:\w+, )*\w+): (?:Optional\. )?Ignored\b", document)
    entries += re.findall(r"((?:`\w+`(?:, | and ))*`\w+`) (?:is|are) ignored[.;,]", document)
    ignored = {name for names in entries for name in re.findall(r"\w+", names)}
    ignored_names = [name for name in call.keywords if name in ignored]
    return f"ignores {', '.join(map(repr, ignored_names))}" if ignored_names else ""
