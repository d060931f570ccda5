"""Moving averages of variables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from thalweg import _graph
from thalweg._base.context_managers import outside_inference
from thalweg._base.scalars import scalar_type
from thalweg._base.showing import show_value
from thalweg._base.tracing import untraced
from thalweg._core import atomic_section
from thalweg._core.grads_and_vars import check_variables, distinct
from thalweg._core.hyperparameters import as_number
from thalweg._core.options.moving_average import debias_divisor, move, share_of
from thalweg._core.slots import SlotStore
from thalweg._core.state import Entry, making
from thalweg._graph import GraphKeys, GraphVariable
from thalweg._graph.slice_info import mark_slice_like
from thalweg.errors import InvalidTypeError
from thalweg.v1.train.assigned_averages import assign_moving_average as assign_moving_average
from thalweg.v1.train.assigned_averages import weighted_moving_average as weighted_moving_average
from thalweg.v1.train.gradients import VALID_DTYPES
from thalweg.v1.train.slot_creator import base_name, scoped_name
from thalweg.v1.train.state_dict import V1StateDict
from thalweg.variable import check_held, is_variable, over

_AVERAGE, _BIASED, _STEPS = "average", "biased", "local_step"


class ExponentialMovingAverage(V1StateDict):
    """Moving averages of variables, stored as one average per variable.

        average <- average - (average - value)(1 - d)
        d = decay, or min(decay, (1 + num_updates) / (10 + num_updates))

    An average starts at the variable's value; in graph mode, at the variable's initial value. In
    graph mode symbolic tensors can be averaged, too; averages of tensors start at 0.

    Args:
        decay: Decay rate of the average; a float or 0-d tensor.
        num_updates: Optional. A number, or the variable that counts steps, to average faster at the
            start.
        zero_debias: True to correct averages of tensors for the bias of their start at 0.
        name: Last part of the averages' names.

    Differs from:
        torch.optim.swa_utils averages whole modules.

    Example:
        >>> from thalweg import Variable
        >>> w = Variable(1.0, name="w")
        >>> averages = ExponentialMovingAverage(0.9)
        >>> averages.apply([w])
        >>> averages.apply([w.assign(2.0)])
        >>> averages.average(w).numpy()
        np.float32(1.1)

    Reference: tf.train.ExponentialMovingAverage
    """

    PER_GRAPH = True

    def __init__(
        self,
        decay: object,
        num_updates: object = None,
        zero_debias: bool = False,
        name: str = "ExponentialMovingAverage",
    ) -> None:
        if not _graph.is_symbolic(decay) and not isinstance(decay, Tensor):
            as_number("decay", decay)
        self._decay, self._num_updates, self._zero_debias = decay, num_updates, zero_debias
        self._name = name
        self._maybe_initialize_trackable()
        self._slots = SlotStore()

    @property
    def name(self) -> str:
        """The last part of the averages' names."""
        return self._name

    @untraced
    def apply(self, var_list: Iterable[Any] | None = None) -> Any:
        """Create missing averages, then update the average of each variable once, in place.

        Args:
            var_list: Variables. In graph mode, symbolic tensors are accepted, and None selects all
                trainable variables.

        Returns:
            None; in graph mode, an operation that updates the averages.

        Raises:
            TypeError: A dtype is not a supported float, or in eager mode an element is not a
                variable.
            ValueError: `var_list` is None in eager mode.
        """
        if not _graph.executing_eagerly():
            return self._apply_in_graph(var_list)
        if var_list is None:
            raise ValueError("Name the variables to average: eager mode keeps no list of them.")
        variables = list(var_list)
        _check_sources(variables)
        # The share 1 - d of the new value, in the dtype of the decay.
        weight = share_of(self._decay, self._num_updates, scalar_type(self._decay))
        commit_messages: list[str] = []
        with self._lock, making(self, variables, commit_messages):
            self._create_slots(variables)
            averages = [self._slots.of(var, [_AVERAGE])[0] for var in variables]
            move(self._plans.now(), averages, variables, weight, commit_messages=commit_messages)
        return None

    def _without_average(self, variables: Sequence[Tensor]) -> list[Tensor]:
        """Return the variables without an average, each once."""
        return [var for var in distinct(variables) if self._slots.get(var, _AVERAGE) is None]

    def _create_slots(self, var_list: Sequence[Any]) -> None:
        """Create missing averages, with the values of the variables."""
        _check_sources(var_list)
        with outside_inference():
            for var in self._without_average(var_list):
                check_held(var)
                name = f"{base_name(var)}/{self._name}"
                self._put_slot(var, _AVERAGE, over(var.detach().clone(), name))

    def _begin_averages(self, variables: Sequence[Tensor]) -> None:
        """Set averages to the values of their variables."""
        # Detached tensors, whose `copy_` is a function in C: no interruption splits the writes.
        averages = [self._slots.of(var, [_AVERAGE])[0].detach() for var in variables]
        pairs = zip(averages, variables, strict=True)
        atomic_section.run([partial(average.copy_, var.detach()) for average, var in pairs])

    def _slot_entries(self, var: Tensor, key: str) -> list[Entry]:
        average = self._slots.get(var, _AVERAGE)
        return [] if average is None else [Entry(f"{key}/{self._name}", average)]

    def _move_averages(
        self,
        kind: Any,
        slots: Sequence[Sequence[Any]],
        values: Sequence[Any],
        decay: Any,
        count: Any,
    ) -> None:
        """Update averages in place, in a run of a graph.

        Args:
            kind: The scalar type of the decay.
            slots: Three lists with one tensor per average: the averages, the biased averages and
                the step counts. An average without debiasing has None in the last two lists.
            values: The new values, one per average.
            decay: The decay rate of the averages.
            count: The argument `num_updates`, which lowers the decay in early updates, or None.
        """
        averages, biased, steps = slots
        weight = share_of(decay, count, kind)
        targets = [
            average if slot is None else slot
            for average, slot in zip(averages, biased, strict=True)
        ]
        with self._lock:
            counts = [
                call
                for average, slot, step in zip(averages, biased, steps, strict=True)
                if slot is not None
                for call in debias_divisor(average, slot, step, weight)
            ]
            move(self._plans.now(), targets, values, weight, counts)

    def _apply_in_graph(self, var_list: Iterable[Any] | None) -> Any:
        """Create missing averages, and return an operation that updates all averages in each run.

        An average begins at a variable's initial value, or at 0 for a symbolic tensor. Raise
        InvalidTypeError if a member has another type or dtype, or an unknown shape.

        Args:
            var_list: Variables and symbolic tensors; None for all trainable variables of the
                default graph.
        """
        graph = _graph.get_default_graph()
        if var_list is None:
            var_list = graph.get_collection(GraphKeys.TRAINABLE_VARIABLES)
        sources = [_graph.graph_variable_of(source) for source in var_list]
        _check_sources(sources)
        # Without control inputs, so that averages start before any update.
        with _graph.control_dependencies(None):
            for source in sources:
                if self._slots.get(source, _AVERAGE) is None:
                    self._make_in_graph(source)

        def slots_named(name: str) -> list[object]:
            slots: list[Any] = [self._slots.get(source, name) for source in sources]
            return [None if slot is None else _graph.by_reference(slot) for slot in slots]

        return _graph.operation(
            partial(self._move_averages, scalar_type(self._decay)),
            [
                list(map(slots_named, (_AVERAGE, _BIASED, _STEPS))),
                [_refer_to_latest(source) for source in sources],
                _refer_to_latest(self._decay),
                _refer_to_latest(self._num_updates),
            ],
            self._name,
            kind="update",
        )

    def _make_in_graph(self, source: Any) -> None:
        """Create a slot with the average of `source`, a graph variable or a symbolic tensor.

        The average of a variable begins at the variable's initial value. The average of a tensor
        begins at 0; with `zero_debias`, also create its biased average and step count. Raise
        InvalidTypeError if the shape of a tensor is unknown.
        """
        average_name = scoped_name(source, f"{source.op.name}/{self._name}")
        if isinstance(source, GraphVariable):
            average = _graph.make_variable(source.initialized_value(), average_name)
            mark_slice_like(average, source)
            self._put_slot(source, _AVERAGE, average)
            _graph.get_default_graph().add_to_collection(GraphKeys.MOVING_AVERAGE_VARIABLES, source)
            return
        if not source.shape.is_fully_defined():
            raise InvalidTypeError(
                f"The shape of '{source.name}' is not known, so it cannot be averaged."
            )
        device = torch.get_default_device()
        zeros = torch.zeros(tuple(source.shape), dtype=source.dtype, device=device)
        self._put_slot(source, _AVERAGE, _graph.make_variable(zeros, average_name))
        if self._zero_debias:
            for kind, start in ((_BIASED, zeros), (_STEPS, zeros.new_zeros(()))):
                name = scoped_name(source, f"{average_name}/{kind}")
                self._put_slot(source, kind, _graph.make_variable(start, name))

    def _put_slot(self, source: object, kind: str, slot: object) -> None:
        self._take_slots(kind, [source], [self._slots.put(source, kind, slot)])

    @untraced
    def average(self, var: Any) -> Any:
        """Return the variable that holds the average of `var`, or None."""
        self._settle(var, _AVERAGE)
        with self._lock:
            average = self._slots.get(var, _AVERAGE)
        self._slots.handed_out([average])
        return average

    def average_name(self, var: Any) -> str:
        """Return the name of the average of `var`, without ":0", even before the average exists."""
        handle = _graph.handle_of(var)
        average = self._slots.get(var, _AVERAGE)
        if average is not None:
            return base_name(average)
        name = f"{base_name(handle)}/{self._name}"
        if not _graph.is_symbolic(handle):
            return name
        scoped = scoped_name(handle, name)
        return handle.graph.unique_name(scoped, mark_as_used=False, absolute=True)

    def variables_to_restore(
        self, moving_avg_variables: Iterable[object] | None = None
    ) -> dict[str, Any]:
        """Return {average's name: variable} for a `Saver` that restores averages into variables.

        In graph mode, all other global variables are added under their own names.

        Args:
            moving_avg_variables: Variables to restore from averages. None selects no variables in
                eager mode, and all trainable and averaged variables in graph mode.

        Returns:
            {name without ":0": variable}.
        """
        in_graph = not _graph.executing_eagerly()
        if moving_avg_variables is None:
            moving_avg_variables = []
            if in_graph:
                keys = (GraphKeys.TRAINABLE_VARIABLES, GraphKeys.MOVING_AVERAGE_VARIABLES)
                for key in keys:
                    moving_avg_variables += _graph.get_default_graph().get_collection(key)
        averaged = {id(_graph.handle_of(var)): var for var in moving_avg_variables}
        variables_by_name = {self.average_name(var): var for var in averaged.values()}
        if in_graph:
            for var in _graph.get_default_graph().get_collection(GraphKeys.GLOBAL_VARIABLES):
                # The averages are global variables, too, but their names are taken already.
                if id(var) not in averaged:
                    variables_by_name.setdefault(base_name(var), var)
        return variables_by_name


def _check_sources(sources: Sequence[Any]) -> None:
    """Raise InvalidTypeError unless all are symbolic tensors or variables of `VALID_DTYPES`."""
    for source in sources:
        if not _graph.is_symbolic(source) and not is_variable(source):
            raise InvalidTypeError(
                "tf.train.ExponentialMovingAverage does not support non-Variable tensors when"
                f" eager execution is enabled: {show_value(source)}."
            )
        if source.dtype not in VALID_DTYPES:
            name = base_name(source)
            raise InvalidTypeError(f"The variables must be half, float, or double: {name}")
    check_variables([source for source in sources if not _graph.is_symbolic(source)])


def _refer_to_latest(source: object) -> object:
    """Return a `Reference` to a variable, read when a run updates the averages; else `source`."""
    return _graph.by_reference(source) if isinstance(source, GraphVariable) else source
