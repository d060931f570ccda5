"""Operators, functions and methods that a symbolic tensor shares with `torch.Tensor`.

They compute nothing. The tensor's graph gets a node, which calls torch's function in a run.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch

from thalweg._base.execution_context import Symbolic, is_symbolic
from thalweg._base.static_shape import UNKNOWN
from thalweg._core.nest import leaves_of
from thalweg.errors import InvalidTypeError
from thalweg.variable import as_operand, divide_tensors

# Attributes of torch.Tensor that depend on memory or autograd, which symbolic tensors lack.
_MISSING = {"data", "grad", "grad_fn", "requires_grad", "is_leaf", "retain_grad", "register_hook"}
_MISSING |= {"storage", "untyped_storage", "data_ptr", "stride", "storage_offset", "is_contiguous"}
_MISSING |= {"layout", "is_meta", "is_cuda", "is_cpu"}
_REFLECTED = {"radd", "rsub", "rmul", "rdiv", "rtruediv", "rpow", "rmatmul", "rfloordiv", "rmod"}
_ASSIGN_HINT = "Use assign, assign_add or assign_sub on a variable."


def _binary_operators(function: Callable[[Any, Any], object]) -> tuple[Any, Any]:
    """Return two methods for a binary function: the operator and the reflected operator."""

    def forward(self: Operators, operand: object) -> Any:
        return self.graph.call(function, (self, self.operand(operand)))

    def reflected(self: Operators, operand: object) -> Any:
        return self.graph.call(function, (self.operand(operand), self))

    return forward, reflected


def truediv(x: Any, y: Any) -> Any:
    """Return `x / y`, rounded once."""
    # For a number x, torch multiplies by the reciprocal of y, which rounds twice.
    if isinstance(x, int | float) and (y.is_floating_point() or y.is_complex()):
        x = torch.tensor(x, dtype=y.dtype, device=y.device)
    return torch.true_divide(x, y)


def _has_dtype(value: object) -> bool:
    """Return True for NumPy arrays and scalars."""
    return isinstance(value, np.ndarray | np.generic)


def _unary_operator(function: Callable[[Any], object]) -> Any:
    """Return the method of a unary function."""

    def apply(self: Operators) -> Any:
        return self.graph.call(function, (self,))

    return apply


class Operators(Symbolic):
    """Arithmetic operators and tensor methods of symbolic tensors, recorded as nodes."""

    # Makes NumPy's operators defer to the reflected operators of this class.
    __array_ufunc__ = None
    # The graph that records.
    graph: Any
    name: Any
    dtype: torch.dtype | None
    shape: Any

    def operand(self, other: object) -> Any:
        """Return the second operand; arrays and lists are converted to the dtype of this tensor."""
        if isinstance(other, (np.ndarray, np.generic, list)):
            return as_operand(other, self.dtype)
        return other

    __add__, __radd__ = _binary_operators(operator.add)
    __sub__, __rsub__ = _binary_operators(operator.sub)
    __mul__, __rmul__ = _binary_operators(operator.mul)

    def __truediv__(self, other: object) -> Any:
        function = divide_tensors if _has_dtype(other) else operator.truediv
        return self.graph.call(function, (self, self.operand(other)))

    def __rtruediv__(self, other: object) -> Any:
        function = divide_tensors if _has_dtype(other) else truediv
        return self.graph.call(function, (self.operand(other), self))

    __floordiv__, __rfloordiv__ = _binary_operators(operator.floordiv)
    __mod__, __rmod__ = _binary_operators(operator.mod)
    __pow__, __rpow__ = _binary_operators(operator.pow)
    __matmul__, __rmatmul__ = _binary_operators(operator.matmul)
    __and__, __rand__ = _binary_operators(operator.and_)
    __or__, __ror__ = _binary_operators(operator.or_)
    __xor__, __rxor__ = _binary_operators(operator.xor)
    __lt__, __le__ = _binary_operators(operator.lt)[0], _binary_operators(operator.le)[0]
    __gt__, __ge__ = _binary_operators(operator.gt)[0], _binary_operators(operator.ge)[0]
    __neg__, __invert__ = _unary_operator(operator.neg), _unary_operator(operator.invert)
    __abs__ = _unary_operator(operator.abs)

    def __getitem__(self, index: object) -> Any:
        components = _to_spans(index)
        rows = self.graph.call(item, (self, components), name="strided_slice")
        if rows.shape is UNKNOWN:
            shape = _shape_of_item(self.shape, components)
            if shape is not None:
                rows.set_shape(shape)
        return rows

    def __getattr__(self, name: str) -> Any:
        """Return a function that records a call of the method `name` of `torch.Tensor`.

        For an attribute that is not a method, record a read, and return the new tensor. Raise
        AttributeError if `torch.Tensor` has no such name. Also raise AttributeError for a method
        that writes in place, such as `add_`, except in optimizers' hooks.
        """
        # `copy`, `pickle` and `hasattr` ask for such names, partly before `__init__` has run.
        if name.startswith("_") or name == "op":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        # Hooks written for torch update `var.data`.
        if name == "data" and self._is_hook():
            return self
        if name in _MISSING:
            self._raise_no_attribute(name, "Only a run knows it.")
        if name.endswith("_"):
            if self._writes(name):
                return partial(self._write, name)
            self._raise_no_attribute(name, f"{self._explain_restriction()} {_ASSIGN_HINT}")
        attribute = getattr(torch.Tensor, name, None)
        if attribute is None:
            self._raise_no_attribute(name, "Nor has torch.Tensor.")
        if not callable(attribute):
            return self.graph.call(operator.attrgetter(name), (self,), name=name)

        def method(*args: object, **kwargs: object) -> Any:
            return self.graph.call(attribute, (self, *args), kwargs, name)

        return method

    def _is_hook(self) -> bool:
        """Return True while a hook of an optimizer runs, which may be written for torch tensors."""
        return False

    def _writes(self, name: str) -> bool:
        """Return True if an in-place method may become a node in the current block."""
        return False

    def _write(self, name: str, *args: object, **kwargs: object) -> object:
        """Add the node of an in-place method; return this tensor."""
        raise NotImplementedError

    def _explain_restriction(self) -> str:
        """Return advice for an error about an unsupported in-place method."""
        return "No node writes in place."

    def _raise_no_attribute(self, name: str, reason: str) -> NoReturn:
        """Raise AttributeError with a reason."""
        raise AttributeError(f"Tensor '{self.name}' has no attribute {name!r}. {reason}")

    @classmethod
    def __torch_function__(
        cls, function: Any, types: object, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Record a torch function as a node; return the node's outputs."""
        kwargs = kwargs or {}
        function_name = getattr(function, "__name__", type(function).__name__)
        is_inplace = function_name.startswith("__i") and function_name not in (
            "__invert__",
            "__index__",
        )
        # torch marks functions that write in place by a single "_" at the end.
        if (
            is_inplace
            or function_name in ("__setitem__", "__set__")
            or function_name.rstrip("_") + "_" == function_name
        ):
            return _record_write(function_name, args, kwargs)
        if any(isinstance(leaf, Operators) for leaf in leaves_of(kwargs.get("out"))):
            raise InvalidTypeError(f"{function_name} with out= writes in place. {_ASSIGN_HINT}")
        if kwargs.get("inplace"):
            # The result is equal, and symbolic inputs have no memory to save.
            kwargs = {**kwargs, "inplace": False}
        name = function_name.strip("_")
        leaves = leaves_of((args, kwargs))
        graph = next(leaf.graph for leaf in leaves if isinstance(leaf, Operators))
        return graph.call(function, args, kwargs, name[1:] if name in _REFLECTED else name)


class _Span(NamedTuple):
    """Slice as a named tuple, which is searched for symbolic bounds, unlike Python's `slice`."""

    start: Any
    stop: Any
    step: Any

    def as_slice(self) -> slice:
        """Return the slice; all bounds are numbers."""
        return slice(*(None if end is None else int(end) for end in self))

    def size(self, length: int | None) -> int | None:
        """Return the number of elements taken from `length`; None if unknown."""
        if self == (None, None, None):
            return length
        if length is None or any(map(is_symbolic, self)):
            return None
        return len(range(length)[self.as_slice()])


def _to_spans(index: object) -> Any:
    """Return an index with a `_Span` in place of each slice."""
    if isinstance(index, tuple):
        return tuple(_to_spans(component) for component in index)
    return _Span(index.start, index.stop, index.step) if isinstance(index, slice) else index


def item(source: Any, index: Any) -> Any:
    """Return `source[index]`, after spans in `index` were converted to slices."""
    if isinstance(index, _Span):
        return source[index.as_slice()]
    if isinstance(index, tuple):
        return source[tuple(x.as_slice() if isinstance(x, _Span) else x for x in index)]
    return source[index]


def _shape_of_item(shape: Any, index: object) -> list[int | None] | None:
    """Return the shape of `tensor[index]` for a tensor of shape `shape`; unknown sizes are None.

    Return None if `shape` is unknown, or if `index` contains arrays or tensors with dimensions.
    """
    components = index if isinstance(index, tuple) and not isinstance(index, _Span) else (index,)
    if shape is UNKNOWN or not all(_is_plain(component) for component in components):
        return None
    axis_count = sum(component is not None and component is not ... for component in components)
    full_span = _Span(None, None, None)
    # Axes without a component are taken whole, as if the index ended with "...".
    if not any(component is ... for component in components):
        components = (*components, ...)
    sizes, item_shape = iter(shape), []
    for component in components:
        for span in [full_span] * (len(shape) - axis_count) if component is ... else [component]:
            if span is None:
                item_shape.append(1)
            elif isinstance(span, _Span):
                item_shape.append(span.size(next(sizes)))
            else:
                next(sizes)
    return item_shape


def _is_plain(component: object) -> bool:
    """Return True for None, Ellipsis, integers, spans and scalar symbols."""
    is_scalar_symbol = is_symbolic(component) and getattr(component, "shape", None) == ()
    return (
        component is None
        or component is ...
        or isinstance(component, int | _Span)
        or is_scalar_symbol
    )


def _record_write(
    function_name: str, args: Sequence[object], kwargs: Mapping[str, object]
) -> object:
    """Record an in-place torch function in an optimizer's hook; return the written tensor.

    For a `torch._foreach` function of a list, record one node per tensor, and return None. Raise
    InvalidTypeError outside of hooks, and for methods that are not in `IN_PLACE`.
    """
    target = args[0] if args else None
    # "_foreach_add_" becomes "_add_": it calls "add_" of each tensor.
    name = function_name.removeprefix("_foreach")
    if isinstance(target, Operators) and target._writes(function_name):
        return target._write(function_name, *args[1:], **kwargs)
    if name != function_name and isinstance(target, list | tuple):
        nodes = [node for node in target if isinstance(node, Operators) and node._writes(name[1:])]
        if len(nodes) == len(target):
            for index, node in enumerate(nodes):
                components = [
                    component[index] if isinstance(component, list | tuple) else component
                    for component in args
                ]
                node._write(name[1:], *components[1:], **kwargs)
            return None
    reason = next(
        (x._explain_restriction() for x in leaves_of(target) if isinstance(x, Operators)), ""
    )
    raise InvalidTypeError(f"{function_name} writes in place. {reason} {_ASSIGN_HINT}")
