"""Names of optimizer classes, and of functions among their arguments, in files.

Each front end registers its names when it is imported. So writers of files need no front end, and
readers import the front ends that a file names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeGuard

# Importers of front ends, by name; filled by the package.
faces: dict[str, Callable[[], object]] = {}


class Names:
    """Registry of classes or functions for one purpose, with their names in files.

    Args:
        description: The phrase for an unregistered object in messages, such as "the learning rate".
    """

    def __init__(self, description: str = "") -> None:
        self.words = description
        self._things: dict[str, Any] = {}
        self._names: dict[Any, str] = {}

    def add(self, name: str, entry: object, *aliases: object) -> None:
        """Register a class or function under its name in files.

        Args:
            name: The name. An entry may have several names; files contain the first.
            entry: The class or function that `find(name)` returns.
            aliases: Classes or functions that are written to files as `name`, too.

        Raises:
            ValueError: Another class or function has this name.
        """
        if self._things.setdefault(name, entry) is not entry:
            raise ValueError(
                f"{name!r} is registered for {self._things[name]!r} and cannot name {entry!r}."
            )
        for alias in (entry, *aliases):
            self._names.setdefault(alias, name)

    def add_all(self, prefix: str, entries: Iterable[Any]) -> None:
        """Register classes or functions as `prefix` + `__name__`."""
        for entry in entries:
            self.add(prefix + entry.__name__, entry)

    def load_all(self) -> dict[str, Any]:
        """Import all front ends; return {name: class or function}."""
        for load in faces.values():
            load()
        return dict(self._things)

    def name_of(self, entry: object) -> str | None:
        """Return the name of a class or function in files; None if it is not registered."""
        return self._names.get(entry)

    def find(self, name: str) -> Any:
        """Return the class or function with this name in files; None if there is none.

        Front ends are imported until the name is registered. The front end in the name comes first,
        such as "keras" for "keras:x".
        """
        # False sorts before True: the front end in the name comes first.
        for face in sorted(faces, key=lambda face: not name.startswith(f"{face}:")):
            if name in self._things:
                break
            faces[face]()
        return self._things.get(name)


OPTIMIZERS = Names()
RATES = Names("the learning rate")
LOSS_SCALERS = Names("your loss scaler")


class Configurable:
    """Base class of optimizers and training steps that are saved to files.

    Subclasses define `_locked()`, `_arguments()`, `_saved(names)` and `_loading(state, variables,
    names)`.

    Attributes:
        _needs_variables: True if slots are loaded for existing variables only.
    """

    __slots__ = ()
    _needs_variables: ClassVar[bool] = False


class Argument:
    """Base class of optimizers' arguments that files describe by a constructor call."""

    __slots__ = ()

    def _made_by(self) -> tuple[Names, object] | None:
        """Return the registry and the class or function that made it; None if unknown."""
        raise NotImplementedError

    def _arguments(self) -> Mapping[str, object]:
        """Return the arguments of the constructor call, by name."""
        raise NotImplementedError

    def _keeps(self) -> Sequence[object]:
        """Return the stateful objects to save, which have `state_dict` and `load_state_dict`."""
        return ()


def is_argument(value: object) -> TypeGuard[Argument]:
    """Return True if a value has the methods of `Argument`, by which files describe it."""
    return hasattr(type(value), "_made_by")
