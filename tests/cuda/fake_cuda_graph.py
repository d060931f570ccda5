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
        self.told = []
        self.launches = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func is not torch.ops.aten._local_scalar_dense.default, "waits for the device"
        made = func(*args, **(kwargs or {}))
        self.told.append(lambda: _again(func, args, kwargs or {}, made))
        return made

    def replay(self):
        for each in self.told:
            each()


def _again(func, args, kwargs, made):
    """Call an operation; what it made the first time is set to what it makes now."""
    found = func(*args, **kwargs)
    given = {each.untyped_storage().data_ptr() for each in _tensors([args, list(kwargs.values())])}
    for old, new in zip(_tensors(made), _tensors(found), strict=True):
        if old.untyped_storage().data_ptr() not in given:
            old.copy_(new)


def _tensors(values):
    if isinstance(values, torch.Tensor):
        return [values]
    if isinstance(values, (list, tuple)):
        return [each for value in values for each in _tensors(value)]
    return []


@contextlib.contextmanager
def captured():
    """Capture a block; what the host does to its own memory is no part of it."""
    graph, run, kept = Graph(), launch._Interpreted.run, host_device_mirror.Mirror._keep_for_graph

    def started(self):
        def again():
            with _disable_current_modes():
                run(self)

        again()
        graph.launches += 1
        graph.told.append(again)

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
