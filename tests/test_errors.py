"""Every error of a step: its classes and first line; no variable and no slot changes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import thalweg
from bit_comparison import assert_same
from keras_table import assert_same_bits, both_engines, snapshot, train
from thalweg.errors import (
    CheckpointMismatchError,
    InvalidArgumentError,
    InvalidTypeError,
    LayoutError,
    ThalwegError,
)
from thalweg.keras.optimizers import SGD, Adagrad, Adam, Ftrl, Optimizer, RMSprop
from thalweg.v1 import train as v1

W, B, EMB = "w:0", "b:0", "emb:0"


def variables() -> dict[str, Any]:
    return {
        W: thalweg.Variable([1.0, 2.0], "w"),
        B: thalweg.Variable([1.0], "b"),
        EMB: thalweg.Variable(np.ones((4, 2), "f4"), "emb"),
    }


def slices(rows: Any, shape: Any = None, width: int = 2, dtype: Any = None) -> Any:
    indices = torch.as_tensor(rows, dtype=dtype)
    return thalweg.IndexedSlices(torch.ones(indices.numel(), width), indices, shape)


def zero_stride(shape: tuple[int, ...] = (4,)) -> torch.Tensor:
    return torch.zeros(1).expand(shape).requires_grad_()


def leaf(tensor: Tensor) -> torch.Tensor:
    return torch.nn.Parameter(tensor, requires_grad=False)


@dataclass(frozen=True)
class Refusal:
    """A pair that raises, passed after a valid one."""

    title: str
    variable: Any  # a name among `variables()`, or a callable that makes one
    gradient: Any
    classes: tuple[type[BaseException], ...]
    message: str
    optimizer: Any = Adam


STANDARD = (InvalidArgumentError, ValueError, IndexError, RuntimeError)
TYPE = (InvalidTypeError, TypeError, ValueError)

REFUSALS = [
    Refusal(
        "shape",
        W,
        torch.ones(3),
        STANDARD,
        r"Gradient of 'w:0' has shape \(3,\) but the variable has shape \(2,\)\.",
    ),
    Refusal("scalar for a vector", W, 1.0, STANDARD, r"has shape \(\) but .* \(2,\)"),
    Refusal("broadcastable", W, torch.ones(1), STANDARD, r"has shape \(1,\) but .* \(2,\)"),
    Refusal("same size", EMB, torch.ones(2, 4), STANDARD, r"has shape \(2, 4\) but .* \(4, 2\)"),
    Refusal(
        "dtype",
        W,
        torch.ones(2, dtype=torch.float64),
        TYPE,
        r"Gradient of 'w:0' is float64 but the variable is float32\. Cast the gradient\.",
    ),
    Refusal(
        "array of doubles", W, np.ones(2), TYPE, "'w:0' is float64 but the variable is float32"
    ),
    Refusal("half", W, torch.ones(2).half(), TYPE, "'w:0' is float16 but the variable is float32"),
    Refusal("integers", W, torch.ones(2).long(), TYPE, "'w:0' is int64 but .* float32"),
    Refusal("text", W, "down", TYPE, "Gradient must be convertible to a Tensor"),
    Refusal("object", W, object(), TYPE, "Gradient must be convertible to a Tensor"),
    Refusal("ragged", W, [[1.0], [1.0, 2.0]], TYPE, "Gradient must be convertible to a Tensor"),
    Refusal(
        "index above, scatter rule",
        EMB,
        slices([0, 9]),
        STANDARD,
        r"indices\[1\] = 9 is not in \[0, 4\)",
    ),
    Refusal("index below, scatter rule", EMB, slices([-1]), STANDARD, r"indices\[0\] = -1 is not"),
    Refusal(
        "index above, fused rule",
        EMB,
        slices([0, 9]),
        STANDARD,
        "Index 9 at offset 1 in indices is out of range",
        Adagrad,
    ),
    Refusal("index below, fused rule", EMB, slices([-1]), STANDARD, "Index -1 at offset 0", Ftrl),
    Refusal("index of 2^31", EMB, slices([2**31]), STANDARD, r"indices\[0\] = 2147483648"),
    Refusal("index of -2^63", EMB, slices([-(2**63)]), STANDARD, r"= -9223372036854775808 is not"),
    Refusal("index of SGD", EMB, slices([4]), STANDARD, r"indices\[0\] = 4 is not in", SGD),
    Refusal("row width", EMB, slices([1], width=3), STANDARD, r"rows of shape \(3,\)"),
    Refusal(
        "torch sparse of another shape",
        EMB,
        torch.sparse_coo_tensor([[1]], torch.ones(1, 2), (5, 2), check_invariants=True),
        STANDARD,
        r"has shape \(5, 2\)",
    ),
    Refusal(
        "meta gradient",
        W,
        torch.ones(2, device="meta"),
        STANDARD,
        r"'w:0' is on cpu, its gradient on meta\.",
    ),
    Refusal(
        "meta variable",
        lambda: leaf(torch.ones(2, device="meta")),
        torch.ones(2),
        STANDARD,
        "is on meta",
    ),
    *(
        Refusal(
            str(dtype),
            lambda dtype=dtype: leaf(torch.ones(2).to(dtype)),
            torch.ones(2).to(dtype),
            TYPE,
            rf"Invalid type {dtype} for Variable:0, expected: \[float32, float64, float16",
        )
        for dtype in (
            torch.int8,
            torch.uint8,
            torch.int16,
            torch.uint16,
            torch.int32,
            torch.uint32,
            torch.int64,
            torch.uint64,
            torch.bool,
            torch.float8_e4m3fn,
            torch.float8_e5m2,
        )
    ),
    *(
        Refusal(
            str(dtype),
            lambda dtype=dtype: leaf(torch.ones(2).to(dtype)),
            torch.ones(2).to(dtype),
            TYPE,
            # The one of tf.train, the other of Keras, where other rules than Ftrl are defined.
            rf"Invalid type {dtype} for Variable:0, expected: \[float32, float64, float16"
            rf"|Ftrl is not defined for complex variables; 'Variable:0' is {str(dtype)[6:]}\.",
            Ftrl,
        )
        for dtype in (torch.complex64, torch.complex128)
    ),
    Refusal(
        "sparse variable",
        lambda: torch.eye(2).to_sparse().requires_grad_(),
        torch.ones(2, 2),
        (LayoutError, ValueError),
        "cannot update 'Variable:0' in place: its layout is torch.sparse_coo",
    ),
    Refusal(
        "csr variable",
        lambda: leaf(torch.eye(2).to_sparse_csr()),
        torch.ones(2, 2),
        (LayoutError, ValueError),
        "its layout is torch.sparse_csr",
    ),
    Refusal(
        "expanded variable",
        zero_stride,
        torch.ones(4),
        (LayoutError, ValueError),
        r"in place: its 4 elements share memory \(stride 0\)\. Call \.clone\(\) on it",
    ),
    Refusal(
        "overlapping variable",
        lambda: leaf(torch.zeros(4).as_strided((3, 2), (1, 1))),
        torch.ones(3, 2),
        (LayoutError, ValueError),
        r"its 6 elements share memory \(shape \(3, 2\), strides \(1, 1\)\)",
    ),
    Refusal(
        "tensor that is no variable",
        lambda: torch.ones(2),
        torch.ones(2),
        (NotImplementedError,),
        "Trying to update a Tensor",
    ),
    Refusal(
        "result of a computation",
        lambda: torch.ones(2, requires_grad=True) * 2,
        torch.ones(2),
        (NotImplementedError,),
        "Trying to update a Tensor",
    ),
    Refusal(
        "list as variable", lambda: [1.0], [1.0], TYPE, r"Expected a variable, received \[1\.0"
    ),
    Refusal("name as variable", lambda: "w", [1.0], TYPE, "Expected a variable, received 'w'"),
]
refusals = pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: refusal.title)


def pairs_of(refusal: Refusal, params: dict[str, Any]) -> list[tuple[Any, Any]]:
    name = refusal.variable
    good = [(torch.ones_like(var), var) for key, var in params.items() if key != name]
    return [*good, (refusal.gradient, params[name] if name in params else name())]


@both_engines
@refusals
@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_first_step_with_error_changes_nothing(refusal: Refusal, engine: str) -> None:
    opt, params = refusal.optimizer(), variables()
    opt.engine = engine
    initial = snapshot(opt, list(params.values()))
    with pytest.raises(refusal.classes[0], match=refusal.message) as raised:
        opt.apply_gradients(pairs_of(refusal, params))
    assert isinstance(raised.value, refusal.classes)
    assert all(isinstance(raised.value, cls) for cls in refusal.classes)
    assert_same_bits(snapshot(opt, list(params.values())), initial)
    assert opt.iterations.item() == 0


@pytest.mark.one_in(3)
@both_engines
@refusals
@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_later_step_with_error_changes_nothing(refusal: Refusal, engine: str) -> None:
    opt, params = refusal.optimizer(), variables()
    opt.engine = engine
    train(opt, list(params.values()), 2)
    initial = snapshot(opt, list(params.values()))
    with pytest.raises(refusal.classes[0], match=refusal.message):
        opt.apply_gradients(pairs_of(refusal, params))
    assert_same_bits(snapshot(opt, list(params.values())), initial)
    train(opt, list(params.values()), 1, first=3)
    assert opt.iterations.item() == 3


@pytest.mark.parametrize(
    "wrong", [3, None, [3], [(1.0,)], [("w", 1.0, 2.0)], "ab"], ids=lambda wrong: repr(wrong)
)
def test_malformed_pairs_raise(wrong: Any) -> None:
    opt = Adam()
    with pytest.raises(TypeError, match="grads_and_vars must"):
        opt.apply_gradients(wrong)
    assert opt.iterations.item() == 0


@both_engines
@pytest.mark.parametrize("is_trained", [False, True])
def test_overlapping_variables_raise(engine: str, is_trained: bool) -> None:
    data = torch.zeros(6)
    a, b = torch.nn.Parameter(data[:4]), torch.nn.Parameter(data[2:])
    opt = Adam()
    opt.engine = engine
    if is_trained:
        train(opt, [a], 1), train(opt, [b], 1)
    initial = snapshot(opt, [a, b])
    with pytest.raises(LayoutError, match="they share memory"):
        opt.apply_gradients([(torch.ones(4), a), (torch.ones(4), b)])
    assert_same_bits(snapshot(opt, [a, b]), initial)


V1 = {Adam: v1.AdamOptimizer, Adagrad: v1.AdagradOptimizer, Ftrl: v1.FtrlOptimizer}
V1[SGD] = v1.GradientDescentOptimizer


def bits_of(opt: Any, params: list[Any]) -> list[bytes]:
    tensors = [*params, *opt.variables()]
    return [tensor.detach().reshape(-1).view(torch.uint8).numpy().tobytes() for tensor in tensors]


@pytest.mark.one_in(3)
@both_engines
@pytest.mark.parametrize("steps", [0, 2])
@refusals
@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_tensorflow_1_step_with_error_changes_nothing(
    refusal: Refusal, steps: int, engine: str
) -> None:
    opt, params = V1[refusal.optimizer](0.1), variables()
    opt.engine = engine
    for _ in range(steps):
        opt.apply_gradients([(torch.ones_like(var), var) for var in params.values()])
    initial = bits_of(opt, list(params.values()))
    with pytest.raises(refusal.classes, match=refusal.message):
        opt.apply_gradients(pairs_of(refusal, params))
    assert bits_of(opt, list(params.values())) == initial


# Tensors that are none of this memory

NESTED = torch.strided, torch.jagged


def nested(layout: torch.layout) -> Any:
    rows = [torch.ones(2), torch.ones(3)]
    return torch.nested.nested_tensor(rows, layout=layout, requires_grad=True)


def quantised(dtype: torch.dtype) -> Any:
    return leaf(torch.quantize_per_tensor(torch.ones(2), 0.1, 0, dtype))


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Yield a mesh of this process alone."""
    distributed = pytest.importorskip("torch.distributed")
    if not distributed.is_available():
        pytest.skip("torch has no distributed package here")
    store = distributed.FileStore(str(tmp_path_factory.mktemp("group") / "store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield distributed.init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


def spread(mesh: Any) -> Any:
    from torch.distributed.tensor import Shard, distribute_tensor

    return leaf(distribute_tensor(torch.ones(4), mesh, [Shard(0)]))


# name -> variable, gradient, class, first line
FOREIGN: dict[str, tuple[Any, Any, type[BaseException], str]] = {
    **{
        f"nested, {layout}": (
            lambda mesh, layout=layout: nested(layout),
            torch.ones(5),
            LayoutError,
            "cannot update 'Variable:0' at index 3 in place: it is a nested tensor. Give its parts",
        )
        for layout in NESTED
    },
    **{
        str(dtype): (
            lambda mesh, dtype=dtype: quantised(dtype),
            torch.ones(2),
            InvalidTypeError,
            f"Invalid type {dtype} for Variable:0, expected: [float32, float64, float16, bfloat16]",
        )
        for dtype in (torch.qint8, torch.quint8, torch.qint32)
    },
}
FACES = {"keras": lambda: Adam(0.1), "v1": lambda: v1.AdamOptimizer(0.1)}


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("foreign", FOREIGN)
@pytest.mark.filterwarnings("ignore")
def test_non_variable_raises(foreign: str, face: str, steps: int, mesh: Any) -> None:
    make, gradient, error, message = FOREIGN[foreign]
    opt, params = FACES[face](), list(variables().values())
    good = [(torch.ones_like(var), var) for var in params]
    for _ in range(steps):
        opt.apply_gradients(good)
    state = opt.weights if face == "keras" else opt.variables()
    initial = [tensor.clone() for tensor in (*params, *state)]
    with pytest.raises(error, match=re.escape(message)):
        opt.apply_gradients([*good, (gradient, make(mesh))])
    final = [*params, *(opt.weights if face == "keras" else opt.variables())]
    assert len(final) == len(initial)
    assert_same(final, initial)


@pytest.mark.parametrize("face", FACES)
def test_distributed_gradient_raises(face: str, mesh: Any) -> None:
    opt, w = FACES[face](), thalweg.Variable(torch.ones(4), "w")
    with pytest.raises(LayoutError, match="The gradient of 'w:0' has no memory that holds its 4"):
        opt.apply_gradients([(spread(mesh), w)])
    assert w.tolist() == [1.0] * 4


@pytest.mark.parametrize(
    ("call", "classes", "message"),
    [
        (lambda: Ftrl(learning_rate_power=0.5), ValueError, r"learning_rate_power 0\.500000 needs"),
        (lambda: Adagrad(initial_accumulator_value=-1.0), ValueError, r"must be non-negative: -1"),
        (lambda: SGD(momentum=2.0), ValueError, r"`momentum` must be between \[0, 1\]"),
        (lambda: RMSprop(foo=1), TypeError, "Unexpected keyword argument"),
        (lambda: SGD(clipnorm=-1.0), ValueError, r"Expected clipnorm >= 0, received: -1\.0"),
        (lambda: thalweg.engine("gpu").__enter__(), ValueError, "engine must be one of"),
        (
            lambda: thalweg.engine(denormals="drop").__enter__(),
            ValueError,
            "denormals must be 'flush' or 'keep'",
        ),
        (lambda: Optimizer("o", foo=1), TypeError, "Unexpected keyword argument"),
    ],
    ids=["power", "accumulator", "momentum", "keyword", "negative", "engine", "denormals", "base"],
)
def test_invalid_arguments_raise(call: Any, classes: Any, message: str) -> None:
    with pytest.raises(classes, match=message):
        call()


@pytest.mark.parametrize(
    ("cls", "standard"),
    [
        (InvalidTypeError, (TypeError, ValueError)),
        (InvalidArgumentError, (ValueError, IndexError, RuntimeError)),
        (LayoutError, (ValueError,)),
        (thalweg.FailedPreconditionError, (RuntimeError,)),
        (thalweg.ReplicaMismatchError, (RuntimeError,)),
        (thalweg.RuleError, (ValueError,)),
        (CheckpointMismatchError, (ValueError,)),
    ],
)
def test_classes_are_also_the_standard_ones(cls: Any, standard: Any) -> None:
    assert issubclass(cls, ThalwegError)
    assert all(issubclass(cls, base) for base in standard)


@both_engines
def test_slow_layout_is_a_warning_once(engine: str) -> None:
    w, opt = torch.nn.Parameter(torch.ones(8)[::2]), SGD(0.5)
    opt.engine = engine
    if engine == "cpu":
        with pytest.warns(thalweg.PerformanceWarning, match="is updated by the reference engine"):
            opt.apply_gradients([(torch.ones(4), w)])
    opt.apply_gradients([(torch.ones(4), w)])
    assert w.tolist() == [0.5 - 0.5 * (engine == "cpu")] * 4


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@both_engines
def test_nonfinite_gradients_are_applied(engine: str, value: float) -> None:
    w, opt = thalweg.Variable([1.0, 1.0, 1.0]), SGD(0.5)
    opt.engine = engine
    opt.apply_gradients([([1.0, value, 1.0], w)])
    np.testing.assert_array_equal(w.numpy(), [0.5, -value, 0.5])


def unnamed() -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.zeros(2, size)) for size in (1, 2, 3)]


@pytest.mark.parametrize("steps", [0, 2])
def test_unnamed_variables_are_distinguished(steps: int) -> None:
    opt, variables = SGD(0.5), unnamed()
    for _ in range(steps):
        opt.apply_gradients([(torch.zeros_like(var), var) for var in variables])
    gradients = [torch.zeros(2, 1), torch.zeros(2, 2), torch.zeros(3, 3)]
    with pytest.raises(ValueError, match="has shape") as raised:
        opt.apply_gradients(zip(gradients, variables, strict=True))
    assert str(raised.value) == (
        "Gradient of 'Variable:0 (index 2, shape (2, 3))' has shape (3, 3) but the variable has"
        " shape (2, 3)."
    )


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_the_index_counts_variables_without_gradients() -> None:
    gradients = [None, torch.zeros(2, 2), torch.zeros(2, 3).double()]
    with pytest.raises(TypeError, match=r"'Variable:0 \(index 2, shape \(2, 3\)\)' is float64"):
        SGD(0.5).apply_gradients(zip(gradients, unnamed(), strict=True))


def test_unnamed_variables_without_gradients_are_distinguished() -> None:
    with pytest.raises(ValueError, match=r"variable: \['Variable:0 \(index 0, shape \(2, 1\)\)',"):
        SGD(0.5).apply_gradients([(None, var) for var in unnamed()])


def test_named_variables_keep_their_names_in_errors() -> None:
    variables = thalweg.named_variables(zip("abc", unnamed(), strict=True))
    with pytest.raises(ValueError, match=r"^Gradient of 'c:0' has shape \(3, 3\) but the"):
        SGD(0.5).apply_gradients([(torch.zeros(3, 3), variables[2]), (None, variables[0])][:1])
    param = torch.nn.Parameter(torch.zeros(2))
    with pytest.raises(ValueError, match=r"^Gradient of 'Variable:0' has shape"):
        SGD(0.5).apply_gradients([(torch.zeros(3), param), (torch.zeros(2, 1), variables[0])])


def test_objects_without_a_variable_are_named_by_position() -> None:
    w = thalweg.Variable([1.0])
    with pytest.raises(
        NotImplementedError, match="Tensor 'Tensor:0' at index 1: it is not a variable"
    ):
        SGD(0.5).apply_gradients([([1.0], w), ([1.0], torch.ones(1))])


def test_a_mismatch_of_unnamed_variables_says_how_to_name_them() -> None:
    opt, target, variables = Adam(), Adam(), unnamed()
    opt.apply_gradients([(torch.zeros_like(var), var) for var in variables])
    with pytest.raises(thalweg.CheckpointMismatchError, match="Variable#2") as raised:
        target.load_state_dict(opt.state_dict(), variables[::-1])
    assert "matched by their order; thalweg.named_variables(module)" in str(raised.value)
    assert str(raised.value).endswith("Nothing was loaded.")
