"""Learning rate in a tensor: NumPy arithmetic that rounds as torch does."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from thalweg._core.scalar_tracing import Symbol
from thalweg.optim.param_scalars import NUMPY_TYPES

# Products of two such numbers do not overflow float32, of which NumPy would warn.
_HIGHEST = 1e15


class TensorRate:
    """Learning rate in a tensor of shape (), with NumPy arithmetic that has torch's results.

    Only arithmetic with IEEE rounding is supported; anything else, even access to an attribute,
    raises `TypeError`, and the caller leaves the step to torch.

    Args:
        value: The number, a NumPy scalar of the tensor's dtype.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value: Any = value

    @staticmethod
    def of(tensor: Tensor) -> TensorRate:
        """Return the present number of a tensor as a `TensorRate`.

        Raises:
            TypeError: The tensor is not on the CPU, or its dtype is not supported.
        """
        kind = NUMPY_TYPES.get(tensor.dtype)
        if kind is None or not tensor.is_cpu:
            raise TypeError
        return TensorRate(_rounded(kind, tensor.item()))

    def __mul__(self, other: object) -> TensorRate:
        value = self.value
        return TensorRate(value * _rounded(value.__class__, other))

    __rmul__ = __mul__

    def __rsub__(self, other: object) -> TensorRate:
        value = self.value
        return TensorRate(_rounded(value.__class__, other) - value)

    def __truediv__(self, other: object) -> TensorRate:
        if isinstance(other, float | int) and not other:
            raise TypeError
        value = self.value
        return TensorRate(value / _rounded(value.__class__, other))

    def __neg__(self) -> TensorRate:
        return TensorRate(-self.value)

    # Other uses than these operators are torch's: the caller catches TypeError and repeats with it.
    def __getattr__(self, name: str) -> Any:
        raise TypeError


def _rounded(kind: type[Any], number: object) -> Any:
    """Return a number or symbol, rounded to the type `kind`; raise TypeError for others."""
    if isinstance(number, Symbol) and issubclass(kind, Symbol):
        return kind(1.0).narrow(number)
    if (type(number) is float or type(number) is int) and -_HIGHEST < number < _HIGHEST:
        return kind(number)
    raise TypeError
