"""`state_device="cpu"`: parameters on one device, their state and their updates on the CPU.

Without a GPU some memory of the CPU plays its part: what lies in it counts as far away.
"""

from __future__ import annotations

import copy
import io
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rulebook import assert_same
from thalweg import engine, optim
from thalweg._engines import current, layout
from thalweg._engines import offload as far
from thalweg._engines.protocol import Columns, StepRequest
from thalweg._engines.reference import ReferencePart
from thalweg.checkpoint.torch_adapter import TorchOptimizerAdapter
from thalweg.errors import InvalidArgumentError
from thalweg.indexed_slices import IndexedSlices
from thalweg.optim import tensorflow
from thalweg.optim.load_state import setting
from thalweg.rules.novograd import NOVOGRAD
from thalweg.rules.torch import TORCH_SGD
from torch_inputs import INPUTS, ROWS, SHAPES, Input, params_of, set_grads

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
        set_grads(params(self.near), number, sparse)
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
    real = far.OffloadLink.send_rows

    def sending(self: far.OffloadLink, rows: Any) -> Any:
        sent.append(len(sent))
        return real(self, rows)

    monkeypatch.setattr(far, "RUN", 128)
    monkeypatch.setattr(far.OffloadLink, "send_rows", sending)
    pair = Pair(device, MAKERS["Adam"], [(20,)] * 7, clip_grad_norm=0.1).steps(2)
    pair.check()
    part = next(iter(pair.far._cache.parts.values()))
    assert len(part.plans.gate._dense) == 4
    assert len(sent) == 2 * 7


@pytest.mark.parametrize("options", [{}, OFF], ids=str)
def test_masters_keep_what_is_too_large_for_parameters(
    device: Device, options: dict[str, Any]
) -> None:
    """A parameter is the largest number there; it was not others who wrote that."""
    value = torch.tensor([60000.0, 1.0], dtype=torch.float16)
    param = torch.nn.Parameter(device.take(value) if options else value)
    made = optim.SGD([param], lr=1.0, masters=True, ema_decay=0.5, **options)
    for slope in (-10000.0, -10000.0, 0.0):
        grad = torch.tensor([slope, 0.0], dtype=torch.float16)
        param.grad = device.take(grad) if options else grad
        made.step()
        with made.swapped():
            pass
    assert made.state[param]["master"].tolist() == [80000.0, 1.0]


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("masters", [False, True])
def test_what_others_write_to_parameters_counts(
    device: Device, masters: bool, sparse: bool
) -> None:
    dtype = torch.bfloat16 if masters else torch.float32
    pair = Pair(device, MAKERS["tensorflow"], ROWS, dtype, masters=masters).steps(2, sparse)
    for number, write in enumerate((lambda p: p.mul_(0.5), lambda p: p.fill_(-0.0)), 2):
        with torch.no_grad():
            for made in (pair.far, pair.near):
                for param in params(made):
                    write(param[1:])
        pair.step(number, sparse)
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
    set_grads(params(pair.far), 1)
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


def test_a_step_that_fails_is_not_the_one_that_is_repeated(device: Device) -> None:
    """It was of other parameters, for which others stand."""
    pair = Pair(device, MAKERS["Adam"], [(4,)] * 3)
    for given, fails in (((0, 1), False), ((0, 2), True), ((0, 1), False)):
        for made in (pair.near, pair.far):
            set_grads(params(made), 0)
            for index, param in enumerate(params(made)):
                if made is pair.far:
                    assert param.grad is not None
                    param.grad = device.take(param.grad)
                if index not in given:
                    param.grad = None
            last, kept = params(made)[2], params(made)[2].data
            if fails:
                last.data = device.take(torch.zeros(7)) if made is pair.far else torch.zeros(7)
                last.grad = last.data
                last.data = kept
                with pytest.raises(InvalidArgumentError, match="shape"):
                    made.step()
            else:
                made.step()
    pair.check()


@pytest.mark.filterwarnings("ignore:.*reference engine")
@pytest.mark.parametrize("masters", [True, False])
@pytest.mark.parametrize("name", ["Adam", "tensorflow"])
def test_what_takes_the_place_of_parameters_counts(
    device: Device, name: str, masters: bool
) -> None:
    """What is assigned to `data` is no write that torch counts."""
    dtype = torch.bfloat16 if masters else torch.float32
    pair = Pair(device, MAKERS[name], [(3, 3), (5,)], dtype, masters=masters).steps(2)
    for change in (Tensor.neg, Tensor.t, lambda x: x[::2, 1:], Tensor.t):
        here, there = params(pair.near)[0], params(pair.far)[0]
        here.data, there.data = change(here.data), device.take(change(there.data))
        if here.shape != (3, 3):
            here.data, there.data = torch.ones(3, 3).to(dtype), device.take(here.new_ones(3, 3))
        before = here.detach().clone()
        pair.step(2)
        pair.check()
        assert (here - before).abs().max() < 0.3
        assert_same([there.detach()], [here.detach()])


def test_twice_replaced_may_lie_where_it_lay(device: Device) -> None:
    pair = Pair(device, MAKERS["Adam"], [(1000,)]).steps(2)
    for made in (pair.near, pair.far):
        (param,) = params(made)
        for _ in range(4):
            param.data = device.take(param.data * 0.5)
    device._memory = [params(pair.far)[0].untyped_storage()]
    pair.step(2)
    pair.check()


@pytest.mark.parametrize("name", ["Adam", "tensorflow"])
def test_parameters_move(device: Device, name: str) -> None:
    """An optimizer may be made, and take steps, before its module is moved."""
    here, there = torch.nn.Parameter(torch.ones(5)), torch.nn.Parameter(torch.ones(5))
    near, moving = MAKERS[name]([here]), MAKERS[name]([there], **OFF)
    for number in range(6):
        if number in (2, 4):
            there.data = device.take(there.data) if number == 2 else there.data.clone()
        here.grad = torch.full((5,), 0.1 * number)
        there.grad = device.take(here.grad) if number in (2, 3) else here.grad.clone()
        near.step()
        moving.step()
        assert_same([there.detach(), *slots(moving)], [here.detach(), *slots(near)])


def test_signs_of_zeros_count(device: Device) -> None:
    pair = Pair(device, MAKERS["momentum"], [(3,)])
    for value in (0.0, -0.0):
        for made in (pair.near, pair.far):
            (param,) = params(made)
            param.grad = torch.zeros(3) if made is pair.near else device.take(torch.zeros(3))
            with torch.no_grad():
                param.fill_(value)
            made.step()
    pair.check()


@pytest.mark.filterwarnings("ignore:.*reference engine")
def test_norms_of_parameters_with_gaps(device: Device) -> None:
    """What stands for one is in the order of its elements: norms are added up in that order."""
    made = torch.Generator().manual_seed(3)
    base, grad = (torch.randn(600, 80, generator=made).exp() for _ in range(2))
    here = torch.nn.Parameter(base.clone()[:, 3:50].t())
    there = torch.nn.Parameter(device.take(base)[:, 3:50].t())
    device._memory.append(there.untyped_storage())
    norms: list[Any] = []
    for param, options in ((here, {}), (there, OFF)):
        optimizer = MAKERS["Adam"]([param], clip_grad_norm=0.1, **options)
        param.grad = grad[:, 3:50].t().clone() if not options else device.take(grad[:, 3:50].t())
        optimizer.step()
        norms.append(optimizer.last_step.grad_norm)
    assert norms[0] == norms[1]
    assert_same([there.detach()], [here.detach()])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("options", [{}, {"masters": True}, {"clip_grad_norm": 0.5}], ids=str)
@pytest.mark.parametrize("name", ["Adam", "tensorflow"])
def test_constraints(
    device: Device, name: str, options: dict[str, Any], dtype: torch.dtype
) -> None:
    pair = Pair(device, MAKERS[name], dtype=dtype, **options)
    for made in (pair.near, pair.far):
        params(made)[1].constraint = lambda param: param.clamp(min=0)  # pyright: ignore
    for number in range(3):
        pair.step(number)
        pair.check()
        assert (params(pair.far)[1] >= 0).all()
    param = params(pair.far)[1]
    param.grad = device.take(torch.ones(len(param), dtype=dtype).to_sparse())
    if name == "tensorflow":
        with pytest.raises(RuntimeError, match="constraint function on a sparse variable"):
            pair.far.step()


@pytest.mark.parametrize("options", [{}, {"masters": True}], ids=str)
def test_groups_that_several_rules_update(device: Device, options: dict[str, Any]) -> None:
    """A gradient that does not fit is refused before any of them is written."""

    def make(given: list[Tensor], **all_options: Any) -> Any:
        groups = [{"params": given[:2]}, {"params": given[2:], "momentum": 0.9}]
        return optim.SGD(groups, lr=0.1, **all_options)

    dtype = torch.bfloat16 if options else torch.float32
    pair = Pair(device, make, [(4,)] * 4, dtype, **options).steps(3)
    pair.check()
    before = [each.detach().clone() for each in (*params(pair.far), *slots(pair.far))]
    set_grads(params(pair.near), 3)
    for here, there in zip(params(pair.near), params(pair.far), strict=True):
        assert here.grad is not None
        there.grad = device.take(here.grad)
    for made in (pair.near, pair.far):
        param, value = params(made)[3], params(made)[3].data
        param.data = torch.zeros(7, dtype=dtype)
        param.grad = torch.zeros(7, dtype=dtype)
        if made is pair.far:
            param.data = device.take(param.data)
            param.grad = device.take(param.grad)
        param.data = value
        with pytest.raises(InvalidArgumentError, match="shape"):
            made.step()
    pair.check()
    assert_same([each.detach() for each in (*params(pair.far), *slots(pair.far))], before)


@pytest.mark.parametrize("what", ["state", "numbers"])
def test_no_rule_is_written_before_all_are_looked_at(device: Device, what: str) -> None:
    def make(given: list[Tensor], **options: Any) -> Any:
        groups = [{"params": given[:1]}, {"params": given[1:], "momentum": 0.9}]
        return optim.SGD(groups, lr=0.1, **options)

    pair = Pair(device, make, [(4,)] * 2).steps(2)
    for made in (pair.near, pair.far):
        last = params(made)[1]
        before = [each.detach().clone() for each in params(made)]
        if what == "state":
            made.state[last]["momentum_buffer"] = torch.zeros(7)
        else:
            assert last.grad is not None
            last.grad[0] = float("nan")
        with engine(check_numerics=True), pytest.raises(InvalidArgumentError):
            made.step()
        assert_same([each.detach() for each in params(made)], before)


def test_gradients_are_waited_for_before_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference engine computes while its calls are collected."""
    on_its_way, param = torch.zeros(3), torch.zeros(3)

    class Event:
        def synchronize(self) -> None:
            on_its_way.fill_(1.0)

    asked = StepRequest(TORCH_SGD, (), [param], [on_its_way], [[]], ["w"], current())
    part = far.OffloadedPart(ReferencePart(asked), [], [Event()], [])
    monkeypatch.setattr(part, "_wait_calls", list)  # that of a GPU's events
    scalars = {"direction": 1.0, "weight_decay": 0.0, "step_size": -0.5}
    for call in part.make_calls(Columns({np.float32: scalars}, {})):
        call()
    assert_same([param], [torch.full((3,), -0.5)])


def test_state_is_loaded_to_its_device() -> None:
    """State to the CPU; sums of gradients to where the next gradients are."""
    sizes = {"exp_avg": (3,), "exp_avg_sq": (3,), "step": (), "gradient_sum": (3,)}
    for name in ("torch", "file", "rule"):
        maker = MAKERS["tensorflow" if name == "rule" else "Adam"]
        here = torch.nn.Parameter(torch.ones(3))
        near = maker([here], **OFF, accumulate=2)
        for _ in range(3):
            here.grad = torch.ones(3)
            near.step()
        there = torch.nn.Parameter(torch.ones(3, device="meta"))
        other = maker([there], **OFF, accumulate=2) if name != "rule" else near
        if name == "rule":
            found: list[str] = []
            own = dict(near.state[here])
            for call in setting(own, near.state[here], "w", found, [], there):
                call()
            assert not found
        elif name == "torch":
            other.load_state_dict(near.state_dict())
            own = other.state[there]
        else:
            loader = TorchOptimizerAdapter(other)
            own = loader._prepare_state(there, other.param_groups[0], near.state[here])
        assert name == "rule" or own.keys() == sizes.keys()
        for key, value in own.items():
            assert value.device.type == ("meta" if key == "gradient_sum" else "cpu"), key


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"state_device": "cuda"}, InvalidArgumentError, "state_device must be None or 'cpu'"),
        ({**OFF, "in_backward": True}, InvalidArgumentError, "choose one"),
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
            set_grads(params(each), number)
            each.step()
    for of in (params, slots):
        assert_same(*([each.detach() for each in of(one)] for one in made))
    assert made[1]._cache.rebind_target is not None


def test_complex_parameters_of_the_cpu_are_as_without_it() -> None:
    given = [torch.nn.Parameter(torch.ones(3, dtype=torch.complex64)) for _ in range(2)]
    for param, options in zip(given, ({}, OFF), strict=True):
        param.grad = torch.full((3,), 1 + 2j)
        optim.Adam([param], **options).step()
    assert_same([torch.view_as_real(given[0].detach())], [torch.view_as_real(given[1].detach())])


def test_what_torch_is_not_given_is_loaded_with_its_own_type() -> None:
    """Slots of complex parameters, and tensors of the user's."""
    made = [optim.Adam([torch.nn.Parameter(torch.ones(3, dtype=torch.complex64))], lr=0.1, **OFF)]
    made.append(copy.deepcopy(made[0]))
    for optimizer in made:
        (param,) = optimizer.param_groups[0]["params"]
        param.grad = torch.full((3,), 1 + 2j)
        optimizer.step()
        optimizer.state[param]["mask"] = torch.tensor([1, 0, 2])
    made[1].load_state_dict(copy.deepcopy(made[0].state_dict()))
    for optimizer in made:
        optimizer.step()
    own, other = (next(iter(optimizer.state.values())) for optimizer in made)
    assert own.keys() == other.keys()
    for value, wanted in zip(own.values(), other.values(), strict=True):
        torch.testing.assert_close(value, wanted, rtol=0, atol=0)
