"""DTensor parameters, such as those of `fully_shard`; each rank updates its local parts.

Their state is sharded like the parameters.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from itertools import product
from typing import TYPE_CHECKING, Any

from torch import Tensor

from thalweg._base.locks import importing
from thalweg._core.dtensor import any_on_mesh, is_imported, is_on_mesh
from thalweg._core.param_groups import params_of
from thalweg._core.state import Entry, Part
from thalweg._engines.random_bits import Positions

if TYPE_CHECKING:
    from thalweg.distribute.sharding.dtensor_step import LocalShards


def make_local_shards(params: Sequence[Tensor]) -> LocalShards | None:
    """Return a map from DTensors to local parts; return None if no parameter is a DTensor."""
    if not any_on_mesh(params):
        return None
    # Imported late: programs without DTensors need nothing of `thalweg.distribute`.
    from thalweg.distribute.sharding.dtensor_step import LocalShards

    return LocalShards()


@contextmanager
def guard_ranks(optimizer: Any) -> Generator[None]:
    """Report an error in the `with` block to all ranks, so that no rank takes the step alone.

    In the block, `step_cache.team` of the optimizer is the process group. Do nothing if the
    optimizer has no DTensors, or if its step sends no messages.
    """
    team = None
    if is_imported() and any_on_mesh(params_of(optimizer.param_groups)):
        with importing:
            from thalweg.optim.rank_guard import gather_ranks
        team = gather_ranks(optimizer)
    if team is None:
        yield
        return
    optimizer.step_cache.team = team
    try:
        with team.report_errors():
            yield
    finally:
        optimizer.step_cache.team = None
        team.end()


def make_entry(name: str, tensor: Tensor) -> Entry:
    """Return the `Entry` that sets a tensor from a loaded state; for a DTensor its local part."""
    shards = make_local_shards([tensor])
    if shards is None:
        return Entry(name, tensor)
    return Part(name, shards.part(tensor), var=tensor, parts=shards)


def has_positions(param: Any) -> bool:
    """Return True if the elements of a DTensor's local part have known positions, in order."""
    from thalweg.distribute.sharding.shard_index import are_known

    return param.is_contiguous() and param.to_local().is_contiguous() and are_known(param)


def positions_of(param: Tensor) -> Positions:
    """Return the positions of a parameter's local elements in the full tensor; 0 if unknown."""
    if not is_on_mesh(param) or not has_positions(param):
        return 0
    from thalweg.distribute.sharding.shard_index import element_runs, local_index

    return element_runs(local_index(param), param.shape)


def cuts_blocks(param: Any, block: int) -> bool:
    """Return True if some rank's shard splits a block of `block` elements in the last dimension.

    Blocks begin at multiples of `block`. A short block at the end also counts as split.
    """
    from thalweg.distribute.sharding.shard_index import sharded_tensor

    tensor = sharded_tensor(param)
    last: int = param.dim() - 1
    cuts_rows = [not p.is_replicate() and p.dim % param.dim() == last for p in tensor.placements]
    ranks = [range(n) if is_cut else range(1) for n, is_cut in zip(tensor.mesh_shape, cuts_rows)]
    indices = (tensor.shard(position) for position in product(*ranks))
    return any(
        start % block or stop % block for index in indices for start, stop in index.runs[last]
    )
