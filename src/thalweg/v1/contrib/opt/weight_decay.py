"""Weight decay beside the step of an optimizer, not inside its gradients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from functools import cache
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from thalweg.core.hyperparameters import is_function
from thalweg.core.outcome import not_taken, restored
from thalweg.core.pairs import Pair, distinct
from thalweg.core.pipeline import NOTHING, PerVariable, Pipeline
from thalweg.core.step import Plans
from thalweg.graph import by_reference, current_session, graph_variable_of, is_symbolic
from thalweg.rules.weight_decay import WEIGHT_DECAY
from thalweg.scalars import as_operand
from thalweg.v1.train.optimizer import Optimizer
from thalweg.variable import titles_of

# The optimizer whose `minimize` is under way, and the variables that it is to decay.
_MINIMIZING: ContextVar[tuple[Any, Any]] = ContextVar("decay_var_list", default=(None, None))


class DecoupledWeightDecayExtension(Optimizer):
    """Gives an optimizer decoupled weight decay; name it before that optimizer's class.

        var <- var - weight_decay var, and then the optimizer's own step

    A dense gradient decays the whole variable, a sparse one the rows it names, each once. The decay
    is not multiplied by the learning rate: let both fall where one falls.

    Args:
        weight_decay: Share of a variable that a step takes away. A float, 0-d tensor, or callable
            without arguments.
        *args, **kwargs: For the optimizer.

    Differs from:
        TensorFlow, whose `minimize` forgets its `decay_var_list` and decays all variables, where
        callables fail, and where rows are not decayed beside `GradientDescentOptimizer`.

    Example:
        >>> from thalweg import Variable
        >>> from thalweg.v1.train import MomentumOptimizer
        >>> class MomentumW(DecoupledWeightDecayExtension, MomentumOptimizer):
        ...     pass
        >>> w = Variable(10.0, name="w")
        >>> MomentumW(0.1, learning_rate=1.0, momentum=0.9).apply_gradients([(2.0, w)])
        >>> w.numpy()
        np.float32(7.0)

    Reference: tf.contrib.opt.DecoupledWeightDecayExtension; https://arxiv.org/abs/1711.05101
    """

    FUSED: ClassVar[bool] = False  # whether the optimizer's rule has the decay in it

    def __init__(self, weight_decay: Any, *args: Any, **kwargs: Any) -> None:
        self._weight_decay = weight_decay
        self._decay_value: Any = None  # of the step under way
        self._decay_var_list: list[Any] | None = None  # None: all
        self._decay_plans = Plans()
        super().__init__(*args, **kwargs)

    def minimize(
        self,
        loss: Any,
        global_step: Any = None,
        var_list: Any = None,
        gate_gradients: int = Optimizer.GATE_OP,
        aggregation_method: Any = None,
        colocate_gradients_with_ops: bool = False,
        name: str | None = None,
        grad_loss: Any = None,
        decay_var_list: Iterable[Any] | None = None,
    ) -> Any:
        """As `Optimizer.minimize`.

        Args:
            loss, global_step, var_list, gate_gradients, aggregation_method,
                colocate_gradients_with_ops, name, grad_loss: As there.
            decay_var_list: Optional. The variables that are decayed; all of them if None or empty.
        """
        token = _MINIMIZING.set((self, decay_var_list))
        try:
            return super().minimize(
                loss,
                global_step,
                var_list,
                gate_gradients,
                aggregation_method,
                colocate_gradients_with_ops,
                name,
                grad_loss,
            )
        finally:
            _MINIMIZING.reset(token)

    def apply_gradients(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        grads_and_vars: Iterable[tuple[Any, Any]],
        global_step: Any = None,
        name: str | None = None,
        decay_var_list: Iterable[Any] | None = None,
    ) -> Any:
        """As `Optimizer.apply_gradients`.

        Args:
            grads_and_vars, global_step, name: As there.
            decay_var_list: Optional. The variables that are decayed; all of them if None or empty.
        """
        optimizer, chosen = _MINIMIZING.get()
        if decay_var_list is None and optimizer is self:
            decay_var_list = chosen
        listed = None if decay_var_list is None else list(decay_var_list)
        with self._locked():
            self._decay_var_list = listed or None
            return super().apply_gradients(grads_and_vars, global_step, name)

    _APPLIES = apply_gradients

    def sweeps(self) -> bool:
        """See `RuleOptimizer.sweeps`."""
        return self.FUSED and super().sweeps()  # pyright: ignore

    def apply_in_sweeps(self, *step: Any) -> bool | None:
        """See `RuleOptimizer.apply_in_sweeps`; all variables are decayed."""
        with self._locked():
            if current_session() is None:
                self._decay_var_list = None
            return super().apply_in_sweeps(*step)  # pyright: ignore

    def _decays(self, var: Tensor) -> bool:
        chosen = self._decay_var_list
        return chosen is None or any(var is each for each in chosen)

    def _pipeline(self, variables: Sequence[Tensor], gradients: Sequence[Any]) -> Pipeline:
        """For a rule that has the decay in it: 0 for the variables that are left out."""
        if not self.FUSED or self._decay_var_list is None:
            return NOTHING
        chosen = np.array([self._decays(var) for var in variables])
        return PerVariable(
            of=lambda measure: {
                "weight_decay": np.where(chosen, as_operand(self._decay_value, np.float64), 0.0)
            }
        )

    def _prepare(self) -> None:
        if current_session() is None:
            self._decay_value = self._call_if_callable(self._weight_decay)
        super()._prepare()

    def _captured(self) -> list[Any]:
        chosen = [graph_variable_of(var) for var in self._decay_var_list or ()]
        own = [by_reference(var) if is_symbolic(var) else var for var in chosen]
        return [self._call_if_callable(self._weight_decay), own, super()._captured()]

    def _restore_captured(self, values: list[Any]) -> None:
        self._decay_value, chosen, others = values
        self._decay_var_list = list(chosen) or None
        super()._restore_captured(others)

    def _apply_pairs(self, pairs: list[Pair]) -> list[BaseException]:
        if self.FUSED:
            return super()._apply_pairs(pairs)
        variables = distinct([var for _, var in pairs])
        decayed = [(grad, var) for grad, var in pairs if self._decays(var)]
        if len(variables) < len(pairs):  # decay and step alternate where a variable comes twice
            with not_taken(), restored(self._written(variables)):
                return [error for pair in pairs for error in self._apply_pairs([pair])]
        with not_taken(), restored([var for _, var in decayed]):
            self._decay_weights(decayed)
            return super()._apply_pairs(pairs)

    def _decay_weights(self, pairs: list[Pair]) -> None:
        if pairs:
            with torch.no_grad():
                self._decay_plans.now().together.take(
                    WEIGHT_DECAY,
                    NOTHING,
                    pairs,
                    titles_of([var for _, var in pairs]),
                    [()] * len(pairs),
                    lambda dtype: {"weight_decay": as_operand(self._decay_value, dtype)},
                    self._selection(),
                    calls=False,
                )

    def _calls(self) -> bool:
        own = is_function(self._weight_decay)
        return own or super()._calls()  # pyright: ignore[reportAttributeAccessIssue]

    def _repeats(self, given: list[tuple[Any, Any]], global_step: Any) -> bool:
        return self.FUSED and super()._repeats(given, global_step)


@cache
def extend_with_decoupled_weight_decay(base_optimizer: type[Any]) -> type[Any]:
    """The class of an optimizer that decays weights before each step of `base_optimizer`.

    Args:
        base_optimizer: A class derived from `Optimizer`.

    Returns:
        A class whose constructor takes `weight_decay` and then the arguments of `base_optimizer`;
        see `DecoupledWeightDecayExtension`. The same one each time.

    Reference: tf.contrib.opt.extend_with_decoupled_weight_decay
    """

    class OptimizerWithDecoupledWeightDecay(DecoupledWeightDecayExtension, base_optimizer):
        __doc__ = f"`{base_optimizer.__name__}` with decoupled weight decay, its first argument."

        def __reduce__(self) -> Any:  # pickle does not find a class that was made by a function
            return _blank, (base_optimizer,), self.__getstate__()

    return OptimizerWithDecoupledWeightDecay


def _blank(base_optimizer: type[Any]) -> Any:
    extended = extend_with_decoupled_weight_decay(base_optimizer)
    return object.__new__(extended)
