"""The cheapest ways to what torch knows of a tensor: functions in C, to `map` over many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

address = Tensor.data_ptr
contiguous = Tensor.is_contiguous
device = Tensor.get_device  # a number: -1 is the CPU
dtype: Callable[[Any], torch.dtype] = Tensor.dtype.__get__  # pyright: ignore[reportAttributeAccessIssue]
layout = Tensor.layout.__get__  # pyright: ignore[reportAttributeAccessIssue]
negative = Tensor.is_neg
requires_grad = Tensor.requires_grad.__get__  # pyright: ignore[reportAttributeAccessIssue]
shape = Tensor.size
stride = Tensor.stride
