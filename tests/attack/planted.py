"""Defects that an attack must notice: each takes a check out of the library."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from thalweg._core import commit, state
from thalweg._core.options import accumulation as sums_of_optim
from thalweg._core.options import iter_size
from thalweg._core.state import loading
from thalweg._engines import dispatcher as gate
from thalweg._engines import layout, torch_part
from thalweg._engines.cpu import kernel_cache
from thalweg._engines.dense_plan import DensePlan
from thalweg._engines.metadata_guard import MetadataGuard
from thalweg._engines.storage_guard import StorageGuard
from thalweg._formats import atomic_write, header
from thalweg._formats.bundle import index
from thalweg.indexed_slices import IndexedSlices
from thalweg.keras.optimizers import weights
from thalweg.openseq2seq.optimizers import backward
from thalweg.optim import torch_fallback
from thalweg.optim.fused_torch_optimizer import FusedTorchOptimizer
from thalweg.optim.grad_scaler import GradScalerMixin


def _instead(home: Any, name: str, function: Any) -> Callable[[], None]:
    getattr(home, name)  # what is not there any more would be planted without an effect
    return lambda: setattr(home, name, function)


def _yes(*_: Any) -> bool:
    return True


def _no(*_: Any) -> bool:
    return False


def _first_slots() -> None:
    original = DensePlan.__init__

    def init(self: Any, *args: Any) -> None:
        original(self, *args)
        blocks: dict[int, Any] = {}
        for slot in (slot for slots in self.slots for slot in slots):
            blocks.setdefault(slot.untyped_storage().data_ptr() or id(slot), slot)
        self.written = [*self.variables, *blocks.values(), *self._copy_tensors]
        self._pointers = [tensor.data_ptr() for tensor in self.written]

    DensePlan.__init__ = init


def _unchecked_sums() -> None:
    for check in ("check_memories", "check_slots"):
        _instead(iter_size, check, lambda *_: None)()


def _unsealed(name: str) -> bytes:
    with contextlib.suppress(OSError):
        return (kernel_cache.kernels_folder() / name).read_bytes()[64:]
    return b""


def _as_they_come() -> None:
    for home in (loading, state):
        _instead(home, "differences", lambda *_: [])()


def _split() -> None:
    def drain(functions: Iterator[Any]) -> None:
        for _ in functions:
            time.sleep(0.001)

    commit.drain = drain


def _in_place(
    path: Any,
    parts: Any,
    total: int,
    progress: Any = None,
    *,
    reserved: int = 0,
    make_head: Any = None,
) -> None:
    with open(path, "wb", buffering=0) as file:
        file.seek(reserved)
        for part in parts:
            file.write(part)
        file.seek(0)
        file.write(make_head())


DEFECTS: dict[str, Callable[[], None]] = {
    "strides of gradients are not compared": _instead(layout, "same_strides", _yes),
    "elements may overlap": _instead(layout, "may_overlap", _no),
    "gradients may lie in what is written": _instead(
        gate, "_copy_overlapping", lambda variables, gradients, slots, copies: list(gradients)
    ),
    "copies are not looked at": _instead(layout, "check_copy", lambda *_: None),
    "what is written to copies is not seen": _instead(torch_part, "resumed", lambda var, copy: var),
    "indices are not looked at": _instead(IndexedSlices, "check_range", lambda *_: None),
    "sums are not looked at": _unchecked_sums,
    "gradients are read at once": _instead(backward, "check_readable", lambda *_: None),
    "plans always stand": _instead(DensePlan, "_is_unmoved", _yes),
    "slots are not watched": _instead(StorageGuard, "confirm_places", _yes),
    "everything is alike": _instead(MetadataGuard, "holds", _yes),
    "a block is told by its first slot": _first_slots,  # which may be empty, and have no address
    "sections are split": _split,
    "weights are set as they come": _instead(weights, "_fit_value", lambda _, value: value),
    "states are loaded as they come": _as_they_come,
    "states of optim are loaded as they come": _instead(
        FusedTorchOptimizer, "_unfit_state", lambda *_: []
    ),
    "what torch refuses is half done": _instead(
        torch_fallback, "whole", lambda _: contextlib.nullcontext()
    ),
    "sums may lie anywhere": _instead(
        sums_of_optim, "_copy_shared", lambda params, sums, gradients, titles_of: gradients
    ),
    "what a scaler found is not asked": _instead(GradScalerMixin, "_skip_overflowed_step", _no),
    "machine code is not sealed": _instead(kernel_cache, "_read_code", _unsealed),
    "entries are believed": _instead(index, "_check", lambda *_: None),
    "tensors may share bytes": _instead(index, "_check_overlap", lambda *_: None),
    "checksums are not compared": _instead(header, "check_sum", lambda *_: None),
    "headers and manifests are not compared": _instead(header, "_differences", lambda *_: ()),
    "files are written in place": _instead(atomic_write, "replace", _in_place),
}
