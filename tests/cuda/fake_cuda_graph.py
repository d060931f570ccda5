"""A stand-in for a CUDA graph: what a device is told in a block, told again without Python."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from thalweg._engines.cuda import host_device_mirror, launch, sparse


class Graph(TorchDispatchMode):
    """Operations and launches of a block, in their order."""

    def __init__(self):
        super().__init__()
        self.calls = []
        self.launches = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func is not torch.ops.aten._local_scalar_dense.default, "waits for the device"
        outputs = func(*args, **(kwargs or {}))
        self.calls.append(lambda: _again(func, args, kwargs or {}, outputs))
        return outputs

    def replay(self):
        for call in self.calls:
            call()


def _again(func, args, kwargs, outputs):
    """Call an operation; what it made the first time is set to what it makes now."""
    new_outputs = func(*args, **kwargs)
    input_addresses = {
        tensor.untyped_storage().data_ptr() for tensor in _tensors([args, list(kwargs.values())])
    }
    for old, new in zip(_tensors(outputs), _tensors(new_outputs), strict=True):
        if old.untyped_storage().data_ptr() not in input_addresses:
            old.copy_(new)


def _tensors(values):
    if isinstance(values, torch.Tensor):
        return [values]
    if isinstance(values, (list, tuple)):
        return [tensor for value in values for tensor in _tensors(value)]
    return []


@contextlib.contextmanager
def captured():
    """Record a block; writes of the host to its own memory are no part of it."""
    graph, run, kept = Graph(), launch._Interpreted.run, host_device_mirror.Mirror._keep_for_graph

    def started(self):
        def again():
            with _disable_current_modes():
                run(self)

        again()
        graph.launches += 1
        graph.calls.append(again)

    def on_the_host(self):
        with _disable_current_modes():
            return kept(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch._Interpreted, "run", started)
        patch.setattr(host_device_mirror.Mirror, "_keep_for_graph", on_the_host)
        for module in (host_device_mirror, sparse):
            patch.setattr(module, "is_capturing", lambda: True)
        with graph:
            yield graph
