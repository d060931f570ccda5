"""`tf.nn.embedding_lookup` in several tables, such as the parts of a partitioned variable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from thalweg import _graph
from thalweg._base.static_shape import UNKNOWN
from thalweg.errors import InvalidArgumentError
from thalweg.indexed_slices import table_of
from thalweg.tf.convert import call, set_static, tensor

Strategy = Callable[[Tensor, list[int]], tuple[Tensor, Tensor]]


def look_up(params: Any, ids: object, strategy: str | None = None, name: str | None = None) -> Any:
    """Return the rows at `ids` of a table, of several tables, or of a partitioned variable.

    Args:
        params: A table, a list of tables, or a partitioned variable.
        ids: Integers of any shape.
        strategy: Order of the rows in several tables, see `lookup_in_tables`. By default "mod" in
            graph mode, as in TensorFlow 1, and "div" in eager mode, as in TensorFlow 2.

    Raises:
        InvalidTypeError: `params` is an empty list.
        InvalidArgumentError: See `lookup_in_tables`.
    """
    tables = list(params) if hasattr(params, "partition_axes") else params
    if isinstance(tables, list | tuple) and len(cast("list[object]", tables)) > 1:
        strategy = strategy or ("div" if _graph.executing_eagerly() else "mod")
        return lookup_in_tables(cast("list[object]", tables), ids, strategy, name)
    return _graph.embedding_lookup(tensor(table_of(tables)), tensor(ids), name)


def lookup_in_tables(
    params: Sequence[object], ids: object, strategy: str, name: str | None = None
) -> Any:
    """Return the rows at `ids` of a table that is divided into several tables.

    The gradient of a variable in `params` is `IndexedSlices`.

    Args:
        params: Two or more tables with known numbers of rows.
        ids: Integers of any shape.
        strategy: "mod": row `i` is in table `i % len(params)`. "div": each table has consecutive
            rows. If the rows do not divide evenly, the first tables have one row more.

    Raises:
        InvalidArgumentError: The strategy is unknown, or a number of rows is unknown, or in a run
            an id is not in [0, rows).
    """
    if strategy not in _STRATEGIES:
        raise InvalidArgumentError(f"partition_strategy is 'mod' or 'div', not {strategy!r}.")
    tables, id_tensor = [tensor(table) for table in params], tensor(ids)
    shapes: list[Any] = [table.shape for table in tables]
    if any(shape is UNKNOWN or shape[0] is None for shape in shapes):
        raise InvalidArgumentError("embedding_lookup needs the number of rows of each table.")
    counts = [int(shape[0]) for shape in shapes]

    def share_out(ids: Tensor) -> list[Tensor]:
        flat = ids.reshape(-1).to(torch.int64)
        if ((flat < 0) | (flat >= sum(counts))).any():
            raise InvalidArgumentError(f"An id is not in [0, {sum(counts)}).")
        tables_of_ids, rows = _STRATEGIES[strategy](flat, counts)
        positions = [torch.nonzero(tables_of_ids == i).flatten() for i in range(len(counts))]
        # The last tensor restores the order of `ids` after the rows of all tables are joined.
        return [*(rows[position] for position in positions), torch.argsort(torch.cat(positions))]

    def join(ids: Tensor, order: Tensor, *parts: Tensor) -> Tensor:
        return torch.cat(parts)[order].reshape(*ids.shape, *parts[0].shape[1:])

    if isinstance(id_tensor, _graph.SymbolicTensor) or isinstance(tables[0], _graph.SymbolicTensor):
        outputs = [_graph.Output(torch.int64, (None,), ())] * (len(counts) + 1)
        shared = _graph.operation(
            share_out, [id_tensor], "DynamicPartition", kind="pure", outputs=outputs
        )
    else:
        shared = share_out(id_tensor)
    *rows, order = shared
    table_rows = [_graph.embedding_lookup(*pair) for pair in zip(tables, rows, strict=True)]
    output: Any = call(join, id_tensor, order, *table_rows, name=name or "embedding_lookup")
    static_shape = None if id_tensor.shape is UNKNOWN else (*id_tensor.shape, *shapes[0][1:])
    return set_static(output, shape=lambda: static_shape)


def _split_cyclically(flat: Tensor, counts: list[int]) -> tuple[Tensor, Tensor]:
    return flat % len(counts), flat // len(counts)


def _split_evenly(flat: Tensor, counts: list[int]) -> tuple[Tensor, Tensor]:
    # The first `longer` tables have `size + 1` rows, the others `size`, which may be 0.
    size, longer = divmod(sum(counts), len(counts))
    is_in_longer = flat < longer * (size + 1)
    offset, shorter = flat - longer, max(size, 1)
    tables_of_ids = torch.where(is_in_longer, flat // (size + 1), offset // shorter)
    return tables_of_ids, torch.where(is_in_longer, flat % (size + 1), offset % shorter)


_STRATEGIES: dict[str, Strategy] = {"mod": _split_cyclically, "div": _split_evenly}
