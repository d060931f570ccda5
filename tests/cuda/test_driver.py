"""Kernel launches through a stand-in for CUDA's driver; needs no GPU."""

from __future__ import annotations

import gc
import weakref
from ctypes import CFUNCTYPE, POINTER, c_int, c_int64, c_uint, c_void_p
from types import SimpleNamespace

import pytest
import torch

from thalweg._engines.cuda import driver

HANDLE, STREAM, CONTEXT = 11, 12, 13
LAUNCH = CFUNCTYPE(c_int, c_void_p, *[c_uint] * 7, c_void_p, POINTER(c_void_p), c_void_p)


@pytest.fixture
def started(monkeypatch):
    """Record launches: handle, numbers, stream and parameters."""
    launches = []

    def launch(handle, *arguments):
        *numbers, stream, parameters, _ = arguments
        values = [c_int64.from_address(parameters[k]).value for k in range(4)]
        launches.append((handle, numbers, stream, values))
        return 0

    library = SimpleNamespace(
        cuLaunchKernel=LAUNCH(launch),
        cuCtxPushCurrent_v2=lambda context: 0 if context.value == CONTEXT else 1,
        cuCtxPopCurrent_v2=lambda context: 0,
    )
    monkeypatch.setattr(driver, "_load_driver", lambda: library)
    monkeypatch.setattr(driver, "_context_of", lambda device: c_void_p(CONTEXT))
    stream = SimpleNamespace(cuda_stream=STREAM)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    return launches


def launched(tensor, *numbers):
    starter = driver.Starter(c_void_p(HANDLE), 64, 256, 4, 0)
    return driver.Launch(starter, (3, 2), [tensor, *numbers])


def test_a_kernel_gets_its_arguments(started):
    tensor = torch.zeros(3)
    launched(tensor, 17).run()
    assert started == [(HANDLE, [3, 2, 1, 64, 1, 1, 256], STREAM, [tensor.data_ptr(), 17, 0, 0])]


def test_calls_keep_their_arguments_alive(started):
    tensor = torch.zeros(3)
    address, tensor_ref = tensor.data_ptr(), weakref.ref(tensor)
    launch = launched(tensor, 17, 18)
    calls = launch.make_calls()
    del launch, tensor
    gc.collect()
    fillers = [(c_int64 * 4)(-1, -1, -1, -1) for _ in range(1000)]  # where freed memory was
    assert tensor_ref() is not None
    assert [call() for call in calls] == [0, 0, 0]
    assert started[0][-1] == [address, 17, 18, 0]
    del calls, fillers
    gc.collect()
    assert tensor_ref() is None
