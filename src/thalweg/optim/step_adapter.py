"""Adapters by which a step reads groups and state of torch-style optimizers."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast
from weakref import proxy

import torch
from torch import Tensor

from thalweg._base.locks import importing
from thalweg._core.atomic_section import Call
from thalweg._core.device_scalars import expand_to_variables
from thalweg._core.dtensor import check_whole, local
from thalweg._core.gradient_transforms import GradientTransforms
from thalweg._core.grads_and_vars import Pair, as_real
from thalweg._core.options.stochastic_rounding import Rounding
from thalweg._core.param_groups import parameter_names, params_of
from thalweg._core.sparse_gradients import all_summed, rows_of
from thalweg._core.step_adapter import Dtype, Shared, StepAdapter
from thalweg._core.validation import check_pairs, sparse_and_constrained
from thalweg._engines import Selection, current, layout
from thalweg._engines.memory_protection import check_writable
from thalweg._engines.random_bits import UNCOUNTED, Place, step_scalar
from thalweg.errors import InvalidArgumentError
from thalweg.formula import Rule
from thalweg.indexed_slices import IndexedSlices
from thalweg.optim.dtensor_params import make_local_shards, positions_of
from thalweg.optim.group_options import number
from thalweg.optim.param_scalars import STEP
from thalweg.optim.param_state import AnyColumn, ParamState
from thalweg.optim.slot_checks import check_slots
from thalweg.variable import variable_constraint

if TYPE_CHECKING:
    from thalweg.distribute.sharding.dtensor_step import LocalStep
    from thalweg.optim.device_param_scalars import DeviceColumn

# (gradient, target) pairs, and the parameters to which targets are copied; see `aim`.
UpdatePairs = tuple[list[tuple[Any, Tensor]], list[Tensor | None] | None]


class ParamGroupAdapter(StepAdapter):
    """Adapter of one step over parameters in groups.

    A *target* is the tensor that a step updates: the parameter, or its master or offloaded copy. If
    other code wrote to a parameter, its values replace those of the master. Parameters with equal
    scalars, such as the rate, have one *key*: a group index, and the numbers that differ.

    Args:
        group_indices: The index of each parameter's group; the attribute `places`.
    """

    from_copies = True
    _selection: ClassVar[Selection] = Selection()  # where no `engine` block selects otherwise

    def __init__(
        self,
        optimizer: Any,
        param_state: ParamState,
        params: Sequence[Tensor],
        group_indices: Sequence[int],
    ) -> None:
        super().__init__()
        self.selection = current(self._selection)
        # The scalars that this step has computed: by key, or by (compute dtype, key).
        self.scalars_by_key: dict[Any, dict[str, object]] = {}
        self.optimizer = optimizer
        self.part = param_state
        self._params = params
        self.places = group_indices
        self._keys: list[Hashable] | None = None
        self._pending_numbers: list[tuple[Any, list[Any]]] = []
        self._real: dict[int, Tensor] = {}
        self.apply_flag, self.watch = optimizer.step_cache.apply_flag, optimizer.step_cache.watch
        self._scalar_devices = devices = optimizer.scalar_devices(params)
        self.there = devices[0]
        self.repeats = param_state.scalar_devices == devices and param_state.stands(
            optimizer.state, params
        )
        if not self.repeats:
            check_slots(optimizer, param_state.rule, zip(params, group_indices, strict=True))
            # Local parts of slots are cached in this object, and slots may have been replaced.
            param_state.locals = make_local_shards(params)
        if param_state.locals is not None:
            self.sharing = param_state.locals.make_step(optimizer.step_cache.team)

    @property
    def owner_places(self) -> Sequence[int]:
        """Return the index of the group of each parameter that has a gradient."""
        return self.places

    def aim(self, pairs: list[tuple[Any, Tensor]]) -> UpdatePairs:
        """Return ((gradient, target) pairs, copies).

        `copies[i]` is the parameter to which target i will be copied. It is None if the target is
        the parameter itself. `copies` is None if all targets are parameters. If gradients are
        clipped, sparse gradients are coalesced.

        Raises:
            LayoutError: A sparse gradient is to be clipped, and has no memory for its elements.
        """
        if self.sharing is not None:
            pairs = cast("LocalStep", self.sharing).place_on_mesh(pairs)
        target_pairs, copies = self._pair_with_targets(pairs)
        return self.seen(target_pairs), copies

    def seen(self, pairs: list[tuple[Any, Tensor]]) -> list[tuple[Any, Tensor]]:
        """Return the pairs, with rows of sparse gradients summed if gradients are clipped."""
        return all_summed(pairs, self.names_of) if self.optimizer.step_options.clips else pairs

    def _pair_with_targets(self, pairs: list[tuple[object, Tensor]]) -> UpdatePairs:
        """Return the result of `aim`, without coalescing; set `self._real`: {id(target): param}."""
        targets = self.part.targets(self.optimizer.state, self._params, self.repeats)
        if targets is self._params:
            return pairs, None
        target_of = {id(param): target for param, target in zip(self._params, targets, strict=True)}
        target_pairs = [(grad, target_of[id(param)]) for grad, param in pairs]
        self._real = {
            id(target): param
            for (_, target), (_, param) in zip(target_pairs, pairs, strict=True)
            if target is not param
        }
        return target_pairs, [self._real.get(id(target)) for _, target in target_pairs]

    def step_rule(self) -> Any:
        return self.part.rule

    def owners_of(self, variables: Sequence[Tensor]) -> list[Tensor]:
        """Return the parameters that the variables of a step stand for, in order."""
        return [self._real.get(id(var), var) for var in variables]

    def names_of(self, variables: Sequence[Tensor]) -> list[str]:
        return parameter_names(self.optimizer.param_groups, self.owners_of(variables))

    def check_flat_buffers(
        self, rule: Rule | None, transforms: GradientTransforms, variables: Sequence[Tensor]
    ) -> None:
        self.optimizer.check_flat_buffers(self.optimizer.param_groups)

    def convert_pairs(self, given: Sequence[tuple[Any, Any]]) -> list[Pair]:
        """Return the pairs with sparse gradients as `IndexedSlices`, complex ones as real views."""
        for grad, param in given:
            if grad.layout == torch.sparse_coo:
                label = self.names_of([param])[0]
                layout.check_parts(grad, f"The gradient of '{label}'")
        return [self._converted(grad, param) for grad, param in given]

    def _converted(self, grad: Tensor, param: Tensor) -> Pair:
        """Return a (gradient, parameter) pair in the form that kernels need.

        A sparse gradient becomes `IndexedSlices` on the parameter's device. A complex pair becomes
        two real views, and the view of the parameter is added to `self._real`.
        """
        if grad.layout == torch.sparse_coo:
            rows = rows_of(grad, *self.names_of([param]))
            if layout.is_far(rows, param.device):
                values, indices = rows.values.to(param.device), rows.indices.to(param.device)
                rows = IndexedSlices(values, indices, rows.dense_shape)
            return rows, param
        if not param.is_complex():
            return grad, param
        check_whole([param], "A complex type")
        real = as_real(param)
        self._real[id(real)] = param
        return as_real(grad), real

    def check_pairs(self, pairs: Sequence[Pair], narrow: bool) -> None:
        """Raise if a gradient cannot update its variable.

        Args:
            pairs: (gradient, variable) pairs. A variable is a target, or a real view of a target. A
                gradient must be on the device of its parameter.
            narrow: True to accept 16-bit gradients of float32 variables.

        Raises:
            InvalidTypeError: A dtype is not supported, or the dtypes of a pair differ.
            InvalidArgumentError: A shape or device differs, or a row index is out of range.
            RuntimeError: A gradient is sparse, and its parameter has a constraint.
            NotImplementedError: A gradient is sparse, and the option `round` is set.
        """
        rounding = self.optimizer.step_options.of(Rounding)
        for grad, var in pairs:
            param = self._real.get(id(var), var)
            if isinstance(grad, IndexedSlices) and variable_constraint(param) is not None:
                raise sparse_and_constrained(*self.names_of([param]))
            if isinstance(grad, IndexedSlices):
                rounding.check_rows(*self.names_of([param]))
        variables = [var for _, var in pairs]
        # The device of the parameter, which may differ from that of an offloaded target.
        devices = [param.device for param in self.owners_of(variables)]
        check_pairs(pairs, self.names_of(variables), scatter=True, narrow=narrow, devices=devices)

    def create_state(self, variables: Sequence[Tensor]) -> None:
        """Check the numbers in the state, and create missing state of all parameters.

        The callables of `counting_calls` will add the new state to `optimizer.state`.
        """
        optimizer = self.optimizer
        state_scalars: list[tuple[Tensor, str]] = []
        for param, label in zip(self._params, self.names_of(self._params), strict=True):
            for name, value in (optimizer.state.get(param) or dict[str, Any]()).items():
                if isinstance(value, Tensor) and not value.dim():
                    layout.check_memory(local(value), f"'{name}' of '{label}'", param)
                    state_scalars.append((local(value), f"{name} of {label}"))
        check_writable(state_scalars)
        starts = optimizer._initial_entries(self._params, self.places)
        self.part.make(optimizer.state, self._params, starts, self._scalar_devices)

    def slots_of(self, var: Tensor) -> list[Tensor]:
        param = self._real.get(id(var))
        if param is None:
            return self.part.slots_of(var)
        slots = self.part.slots_of(param)
        return [as_real(slot) if slot.is_complex() else slot for slot in slots]

    def find_common_slots(self) -> list[Sequence[Tensor]]:
        """Return [slots of the first parameter, slots of the second, ...]: optimizer-wide slots.

        Parameters without such slots are left out. New slots of this step come last.
        """
        optimizer, param_state = self.optimizer, self.part
        states = [
            optimizer.state.get(param)
            for group in optimizer.param_groups
            if param_state.rule in optimizer.rules_around(group)
            for param in group["params"]
        ]
        names = [slot.name for slot in param_state.rule.common_slots]
        common_slots: list[Sequence[Tensor]] = []
        for entries in (*filter(None, states), *map(param_state.made_of, self._params)):
            try:
                common_slots.append([entries[name] for name in names])
            # A parameter before its first step, or without new slots in this step.
            except KeyError:
                continue
        return common_slots

    def places_of(self, variables: Sequence[Tensor]) -> Sequence[Place]:
        """Return the pair that selects the random bits of each variable.

        A pair is (index in the optimizer, positions of local elements in the full tensor). Without
        stochastic rounding, return (); for encoded slots of DTensors, pairs with the index None.
        """
        optimizer, param_state = self.optimizer, self.part
        params = self.owners_of(variables)
        if optimizer.step_options.of(Rounding).round is None:
            # Slots in blocks are rounded by positions.
            is_placed = param_state.locals is not None and param_state.rule.codecs
            return [(None, positions_of(param)) for param in params] if is_placed else ()
        with importing:
            from thalweg.optim.stochastic_rounding import check_params
        check_params(optimizer, param_state.rule, params)
        return list(zip(self.numbers_of(variables), map(positions_of, params), strict=True))

    def numbers_of(self, variables: Sequence[Tensor]) -> list[int]:
        """Return the index of each variable among all parameters of the optimizer."""
        params = params_of(self.optimizer.param_groups)
        indices = {id(param): index for index, param in enumerate(params)}
        return [indices[id(param)] for param in self.owners_of(variables)]

    def read_hypers(self, variables: Sequence[Tensor]) -> None:
        """Read the per-parameter numbers, and set the keys that `group_variables` returns."""
        param_state, group_indices = self.part, self.places
        for column in param_state.columns:
            column.read()
        varying = [
            column.values
            for column in param_state.columns
            if column.is_on_device is False and column.common is None
        ]
        varying += [flags for flags in param_state.lacked.values() if not all(flags)]
        varying += [
            kinds for column in param_state.columns if (kinds := getattr(column, "kinds", None))
        ]
        if varying:
            self._keys = list(zip(group_indices, *varying, strict=True))
        elif group_indices and group_indices[0] != group_indices[-1]:
            self._keys = list(group_indices)

    def group_variables(
        self, variables: Sequence[Tensor], gradients: Sequence[object]
    ) -> list[Hashable] | None:
        return self._keys

    def counting_calls(self, shared: Shared) -> list[Call]:
        """Return callables that add new state and write the next per-parameter numbers."""
        calls = self.part.publishing()
        keys = [None] if self._keys is None else self._keys
        for column in self.part.columns:
            if column.is_on_device is True:
                calls.append(self._counting_on_device(column))
                continue
            if len(keys) == 1:
                values = [self.next_number(column, keys[0])]
            else:
                by_key = {key: self.next_number(column, key) for key in dict.fromkeys(keys)}
                values = [by_key[key] for key in keys] if len(by_key) > 1 else [by_key[keys[0]]]
            calls += column.writing(values)
            self._pending_numbers.append((column, values))
        return calls

    def _counting_on_device(self, column: DeviceColumn) -> Call:
        """Return the call that writes the next numbers of a column on a device."""
        if column.name == STEP:
            return column.counting(self.apply_flag)
        keys = self._keys or [None] * len(self._params)
        values = {key: self.next_number(column, key) for key in dict.fromkeys(keys)}
        column_values = expand_to_variables(keys, values, column.common.device)
        return column.moving(column_values, self.apply_flag)

    def next_number(self, column: AnyColumn, key: Hashable) -> Any:
        """Return the number after the step of the parameters with a key."""
        raise NotImplementedError

    def split_key(self, key: Any) -> tuple[int, dict[str, Any]]:
        """Return (group index, {name: scalar}) for the parameters with the key `key`.

        The dict has the flag `is_first`, the numbers of the state, such as the step count, and the
        scalars of options and codecs. It has no hyperparameters. Numbers on a GPU are one tensor
        with an element per parameter.

        Args:
            key: The group index, or a tuple of this index and the numbers that differ between
                parameters. None if all parameters have one key.
        """
        param_state = self.part
        parts: tuple[Any, ...] = key if isinstance(key, tuple) else (key,)  # pyright: ignore[reportUnknownVariableType]
        group_index, *differing_scalars = parts
        group_index = self.places[0] if group_index is None else group_index
        remaining_scalars = iter(differing_scalars)
        state_scalars = {
            column.name: next(remaining_scalars) if column.common is None else column.common
            for column in param_state.columns
        }
        flags_by_name = param_state.lacked
        lacked = flags_by_name and {
            name for name, flags in flags_by_name.items() if all(flags) or next(remaining_scalars)
        }
        state_scalars["is_first"] = bool(lacked) and param_state.first in lacked
        for option in self.optimizer.step_options.wrapping:
            state_scalars |= option.scalars(lacked, state_scalars.get(STEP, 1))
        if param_state.rule.codecs:
            state_scalars |= (
                step_scalar(state_scalars[STEP]) if STEP in state_scalars else UNCOUNTED
            )
        return group_index, state_scalars

    def is_on_step_device(self, value: Any) -> bool:
        """Return True for a tensor on the device of the per-parameter numbers."""
        return self.there is not None and isinstance(value, Tensor) and value.device == self.there

    def detach(self) -> None:
        """Drop references to the optimizer and copies, for a plan that outlives the step."""
        # The optimizer caches this adapter; a strong reference would be a cycle.
        self.watch = self.gathered = None
        self.optimizer = proxy(self.optimizer)

    def settle(self) -> None:
        """Record the written numbers and state; called after the writes."""
        for column, values in self._pending_numbers:
            column.wrote(values)
        self.part.settle(self.optimizer.state)


class TorchStepAdapter(ParamGroupAdapter):
    """Adapter of a step with torch's numbers: scalars are Python floats, rounded once."""

    # Torch keeps denormals; TensorFlow flushes them.
    _selection = Selection(denormals="keep")

    def scalars_of(self, dtype: Dtype, group: Hashable) -> dict[str, Any]:
        if group not in self.scalars_by_key:
            self.scalars_by_key[group] = self.prepare_scalars(group)
        return self.scalars_by_key[group]

    def prepare_scalars(self, key: Hashable) -> dict[str, Any]:
        """Return {name: scalar} for the parameters with the key `key`.

        Scalars are hyperparameters, results of `split_key`, and results of the rule's `prepare`.

        Raises:
            InvalidArgumentError: The rule's `prepare` fails with these options.
        """
        rule, optimizer = self.part.rule, self.optimizer
        group_index, state_scalars = self.split_key(key)
        options = self.part.options(group_index, optimizer)
        if STEP in state_scalars:
            step = state_scalars[STEP]
            step = step.double() if isinstance(step, Tensor) else step
            state_scalars["t"] = state_scalars[STEP] = step + 1
        state_scalars |= self.in_common
        try:
            scalars = rule.prepare(**options.given_to_prepare(state_scalars))  # pyright: ignore
            for name, scalar in scalars.items():
                if type(scalar) is not float and not self.is_on_step_device(scalar):
                    scalars[name] = number(scalar)
        # A complex root, or a division by 0, depends on options and on the number of the step.
        except (ArithmeticError, TypeError) as error:
            group = optimizer.param_groups[group_index]
            text, reason = optimizer.show_numbers(group), _describe_betas(group) or error
            problem = f"{reason} in step {state_scalars.get('t', 1)}"
            raise InvalidArgumentError(
                f"Group {group_index} takes no step with {text}: {problem}."
            ) from error
        return {**options.numbers(self.is_on_step_device), **state_scalars, **scalars}

    def next_number(self, column: AnyColumn, key: Hashable) -> Any:
        value = self.scalars_by_key[key][column.name]
        if self.part.numbers[column.name].rounds_as_tensor and not isinstance(value, Tensor):
            # As in torch's code, the default dtype decides how it is rounded.
            return torch.tensor(value, dtype=torch.get_default_dtype(), device="cpu").item()
        return value


def _describe_betas(group: Mapping[str, Any]) -> str:
    """Return a phrase about the betas of a group that are not in [0, 1); "" if all are."""
    betas: list[Any] | tuple[Any, ...] | None = group.get("betas")
    return "; ".join(
        f"beta{index} is {beta}, and must be at least 0 and below 1"
        for index, beta in enumerate(betas if isinstance(betas, list | tuple) else (), 1)
        if type(beta) in (int, float) and not 0 <= beta < 1
    )
