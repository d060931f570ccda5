"""Mixed-precision training with float32 masters and a scaled loss."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from torch import Tensor

from thalweg._base.context_managers import writable
from thalweg._base.execution_context import graph_of
from thalweg._base.showing import show_value
from thalweg._base.tracing import untraced
from thalweg._core.commit import note_not_applied, raise_first
from thalweg._core.gradient_transforms import GradientTransforms
from thalweg._core.grads_and_vars import as_pairs, distinct
from thalweg._core.hyperparameters import check_size, hint
from thalweg._core.state import Loading, Names, check_eager, keys_of, restore
from thalweg._graph import GraphKeys, by_reference, executing_eagerly, group, is_symbolic, operation
from thalweg.errors import InvalidArgumentError, InvalidTypeError, OptionError
from thalweg.openseq2seq.optimizers.automatic_loss_scaler import AutomaticLossScaler
from thalweg.openseq2seq.optimizers.backward import BackwardResult, unscaled
from thalweg.openseq2seq.optimizers.gradients import (
    check_given,
    concretes,
    map_gradients,
    refuse_none,
)
from thalweg.openseq2seq.optimizers.masters import Masters
from thalweg.openseq2seq.optimizers.precision import scaled
from thalweg.openseq2seq.optimizers.regularization import (
    may_have_penalties,
    mp_regularizer_wrapper,
    penalty_gradient,
)
from thalweg.openseq2seq.optimizers.state import TrainingState
from thalweg.openseq2seq.optimizers.update import (
    by_references,
    calls_hooks_at_build,
    capture_inputs,
    decide_by_scaler,
    process_gradients,
    record_update,
    update,
    variables_written_by,
)
from thalweg.v1.train.gradients import check_any
from thalweg.v1.train.optimizer import Optimizer
from thalweg.v1.train.wrapping_optimizer import WrappingOptimizer
from thalweg.variable import REDUCED

__all__ = ["MixedPrecisionOptimizerWrapper", "mp_regularizer_wrapper"]


class MixedPrecisionOptimizerWrapper(WrappingOptimizer):
    """Wrapper that trains float16 and bfloat16 variables by float32 masters.

        loss scale L: gradients of L loss, cast to float32, penalties added, multiplied by 1 / L
        master <- the optimizer's step;  variable <- master, rounded, within the finite numbers

    Variables of other dtypes have no master and are updated themselves. A master begins with the
    variable's value. Each update then overwrites the variable from the master, or the rows that a
    sparse gradient has. With an `AutomaticLossScaler` an infinite or NaN gradient skips the update,
    and each step adapts the scale. With a static scale, infinities and NaN reach the masters.

    Args:
        optimizer: The optimizer, of `thalweg.v1`.
        loss_scale: A number above 0, an `AutomaticLossScaler`, or None for 1.
        as_shipped: True to raise AttributeError only in `compute_gradients` if `loss_scale` has
            another type than float and `AutomaticLossScaler`.
        scope: The prefix of the names of masters in eager mode.

    Raises:
        TypeError: `optimizer` or `loss_scale` has another type.
        ValueError: `loss_scale` is not a finite number above 0.

    Differs from:
        OpenSeq2Seq has no bfloat16, and takes no int for a scale.

    Example:
        >>> import torch
        >>> from thalweg import Variable
        >>> from thalweg.v1.train import GradientDescentOptimizer
        >>> w = Variable(torch.tensor([1.0], dtype=torch.float16), name="w")
        >>> opt = MixedPrecisionOptimizerWrapper(GradientDescentOptimizer(2.0**-13), 128.0)
        >>> for _ in range(3):
        ...     opt.minimize(lambda: w.float().sum(), var_list=[w])
        >>> w.item(), opt.get_master(w).item()
        (0.99951171875, 0.9996337890625)

    Reference: OpenSeq2Seq, optimizers.mp_wrapper; https://arxiv.org/abs/1710.03740
    """

    def __init__(
        self,
        optimizer: object,
        loss_scale: object = None,
        *,
        as_shipped: bool = False,
        scope: str = "",
    ) -> None:
        if not isinstance(optimizer, Optimizer):
            raise InvalidTypeError(
                f"optimizer must be an optimizer of thalweg.v1, not {show_value(optimizer)}."
                f"{hint(optimizer)}"
            )
        super().__init__(optimizer, False, f"{optimizer.get_name()}-MP")
        self._masters = Masters(scope)
        self._loss_scale = checked_scale(loss_scale, as_shipped)
        self._as_shipped = as_shipped

    def _arguments(self) -> dict[str, object]:
        scale = {"loss_scale": self._loss_scale, "as_shipped": self._as_shipped}
        return {"optimizer": self._opt, **scale, "scope": self._masters.scope}

    def _checkpointed(self) -> object:
        raise InvalidTypeError(
            f"{type(self).__name__} keeps slots beside float32 masters, to which no attribute of a"
            " checkpoint leads. Save the training by its state_dict(), or by train.Saver."
        )

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer of the masters."""
        return self._opt

    @property
    def loss_scaler(self) -> AutomaticLossScaler | None:
        """Scaler that adapts the loss scale, or None if the scale is static."""
        scale = self._loss_scale
        return scale if isinstance(scale, AutomaticLossScaler) else None

    @property
    def loss_scale(self) -> Any:
        """The factor of the loss: a float, or the scaler's variable.

        Raises:
            AttributeError: `as_shipped` took a value of another type.
        """
        refuse_no_scale(self._loss_scale)
        scaler = self.loss_scaler
        return self._loss_scale if scaler is None else scaler.loss_scale

    def get_master(self, var: object) -> Any:
        """Return the float32 master of a variable, or None if it has none (yet)."""
        return self._masters.get(var)

    def get_slot(self, var: object, name: str) -> Any:
        """Return a slot of the optimizer inside, by a variable or by its master."""
        master = self._masters.get(var)
        return self._opt.get_slot(var if master is None else master, name)

    def variables(self) -> list[Any]:
        """Return the masters, of the current graph or eager, and the optimizer's variables."""
        graph = graph_of()
        masters = [master for _, master in self._masters.pairs()]
        graph_masters = [master for master in masters if getattr(master, "graph", None) is graph]
        return [*graph_masters, *self._opt.variables()]

    def differentiate(self, loss: object, var_list: Any = None, **options: Any) -> BackwardResult:
        """Differentiate the scaled loss; return a `BackwardResult` with the scaled gradients.

        Args:
            loss: A callable that returns the loss; in graph mode a symbolic tensor, too.
            var_list: Optional. See `Optimizer.minimize`.
            **options: See `Optimizer.compute_gradients`.

        Raises:
            TypeError: The scale adapts and the loss is not float32.
            ValueError: A float16 or bfloat16 variable has no gradient.
        """
        scale = self._present_scale()
        pairs = self._opt.compute_gradients(scaled(loss, scale), var_list, **options)
        return self.received(pairs, scale)

    def received(self, pairs: Iterable[tuple[Any, Any]], scale: object) -> BackwardResult:
        """Return the `BackwardResult` of gradients of the scaled loss; create missing masters.

        Args:
            pairs: (gradient, variable) pairs. The gradient has its variable's dtype, or is None.
            scale: The factor of the loss.

        Raises:
            ValueError: A float16 or bfloat16 variable has no gradient.
        """
        pairs = list(pairs)
        variables = [var for _, var in pairs]
        refuse_none((pair for pair in pairs if pair[1].dtype in REDUCED), "its master needs one")
        with self._opt._locked():
            targets = self._masters.of_all(variables)
        penalties: list[object] = [None] * len(targets)
        if may_have_penalties(variables):
            penalties = [
                None if target is var else penalty_gradient(var, target)
                for var, target in zip(variables, targets, strict=True)
            ]
        return BackwardResult([grad for grad, _ in pairs], variables, targets, penalties, scale)

    def _present_scale(self) -> object:
        """Return the present scale: a number, a copy of the scaler's, or a node that reads it."""
        scale = self.loss_scale
        if is_symbolic(scale):
            return scale.read_value()
        # The step's commit writes the next scale into the scaler's tensor.
        return scale.detach().clone() if isinstance(scale, Tensor) else scale

    @untraced
    def compute_gradients(
        self,
        loss: object,
        var_list: object = None,
        gate_gradients: int = Optimizer.GATE_OP,
        aggregation_method: object = None,
        colocate_gradients_with_ops: bool = False,
        grad_loss: object = None,
    ) -> Any:
        """Return the unscaled gradients of a loss, paired with the masters.

        Args:
            loss, var_list: As in `differentiate`.
            gate_gradients, aggregation_method, colocate_gradients_with_ops, grad_loss: As in
                `Optimizer.compute_gradients`.

        Returns:
            A list of (gradient, master) pairs. A variable that is not float16 or bfloat16 takes
            the place of a master.

        Raises:
            TypeError: The scale adapts and the loss is not float32.
            ValueError: A float16 or bfloat16 variable has no gradient.
            AttributeError: `as_shipped` is True, and the loss scale is not a float.
        """
        arguments = {
            "gate_gradients": (gate_gradients, Optimizer.GATE_OP),
            "aggregation_method": (aggregation_method, None),
            "colocate_gradients_with_ops": (colocate_gradients_with_ops, False),
            "grad_loss": (grad_loss, None),
        }
        # Only arguments that differ from their defaults: the inner optimizer may lack others.
        options = {
            name: value for name, (value, default) in arguments.items() if value is not default
        }
        backward = self.differentiate(loss, var_list, **options)

        def unscale(gradients: Any, targets: Any, penalties: Any, scale: Any) -> Any:
            return unscaled(BackwardResult(gradients, targets, targets, penalties, scale))

        present = backward.present()
        unscaled_gradients = map_gradients(
            unscale,
            present.gradients,
            present.targets,
            present.penalties,
            backward.scale,
            name="unscale",
            dtypes=[target.dtype for target in present.targets],
        )
        new_gradients = iter(unscaled_gradients)
        return [
            (None if grad is None else next(new_gradients), target)
            for grad, target in backward.pairs
        ]

    def _update(self, backward: BackwardResult, step: object, captured: object) -> None:
        """Update the targets, which are masters or variables, and the loss scale."""
        backward = backward.done(concretes(backward.gradients))
        report: list[Any] = []
        with self._opt._turn_lock(), self._opt._locked(), note_not_applied(report):
            check_any(backward.pairs)
            transforms = GradientTransforms(**decide_by_scaler(self.loss_scaler, report))
            outcome = update(self._opt, backward, transforms, step, captured)
        raise_first(outcome.errors)

    @untraced
    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Any]],
        global_step: Any = None,
        name: str | None = None,
        skip_gradients_aggregation: bool = False,
    ) -> Any:
        """Update the masters, and set each variable to its master.

        An `AutomaticLossScaler` skips the update if a gradient is not finite.

        Args:
            grads_and_vars: The (gradient, master) pairs that `compute_gradients` returned. The
                gradients may be replaced, for example by clipped ones.
            global_step: Optional. A variable that is raised by 1 if there is an update.
            name: Name of the operation in graph mode.
            skip_gradients_aggregation: Accepted for compatibility.

        Returns:
            None; in graph mode the operation that takes the step.

        Raises:
            TypeError, ValueError: See `Optimizer.apply_gradients`. Nothing has changed then,
                including the scaler.
        """
        pairs = check_given(as_pairs(grads_and_vars))
        targets = [target for _, target in pairs]
        originals = self._masters.originals(targets)
        target_gradients = [grad for grad, _ in pairs]
        backward = BackwardResult(target_gradients, originals, targets, [None] * len(targets))
        graph = graph_of(*targets, *target_gradients)
        if graph is None:
            with writable():
                self._update(backward, global_step, None)
            return None
        check_inner(self._opt)
        if all(grad is None for grad in target_gradients):
            # This raises the error for pairs without gradients.
            return self._opt.apply_gradients(pairs)
        with graph.as_default():
            if calls_hooks_at_build(self._opt):
                op = self._update_in_graph(backward.present(), global_step, name)
            else:
                counter = by_reference(global_step) if is_symbolic(global_step) else global_step
                inputs = [by_references(backward), counter, capture_inputs(self._opt, targets)]
                op = operation(self._update, inputs, name or self.get_name(), kind="update")
                op.written += variables_written_by(self._opt, targets, self.loss_scaler)
            graph.add_to_collection(GraphKeys.TRAIN_OP, op)
        return op

    def _update_in_graph(
        self, present: BackwardResult, global_step: object, name: str | None
    ) -> object:
        """Return the operation of an update, built by one call of the inner `apply_gradients`.

        `present` has only gradients that are not None.
        """
        scaler = self.loss_scaler

        def process(backward: BackwardResult) -> list[object] | None:
            backward = backward.done(concretes(backward.gradients))
            report: list[Any] = []
            with note_not_applied(report):
                check_any(backward.pairs)
                return process_gradients(
                    backward, GradientTransforms(**decide_by_scaler(scaler, report))
                )

        options = {"name": name, "always": scaler is None}
        inputs = [by_references(present)]
        update_ops = record_update(
            self._opt, present, process, inputs, global_step, scaler, **options
        )
        return group(update_ops.op, name=name or self.get_name())

    def state_dict(self) -> dict[str, Tensor]:
        """Return {name: copy} of masters, slots, beta powers, and the loss scaler's variables.

        The name of a master or slot begins with the variable's name, for example "w/", or "w#1/"
        for a second variable named "w". The trained variables are not included.

        Raises:
            FailedPreconditionError: The state is variables of a graph, which `Saver` saves.
        """
        return self._saved()

    def _saved(self, names: Names = keys_of, chosen: object = None) -> dict[str, Tensor]:
        return self._remembering(self._owners())._saved(names)

    def load_state_dict(
        self, state_dict: Mapping[str, object], var_list: Iterable[object] | None = None
    ) -> None:
        """Set all state, and set each variable to its loaded master; change nothing after an error.

        Args:
            state_dict: The result of `state_dict()`.
            var_list: The variables, in the order of training. Optional after a step.

        Raises:
            CheckpointMismatchError: Names, shapes or dtypes differ.
            FailedPreconditionError: There are no slots yet and no `var_list`, or the state is
                variables of a graph, which `Saver` restores.
        """
        with self._loading(state_dict, var_list) as loading:
            restore(loading)

    def _loading(
        self, state_dict: object, var_list: Any = None, names: Names = keys_of
    ) -> AbstractContextManager[Loading]:
        variables = self._owners() if var_list is None else list(var_list)
        return self._remembering(variables)._loading(state_dict, names=names)

    def _check_has_state(self) -> None:
        raise InvalidTypeError(
            "An optimizer around MixedPrecisionOptimizerWrapper has no names for its masters. Put"
            " it inside, around the optimizer that the wrapper is given."
        )

    def _remembering(self, variables: list[object]) -> TrainingState:
        check_eager(f"The state of {self._name}", (), variables or executing_eagerly())
        return TrainingState(self._opt, variables, self._masters, self.loss_scaler)

    def _owners(self) -> list[Any]:
        """Return the variables that have state, in order."""
        owners: list[Any] = self._opt._owners()
        owner_ids = {id(owner) for owner in owners}
        masters = [master for _, master in self._masters.pairs()]
        targets = [*owners, *(master for master in masters if id(master) not in owner_ids)]
        return distinct(self._masters.originals(targets))


def check_inner(optimizer: Optimizer) -> None:
    """Raise InvalidTypeError if an optimizer wraps another optimizer; graphs do not support it."""
    if isinstance(optimizer, WrappingOptimizer):
        raise InvalidTypeError(
            f"{type(optimizer).__name__} wraps another optimizer, which works here for steps of"
            " eager mode only. Give the optimizer inside."
        )


def checked_scale(loss_scale: object, as_shipped: bool) -> float | AutomaticLossScaler | None:
    """Return a loss scale as a float; return 1.0 for None, and an `AutomaticLossScaler` unchanged.

    With `as_shipped`, nothing is checked. An object of any other type, even an int, gives None.

    Raises:
        TypeError: `loss_scale` is not a number.
        ValueError: `loss_scale` is not a finite number above 0.
    """
    if loss_scale is None:
        return 1.0
    if isinstance(loss_scale, AutomaticLossScaler):
        return loss_scale
    # OpenSeq2Seq ignores other types here, and raises an error in `compute_gradients`.
    if as_shipped:
        return loss_scale if isinstance(loss_scale, float) else None
    if isinstance(loss_scale, bool) or not isinstance(loss_scale, int | float | np.number):
        raise InvalidTypeError(
            f"loss_scale must be a number, an AutomaticLossScaler or None, not"
            f" {show_value(loss_scale)}."
        )
    check_size("loss_scale", loss_scale)
    with np.errstate(all="ignore"):
        in_float32 = np.float32(loss_scale)
        bounds = in_float32, np.float32(1) / in_float32
    if not all(np.isfinite(bound) and bound > 0 for bound in bounds):
        raise InvalidArgumentError(
            f"loss_scale must be finite and above 0 in float32, and 1 / loss_scale, too, not"
            f" {show_value(loss_scale)}."
        )
    return float(loss_scale)


def refuse_no_scale(loss_scale: object) -> None:
    """Raise AttributeError if `checked_scale` returned None for an ignored type."""
    if loss_scale is None:
        raise OptionError("'MixedPrecisionOptimizerWrapper' has no loss scale: it is no float.")
