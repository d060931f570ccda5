"""Keras' eight optimizers by their own names, with TensorFlow's numbers.

Arguments, defaults and documentation are those of the classes of `thalweg.keras.optimizers`.
"""

# Keras has no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, cast

import keras

from thalweg.integrations.keras3.optimizer import FusedOptimizer
from thalweg.integrations.keras3.schedules import for_thalweg, plain
from thalweg.keras import optimizers

P = ParamSpec("P")
# What a class of thalweg takes beyond the arguments it names; all else is Keras'.
_KEYWORDS = {"clipnorm", "clipvalue", "global_clipnorm", "decay", "schedule_decay"}
_registered = cast(Any, keras.saving.register_keras_serializable(package="thalweg"))


class NamedOptimizer(FusedOptimizer, Generic[P]):
    """Base class of the eight optimizers; defines `get_config` and `from_config`."""

    if TYPE_CHECKING:

        def __init__(self, *args: P.args, **kwargs: P.kwargs) -> None: ...

    def get_config(self) -> dict[str, Any]:
        """Return the configuration: the arguments of the constructor, by name."""
        config = cast("dict[str, Any]", keras.optimizers.Optimizer.get_config(self))
        wrapped_config = plain(self.wrapped)
        if isinstance(self.wrapped, optimizers.Nadam):
            wrapped_config["schedule_decay"] = wrapped_config.pop("decay")
        return {**wrapped_config, **config}

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None
    ) -> Self:
        """Return an optimizer from a configuration; Keras' registry resolves schedules."""
        return cast(Self, super(FusedOptimizer, cls).from_config(dict(config), custom_objects))


def _documentation(wrapped: object) -> str:
    """Return the docstring of the class `wrapped` without its example."""
    text = re.sub(r"Example:\n(?:(?: .*)?\n)*", "", inspect.getdoc(wrapped) or "")
    return f"{text}\n\n`**kwargs` also takes the options of `FusedOptimizer`."


def _over(wrapped: Callable[P, optimizers.Optimizer]) -> type[NamedOptimizer[P]]:
    """Return a Keras class that wraps an optimizer of the class `wrapped`.

    The constructor has the arguments of `wrapped` and Keras' options. A subclass in this module
    gets the documentation of `wrapped`, and is registered with Keras.
    """
    arguments = inspect.signature(wrapped)
    names = _KEYWORDS | arguments.parameters.keys()

    class Over(NamedOptimizer[P]):
        def __init_subclass__(cls, **kwargs: object) -> None:
            super().__init_subclass__(**kwargs)
            if cls.__module__ == __name__:
                cls.__doc__ = _documentation(wrapped)
                _registered(cls)

        @wraps(wrapped.__init__)
        def __init__(self, *args: object, **kwargs: object) -> None:
            bound = arguments.bind(*args, **{key: kwargs[key] for key in kwargs if key in names})
            if "learning_rate" in bound.arguments:
                bound.arguments["learning_rate"] = for_thalweg(bound.arguments["learning_rate"])
            keras_options: Any = {key: kwargs[key] for key in kwargs if key not in names}
            FusedOptimizer.__init__(self, wrapped(*bound.args, **bound.kwargs), **keras_options)

    return Over


class SGD(_over(optimizers.SGD)): ...


class Adam(_over(optimizers.Adam)): ...


class Adamax(_over(optimizers.Adamax)): ...


class Nadam(_over(optimizers.Nadam)): ...


class Adagrad(_over(optimizers.Adagrad)): ...


class Adadelta(_over(optimizers.Adadelta)): ...


class RMSprop(_over(optimizers.RMSprop)): ...


class Ftrl(_over(optimizers.Ftrl)): ...
