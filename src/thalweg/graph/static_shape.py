"""`Shape`: what is known of a tensor's sizes before a run."""

from __future__ import annotations

from collections.abc import Sequence


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
