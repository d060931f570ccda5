"""Variables that torch has shared out itself: each rank updates its local part of a DTensor.

`fully_shard` (FSDP2) makes such parameters, and sums their gradients. Measures are added up over
those dimensions of a variable's mesh that it is cut along.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg._base.context_managers import no_grad
from thalweg._core.commit import PostUpdateCall
from thalweg._core.dtensor import any_on_mesh, is_on_mesh
from thalweg._core.gradient_transforms import Measures
from thalweg._core.grads_and_vars import Pair
from thalweg._core.slots import SlotStore
from thalweg._engines.array_types import Float64
from thalweg._engines.layout import check_memory
from thalweg._engines.protocol import Columns, Formulas, Stages, StepPlan, StepRequest
from thalweg.distribute.handshake import PendingCollective
from thalweg.distribute.process_group import Ranks
from thalweg.distribute.sharding.matrix_group import MatrixProcessGroup, cut_dims
from thalweg.distribute.tree_reduction import in_pairs
from thalweg.errors import FailedPreconditionError, InvalidArgumentError
from thalweg.formula import Rule
from thalweg.indexed_slices import IndexedSlices
from thalweg.variable import dtype_name, name_of, variable_constraint


def keep_local_slots(store: SlotStore, variables: Sequence[object]) -> None:
    """Have a store keep slots of local parts, if there are DTensors among the variables."""
    if store.parts is None and any_on_mesh(variables):
        store.parts = LocalShards()


class LocalShards:
    """The local parts of DTensors; all of any other variable. See `thalweg._core.slots.Parts`."""

    ranks: Ranks | None = None

    def __init__(self) -> None:
        self.checkpoint: str | None = None
        self._parts: dict[int, tuple[Tensor, Tensor]] = {}

    def part(self, var: Tensor) -> Tensor:
        """Return the local tensor: the same view of it as long as it does not move."""
        if not is_on_mesh(var):
            return var
        now = to_local(var)
        kept = self._parts.get(id(var))
        if kept is None or kept[0] is not var or not _is_same(kept[1], now):
            now._thalweg_name = name_of(var)  # pyright: ignore[reportAttributeAccessIssue]
            kept = self._parts[id(var)] = var, now
        return kept[1]

    def cut(self, value: Tensor, var: Tensor) -> Tensor:
        """Return the local part of a value, without a message."""
        if not is_on_mesh(var):
            return to_local(value)
        mesh: Any = var
        if is_on_mesh(value):
            return to_local(_as_placed(value, mesh))
        from torch.distributed.tensor import distribute_tensor

        own = value.detach().to(var.device)
        return to_local(
            distribute_tensor(own, mesh.device_mesh, mesh.placements, src_data_rank=None)
        )

    def whole(self, own: Tensor, var: Tensor) -> Tensor:
        """Return the value, on each rank of the mesh; all of them call this.

        Raises:
            LayoutError: There is no memory that holds this rank's part.
            ReplicaMismatchError: Other ranks collect another tensor, or have no part of it.
        """
        if not is_on_mesh(var):
            check_memory(own, f"'{name_of(var)}'")
            return own.detach().clone()
        from torch.distributed.tensor import DTensor

        mesh: Any = var
        kind = f"{dtype_name(own.dtype)} {tuple(var.shape)} {mesh.placements}"
        team = MatrixProcessGroup(
            [var], lambda: [f"the tensor '{name_of(var)}': {kind}"], doing=PendingCollective.STATE
        )
        with team.report_errors():
            check_memory(own, f"'{name_of(var)}'")
        found = DTensor.from_local(
            own.detach(),
            mesh.device_mesh,
            mesh.placements,
            run_check=False,
            shape=var.shape,
            stride=var.stride(),
        )
        return found.full_tensor().detach().clone()

    def collecting(self) -> AbstractContextManager[None]:
        """Return a context manager for a block in which nothing is otherwise: all ranks of a mesh
        have `whole`.
        """
        return nullcontext()


def to_local(tensor: Any) -> Tensor:
    """Return the local part of a DTensor, detached; return any other tensor unchanged."""
    if not is_on_mesh(tensor):
        return tensor
    with no_grad():
        return tensor.to_local().detach()


def _is_same(one: Tensor, other: Tensor) -> bool:
    same = one.data_ptr() == other.data_ptr() and one.dtype == other.dtype
    return same and one.shape == other.shape and one.stride() == other.stride()


class LocalStep:
    """Step over variables of which some are DTensors; see `thalweg._core.sharded_step`.

    Args:
        parts: The local parts.
        team: Optional. The ranks that have parts of them, for a step in which these send messages.
    """

    def __init__(self, parts: LocalShards, team: MatrixProcessGroup | None = None) -> None:
        self._parts, self._team = parts, team

    def check_matrices(
        self, rule: Rule, variables: Sequence[Tensor], titles: Sequence[str]
    ) -> None:
        """See `Sharing`."""
        cut = [pair for pair in zip(variables, titles, strict=True) if is_on_mesh(pair[0])]
        if cut and rule.is_of_lines:
            raise NotImplementedError(
                f"'{cut[0][1]}' is a DTensor, and rule {rule.name!r} measures rows and columns,"
                " of which no rank has all elements."
            )
        team = self._team
        if cut and (team is None or not team.gathers):
            raise NotImplementedError(
                f"'{cut[0][1]}' is a DTensor, and rule {rule.name!r} has stages over whole"
                " matrices: optimizers of thalweg.optim have those gathered, and no others."
            )
        if cut and team is not None:
            team.check(f"rule {rule.name!r}", *zip(*cut, strict=True))

    def local_parts(self, pairs: Sequence[Pair]) -> Sequence[Pair]:
        """See `Sharing`."""
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
        return [(self._local_gradient(grad, var), self._parts.part(var)) for grad, var in pairs]

    def share_out(self, asked: StepRequest) -> StepRequest:
        """See `Sharing`."""
        variables = asked.variables
        copies = asked.copies and [
            None if copy is None else self._parts.part(copy) for copy in asked.copies
        ]
        return asked._replace(
            variables=list(map(self._parts.part, variables)),
            gradients=list(map(self._local_gradient, asked.gradients, variables)),
            copies=copies,
            matrices=self._matrices_of(variables) if asked.rule.passes else None,
        )

    def _matrices_of(self, variables: Sequence[Tensor]) -> Callable[[StepRequest], Any] | None:
        if self._team is None or not any_on_mesh(variables):
            return None
        from thalweg.distribute.sharding.gathered_matrices import GatheredMatrices

        return partial(GatheredMatrices, self._team, variables)

    def _local_gradient(self, grad: Any, var: Tensor) -> Any:
        if grad is None or isinstance(grad, IndexedSlices):
            return grad
        return self._parts.cut(grad, var)

    def measure_whole(self, ready: StepPlan, asked: StepRequest) -> Measures:
        """See `Sharing`."""
        return _Measured(ready, asked.variables, self._team)

    def diagnostics_of_whole(self, variables: Sequence[Tensor], parts: Any) -> Any:
        """Return the diagnostics of whole variables, by `over_ranks` of `sharding.diagnostics`."""
        from thalweg.distribute.sharding.diagnostics import RankMeasures, over_ranks

        return over_ranks(variables, [RankMeasures(*each) for each in parts])

    def begin_writing(self) -> None:
        """See `Sharing`."""
        if self._team is not None:
            self._team.agree()

    def report_errors(self) -> AbstractContextManager[None]:
        """Return the block in which the step is taken; if it fails, the other ranks are told."""
        return nullcontext() if self._team is None else self._team.report_errors()

    def joining_calls(self, asked: StepRequest) -> PostUpdateCall | None:
        """See `Sharing`."""
        return None


class _Measured:
    """What a step over local parts measures of whole variables."""

    def __init__(
        self, ready: StepPlan, variables: Sequence[Tensor], team: MatrixProcessGroup | None
    ) -> None:
        self._ready, self._team = ready, team
        # The variables that are cut along the same dimensions of the same mesh.
        self._cut: dict[tuple[Any, ...], list[int]] = {}
        for place, var in enumerate(variables):
            if is_on_mesh(var):
                mesh: Any = var
                self._cut.setdefault((mesh.device_mesh, *cut_dims(var)), []).append(place)

    def compute_sums(
        self, formulas: Formulas, stages: Stages, columns: Columns
    ) -> Sequence[Float64]:
        """See `StepPlan`."""
        found = np.stack(self._ready.compute_sums(formulas, stages, columns), axis=-1)
        self._meet(len(formulas))
        for (mesh, *dims), places in self._cut.items():
            own = torch.from_numpy(found[places])  # pyright: ignore[reportUnknownMemberType]
            for dim in dims:
                ranks = Ranks(mesh.get_group(dim))
                own = in_pairs(ranks.all_gather(own.to(ranks.device)))
            found[places] = own.cpu().numpy()
        return list(found.T)

    def _meet(self, *told: object) -> None:
        if self._team is not None:
            self._team.meet([len(places) for places in self._cut.values()], *told)

    def sums_on_device(self, formulas: Formulas, stages: Stages, columns: Columns) -> None:
        """See `StepPlan`."""

    def max_abs(self) -> Float64:
        """See `StepPlan`."""
        found = np.abs(self._ready.max_abs())
        self._meet()
        for (mesh, *dims), places in self._cut.items():
            # As whole numbers, magnitudes have the same order, and NaN is the largest.
            bits = torch.from_numpy(found[places].view(np.int64))  # pyright: ignore[reportUnknownMemberType]
            for dim in dims:
                ranks = Ranks(mesh.get_group(dim))
                bits = bits.to(ranks.device)
                ranks.take_maximum(bits)
            found[places] = bits.cpu().numpy().view(np.float64)
        return found

    def max_abs_on_device(self, is_checked: Tensor) -> None:
        """See `StepPlan`."""


def place_on_mesh(
    pairs: Sequence[tuple[Any, Any]], team: MatrixProcessGroup | None = None
) -> list[tuple[Any, Any]]:
    """Return the pairs with gradients cut as their variables are; all ranks call this.

    Args:
        pairs: Gradients and variables.
        team: Optional. The ranks, which meet before gradients are cut otherwise.

    Raises:
        FailedPreconditionError: A gradient is a DTensor, and its variable is none.
    """
    if team is not None and are_misplaced(pairs):
        team.meet()
    found: list[tuple[Any, Any]] = []
    for grad, var in pairs:
        if is_on_mesh(grad) and not is_on_mesh(var):
            raise FailedPreconditionError(
                f"The gradient of '{name_of(var)}' is a DTensor, and the variable is none."
            )
        found.append((_as_placed(grad, var) if is_on_mesh(grad) else grad, var))
    return found


def are_misplaced(pairs: Iterable[tuple[Any, Any]]) -> bool:
    """Return whether a gradient is cut otherwise than its variable, so that ranks have to send."""
    both = (pair for pair in pairs if is_on_mesh(pair[0]) and is_on_mesh(pair[1]))
    return not all(_is_placed_alike(grad, var) for grad, var in both)


def _is_placed_alike(value: Any, var: Any) -> bool:
    return (value.device_mesh, value.placements) == (var.device_mesh, var.placements)


def _as_placed(value: Any, var: Any) -> object:
    """A DTensor cut as another one is."""
    if _is_placed_alike(value, var):
        return value
    with no_grad():
        return value.redistribute(var.device_mesh, var.placements)
