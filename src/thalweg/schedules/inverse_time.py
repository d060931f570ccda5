"""Inverse time decay."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg._base.scalars import Number, Scalar
from thalweg.schedules import formulas
from thalweg.schedules.base import FormulaSchedule, Step, as_scalars


@dataclass(eq=False)
class InverseTimeDecay(FormulaSchedule):
    """Divides the learning rate by a number that grows linearly with the step.

        initial_learning_rate / (1 + decay_rate * step / decay_steps)

    Args:
        initial_learning_rate: A float; its type is the type of the result. A Python float gives
            float32, `numpy.float64` or a float64 tensor gives float64.
        decay_steps: Steps in which the denominator grows by `decay_rate`. 0 gives NaN at step 0.
        decay_rate: Growth of the denominator.
        staircase: Round `step / decay_steps` down, so that the rate changes in jumps.
        name: Kept for the config.

    Example:
        >>> schedule = InverseTimeDecay(0.1, decay_steps=1.0, decay_rate=0.5)
        >>> schedule(0), schedule(2), schedule(18)
        (tensor(0.1000), tensor(0.0500), tensor(0.0100))

    Differs from:
        The optimizers' argument `decay` has no `decay_steps` and no staircase; the two combine.

    Reference: `tf.keras.optimizers.schedules.InverseTimeDecay`
    """

    initial_learning_rate: Number
    decay_steps: Number
    decay_rate: Number
    staircase: bool = False
    name: str | None = None

    def formula(self, step: Step) -> Scalar:
        scalars = as_scalars(self.initial_learning_rate, step, self.decay_steps, self.decay_rate)
        return formulas.inverse_time(*scalars, staircase=self.staircase)
