"""Steps over DTensors: each rank updates its local part.

`fully_shard` (FSDP2) creates such parameters, and sums their gradients. Reductions are added over
those mesh dimensions that shard a variable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from thalweg._base.context_managers import no_grad
from thalweg._core.commit import PostUpdateCall
from thalweg._core.dtensor import any_on_mesh, is_on_mesh
from thalweg._core.grads_and_vars import Pair
from thalweg._core.slots import SlotStore
from thalweg._engines.layout import check_memory
from thalweg._engines.protocol import Reductions, StepRequest
from thalweg.distribute.handshake import PendingCollective
from thalweg.distribute.process_group import Ranks
from thalweg.distribute.sharding.matrix_group import MatrixProcessGroup
from thalweg.distribute.sharding.sharded_reductions import DTensorReductions
from thalweg.errors import FailedPreconditionError, InvalidArgumentError
from thalweg.formula import Rule
from thalweg.indexed_slices import IndexedSlices
from thalweg.variable import dtype_name, name_of, variable_constraint


def keep_local_slots(store: SlotStore, variables: Sequence[object]) -> None:
    """Make a store keep slots of local parts if any variable is a DTensor."""
    if store.parts is None and any_on_mesh(variables):
        store.parts = LocalShards()


class LocalShards:
    """Parts on this rank: local tensors of DTensors, and all other variables unchanged."""

    ranks: Ranks | None = None

    def __init__(self) -> None:
        self.checkpoint: str | None = None
        self._views: dict[int, tuple[Tensor, Tensor]] = {}

    def make_step(self, group: MatrixProcessGroup | None) -> LocalStep:
        """Return a new step; `group` is None if the step sends no messages."""
        return LocalStep(self, group)

    def records(self, slot: Tensor) -> Tensor:
        """Return the local part of a slot; flattened if its dtype is uint8, an encoded slot."""
        return self.part(slot, is_flat=slot.dtype == torch.uint8)

    def part(self, var: Tensor, is_flat: bool = False) -> Tensor:
        """Return the local tensor of a DTensor, cached until its memory moves.

        Args:
            var: The DTensor. A tensor that is not a DTensor is returned unchanged.
            is_flat: True to flatten the local tensor.
        """
        if not is_on_mesh(var):
            return var
        local = to_local(var)
        local = local.view(-1) if is_flat else local
        cached = self._views.get(id(var))
        if cached is None or cached[0] is not var or not _is_same(cached[1], local):
            local._thalweg_name = name_of(var)  # pyright: ignore[reportAttributeAccessIssue]
            cached = self._views[id(var)] = var, local
        return cached[1]

    def cut(self, value: Tensor, var: Tensor) -> Tensor:
        """Return this rank's part of `value`, placed like the DTensor `var`.

        A full tensor is cut without messages. A DTensor `value` is redistributed if its placements
        differ. If `var` is not a DTensor, return the local tensor of `value`.
        """
        if not is_on_mesh(var):
            return to_local(value)
        mesh: Any = var
        if is_on_mesh(value):
            return to_local(_as_placed(value, mesh))
        from torch.distributed.tensor import distribute_tensor

        # Each rank cuts its own value: `src_data_rank=None` sends no messages.
        detached = value.detach().to(var.device)
        return to_local(
            distribute_tensor(detached, mesh.device_mesh, mesh.placements, src_data_rank=None)
        )

    def whole(self, shard: Tensor, var: Tensor) -> Tensor:
        """Return a new full tensor, gathered from the shards of all ranks.

        All ranks of the mesh must call this method. `shard` is placed like the DTensor `var`. If
        `var` is not a DTensor, return a copy of `shard`.

        Raises:
            LayoutError: The memory of `shard` was freed.
            ReplicaMismatchError: A rank gathers a different tensor, or failed.
        """
        if not is_on_mesh(var):
            check_memory(shard, f"'{name_of(var)}'")
            return shard.detach().clone()
        from torch.distributed.tensor import DTensor

        mesh: Any = var
        description = f"{dtype_name(shard.dtype)} {tuple(var.shape)} {mesh.placements}"
        group = MatrixProcessGroup(
            [var],
            lambda: [f"the tensor '{name_of(var)}': {description}"],
            collective=PendingCollective.STATE,
        )
        with group.report_errors():
            check_memory(shard, f"'{name_of(var)}'")
        # The group has compared the ranks; torch's check would only send more messages.
        dtensor = DTensor.from_local(
            shard.detach(),
            mesh.device_mesh,
            mesh.placements,
            run_check=False,
            shape=var.shape,
            stride=var.stride(),
        )
        return dtensor.full_tensor().detach().clone()

    def collecting(self) -> AbstractContextManager[None]:
        """Return a context manager without effect: every rank of a mesh receives the full value."""
        return nullcontext()


def to_local(tensor: Any) -> Tensor:
    """Return the local part of a DTensor, detached; return any other tensor unchanged."""
    if not is_on_mesh(tensor):
        return tensor
    with no_grad():
        return tensor.to_local().detach()


def _is_same(first: Tensor, second: Tensor) -> bool:
    """Return True if two tensors have the same memory, dtype, shape and strides."""
    has_same_memory = first.data_ptr() == second.data_ptr() and first.dtype == second.dtype
    return has_same_memory and first.shape == second.shape and first.stride() == second.stride()


class LocalStep:
    """Step over DTensors and other variables; see `thalweg._core.step_adapter.Sharing`.

    Args:
        shards: The local parts.
        group: Optional. The ranks that have parts of the DTensors, if the step sends messages.
    """

    def __init__(self, shards: LocalShards, group: MatrixProcessGroup | None = None) -> None:
        self._shards, self._group = shards, group

    def check_matrices(
        self, rule: Rule, variables: Sequence[Tensor], titles: Sequence[str]
    ) -> None:
        """Raise NotImplementedError if a rule over full matrices cannot update DTensors.

        It cannot if it reduces rows and columns, if the step's process group does not gather
        matrices, or if the group's `check` raises. `titles` has the name of each variable.
        """
        cut = [pair for pair in zip(variables, titles, strict=True) if is_on_mesh(pair[0])]
        if cut and rule.is_of_lines:
            raise NotImplementedError(
                f"'{cut[0][1]}' is a DTensor, and rule {rule.name!r} measures rows and columns,"
                " of which no rank has all elements."
            )
        group = self._group
        if cut and (group is None or not group.gathers):
            raise NotImplementedError(
                f"'{cut[0][1]}' is a DTensor, and rule {rule.name!r} has stages over whole"
                " matrices: optimizers of thalweg.optim have those gathered, and no others."
            )
        if cut and group is not None:
            group.check(f"rule {rule.name!r}", *zip(*cut, strict=True))

    def local_parts(self, pairs: Sequence[Pair]) -> Sequence[Pair]:
        """Return (local gradient, local part of the variable) pairs.

        Raises:
            InvalidArgumentError: A DTensor has a sparse gradient or a constraint.
        """
        for grad, var in pairs:
            if is_on_mesh(var) and isinstance(grad, IndexedSlices):
                raise InvalidArgumentError(
                    f"The gradient of '{name_of(var)}' is sparse, and the variable a DTensor, whose"
                    " gradients must be DTensors."
                )
            if is_on_mesh(var) and variable_constraint(var) is not None:
                raise InvalidArgumentError(
                    f"'{name_of(var)}' is a DTensor, which cannot have a constraint."
                )
        return [(self._local_gradient(grad, var), self._shards.part(var)) for grad, var in pairs]

    def share_out(self, request: StepRequest) -> StepRequest:
        """Return `request` with local parts of variables, gradients and 16-bit copies."""
        variables = request.variables
        copies = request.copies and [
            None if copy is None else self._shards.part(copy) for copy in request.copies
        ]
        return request._replace(
            variables=list(map(self._shards.part, variables)),
            gradients=list(map(self._local_gradient, request.gradients, variables)),
            copies=copies,
            matrices=self._matrices_of(variables) if request.rule.passes else None,
        )

    def _matrices_of(self, variables: Sequence[Tensor]) -> Callable[[StepRequest], Any] | None:
        """Return a function that gathers the matrices of a request; None without DTensors."""
        if self._group is None or not any_on_mesh(variables):
            return None
        from thalweg.distribute.sharding.gathered_matrices import GatheredMatrices

        return partial(GatheredMatrices, self._group, variables)

    def _local_gradient(self, grad: Any, var: Tensor) -> Any:
        """Return the local part of a gradient; None and sparse gradients are returned unchanged."""
        if grad is None or isinstance(grad, IndexedSlices):
            return grad
        return self._shards.cut(grad, var)

    def make_reductions(self, parts: Reductions, pairs: Sequence[Pair], flush: bool) -> Reductions:
        """Return reductions over full variables that use `parts`, reductions over local parts."""
        return DTensorReductions(parts, [var for _, var in pairs], self._group)

    def diagnostics_of_whole(self, variables: Sequence[Tensor], measures: Any) -> Any:
        """Return the diagnostics of full variables by `sharding.diagnostics.over_ranks`."""
        from thalweg.distribute.sharding.diagnostics import RankMeasures, over_ranks

        return over_ranks(variables, [RankMeasures(*measure) for measure in measures])

    def begin_writing(self) -> None:
        """Wait until all ranks are about to write; called once, before the first write."""
        if self._group is not None:
            self._group.agree()

    def place_on_mesh(self, pairs: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """Return new (gradient, variable) pairs; DTensor gradients get the variable's placements.

        All ranks must call this method. The ranks are compared before a gradient is redistributed.

        Raises:
            FailedPreconditionError: A gradient is a DTensor, but its variable is not.
        """
        if self._group is not None and are_misplaced(pairs):
            self._group.meet()
        placed_pairs: list[tuple[Any, Any]] = []
        for grad, var in pairs:
            if is_on_mesh(grad) and not is_on_mesh(var):
                raise FailedPreconditionError(
                    f"The gradient of '{name_of(var)}' is a DTensor, and the variable is none."
                )
            placed_pairs.append((_as_placed(grad, var) if is_on_mesh(grad) else grad, var))
        return placed_pairs

    def report_errors(self) -> AbstractContextManager[None]:
        """Return a context manager that reports errors of a step to the other ranks."""
        return nullcontext() if self._group is None else self._group.report_errors()

    def joining_calls(self, request: StepRequest) -> PostUpdateCall | None:
        """Return None: updated DTensors stay sharded."""
        return None


def are_misplaced(pairs: Iterable[tuple[Any, Any]]) -> bool:
    """Return True if a gradient's placement differs from its variable's: ranks must send."""
    dtensor_pairs = (pair for pair in pairs if is_on_mesh(pair[0]) and is_on_mesh(pair[1]))
    return not all(_is_placed_alike(grad, var) for grad, var in dtensor_pairs)


def _is_placed_alike(tensor: Any, var: Any) -> bool:
    return (tensor.device_mesh, tensor.placements) == (var.device_mesh, var.placements)


def _as_placed(tensor: Any, var: Any) -> object:
    """Return `tensor` with the placement of the DTensor `var`; all ranks call this."""
    if _is_placed_alike(tensor, var):
        return tensor
    with no_grad():
        return tensor.redistribute(var.device_mesh, var.placements)
