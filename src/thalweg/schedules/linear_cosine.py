"""Linear cosine decay, plain and noisy."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from thalweg._base.scalars import Number, Scalar
from thalweg.errors import CheckpointMismatchError
from thalweg.schedules import formulas
from thalweg.schedules.base import FormulaSchedule, Step, as_scalars


@dataclass(eq=False)
class LinearCosineDecay(FormulaSchedule):
    """The product of a straight line and a cosine.

        step = min(step, decay_steps)
        line = (decay_steps - step) / decay_steps
        cosine = 0.5 * (1 + cos(pi * 2 * num_periods * step / decay_steps))
        initial_learning_rate * ((alpha + line) * cosine + beta)

    Args:
        initial_learning_rate: A float; its type is the type of the result. A Python float gives
            float32, `numpy.float64` or a float64 tensor gives float64.
        decay_steps: Steps until the line reaches 0. 0 gives NaN at step 0.
        num_periods: Periods of the cosine in `decay_steps`.
        alpha: Added to the line.
        beta: Added to the product.
        name: Kept for the config.

    Example:
        >>> schedule = LinearCosineDecay(0.1, decay_steps=100)
        >>> schedule(0), schedule(50), schedule(100)
        (tensor(0.1001), tensor(0.0251), tensor(0.0001))

    Differs from:
        `torch.optim` has no counterpart.

    Reference: `tf.keras.experimental.LinearCosineDecay`, https://arxiv.org/abs/1709.07417
    """

    initial_learning_rate: Number
    decay_steps: Number
    num_periods: Number = 0.5
    alpha: Number = 0.0
    beta: Number = 0.001
    name: str | None = None

    def formula(self, step: Step) -> Scalar:
        fields = (self.decay_steps, self.num_periods, self.alpha, self.beta)
        return formulas.linear_cosine(*as_scalars(self.initial_learning_rate, step, *fields))


@dataclass(eq=False)
class NoisyLinearCosineDecay(FormulaSchedule):
    """Linear cosine decay with noise on the line.

        step = min(step, decay_steps)
        noise ~ Normal(0, variance = initial_variance / (1 + step) ** variance_decay)
        line = (decay_steps - step) / decay_steps + noise
        cosine = 0.5 * (1 + cos(pi * 2 * num_periods * step / decay_steps))
        initial_learning_rate * ((alpha + line) * cosine + beta)

    Args:
        initial_learning_rate: A float; its type is the type of the result. A Python float gives
            float32, `numpy.float64` or a float64 tensor gives float64.
        decay_steps: Steps until the line reaches 0. 0 gives NaN at step 0.
        initial_variance: Variance of the noise at step 0; 0 for none.
        variance_decay: Exponent with which the variance falls.
        num_periods: Periods of the cosine in `decay_steps`.
        alpha: Added to the line.
        beta: Added to the product.
        seed: Start of the schedule's own sequence of random numbers; None for an unpredictable one.
        name: Kept for the config.

    Example:
        >>> noisy = NoisyLinearCosineDecay(0.1, decay_steps=100, seed=1)
        >>> again = NoisyLinearCosineDecay.from_config(noisy.get_config())
        >>> [noisy(step) for step in range(9)] == [again(step) for step in range(9)]
        True
        >>> NoisyLinearCosineDecay(0.1, decay_steps=100, initial_variance=0.0)(50)
        tensor(0.0251)

    Differs from:
        The random numbers are NumPy's (PCG64), not TensorFlow's. In both, every call draws a new
        number, so two calls with one step differ. There, a resumed run starts the sequence again.
        Here `load_state_dict` and `thalweg.checkpoint.restore` continue it. The `state_dict` of an
        optimizer, `train.Checkpoint` and `Saver` do not contain it. `torch.optim` has no
        counterpart.

    Reference: `tf.keras.experimental.NoisyLinearCosineDecay`, https://arxiv.org/abs/1709.07417
    """

    initial_learning_rate: Number
    decay_steps: Number
    initial_variance: Number = 1.0
    variance_decay: Number = 0.55
    num_periods: Number = 0.5
    alpha: Number = 0.0
    beta: Number = 0.001
    seed: int | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._generator = np.random.default_rng(self.seed)

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the sequence of random numbers, as strings and integers."""
        return copy.deepcopy(dict(self._generator.bit_generator.state))

    def load_state_dict(self, state_dict: Mapping[str, object]) -> None:
        """Continue the sequence of random numbers from a position returned by `state_dict()`.

        Raises:
            CheckpointMismatchError: `state_dict` is invalid. Nothing was loaded.
        """
        # A new generator, so that an invalid state changes nothing.
        bits: Any = np.random.PCG64(0)
        try:
            bits.state = copy.deepcopy(dict(state_dict))
        except (TypeError, ValueError, KeyError, OverflowError) as error:
            raise CheckpointMismatchError(
                f"The state of {type(self).__name__}: {error}. Nothing was loaded."
            ) from error
        self._generator = np.random.Generator(bits)

    def formula(self, step: Step) -> Scalar:
        fields = (self.num_periods, self.alpha, self.beta)
        rate, *args = as_scalars(self.initial_learning_rate, step, self.decay_steps, *fields)
        _, *spread = as_scalars(rate, self.initial_variance, self.variance_decay)
        draw = type(rate)(self._generator.standard_normal())
        return formulas.linear_cosine(rate, *args, noise=formulas.noise(draw, *args[:2], *spread))
