"""Python functions and printing in graphs, immediate in eager mode."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from thalweg import _graph
from thalweg._core.nest import leaves_of, mapped
from thalweg._graph.feeds_and_fetches import exported
from thalweg._graph.operation import excerpt
from thalweg.errors import InvalidArgumentError
from thalweg.tf.convert import tensor
from thalweg.variable import as_dtype, dtype_name, to_tensor

__all__ = ["numpy_function", "print", "py_function"]

_python_print = print


def numpy_function(
    func: Callable[..., object],
    inp: Sequence[object],
    Tout: object,
    stateful: bool = True,
    name: str | None = None,
) -> Any:
    """Return the results of a function of NumPy arrays as tensors, without gradients.

    Args:
        func: `func(*arrays)` returns an array or scalar, or a sequence with one for each dtype.
        inp: Tensors; `func` is called with their values.
        Tout: The dtype of the result, or a list of dtypes.
        stateful: Ignored: each run calls `func` once.

    Returns:
        A tensor, or a list of tensors if `Tout` is a list. For an empty list None, or in graph mode
        the operation.

    Raises:
        InvalidArgumentError: The number or the dtypes of the values that `func` returns are wrong.
    """
    return _call_python(
        lambda *tensors: func(*map(exported, tensors)), inp, Tout, False, name or "PyFunc"
    )


def py_function(func: Callable[..., Any], inp: Sequence[Any], Tout: Any, name: Any = None) -> Any:
    """Call a function of tensors as `numpy_function` does, with gradients."""
    return _call_python(func, inp, Tout, True, name or "EagerPyFunc")


def _call_python(
    func: Callable[..., object], inp: Any, Tout: object, flows: bool, name: str
) -> object:
    returns_list = isinstance(Tout, list | tuple)
    kinds = [as_dtype(kind) for kind in (Tout if returns_list else [Tout])]

    def run(operands: Sequence[object]) -> object:
        returned: Any = func(*operands)
        if returns_list and not kinds:
            return None
        is_sequence = returns_list and isinstance(returned, list | tuple)
        values = list(returned) if is_sequence else [returned]
        if len(values) != len(kinds):
            raise InvalidArgumentError(f"{func!r} returned {len(values)} values, not {len(kinds)}.")
        results = [_convert_result(value, kind) for value, kind in zip(values, kinds, strict=True)]
        return results if returns_list else results[0]

    inputs: list[Any] = [tensor(argument) for argument in inp]
    if _graph.executing_eagerly():
        return run(inputs)
    gradient_sources = tuple(x for x in inputs if x.is_differentiable()) if flows else ()
    outputs: object = [_graph.Output(kind, None, gradient_sources) for kind in kinds]
    outputs = (outputs or None) if returns_list else outputs[0]
    node_outputs = _graph.operation(run, [inputs], name, kind="pure", outputs=outputs)
    first = next(leaves_of(node_outputs))
    getattr(first, "op", first).type = "PyFunc"
    return node_outputs


def _convert_result(value: object, kind: torch.dtype) -> torch.Tensor:
    is_typed = isinstance(value, torch.Tensor | np.ndarray | np.generic)
    output = to_tensor(value) if is_typed else to_tensor(value, kind)
    if output.dtype != kind:
        raise InvalidArgumentError(
            f"A function returned {dtype_name(output.dtype)}, where Tout says {dtype_name(kind)}."
        )
    return output


def print(
    *inputs: Any,
    output_stream: Any = None,
    summarize: int | None = 3,
    sep: str = " ",
    end: str = "\n",
    name: str | None = None,
) -> Any:
    """Print values now; in graph mode return an operation that prints in each run.

    Args:
        inputs: Tensors, nested lists, tuples and dicts of tensors, and other objects.
        output_stream: A stream, by default standard error, or a function such as `logging.info`.
        summarize: Number of elements printed at the beginning and the end of each dimension;
            None or -1 for all.
        sep, end: Text between inputs, and text at the end.
    """

    def show(nests: Any) -> None:
        printable = (mapped(lambda leaf: _Shown(leaf, summarize), nest) for nest in nests)
        text = sep.join(str(nest) for nest in printable) + end
        if callable(output_stream):
            output_stream(text.removesuffix("\n"))
        else:
            stream = sys.stderr if output_stream is None else output_stream
            _python_print(text, end="", file=stream, flush=True)

    symbols = [mapped(_as_symbol, argument) for argument in inputs]
    if _graph.executing_eagerly():
        return show(symbols)
    return _graph.operation(show, [symbols], name or "PrintV2", kind="pure")


def _as_symbol(leaf: object) -> object:
    return tensor(leaf) if isinstance(leaf, torch.nn.Parameter) else leaf


class _Shown:
    """Leaf of a printed nest; a tensor prints as an array, shortened to `summarize` elements."""

    def __init__(self, value: object, summarize: int | None) -> None:
        self.value, self.summarize = value, summarize

    def __repr__(self) -> str:
        if not isinstance(self.value, torch.Tensor):
            return repr(self.value)
        array = np.asarray(exported(self.value))
        edge_items = array.size if self.summarize in (None, -1) else self.summarize
        threshold = array.size if self.summarize in (None, -1) else 2 * (edge_items or 0)
        options: Any = {"edgeitems": edge_items, "threshold": threshold, "separator": " "}
        return np.array2string(array, **options)

    def __str__(self) -> str:
        return self.value if isinstance(self.value, str) else repr(self)


def print_identity(
    input_: object,
    data: Sequence[object],
    message: str | None = None,
    first_n: int | None = None,
    summarize: int | None = None,
    name: str | None = None,
) -> Any:
    """Print `data` to standard error, in a graph in each run; return a copy of `input_`.

    Args:
        data: Tensors and other objects.
        message: Optional. Text before the values.
        first_n: Optional. Maximum number of prints.
        summarize: Number of elements printed of each tensor; 3 by default, all if negative.
    """
    source: Any = tensor(input_)
    count = 0

    def show(value: Any, values: Sequence[object]) -> object:
        nonlocal count
        count += 1
        if first_n is None or first_n < 0 or count <= first_n:
            excerpts = "".join(f"[{excerpt(entry, summarize)}]" for entry in values)
            _python_print(f"{message or ''}{excerpts}", file=sys.stderr, flush=True)
        return value.clone()

    if _graph.executing_eagerly():
        return show(source, list(data))
    output = _graph.Output(source.dtype, source.shape, (source,))
    arguments = [source, [_as_symbol(entry) for entry in data]]
    return _graph.operation(show, arguments, name or "Print", kind="pure", outputs=output)
