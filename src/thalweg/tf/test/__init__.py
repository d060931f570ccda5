"""`tf.test`: `TestCase` compares tensors and arrays, in eager mode and in graphs."""

import unittest
from typing import Any
from unittest import mock as mock

import torch

from thalweg.tf.missing import attribute_of
from thalweg.tf.test.case import TestCase as TestCase
from thalweg.tf.test.case import make_temporary_directory as get_temp_dir


def main(argv: list[str] | None = None) -> None:
    """Run the tests of the script, and exit; see `unittest.main`."""
    unittest.main(argv=argv)


def is_gpu_available(cuda_only: bool = False, min_cuda_compute_capability: Any = None) -> bool:
    """Return True if torch has a CUDA GPU.

    Args:
        cuda_only: Ignored: only CUDA GPUs are supported.
        min_cuda_compute_capability: Optional. The minimum, a pair of numbers.
    """
    if not torch.cuda.is_available():
        return False
    minimum = min_cuda_compute_capability or (0, 0)
    return torch.cuda.get_device_capability() >= tuple(minimum)


def gpu_device_name() -> str:
    """Return TensorFlow's name of the first GPU, or ""."""
    return "/device:GPU:0" if torch.cuda.is_available() else ""


def is_built_with_cuda() -> bool:
    """Return True if torch was built with CUDA."""
    return torch.version.cuda is not None


is_built_with_gpu_support = is_built_with_cuda


def is_built_with_rocm() -> bool:
    """Return True if torch was built with ROCm."""
    return torch.version.hip is not None


__getattr__ = attribute_of("test")
