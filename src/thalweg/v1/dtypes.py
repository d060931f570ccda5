"""The dtypes of torch under TensorFlow's names."""

import torch

from thalweg.variable import as_dtype as as_dtype

__all__ = [
    "DType", "as_dtype", "bfloat16", "bool", "complex64", "complex128", "double", "float16",
    "float32", "float64", "half", "int8", "int16", "int32", "int64", "uint8",
]  # fmt: skip

bool = torch.bool
uint8 = torch.uint8
int8 = torch.int8
int16 = torch.int16
int32 = torch.int32
int64 = torch.int64
half = float16 = torch.float16
bfloat16 = torch.bfloat16
float32 = torch.float32
double = float64 = torch.float64
complex64 = torch.complex64
complex128 = torch.complex128

DType = torch.dtype
