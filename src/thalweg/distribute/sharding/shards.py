"""Shards of one optimizer's slots (state tensors), which are pieces of variables."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch._C import DisableTorchFunctionSubclass

from thalweg._engines import layout
from thalweg._engines.reduction_order import LEAF
from thalweg.distribute.consistency_check import hash_bytes
from thalweg.distribute.handshake import PendingCollective, RankMessage, report_error
from thalweg.distribute.process_group import Ranks
from thalweg.errors import InvalidArgumentError, LayoutError, ReplicaLostError
from thalweg.indexed_slices import IndexedSlices
from thalweg.variable import name_of


class Piece(NamedTuple):
    """Range of a variable's elements that one rank holds, in row-major order.

    Attributes:
        rank: The rank.
        start, stop: The first element, and the one after the last.
    """

    rank: int
    start: int
    stop: int


def pieces_of(size: int, loads: Sequence[int], unit: int = LEAF) -> list[Piece]:
    """Divide the elements of a variable among ranks; return at most one `Piece` per rank.

    Pieces are in the order of elements. Each rank receives an equal number of units. Remaining
    units go to the least loaded ranks.

    Args:
        size: The number of elements.
        loads: The bytes of other variables that each rank holds.
        unit: The number of consecutive elements that are not divided. By default a leaf, the range
            of elements over which reductions compute a partial sum.
    """
    if not size:
        return []
    units = -(-size // unit)
    base_count, num_longer = divmod(units, len(loads))
    order = sorted(range(len(loads)), key=lambda rank: (loads[rank], rank))
    counts = {rank: base_count + (position < num_longer) for position, rank in enumerate(order)}
    # The last unit may be short. Of the ranks with one more unit, the most loaded rank gets it.
    last_rank = order[num_longer - 1]
    ranks = [rank for rank in range(len(loads)) if counts[rank] and rank != last_rank]
    pieces: list[Piece] = []
    for rank in [*ranks, last_rank]:
        start = pieces[-1].stop if pieces else 0
        pieces.append(Piece(rank, start, min(start + counts[rank] * unit, size)))
    return pieces


@dataclass
class _VariableLayout:
    """Pieces of a variable, with a cached view of this rank's part."""

    # A strong reference, so that the variable's id stays unique.
    var: Tensor
    index: int
    size: int
    strides: tuple[int, ...]
    pieces: list[Piece]
    is_uncut: bool
    part: Tensor | None = None
    address: int = 0


class Shards:
    """Assignment of the elements of each variable to ranks.

    Variables are cut into flat parts in row-major order. A part ends with a leaf (range of elements
    of a partial sum). A variable is not cut if its memory has another order, or if a part would end
    within a row of a sparse gradient. One rank then has all elements, all other ranks none.

    Args:
        ranks: The ranks, also an attribute.

    Attributes:
        checkpoint: The last file that the complete state was saved to or restored from, or None.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.checkpoint: str | None = None
        self._collects = False
        # A sentence about the state of the variables once a rank is lost.
        self._fate = ""
        self._layouts: dict[int, _VariableLayout] = {}
        self._loads = [0] * ranks.size
        self._digest: int | None = None
        self._views: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def digest(self) -> int:
        """Hash of the layout, to compare ranks."""
        if self._digest is None:
            text = repr([(entry.size, entry.pieces) for entry in self._layouts.values()])
            self._digest = hash_bytes(text.encode())
        return self._digest

    def cut_new(self, variables: Sequence[Tensor]) -> None:
        """Assign the elements of new variables to ranks. All ranks must pass the same variables."""
        for var in variables:
            if id(var) not in self._layouts:
                self._cut_variable(var, not var.is_contiguous())

    def check_sizes(self, variables: Iterable[Tensor]) -> None:
        """Raise InvalidArgumentError if a variable's size or strides have changed."""
        for var in variables:
            if id(var) in self._layouts:
                self._layout_of(var)

    def fits(self, variables: Iterable[Tensor]) -> bool:
        """Return True if `check_sizes` accepts the variables."""
        try:
            self.check_sizes(variables)
        except InvalidArgumentError:
            return False
        return True

    def _cut_variable(self, var: Tensor, is_uncut: bool) -> None:
        """Assign a variable's elements to ranks, or all elements to one rank if `is_uncut`."""
        size = var.numel()
        pieces = pieces_of(size, self._loads, size if is_uncut else LEAF)
        index = self._layouts[id(var)].index if id(var) in self._layouts else len(self._layouts)
        self._layouts[id(var)] = _VariableLayout(var, index, size, var.stride(), pieces, is_uncut)
        self._views.clear()
        for rank, start, stop in pieces:
            self._loads[rank] += (stop - start) * var.element_size()
        self._digest = None

    def has_rows(self, var: Tensor) -> bool:
        """Return True if all parts of a variable consist of full rows."""
        row_size, entry = var.shape[1:].numel(), self._layout_of(var)
        # A variable without elements, whose rows have the size 0, has no pieces.
        are_rows_complete = all(piece.stop % row_size == 0 for piece in entry.pieces)
        return entry.is_uncut or (var.is_contiguous() and are_rows_complete)

    def keep_whole(self, var: Tensor) -> None:
        """Assign all elements of a variable to the rank with the lowest load; move no data."""
        for rank, start, stop in self.pieces(var):
            self._loads[rank] -= (stop - start) * var.element_size()
        self._cut_variable(var, True)

    def hash_order(self, variables: Sequence[Tensor]) -> int:
        """Return a hash of the order of `variables`, to compare ranks."""
        # Hashes of integers are equal in all processes; the shift excludes -2**63.
        return hash(tuple(self._layout_of(var).index for var in variables)) >> 1

    def pieces(self, var: Tensor) -> list[Piece]:
        """Return the pieces of a variable in the order of elements, at most one per rank."""
        return self._layout_of(var).pieces

    def own_slice(self, var: Tensor) -> slice:
        """Return the range of this rank's elements in the flattened variable."""
        for rank, start, stop in self.pieces(var):
            if rank == self.ranks.rank:
                return slice(start, stop)
        return slice(0, 0)

    def part(self, var: Tensor) -> Tensor:
        """Return this rank's elements of a variable as a flat view.

        The view is cached until the variable's memory moves.
        """
        entry = self._layout_of(var)
        # The view is stale if another tensor's memory was set as `var.data`.
        if entry.part is None or entry.address != var.data_ptr() or entry.part.dtype != var.dtype:
            entry.part, entry.address = self.cut(var, var), var.data_ptr()
            self._views.clear()
        return entry.part

    def cut(self, value: Tensor, var: Tensor) -> Tensor:
        """Return this rank's elements of a tensor of the shape of `var`, as a view if possible."""
        local_slice = self.own_slice(var)
        if not self._layout_of(var).is_uncut:
            return flatten_like(value, var)[local_slice]
        detached = value.detach()
        return detached if local_slice.stop or not self.pieces(var) else detached.new_empty(0)

    def own_rows(self, grad: IndexedSlices, var: Tensor) -> IndexedSlices:
        """Return this rank's rows of a sparse gradient, with indices relative to this rank's part.

        Raises:
            InvalidArgumentError: The variable is cut within a row.
        """
        if not self.has_rows(var):
            raise InvalidArgumentError(
                f"The gradient of '{name_of(var)}' has become sparse, but the variable is cut"
                " within its rows."
            )
        start, stop = self._row_range(var)
        is_local = (grad.indices >= start) & (grad.indices < stop)
        shape = (stop - start, *var.shape[1:])
        return IndexedSlices(grad.values[is_local], grad.indices[is_local] - start, shape)

    def as_rows(self, local_part: Tensor, var: Tensor) -> Tensor:
        """Return a view of this rank's part in the shape (rows of the part, *var.shape[1:]).

        A part with these trailing sizes is returned itself. Views are cached.

        Args:
            local_part: This rank's part of `var`, or of a slot of `var`.
            var: The whole variable.
        """
        if local_part.shape[1:] == var.shape[1:]:
            return local_part
        view = self._views.get(id(local_part))
        if view is None or view[0] is not local_part or view[1].data_ptr() != local_part.data_ptr():
            start, stop = self._row_range(var)
            view = self._views[id(local_part)] = (
                local_part,
                local_part.detach().view(stop - start, *var.shape[1:]),
            )
        return view[1]

    def _row_range(self, var: Tensor) -> tuple[int, int]:
        """Return (first row, row after the last) of this rank."""
        local_slice, row_size = self.own_slice(var), var.shape[1:].numel()
        return (local_slice.start // row_size, local_slice.stop // row_size) if row_size else (0, 0)

    def as_part(self, elements: Tensor, var: Tensor) -> Tensor:
        """Return this rank's elements, a flat tensor, in the shape of `part(var)`."""
        if not (self._layout_of(var).is_uncut and elements.numel()):
            return elements
        shard = torch.empty_like(var, dtype=elements.dtype).detach()
        flatten_like(shard, var).copy_(elements)
        return shard

    def writable_part(self, tensor: Tensor, var: Tensor) -> Tensor:
        """Return a view of this rank's elements of `tensor`, which has the shape of `var`.

        Raises:
            LayoutError: A view is impossible, because the strides of both tensors differ.
        """
        shard = self.cut(tensor, var)
        if shard.numel() and shard.untyped_storage().data_ptr() != (
            tensor.untyped_storage().data_ptr()
        ):
            raise LayoutError(
                f"'{name_of(tensor)}' has strides {tensor.stride()}, and its master"
                f" {var.stride()}: slots that are shared out need them alike."
            )
        return shard

    def whole(self, shard: Tensor, var: Tensor) -> Tensor:
        """Return a full tensor in the shape of `var`, gathered from the shards of all ranks.

        All ranks must call this method. In a `collecting` block, all ranks but rank 0 return an
        empty tensor.

        Args:
            shard: This rank's part of `var` or of a slot.
            var: The variable.

        Raises:
            LayoutError: The memory of `shard` was freed.
            ReplicaMismatchError: Another rank failed, or takes another action.
            ReplicaLostError: A rank did not answer.
        """
        with self.between_steps():
            with report_error(self.ranks, PendingCollective.STATE):
                layout.check_memory(shard, f"'{name_of(shard)}'")
            RankMessage(self.ranks, PendingCollective.STATE).receive()
        if self._collects and self.ranks.rank:
            is_uncut = self._layout_of(var).is_uncut and shard.numel()
            message = flatten_like(shard, var) if is_uncut else shard.detach()
            with self.between_steps():
                self.ranks.collect([message] * self.ranks.size)
            return shard.new_empty(0)
        full = torch.empty_like(var, dtype=shard.dtype, memory_format=torch.preserve_format)
        elements = flatten_like(full.detach(), var)
        pieces = [elements[:0]] * self.ranks.size
        for rank, start, stop in self.pieces(var):
            pieces[rank] = elements[start:stop]
        target = full if self._layout_of(var).is_uncut else pieces[self.ranks.rank]
        if shard.numel():
            target.copy_(shard.detach())
        with self.between_steps():
            if self._collects:
                self.ranks.collect(pieces)
            else:
                self.ranks.begin_sharing(pieces).wait()
        return full.detach()

    @contextlib.contextmanager
    def collecting(self) -> Generator[None]:
        """Return a context manager in which `whole` returns the full value on rank 0 only."""
        self._collects = True
        try:
            yield
        finally:
            self._collects = False

    @contextlib.contextmanager
    def between_steps(self) -> Generator[None]:
        """Add the state of variables to a ReplicaLostError in a `with` block between two steps."""
        try:
            yield
        except ReplicaLostError as error:
            raise self.lost_error(error, "Variables are as after the last step.") from error

    def lost_error(self, error: BaseException, fate: str) -> ReplicaLostError:
        """Return a ReplicaLostError whose message describes the state of variables and slots.

        Args:
            error: The original error.
            fate: A sentence about the variables. Later calls use the sentence of the first call.
        """
        self._fate = self._fate or fate
        advice = "No checkpoint was saved of it here."
        if self.checkpoint is not None:
            advice = f"Start again from the last checkpoint, {self.checkpoint}."
        return ReplicaLostError(
            f"{error} {self._fate} The slots that were on other ranks are gone, so that no step can"
            f" be taken and no state saved any more. {advice}"
        )

    @contextlib.contextmanager
    def mark_torn(self, step_number: int) -> Generator[None]:
        """Raise ReplicaLostError for an error in the `with` block, which exchanges updated parts.

        Later calls that send messages raise ReplicaLostError, too. An interrupt such as Ctrl-C is
        raised itself, with the message as a note.

        Args:
            step_number: The number of the step, from 1, for the message.
        """
        try:
            yield
        except BaseException as error:
            fate = (
                f"Variables may be mixed: parts of them as after step {step_number} and parts as"
                f" after step {step_number - 1}."
            )
            self.ranks.give_up(f"rank {self.ranks.rank} has failed in the middle of a step.")
            lost_error = self.lost_error(error, fate)
            # Ctrl-C must stay a KeyboardInterrupt.
            if isinstance(error, Exception):
                raise lost_error from error
            error.add_note(str(lost_error))
            raise

    def _layout_of(self, var: Tensor) -> _VariableLayout:
        """Return the layout of a variable; assign a new variable to ranks first.

        Raises:
            InvalidArgumentError: The size or the order of elements in memory has changed.
        """
        if id(var) not in self._layouts:
            self.cut_new([var])
        entry = self._layouts[id(var)]
        if entry.size != var.numel():
            raise InvalidArgumentError(
                f"'{name_of(var)}' has {var.numel()} elements now, but its slots were shared out"
                f" over the ranks for {entry.size}. Make a new optimizer for it."
            )
        if not entry.is_uncut and entry.strides != var.stride() and _has_moved(entry, var):
            raise InvalidArgumentError(
                f"'{name_of(var)}' has strides {var.stride()} now, but its slots were shared out"
                f" over the ranks for {entry.strides}. Load the state from before into a new"
                " optimizer."
            )
        return entry


def _has_moved(entry: _VariableLayout, var: Tensor) -> bool:
    """Return True if the order of elements in memory has changed since a variable was cut."""
    pairs = zip(entry.strides, var.stride(), var.shape, strict=True)
    return entry.size > 0 and any(
        old_stride != new_stride and size > 1 for old_stride, new_stride, size in pairs
    )


def flatten_like(tensor: Tensor, var: Tensor) -> Tensor:
    """Return the elements of a tensor, flattened in the memory order of `var`.

    `tensor` has the shape of `var`. The result is a view of `tensor` if the strides allow a view.
    """
    with DisableTorchFunctionSubclass():
        detached = tensor.detach()
        if not layout.is_dense(var):
            return detached.reshape(-1)
        reordered = detached if tensor is var else layout.with_strides_of(detached, var)
        return reordered.as_strided((var.numel(),), (1,))
