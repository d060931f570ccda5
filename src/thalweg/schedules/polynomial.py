"""Polynomial decay."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg._base.scalars import Number, Scalar, as_operand
from thalweg.schedules import formulas
from thalweg.schedules.base import FormulaSchedule, Step, as_scalars


@dataclass(eq=False)
class PolynomialDecay(FormulaSchedule):
    """Goes from `initial_learning_rate` to `end_learning_rate` along a polynomial, and stays there.

        step = min(step, decay_steps)
        (initial_learning_rate - end_learning_rate) * (1 - step / decay_steps) ** power
            + end_learning_rate

    Args:
        initial_learning_rate: A float; its type is the type of the result. A Python float gives
            float32, `numpy.float64` or a float64 tensor gives float64.
        decay_steps: Steps until `end_learning_rate` is reached. 0 gives NaN at step 0.
        end_learning_rate: The last learning rate; may be above `initial_learning_rate`.
        power: Of the polynomial; 1 is a straight line.
        cycle: Beyond `decay_steps`, start again from a higher rate: `decay_steps` is replaced by
            the least multiple that is at least `step`.
        name: Kept for the config.

    Example:
        >>> schedule = PolynomialDecay(0.1, decay_steps=20, end_learning_rate=0.01)
        >>> schedule(0), schedule(10), schedule(1000)
        (tensor(0.1000), tensor(0.0550), tensor(0.0100))

    Differs from:
        A cycle ends *on* its last step: with `cycle` the rate is `end_learning_rate` at
        `decay_steps` and jumps up one step later. `torch.optim.lr_scheduler.PolynomialLR` goes to
        0 and has no cycle.

    Reference: `tf.keras.optimizers.schedules.PolynomialDecay`
    """

    initial_learning_rate: Number
    decay_steps: Number
    end_learning_rate: Number = 0.0001
    power: Number = 1.0
    cycle: bool = False
    name: str | None = None

    def formula(self, step: Step) -> Scalar:
        scalars = as_scalars(
            self.initial_learning_rate, step, self.decay_steps, self.end_learning_rate, self.power
        )
        cycle = as_operand(self.decay_steps, scalars[0].dtype.type) if self.cycle else None
        return formulas.polynomial(*scalars, cycle=cycle)
