"""`state_device="cpu"`: parameters on one device, their state and their updates on the CPU.

Without a GPU some memory of the CPU plays its part: what lies in it counts as far away.
"""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import Tensor

from rulebook import assert_same
from thalweg import optim
from thalweg.engines import far, layout
from thalweg.errors import InvalidArgumentError
from thalweg.indexed_slices import IndexedSlices
from thalweg.optim import tensorflow
from thalweg.rules.novograd import NOVOGRAD
from torch_inputs import INPUTS, ROWS, SHAPES, Input, give, params_of

MAKERS: dict[str, Any] = {
    "Adam": lambda p, **o: optim.Adam(p, lr=0.1, **o),
    "momentum": lambda p, **o: optim.SGD(p, lr=0.1, momentum=0.9, **o),
    "tensorflow": lambda p, **o: tensorflow.Adam(p, lr=0.1, **o),
    "LazyAdam": lambda p, **o: tensorflow.LazyAdam(p, lr=0.1, **o),
    "NovoGrad": lambda p, **o: optim.RuleOptimizer(p, NOVOGRAD, lr=0.1, **o),
}
OFF = {"state_device": "cpu"}


class Device:
    """A device that there is not."""

    def __init__(self) -> None:
        self._memory: list[torch.UntypedStorage] = []
        self._rows: list[Any] = []

    def take(self, tensor: Tensor) -> Tensor:
        """A copy of a tensor there."""
        own = tensor.detach().clone()
        self._memory += [each.untyped_storage() for each in _parts(own)]
        return own

    def has(self, tensor: Any, device: torch.device) -> bool:
        """Stands in for `layout.is_far`."""
        known = {storage.data_ptr() for storage in self._memory} - {0}
        return any(part.untyped_storage().data_ptr() in known for part in _parts(tensor))


def _parts(tensor: Any) -> tuple[Tensor, ...]:
    if isinstance(tensor, IndexedSlices):
        return tensor.values, tensor.indices
    if tensor.is_sparse:
        return tensor._values(), tensor._indices()
    return (tensor,)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    made = Device()
    monkeypatch.setattr(layout, "is_far", made.has)
    return made


def params(made: Any) -> list[Tensor]:
    return [param for group in made.param_groups for param in group["params"]]


def slots(made: Any) -> list[Tensor]:
    found = [each for own in made.state.values() for each in own.values()]
    numbers = [each if isinstance(each, Tensor) else torch.tensor(each) for each in found]
    return [each if each.is_floating_point() else each.double() for each in numbers]


class Pair:
    """An optimizer of far parameters, and one of the same parameters here."""

    def __init__(
        self, device: Device, make: Any, shapes: Any = SHAPES, dtype: Any = torch.float32, **o: Any
    ) -> None:
        here = params_of(dtype, shapes)
        there = [torch.nn.Parameter(device.take(each)) for each in here]
        self._device, self.far, self.near = device, make(there, **OFF, **o), make(here, **o)

    def step(self, number: int, sparse: bool = False) -> None:
        give(params(self.near), number, sparse)
        for here, there in zip(params(self.near), params(self.far), strict=True):
            assert here.grad is not None
            there.grad = self._device.take(here.grad)
        self.near.step()
        self.far.step()

    def steps(self, count: int, sparse: bool = False) -> Pair:
        for number in range(count):
            self.step(number, sparse)
        return self

    def check(self) -> None:
        for of in (params, slots):
            assert_same(*([each.detach() for each in of(made)] for made in (self.far, self.near)))
        assert not any(self._device.has(each, each.device) for each in slots(self.far))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("given", INPUTS, ids=str)
def test_every_class_of_torchs(device: Device, given: Input, dtype: torch.dtype) -> None:
    is_sparse = given.name == "SparseAdam"
    if any(isinstance(each, Tensor) for each in given.arguments.values()):
        pytest.skip("a rate that is a tensor may be shared by both")
    if given.arguments.get("weight_decay") and is_sparse:
        return
    shapes = ((33, 7), (5, 3)) if given.name == "Muon" else ROWS if is_sparse else SHAPES
    pair = Pair(device, lambda p, **o: given.make(optim, p, **o), shapes, dtype)
    pair.steps(3, is_sparse).check()


@pytest.mark.parametrize(
    "options",
    [
        {"clip_grad_norm": 0.5},
        {"clip_grad_value": 0.3},
        {"ema_decay": 0.9},
        {"accumulate": 2},
        {"gradients": "flat"},
        {"state_dtype": torch.bfloat16},
        {"fused_unscale": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["Adam", "momentum", "tensorflow", "NovoGrad"])
def test_with_other_options(device: Device, name: str, options: dict[str, Any]) -> None:
    if "gradients" in options and name == "NovoGrad":
        return
    pair = Pair(device, MAKERS[name], **options)
    if "gradients" in options:  # are in buffers, which are there
        for here, there in zip(params(pair.near), params(pair.far), strict=True):
            device._memory.append(there.grad.untyped_storage())
            assert here.grad is not None
        for number in range(3):
            torch.manual_seed(number)
            for here, there in zip(params(pair.near), params(pair.far), strict=True):
                here.grad.copy_(torch.randn(here.shape))
                there.grad.copy_(here.grad)
            pair.near.step()
            pair.far.step()
    else:
        pair.steps(4)
    pair.check()


@pytest.mark.parametrize("masters", [True, False])
@pytest.mark.parametrize("name", ["Adam", "LazyAdam"])
@pytest.mark.parametrize("sparse", [True, False])
def test_parameters_of_16_bits(device: Device, name: str, sparse: bool, masters: bool) -> None:
    if sparse and name == "Adam":
        return
    pair = Pair(device, MAKERS[name], ROWS, torch.bfloat16, masters=masters).steps(3, sparse)
    pair.check()
    assert ("master" in pair.far.state[params(pair.far)[0]]) is masters


@pytest.mark.parametrize("name", ["tensorflow", "LazyAdam"])
def test_rows(device: Device, name: str) -> None:
    """All rows move, or those that gradients name."""
    pair = Pair(device, MAKERS[name], ROWS)
    for number in range(4):
        pair.step(number, sparse=number != 2)
        pair.check()


def test_runs(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is updated and sent while the next is on its way; the bits are those of one."""
    sent: list[int] = []
    real = far.Far.sending

    def sending(self: far.Far, rows: Any) -> Any:
        sent.append(len(sent))
        return real(self, rows)

    monkeypatch.setattr(far, "RUN", 128)
    monkeypatch.setattr(far.Far, "sending", sending)
    pair = Pair(device, MAKERS["Adam"], [(20,)] * 7, clip_grad_norm=0.1).steps(2)
    pair.check()
    part = next(iter(pair.far._own.parts.values()))
    assert len(part.kept.gate._dense) == 4
    assert len(sent) == 2 * 7


def test_what_others_write_to_parameters_counts(device: Device) -> None:
    pair = Pair(device, MAKERS["Adam"]).steps(2)
    with torch.no_grad():
        for made in (pair.far, pair.near):
            for param in params(made):
                param.mul_(0.5)
    pair.step(2)
    pair.check()


@pytest.mark.parametrize("name", ["Adam", "tensorflow"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_states_are_saved_and_loaded(device: Device, name: str, dtype: torch.dtype) -> None:
    masters = dtype == torch.bfloat16
    pair = Pair(device, MAKERS[name], dtype=dtype, masters=masters).steps(2)
    file = io.BytesIO()
    torch.save(pair.far.state_dict(), file)
    file.seek(0)
    there = [torch.nn.Parameter(device.take(each)) for each in params(pair.far)]
    other = MAKERS[name](there, **OFF, masters=masters)
    other.load_state_dict(torch.load(file))
    # A state of parameters here fits, too.
    other.load_state_dict(copy.deepcopy(pair.near.state_dict()))
    pair.far = other
    pair.step(2)
    pair.check()


def test_a_step_that_fails_changes_nothing(device: Device) -> None:
    pair = Pair(device, MAKERS["Adam"]).steps(1)
    before = [each.detach().clone() for each in (*params(pair.far), *slots(pair.far))]
    give(params(pair.far), 1)
    with torch.no_grad():
        params(pair.far)[1].set_(torch.zeros(4))  # pyright: ignore
    with pytest.raises((InvalidArgumentError, RuntimeError)):
        pair.far.step()
    after = [each.detach() for each in (*params(pair.far), *slots(pair.far))]
    assert_same([*after[:1], *after[2:]], [*before[:1], *before[2:]])


def test_a_scaler_leaves_steps_out(device: Device) -> None:
    pair = Pair(device, MAKERS["Adam"], fused_unscale=True).steps(1)
    before = [each.detach().clone() for each in params(pair.far)]
    for found, scale in ((1.0, 2.0), (0.0, 2.0)):
        for made in (pair.far, pair.near):
            made.found_inf, made.grad_scale = torch.tensor(found), torch.tensor(scale)
        pair.step(1)
        assert pair.far.last_step.taken is (not found)
        if found:
            assert_same([each.detach() for each in params(pair.far)], before)
    pair.check()


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"state_device": "cuda"}, InvalidArgumentError, "state_device must be None or 'cpu'"),
        ({**OFF, "in_backward": True}, InvalidArgumentError, "state_device takes a step"),
    ],
)
def test_refused(options: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        optim.Adam(params_of(torch.float32), **options)


def test_refused_by_their_steps(device: Device) -> None:
    with pytest.raises(InvalidArgumentError, match="capturable"):
        tensorflow.Adam(params_of(torch.float32), capturable=True, **OFF)
    param = torch.nn.Parameter(device.take(torch.ones(3, dtype=torch.complex64)))
    param.grad = device.take(torch.ones(3, dtype=torch.complex64))
    with pytest.raises(NotImplementedError, match="not defined for complex"):
        optim.Adam([param], **OFF).step()


def test_parameters_of_the_cpu_are_as_without_it() -> None:
    made = [optim.Adam(params_of(torch.float32), **o) for o in ({}, OFF)]
    for number in range(3):
        for each in made:
            give(params(each), number)
            each.step()
    for of in (params, slots):
        assert_same(*([each.detach() for each in of(one)] for one in made))
    assert made[1]._own.steady is not None
