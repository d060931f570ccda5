"""`Frame`: the values of one run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from thalweg.graph.slices import SymbolicSlices
from thalweg.graph.tensor import SymbolicTensor
from thalweg.graph.variables import GraphVariable

if TYPE_CHECKING:
    from thalweg.graph.session import Session


class Frame(dict[SymbolicTensor, Any]):
    """What one run has been fed and has computed; variables are read from the session."""

    __slots__ = ("feeds", "lock", "session")

    def __init__(self, session: Session, feeds: Mapping[SymbolicTensor, Any]) -> None:
        super().__init__(feeds)
        self.session = session
        self.feeds = feeds
        self.lock: str | None = None  # which lock of the session this thread holds

    def __missing__(self, tensor: SymbolicTensor) -> Any:
        if isinstance(tensor, GraphVariable):
            return self.session.leaf(tensor)
        value = self.session.evaluate(tensor, self)
        self[tensor] = value
        return value

    def resolve(self, x: Any) -> Any:
        """What `x` stands for in this run; see `running.resolve`."""
        if isinstance(x, GraphVariable):
            return self.session.leaf(x)
        if isinstance(x, SymbolicSlices):
            return self[x.source]
        return self[x] if isinstance(x, SymbolicTensor) else x
