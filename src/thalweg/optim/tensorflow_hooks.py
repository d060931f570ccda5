"""Steps with TensorFlow's arithmetic. Parameters of one group with equal scalars share a *key*."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg._base.locks import importing
from thalweg._base.scalars import product
from thalweg._core.device_scalars import device_derived_scalars
from thalweg._core.grads_and_vars import Pair
from thalweg._core.hyperparameters import as_hyper, as_number, as_step_scalar
from thalweg._core.step_adapter import Dtype
from thalweg._core.step_scalars import derived
from thalweg._core.vectors import TORCH, pick_members, without_denormals
from thalweg._engines import compute_dtype
from thalweg.errors import InvalidArgumentError
from thalweg.optim.group_options import title_of
from thalweg.optim.param_scalars import STEP
from thalweg.optim.param_state import AnyColumn, ParamState
from thalweg.optim.step_adapter import ParamGroupAdapter


class TensorFlowStepAdapter(ParamGroupAdapter):
    """Adapter of one step of a `RuleOptimizer`.

    TensorFlow counts the steps of an optimizer. So the numbers of all parameters change, even
    without a gradient.

    Args:
        optimizer, param_state, params, group_indices: As in `ParamGroupAdapter`, for all
            parameters.
        members: Indices of the parameters that have a gradient; by default of all.
    """

    def __init__(
        self,
        optimizer: object,
        param_state: ParamState,
        params: Sequence[Tensor],
        group_indices: Sequence[int],
        members: Sequence[int] | None = None,
    ) -> None:
        super().__init__(optimizer, param_state, params, group_indices)
        self._members = range(len(params)) if members is None else members

    @property
    def owner_places(self) -> Sequence[int]:
        return [self.places[member] for member in self._members]

    def check_pairs(self, pairs: Sequence[Pair], narrow: bool) -> None:
        """Raise if shapes, dtypes or memory of the pairs are invalid.

        Also raise if a parameter is complex and the rule is not linear. `narrow` is True to accept
        16-bit gradients of float32 variables.
        """
        param_pairs = [(grad, self._real.get(id(var), var)) for grad, var in pairs]
        unreal = [(grad, var) for grad, var in param_pairs if var.is_complex()]
        if unreal and not self.part.rule.linear:
            with importing:
                from thalweg._core.complex_variables import not_defined
            var = unreal[0][1]
            raise not_defined(self.part.rule, var, self.names_of([var])[0])
        super().check_pairs(pairs, narrow)

    def group_variables(
        self, variables: Sequence[Tensor], gradients: Sequence[object]
    ) -> list[Hashable] | None:
        keys = self._keys
        return None if keys is None else [keys[member] for member in self._members]

    def scalars_of(self, dtype: Dtype, group: Hashable) -> dict[str, Any]:
        """Return {name: scalar} in a compute dtype, for the parameters with the key `group`.

        Numbers on a GPU are one tensor with an element for each parameter with a gradient.
        """
        scalars = self._scalars_of_all(dtype, group)
        if self.there is None or len(self._members) == len(self._params):
            return scalars
        members = self._members
        return {
            name: pick_members(x, members) if isinstance(x, Tensor) and x.dim() else x
            for name, x in scalars.items()
        }

    def _scalars_of_all(self, dtype: Dtype, group: Hashable) -> dict[str, Any]:
        """Return the scalars of all parameters, also of those without a gradient."""
        if (dtype, group) not in self.scalars_by_key:
            self.scalars_by_key[dtype, group] = self.prepare_scalars(dtype, group)
        return self.scalars_by_key[dtype, group]

    def prepare_scalars(self, dtype: Dtype, key: Hashable) -> dict[str, Any]:
        """Return {name: scalar} in a compute dtype, for the parameters with the key `key`.

        Tensors have an element for each parameter, even without a gradient.
        """
        rule = self.part.rule
        group_index, state_scalars = self.split_key(key)
        values = self.hypers(dtype, group_index)
        step = state_scalars.pop(STEP)
        for name, state_scalar in state_scalars.items():
            values[name] = (
                state_scalar.to(TORCH[dtype])
                if isinstance(state_scalar, Tensor)
                else dtype(state_scalar)
            )
        values |= {name: dtype(state_scalar) for name, state_scalar in self.in_common.items()}
        if self.there is not None:
            return device_derived_scalars(rule, values, dtype, step + 1, self.there)
        return derived(rule, values, dtype, step + 1)

    def hypers(self, dtype: Dtype, group_index: int) -> dict[str, Any]:
        """Return the hyperparameters of a group as scalars of a compute dtype.

        Raises:
            InvalidArgumentError: A hyperparameter is NaN; the message has its name.
        """
        hypers = self._hypers_of_group(group_index)
        return {name: self.hyper(dtype, group_index, name, value) for name, value in hypers.items()}

    def hyper(self, dtype: Dtype, group_index: int, name: str, value: Any) -> Any:
        """Return `value`, the hyperparameter `name` of a group, as a scalar of a compute dtype.

        Raises:
            InvalidArgumentError: The value is NaN. The message names the hyperparameter.
        """
        if self.is_on_step_device(value):
            return value.detach().to(TORCH[dtype])
        if value != value:
            raise InvalidArgumentError(f"{title_of(name)} of group {group_index} is nan.")
        exact = name in self.optimizer._exact
        # TensorFlow rounds exact hyperparameters once; others pass through float32 first.
        return dtype(as_number(name, value)) if exact else as_step_scalar(name, value, dtype)

    def _hypers_of_group(self, group_index: int) -> dict[str, Any]:
        """Return the hyperparameters of the group at an index, by name."""
        return self.part.options(group_index, self.optimizer).given()

    def next_number(self, column: AnyColumn, key: Hashable) -> Any:
        """Return the number in `column` after the step, for the parameters with the key `key`."""
        group_index, state_scalars = self.split_key(key)
        state_scalar = state_scalars[column.name]
        if column.name == STEP:
            return state_scalar + 1
        if column.name in self.optimizer.product_hypers:
            factor = self._hypers_of_group(group_index)[self.optimizer.product_hypers[column.name]]
            if isinstance(state_scalar, Tensor):
                kind = np.float64 if state_scalar.dtype == torch.float64 else np.float32
                if self.is_on_step_device(factor):
                    return without_denormals(state_scalar * factor.to(state_scalar.dtype))
                return without_denormals(state_scalar * float(as_hyper(factor, kind)))
            kind = state_scalar.__class__
            return product(state_scalar, as_hyper(factor, kind)).item()
        scalar = self._scalars_of_all(compute_dtype(column.dtype), key)[column.name]
        return scalar if self.is_on_step_device(scalar) else scalar.item()
