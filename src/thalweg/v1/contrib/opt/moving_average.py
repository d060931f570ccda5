"""An optimizer that keeps moving averages of the trained variables."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import chain
from typing import Any

from torch import Tensor

from thalweg._base.execution_context import is_deferred
from thalweg._base.locks import Guard
from thalweg._base.tracing import untraced
from thalweg._core.commit import add_note, says_not_taken
from thalweg._core.grads_and_vars import as_pairs, check_variables, distinct
from thalweg._core.state import Entry, making
from thalweg._graph import control_dependencies, graph_variable_of, group
from thalweg.errors import FailedPreconditionError, InvalidArgumentError
from thalweg.v1.train.moving_averages import ExponentialMovingAverage
from thalweg.v1.train.saving.saveables import all_saveable, by_name
from thalweg.v1.train.saving.saver import Saver
from thalweg.v1.train.wrapping_optimizer import WrappingOptimizer

# Name of the averages in a checkpoint of objects.
_AVERAGES = "averages"


class _Averages(ExponentialMovingAverage):
    """Moving averages with an optimizer's lock: saving and loading wait for the end of a step."""

    def __init__(self, opt: Any, decay: object, num_updates: object) -> None:
        super().__init__(decay, num_updates)
        # In a tuple: undoing a failed step restores the objects that are attributes of the
        # averages, and must not restore the optimizer.
        self._optimizer_tuple = (opt,)

    def _locked(self) -> Guard:
        return self._optimizer_tuple[0]._locked()

    def _loaded(self) -> None:
        self._lock.loaded()


class MovingAverageOptimizer(WrappingOptimizer):
    """Optimizer that runs another optimizer and then updates moving averages of the variables.

    A step updates only averages of variables with a gradient; `average(var)` returns an average.

    Args:
        opt: The wrapped optimizer.
        average_decay: Decay rate of the averages; see `train.ExponentialMovingAverage`.
        num_updates: Optional. A number, or the variable that counts steps; see
            `train.ExponentialMovingAverage`.
        sequential_update: True to update averages after the step. False leaves the order undefined
            in graph mode and has no effect in eager mode.

    Differs from:
        TensorFlow returns slots only through `opt`; here `get_slot` works on both.

    Example:
        >>> from thalweg import Variable
        >>> from thalweg.v1.train import GradientDescentOptimizer
        >>> w = Variable(1.0, name="w")
        >>> opt = MovingAverageOptimizer(GradientDescentOptimizer(0.5), average_decay=0.5)
        >>> for _ in range(2):
        ...     opt.apply_gradients([(1.0, w)])
        >>> w.numpy(), opt.average(w).numpy()
        (np.float32(0.0), np.float32(0.25))

    Reference: tf.contrib.opt.MovingAverageOptimizer
    """

    def __init__(
        self,
        opt: object,
        average_decay: object = 0.9999,
        num_updates: object = None,
        sequential_update: bool = True,
    ) -> None:
        super().__init__(opt, False, None)
        self._average_decay, self._num_updates = average_decay, num_updates
        self._ema = _Averages(opt, average_decay, num_updates)
        self._sequential_update = sequential_update
        # A graph's variables by averages, and vice versa.
        self._counterparts: dict[Any, Any] = {}

    def _trackable_children(
        self, save_type: str = "checkpoint", **kwargs: object
    ) -> dict[str, object]:
        children = super()._trackable_children(save_type, **kwargs)
        return {**children, _AVERAGES: self._ema}

    def _lookup_dependency(self, name: str) -> object:
        return self._ema if name == _AVERAGES else super()._lookup_dependency(name)

    def average(self, var: object) -> Any:
        """Return the variable that holds the average of `var`, or None."""
        return self._ema.average(var)

    def swapping_saver(
        self, var_list: object = None, name: str = "swapping_saver", **kwargs: Any
    ) -> Saver:
        """Return a `Saver` that swaps names: averages are saved as variables, and vice versa.

        A plain `Saver`, as in an inference graph, restores the saved averages into the variables.
        The returned `Saver` restores each value into the tensor that was saved.

        Args:
            var_list: As in `Saver`. List a variable together with the average, or neither.
            name, kwargs: As in `Saver`.

        Raises:
            RuntimeError: No averages exist in a graph yet.
            ValueError: `var_list` has a variable without its average, or an average without its
                variable.
        """
        if not self._counterparts:
            raise FailedPreconditionError(
                "Must call apply_gradients or minimize before creating the swapping_saver, in graph"
                " mode."
            )
        variables_by_name = by_name(all_saveable() if var_list is None else var_list)
        names = {variable: key for key, variable in variables_by_name.items()}
        swapped_variables: dict[str, Any] = {}
        for key, variable in variables_by_name.items():
            # Variables without an average, such as slots, keep their names.
            counterpart = self._counterparts.get(variable, variable)
            if counterpart not in names:
                raise InvalidArgumentError(
                    f"Variable to swap {counterpart.op.name} is not part of variables to save. This"
                    " breaks MovingAverageOptimizer."
                )
            swapped_variables[key] = counterpart
        return Saver(swapped_variables, name=name, **kwargs)

    def _create_for_state(self, variables: Sequence[object], names: Collection[str]) -> None:
        super()._create_for_state(variables, names)
        if any(name.endswith(f"/{self._ema.name}") for name in names):
            self._ema._create_slots(variables)

    def _owners(self) -> list[Tensor]:
        return distinct([*super()._owners(), *self._ema._owners()])

    def _slot_entries(self, var: Tensor, key: str) -> list[Entry]:
        return [*super()._slot_entries(var, key), *self._ema._slot_entries(var, key)]

    def _loaded(self) -> None:
        super()._loaded()
        self._ema._loaded()

    @untraced
    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[object, object]],
        global_step: object = None,
        name: str | None = None,
        skip_gradients_aggregation: bool = False,
    ) -> Any:
        """Apply gradients as `Optimizer.apply_gradients` does, then update the averages."""
        pairs = as_pairs(grads_and_vars)
        variables = distinct([var for grad, var in pairs if grad is not None])
        if not is_deferred(*chain.from_iterable(pairs)):
            with self._turn_lock(), self._locked(), making(self._ema, variables):
                self._step(pairs, variables, global_step, name)
            return None
        step = self._opt.apply_gradients(pairs, global_step=global_step, name=name)
        with control_dependencies([step] if self._sequential_update else []):
            averages = self._ema.apply(variables)
        for var in map(graph_variable_of, variables):
            average = self._ema.average(var)
            self._counterparts |= {var: average, average: var}
        return group(step, averages, name="train_with_avg")

    def _step(
        self,
        pairs: list[tuple[object, object]],
        variables: list[Tensor],
        global_step: object,
        name: str | None,
    ) -> None:
        """Take an eager step of the wrapped optimizer, then update the averages in place.

        `variables` are the distinct variables with a gradient. If the averages cannot be updated,
        the error gets a note that the step was taken.
        """
        check_variables(variables)
        self._ema._settle()
        new = self._ema._without_average(variables)
        # Allocated before the step: a lack of memory then changes nothing.
        self._ema._create_slots(new)
        self._opt.apply_gradients(pairs, global_step=global_step, name=name)
        try:
            # An average begins at the variable's value after the step.
            self._ema._begin_averages(new)
            self._ema.apply(variables)
        except BaseException as error:
            if says_not_taken(error) or not getattr(error, "__notes__", None):
                add_note(error, ["The step was taken, but the averages were not moved."])
            raise
