"""Ranks that execute a step over DTensors, all together or not at all."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any, cast

from torch import Tensor

from thalweg.distribute.consistency_check import hash_bytes
from thalweg.distribute.handshake import PendingCollective, RankMessage
from thalweg.distribute.process_group import Ranks, ranks_of
from thalweg.distribute.sharding.shard_index import (
    are_known,
    connected_ranks,
    is_supported,
    sharded_tensor,
)
from thalweg.errors import ReplicaLostError, ReplicaMismatchError
from thalweg.variable import dtype_name

Describe = Callable[[], Sequence[str]]


def cut_dims(var: Tensor) -> list[int]:
    """Return the mesh dimensions along which ranks hold different parts of a DTensor."""
    dtensor: Any = var
    return [dim for dim, placement in enumerate(dtensor.placements) if not placement.is_replicate()]


def describe_dtensors(
    params: Sequence[Tensor], names: Sequence[str], gradients: Sequence[Any]
) -> list[str]:
    """Return lines of text about DTensors that must be equal on all ranks.

    The first line has the number of DTensors. Each DTensor adds a line with name, dtype, global
    shape and placements, and a line with the gradient's dtype, or "none".

    Args:
        params: The DTensors.
        names: The name of each DTensor.
        gradients: The gradient of each DTensor, a tensor or None.
    """
    lines = [f"the number of DTensors: {len(params)}"]
    for param, name, grad in zip(params, names, gradients, strict=True):
        placements = cast("Any", param).placements
        lines += [
            f"'{name}': {dtype_name(param.dtype)} {tuple(param.shape)} {placements}",
            f"the gradient of '{name}': {'none' if grad is None else dtype_name(grad.dtype)}",
        ]
    return lines


class MatrixProcessGroup:
    """Ranks of a step over DTensors, which compare their steps before each collective.

    The comparison sends a message of fixed length. It detects differences and failures before a
    rank waits for ever, and before the first write.

    Args:
        params: The DTensors.
        describe: `describe()` returns lines that must be equal on all ranks; called once, at the
            first message.
        matrix: Optional. A DTensor whose rule has stages over full matrices.
        collective: The action of the ranks.

    Attributes:
        connected: The numbers of the ranks that gather matrices, in the default group.
        gathers: True if there are matrices to gather.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        describe: Describe,
        matrix: Tensor | None = None,
        collective: PendingCollective = PendingCollective.STAGES,
    ) -> None:
        self._collective = collective
        self._cuts: list[tuple[Any, tuple[int, ...]]] = []
        self._ranks: Ranks | None = None
        self.connected: list[int] = []
        self.begin(params, describe, matrix)

    def begin(
        self, params: Iterable[Tensor], describe: Describe, matrix: Tensor | None = None
    ) -> None:
        """Prepare the group for a new step over the DTensors `params`.

        `describe()` returns lines that must be equal on all ranks. `matrix` is a DTensor whose rule
        has stages over full matrices, or None.
        """
        self.gathers = matrix is not None
        cuts = dict.fromkeys(
            (cast("Any", param).device_mesh, tuple(cut_dims(param))) for param in params
        )
        axes = dict.fromkeys((mesh, dim) for mesh, dims in cuts for dim in dims)
        groups = [Ranks(mesh.get_group(dim)) for mesh, dim in axes]
        self._groups = [ranks for ranks in groups if not ranks.is_alone]
        if self.gathers and self._cuts != [*cuts]:
            self._cuts, self._ranks = [*cuts], None
            self.connected = connected_ranks(self._cuts)
        self._is_ready_to_write = not self._groups
        self._describe = describe
        self._lines: Sequence[str] | None = None
        self._digest = 0

    @property
    def ranks(self) -> Ranks:
        """The ranks that gather matrices. All of these ranks must make the first access."""
        if self._ranks is None:
            groups = (ranks for ranks in self._groups if ranks.global_numbers() == self.connected)
            self._ranks = next(groups, None) or ranks_of(self.connected)
        return self._ranks

    def check(self, rule: str, params: Sequence[Tensor], names: Sequence[str]) -> None:
        """Check that the matrices of DTensors can be gathered.

        Args:
            rule: The description of the rule, for messages.
            params: The DTensors.
            names: The name of each DTensor.

        Raises:
            NotImplementedError: A placement is neither `Shard` nor `Replicate`, or divides rows
                unevenly in a way that torch does not define.
        """
        for param, name in zip(params, names, strict=True):
            tensor = sharded_tensor(param)
            if not all(map(is_supported, tensor.placements)):
                raise NotImplementedError(
                    f"'{name}' is a DTensor of placements {tensor.placements}, and {rule} has"
                    " stages over whole matrices: each placement must be Shard or Replicate."
                )
            if not are_known(param):
                local: Any = cast("Any", param).to_local()
                raise NotImplementedError(
                    f"'{name}' has shape {tuple(tensor.shape)} and placements"
                    f" {tensor.placements} on a mesh of {tensor.mesh_shape}, which do not divide"
                    f" its rows evenly: torch does not define its parts, of which that of this rank"
                    f" is {tuple(local.shape)}. Pad the parameter, or select another rule, such as"
                    " AdamW."
                )

    def meet(self, *values: object) -> None:
        """Compare the step's description on all ranks; do nothing without other ranks.

        Args:
            *values: Further values that must be equal on all ranks.

        Raises:
            ReplicaMismatchError: A rank failed, or has a different description or different values.
        """
        if not self._groups:
            return
        if self._lines is None:
            self._lines = self._describe()
            self._digest = hash_bytes("\n".join(self._lines).encode())
        message = self._message((self._digest, zlib.crc32(repr(values).encode())))
        is_equal_text, has_equal_values = message.receive().are_equal
        if not is_equal_text:
            message.compare(self._lines)
        if not has_equal_values:
            raise ReplicaMismatchError(
                "The ranks have gradients of different matrices, or in another order, or their"
                " steps have other numbers. Nothing has changed on any rank."
            )

    def end(self) -> None:
        """Release the function that describes the step."""
        self._describe, self._lines = list[str], None

    def _message(
        self, digests: Sequence[int] = (), trouble: BaseException | None = None
    ) -> RankMessage:
        """Send this rank's message to the other ranks; return the message."""
        first, *other_groups = self._groups
        return RankMessage(
            first, self._collective, digests, trouble=trouble, other_groups=other_groups
        )

    def agree(self) -> None:
        """Wait until all ranks are ready to write."""
        if not self._is_ready_to_write:
            self.meet()
            self._is_ready_to_write = True

    @contextmanager
    def report_errors(self) -> Generator[None]:
        """Report an error in the `with` block of a step to the other ranks, then raise the error.

        The end of the block waits until all ranks are ready to write.
        """
        try:
            yield
            self.agree()
        except (ReplicaLostError, ReplicaMismatchError):
            raise
        except BaseException as error:
            if not self._is_ready_to_write:
                try:
                    self._message(trouble=error).receive()
                # An interrupted rank may have caused this loss itself.
                except ReplicaLostError as loss_error:
                    error.add_note(str(loss_error))
            raise
