"""Targets of loading a checkpoint: a module, or variables by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from thalweg._core.grads_and_vars import check_variables, flatten
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.variable import Variable, is_variable, name_of, named_variables


@dataclass(frozen=True)
class TargetTensors:
    """Tensors to set, by name.

    Attributes:
        tensors: All that can be set: variables, or parameters and buffers of a module.
        trained: The names of those that an optimizer may have slots for.
        optional: The names of those that a file may lack.
    """

    tensors: dict[str, Tensor]
    trained: frozenset[str]
    optional: frozenset[str]

    @classmethod
    def of(cls, module_or_variables: object) -> TargetTensors:
        """Return the tensors of a module, of a dictionary, or of a list of variables.

        Parameters of a module that have no name yet are named, as by `thalweg.named_variables`.

        Raises:
            InvalidArgumentError: Two variables of a list have the same name.
            TypeError: An element is not a variable.
        """
        if isinstance(module_or_variables, torch.nn.Module):
            return cls._of_module(module_or_variables)
        if isinstance(module_or_variables, Mapping):
            mapping = cast(Mapping[Any, Any], module_or_variables)
            tensors = {str(name): mapping[name] for name in mapping}
            for name, tensor in tensors.items():
                if isinstance(tensor, Tensor) and not is_variable(tensor):
                    raise InvalidTypeError(
                        f"{name!r} is a tensor and no variable. Use thalweg.Variable or a leaf that"
                        " requires a gradient."
                    )
            check_variables(list(tensors.values()))
            named_variables([pair for pair in tensors.items() if not _has_name(pair[1])])
        else:
            variables = flatten(module_or_variables)
            check_variables(variables)
            names = [name_of(variable).split(":")[0] for variable in variables]
            duplicates = [name for name in dict.fromkeys(names) if names.count(name) > 1]
            if duplicates:
                raise InvalidArgumentError(
                    f"{names.count(duplicates[0])} variables are called {duplicates[0]!r}. Give a"
                    " dictionary of variables by name, or names by"
                    " thalweg.named_variables(module)."
                )
            tensors = dict(zip(names, variables, strict=True))
        return cls(tensors, frozenset(tensors), frozenset())

    @classmethod
    def _of_module(cls, module: torch.nn.Module) -> TargetTensors:
        """Return parameters and buffers of a module; its parameters get names."""
        parameters = dict(module.named_parameters())
        named_variables([pair for pair in parameters.items() if not _has_name(pair[1])])
        saved_names = module.state_dict(keep_vars=True).keys()
        buffers = {name: buffer for name, buffer in module.named_buffers() if name in saved_names}
        counters = {name for name, buffer in buffers.items() if not buffer.is_floating_point()}
        return cls({**parameters, **buffers}, frozenset(parameters), frozenset(counters))


def _has_name(tensor: Tensor) -> bool:
    return isinstance(tensor, Variable) or hasattr(tensor, "_thalweg_name")
