"""Targets of loading a checkpoint: a module, or variables by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from thalweg._core.pairs import check_variables, flatten
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.variable import Variable, is_variable, name_of, named_variables


@dataclass(frozen=True)
class TargetTensors:
    """Tensors by name.

    Attributes:
        tensors: All that can be set: parameters, and buffers of a module.
        trained: The names of those that an optimizer may have slots for.
        optional: The names of those that a file need not have.
    """

    tensors: dict[str, Tensor]
    trained: frozenset[str]
    optional: frozenset[str]

    @classmethod
    def of(cls, given: object) -> TargetTensors:
        """Return the tensors of a module, of a dictionary, or of a list of variables.

        Parameters of a module that have no name yet are given theirs, as
        `thalweg.named_variables` does.

        Raises:
            InvalidArgumentError: Two variables of a list have the same name.
            TypeError: One is no variable.
        """
        if isinstance(given, torch.nn.Module):
            return cls._of_module(given)
        if isinstance(given, Mapping):
            named = cast(Mapping[Any, Any], given)
            own = {str(name): named[name] for name in named}
            for name, each in own.items():
                if isinstance(each, Tensor) and not is_variable(each):
                    raise InvalidTypeError(
                        f"{name!r} is a tensor and no variable. Use thalweg.Variable or a leaf that"
                        " requires a gradient."
                    )
            check_variables(list(own.values()))
            named_variables([pair for pair in own.items() if not _has_name(pair[1])])
        else:
            variables = flatten(given)
            check_variables(variables)
            names = [name_of(each).split(":")[0] for each in variables]
            repeated = [name for name in dict.fromkeys(names) if names.count(name) > 1]
            if repeated:
                raise InvalidArgumentError(
                    f"{names.count(repeated[0])} variables are called {repeated[0]!r}. Give a"
                    " dictionary of variables by name, or names by"
                    " thalweg.named_variables(module)."
                )
            own = dict(zip(names, variables, strict=True))
        return cls(own, frozenset(own), frozenset())

    @classmethod
    def _of_module(cls, module: torch.nn.Module) -> TargetTensors:
        parameters = dict(module.named_parameters())
        named_variables([pair for pair in parameters.items() if not _has_name(pair[1])])
        kept = module.state_dict(keep_vars=True).keys()
        buffers = {name: own for name, own in module.named_buffers() if name in kept}
        counters = {name for name, own in buffers.items() if not own.is_floating_point()}
        return cls({**parameters, **buffers}, frozenset(parameters), frozenset(counters))


def _has_name(tensor: Tensor) -> bool:
    return isinstance(tensor, Variable) or hasattr(tensor, "_thalweg_name")
