"""Cosine decay, with a warmup or with restarts."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg._base.scalars import Number, Scalar
from thalweg.schedules import formulas
from thalweg.schedules.base import FormulaSchedule, Step, as_scalars


@dataclass(eq=False)
class CosineDecay(FormulaSchedule):
    """Falls along half a cosine to `alpha` times the initial rate, after an optional linear warmup.

        initial_learning_rate * ((1 - alpha) * 0.5 * (1 + cos(pi * step / decay_steps)) + alpha)

    With a `warmup_target` the rate first goes in a straight line from `initial_learning_rate` to
    `warmup_target`, in `warmup_steps`; the cosine starts there and takes `decay_steps` more.

    Args:
        initial_learning_rate: A float; its type is the type of the result. A Python float gives
            float32, `numpy.float64` or a float64 tensor gives float64.
        decay_steps: Steps of the cosine. 0 gives NaN at step 0.
        alpha: The last learning rate as a fraction of the first.
        name: Kept for the config.
        warmup_target: Learning rate at the end of the warmup; None for no warmup.
        warmup_steps: Steps of the warmup.

    Example:
        >>> schedule = CosineDecay(0.1, decay_steps=50)
        >>> schedule(0), schedule(25), schedule(50)
        (tensor(0.1000), tensor(0.0500), tensor(0.))
        >>> warm = CosineDecay(0.0, decay_steps=40, warmup_target=0.3, warmup_steps=10)
        >>> warm(5), warm(10), warm(30)
        (tensor(0.1500), tensor(0.3000), tensor(0.1500))

    Differs from:
        An int for `initial_learning_rate`, which TensorFlow's own example shows and which fails
        when called there, raises TypeError in the constructor.
        `torch.optim.lr_scheduler.CosineAnnealingLR` rises again after `T_max`; this one stays.

    Reference: `tf.keras.optimizers.schedules.CosineDecay`, https://arxiv.org/abs/1608.03983
    """

    initial_learning_rate: Number
    decay_steps: Number
    alpha: Number = 0.0
    name: str | None = None
    warmup_target: Number | None = None
    warmup_steps: Number = 0

    def formula(self, step: Step) -> Scalar:
        rate, count, decay_steps = as_scalars(self.initial_learning_rate, step, self.decay_steps)
        warmup = []
        if self.warmup_target is not None:
            _, *warmup = as_scalars(rate, self.warmup_target, self.warmup_steps)
        # Unlike the other numbers, alpha does not pass through float32 on its way to float64.
        return formulas.cosine(rate, count, decay_steps, self.alpha, warmup)


@dataclass(eq=False)
class CosineDecayRestarts(FormulaSchedule):
    """Falls along half a cosine, jumps up, and falls again in a longer period.

        initial_learning_rate * ((1 - alpha) * 0.5 * m_mul**i * (1 + cos(pi * x)) + alpha)

    in period `i`; `x` is the finished fraction of the period.

    Args:
        initial_learning_rate: A float; its type is the type of the result. A Python float gives
            float32, `numpy.float64` or a float64 tensor gives float64.
        first_decay_steps: Steps of the first period. 0 gives NaN.
        t_mul: Length of a period, divided by the length of the previous period.
        m_mul: First rate of a period, divided by the first rate of the previous period.
        alpha: The lowest learning rate as a fraction of the first.
        name: Kept for the config.

    Example:
        >>> schedule = CosineDecayRestarts(0.1, first_decay_steps=10, m_mul=0.5)
        >>> schedule(0), schedule(5), schedule(10), schedule(30)
        (tensor(0.1000), tensor(0.0500), tensor(0.0500), tensor(0.0250))

    Differs from:
        A restart step belongs to the new period, as in
        `torch.optim.lr_scheduler.CosineAnnealingWarmRestarts`, which has no `m_mul`. The number of
        the period is a quotient of two logarithms, rounded down: late restarts may, by rounding,
        begin a step too late, in TensorFlow too.

    Reference: `tf.keras.optimizers.schedules.CosineDecayRestarts`, https://arxiv.org/abs/1608.03983
    """

    initial_learning_rate: Number
    first_decay_steps: Number
    t_mul: Number = 2.0
    m_mul: Number = 1.0
    alpha: Number = 0.0
    name: str | None = None

    def formula(self, step: Step) -> Scalar:
        fields = (self.first_decay_steps, self.t_mul, self.m_mul, self.alpha)
        return formulas.cosine_restarts(*as_scalars(self.initial_learning_rate, step, *fields))
