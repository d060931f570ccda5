"""Sharded slots of one optimizer: the pieces of its variables that a rank keeps."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch._C import DisableTorchFunctionSubclass

from thalweg._engines import layout
from thalweg._engines.reduction_order import LEAF
from thalweg.distribute.handshake import PendingCollective, RankMessage, report_error
from thalweg.distribute.process_group import Ranks
from thalweg.distribute.sharding.shard_layout import Piece, pieces_of
from thalweg.errors import InvalidArgumentError, LayoutError, ReplicaLostError
from thalweg.indexed_slices import IndexedSlices
from thalweg.variable import name_of


@dataclass
class _Known:
    """A variable that is cut, with this rank's part of it as long as it lies where it lay."""

    var: Tensor  # keeping it alive keeps its id its own
    number: int
    size: int
    strides: tuple[int, ...]
    pieces: list[Piece]
    is_whole: bool
    part: Tensor | None = None
    address: int = 0


class Shards:
    """Assignment of the elements of each variable to ranks.

    A variable is cut where leaves of measures end, in row-major order: parts are flat. It is kept
    whole, by one rank, if that is not the order of its memory, or if its gradient has rows and
    these do not divide a leaf; the part of other ranks is empty.

    Args:
        ranks: The ranks.

    Attributes:
        ranks: The ranks.
        checkpoint: The last file that all of it was saved to, or restored from; None for none.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.checkpoint: str | None = None
        self._collects = False
        self._fate = ""  # what has become of the variables, once a rank is lost
        self._known: dict[int, _Known] = {}
        self._loads = [0] * ranks.size
        self._digest: int | None = None
        self._views: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def digest(self) -> int:
        """A number that tells what is cut where."""
        if self._digest is None:
            text = repr([(each.size, each.pieces) for each in self._known.values()])
            half = hashlib.blake2b(text.encode(), digest_size=7).digest()
            self._digest = int.from_bytes(half, "little")
        return self._digest

    def cut_new(self, variables: Sequence[Tensor]) -> None:
        """Cut the variables that are not cut yet; all ranks do so with the same ones."""
        for var in variables:
            if id(var) not in self._known:
                self._cut_variable(var, not var.is_contiguous())

    def check_sizes(self, variables: Iterable[Tensor]) -> None:
        """Look whether variables that are cut are as they were then.

        Raises:
            InvalidArgumentError: One has another size or other strides.
        """
        for var in variables:
            if id(var) in self._known:
                self._known_of(var)

    def fits(self, variables: Iterable[Tensor]) -> bool:
        """Return True if `check_sizes` accepts the variables."""
        try:
            self.check_sizes(variables)
        except InvalidArgumentError:
            return False
        return True

    def _cut_variable(self, var: Tensor, is_whole: bool) -> None:
        size = var.numel()
        pieces = pieces_of(size, self._loads, size if is_whole else LEAF)
        number = self._known[id(var)].number if id(var) in self._known else len(self._known)
        self._known[id(var)] = _Known(var, number, size, var.stride(), pieces, is_whole)
        self._views.clear()
        for rank, start, stop in pieces:
            self._loads[rank] += (stop - start) * var.element_size()
        self._digest = None

    def has_rows(self, var: Tensor) -> bool:
        """Return True if the parts of a variable are rows of it, so that a sparse gradient fits."""
        row, known = var.shape[1:].numel(), self._known_of(var)
        whole = all(piece.stop % row == 0 for piece in known.pieces) if row else True
        return known.is_whole or (var.is_contiguous() and whole)

    def keep_whole(self, var: Tensor) -> None:
        """Reassign all elements of a variable to the rank with the lowest load; moves no data."""
        for rank, start, stop in self.pieces(var):
            self._loads[rank] -= (stop - start) * var.element_size()
        self._cut_variable(var, True)

    def hash_order(self, variables: Sequence[Tensor]) -> int:
        """Return a number that tells which variables these are, and in which order."""
        return hash(tuple(self._known_of(var).number for var in variables)) >> 1

    def pieces(self, var: Tensor) -> list[Piece]:
        """Return its pieces in the order of their elements: at most one for each rank."""
        return self._known_of(var).pieces

    def own_slice(self, var: Tensor) -> slice:
        """Return the elements of this rank."""
        for rank, start, stop in self.pieces(var):
            if rank == self.ranks.rank:
                return slice(start, stop)
        return slice(0, 0)

    def part(self, var: Tensor) -> Tensor:
        """Return this rank's elements: a view of a variable; the same one as long as it does not
        move.

        Raises:
            InvalidArgumentError: The variable has another size than when it was cut.
        """
        known = self._known_of(var)
        if known.part is None or known.address != var.data_ptr() or known.part.dtype != var.dtype:
            known.part, known.address = self.cut(var, var), var.data_ptr()
            self._views.clear()
        return known.part

    def cut(self, value: Tensor, var: Tensor) -> Tensor:
        """Return this rank's part of a value for each element of a variable; it may be a view."""
        own = self.own_slice(var)
        if not self._known_of(var).is_whole:
            return flatten_like(value, var)[own]
        plain = value.detach()
        return plain if own.stop or not self.pieces(var) else plain.new_empty(0)

    def own_rows(self, grad: IndexedSlices, var: Tensor) -> IndexedSlices:
        """Return the rows of a sparse gradient that belong to this rank, in their order.

        Raises:
            InvalidArgumentError: The variable's parts are not rows of it.
        """
        if not self.has_rows(var):
            raise InvalidArgumentError(
                f"The gradient of '{name_of(var)}' has become sparse, but the variable is cut"
                " within its rows."
            )
        first, last = self._row_range(var)
        mine = (grad.indices >= first) & (grad.indices < last)
        shape = (last - first, *var.shape[1:])
        return IndexedSlices(grad.values[mine], grad.indices[mine] - first, shape)

    def as_rows(self, own: Tensor, var: Tensor) -> Tensor:
        """Return this rank's part of a variable, or of a slot, as rows; the same view each time."""
        if own.shape[1:] == var.shape[1:]:
            return own
        kept = self._views.get(id(own))
        if kept is None or kept[0] is not own or kept[1].data_ptr() != own.data_ptr():
            first, last = self._row_range(var)
            kept = self._views[id(own)] = own, own.detach().view(last - first, *var.shape[1:])
        return kept[1]

    def _row_range(self, var: Tensor) -> tuple[int, int]:
        own, row = self.own_slice(var), var.shape[1:].numel()
        return (own.start // row, own.stop // row) if row else (0, 0)

    def as_part(self, elements: Tensor, var: Tensor) -> Tensor:
        """Return this rank's elements, one after the other, as its part."""
        if not (self._known_of(var).is_whole and elements.numel()):
            return elements
        found = torch.empty_like(var, dtype=elements.dtype).detach()
        flatten_like(found, var).copy_(elements)
        return found

    def writable_part(self, tensor: Tensor, var: Tensor) -> Tensor:
        """Return this rank's part of a tensor that is written to, as `cut` does.

        Raises:
            LayoutError: Its elements lie in another order than the variable's.
        """
        found = self.cut(tensor, var)
        if found.numel() and found.untyped_storage().data_ptr() != (
            tensor.untyped_storage().data_ptr()
        ):
            raise LayoutError(
                f"'{name_of(tensor)}' has strides {tensor.stride()}, and its master"
                f" {var.stride()}: slots that are shared out need them alike."
            )
        return found

    def whole(self, own: Tensor, var: Tensor) -> Tensor:
        """Return the value that each rank has its part of, in memory of its own; all ranks call
        this.

        Args:
            own: This rank's part.
            var: The variable.

        Returns:
            The value; in `collecting`, on other ranks than 0, an empty tensor.

        Raises:
            LayoutError: There is no memory that holds this rank's part; others raise the next one.
            ReplicaMismatchError: Other ranks do something else, or have none.
            ReplicaLostError: A rank did not answer.
        """
        with self.between_steps():
            with report_error(self.ranks, PendingCollective.STATE):
                layout.check_memory(own, f"'{name_of(own)}'")
            RankMessage(self.ranks, PendingCollective.STATE).receive()
        if self._collects and self.ranks.rank:
            is_whole = self._known_of(var).is_whole and own.numel()
            sent = flatten_like(own, var) if is_whole else own.detach()
            with self.between_steps():
                self.ranks.collect([sent] * self.ranks.size)
            return own.new_empty(0)
        found = torch.empty_like(var, dtype=own.dtype, memory_format=torch.preserve_format)
        elements = flatten_like(found.detach(), var)
        parts = [elements[:0]] * self.ranks.size
        for rank, start, stop in self.pieces(var):
            parts[rank] = elements[start:stop]
        mine = found if self._known_of(var).is_whole else parts[self.ranks.rank]
        if own.numel():
            mine.copy_(own.detach())
        with self.between_steps():
            if self._collects:
                self.ranks.collect(parts)
            else:
                self.ranks.begin_sharing(parts).wait()
        return found.detach()

    @contextlib.contextmanager
    def collecting(self) -> Iterator[None]:
        """Return a context manager for a block in which `whole` brings values together on rank 0
        alone, which writes them.
        """
        self._collects = True
        try:
            yield
        finally:
            self._collects = False

    @contextlib.contextmanager
    def between_steps(self) -> Iterator[None]:
        """Return a context manager for a block between two steps in which ranks wait for each
        other.
        """
        try:
            yield
        except ReplicaLostError as error:
            raise self.lost_error(error, "Variables are as after the last step.") from error

    def lost_error(self, error: BaseException, fate: str) -> ReplicaLostError:
        """Return the error of a rank that is lost, with what follows from it: no rank can go on.

        Args:
            error: What was raised.
            fate: What has become of the variables, in a sentence.
        """
        self._fate = self._fate or fate
        last = "No checkpoint was saved of it here."
        if self.checkpoint is not None:
            last = f"Start again from the last checkpoint, {self.checkpoint}."
        return ReplicaLostError(
            f"{error} {self._fate} The slots that were on other ranks are gone, so that no step can"
            f" be taken and no state saved any more. {last}"
        )

    @contextlib.contextmanager
    def mark_torn(self, number: int) -> Iterator[None]:
        """Return a context manager for a block in which variables are of two steps; if it fails
        they stay so.

        Args:
            number: The number of the step, from 1.
        """
        try:
            yield
        except BaseException as error:
            fate = (
                f"Variables may be mixed: parts of them as after step {number} and parts as after"
                f" step {number - 1}."
            )
            self.ranks.give_up(f"rank {self.ranks.rank} has failed in the middle of a step.")
            found = self.lost_error(error, fate)
            if isinstance(error, Exception):
                raise found from error
            error.add_note(str(found))
            raise

    def _known_of(self, var: Tensor) -> _Known:
        if id(var) not in self._known:
            self.cut_new([var])
        known = self._known[id(var)]
        if known.size != var.numel():
            raise InvalidArgumentError(
                f"'{name_of(var)}' has {var.numel()} elements now, but its slots were shared out"
                f" over the ranks for {known.size}. Make a new optimizer for it."
            )
        if not known.is_whole and known.strides != var.stride() and _has_moved(known, var):
            raise InvalidArgumentError(
                f"'{name_of(var)}' has strides {var.stride()} now, but its slots were shared out"
                f" over the ranks for {known.strides}. Load the state from before into a new"
                " optimizer."
            )
        return known


def _has_moved(known: _Known, var: Tensor) -> bool:
    """Return whether elements lie in another order than when a variable was cut."""
    pairs = zip(known.strides, var.stride(), var.shape, strict=True)
    return known.size > 0 and any(one != two and size > 1 for one, two, size in pairs)


def flatten_like(value: Tensor, var: Tensor) -> Tensor:
    """Return the elements of a tensor in the order of a variable's memory; a view where there can
    be one.

    Args:
        value: A tensor of the variable's shape.
        var: The variable.
    """
    with DisableTorchFunctionSubclass():
        plain = value.detach()
        if not layout.is_dense(var):
            return plain.reshape(-1)
        ordered = plain if value is var else layout.with_strides_of(plain, var)
        return ordered.as_strided((var.numel(),), (1,))
