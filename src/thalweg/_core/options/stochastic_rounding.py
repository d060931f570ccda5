"""Option for the rounding of 16-bit parameters and slots."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Any

from thalweg._base.exports import exported_from
from thalweg._base.showing import show_value
from thalweg._core.options.base import Option, Others
from thalweg._core.options.master_weights import Offload
from thalweg._engines.random_bits import SEEDS, scalars_of
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.formula import Rule


@exported_from("thalweg.optim.options")
@dataclass(frozen=True, kw_only=True)
class Rounding(Option):
    """Rounding mode of 16-bit parameters and state.

    Attributes:
        round: "stochastic" rounds float16 and bfloat16 elements of parameters and state up with a
            probability equal to their distance from the lower neighbour, so that small steps add
            up. NaN, infinities and exact values stay. Random bits depend only on `seed`, the index
            of the parameter, the number of its step, and the index of the element in the full
            parameter. None rounds to nearest. Works on CPU and GPU; not with sparse gradients or
            `state_device`, nor on a GPU with DTensors sharded along another dimension than the
            first.
        seed: An integer from 0 to 2**48 - 1, saved in state dicts. All ranks of a training need
            the same seed.
    """

    counts = True
    round: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        self._check_choice("round", "stochastic")
        seed: Any = self.seed
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise InvalidTypeError(f"seed must be an integer, not {show_value(self.seed)}.")
        if not 0 <= self.seed < SEEDS:
            raise InvalidArgumentError(f"seed must be from 0 to 2**48 - 1, not {self.seed}.")
        if self.seed and self.round is None:
            raise InvalidArgumentError(
                f"seed={self.seed} is of random bits, which round='stochastic' alone draws."
            )

    def check_beside(self, options: Others) -> None:
        if options.of(Offload).state_device is not None:
            raise InvalidArgumentError(
                "round='stochastic' and state_device='cpu' cannot be together: parameters on a GPU"
                " are copies of what a step updates."
            )

    def check_rows(self, label: str) -> None:
        """Raise an error unless the parameter named `label` may have a sparse gradient.

        Raises:
            NotImplementedError: `round` is "stochastic".
        """
        if self.round is not None:
            raise NotImplementedError(
                f"The gradient of '{label}' is sparse, and round={self.round!r} is for dense ones:"
                " leave out one of them, or update it with an optimizer of its own."
            )

    def rule(self, rule: Rule) -> Rule:
        """Return the rule unchanged: kernels get the random bits' key as extra scalars."""
        return rule

    def scalars(self, lacked: Container[str], step: object) -> dict[str, Any]:
        """Return the key of the random bits and the number of the step."""
        return scalars_of(self.seed, step)
