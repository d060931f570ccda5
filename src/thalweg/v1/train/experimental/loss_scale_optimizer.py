"""`MixedPrecisionLossScaleOptimizer`: an optimizer that wraps another and scales the loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from thalweg import _graph
from thalweg._base.tracing import untraced
from thalweg._core.atomic_section import calls, drain
from thalweg._core.commit import putting_back, says_committed
from thalweg._core.gradient_transforms import NOTHING, GradientTransforms
from thalweg._core.grads_and_vars import as_gradient
from thalweg._core.state import Entry
from thalweg._core.validation import check_readable
from thalweg._core.vectors import is_host
from thalweg.errors import InvalidArgumentError
from thalweg.v1.train.apply_gradients import StepArguments
from thalweg.v1.train.experimental import loss_scale as scales
from thalweg.v1.train.optimizer import Optimizer
from thalweg.v1.train.update_hooks import apply_if
from thalweg.v1.train.wrapping_optimizer import WrappingOptimizer
from thalweg.variable import titles_of


class MixedPrecisionLossScaleOptimizer(WrappingOptimizer):
    """Optimizer that multiplies the loss by a scale and divides the gradients by it.

    With a `DynamicLossScale`, a step with infinite or NaN gradients is skipped, and `global_step`
    does not change.

    Args:
        opt: The optimizer that updates the variables.
        loss_scale: A number, "dynamic", or a `LossScale`.

    Raises:
        ValueError: `opt` is not an optimizer, or `loss_scale` is not a loss scale.

    Example:
        >>> from thalweg import Variable
        >>> from thalweg.v1.train import GradientDescentOptimizer
        >>> w = Variable(5.0, name="w")
        >>> opt = MixedPrecisionLossScaleOptimizer(GradientDescentOptimizer(2.0), "dynamic")
        >>> opt.minimize(lambda: w * 1.0, var_list=[w])
        >>> w.numpy()
        np.float32(3.0)

    Reference: tf.train.experimental.MixedPrecisionLossScaleOptimizer
    """

    def __init__(self, opt: Any, loss_scale: object) -> None:
        super().__init__(opt, opt._use_locking if hasattr(opt, "_use_locking") else False, None)
        scale = scales.get(loss_scale)
        if scale is None:
            raise InvalidArgumentError("loss_scale cannot be None.")
        self._optimizer = self._track_trackable(opt, "base_optimizer")
        self._loss_scale = self._track_trackable(scale, "loss_scale")

    @untraced
    def compute_gradients(
        self,
        loss: object,
        var_list: object = None,
        gate_gradients: int = WrappingOptimizer.GATE_OP,
        aggregation_method: object = None,
        colocate_gradients_with_ops: bool = False,
        grad_loss: object = None,
    ) -> list[tuple[Any, Any]]:
        """Return (gradient, variable) pairs: gradients of the scaled loss, divided by the scale."""

        def scale_loss(loss_value: object) -> object:
            return loss_value * _cast_scale(self._loss_scale(), loss_value)

        pairs = self._opt.compute_gradients(
            (lambda: scale_loss(loss())) if callable(loss) else scale_loss(loss),
            var_list=var_list,
            gate_gradients=gate_gradients,
            aggregation_method=aggregation_method,
            colocate_gradients_with_ops=colocate_gradients_with_ops,
            grad_loss=grad_loss,
        )
        factor = 1.0 / self._loss_scale()
        return [
            (None if grad is None else grad * _cast_scale(factor, grad), var) for grad, var in pairs
        ]

    def _apply(
        self,
        pairs: list[tuple[object, object]],
        arguments: StepArguments,
        transforms: GradientTransforms = NOTHING,
    ) -> None:
        """Update the loss scale, and apply the gradients unless `LossScale.update` rejects them.

        In graph mode, a run of the step's operation calls this method. If an error occurs before
        the variables are written, the loss scale is restored.

        Gradients in `pairs` are None, or divided by the scale. See `_take` for other arguments.
        """
        scale = self._loss_scale
        scale_weights = [_graph.resolve(var) for var in scale._weights.values()]
        for var in filter(_graph.is_symbolic, scale_weights):
            raise InvalidArgumentError(
                f"'{var.name}' was made in a graph, and has no value in eager mode: make the"
                " optimizer there."
            )
        if transforms is NOTHING and self._may_leave(pairs):
            transforms = GradientTransforms(decide=scale.decide, decides_there=True, overflow=False)
            self._opt._apply(pairs, arguments, transforms)
            return
        variables = [_graph.resolve(var) for _, var in pairs]
        names = titles_of(variables)
        gradients = [
            None if grad is None else as_gradient(grad, var, name)
            for (grad, _), var, name in zip(pairs, variables, names, strict=True)
        ]
        check_readable(gradients, names)
        with self._turn_lock(), self._locked():
            # Copied now: `update` writes the scale before the wrapped optimizer takes the step.
            undo = calls(putting_back(scale_weights))
            try:
                _, should_apply = self._loss_scale.update(gradients)
                if should_apply and self._opt.takes_transforms():
                    self._opt._apply(pairs, arguments, transforms)
                elif should_apply:
                    self._opt.apply_gradients(
                        pairs, global_step=arguments.global_step, name=arguments.name
                    )
            except BaseException as error:
                if not says_committed(error):
                    drain(undo)
                raise

    def _may_leave(self, pairs: Sequence[tuple[object, object]]) -> bool:
        """Return True if a device may decide, in place of the host, whether to skip the step.

        This requires eager mode, a `DynamicLossScale`, and a variable outside of host memory. The
        wrapped optimizer must not be a wrapper, nor override `apply_gradients`.
        """
        is_direct = not isinstance(self._opt, WrappingOptimizer) and self._opt.takes_transforms()
        is_dynamic = type(self._loss_scale) is scales.DynamicLossScale
        on_device = not all(isinstance(var, Tensor) and is_host(var) for _, var in pairs)
        return _graph.executing_eagerly() and is_direct and is_dynamic and on_device

    def _apply_in_graph(self, pairs: list[tuple[Any, Any]], global_step: Any, name: Any) -> Any:
        """Return an operation that updates the scale, and the variables unless a step is skipped.

        In a run, the operation calls `_apply`. If the wrapped optimizer overrides hooks or
        `apply_gradients`, call the overrides now; a branch (`cond`) contains their operations.
        """
        if self._opt.takes_transforms() and not self._opt._is_recorded():
            return super()._apply_in_graph(pairs, global_step, name)
        graph = _graph.get_default_graph()

        def apply_unscaled() -> object:
            return _graph.group(self._opt.apply_gradients(pairs, global_step=global_step))

        # One unit: if the step fails in a run, the scale is restored, too.
        with graph.as_one():
            scale_update, should_apply = self._loss_scale.update([grad for grad, _ in pairs])
            apply_op = apply_if(should_apply, apply_unscaled)
            step_op = _graph.group(apply_op, scale_update, name=name or self._name)
        graph.add_to_collection(_graph.GraphKeys.TRAIN_OP, step_op)
        return step_op

    def _captured_inputs(self) -> list[Any]:
        return self._opt._captured_inputs()

    def _kept_in_graph(self, variables: Sequence[object]) -> list[object]:
        return [*super()._kept_in_graph(variables), *self._loss_scale._weights.values()]

    # Unlike other wrappers, a checkpoint has the optimizer inside and the scale as children.
    _trackable_children = Optimizer._trackable_children
    _lookup_dependency = Optimizer._lookup_dependency

    def _checkpointed(self) -> object:
        return self

    def _own_entries(self) -> list[Entry]:
        weights = self._loss_scale._weights.items()
        entries = [Entry(f"loss_scale/{name}", var) for name, var in weights]
        return [*super()._own_entries(), *entries]

    def variables(self) -> list[Any]:
        """Return the variables of the optimizer inside, and of the loss scale."""
        in_graph = not _graph.executing_eagerly()
        weights = self._loss_scale._weights.values()
        present = [var for var in weights if hasattr(var, "initializer") == in_graph]
        return [*self._opt.variables(), *present]


def _cast_scale(scale: Any, tensor: Any) -> Any:
    """Return the scale in the dtype and on the device of a tensor."""
    cast_tensor = _graph.cast(scale, tensor.dtype)
    return cast_tensor.to(tensor.device) if isinstance(cast_tensor, Tensor) else cast_tensor
