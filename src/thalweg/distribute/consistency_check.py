"""Comparison of ranks before a step, and description of arguments as lines to compare."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from thalweg._base.static_shape import UNKNOWN
from thalweg.distribute.handshake import PendingCollective, RankMessage, compare_lines
from thalweg.distribute.process_group import Ranks
from thalweg.formula import Rule
from thalweg.variable import dtype_name, titles_of

# Steps between complete checks.
CHECK_INTERVAL = 1000

_VALUES = "the bits of the values"
_HINTS = [(_VALUES, "Set them alike: strategy.broadcast(variables).")]
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class StepFingerprint(NamedTuple):
    """Description of an optimizer's step that must be equal on all ranks.

    Attributes:
        words: `words()` returns one line for each fact that affects results.
        numbers: `numbers()` returns (number of steps, hyperparameters).
    """

    words: Callable[[], Sequence[str]]
    numbers: Callable[[], tuple[int, Sequence[float]]] = lambda: (0, ())


class Agreed(NamedTuple):
    """Result of `Agreement.check`, equal on all ranks.

    Attributes:
        is_doubted: True if a rank passed `doubt=True`.
        has_equal_kinds: True if the gradients have the same kinds on all ranks.
    """

    is_doubted: bool
    has_equal_kinds: bool


class Agreement:
    """Comparison of the facts of all ranks before a step.

    The facts are names, shapes, dtypes and values of the variables in order, and the lines of the
    optimizer's fingerprint. A step compares a hash of some facts. All facts are compared every
    1,000 steps, and when hashes differ.

    Args:
        ranks: The ranks.
        values: True if the values of variables are compared.
    """

    def __init__(self, ranks: Ranks, values: bool = True) -> None:
        self._ranks, self._values = ranks, values
        self._steps = 0
        self._hashed_variables: tuple[list[Any], list[Any], int] = [], [], 0

    def check(
        self,
        variables: Sequence[Any],
        fingerprint: StepFingerprint,
        trouble: BaseException | None = None,
        doubt: bool = False,
        kinds: bytes = b"",
        extra_digest: int = 0,
        collective: PendingCollective = PendingCollective.STEP,
    ) -> Agreed:
        """Compare the next step of all ranks; return the result, equal on every rank.

        Args:
            variables: The variables of the step.
            fingerprint: Other facts that must be equal.
            trouble: Optional. An error of this rank; every rank then raises an error.
            doubt: True if this rank may have sent outdated gradients; see `Agreed.is_doubted`.
            kinds: One byte per gradient for sparsity and dtype; see `Agreed.has_equal_kinds`.
            extra_digest: A number that must be equal on all ranks. If the numbers differ, lines of
                `fingerprint` must differ, too.
            collective: The action that follows. It must be equal on all ranks.

        Raises:
            ReplicaMismatchError: The ranks differ, or another rank failed.
            BaseException: `trouble`, on this rank.
        """
        digest = 0
        if trouble is None:
            try:
                digest = self._hash_variables(variables) ^ extra_digest
                digest ^= _hash_numbers(*fingerprint.numbers())
            except Exception as error:
                trouble = error
        # The maximum of a flag: a full check that one rank requires is made by all ranks.
        is_scheduled = self._steps % CHECK_INTERVAL == 0
        digests, flags = (digest, hash_bytes(kinds)), (is_scheduled, doubt)
        message = RankMessage(self._ranks, collective, digests, flags, trouble).receive()
        (has_equal_digest, has_equal_kinds), (is_full_check, is_doubted) = message
        if not has_equal_digest or is_full_check:
            self._compare_all(variables, fingerprint)
        self._steps += 1
        return Agreed(bool(is_doubted), has_equal_kinds)

    def compare_all_next(self) -> None:
        """Make the next `check` compare all facts in place of digests."""
        self._steps = 0

    def start_vote(self, variables: Sequence[Tensor], declines: bool) -> Vote:
        """Start a vote on sending gradients during the backward pass; do not wait for other ranks.

        The vote is unanimous if all ranks pass equal variables and `declines=False`.
        """
        digests, flags = (self._hash_variables(variables),), (declines,)
        return Vote(RankMessage(self._ranks, PendingCollective.BACKWARD, digests, flags))

    def _hash_variables(self, variables: Sequence[Tensor]) -> int:
        """Return a hash of names, dtypes, shapes and strides; cache it for the last variables."""
        last_variables, last_formats, digest = self._hashed_variables
        formats = [(var.shape, var.dtype) for var in variables]
        pairs = zip(last_variables, variables, strict=True)
        if formats != last_formats or any(last is not var for last, var in pairs):
            digest = hash_bytes("\n".join(_describe_variables(variables, False)).encode())
            self._hashed_variables = list(variables), formats, digest
        return digest

    def _compare_all(self, variables: Sequence[Tensor], fingerprint: StepFingerprint) -> None:
        """Compare all facts; raise ReplicaMismatchError on all ranks about the first difference.

        If `fingerprint.words()` fails, raise its error; other ranks raise ReplicaMismatchError.
        """
        trouble: Exception | None = None
        lines: list[str] = []
        try:
            lines = [*fingerprint.words(), *_describe_variables(variables, self._values)]
        except Exception as error:
            trouble = error
        # A rank without lines must not leave the other ranks waiting for its lines.
        RankMessage(self._ranks, PendingCollective.STEP, trouble=trouble).receive()
        compare_lines(self._ranks, lines, _HINTS)


class Vote:
    """Vote of all ranks on sending gradients during the backward pass."""

    def __init__(self, message: RankMessage) -> None:
        self._message = message
        self._answer: bool | None = None

    def is_unanimous(self) -> bool:
        """Wait for the votes of all ranks; return True if all ranks agree."""
        if self._answer is None:
            are_equal, (is_declined, _) = self._message.receive()
            self._answer = are_equal[0] and not is_declined
        return self._answer


def hash_bytes(text: bytes) -> int:
    """Return a hash of 56 bits, equal in all processes."""
    # Python's hash of bytes differs between processes.
    return int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "little")


def _hash_numbers(step: int, values: Sequence[float]) -> int:
    """Return a hash of the step number and of hyperparameters rounded to float32."""
    # Steps compute in float32, where large numbers are infinite.
    with np.errstate(over="ignore"):
        float32_values = np.array(values, np.float32)
    return hash_bytes(struct.pack("q", step) + float32_values.tobytes())


def _describe_variables(variables: Sequence[Any], values: bool) -> list[str]:
    """Return lines with the number of variables, and each name, dtype, shape and strides.

    If `values` is True, add a checksum of each variable.
    """
    names = titles_of(variables)
    lines = [f"the number of variables: {len(variables)}"]
    lines += [
        f"variable {index}: '{name}' {dtype_name(var.dtype)} {_shape_of(var)}{_strides_of(var)}"
        for index, (name, var) in enumerate(zip(names, variables, strict=True))
    ]
    if values:
        pairs = zip(names, variables, strict=True)
        lines += [f"{_VALUES} of '{name}': a sum of {_sum_bits(var):x}" for name, var in pairs]
    return lines


def _sum_bits(var: Tensor) -> int:
    """Return the sum modulo 2**64 of the elements' bits, which is independent of their order."""
    real_view = var.detach()
    real_view = torch.view_as_real(real_view) if real_view.is_complex() else real_view
    return int(real_view.view(_BITS[real_view.element_size()]).sum(dtype=torch.int64)) % 2**64


def _shape_of(var: Tensor) -> Any:
    shape: Any = var.shape
    # A variable of a graph may have an unknown shape.
    return None if shape is UNKNOWN else tuple(shape)


def _strides_of(var: object) -> str:
    """Return " with strides (...)", or "" if a tensor is contiguous."""
    if not isinstance(var, Tensor) or var.is_contiguous():
        return ""
    return f" with strides {var.stride()}"


def in_words(arguments: Mapping[str, object]) -> list[str]:
    """Return one line "name: value" per argument, for comparison between ranks.

    Floats are rounded to float32, in which steps compute. Functions are described by name, objects
    with `get_config` by their configuration.
    """
    return [f"{name}: {_describe_value(argument)}" for name, argument in arguments.items()]


def _describe_value(argument: object) -> str:
    """Return an argument as text, equal in all processes; see `in_words`."""
    if isinstance(argument, float | np.floating):
        return repr(float(np.float32(cast(float, argument))))
    if argument is None or isinstance(argument, bool | int | str | np.integer):
        return str(cast(object, argument))
    if isinstance(argument, Tensor) and argument.dim():
        return f"a tensor of {tuple(argument.shape)}"
    if isinstance(argument, Tensor):
        return _describe_value(argument.item())
    if isinstance(argument, Rule):
        return argument.name
    if isinstance(argument, Mapping):
        pairs = (f"{name}: {_describe_value(entry)}" for name, entry in cast(Any, argument).items())
        return f"{{{', '.join(pairs)}}}"
    # The order of a set of strings differs between processes.
    if isinstance(argument, frozenset | set):
        return f"[{', '.join(sorted(map(_describe_value, cast(Any, argument))))}]"
    if isinstance(argument, Sequence):
        return f"[{', '.join(map(_describe_value, cast(Any, argument)))}]"
    config = getattr(argument, "get_config", None)
    if config is not None and not isinstance(argument, type):
        return f"{type(argument).__name__} {_describe_value(config())}"
    return getattr(argument, "__qualname__", type(argument).__qualname__)
