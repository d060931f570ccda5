"""A stand-in for a GPU of which nobody may ask anything."""

from __future__ import annotations

import contextlib

import pytest
import torch

import thalweg
from thalweg._engines.cuda import launch

_WAITING = ("item", "tolist", "cpu", "numpy", "nonzero", "unique", "__bool__", "__float__",
            "__int__", "__index__", "__array__")  # fmt: skip


@contextlib.contextmanager
def waiting_for_nothing(runs=False, host=(), device=()):
    """Run a block in which waiting for a device fails; kernels do nothing unless `runs`.

    Args:
        runs: Whether they do.
        host: Tensors that are not on the device.
        device: Variables on the device; others hold hyperparameters, which are on the host.
    """
    on_device = {tensor.data_ptr() for tensor in device}
    on_host = {tensor.data_ptr() for tensor in host}

    def refused(name):
        method = getattr(torch.Tensor, name)

        def waits(self, *args, **kwargs):
            is_hyper = isinstance(self, thalweg.Variable) and self.data_ptr() not in on_device
            # The interpreter reads what it computes with.
            if is_hyper or running or self.data_ptr() in on_host:
                return method(self, *args, **kwargs)
            raise AssertionError(f"Tensor.{name} waits for the device")

        return waits

    running = []
    run = launch._Interpreted.run

    def started(self):
        if runs:
            running.append(self)
            run(self)
            running.pop()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch._Interpreted, "run", started)
        for name in _WAITING:
            patch.setattr(torch.Tensor, name, refused(name))
        yield


def counting_and_waiting_for_nothing(optimizer, runs=False):
    """Raise on waiting, too, for an optimizer whose step counts are on the host."""
    state_values = [value for state in optimizer.state.values() for value in state.values()]
    return waiting_for_nothing(runs, host=[tensor for tensor in state_values if not tensor.dim()])
