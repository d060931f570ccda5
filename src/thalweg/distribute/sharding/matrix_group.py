"""Ranks that execute one step over DTensors together, or not at all."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

from torch import Tensor

from thalweg.distribute.consistency_check import hash_bytes
from thalweg.distribute.handshake import PendingCollective, RankMessage
from thalweg.distribute.process_group import Ranks
from thalweg.errors import ReplicaLostError, ReplicaMismatchError
from thalweg.variable import dtype_name

Describe = Callable[[], Sequence[str]]


class Axis(NamedTuple):
    """Axis along which a DTensor is cut.

    Attributes:
        mesh: The device mesh.
        dim: The mesh dimension that holds different parts; all others hold copies.
        cut: The tensor dimension that is cut; None if each rank has the full tensor.
    """

    mesh: Any
    dim: int
    cut: int | None


def axis_of(var: Tensor) -> Axis | None:
    """Return the axis of a DTensor; None unless it is cut along at most one mesh dimension."""
    from torch.distributed.tensor import Shard

    dtensor: Any = var
    mesh, placements = dtensor.device_mesh, dtensor.placements
    cut = cut_dims(var)
    if not cut:
        return Axis(mesh, mesh.ndim - 1, None)
    placement = placements[cut[0]]
    if len(cut) > 1 or type(placement) is not Shard:
        return None
    return Axis(mesh, cut[0], placement.dim % var.dim())


def cut_dims(var: Tensor) -> list[int]:
    """Return the mesh dimensions along which ranks have different parts of a DTensor."""
    dtensor: Any = var
    return [dim for dim, placement in enumerate(dtensor.placements) if not placement.is_replicate()]


def describe_dtensors(
    params: Sequence[Tensor], titles: Sequence[str], gradients: Sequence[Any]
) -> list[str]:
    """Return lines about DTensors and their gradients that must be equal on all ranks."""
    lines = [f"the number of DTensors: {len(params)}"]
    for param, title, grad in zip(params, titles, gradients, strict=True):
        placements = cast("Any", param).placements
        lines += [
            f"'{title}': {dtype_name(param.dtype)} {tuple(param.shape)} {placements}",
            f"the gradient of '{title}': {'none' if grad is None else dtype_name(grad.dtype)}",
        ]
    return lines


class MatrixProcessGroup:
    """Ranks that have parts of the DTensors of a step, with a comparison before each collective.

    A message of fixed length precedes every collective of the step and its first write, so that
    ranks detect differences and failures: Gloo aborts a process whose messages have other sizes.

    Args:
        params: The DTensors.
        describe: Returns lines that must be equal on all ranks.
        matrix: Optional. A DTensor whose rule has stages over full matrices.
        collective: The action of the ranks.

    Attributes:
        ranks: The ranks that gather matrices.
        gathers: Whether there are matrices to gather.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        describe: Describe,
        matrix: Tensor | None = None,
        collective: PendingCollective = PendingCollective.STAGES,
    ) -> None:
        self._collective = collective
        self.begin(params, describe, matrix)

    def begin(
        self, params: Iterable[Tensor], describe: Describe, matrix: Tensor | None = None
    ) -> None:
        """Begin another step, for plans that are replayed with the same group.

        Args:
            params, describe, matrix: As for the class.
        """
        self._axis = axis = None if matrix is None else axis_of(matrix)
        self.gathers = matrix is not None
        axes = dict.fromkeys(
            (cast("Any", param).device_mesh, dim) for param in params for dim in cut_dims(param)
        )
        self.ranks = Ranks.none()
        groups = {axis: Ranks(axis[0].get_group(axis[1])) for axis in axes}
        if axis is not None:
            self.ranks = groups.setdefault(axis[:2], Ranks(axis.mesh.get_group(axis.dim)))
        self._groups = [ranks for ranks in groups.values() if not ranks.is_alone]
        self._is_ready_to_write = not self._groups
        self._describe = describe
        self._lines: Sequence[str] | None = None
        self._digest = 0

    def check(self, rule: str, params: Sequence[Tensor], titles: Sequence[str]) -> None:
        """Raise for matrices whose parts these ranks cannot gather.

        Args:
            rule: The rule, as text.
            params, titles: DTensors, with a name for each.

        Raises:
            NotImplementedError: A matrix is cut along several mesh dimensions, in strides, or on
                another mesh.
        """
        for param, title in zip(params, titles, strict=True):
            axis, dtensor = axis_of(param), cast("Any", param)
            if axis is None:
                raise NotImplementedError(
                    f"'{title}' is a DTensor of placements {dtensor.placements}, and {rule} has"
                    " stages over whole matrices: their parts are to be Shard, along one dimension"
                    " of the mesh, or Replicate."
                )
            if self._axis is not None and axis[:2] != self._axis[:2]:
                raise NotImplementedError(
                    f"'{title}' is cut along dimension {axis.dim} of {axis.mesh}, and others of"
                    f" this step along dimension {self._axis.dim} of {self._axis.mesh}: all"
                    " matrices of an optimizer under rules with stages are to be cut along one."
                )

    def meet(self, *values: object) -> None:
        """Wait for the other ranks; continue if none failed and all are equal.

        Args:
            *values: Further values that must be equal on all ranks.

        Raises:
            ReplicaMismatchError: A rank failed, or has another description or other values.
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
        """Release the description of the step."""
        self._describe, self._lines = list, None

    def _message(
        self, digests: Sequence[int] = (), trouble: BaseException | None = None
    ) -> RankMessage:
        first, *other_groups = self._groups
        return RankMessage(
            first, self._collective, digests, trouble=trouble, other_groups=other_groups
        )

    def agree(self) -> None:
        """Synchronize before the first write, after which no rank can fail."""
        if not self._is_ready_to_write:
            self.meet()
            self._is_ready_to_write = True

    @contextmanager
    def report_errors(self) -> Iterator[None]:
        """Return the context manager for the execution of a step; it reports errors to the other
        ranks.

        If the block ends without a write, such as for lack of gradients, this rank still
        synchronizes.
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
