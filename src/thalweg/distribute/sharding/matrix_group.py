"""The ranks that take one step over parts of DTensors: all of them take it, or none."""

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
    """Axis along which the parts of a DTensor lie.

    Attributes:
        mesh: Its mesh.
        dim: The dimension of the mesh along which ranks have parts; all others have copies.
        cut: The dimension of the tensor that is cut; None if each rank has all of it.
    """

    mesh: Any
    dim: int
    cut: int | None


def axis_of(var: Tensor) -> Axis | None:
    """Return the axis of the parts of a DTensor; None if they are not along one dimension of its
    mesh.
    """
    from torch.distributed.tensor import Shard

    placed: Any = var
    mesh, placements = placed.device_mesh, placed.placements
    cut = cut_dims(var)
    if not cut:
        return Axis(mesh, mesh.ndim - 1, None)
    placement = placements[cut[0]]
    if len(cut) > 1 or type(placement) is not Shard:
        return None
    return Axis(mesh, cut[0], placement.dim % var.dim())


def cut_dims(var: Tensor) -> list[int]:
    """Return the dimensions of a DTensor's mesh along which ranks have different parts."""
    placed: Any = var
    return [k for k, placement in enumerate(placed.placements) if not placement.is_replicate()]


def describe_dtensors(
    params: Sequence[Tensor], titles: Sequence[str], gradients: Sequence[Any]
) -> list[str]:
    """Return lines of DTensors and their gradients, which all ranks have alike."""
    lines = [f"the number of DTensors: {len(params)}"]
    for param, title, grad in zip(params, titles, gradients, strict=True):
        placements = cast("Any", param).placements
        lines += [
            f"'{title}': {dtype_name(param.dtype)} {tuple(param.shape)} {placements}",
            f"the gradient of '{title}': {'none' if grad is None else dtype_name(grad.dtype)}",
        ]
    return lines


class MatrixProcessGroup:
    """The ranks that have parts of the DTensors of a step, and what they compare before it.

    A message of fixed length precedes every collective of the step and its first write, so that
    ranks that differ, or fail, find that out: Gloo ends a process whose messages have other sizes.

    Args:
        params: The DTensors.
        describe: Returns one line for each thing that all ranks have alike.
        matrix: One of the DTensors whose rule has stages over whole matrices; None for none.
        doing: What the ranks do.

    Attributes:
        ranks: Those that gather matrices.
        gathers: Whether there are matrices to gather.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        describe: Describe,
        matrix: Tensor | None = None,
        doing: PendingCollective = PendingCollective.STAGES,
    ) -> None:
        self._doing = doing
        self.begin(params, describe, matrix)

    def begin(
        self, params: Iterable[Tensor], describe: Describe, matrix: Tensor | None = None
    ) -> None:
        """Begin another step. Plans that are repeated keep this object.

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
        self._is_agreed = not self._groups
        self._describe = describe
        self._lines: Sequence[str] | None = None
        self._digest = 0

    def check(self, rule: str, params: Sequence[Tensor], titles: Sequence[str]) -> None:
        """Refuse matrices whose parts these ranks cannot gather.

        Args:
            rule: The rule, in words.
            params, titles: DTensors, with a name for each.

        Raises:
            NotImplementedError: One is cut along several dimensions of its mesh, or in strides, or
                on another mesh.
        """
        for param, title in zip(params, titles, strict=True):
            axis, placed = axis_of(param), cast("Any", param)
            if axis is None:
                raise NotImplementedError(
                    f"'{title}' is a DTensor of placements {placed.placements}, and {rule} has"
                    " stages over whole matrices: their parts are to be Shard, along one dimension"
                    " of the mesh, or Replicate."
                )
            if self._axis is not None and axis[:2] != self._axis[:2]:
                raise NotImplementedError(
                    f"'{title}' is cut along dimension {axis.dim} of {axis.mesh}, and others of"
                    f" this step along dimension {self._axis.dim} of {self._axis.mesh}: all"
                    " matrices of an optimizer under rules with stages are to be cut along one."
                )

    def meet(self, *told: object) -> None:
        """Wait for the other ranks, and go on if none of them failed and all are alike.

        Args:
            *told: Further values that all ranks have alike.

        Raises:
            ReplicaMismatchError: A rank failed, or has another description or other values.
        """
        if not self._groups:
            return
        if self._lines is None:
            self._lines = self._describe()
            self._digest = hash_bytes("\n".join(self._lines).encode())
        message = self._message((self._digest, zlib.crc32(repr(told).encode())))
        is_described_alike, is_told_alike = message.receive().alike
        if not is_described_alike:
            message.compare(self._lines)
        if not is_told_alike:
            raise ReplicaMismatchError(
                "The ranks have gradients of different matrices, or in another order, or their"
                " steps have other numbers. Nothing has changed on any rank."
            )

    def end(self) -> None:
        """Let go of what the step was described by."""
        self._describe, self._lines = list, None

    def _message(
        self, same: Sequence[int] = (), trouble: BaseException | None = None
    ) -> RankMessage:
        first, *further = self._groups
        return RankMessage(first, self._doing, same, trouble=trouble, further=further)

    def agree(self) -> None:
        """Meet for the last time: nothing can fail on any rank any more."""
        if not self._is_agreed:
            self.meet()
            self._is_agreed = True

    @contextmanager
    def report_errors(self) -> Iterator[None]:
        """Return the context manager of the block in which a step is taken.

        If it fails before all agree, the other ranks are told. If it ends without a write, such as
        for lack of gradients, this rank still meets the others.
        """
        try:
            yield
            self.agree()
        except (ReplicaLostError, ReplicaMismatchError):
            raise
        except BaseException as error:
            if not self._is_agreed:
                try:
                    self._message(trouble=error).receive()
                except ReplicaLostError as lost:  # which was its own doing, if it was interrupted
                    error.add_note(str(lost))
            raise
