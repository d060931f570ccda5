"""`tf.flags`: absl's flags, parsed from `sys.argv` when the first is read, as in TensorFlow 1.

Functions that define flags take the names that TensorFlow gave their arguments, too: `flag_name`,
`default_value` and `docstring`.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any


def absl(module: str) -> ModuleType:
    """`absl.flags` or `absl.app`.

    Raises:
        ImportError: absl-py is not installed.
    """
    try:
        return importlib.import_module(f"absl.{module}")
    except ModuleNotFoundError as error:
        message = f"tf.{module} needs absl-py. Install it with: pip install 'thalweg[tf]'"
        raise ImportError(message, name="absl") from error


class _Flags:
    """`absl.flags.FLAGS`, which parses `sys.argv` when it is read and was not parsed before."""

    def _parse_flags(self) -> Any:
        values = absl("flags").FLAGS
        if not values.is_parsed():
            values(sys.argv)
        return values

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # no flag is called so, and who looks at an object asks for such
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
        """The value of each flag."""
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


def _with_older_names(define: Callable[..., object]) -> Callable[..., object]:
    """A function that defines a flag, with the older names of its arguments."""

    @functools.wraps(define)
    def apply(*args: object, **kwargs: object) -> object:
        absl("flags").disclaim_key_flags()  # the flag is of the module that calls
        return define(*args, **{_OLDER.get(name, name): each for name, each in kwargs.items()})

    return apply


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    found = getattr(absl("flags"), name)
    return _with_older_names(found) if name.startswith("DEFINE_") else found
