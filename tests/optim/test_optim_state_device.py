"""`state_device="cpu"`: parameters on one device, their state and their updates on the CPU.

Without a GPU, some memory of the CPU counts as remote.
"""

from __future__ import annotations

import contextlib
import copy
import io
import threading
from concurrent.futures import ThreadPoolExecutor
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
from thalweg._engines.reference_part import ReferencePart
from thalweg.checkpoint.torch_adapter import TorchOptimizerAdapter
from thalweg.errors import InvalidArgumentError
from thalweg.indexed_slices import IndexedSlices
from thalweg.optim import tensorflow
from thalweg.optim.load_state import plan_entries
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
ON_CPU = {"state_device": "cpu"}


class Device:
    """Fake remote device."""

    def __init__(self) -> None:
        self._memory: list[torch.UntypedStorage] = []
        self._rows: list[Any] = []

    def take(self, tensor: Tensor) -> Tensor:
        """Return a copy of a tensor that counts as remote."""
        remote = tensor.detach().clone()
        self._memory += [tensor.untyped_storage() for tensor in _tensors_of(remote)]
        return remote

    def adopt(self, tensor: Tensor) -> None:
        """Have a tensor count as remote."""
        self._memory.append(tensor.untyped_storage())

    def has(self, tensor: Any, device: torch.device) -> bool:
        """Return whether a tensor is remote; replaces `layout.is_far`."""
        addresses = {storage.data_ptr() for storage in self._memory} - {0}
        return any(part.untyped_storage().data_ptr() in addresses for part in _tensors_of(tensor))


def _tensors_of(tensor: Any) -> tuple[Tensor, ...]:
    if isinstance(tensor, IndexedSlices):
        return tensor.values, tensor.indices
    if tensor.is_sparse:
        return tensor._values(), tensor._indices()
    return (tensor,)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    device = Device()
    monkeypatch.setattr(layout, "is_far", device.has)
    return device


def params(opt: Any) -> list[Tensor]:
    return [param for group in opt.param_groups for param in group["params"]]


def slots(opt: Any) -> list[Tensor]:
    entries = [tensor for state in opt.state.values() for tensor in state.values()]
    numbers = [tensor if isinstance(tensor, Tensor) else torch.tensor(tensor) for tensor in entries]
    return [tensor if tensor.is_floating_point() else tensor.double() for tensor in numbers]


class Pair:
    """Optimizers of remote parameters and of equal parameters on the host."""

    def __init__(
        self, device: Device, make: Any, shapes: Any = SHAPES, dtype: Any = torch.float32, **o: Any
    ) -> None:
        host_params = params_of(dtype, shapes)
        remote_params = [torch.nn.Parameter(device.take(param)) for param in host_params]
        self._device, self.remote, self.host = (
            device,
            make(remote_params, **ON_CPU, **o),
            make(host_params, **o),
        )

    def step(self, number: int, sparse: bool = False) -> None:
        set_grads(params(self.host), number, sparse)
        for host, remote in zip(params(self.host), params(self.remote), strict=True):
            assert host.grad is not None
            remote.grad = self._device.take(host.grad)
        self.host.step()
        self.remote.step()

    def steps(self, count: int, sparse: bool = False) -> Pair:
        for number in range(count):
            self.step(number, sparse)
        return self

    def check(self) -> None:
        for values_of in (params, slots):
            assert_same(*([x.detach() for x in values_of(opt)] for opt in (self.remote, self.host)))
        assert not any(self._device.has(tensor, tensor.device) for tensor in slots(self.remote))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", INPUTS, ids=str)
def test_offloaded_torch_classes_equal_device_classes(
    device: Device, case: Input, dtype: torch.dtype
) -> None:
    is_sparse = case.name == "SparseAdam"
    if any(isinstance(argument, Tensor) for argument in case.arguments.values()):
        pytest.skip("a rate that is a tensor may be shared by both")
    if case.arguments.get("weight_decay") and is_sparse:
        return
    shapes = ((33, 7), (5, 3)) if case.name == "Muon" else ROWS if is_sparse else SHAPES
    pair = Pair(device, lambda p, **o: case.make(optim, p, **o), shapes, dtype)
    pair.steps(3, is_sparse).check()


@pytest.mark.one_in(3)
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
def test_offloaded_state_with_other_options_equals_device_state(
    device: Device, name: str, options: dict[str, Any]
) -> None:
    if "gradients" in options and name == "NovoGrad":
        return
    pair = Pair(device, MAKERS[name], **options)
    if "gradients" in options:  # gradients are in remote buffers
        for host, remote in zip(params(pair.host), params(pair.remote), strict=True):
            device._memory.append(remote.grad.untyped_storage())
            assert host.grad is not None
        for number in range(3):
            torch.manual_seed(number)
            for host, remote in zip(params(pair.host), params(pair.remote), strict=True):
                host.grad.copy_(torch.randn(host.shape))
                remote.grad.copy_(host.grad)
            pair.host.step()
            pair.remote.step()
    else:
        pair.steps(4)
    pair.check()


@pytest.mark.parametrize("masters", [True, False])
@pytest.mark.parametrize("name", ["Adam", "LazyAdam"])
@pytest.mark.parametrize("sparse", [True, False])
def test_offloaded_16_bit_params_equal_device_params(
    device: Device, name: str, sparse: bool, masters: bool
) -> None:
    if sparse and name == "Adam":
        return
    pair = Pair(device, MAKERS[name], ROWS, torch.bfloat16, masters=masters).steps(3, sparse)
    pair.check()
    assert ("master" in pair.remote.state[params(pair.remote)[0]]) is masters


@pytest.mark.parametrize("name", ["tensorflow", "LazyAdam"])
def test_offloaded_sparse_rows_equal_device_rows(device: Device, name: str) -> None:
    """Use dense gradients and sparse ones."""
    pair = Pair(device, MAKERS[name], ROWS)
    for number in range(4):
        pair.step(number, sparse=number != 2)
        pair.check()


def test_contiguous_params_are_copied_in_runs(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs of parameters overlap with transfers; the bits do not change."""
    send_calls: list[int] = []
    real = far.OffloadLink.send_rows

    def sending(self: far.OffloadLink, rows: Any) -> Any:
        send_calls.append(len(send_calls))
        return real(self, rows)

    monkeypatch.setattr(far, "RUN", 128)
    monkeypatch.setattr(far.OffloadLink, "send_rows", sending)
    pair = Pair(device, MAKERS["Adam"], [(20,)] * 7, clip_grad_norm=0.1).steps(2)
    pair.check()
    part = next(iter(pair.remote.step_cache.parts.values()))
    assert len(part.plans.gate._dense) == 4
    assert len(send_calls) == 2 * 7


@pytest.mark.parametrize("options", [{}, ON_CPU], ids=str)
def test_masters_exceed_range_of_params(device: Device, options: dict[str, Any]) -> None:
    """A saturated parameter is not a write by the user."""
    value = torch.tensor([60000.0, 1.0], dtype=torch.float16)
    param = torch.nn.Parameter(device.take(value) if options else value)
    opt = optim.SGD([param], lr=1.0, masters=True, ema_decay=0.5, **options)
    for slope in (-10000.0, -10000.0, 0.0):
        grad = torch.tensor([slope, 0.0], dtype=torch.float16)
        param.grad = device.take(grad) if options else grad
        opt.step()
        with opt.swapped():
            pass
    assert opt.state[param]["master"].tolist() == [80000.0, 1.0]


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("masters", [False, True])
def test_user_writes_to_params_are_used(device: Device, masters: bool, sparse: bool) -> None:
    dtype = torch.bfloat16 if masters else torch.float32
    pair = Pair(device, MAKERS["tensorflow"], ROWS, dtype, masters=masters).steps(2, sparse)
    for number, write in enumerate((lambda p: p.mul_(0.5), lambda p: p.fill_(-0.0)), 2):
        with torch.no_grad():
            for opt in (pair.remote, pair.host):
                for param in params(opt):
                    write(param[1:])
        pair.step(number, sparse)
        pair.check()


@pytest.mark.parametrize("name", ["Adam", "tensorflow"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_states_are_saved_and_loaded(device: Device, name: str, dtype: torch.dtype) -> None:
    masters = dtype == torch.bfloat16
    pair = Pair(device, MAKERS[name], dtype=dtype, masters=masters).steps(2)
    file = io.BytesIO()
    torch.save(pair.remote.state_dict(), file)
    file.seek(0)
    remote_params = [torch.nn.Parameter(device.take(param)) for param in params(pair.remote)]
    loaded = MAKERS[name](remote_params, **ON_CPU, masters=masters)
    loaded.load_state_dict(torch.load(file))
    # A state of host parameters can be loaded, too.
    loaded.load_state_dict(copy.deepcopy(pair.host.state_dict()))
    pair.remote = loaded
    pair.step(2)
    pair.check()


def test_failed_step_changes_nothing(device: Device) -> None:
    pair = Pair(device, MAKERS["Adam"]).steps(1)
    previous = [param.detach().clone() for param in (*params(pair.remote), *slots(pair.remote))]
    set_grads(params(pair.remote), 1)
    with torch.no_grad():
        params(pair.remote)[1].set_(torch.zeros(4))  # pyright: ignore
    with pytest.raises((InvalidArgumentError, RuntimeError)):
        pair.remote.step()
    current = [param.detach() for param in (*params(pair.remote), *slots(pair.remote))]
    assert_same([*current[:1], *current[2:]], [*previous[:1], *previous[2:]])


def test_scaler_skips_steps(device: Device) -> None:
    pair = Pair(device, MAKERS["Adam"], fused_unscale=True).steps(1)
    previous = [param.detach().clone() for param in params(pair.remote)]
    for found_inf, scale in ((1.0, 2.0), (0.0, 2.0)):
        for opt in (pair.remote, pair.host):
            opt.found_inf, opt.grad_scale = torch.tensor(found_inf), torch.tensor(scale)
        pair.step(1)
        assert pair.remote.last_step.taken is (not found_inf)
        if found_inf:
            assert_same([param.detach() for param in params(pair.remote)], previous)
    pair.check()


def test_failed_step_is_not_replayed(device: Device) -> None:
    """The failed step had other parameters than the replayed one."""
    pair = Pair(device, MAKERS["Adam"], [(4,)] * 3)
    for indices, fails in (((0, 1), False), ((0, 2), True), ((0, 1), False)):
        for opt in (pair.host, pair.remote):
            set_grads(params(opt), 0)
            for index, param in enumerate(params(opt)):
                if opt is pair.remote:
                    assert param.grad is not None
                    param.grad = device.take(param.grad)
                if index not in indices:
                    param.grad = None
            last_param, last_data = params(opt)[2], params(opt)[2].data
            if fails:
                last_param.data = (
                    device.take(torch.zeros(7)) if opt is pair.remote else torch.zeros(7)
                )
                last_param.grad = last_param.data
                last_param.data = last_data
                with pytest.raises(InvalidArgumentError, match="shape"):
                    opt.step()
            else:
                opt.step()
    pair.check()


@pytest.mark.filterwarnings("ignore:.*reference engine")
@pytest.mark.parametrize("masters", [True, False])
@pytest.mark.parametrize("name", ["Adam", "tensorflow"])
def test_replaced_param_data_is_used(device: Device, name: str, masters: bool) -> None:
    """Assigning `data` changes no version of torch."""
    dtype = torch.bfloat16 if masters else torch.float32
    pair = Pair(device, MAKERS[name], [(3, 3), (5,)], dtype, masters=masters).steps(2)
    for change in (Tensor.neg, Tensor.t, lambda x: x[::2, 1:], Tensor.t):
        host, remote = params(pair.host)[0], params(pair.remote)[0]
        host.data, remote.data = change(host.data), device.take(change(remote.data))
        if host.shape != (3, 3):
            host.data, remote.data = torch.ones(3, 3).to(dtype), device.take(host.new_ones(3, 3))
        previous = host.detach().clone()
        pair.step(2)
        pair.check()
        assert (host - previous).abs().max() < 0.3
        assert_same([remote.detach()], [host.detach()])


def test_replaced_data_at_the_same_address(device: Device) -> None:
    pair = Pair(device, MAKERS["Adam"], [(1000,)]).steps(2)
    for opt in (pair.host, pair.remote):
        (param,) = params(opt)
        for _ in range(4):
            param.data = device.take(param.data * 0.5)
    device._memory = [params(pair.remote)[0].untyped_storage()]
    pair.step(2)
    pair.check()


@pytest.mark.parametrize("name", ["Adam", "tensorflow"])
def test_params_moved_after_steps_are_updated(device: Device, name: str) -> None:
    """Move parameters after the optimizer has taken steps."""
    host, remote = torch.nn.Parameter(torch.ones(5)), torch.nn.Parameter(torch.ones(5))
    host_opt, moving_opt = MAKERS[name]([host]), MAKERS[name]([remote], **ON_CPU)
    for number in range(6):
        if number in (2, 4):
            remote.data = device.take(remote.data) if number == 2 else remote.data.clone()
        host.grad = torch.full((5,), 0.1 * number)
        remote.grad = device.take(host.grad) if number in (2, 3) else host.grad.clone()
        host_opt.step()
        moving_opt.step()
        assert_same([remote.detach(), *slots(moving_opt)], [host.detach(), *slots(host_opt)])


def test_signs_of_zeros_survive_transfers(device: Device) -> None:
    pair = Pair(device, MAKERS["momentum"], [(3,)])
    for value in (0.0, -0.0):
        for opt in (pair.host, pair.remote):
            (param,) = params(opt)
            param.grad = torch.zeros(3) if opt is pair.host else device.take(torch.zeros(3))
            with torch.no_grad():
                param.fill_(value)
            opt.step()
    pair.check()


@pytest.mark.filterwarnings("ignore:.*reference engine")
def test_norms_of_strided_params(device: Device) -> None:
    """Norms are summed in the order of elements in memory."""
    generator = torch.Generator().manual_seed(3)
    base, grad = (torch.randn(600, 80, generator=generator).exp() for _ in range(2))
    host = torch.nn.Parameter(base.clone()[:, 3:50].t())
    remote = torch.nn.Parameter(device.take(base)[:, 3:50].t())
    device._memory.append(remote.untyped_storage())
    norms: list[Any] = []
    for param, options in ((host, {}), (remote, ON_CPU)):
        optimizer = MAKERS["Adam"]([param], clip_grad_norm=0.1, **options)
        param.grad = grad[:, 3:50].t().clone() if not options else device.take(grad[:, 3:50].t())
        optimizer.step()
        norms.append(optimizer.last_step.grad_norm)
    assert norms[0] == norms[1]
    assert_same([remote.detach()], [host.detach()])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("options", [{}, {"masters": True}, {"clip_grad_norm": 0.5}], ids=str)
@pytest.mark.parametrize("name", ["Adam", "tensorflow"])
def test_constraints_are_applied_to_offloaded_params(
    device: Device, name: str, options: dict[str, Any], dtype: torch.dtype
) -> None:
    pair = Pair(device, MAKERS[name], dtype=dtype, **options)
    for opt in (pair.host, pair.remote):
        params(opt)[1].constraint = lambda param: param.clamp(min=0)  # pyright: ignore
    for number in range(3):
        pair.step(number)
        pair.check()
        assert (params(pair.remote)[1] >= 0).all()
    param = params(pair.remote)[1]
    param.grad = device.take(torch.ones(len(param), dtype=dtype).to_sparse())
    if name == "tensorflow":
        with pytest.raises(RuntimeError, match="constraint function on a sparse variable"):
            pair.remote.step()


@pytest.mark.parametrize("options", [{}, {"masters": True}], ids=str)
def test_offloaded_groups_of_several_rules_equal_device_groups(
    device: Device, options: dict[str, Any]
) -> None:
    """A gradient of another shape raises before any parameter changes."""

    def make(params: list[Tensor], **all_options: Any) -> Any:
        groups = [{"params": params[:2]}, {"params": params[2:], "momentum": 0.9}]
        return optim.SGD(groups, lr=0.1, **all_options)

    dtype = torch.bfloat16 if options else torch.float32
    pair = Pair(device, make, [(4,)] * 4, dtype, **options).steps(3)
    pair.check()
    previous = [param.detach().clone() for param in (*params(pair.remote), *slots(pair.remote))]
    set_grads(params(pair.host), 3)
    for host, remote in zip(params(pair.host), params(pair.remote), strict=True):
        assert host.grad is not None
        remote.grad = device.take(host.grad)
    for opt in (pair.host, pair.remote):
        param, value = params(opt)[3], params(opt)[3].data
        param.data = torch.zeros(7, dtype=dtype)
        param.grad = torch.zeros(7, dtype=dtype)
        if opt is pair.remote:
            param.data = device.take(param.data)
            param.grad = device.take(param.grad)
        param.data = value
        with pytest.raises(InvalidArgumentError, match="shape"):
            opt.step()
    pair.check()
    assert_same([param.detach() for param in (*params(pair.remote), *slots(pair.remote))], previous)


@pytest.mark.parametrize("broken", ["state", "numbers"])
def test_failed_rule_changes_no_group(device: Device, broken: str) -> None:
    def make(params: list[Tensor], **options: Any) -> Any:
        groups = [{"params": params[:1]}, {"params": params[1:], "momentum": 0.9}]
        return optim.SGD(groups, lr=0.1, **options)

    pair = Pair(device, make, [(4,)] * 2).steps(2)
    for opt in (pair.host, pair.remote):
        last_param = params(opt)[1]
        previous = [param.detach().clone() for param in params(opt)]
        if broken == "state":
            opt.state[last_param]["momentum_buffer"] = torch.zeros(7)
        else:
            assert last_param.grad is not None
            last_param.grad[0] = float("nan")
        with engine(check_numerics=True), pytest.raises(InvalidArgumentError):
            opt.step()
        assert_same([param.detach() for param in params(opt)], previous)


def test_step_waits_for_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference engine computes when its calls are created."""
    pending_grad, param = torch.zeros(3), torch.zeros(3)

    class Event:
        def synchronize(self) -> None:
            pending_grad.fill_(1.0)

    request = StepRequest(TORCH_SGD, (), [param], [pending_grad], [[]], ["w"], current())
    part = far.OffloadedPart(ReferencePart(request), [], [Event()], [])
    monkeypatch.setattr(part, "_wait_calls", lambda: [Event().synchronize])  # not a CUDA event's
    scalars = {"direction": 1.0, "weight_decay": 0.0, "step_size": -0.5}
    for call in part.make_calls(Columns({np.float32: scalars}, {})):
        call()
    assert_same([param], [torch.full((3,), -0.5)])


def test_state_is_loaded_to_its_device() -> None:
    """State is loaded to the CPU, gradient sums to the parameters' device."""
    sizes = {"exp_avg": (3,), "exp_avg_sq": (3,), "step": (), "gradient_sum": (3,)}
    for name in ("torch", "file", "rule"):
        maker = MAKERS["tensorflow" if name == "rule" else "Adam"]
        host = torch.nn.Parameter(torch.ones(3))
        source = maker([host], **ON_CPU, accumulate=2)
        for _ in range(3):
            host.grad = torch.ones(3)
            source.step()
        remote = torch.nn.Parameter(torch.ones(3, device="meta"))
        loaded = maker([remote], **ON_CPU, accumulate=2) if name != "rule" else source
        if name == "rule":
            errors: list[str] = []
            state = dict(source.state[host])
            for call in plan_entries(state, source.state[host], "w", errors, [], remote):
                call()
            assert not errors
        elif name == "torch":
            loaded.load_state_dict(source.state_dict())
            state = loaded.state[remote]
        else:
            loader = TorchOptimizerAdapter(loaded)
            state = loader._prepare_state(remote, loaded.param_groups[0], source.state[host])
        assert name == "rule" or state.keys() == sizes.keys()
        for key, value in state.items():
            assert value.device.type == ("meta" if key == "gradient_sum" else "cpu"), key


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"state_device": "cuda"}, InvalidArgumentError, "state_device must be None or 'cpu'"),
    ],
)
def test_bad_arguments_raise(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        optim.Adam(params_of(torch.float32), **options)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("options", [{}, {"masters": True}, {"ema_decay": 0.9}], ids=str)
@pytest.mark.parametrize("name", ["Adam", "tensorflow"])
def test_gradients_are_applied_while_others_are_computed(
    device: Device, name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transfer of a gradient ends when that of the third one after it has begun."""
    dtype = torch.bfloat16 if "masters" in options else torch.float32
    host = [torch.nn.Parameter(torch.linspace(-1, 1, 24).to(dtype)) for _ in range(6)]
    remote = [torch.nn.Parameter(device.take(param)) for param in host]
    transfers: list[far.Prefetch] = []
    init = far.Prefetch.__init__

    def begin(self: far.Prefetch, grad: Tensor, param: Tensor) -> None:
        init(self, grad, param)
        device.adopt(grad)
        grad.untyped_storage().fill_(255)  # NaN, for the step is to read the copy
        transfers.append(self)

    monkeypatch.setattr(far.Prefetch, "__init__", begin)
    most_waiting = 0

    def has_arrived(self: far.Prefetch) -> bool:
        nonlocal most_waiting
        most_waiting = max(most_waiting, len(optimizers[1].step_cache.fetching))
        return transfers.index(self) + 3 < len(transfers)

    monkeypatch.setattr(far.Prefetch, "has_arrived", has_arrived)
    optimizers = [
        MAKERS[name](host, in_backward=True, **options),
        MAKERS[name](remote, in_backward=True, **ON_CPU, **options),
    ]
    for number in range(3):
        for values in (host, remote):
            # A second backward pass before a step adds another update.
            for _ in range(2 if number == 1 else 1):
                sum(((x * (number + 1)).sin().sum() for x in values), torch.zeros(())).backward()
            assert not any(param.grad is not None for param in values)
        for optimizer in optimizers:
            optimizer.step()
    assert len(transfers) == 4 * 6
    assert most_waiting == 4
    for tensors_of in (params, slots):
        assert_same(*([tensor.detach() for tensor in tensors_of(opt)] for opt in optimizers))


def test_threads_of_two_devices_apply_each_gradient_once(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread meets the other one, unless a lock keeps it out, when it has seen an arrival."""
    values = [torch.full((8,), float(k + 1)) for k in range(4)]
    host = [torch.nn.Parameter(value.clone()) for value in values]
    remote = [torch.nn.Parameter(device.take(value)) for value in values]
    init, meeting = far.Prefetch.__init__, threading.Barrier(2)

    def begin(self: far.Prefetch, grad: Tensor, param: Tensor) -> None:
        init(self, grad, param)
        device.adopt(grad)

    def has_arrived(self: far.Prefetch) -> bool:
        with contextlib.suppress(threading.BrokenBarrierError):
            meeting.wait(0.2)
        return True

    monkeypatch.setattr(far.Prefetch, "__init__", begin)
    monkeypatch.setattr(far.Prefetch, "has_arrived", has_arrived)
    optimizers = [
        MAKERS["Adam"](host, in_backward=True),
        MAKERS["Adam"](remote, in_backward=True, **ON_CPU),
    ]
    sum((x.sin().sum() for x in host), torch.zeros(())).backward()
    with ThreadPoolExecutor(2) as pool:
        halves = [remote[:2], remote[2:]]
        list(pool.map(lambda half: torch.stack(half).sin().sum().backward(), halves))
    for optimizer in optimizers:
        optimizer.step()
    assert_same(*([param.detach() for param in params(opt)] for opt in optimizers))
    # The order of the threads is that of the entries of `state`.
    assert_same(*([opt.state[p]["exp_avg"] for p in params(opt)] for opt in optimizers))


def test_unsupported_steps_raise(device: Device) -> None:
    with pytest.raises(InvalidArgumentError, match="capturable"):
        tensorflow.Adam(params_of(torch.float32), capturable=True, **ON_CPU)
    param = torch.nn.Parameter(device.take(torch.ones(3, dtype=torch.complex64)))
    param.grad = device.take(torch.ones(3, dtype=torch.complex64))
    with pytest.raises(NotImplementedError, match="not defined for complex"):
        optim.Adam([param], **ON_CPU).step()


def test_cpu_params_are_unaffected() -> None:
    optimizers = [optim.Adam(params_of(torch.float32), **o) for o in ({}, ON_CPU)]
    for number in range(3):
        for x in optimizers:
            set_grads(params(x), number)
            x.step()
    for tensors_of in (params, slots):
        assert_same(*([tensor.detach() for tensor in tensors_of(opt)] for opt in optimizers))
    assert optimizers[1].step_cache.rebind_target is not None


def test_complex_cpu_params_are_unaffected() -> None:
    params = [torch.nn.Parameter(torch.ones(3, dtype=torch.complex64)) for _ in range(2)]
    for param, options in zip(params, ({}, ON_CPU), strict=True):
        param.grad = torch.full((3,), 1 + 2j)
        optim.Adam([param], **options).step()
    assert_same([torch.view_as_real(params[0].detach())], [torch.view_as_real(params[1].detach())])


def test_complex_and_user_state_keeps_dtype() -> None:
    """Load slots of complex parameters, and user tensors."""
    optimizers = [
        optim.Adam([torch.nn.Parameter(torch.ones(3, dtype=torch.complex64))], lr=0.1, **ON_CPU)
    ]
    optimizers.append(copy.deepcopy(optimizers[0]))
    for optimizer in optimizers:
        (param,) = optimizer.param_groups[0]["params"]
        param.grad = torch.full((3,), 1 + 2j)
        optimizer.step()
        optimizer.state[param]["mask"] = torch.tensor([1, 0, 2])
    optimizers[1].load_state_dict(copy.deepcopy(optimizers[0].state_dict()))
    for optimizer in optimizers:
        optimizer.step()
    state, expected_state = (next(iter(optimizer.state.values())) for optimizer in optimizers)
    assert state.keys() == expected_state.keys()
    for value, expected in zip(state.values(), expected_state.values(), strict=True):
        torch.testing.assert_close(value, expected, rtol=0, atol=0)
