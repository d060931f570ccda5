"""`Shape`: static shapes of tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from thalweg.errors import InvalidArgumentError


class Dimension(int):
    """Known size, with TensorFlow 1's `value`; `Dimension(None)` is `UNKNOWN_SIZE`."""

    __slots__ = ()

    def __new__(cls, value: object) -> Any:
        is_unknown = value is None or isinstance(value, UnknownDimension)
        return UNKNOWN_SIZE if is_unknown else int.__new__(cls, cast(Any, value))

    @property
    def value(self) -> int:
        """The size as a plain int."""
        return int(self)


class UnknownDimension:
    """Size that only a run knows: `value` is None, and arithmetic returns the unknown size."""

    __slots__ = ()

    value = None

    def __bool__(self) -> bool:
        return False

    def __int__(self) -> int:
        raise InvalidArgumentError(
            "The size of this dimension is known only in a run: use tf.shape."
        )

    __index__ = __int__

    def _unknown(self, operand: object) -> UnknownDimension:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _unknown
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _unknown

    def __repr__(self) -> str:
        return "Dimension(None)"


UNKNOWN_SIZE = UnknownDimension()


def _sizes(shape: Iterable[object]) -> list[Any]:
    """Return sizes with None for unknown dimensions."""
    return [None if isinstance(size, UnknownDimension) else size for size in shape]


class Shape(tuple[int | None, ...]):
    """Static shape: a tuple of sizes, None for a size that only a run knows.

    `Shape(None)` is `UNKNOWN`, a shape with an unknown number of sizes.
    """

    __slots__ = ()

    def __new__(cls, sizes: object = ()) -> Any:
        if sizes is None or isinstance(sizes, UnknownShape):
            return UNKNOWN
        iterable = cast("Iterable[object]", sizes) if isinstance(sizes, Iterable) else [sizes]
        return super().__new__(cls, _sizes(iterable))

    def __add__(self, other: Any) -> Shape:
        return Shape([*self, *other])

    def __radd__(self, other: Any) -> Shape:
        return Shape([*other, *self])

    def __getitem__(self, key: Any) -> Any:
        size = cast(Any, super().__getitem__(key))
        if isinstance(key, slice):
            return Shape(size)
        return size if size is None else Dimension(size)

    def __eq__(self, operand: object) -> bool:
        return super().__eq__(
            tuple(cast("list[object]", operand)) if isinstance(operand, list) else operand
        )

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = tuple.__hash__  # pyright: ignore

    @property
    def ndims(self) -> int:
        """The number of dimensions."""
        return len(self)

    rank = ndims

    @property
    def dims(self) -> list[UnknownDimension | Dimension | None]:
        """The sizes as a list, each with its `value`."""
        return [size if size is None else Dimension(size) for size in _sizes(self)]

    def as_list(self) -> list[int | None]:
        """Return the sizes as a list."""
        return _sizes(self)

    def is_fully_defined(self) -> bool:
        """Return True if all sizes are known."""
        return None not in self

    def num_elements(self) -> int | None:
        """Return the number of elements, or None if a size is unknown."""
        sizes = [size for size in _sizes(self) if size is not None]
        return math.prod(sizes) if len(sizes) == len(self) else None

    def accepts(self, sizes: Sequence[int | None] | UnknownShape) -> bool:
        """Return True if a tensor of `sizes` may have this shape."""
        if isinstance(sizes, UnknownShape):
            return True
        pairs = zip(_sizes(self), _sizes(sizes), strict=False)
        return len(self) == len(sizes) and all(a == b or None in (a, b) for a, b in pairs)

    def is_compatible_with(self, other: Any) -> bool:
        """Return True if a tensor may have both shapes; None stands for an unknown shape."""
        return other is None or Shape.accepts(self, other)

    def assert_is_compatible_with(self, other: Any) -> None:
        """Raise ValueError unless a tensor may have both shapes."""
        if not Shape.is_compatible_with(self, other):
            raise ValueError(f"Shapes {tuple(self)} and {tuple(other)} are incompatible")

    def assert_has_rank(self, rank: int) -> None:
        """Raise ValueError unless the shape has this number of dimensions."""
        if len(self) != rank:
            raise ValueError(f"Shape {tuple(self)} must have rank {rank}")

    def assert_is_fully_defined(self) -> None:
        """Raise ValueError unless all sizes are known."""
        if None in self:
            raise ValueError(f"Shape {tuple(self)} is not fully defined")

    def with_rank(self, rank: int) -> Shape:
        """Return the shape; raise ValueError unless it has `rank` dimensions."""
        Shape.assert_has_rank(self, rank)
        return Shape(self)

    def with_rank_at_least(self, rank: int) -> Shape:
        """Return the shape; raise ValueError if it has fewer than `rank` dimensions."""
        if len(self) < rank:
            raise ValueError(f"Shape {tuple(self)} must have rank at least {rank}")
        return Shape(self)

    def with_rank_at_most(self, rank: int) -> Shape:
        """Return the shape; raise ValueError if it has more than `rank` dimensions."""
        if len(self) > rank:
            raise ValueError(f"Shape {tuple(self)} must have rank at most {rank}")
        return Shape(self)

    def merge_with(self, other: Any) -> Shape:
        """Return the known sizes of both shapes; raise ValueError if they differ."""
        Shape.assert_is_compatible_with(self, other)
        sizes = self if other is None or isinstance(other, UnknownShape) else other
        pairs = zip(_sizes(self), _sizes(sizes), strict=True)
        return Shape(other_size if size is None else size for size, other_size in pairs)

    def concatenate(self, other: Any) -> Shape:
        """Return a shape with the sizes of this shape, then the sizes of `other`."""
        return Shape((*self, *other))


class DimensionShape(Shape):
    """Shape with `Dimension`s as items, as `get_shape` of TensorFlow 1 returns."""

    __slots__ = ()

    def __iter__(self) -> Iterator[Any]:
        return (Dimension(size) for size in super().__iter__())

    def __getitem__(self, key: object) -> Any:
        size = super().__getitem__(key)
        return DimensionShape(size) if isinstance(key, slice) else Dimension(size)

    @property
    def dims(self) -> list[UnknownDimension | Dimension | None]:
        """The sizes as a list, each with its `value`."""
        return list(iter(self))


class UnknownShape:
    """Shape with an unknown number of dimensions; `UNKNOWN` is the only instance.

    It has no length and no sizes to iterate over; both raise ValueError, as in TensorFlow.
    """

    __slots__ = ()

    ndims = rank = dims = None

    def as_list(self) -> list[int | None]:
        """Raise ValueError: the sizes are unknown."""
        raise ValueError("as_list() is not defined on an unknown TensorShape.")

    def is_fully_defined(self) -> bool:
        """Return False."""
        return False

    def num_elements(self) -> None:
        """Return None: the number is unknown."""
        return None

    def is_compatible_with(self, other: object) -> bool:
        """Return True: the tensor may have any shape."""
        return True

    accepts = is_compatible_with

    def assert_is_compatible_with(self, other: object) -> None:
        """Do nothing: the tensor may have any shape."""

    assert_has_rank = assert_is_compatible_with

    def assert_is_fully_defined(self) -> None:
        """Raise ValueError."""
        raise ValueError("Shape <unknown> is not fully defined")

    def with_rank(self, rank: int) -> Shape:
        """Return a shape of `rank` unknown sizes."""
        return Shape([None] * rank)

    def concatenate(self, other: object) -> UnknownShape:
        """Return this shape: the number of sizes stays unknown."""
        return self

    __add__ = __radd__ = with_rank_at_least = with_rank_at_most = concatenate

    def __eq__(self, operand: object) -> bool:
        return operand is None or isinstance(operand, UnknownShape)

    def __hash__(self) -> int:
        return hash(None)

    def merge_with(self, other: object) -> UnknownShape | Shape:
        """Return the other shape."""
        return self if other is None or isinstance(other, UnknownShape) else Shape(other)

    def __getitem__(self, key: object) -> Any:
        return self if isinstance(key, slice) else None

    def __len__(self) -> int:
        raise ValueError("Cannot take the length of shape with unknown rank.")

    def __iter__(self) -> Iterator[Any]:
        raise ValueError("Cannot iterate over a shape with unknown rank.")

    def __bool__(self) -> bool:
        return False

    def __reduce__(self) -> str:
        return "UNKNOWN"

    def __repr__(self) -> str:
        return "TensorShape(None)"

    def __str__(self) -> str:
        return "<unknown>"


UNKNOWN = UnknownShape()
