"""Modules under TensorFlow's names with the contents of other modules."""

from __future__ import annotations

from types import ModuleType
from typing import Any


class View(ModuleType):
    """Module that looks up each name in another module or object, on access.

    Args:
        name: The name under which the view is imported.
        target: The other module or object.
    """

    def __init__(self, name: str, target: object) -> None:
        super().__init__(name, getattr(target, "__doc__", None))
        self.__dict__["_shown"] = target

    def __getattr__(self, name: str) -> Any:
        # The import system looks for names such as `__path__`, which belong to the other module.
        if name.startswith("__") and name != "__version__":
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}", name=name)
        return getattr(self.__dict__["_shown"], name)

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *dir(self._shown)})


class MergedModules:
    """Object with the names of several modules; the first module with a name is used.

    Args:
        extras: {name: value} of further names.
    """

    def __init__(self, full_name: str, modules: list[object], extras: dict[str, object]) -> None:
        self.__dict__.update(extras)
        self._full_name, self._modules = full_name, modules

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__"):
            for module in self._modules:
                try:
                    return getattr(module, name)
                except AttributeError:
                    continue
        message = (
            f"thalweg has no {self._full_name}.{name}: the module is private to TensorFlow, and"
            " only names that are public elsewhere too are found in it. Look for a function of"
            " tf.compat.v1, or of torch."
        )
        raise AttributeError(message, name=name)

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *(name for module in self._modules for name in dir(module))})
