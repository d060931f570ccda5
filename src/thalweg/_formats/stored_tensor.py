"""Bytes of a tensor in a file."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from thalweg.errors import (
    DataLossError,
    InvalidArgumentError,
    InvalidTypeError,
    UnsupportedCheckpointError,
)

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor, dtype

# Names of torch by those of safetensors, and by the bytes of an element. C64 and C128 are
# additions, stored as pairs of floats.
_DTYPES = {
    1: {
        "BOOL": "bool", "U8": "uint8", "I8": "int8", "F8_E4M3": "float8_e4m3fn",
        "F8_E5M2": "float8_e5m2",
    },
    2: {"U16": "uint16", "I16": "int16", "F16": "float16", "BF16": "bfloat16"},
    4: {"U32": "uint32", "I32": "int32", "F32": "float32"},
    8: {"U64": "uint64", "I64": "int64", "F64": "float64", "C64": "complex64"},
    16: {"C128": "complex128"},
}  # fmt: skip
ITEM_BYTES = {name: width for width, names in _DTYPES.items() for name in names}
_TORCH = {name: torch_name for names in _DTYPES.values() for name, torch_name in names.items()}
_NAMES = {torch_name: name for name, torch_name in _TORCH.items()}
_ONLY_TORCH = ("BF16", "F8_E4M3", "F8_E5M2")


@dataclass(frozen=True, eq=False)
class StoredTensor:
    """Bytes of a tensor.

    Attributes:
        dtype: The dtype in safetensors' terms, "F32"; "C64" and "C128" for complex numbers.
        shape: The shape.
        data: The `product(shape) * itemsize` bytes, little-endian, in row-major order.
    """

    dtype: str
    shape: tuple[int, ...]
    data: memoryview

    def tensor(self) -> Tensor:
        """Return the bytes as a tensor, which shares `data` if the memory is writable and aligned.

        Raises:
            DataLossError: A bool is neither 0 nor 1.
        """
        import torch

        raw, kind = self._usable_data(), dtype_of(self.dtype)
        # `frombuffer` raises an error for an empty buffer.
        if not raw:
            return torch.empty(self.shape, dtype=kind, device="cpu")
        return torch.frombuffer(raw, dtype=torch.uint8).view(kind).view(self.shape)

    def array(self) -> np.ndarray[Any, Any]:
        """Return the bytes as an array, which shares `data` if the memory is writable and aligned.

        Raises:
            DataLossError: A bool is neither 0 nor 1.
            UnsupportedCheckpointError: NumPy does not have the dtype.
        """
        import numpy as np

        raw = self._usable_data()
        if self.dtype in _ONLY_TORCH:
            raise UnsupportedCheckpointError(f"NumPy has no {_TORCH[self.dtype]}; use tensor().")
        if not raw:
            return np.empty(self.shape, _TORCH[self.dtype])
        return np.frombuffer(raw, _TORCH[self.dtype]).reshape(self.shape)

    def _usable_data(self) -> memoryview | bytearray:
        """Return the data, or a copy if the memory is read-only or not aligned for the dtype.

        Raise DataLossError if a bool is neither 0 nor 1.
        """
        import numpy as np

        _check_order()
        elements = np.frombuffer(self.data, np.uint8)
        # Compiled code trusts that a bool is 0 or 1.
        if self.dtype == "BOOL" and elements.max(initial=0) > 1:
            raise DataLossError(f"A bool of shape {self.shape} holds a byte that is not 0 or 1.")
        is_aligned = elements.ctypes.data % ITEM_BYTES[self.dtype] == 0
        return self.data if is_aligned and not self.data.readonly else bytearray(self.data)


@dataclass(frozen=True)
class TensorInfo:
    """Description of a tensor in a file.

    Attributes:
        name: The name.
        dtype: The dtype as in `StoredTensor`; for unsupported types TensorFlow's, such as "string".
        shape: The shape.
        bytes: The number of bytes in the file.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int


def dtype_of(name: str) -> dtype:
    """Return the torch dtype of a name in `ITEM_BYTES`."""
    import torch

    return getattr(torch, _TORCH[name])


def of_tensor(tensor: Tensor) -> StoredTensor:
    """Return the bytes of a tensor; contiguous CPU memory is shared, not copied.

    Raises:
        LayoutError: The storage of the tensor is too small.
        InvalidTypeError: The tensor is sparse, quantized, nested, or a wrapper subclass.
        InvalidArgumentError: The tensor is on the meta device.
    """
    import numpy as np
    import torch
    from torch._C import DisableTorchFunctionSubclass

    from thalweg._base.context_managers import no_grad
    from thalweg.variable import check_held

    _check_order()
    check_held(tensor)
    with DisableTorchFunctionSubclass(), no_grad():
        detached = tensor.detach()
        if detached.is_meta:
            raise InvalidArgumentError("A tensor on the meta device has no values to save.")
        if (
            type(detached) is not torch.Tensor
            or detached.is_nested
            or detached.layout != torch.strided
        ):
            kind = f"{type(detached).__name__} of layout {detached.layout}"
            raise InvalidTypeError(f"Cannot save a {kind}; only plain dense tensors can be.")
        name = _NAMES.get(str(detached.dtype).removeprefix("torch."))
        if name is None:
            raise InvalidTypeError(f"Cannot save a tensor of {detached.dtype}.")
        detached = detached.cpu().resolve_conj().resolve_neg().contiguous()
        if not detached.numel():
            return StoredTensor(name, tuple(detached.shape), memoryview(b""))
        # `numpy()` would mark the storage as shared with NumPy for ever.
        raw = np.from_dlpack(detached.view(-1).view(torch.uint8))
    return StoredTensor(name, tuple(detached.shape), raw.data)


def _check_order() -> None:
    """Raise on big-endian machines."""
    if sys.byteorder != "little":
        raise UnsupportedCheckpointError("Files are little-endian, and this machine is not.")
