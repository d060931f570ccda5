"""Python in graphs: functions of arrays and tensors, and printing. At once in eager mode."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from thalweg import _graph
from thalweg._core.nest import leaves_of, mapped
from thalweg._graph.assertions import excerpt
from thalweg._graph.feeds_and_fetches import exported
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
    """`func` called with arrays; no gradient flows through it.

    Args:
        func: Is given the values of `inp` as NumPy arrays and scalars; returns one, or as many as
            there are dtypes.
        inp: Tensors.
        Tout: The dtype of what it returns, or a list of these.
        stateful: Ignored: each run calls it once.
        name: Optional.

    Returns:
        A tensor, or a list of tensors if `Tout` is one; an operation in graph mode if that is
        empty.

    Raises:
        InvalidArgumentError: It returns another number of values, or other dtypes.
    """
    return _call_python(
        lambda *given: func(*map(exported, given)), inp, Tout, False, name or "PyFunc"
    )


def py_function(func: Callable[..., Any], inp: Sequence[Any], Tout: Any, name: Any = None) -> Any:
    """`func` called with tensors, through which gradients flow; otherwise as `numpy_function`."""
    return _call_python(func, inp, Tout, True, name or "EagerPyFunc")


def _call_python(
    func: Callable[..., object], inp: Any, Tout: object, flows: bool, name: str
) -> object:
    several = isinstance(Tout, list | tuple)
    kinds = [as_dtype(kind) for kind in (Tout if several else [Tout])]

    def run(given: Sequence[object]) -> object:
        found = func(*given)
        values = list(found) if several and isinstance(found, list | tuple) else [found]
        if several and not kinds:
            return None
        if len(values) != len(kinds):
            raise InvalidArgumentError(f"{func!r} returned {len(values)} values, not {len(kinds)}.")
        made = [_convert_result(value, kind) for value, kind in zip(values, kinds, strict=True)]
        return made if several else made[0]

    inputs: list[Any] = [tensor(each) for each in inp]
    if _graph.executing_eagerly():
        return run(inputs)
    reached = tuple(x for x in inputs if x.is_differentiable()) if flows else ()
    outputs: object = [_graph.Output(kind, None, reached) for kind in kinds]
    outputs = (outputs or None) if several else outputs[0]
    made = _graph.operation(run, [inputs], name, kind="pure", outputs=outputs)
    op = made if isinstance(made, _graph.Operation) else next(leaves_of(made)).op
    op.type = "PyFunc"
    return made


def _convert_result(value: object, kind: torch.dtype) -> torch.Tensor:
    is_typed = isinstance(value, torch.Tensor | np.ndarray | np.generic)
    made = to_tensor(value) if is_typed else to_tensor(value, kind)
    if made.dtype != kind:
        raise InvalidArgumentError(
            f"A function returned {dtype_name(made.dtype)}, where Tout says {dtype_name(kind)}."
        )
    return made


def print(
    *inputs: Any,
    output_stream: Any = None,
    summarize: int | None = 3,
    sep: str = " ",
    end: str = "\n",
    name: str | None = None,
) -> Any:
    """Print values: at once in eager mode; in graph mode the operation that is returned does.

    Args:
        inputs: Tensors, nests of these, and other objects.
        output_stream: A stream, by default standard error, or a function such as `logging.info`.
        summarize: How many elements are printed at the beginning and the end of each dimension;
            None or -1 for all.
        sep: What stands between inputs.
        end: What stands at the end.
        name: Optional.
    """

    def show(given: Any) -> None:
        shown = (mapped(lambda leaf: _Shown(leaf, summarize), each) for each in given)
        text = sep.join(str(each) for each in shown) + end
        if callable(output_stream):
            output_stream(text.removesuffix("\n"))
        else:
            stream = sys.stderr if output_stream is None else output_stream
            _python_print(text, end="", file=stream, flush=True)

    given = [mapped(_as_symbol, each) for each in inputs]
    if _graph.executing_eagerly():
        return show(given)
    return _graph.operation(show, [given], name or "PrintV2", kind="pure")


def _as_symbol(leaf: object) -> object:
    return tensor(leaf) if isinstance(leaf, torch.nn.Parameter) else leaf


class _Shown:
    """A value as it is printed, in a nest or alone."""

    def __init__(self, value: object, summarize: int | None) -> None:
        self.value, self.summarize = value, summarize

    def __repr__(self) -> str:
        if not isinstance(self.value, torch.Tensor):
            return repr(self.value)
        array = np.asarray(exported(self.value))
        most = array.size if self.summarize in (None, -1) else self.summarize
        threshold = array.size if self.summarize in (None, -1) else 2 * (most or 0)
        options: Any = {"edgeitems": most, "threshold": threshold, "separator": " "}
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
    """`input_`, and the values of `data` printed when it is computed, to standard error.

    Args:
        input_: A tensor.
        data: Tensors and other objects.
        message: Optional. What stands before them.
        first_n: Optional. How often they are printed.
        summarize: How many elements of each are printed; 3 by default, all if negative.
        name: Optional.
    """
    given: Any = tensor(input_)
    times = 0

    def show(value: Any, seen: Sequence[object]) -> object:
        nonlocal times
        times += 1
        if first_n is None or first_n < 0 or times <= first_n:
            listed = "".join(f"[{excerpt(each, summarize)}]" for each in seen)
            _python_print(f"{message or ''}{listed}", file=sys.stderr, flush=True)
        return value.clone()

    if _graph.executing_eagerly():
        return show(given, list(data))
    output = _graph.Output(given.dtype, given.shape, (given,))
    arguments = [given, [_as_symbol(each) for each in data]]
    return _graph.operation(show, arguments, name or "Print", kind="pure", outputs=output)
