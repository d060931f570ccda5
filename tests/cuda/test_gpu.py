"""On a GPU: the bits of the engine for CPUs, streams, large and oddly placed memory."""

from __future__ import annotations

import contextlib
import gc
import warnings
from copy import deepcopy
from functools import partial

import numpy as np
import pytest
import torch

import modern_inputs
import rulebook
import thalweg
from loss_scaled import BACKOFF, LOG_MAX, MAKERS, fresh, trained
from matrix_inputs import MATRIX_CASES
from quantized_rules import encode_slots, encoded_case
from rulebook import DTYPES, FIRST, FLUSH, KEEP, Problem, assert_same, by_rule, label, sparse, take
from test_lines import FULL, after, numbers, without_payload
from test_lines import SHAPES as LINE_SHAPES
from thalweg import IndexedSlices, optim
from thalweg._base.scatter import scatter
from thalweg._engines import Dispatcher
from thalweg._engines.codecs import OF_SLOTS
from thalweg._engines.protocol import PEAKS, Columns, Reduction, StepRequest, as_array
from thalweg._engines.random_bits import scalars_of
from thalweg.formula import gradient_squares, variable_squares
from thalweg.keras.optimizers import Adam
from thalweg.optim import tensorflow
from thalweg.optim.diagnostics import COLUMNS
from thalweg.v1.train import AdamOptimizer, experimental

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
# Powers of float64 may differ in the last place from the C library's.
EXACT = [case for case in FIRST if case.rule.name != "FtrlPower"]
ADAM = next(case for case in FIRST if case.rule.name == "Adam")
SELECTIONS = [KEEP, FLUSH]
BY_SELECTION = pytest.mark.parametrize("selection", SELECTIONS, ids=["keep", "flush"])
SHAPES = [(0,), (), (5, 7), (4096,), (2 * 4096 + 5,)]


def there(problem):
    gradients = [
        IndexedSlices(gradient.values.cuda(), gradient.indices.cuda(), gradient.dense_shape)
        if isinstance(gradient, IndexedSlices)
        else gradient.cuda()
        for gradient in problem.gradients
    ]
    slots = [[slot.cuda() for slot in row] for row in problem.slots]
    return Problem([var.cuda() for var in problem.variables], slots, gradients)


def assert_equal_cpu(case, problem, selection, **keywords):
    device = there(problem)
    take(case, problem, selection, **keywords)
    take(case, device, selection._replace(name="cuda"), **keywords)
    assert_same([tensor.cpu() for tensor in device.written()], problem.written())


@by_rule(EXACT)
@BY_SELECTION
def test_every_rule_and_dtype_equals_the_cpu(case, selection):
    shapes = [shape for shape in SHAPES for _ in DTYPES]
    problem = Problem.make(case.row, shapes, [*DTYPES] * len(SHAPES), 1)
    assert_equal_cpu(case, problem, selection, steps=2)


@by_rule(EXACT)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=label)
def test_sparse_steps_equal_the_cpu(case, dtype):
    problem = Problem.make(case.row, [(9, 5)], [dtype], 2)
    indices = [7, 2, 7, 0, 8, 7, 2]
    rows = rulebook.values((len(indices), 5), dtype, np.random.default_rng(3))
    problem.gradients = [sparse(rows, indices, problem.variables[0])]
    assert_equal_cpu(case, problem, FLUSH, steps=2)


@pytest.mark.parametrize("from_copies", [False, True])
@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16], ids=label)
def test_master_copies_equal_the_cpu(kind, from_copies):
    problem = Problem.make(ADAM.row, [(4099,), (3, 5)], [torch.float32] * 2, 4)
    device = there(problem)
    copies = [var.to(kind) for var in problem.variables]
    for copy in copies:
        copy.view(-1)[::3] = 3.0
    device_copies = [copy.cuda() for copy in copies]
    options = {"from_copies": from_copies}
    take(ADAM, problem, FLUSH, copies=copies, **options)
    take(ADAM, device, FLUSH._replace(name="cuda"), copies=device_copies, **options)
    results = [tensor.cpu() for tensor in (*device.written(), *device_copies)]
    assert_same(results, [*problem.written(), *copies])


@pytest.mark.parametrize("dtype", DTYPES, ids=label)
def test_measures_equal_the_cpu(dtype):
    problem = Problem.make(ADAM.row, [(65_536 + 1025,), (7,), (0,)], [dtype] * 3, 3)
    formulas, results = (variable_squares, gradient_squares), []
    for name, device_problem in (("cpu", problem), ("cuda", there(problem))):
        request = StepRequest(
            ADAM.rule, (), device_problem.variables, device_problem.gradients, device_problem.slots,
            ["a", "b", "c"], FLUSH._replace(name=name),
        )  # fmt: skip
        ready, columns = (
            Dispatcher().plan_step(request),
            Columns({np.float32: {}, np.float64: {}}, {}),
        )
        reductions = Reduction("sums", formulas), Reduction("leaves", formulas), PEAKS
        sums, leaves, peaks = (ready.reduce(reduction, columns) for reduction in reductions)
        results.append([torch.from_numpy(as_array(x)) for x in (sums, *leaves, peaks)])
    assert_same(*results)


def test_unaligned_memory_equals_the_cpu():
    problem = Problem.make(ADAM.row, [(4099,)], [torch.float32], 5)
    device = there(problem)
    device.variables = [torch.empty(4100, device="cuda")[1:].copy_(device.variables[0])]
    take(ADAM, problem, FLUSH)
    take(ADAM, device, FLUSH._replace(name="cuda"))
    assert_same([tensor.cpu() for tensor in device.written()], problem.written())


def test_steps_on_several_streams():
    problems = [Problem.make(ADAM.row, [(100_000,)], [torch.float32], seed) for seed in range(4)]
    devices = [there(problem) for problem in problems]
    torch.cuda.synchronize()
    for device in devices:
        with torch.cuda.stream(torch.cuda.Stream()):
            take(ADAM, device, FLUSH._replace(name="cuda"), steps=5)
    torch.cuda.synchronize()
    for problem, device in zip(problems, devices, strict=True):
        take(ADAM, problem, FLUSH, steps=5)
        assert_same([tensor.cpu() for tensor in device.written()], problem.written())


@pytest.mark.slow
def test_tensors_beyond_31_bit_indices_are_updated():
    case = next(candidate for candidate in FIRST if candidate.rule.name == "SGD")
    count, size = 2**31 + 64, 100_000
    var = torch.ones(count, device="cuda", dtype=torch.bfloat16)
    grad = torch.full_like(var, 0.5)
    expected = Problem([torch.ones(size).bfloat16()], [[]], [torch.full((size,), 0.5).bfloat16()])
    take(case, Problem([var], [[]], [grad]), FLUSH._replace(name="cuda"))
    take(case, expected, FLUSH)
    assert_same([var[:size].cpu(), var[-size:].cpu()], expected.variables * 2)


OPTIMIZERS = {
    "Adam": partial(optim.Adam, lr=0.1, weight_decay=0.1),
    "AMSGrad": partial(optim.Adam, lr=0.1, amsgrad=True),
    "AdamW": partial(optim.AdamW, lr=0.1),
    "SGD": partial(optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
    "RMSprop": partial(optim.RMSprop, lr=0.1, centered=True, momentum=0.9),
    "Adagrad": partial(optim.Adagrad, lr=0.1, lr_decay=0.1),
    "Adadelta": partial(optim.Adadelta, lr=0.1),
    "Adamax": partial(optim.Adamax, lr=0.1),
    "NAdam": partial(optim.NAdam, lr=0.1),
    "RAdam": partial(optim.RAdam, lr=0.1),
    "ASGD": partial(optim.ASGD, lr=0.1, t0=2),
    "Rprop": partial(optim.Rprop, lr=0.1),
    "tensorflow Adam": partial(tensorflow.Adam, lr=0.1),
    "tensorflow Nadam": partial(tensorflow.Nadam, lr=0.1),
    "tensorflow Ftrl": partial(tensorflow.Ftrl, lr=0.1),
}
NOT_CAPTURABLE = {"SGD", "Adagrad"}  # in torch
CAPTURABLE = {name: make for name, make in OPTIMIZERS.items() if name not in NOT_CAPTURABLE}


def by(table):
    return pytest.mark.parametrize("make", table.values(), ids=list(table))


@contextlib.contextmanager
def no_waiting():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that not all that waits is found
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


class Training:
    """An optimizer over parameters on a device; all devices see the same numbers."""

    def __init__(self, make, device="cuda", dtypes=(torch.float32,), **options):
        self.generator = torch.Generator().manual_seed(0)
        self.params = [
            torch.nn.Parameter(self.random(shape).to(device, dtype))
            for dtype in dtypes
            for shape in ((300, 70), (), (9,))
        ]
        self.optimizer = make(self.params, **options)

    def random(self, shape):
        return torch.randn(shape, generator=self.generator)

    def give_gradients(self):
        for param in self.params:
            grad = self.random(param.shape).to(param.device, param.dtype)
            if param.grad is None:
                param.grad = grad
            else:
                param.grad.copy_(grad)

    def step(self):
        self.give_gradients()
        self.optimizer.step()

    def written(self):
        state = self.optimizer.state
        state_values = [value for param in self.params for value in state[param].values()]
        return [tensor.detach().cpu().double() for tensor in (*self.params, *state_values)]


def assert_near(actual, expected, rtol=1e-5, atol=1e-6):
    """Powers of float64 leave their traces in the last places of float32, if any."""
    for actual_tensor, expected_tensor in zip(actual, expected, strict=True):
        torch.testing.assert_close(actual_tensor, expected_tensor, rtol=rtol, atol=atol)


@by(OPTIMIZERS)
def test_torch_style_optimizers_equal_the_cpu(make):
    dtypes = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
    training, on_cpu = Training(make, dtypes=dtypes), Training(make, "cpu", dtypes)
    for _ in range(8):
        training.step()
        on_cpu.step()
    assert_same(training.written(), on_cpu.written())
    steps = [training.optimizer.state[param].get("step") for param in training.params]
    assert all(step is None or step.device.type == "cpu" for step in steps)


@by(OPTIMIZERS)
def test_replayed_step_does_not_synchronize(make):
    training = Training(make)
    for _ in range(3):
        training.step()
    with no_waiting():
        for _ in range(3):
            training.optimizer.step()


@by(OPTIMIZERS)
def test_grad_scaler_does_not_synchronize(make):
    def trained(device, waits=contextlib.nullcontext):
        training = Training(make, device, fused_unscale=True)
        scaler = torch.amp.GradScaler(device, init_scale=8.0, growth_interval=2)
        scaler.scale(torch.ones((), device=device))
        for number in range(6):
            training.give_gradients()
            if number in (2, 3):
                training.params[0].grad[0, 0] = float("inf")
            with waits() if number else contextlib.nullcontext():
                scaler.step(training.optimizer)
                scaler.update()
        return training, scaler

    (on_gpu, gpu_scaler), (on_cpu, cpu_scaler) = (trained("cuda", no_waiting), trained("cpu"))
    assert_near(on_gpu.written(), on_cpu.written())
    assert gpu_scaler.state_dict() == cpu_scaler.state_dict()
    assert on_gpu.optimizer.last_step.count == on_cpu.optimizer.last_step.count == 4
    assert on_gpu.optimizer.last_step.taken


@pytest.mark.parametrize("key", MAKERS)
@pytest.mark.parametrize("scaling", [BACKOFF, LOG_MAX], ids=["Backoff", "LogMax"])
def test_loss_scaler_skips_steps_on_the_device(key, scaling):
    training = trained("auto", partial(fresh(key, scaling), device="cuda"), lambda _: no_waiting())
    on_cpu = trained("cpu", fresh(key, scaling))
    assert all(tensor.is_cuda for tensor in training.there())
    assert list(map(bool, training.outcomes)) == on_cpu.outcomes
    if scaling is BACKOFF:
        assert_same(training.written(), on_cpu.written())
    else:
        assert_near(training.written(), on_cpu.written())


def test_dynamic_loss_scale_skips_steps_on_the_device():
    def trained(device, waits=contextlib.nullcontext):
        var = torch.ones(300, device=device, requires_grad=True)
        step = thalweg.Variable(0, dtype=torch.int64, trainable=False)
        optimizer = experimental.MixedPrecisionLossScaleOptimizer(
            AdamOptimizer(0.1), experimental.DynamicLossScale(8.0, 2, 3.0)
        )
        for number in range(8):
            grad = torch.full((300,), float("inf") if number in (1, 4) else 0.5, device=device)
            with waits() if number > 1 else contextlib.nullcontext():
                optimizer.apply_gradients([(grad, var)], step)
        return [tensor.detach().cpu().double() for tensor in (var, step, *optimizer.variables())]

    assert_same(trained("cuda", no_waiting), trained("cpu"))


def captured(eager, training):
    """The graph of a step of a training, after two that both have taken on another stream."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            eager.step()
            training.step()
    torch.cuda.current_stream().wait_stream(stream)
    # Torch leaves that to others since 2.9. Pinned memory of an earlier graph, freed while this one
    # is captured, is what may have failed a later allocation once.
    gc.collect()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        training.optimizer.step()
    return graph


@by(CAPTURABLE)
@pytest.mark.parametrize("clip", [None, 0.5])
def test_cuda_graph_replays_equal_steps(make, clip):
    rate = torch.tensor(0.1, device="cuda")
    options = {"capturable": True, "lr": rate, "clip_grad_norm": clip}
    eager, training = Training(make, **options), Training(make, **options)
    graph = captured(eager, training)
    for _ in range(4):
        rate.mul_(0.5)
        eager.step()
        training.give_gradients()
        graph.replay()
    assert_same(training.written(), eager.written())
    # Another step outside of the graph has tables of its own.
    for twin in (eager, training):
        twin.optimizer.zero_grad()
        twin.step()
    assert_same(training.written(), eager.written())


@by(CAPTURABLE)
def test_device_counted_steps_equal_the_cpu(make):
    training, on_cpu = Training(make, capturable=True), Training(make, "cpu")
    for _ in range(8):
        training.step()
        on_cpu.step()
    assert_near(training.written(), on_cpu.written())
    steps = [training.optimizer.state[param]["step"] for param in training.params]
    assert all(step.device.type == "cuda" for step in steps)


def test_host_counted_steps_with_device_scalars_equal_the_cpu():
    training = Training(partial(optim.Adam, lr=0.1, fused=True))
    for _ in range(3):
        training.step()
    with no_waiting():
        for _ in range(3):
            training.optimizer.step()
    assert all(training.optimizer.state[param]["step"].is_cuda for param in training.params)


def test_torch_state_resumes_on_the_device():
    reference = Training(partial(torch.optim.Adam, lr=0.1, fused=True))
    reference.step()
    training = Training(partial(optim.Adam, lr=0.1, fused=True))
    training.step()
    training.optimizer.load_state_dict(deepcopy(reference.optimizer.state_dict()))
    with torch.no_grad():
        for param, torch_param in zip(training.params, reference.params, strict=True):
            param.copy_(torch_param)
    for _ in range(3):
        training.step()
        reference.step()
    assert_near(
        training.written(), reference.written(), atol=1e-5
    )  # a rate of 0.1; torch rounds elsewhere
    assert list(training.optimizer.state[training.params[0]]) == list(
        reference.optimizer.state[reference.params[0]]
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=label)
def test_fast_kernels_are_close_to_exact_kernels(dtype):
    training, on_cpu = (Training(OPTIMIZERS["AdamW"], dtypes=(dtype,)) for _ in range(2))
    for _ in range(3):
        with thalweg.engine(math="fast"):
            training.step()
        on_cpu.step()
    last_place = 2**-7 if dtype is torch.bfloat16 else 1e-6  # what the last place is worth, at most
    assert_near(training.written(), on_cpu.written(), rtol=max(2 * last_place, 1e-5), atol=1e-6)


@pytest.mark.parametrize("name", ["ema_decay", "masters", "state_dtype", "gradients", "accumulate"])
def test_step_options_equal_the_cpu(name):
    value = {"ema_decay": 0.9, "masters": True, "state_dtype": torch.bfloat16,
             "gradients": "flat", "accumulate": 2}[name]  # fmt: skip
    make, dtypes = partial(optim.AdamW, lr=0.1, **{name: value}), (torch.float32, torch.bfloat16)
    training, on_cpu = Training(make, dtypes=dtypes), Training(make, "cpu", dtypes)
    for _ in range(4):
        training.step()
        on_cpu.step()
    assert_same([param.detach().cpu() for param in training.params], on_cpu.params)


@by(OPTIMIZERS)
def test_diagnostics_equal_the_cpu(make):
    dtypes = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
    tables = []
    for device in ("cuda", "cpu"):
        training = Training(partial(make, diagnostics=2), device, dtypes)
        for _ in range(4):
            training.step()
        tables.append(training.optimizer.diagnostics.records)
    for column in COLUMNS:
        assert_same(*([torch.tensor(table[column])] for table in tables))


@by(OPTIMIZERS)
def test_unmeasured_step_does_not_synchronize(make):
    training = Training(partial(make, diagnostics=4))
    for _ in range(4):
        training.step()
    with no_waiting():
        for _ in range(3):
            training.optimizer.step()


@by(OPTIMIZERS)
@pytest.mark.parametrize("clip", [None, 0.5])
def test_offloaded_state_equals_device_state(make, clip, monkeypatch):
    monkeypatch.setattr("thalweg._engines.offload.RUN", 1000)
    training = Training(make, state_device="cpu", clip_grad_norm=clip)
    on_cpu = Training(make, "cpu", clip_grad_norm=clip)
    for _ in range(3):
        training.step()
        on_cpu.step()
    assert_same(training.written(), on_cpu.written())
    states = training.optimizer.state.values()
    assert {tensor.device.type for slots in states for tensor in slots.values()} == {"cpu"}


def test_sparse_step_does_not_synchronize():
    var = torch.randn(9, 4, device="cuda", requires_grad=True)
    optimizer = Adam(0.1)
    indices = torch.tensor([7, 2, 7], device="cuda")
    for number in range(4):
        grad = IndexedSlices(torch.randn(3, 4, device="cuda"), indices, (9, 4))
        with no_waiting() if number > 1 else contextlib.nullcontext():
            optimizer.apply_gradients([(grad, var)])


def test_scattered_rows_have_their_last_value():
    rows, values = torch.randint(0, 64, (1 << 16,)), torch.arange(float(1 << 16))
    tensors = [torch.zeros(64), torch.zeros(64, device="cuda")]
    for tensor in tensors:
        scatter(tensor, rows, values, "update")
    assert torch.equal(tensors[1].cpu(), tensors[0])


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_one_optimizer_steps_on_several_devices():
    def trained(devices):
        params = [torch.nn.Parameter(torch.ones(5000, device=device)) for device in devices]
        optimizer = optim.Adam(params, lr=0.1)
        for _ in range(3):
            for param in params:
                param.grad = torch.full_like(param, 0.5)
            optimizer.step()
        return [param.detach().cpu() for param in params]

    assert_same(trained(["cuda:0", "cuda:1", "cpu"]), trained(["cpu"] * 3))


def test_kernel_launch_uses_c_calls():
    problem = there(Problem.make(ADAM.row, [(4099,)], [torch.float32], 6))
    request = StepRequest(
        ADAM.rule, (), problem.variables, problem.gradients, problem.slots, ["a"],
        FLUSH._replace(name="cuda"),
    )  # fmt: skip
    ready = Dispatcher().plan_step(request)
    shared = {np.float32: ADAM.scalars(np.float32)}
    (only_round,) = ready.make_rounds(Columns(shared, {}))
    functions = [getattr(call, "func", call) for call in only_round.calls]
    assert len(functions) == 4  # the context, the kernel, the context, the version counters
    assert not [function for function in functions if hasattr(function, "__code__")]


def moved(cls, params, case, device, lr):
    copies = [param.detach().clone().to(device).requires_grad_() for param in params]
    optimizer = cls(copies)
    for step in range(10):
        gradients = case(step, torch.float32)
        for param, grad in zip(copies, gradients, strict=True):
            param.grad = grad.to(device)
        for group in optimizer.param_groups:
            group["lr"] = lr * (1 - step / 20)
        optimizer.step()
    return [tensor.detach().cpu() for tensor in copies]


@pytest.mark.parametrize("case", modern_inputs.CASES, ids=lambda case: case.name)
def test_modern_rules_equal_the_cpu(case):
    def make(params):
        return getattr(optim, case.cls)(params, **case.arguments(0.1, for_own_class=True))

    params = modern_inputs.params_of(torch.float32)
    results = [moved(make, params, modern_inputs.gradients_of, device, case.lr)
             for device in ("cpu", "cuda")]  # fmt: skip
    assert_same(*results)


@pytest.mark.parametrize("case", MATRIX_CASES, ids=lambda case: case.name)
def test_matrix_rules_are_close_to_the_cpu(case):
    """Products are in bfloat16 here, and those of SOAP's bases in float32."""

    def make(params):
        return getattr(optim, case.cls)(params, **case.arguments(0.1, for_own_class=True))

    params = case.params_of(torch.float32)
    cpu, gpu = (moved(make, params, case.gradients_of, name, case.lr) for name in ("cpu", "cuda"))
    for start, cpu_param, moved_param in zip(params, cpu, gpu, strict=True):
        assert (cpu_param - moved_param).norm() <= 5e-2 * (cpu_param - start.detach()).norm()


# Numbers of 16 bits that random bits round, slots in 8 bits, split weights

NOISY = {"round": "stochastic", "seed": 7**15}
BYTES, SPLIT = {"state_storage": "8bit"}, {"weights": "split"}
NARROW = [
    NOISY,
    {**NOISY, "masters": True, "state_dtype": torch.float16},
    BYTES,
    {"state_storage": "dynamic8"},
    {**BYTES, **NOISY, "clip_grad_norm": 0.5},
    SPLIT,
    {**SPLIT, **BYTES, **NOISY},
]
by_narrow = pytest.mark.parametrize("options", NARROW, ids=str)


def narrow(device, options, make=optim.AdamW):
    return Training(partial(make, lr=0.1, **options), device, (torch.bfloat16,))


@pytest.mark.parametrize("make", [optim.AdamW, tensorflow.Adam], ids=["torch", "TensorFlow"])
@by_narrow
def test_low_precision_state_equals_the_cpu(options, make):
    training, on_cpu = narrow("cuda", options, make), narrow("cpu", options, make)
    for _ in range(6):
        training.step()
        on_cpu.step()
    assert_same(training.written(), on_cpu.written())


@by_narrow
def test_low_precision_replay_does_not_synchronize(options):
    training = narrow("cuda", options)
    for _ in range(3):
        training.step()
    with no_waiting():
        for _ in range(3):
            training.optimizer.step()


@by_narrow
def test_low_precision_cuda_graph_replays_equal_steps(options):
    """Bits are drawn anew in each, by the number of a step that the device counts."""
    eager, training = (narrow("cuda", {**options, "capturable": True}) for _ in range(2))
    graph = captured(eager, training)
    for _ in range(4):
        eager.step()
        training.give_gradients()
        graph.replay()
    assert_same(training.written(), eager.written())


@by_narrow
def test_low_precision_state_moves_to_the_cpu_and_back(options):
    on_gpu, on_cpu = narrow("cuda", options), narrow("cpu", options)
    for training in (on_gpu, on_cpu):
        training.step()
        training.step()
    state = deepcopy(on_gpu.optimizer.state_dict())
    on_gpu.optimizer.load_state_dict(deepcopy(on_cpu.optimizer.state_dict()))
    on_cpu.optimizer.load_state_dict(state)
    for training in (on_gpu, on_cpu):
        training.step()
    assert_same(on_gpu.written(), on_cpu.written())
    assert {x.device.type for slots in on_gpu.optimizer.state.values()
            for name, x in slots.items() if name != "step"} == {"cuda"}  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES[::3], ids=label)
@pytest.mark.parametrize("name", OF_SLOTS)
@BY_SELECTION
def test_codecs_equal_the_cpu(name, dtype, selection):
    encoded = encoded_case(ADAM, name)
    shapes = [(2 * 4096 + 5,), (4096,), (33,)]
    problem = Problem.make(encoded.row, shapes, [dtype] * 3, 7, special=0.01)
    problem.slots = [[slot.float() for slot in slots] for slots in problem.slots]
    problem = encode_slots(encoded, problem)
    device = there(problem)
    take(encoded, problem, selection, steps=2)
    take(encoded, device, selection._replace(name="cuda"), steps=2)
    actual, expected = ([x.cpu() for x in source.written()] for source in (device, problem))
    assert_same(*([x.short() if x.dtype == torch.uint8 else x for x in tensors]
                  for tensors in (actual, expected)))  # fmt: skip


def drawn_step(rule, variables, gradients, slots, places, name="auto"):
    """A step in which numbers are drawn for variables that begin somewhere in whole ones."""
    request = StepRequest(
        rule, (), variables, gradients, slots, [f"w{k}" for k in range(len(variables))],
        FLUSH._replace(name=name), places=places,
    )  # fmt: skip
    ready = Dispatcher().plan_step(request)
    scalars = ADAM.scalars(np.float32) | scalars_of(7**15, 5)
    for step_round in ready.make_rounds(Columns({np.float32: scalars}, {})):
        for call in step_round.calls:
            call()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=label)
def test_random_bits_equal_the_cpu_at_any_offset(dtype):
    places = [(0, 0), ((1 << 32) - 1, 5), (2, 4099), (3, (1 << 35) - 1027)]
    problem = Problem.make(ADAM.row, [(4096 + 1029,)] * 4, [dtype] * 4, 8, special=0.2)
    device = there(problem)
    for name, placed in (("cpu", problem), ("cuda", device)):
        drawn_step(ADAM.rule, placed.variables, placed.gradients, placed.slots, places, name)
    assert_same([tensor.cpu() for tensor in device.written()], problem.written())


def test_tensors_beyond_32_bit_indices_draw_bits():
    """The last ones are those of a variable of their own that begins there in a whole one."""
    if torch.cuda.get_device_properties(0).total_memory < 30 << 30:
        pytest.skip("needs 30 GB")
    encoded, begin, count = encoded_case(ADAM, "softsign8"), 1 << 31, 4096 + 77
    padded = torch.zeros(begin + count, dtype=torch.bfloat16, device="cuda")
    grad = torch.zeros_like(padded)
    problem = Problem.make(encoded.row, [(count,)], [torch.bfloat16], 9)
    problem.slots = [[slot.float() for slot in slots] for slots in problem.slots]
    part = there(encode_slots(encoded, problem))
    padded[begin:], grad[begin:] = part.variables[0], part.gradients[0]
    slots = []
    for slot in part.slots[0]:
        slots.append(torch.zeros(begin // 32 * 36 + slot.numel(), dtype=torch.uint8, device="cuda"))
        slots[-1][begin // 32 * 36 :] = slot
    drawn_step(encoded.rule, [padded], [grad], [slots], [(1, 0)])
    drawn_step(encoded.rule, part.variables, part.gradients, part.slots, [(1, begin)])
    assert torch.equal(padded[begin:], part.variables[0])
    for slot, expected_slot in zip(slots, part.slots[0], strict=True):
        assert torch.equal(slot[-expected_slot.numel() :], expected_slot)
    assert not padded[:begin].any()


# Measures of rows and columns

LINES = [{}, {"dtype": torch.bfloat16, **NOISY}, {"clip_grad_norm": 0.5}, {"masters": True}]


class Matrices(Training):
    """Training over matrices, one of which has several tiles down and across."""

    shapes = ((130, 2100), (9, 31), (7,), (6, 5, 3, 3))

    def __init__(self, make, device, dtype=torch.float32, **options):
        super().__init__(lambda params: None, device)
        self.params = [torch.nn.Parameter(self.random(x).to(device, dtype)) for x in self.shapes]
        self.optimizer = make(self.params, lr=0.1, **options)


# Torch divides by no number of the host on a GPU: with d=1.7 that would have other bits.
OF_LINES = {"SM3": partial(optim.SM3, momentum=0.9), "Adafactor": partial(optim.Adafactor, d=1.7)}
by_lines = by(OF_LINES)


@by_lines
@pytest.mark.parametrize("options", LINES, ids=str)
def test_row_and_column_rules_equal_the_cpu(options, make):
    training, on_cpu = (Matrices(make, "cuda", **options), Matrices(make, "cpu", **options))
    for _ in range(4):
        training.step()
        on_cpu.step()
    assert_same(training.written(), on_cpu.written())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=label)
def test_row_and_column_measures_equal_the_cpu(dtype):
    shapes = (*LINE_SHAPES, (9, 40), (2, 8, 8))
    params = [numbers(shape, 1).to(dtype) for shape in shapes]
    grads = [[numbers(shape, 2).to(dtype) for shape in shapes]] * 2
    expected = after(FULL, "cpu", params, grads)
    device_params, gradients = ([x.cuda() for x in tensors] for tensors in (params, grads[0]))
    actual = after(FULL, "cuda", device_params, [gradients] * 2)
    assert_same([tensor.cpu() for tensor in actual], expected)


@pytest.mark.parametrize("position", [float("nan"), float("inf"), -0.0, 1e-310])
def test_odd_row_and_column_counts_equal_the_cpu(position):
    shapes = ((5, 6), (9, 40), (3, 130), (3, 1029))
    params = [numbers(shape, 1) for shape in shapes]
    grads = [numbers(shape, 2) for shape in shapes]
    for grad in grads:
        grad[1, 2] = position
        grad[0] = position
    expected = after(FULL, "cpu", params, [grads])
    device_params = [x.cuda() for x in params]
    actual = after(FULL, "cuda", device_params, [[x.cuda() for x in grads]])
    assert_same(*(without_payload([x.cpu() for x in tensors]) for tensors in (actual, expected)))


@by_lines
def test_row_and_column_replay_does_not_synchronize(make):
    training = Matrices(make, "cuda")
    for _ in range(3):
        training.step()
    with no_waiting():
        for _ in range(3):
            training.optimizer.step()
