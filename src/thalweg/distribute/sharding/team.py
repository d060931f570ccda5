"""The ranks that share out matrices among them: which they are, and how they agree on a step."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

from torch import Tensor

from thalweg.distribute.message import Doing, Message
from thalweg.distribute.ranks import Ranks
from thalweg.errors import ReplicaLostError, ReplicaMismatchError


class Axis(NamedTuple):
    """Where the parts of a DTensor are.

    Attributes:
        mesh: Its mesh.
        dim: The dimension of the mesh along which ranks have parts; all others have copies.
        cut: The dimension of the tensor that is cut; None if each rank has all of it.
    """

    mesh: Any
    dim: int
    cut: int | None


def axis_of(var: Tensor) -> Axis | None:
    """Where the parts of a DTensor are; None if they are not along one dimension of its mesh."""
    from torch.distributed.tensor import Shard

    placed: Any = var
    mesh, placements = placed.device_mesh, placed.placements
    cut = [k for k, each in enumerate(placements) if not each.is_replicate()]
    if not cut:
        return Axis(mesh, mesh.ndim - 1, None)
    placement = placements[cut[0]]
    if len(cut) > 1 or type(placement) is not Shard:
        return None
    return Axis(mesh, cut[0], placement.dim % var.dim())


class Team:
    """The ranks that have parts of the matrices of a step; all of them take it, or none.

    Args:
        param: One of the matrices, a DTensor.
    """

    def __init__(self, param: Tensor) -> None:
        self._axis = axis = axis_of(param)
        self.ranks = Ranks.none() if axis is None else Ranks(axis.mesh.get_group(axis.dim))
        self._is_agreed = self.ranks.is_alone

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
        """Wait for the other ranks, and go on if none is in trouble.

        Args:
            *told: What all of them say alike.

        Raises:
            ReplicaMismatchError: One is, or says something else.
        """
        if self.ranks.is_alone:
            return
        number = zlib.crc32(repr(told).encode())
        if not Message(self.ranks, Doing.STAGES, (number,)).receive().alike[0]:
            raise ReplicaMismatchError(
                "The ranks have gradients of different matrices, or in another order, or their"
                " steps have other numbers. Nothing has changed on any rank."
            )

    def agree(self) -> None:
        """Meet for the last time: nothing can fail on any rank any more."""
        self.meet()
        self._is_agreed = True

    @contextmanager
    def report_errors(self) -> Iterator[None]:
        """The block in which a step is taken: if it fails before all agree, the others are told."""
        try:
            yield
        except (ReplicaLostError, ReplicaMismatchError):
            raise
        except BaseException as error:
            if not self._is_agreed:
                try:
                    Message(self.ranks, Doing.STAGES, trouble=error).receive()
                except ReplicaLostError as lost:  # which was its own doing, if it was interrupted
                    error.add_note(str(lost))
            raise
