"""`SymbolicTensor`: what runs between the operations of a graph."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.graph.nest import leaves_of
from thalweg.graph.operation import Operation, session_for
from thalweg.variable import dtype_name

if TYPE_CHECKING:
    from thalweg.graph.graph import Graph

_NEEDS_A_RUN = "has no value until a session runs it"
_RUN_IT = "Use Session.run(...) or .eval()"


class Shape(tuple[int | None, ...]):
    """A static shape: a tuple of sizes, None where a size is known only in a run."""

    __slots__ = ()

    @property
    def ndims(self) -> int:
        """The number of dimensions."""
        return len(self)

    def as_list(self) -> list[int | None]:
        """The sizes as a list."""
        return list(self)

    def is_fully_defined(self) -> bool:
        """Whether all sizes are known."""
        return None not in self

    def accepts(self, sizes: Sequence[int | None]) -> bool:
        """Whether a tensor of `sizes` may have this shape."""
        pairs = zip(self, sizes, strict=False)
        return len(self) == len(sizes) and all(a == b or None in (a, b) for a, b in pairs)


def _binary(function: Callable[[Any, Any], Any]) -> tuple[Any, Any]:
    """An operator and its reflection."""

    def forward(self: SymbolicTensor, other: Any) -> SymbolicTensor:
        return self.graph.call(function, (self, self.operand(other)))

    def reflected(self: SymbolicTensor, other: Any) -> SymbolicTensor:
        return self.graph.call(function, (self.operand(other), self))

    return forward, reflected


def _unary(function: Callable[[Any], Any]) -> Any:
    def apply(self: SymbolicTensor) -> SymbolicTensor:
        return self.graph.call(function, (self,))

    return apply


class SymbolicTensor:
    """The value that an operation will have in a run.

    Arithmetic, comparisons, indexing, torch's functions and the methods of `torch.Tensor` add
    nodes to the graph. `==` and `!=` compare identities, as in TensorFlow 1, so that tensors can
    be keys; `torch.eq` compares elements.

    Attributes:
        op: The operation that gives it.
        name: The name of the operation and the place among its outputs: "add:0".
        dtype: A torch dtype, or None where only a run knows it.
        shape: A tuple with None for unknown sizes, or None where even their number is unknown.
        graph: The graph it belongs to.
        device: Where it is expected to be.
    """

    __array_ufunc__ = None  # NumPy's operators leave the work to the reflected ones here
    may_be_sparse = False  # its value may be IndexedSlices, which only a run knows

    def __init__(
        self,
        op: Operation,
        value_index: int = 0,
        dtype: torch.dtype | None = None,
        shape: Sequence[int | None] | None = None,
    ) -> None:
        self.op = op
        self.value_index = value_index
        self.dtype = dtype
        self.shape = None if shape is None else Shape(shape)

    @property
    def name(self) -> str:
        return f"{self.op.name}:{self.value_index}"

    @property
    def graph(self) -> Graph:
        return self.op.graph

    @property
    def device(self) -> torch.device:
        return self.op.device

    def get_shape(self) -> Shape | None:
        """The static shape."""
        return self.shape

    def set_shape(self, shape: Sequence[int | None]) -> None:
        """Add what is known of the shape.

        Raises:
            InvalidArgumentError: It contradicts what is known already.
        """
        if self.shape is None:
            self.shape = Shape(shape)
            return
        if not self.shape.accepts(tuple(shape)):
            raise InvalidArgumentError(
                f"'{self.name}' has shape {self.shape}, which does not agree with {tuple(shape)}."
            )
        pairs = zip(self.shape, shape, strict=True)
        self.shape = Shape(new if old is None else old for old, new in pairs)

    def is_differentiable(self) -> bool:
        """Whether a gradient may flow through it, by its dtype."""
        return self.dtype is None or self.dtype.is_floating_point or self.dtype.is_complex

    def eval(self, feed_dict: Any = None, session: Any = None) -> Any:
        """The value in `session` or the default one, as `Session.run` gives it.

        Raises:
            InvalidArgumentError: There is no session.
        """
        return session_for(session, f"evaluate tensor '{self.name}'").run(self, feed_dict)

    def operand(self, other: Any) -> Any:
        """The other operand of an operator: arrays and lists take this tensor's dtype."""
        return self.graph.operand(other, self.dtype)

    __add__, __radd__ = _binary(operator.add)
    __sub__, __rsub__ = _binary(operator.sub)
    __mul__, __rmul__ = _binary(operator.mul)
    __truediv__, __rtruediv__ = _binary(operator.truediv)
    __floordiv__, __rfloordiv__ = _binary(operator.floordiv)
    __mod__, __rmod__ = _binary(operator.mod)
    __pow__, __rpow__ = _binary(operator.pow)
    __matmul__, __rmatmul__ = _binary(operator.matmul)
    __and__, __rand__ = _binary(operator.and_)
    __or__, __ror__ = _binary(operator.or_)
    __xor__, __rxor__ = _binary(operator.xor)
    __lt__, __le__ = _binary(operator.lt)[0], _binary(operator.le)[0]
    __gt__, __ge__ = _binary(operator.gt)[0], _binary(operator.ge)[0]
    __neg__, __invert__ = _unary(operator.neg), _unary(operator.invert)
    __abs__ = _unary(operator.abs)

    def __getitem__(self, index: Any) -> SymbolicTensor:
        return self.graph.call(operator.getitem, (self, index), name="strided_slice")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "op":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self.graph.attribute(self, name)

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        leaves = leaves_of((args, kwargs or {}))
        graph = next(leaf.graph for leaf in leaves if isinstance(leaf, SymbolicTensor))
        return graph.torch_call(function, args, kwargs or {})

    def __iter__(self) -> Iterator[SymbolicTensor]:
        size = self.shape[0] if self.shape else None
        if size is None:
            raise InvalidTypeError(
                f"'{self.name}' {_NEEDS_A_RUN}, nor a first dimension to iterate over it."
                f" {self._way_out()}"
            )
        return iter([self[index] for index in range(size)])

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise InvalidTypeError(f"'{self.name}' {_NEEDS_A_RUN}. {self._way_out()}")

    def _way_out(self) -> str:
        if self.op.type != "Placeholder":
            return f"{_RUN_IT}."
        return f"{_RUN_IT} on what is made of it, and feed it: feed_dict={{placeholder: value}}."

    def __bool__(self) -> bool:
        raise InvalidTypeError(
            f"'{self.name}' {_NEEDS_A_RUN}: no `if` can ask for it while a graph is built."
            f" {self._way_out()} torch.where chooses inside of a graph."
        )

    def __format__(self, spec: str) -> str:
        return str(self) if not spec else self._refuse()

    __len__ = __float__ = __int__ = __index__ = __complex__ = __round__ = _refuse
    __array__ = __contains__ = numpy = item = tolist = backward = _refuse

    def __repr__(self) -> str:
        return f"<tf.Tensor '{self.name}' {self._description()}>"

    def _description(self) -> str:
        dtype = None if self.dtype is None else dtype_name(self.dtype)
        shape = "<unknown>" if self.shape is None else tuple(self.shape)
        return f"shape={shape} dtype={dtype}"

    def __deepcopy__(self, memo: Any) -> SymbolicTensor:
        return self

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise InvalidTypeError(f"'{self.name}' belongs to its graph and cannot be pickled.")
