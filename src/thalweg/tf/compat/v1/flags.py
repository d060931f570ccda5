"""`tf.flags`: absl's flags, parsed from `sys.argv` when the first is read, as in TensorFlow 1.

Functions that define flags take the names that TensorFlow gave their arguments, too: `flag_name`,
`default_value` and `docstring`.

Early releases of TensorFlow 1 parsed flags without absl, so that a script could define `log_dir`,
`verbosity` or `profile_file`. absl.logging and absl.app define flags of these names. Such a flag is
taken out of `absl.flags.FLAGS` when the program defines its own. The absl modules go on reading
theirs, with its default value.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any


def absl(module: str) -> ModuleType:
    """Return the module `absl.flags` or `absl.app`, for `module` "flags" or "app".

    Raise ImportError if absl-py is not installed.
    """
    try:
        return importlib.import_module(f"absl.{module}")
    except ModuleNotFoundError as error:
        message = f"tf.{module} needs absl-py. Install it with: pip install 'thalweg[tf]'"
        raise ImportError(message, name="absl") from error


class _LibraryFlags:
    """Replacement of `absl.flags.FLAGS` in absl's modules, with removed flags."""

    def __init__(self) -> None:
        self.program_flags: dict[str, Any]
        vars(self)["program_flags"] = {}

    def __getitem__(self, name: str) -> Any:
        return self.program_flags[name] if name in self.program_flags else absl("flags").FLAGS[name]

    def __getattr__(self, name: str) -> Any:
        if name in self.program_flags:
            return self.program_flags[name].value
        return getattr(absl("flags").FLAGS, name)

    def __setattr__(self, name: str, value: object) -> None:
        if name in self.program_flags:
            self.program_flags[name].value = value
        else:
            setattr(absl("flags").FLAGS, name, value)

    def __call__(self, argv: list[str], known_only: bool = False) -> list[str]:
        return absl("flags").FLAGS(argv, known_only)


_library_flags = _LibraryFlags()


def _remove_absl_flag(name: str) -> None:
    """Remove a flag of an absl module from `absl.flags.FLAGS`; absl still reads the removed flag.

    Do nothing if no absl module defines flag `name`.
    """
    app, flags = absl("app"), absl("flags")
    if name.startswith("help"):
        # absl defines these flags as late as in app.run.
        app.define_help_flags()
    module = flags.FLAGS.find_module_defining_flag(name) or ""
    if not module.startswith("absl."):
        return
    _library_flags.program_flags[name] = flags.FLAGS[name]
    delattr(flags.FLAGS, name)
    for reader in {"absl.app", "absl.logging", module} & sys.modules.keys():
        attributes = vars(sys.modules[reader])
        if attributes.get("FLAGS") is flags.FLAGS:
            attributes["FLAGS"] = _library_flags
        for holder in attributes.values():
            if isinstance(holder, flags.FlagHolder) and holder.name == name:
                holder._flagvalues = _library_flags


class _Flags:
    """`absl.flags.FLAGS` that parses `sys.argv` at the first access."""

    def _parse_flags(self) -> Any:
        values = absl("flags").FLAGS
        if not values.is_parsed():
            values(sys.argv)
        return values

    def __getattr__(self, name: str) -> Any:
        # Introspection reads such names; parsing must not depend on it.
        if name.startswith("_"):
            raise AttributeError(name, name=name)
        if hasattr(type(absl("flags").FLAGS), name):
            return getattr(absl("flags").FLAGS, name)
        return getattr(self._parse_flags(), name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(absl("flags").FLAGS, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(absl("flags").FLAGS, name)

    def __call__(self, argv: list[str], known_only: bool = False) -> list[str]:
        return absl("flags").FLAGS(argv, known_only)

    def flag_values_dict(self) -> dict[str, Any]:
        """Return the value of each flag."""
        return self._parse_flags().flag_values_dict()

    def __contains__(self, name: str) -> bool:
        return name in absl("flags").FLAGS

    def __getitem__(self, name: str) -> Any:
        return absl("flags").FLAGS[name]

    def __iter__(self) -> Iterator[str]:
        return iter(absl("flags").FLAGS)

    def __dir__(self) -> list[str]:
        return dir(absl("flags").FLAGS)


FLAGS: Any = _Flags()


_OLDER = {"flag_name": "name", "default_value": "default", "docstring": "help"}


def _with_older_names(define: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function that defines a flag, to accept TensorFlow's older argument names, too.

    The new flag replaces a flag of an absl module with the same name.
    """

    @functools.wraps(define)
    def apply(*args: Any, **kwargs: Any) -> Any:
        # absl assigns a flag to the module that calls `DEFINE_...`, which must not be this module.
        absl("flags").disclaim_key_flags()
        flag_arguments = {_OLDER.get(name, name): value for name, value in kwargs.items()}
        for name in _names_of_flag(args, flag_arguments):
            _remove_absl_flag(name)
        return define(*args, **flag_arguments)

    return apply


def _names_of_flag(args: tuple[Any, ...], flag_arguments: dict[str, Any]) -> list[str]:
    """Return the name and the short name of a flag, given the arguments that define it."""
    first = args[0] if args else flag_arguments.get("name", flag_arguments.get("flag"))
    names = [
        getattr(first, "name", first),
        getattr(first, "short_name", flag_arguments.get("short_name")),
    ]
    return [name for name in names if isinstance(name, str)]


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    attribute = getattr(absl("flags"), name)
    return _with_older_names(attribute) if name.startswith("DEFINE_") else attribute
