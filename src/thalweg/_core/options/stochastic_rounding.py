"""How parameters and slots of 16 bits are rounded."""

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
    """Rounding of what is kept in 16 bits.

    Attributes:
        round: "stochastic" has a number of float16 or bfloat16, of a parameter or of its state,
            become the upper one of its two neighbours as often as it is near it, so that small
            steps add up. NaN, infinities and what the type holds stay. Random bits depend on
            `seed`, on the parameter's place among all, on the number of its step, and on the
            place of the element in the whole parameter: on nothing else. None rounds to the
            nearest. On the CPU and on GPUs; not with sparse gradients, `state_device`, or DTensors
            that are cut along another dimension than the first.
        seed: An integer from 0 to 2**48 - 1, of which states tell. Ranks of one training have the
            same.
    """

    counts = True
    round: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.round not in (None, "stochastic"):
            raise InvalidArgumentError(
                f"round must be None or 'stochastic', not {show_value(self.round)}."
            )
        given: Any = self.seed
        if isinstance(given, bool) or not isinstance(given, int):
            raise InvalidTypeError(f"seed must be an integer, not {show_value(self.seed)}.")
        if not 0 <= self.seed < SEEDS:
            raise InvalidArgumentError(f"seed must be from 0 to 2**48 - 1, not {self.seed}.")
        if self.seed and self.round is None:
            raise InvalidArgumentError(
                f"seed={self.seed} is of random bits, which round='stochastic' alone draws."
            )

    def check_beside(self, others: Others) -> None:
        if others.of(Offload).state_device is not None:
            raise InvalidArgumentError(
                "round='stochastic' and state_device='cpu' cannot be together: parameters on a GPU"
                " are copies of what a step updates."
            )

    def check_rows(self, title: str) -> None:
        """Refuse the sparse gradient of a parameter, if random bits are drawn.

        Raises:
            NotImplementedError: Names it.
        """
        if self.round is not None:
            raise NotImplementedError(
                f"The gradient of '{title}' is sparse, and round={self.round!r} is for dense ones:"
                " leave out one of them, or update it with an optimizer of its own."
            )

    def rule(self, rule: Rule) -> Rule:
        """The rule as it is: scalars are what kernels are given beside."""
        return rule

    def scalars(self, lacked: Container[str], step: object) -> dict[str, Any]:
        """The key of random bits, and the number of a step."""
        return scalars_of(self.seed, step)
