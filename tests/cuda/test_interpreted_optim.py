"""`thalweg.optim` on a GPU, in Triton's interpreter: bits, steps decided there, and graphs."""

from __future__ import annotations

import contextlib
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import thalweg
from fake_cuda_graph import captured
from no_sync_device import counting_and_waiting_for_nothing, waiting_for_nothing
from rulebook import assert_same
from thalweg import optim, rules
from thalweg._engines.cuda.host_device_mirror import Mirror, Rows
from thalweg.optim import native_support, tensorflow
from thalweg.optim.step_options import FOUND_INF

DROP_INS = {
    "Adam": partial(optim.Adam, lr=0.1, weight_decay=0.1),
    "AMSGrad": partial(optim.Adam, lr=0.1, amsgrad=True),
    "AdamW": partial(optim.AdamW, lr=0.1),
    "SGD": partial(optim.SGD, lr=0.1, weight_decay=0.1),
    "momentum": partial(optim.SGD, lr=0.1, momentum=0.9, dampening=0.2),
    "Nesterov": partial(optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
    "RMSprop": partial(optim.RMSprop, lr=0.1, centered=True, momentum=0.9),
    "Adagrad": partial(optim.Adagrad, lr=0.1, lr_decay=0.1),
    "Adadelta": partial(optim.Adadelta, lr=0.1),
    "Adamax": partial(optim.Adamax, lr=0.1),
    "NAdam": partial(optim.NAdam, lr=0.1),
    "RAdam": partial(optim.RAdam, lr=0.1),
    "ASGD": partial(optim.ASGD, lr=0.1, t0=2),
    "Rprop": partial(optim.Rprop, lr=0.1),
}
# Without an option `capturable` in torch.
NOT_CAPTURABLE = {"SGD", "momentum", "Nesterov", "Adagrad"}
TENSORFLOW = {
    "Adam": partial(tensorflow.Adam, lr=0.1),
    "LazyAdam": partial(tensorflow.LazyAdam, lr=0.1),
    "Adamax": partial(tensorflow.Adamax, lr=0.1),
    "Nadam": partial(tensorflow.Nadam, lr=0.1),
    "Ftrl": partial(tensorflow.Ftrl, lr=0.1, l2=0.1, beta=0.1),
    "Momentum": partial(tensorflow.Momentum, lr=0.1, nesterov=True),
    "NovoGrad": partial(optim.RuleOptimizer, rule=rules.NOVOGRAD, lr=0.1),
}
CAPTURABLE = {name: make for name, make in DROP_INS.items() if name not in NOT_CAPTURABLE}
CAPTURABLE |= {f"tensorflow {name}": make for name, make in TENSORFLOW.items()}
STEPS = 8  # RAdam divides by a root from the sixth one on
SHAPES = [(5, 7), (), (130,)]


def by(table):
    return pytest.mark.parametrize("make", table.values(), ids=list(table))


class Training:
    """An optimizer over parameters of several dtypes, in one group or in two."""

    def __init__(self, make, dtypes=(torch.float32,), groups=1, **options):
        self.generator = torch.Generator().manual_seed(0)
        self.params = [
            torch.nn.Parameter(self.random(shape).to(dtype)) for dtype in dtypes for shape in SHAPES
        ]
        params_or_groups = self.params
        if groups == 2:
            params_or_groups = [
                {"params": self.params[:1]},
                {"params": self.params[1:], "lr": 0.05},
            ]
        self.optimizer = make(params_or_groups, **options)

    def random(self, shape):
        return torch.randn(shape, generator=self.generator)

    def give_gradients(self):
        for param in self.params:
            grad = self.random(param.shape).to(param.dtype)
            if param.grad is None:
                param.grad = grad
            else:
                param.grad.copy_(grad)  # where it lies, as graphs have it

    def step(self, found_inf=None):
        self.give_gradients()
        if found_inf is not None:
            self.optimizer.found_inf = torch.tensor([float(found_inf)])
            self.optimizer.grad_scale = torch.tensor(8.0)
        self.optimizer.step()

    def written(self):
        state = self.optimizer.state
        state_values = [value for param in self.params for value in state[param].values()]
        return plain([*self.params, *state_values])


def plain(values):
    return [tensor.detach() if tensor.is_floating_point() else tensor.double() for tensor in values]


def trained(engine, make, steps=STEPS, context=contextlib.nullcontext, **options):
    with thalweg.engine(engine):
        training = Training(make, **options)
        for number in range(steps):
            with context(training.optimizer) if number == steps - 1 else contextlib.nullcontext():
                training.step()
    return training.written()


@pytest.mark.one_in(2)
@by(DROP_INS)
def test_torch_classes_equal_the_cpu(make):
    dtypes = (torch.float32, torch.bfloat16, torch.float64)
    expected = trained("cpu", make, dtypes=dtypes)
    assert_same(trained("cuda", make, dtypes=dtypes), expected)


@by({name: make for name, make in DROP_INS.items() if name not in ("NAdam", "ASGD")})
def test_replayed_step_of_torch_class_does_not_synchronize(make):
    trained("cuda", make, 3, counting_and_waiting_for_nothing)


def test_sparse_gradients_of_torch_classes_equal_the_cpu():
    def stepped(engine, make):
        table = torch.nn.Parameter(torch.arange(36.0).reshape(9, 4))
        optimizer = make([table])
        indices, values = torch.tensor([[7, 2, 7]]), torch.arange(12.0).reshape(3, 4)
        table.grad = torch.sparse_coo_tensor(indices, values, (9, 4), check_invariants=False)
        with thalweg.engine(engine):
            for _ in range(3):
                optimizer.step()
        return [table.detach(), *(v for v in optimizer.state[table].values() if v is not None)]

    for make in (optim.SparseAdam, optim.Adagrad, optim.SGD):
        actual, expected = stepped("cuda", make), stepped("cpu", make)
        for tensors in (actual, expected):
            tensors[:] = [tensor for tensor in tensors if isinstance(tensor, torch.Tensor)]
        assert_same(actual, expected)


def test_a_device_with_an_engine_takes_the_step(monkeypatch):
    param = torch.nn.Parameter(torch.ones(3, device="meta"))
    pairs = [(torch.ones(3, device="meta"), param)]
    assert not native_support.engines_support(pairs, {}, ())
    assert native_support.device_of([param]) is None
    monkeypatch.setattr(
        native_support, "takes_device", lambda device, name: device.type == name == "meta"
    )
    monkeypatch.setattr(native_support, "current", lambda: thalweg._engines.Selection("meta"))
    assert native_support.engines_support(pairs, {}, ())
    assert native_support.device_of([param]) == param.device
    assert native_support.device_of([param, torch.nn.Parameter(torch.ones(1))]) is None
    monkeypatch.setattr(native_support, "current", thalweg._engines.Selection)
    assert not native_support.engines_support(pairs, {}, ())


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("make", "groups"),
    [(make, 1 + k % 2) for k, make in enumerate(CAPTURABLE.values())],
    ids=list(CAPTURABLE),
)
def test_device_counted_steps_equal_the_cpu(make, groups):
    """The bits of those that the host counts: in float32, powers of float64 leave no trace here."""
    options = {"dtypes": (torch.float32, torch.bfloat16), "groups": groups}
    expected = trained("cuda", make, **options)
    assert_same(trained("cuda", make, capturable=True, **options), expected)


@pytest.mark.one_in(2)
@by(CAPTURABLE)
def test_device_counted_float64_steps_equal_the_cpu(make):
    options = {"dtypes": (torch.float64,)}
    actual_tensors = trained("cuda", make, capturable=True, **options)
    for actual, expected in zip(actual_tensors, trained("cuda", make, **options), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-14)


@by(CAPTURABLE)
def test_device_counted_step_does_not_synchronize(make):
    trained("cuda", make, 3, lambda optimizer: waiting_for_nothing(), capturable=True)


@pytest.mark.one_in(2)
@by(CAPTURABLE)
def test_graph_replays_of_a_step_equal_steps(make):
    rate = {"lr": torch.tensor(0.1)}
    with thalweg.engine("cuda"):
        eager = Training(make, capturable=True, **rate)
        training = Training(make, capturable=True, **rate)
        for twin in (eager, training):
            for _ in range(2):
                twin.step()
        with captured() as graph:
            training.optimizer.step()
        assert graph.launches
        # A graph is told, not stepped: what capturing did is the third step, of gradients of old.
        eager.optimizer.step()
        spoil_the_host(training)
        for _ in range(3):
            for twin in (eager, training):
                twin.give_gradients()
                twin.optimizer.param_groups[0]["lr"].mul_(0.5)
            eager.optimizer.step()
            graph.replay()
    assert_same(training.written(), eager.written())


def spoil_the_host(training):
    """Write over all that is sent to the device, as other steps do."""
    (part,) = training.optimizer.step_cache.parts.values()
    for plan in part.plans.gate._dense.values():
        for group in plan.groups:
            for mirror in [group._base, *(rows._mirror for rows in group._rows.values())]:
                mirror.host[:] = 0
                for mirror_buffer, _ in mirror._in_flight:
                    mirror_buffer.zero_()


def test_a_graph_clips_by_a_norm():
    with thalweg.engine("cuda"):
        make = partial(optim.AdamW, lr=0.1, capturable=True, clip_grad_norm=0.5)
        eager, training = Training(make), Training(make)
        for twin in (eager, training):
            for _ in range(2):
                twin.step()
        with captured() as graph:
            training.optimizer.step()
        eager.optimizer.step()
        for _ in range(2):
            for twin in (eager, training):
                twin.give_gradients()
            eager.optimizer.step()
            graph.replay()
    assert_same(training.written(), eager.written())


def test_two_graphs_need_a_step_between_them():
    with thalweg.engine("cuda"):
        training = Training(partial(optim.Adam, capturable=True))
        training.step()
        with captured():
            training.optimizer.step()
        with captured(), pytest.raises(RuntimeError, match="before another one is captured"):
            training.optimizer.step()
        training.step()
        with captured():
            training.optimizer.step()


def test_host_and_device_scalars_can_alternate():
    kernel = SimpleNamespace(scalars=("a", "b"), dtype=np.float32)
    rows = Rows(1, kernel, torch.device("cpu"))
    device_value = torch.tensor(5.0)
    for scalars_by_name in (
        {"a": 0, "b": 2},
        {"a": device_value, "b": 2},
        {"a": 0, "b": 2},
        {"a": 0, "b": device_value},
    ):
        assert rows.send_if_changed(scalars_by_name).tolist() == [
            [float(scalar) for scalar in scalars_by_name.values()]
        ]


def test_captured_mirror_reuses_its_buffer_afterwards():
    mirror = Mirror(torch.arange(3).numpy(), torch.device("cpu"))
    first = mirror.send_if_changed()
    with captured():
        graphs = mirror.send_if_changed()
    assert graphs is not first
    assert mirror.send_if_changed() is first


OVERFLOWS = [False, True, False, False, True, True, False]
SCALABLE = {**DROP_INS, **{f"tensorflow {name}": make for name, make in TENSORFLOW.items()}}


def scaled(engine, make, first=0, context=contextlib.nullcontext, **options):
    with thalweg.engine(engine):
        training = Training(make, fused_unscale=True, **options)
        for number, overflows in enumerate(OVERFLOWS):
            with context() if number >= first else contextlib.nullcontext():
                training.step(overflows)
    return training


@pytest.mark.one_in(2)
@by(SCALABLE)
def test_device_skips_steps(make):
    groups = 1 + [*SCALABLE.values()].index(make) % 2
    expected_training, training = (
        scaled(engine, make, groups=groups) for engine in ("cpu", "cuda")
    )
    assert_same(training.written(), expected_training.written())
    assert training.optimizer.last_step == expected_training.optimizer.last_step
    assert training.optimizer.last_step.count == OVERFLOWS.count(False)


@by(SCALABLE)
def test_device_decision_does_not_synchronize(make):
    training = scaled("cuda", make, 2, waiting_for_nothing)
    assert training.optimizer.last_step.count == OVERFLOWS.count(False)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "options",
    [
        {"clip_grad_norm": 0.5},
        {"clip_grad_norm": 0.5, "clip_grad_value": 0.2},
        {"ema_decay": 0.9},
        {"lookahead": 2},
        {"masters": True, "dtypes": (torch.bfloat16,)},
        {"state_dtype": torch.bfloat16},
    ],
    ids=str,
)
def test_device_skips_steps_with_options(options):
    make = partial(optim.AdamW, lr=0.1)
    expected_training, training = scaled("cpu", make, **options), scaled("cuda", make, **options)
    assert_same(training.written(), expected_training.written())
    assert training.optimizer.last_step == expected_training.optimizer.last_step
    scaled("cuda", make, 2, waiting_for_nothing, **options)


@pytest.mark.parametrize("norm_options", [{}, {"clip_grad_value": 0.2}], ids=str)
def test_device_skips_steps_of_rules_sharing_a_norm(norm_options):
    def make(groups, **options):
        return optim.SGD([groups[0], {**groups[1], "momentum": 0.9}], lr=0.1, **options)

    norm_options = {"clip_grad_norm": 0.5, "groups": 2, **norm_options}
    expected_training, training = (
        scaled("cpu", make, **norm_options),
        scaled("cuda", make, **norm_options),
    )
    assert_same(training.written(), expected_training.written())
    assert training.optimizer.last_step == expected_training.optimizer.last_step
    scaled("cuda", make, 2, waiting_for_nothing, **norm_options)


def test_repeated_rows_are_summed_before_clipping():
    def stepped(engine):
        table = torch.nn.Parameter(torch.arange(36.0).reshape(9, 4))
        with thalweg.engine(engine):
            optimizer = optim.SparseAdam([table], lr=0.1, clip_grad_norm=0.5)
            for step in range(3):
                indices, values = torch.tensor([[7, 2, 7]]), torch.arange(12.0).reshape(3, 4)
                table.grad = torch.sparse_coo_tensor(
                    indices, values + step, (9, 4), check_invariants=False
                )
                optimizer.step()
        return plain([table, optimizer.state[table]["exp_avg"]])

    assert_same(stepped("cuda"), stepped("cpu"))


def test_first_step_is_decided_on_the_host():
    """No state is made for a step that is left out, as in torch."""
    with thalweg.engine("cuda"):
        training = Training(partial(optim.Adam, fused_unscale=True))
        training.step(True)
        assert not training.optimizer.state
        assert not training.optimizer.last_step.taken
        training.step(False)
        training.step(True)
    assert training.optimizer.last_step == (False, FOUND_INF, 1, None, None)


def test_steps_with_and_without_scaler_alternate():
    """With fused=True the host knows the numbers of steps while no device decides on one."""

    def stepped(engine):
        with thalweg.engine(engine):
            training = Training(partial(optim.AdamW, lr=0.1, fused=True))
            for found_inf in (None, False, True, None, None, True, False, None):
                training.step(found_inf)
                for name in ("found_inf", "grad_scale"):
                    vars(training.optimizer).pop(name, None)  # as a scaler does
        return training

    expected_training, gpu_training = stepped("cpu"), stepped("cuda")
    assert_same(gpu_training.written(), expected_training.written())
    assert gpu_training.optimizer.last_step == expected_training.optimizer.last_step
    assert gpu_training.optimizer.last_step.count == 6


def test_device_skipped_sparse_step_changes_nothing():
    def stepped(engine):
        table = torch.nn.Parameter(torch.arange(36.0).reshape(9, 4))
        other_param = torch.nn.Parameter(torch.arange(4.0))
        with thalweg.engine(engine):
            optimizer = tensorflow.Adam([table, other_param], lr=0.1, fused_unscale=True)
            for found_inf in OVERFLOWS:
                indices, values = torch.tensor([[7, 2, 7]]), torch.arange(12.0).reshape(3, 4)
                table.grad = torch.sparse_coo_tensor(
                    indices, values, (9, 4), check_invariants=False
                )
                other_param.grad = torch.ones(4)
                optimizer.found_inf = torch.tensor([float(found_inf)])
                optimizer.grad_scale = torch.tensor(4.0)
                optimizer.step()
        return plain([table, other_param, *optimizer.state[table].values()])

    assert_same(stepped("cuda"), stepped("cpu"))


def test_torch_grad_scaler_skips_steps():
    def stepped(engine):
        with thalweg.engine(engine):
            training = Training(partial(optim.AdamW, lr=0.1, fused_unscale=True))
            scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
            scaler.scale(torch.ones(()))
            for number in range(6):
                training.give_gradients()
                if number == 3:
                    training.params[0].grad[0, 0] = float("inf")
                scaler.step(training.optimizer)
                scaler.update()
        return training, scaler

    (cpu_training, cpu_scaler), (gpu_training, gpu_scaler) = stepped("cpu"), stepped("cuda")
    assert_same(gpu_training.written(), cpu_training.written())
    assert gpu_scaler.state_dict() == cpu_scaler.state_dict()
    assert gpu_training.optimizer.last_step.count == 5


def test_fast_kernels_equal_exact_ones_in_the_interpreter():
    """It contracts nothing, and divides exactly: all that differs there is when denormals go."""
    make = partial(optim.Adam, lr=0.1)
    with thalweg.engine(math="fast"):
        actual = trained("cuda", make)
    assert_same(actual, trained("cuda", make))


NORMS = {  # beyond what float32 or float64 hold, their squares, and their factors
    torch.float32: (3e38, 1e20, 1e-40),
    torch.bfloat16: (3e38,),
    torch.float64: (1.7e308, 1e200, 1e-310),
}


@pytest.mark.parametrize(("make", "dtypes"), [
    (optim.SGD, [torch.float32]), (tensorflow.SGD, [torch.bfloat16]),
    (optim.SGD, [torch.float64]), (tensorflow.SGD, [*NORMS]),
], ids=str)  # fmt: skip
def test_extreme_norms_equal_the_cpu(make, dtypes):
    sizes = NORMS[dtypes[0]] if len(dtypes) == 1 else (3e38, 1.7e308)

    def stepped(engine, size, limit):
        params = [torch.nn.Parameter(torch.zeros(130, dtype=dtype)) for dtype in dtypes]
        optimizer = make(params, lr=1.0, clip_grad_norm=limit)
        for param in params:
            largest = min(size, torch.finfo(param.dtype).max)
            param.grad = torch.full(param.shape, largest, dtype=param.dtype)
            param.grad[0] = 0
        with thalweg.engine(engine):
            optimizer.step()
            waits = counting_and_waiting_for_nothing(optimizer, runs=True)
            with waits if engine == "cuda" else contextlib.nullcontext():
                optimizer.step()
        return [param.detach() for param in params], optimizer.last_step

    for size in sizes:
        for limit in (1.0, 1e10, 0.0):
            actual, expected = stepped("cuda", size, limit), stepped("cpu", size, limit)
            assert_same(actual[0], expected[0])
            assert actual[1] == expected[1]
