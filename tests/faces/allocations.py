"""Memory that runs out: the n-th allocation of torch fails."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class Failing(TorchDispatchMode):
    """Has the n-th operation that makes a tensor of its own fail.

    Args:
        number: How many succeed before.

    Attributes:
        left: How many would have succeeded yet; below 0 once one has failed.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.remaining = number

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        schema = func._schema
        writes = any(argument.alias_info is not None for argument in schema.arguments)
        is_allocation = any(str(value.type) == "Tensor" for value in schema.returns)
        if is_allocation and not writes:
            self.remaining -= 1
            if self.remaining == -1:
                raise MemoryError(f"{func} found no memory")
        return func(*args, **(kwargs or {}))
