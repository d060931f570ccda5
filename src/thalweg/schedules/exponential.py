"""Exponential decay."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg._base.scalars import Number, Scalar
from thalweg.schedules import formulas
from thalweg.schedules.base import FormulaSchedule, Step, as_scalars


@dataclass(eq=False)
class ExponentialDecay(FormulaSchedule):
    """Multiplies the learning rate by `decay_rate` every `decay_steps` steps.

        initial_learning_rate * decay_rate ** (step / decay_steps)

    Args:
        initial_learning_rate: A float; its type is the type of the result. A Python float gives
            float32, `numpy.float64` or a float64 tensor gives float64.
        decay_steps: Steps for one factor of `decay_rate`. 0 gives NaN at step 0.
        decay_rate: The factor.
        staircase: Round `step / decay_steps` down, so that the rate changes in jumps.
        name: Kept for the config.

    Example:
        >>> schedule = ExponentialDecay(0.1, decay_steps=10, decay_rate=0.5)
        >>> schedule(0), schedule(10), schedule(15)
        (tensor(0.1000), tensor(0.0500), tensor(0.0354))
        >>> ExponentialDecay(0.1, decay_steps=10, decay_rate=0.5, staircase=True)(15)
        tensor(0.0500)

    Differs from:
        `torch.optim.lr_scheduler.ExponentialLR` multiplies the last rate, so it accumulates
        rounding and must be stepped; this is a function of the step.

    Reference: `tf.keras.optimizers.schedules.ExponentialDecay`
    """

    initial_learning_rate: Number
    decay_steps: Number
    decay_rate: Number
    staircase: bool = False
    name: str | None = None

    def formula(self, step: Step) -> Scalar:
        scalars = as_scalars(self.initial_learning_rate, step, self.decay_steps, self.decay_rate)
        return formulas.exponential(*scalars, staircase=self.staircase)
