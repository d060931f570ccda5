"""Memory that was cut or replaced between steps, or may only be read: seen, or refused by name."""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bit_comparison import assert_same
from keras_table import both_engines
from thalweg import IndexedSlices, Variable, keras, v1
from thalweg._core.slots import SlotStore
from thalweg._engines.storage_guard import StorageGuard
from thalweg.errors import LayoutError
from thalweg.openseq2seq.optimizers import optimize_loss

SIZE = 4 * 4 * 4  # bytes


class Training:
    """Three square variables under an optimizer, after some steady steps."""

    def __init__(self, face: str, engine: str) -> None:
        self.vars = [Variable(torch.ones(4, 4), name=f"w{k}") for k in range(3)]
        self.grads = [torch.full((4, 4), 0.5 + k) for k in range(3)]
        adam = {"keras": keras.optimizers.Adam, "v1": v1.train.AdamOptimizer}[face]
        self.opt: Any = adam(0.1)
        self.opt.engine = engine
        for _ in range(3):
            self.step()

    def step(self) -> None:
        self.opt.apply_gradients(list(zip(self.grads, self.vars, strict=True)))

    def slot(self, name: str = "m") -> Any:
        return self.opt.get_slot(self.vars[1], name)

    def all(self) -> list[Tensor]:
        slots = [self.opt.get_slot(var, name) for var in self.vars for name in ("m", "v")]
        return [*self.vars, *slots]


each_face = pytest.mark.parametrize("face", ["keras", "v1"])


@each_face
@pytest.mark.parametrize("size", [0, 4, SIZE - 4])
@pytest.mark.parametrize("role", ["gradient", "variable", "slot"])
def test_truncated_storage_raises(face: str, role: str, size: int) -> None:
    training = Training(face, "cpu")
    cut = {"gradient": training.grads[1], "variable": training.vars[1], "slot": training.slot()}
    intact = [training.vars[0], training.vars[2]]
    copies = [tensor.detach().clone() for tensor in intact]
    cut[role].untyped_storage().resize_(size)
    with pytest.raises(LayoutError, match=r"'w\d:0' has no memory that holds its 16 elements"):
        training.step()
    assert_same(intact, copies)


@pytest.mark.parametrize("engine", ["cpu", "auto"])
def test_truncated_slot_block_raises(engine: str) -> None:
    empty, w = Variable(torch.ones(0, 2), name="empty"), Variable(torch.ones(4, 4), name="w")
    opt = keras.optimizers.SGD(0.1, momentum=0.9)
    opt.engine = engine
    pairs = [(torch.ones(0, 2), empty), (torch.ones(4, 4), w)]
    for _ in range(3):
        opt.apply_gradients(pairs)
    opt.get_slot(empty, "momentum").untyped_storage().resize_(4)  # it holds the slot of w, too
    with pytest.raises(LayoutError, match=r"'w:0' has no memory that holds its 16 elements"):
        opt.apply_gradients(pairs)


@pytest.mark.parametrize("role", ["gradient", "variable"])
def test_truncated_storage_raises_before_clipping(role: str) -> None:
    w = Variable(torch.ones(1 << 20, dtype=torch.float16), name="w")
    options: dict[str, Any] = {"loss_scaling": "Backoff", "clip_gradients": 1.0}
    step = optimize_loss(lambda: 0, "Adam", {}, lambda s: 0.1, var_list=[w], **options)
    grad = torch.ones_like(w.detach())
    for _ in range(2):
        step.apply_gradients([grad])
    {"gradient": grad, "variable": w}[role].untyped_storage().resize_(0)
    with pytest.raises(LayoutError, match="'w:0' has no memory that holds its"):
        step.apply_gradients([grad])


@each_face
@pytest.mark.parametrize("size", [0, 8, 24])
def test_truncated_indices_raise(face: str, size: int) -> None:
    training = Training(face, "cpu")
    indices = torch.arange(4)
    training.grads[1] = IndexedSlices(torch.ones(4, 4), indices, (4, 4))
    indices.untyped_storage().resize_(size)
    with pytest.raises(LayoutError, match="indices of the gradient of 'w1:0' has no memory"):
        training.step()


# What Keras counts is read first, by torch, which refuses what has no byte left.
@pytest.mark.parametrize(("face", "size"), [("keras", 4), ("v1", 4), ("v1", 0)])
def test_truncated_counter_raises(face: str, size: int) -> None:
    training = Training(face, "cpu")
    count = Variable(torch.zeros((), dtype=torch.int64), name="count", trainable=False)
    if face == "keras":
        training.opt = keras.optimizers.SGD(0.5)
        training.opt.iterations = count
        step = training.step
    else:
        pairs = list(zip(training.grads, training.vars, strict=True))

        def step() -> None:
            training.opt.apply_gradients(pairs, count)

    step()
    count.untyped_storage().resize_(size)
    vars_before = [var.clone() for var in training.vars]
    with pytest.raises(LayoutError, match="'count:0' has no memory that holds its 1 elements"):
        step()
    assert_same(training.vars, vars_before)


READERS: dict[str, Callable[[Any], Any]] = {
    "state_dict": lambda opt: opt.state_dict(),
    "deepcopy": copy.deepcopy,
    "pickle": pickle.dumps,
    "weights": lambda opt: opt.get_weights(),
}


@each_face
@pytest.mark.parametrize("size", [0, SIZE - 4])
@pytest.mark.parametrize("reader", READERS)
def test_state_with_truncated_slot_is_not_copied(face: str, reader: str, size: int) -> None:
    training = Training(face, "cpu")
    if not hasattr(training.opt, "get_weights") and reader == "weights":
        pytest.skip("TensorFlow 1 has none")
    training.slot().untyped_storage().resize_(size)
    with pytest.raises(LayoutError, match="has no memory that holds its 16 elements"):
        READERS[reader](training.opt)


class OwnUpdate(keras.optimizers.Adam):
    """An optimizer that updates one variable after the other."""

    def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> None:
        super()._resource_apply_dense(grad, var, apply_state)


class OwnUpdateV1(v1.train.AdamOptimizer):
    def _apply_dense(self, grad: Any, var: Any) -> None:
        super()._apply_dense(grad, var)


@pytest.mark.parametrize("make", [OwnUpdate, OwnUpdateV1])
@pytest.mark.parametrize("size", [0, SIZE - 4])
def test_truncated_slot_raises_before_user_hooks(make: Any, size: int) -> None:
    training = Training("keras", "cpu")
    training.opt = make(0.1)
    training.step()
    training.slot().untyped_storage().resize_(size)
    vars_before = training.vars[0].clone()
    with pytest.raises(LayoutError, match="has no memory that holds its 16 elements"):
        training.step()
    assert_same([training.vars[0]], [vars_before])


@pytest.mark.parametrize("offset", [0, 4])
def test_gradient_over_truncated_memory_raises(offset: int) -> None:
    training = Training("keras", "cpu")
    buffer = torch.ones(16 + offset)
    training.grads[1] = buffer[offset:].view(4, 4)
    training.step()
    buffer.untyped_storage().resize_(SIZE)  # enough for one that begins where the storage does
    if offset:
        with pytest.raises(LayoutError, match="The gradient of 'w1:0' has no memory"):
            training.step()
    else:
        training.step()


def given_memory(slot: Any) -> None:
    slot.set_(torch.full((4, 4), 0.25))


def transposed(slot: Any) -> None:
    slot[0, 1] = 2.0
    slot.t_()


def swapped(slot: Any) -> None:
    new_slot = torch.nn.Parameter(torch.full((4, 4), 0.25), requires_grad=False)
    torch.utils.swap_tensors(slot, new_slot)


def data_given(slot: Any) -> None:
    slot.data = torch.full((4, 4), 0.25)


CHANGES: list[Callable[[Any], None]] = [given_memory, transposed, swapped, data_given]


@each_face
@pytest.mark.parametrize("early", [False, True], ids=["asked_for_now", "held_for_long"])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.filterwarnings("ignore::thalweg.PerformanceWarning")
def test_replaced_slot_data_is_used(face: str, change: Any, early: bool) -> None:
    fast, slow = Training(face, "cpu"), Training(face, "reference")
    for training in (fast, slow):
        slot = training.slot()
        if early:
            training.step()
        change(slot)
        training.step()
        training.step()
        change(slot)
        training.step()
    assert_same(fast.all(), slow.all())


def test_private_slots_are_not_checked() -> None:
    store, var = SlotStore(), Variable(torch.ones(4, 4))
    held_slot, other_slot = (store.make([var], name, 0.0, [name])[0] for name in ("held", "other"))
    guard = StorageGuard([held_slot, other_slot])
    guard.record_memory([held_slot.detach(), other_slot.detach()])
    store.handed_out([held_slot])
    other_slot.t_()
    assert guard.confirm_places()
    held_slot.t_()
    assert not guard.confirm_places()


@pytest.mark.skipif(sys.platform != "linux", reason="no list of mappings is read elsewhere")
@both_engines
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_read_only_mapped_file_raises(tmp_path: Path, engine: str, sparse: bool) -> None:
    np.ones((2048, 4), np.float32).tofile(tmp_path / "w")
    mapped = np.memmap(tmp_path / "w", np.float32, "r", shape=(2048, 4))
    w = torch.nn.Parameter(torch.from_numpy(mapped))
    v = Variable(torch.ones(3), name="v")
    opt = keras.optimizers.SGD(0.1)
    opt.engine = engine
    grad: Any = torch.ones(2048, 4)
    if sparse:
        grad = IndexedSlices(torch.ones(1, 4), torch.tensor([3]), (2048, 4))
    with pytest.raises(LayoutError, match="'Variable:0' in place: its memory may only be read"):
        opt.apply_gradients([(torch.ones(3), v), (grad, w)])
    assert_same([v], [torch.ones(3)])
    with pytest.raises(LayoutError, match="its memory may only be read"):
        v1.train.AdamOptimizer().apply_gradients([(grad, w)])
    step = optimize_loss(lambda: w.sum(), "Momentum", {"momentum": 0.9}, lambda s: 0.1)
    with pytest.raises(LayoutError, match="its memory may only be read"):
        step()


def test_writable_mapped_file_is_trained(tmp_path: Path) -> None:
    np.ones(8, np.float32).tofile(tmp_path / "w")
    w = torch.nn.Parameter(torch.from_numpy(np.memmap(tmp_path / "w", np.float32, "r+")))
    keras.optimizers.SGD(0.5).apply_gradients([(torch.ones(8), w)])
    assert np.fromfile(tmp_path / "w", np.float32).tolist() == [0.5] * 8


@both_engines
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sparse", [False, True])
def test_memory_read_by_an_engine_stays_resizable(
    engine: str, dtype: torch.dtype, sparse: bool
) -> None:
    """NumPy's share in it would mark it, and the list of mappings be read in each step."""
    w, grad = Variable(torch.ones(3, 2, dtype=dtype)), torch.ones(3, 2, dtype=dtype)
    grad_form: Any = IndexedSlices(grad, torch.arange(3), (3, 2)) if sparse else grad
    opt = keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=1.0)
    opt.engine = engine
    for _ in range(2):
        opt.apply_gradients([(grad_form, w)])
    assert len(opt.get_weights()) == 2
    for tensor in (w, grad, *opt.weights[1:]):
        assert tensor.untyped_storage().resizable()
