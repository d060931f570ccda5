"""Modules under TensorFlow's names that show what other modules have."""

from __future__ import annotations

from types import ModuleType
from typing import Any


class View(ModuleType):
    """A module in which every name is that of another module or object, looked up when asked for.

    Args:
        name: The name under which it is imported.
        shown: What it shows.
    """

    def __init__(self, name: str, shown: object) -> None:
        super().__init__(name, getattr(shown, "__doc__", None))
        self.__dict__["_shown"] = shown

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__version__":
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}", name=name)
        return getattr(self.__dict__["_shown"], name)

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *dir(self._shown)})


class MergedModules:
    """An object that has the names of several modules; the first that has one gives it.

    Args:
        title: What messages call it.
        places: The modules.
        own: Names that none of them has.
    """

    def __init__(self, title: str, places: list[object], own: dict[str, object]) -> None:
        self.__dict__.update(own)
        self._title, self._places = title, places

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__"):
            for place in self._places:
                try:
                    return getattr(place, name)
                except AttributeError:
                    continue
        message = (
            f"thalweg has no {self._title}.{name}: the module is private to TensorFlow, and only"
            " names that are public elsewhere too are found in it. Look for a function of"
            " tf.compat.v1, or of torch."
        )
        raise AttributeError(message, name=name)

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *(name for place in self._places for name in dir(place))})
