"""Clipping, LARC, reduction and regularization by themselves, eagerly and in graphs."""

from __future__ import annotations

import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributed

from openseq2seq_replay import Writer
from parallel_workers import run_ranks
from thalweg import IndexedSlices, Variable, _graph
from thalweg.openseq2seq import optimizers as package
from thalweg.openseq2seq.optimizers import get_regularization_loss, mp_wrapper, optimizers
from thalweg.openseq2seq.optimizers.mp_wrapper import MixedPrecisionOptimizerWrapper
from thalweg.openseq2seq.optimizers.optimizers import (
    OPTIMIZER_CLS_NAMES,
    OPTIMIZER_SUMMARIES,
    _clip_by_global_norm,
    _clip_gradients_by_norm,
    _global_norm_with_cast,
    post_process_gradients,
    reduce_gradients,
)
from thalweg.v1 import train
from thalweg.v1.contrib.opt import AdamWOptimizer

INF, NAN = math.inf, math.nan
LOSSES = _graph.GraphKeys.REGULARIZATION_LOSSES
W = Variable([0.0, 0.0], name="w")
SCALAR = Variable(0.0, name="s")


def pair(*values: float, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, Any]:
    var = Variable(torch.ones(len(values), dtype=dtype), name="w")
    return torch.tensor(values, dtype=dtype), var


# Tables


def test_names_of_optimizers_are_in_order() -> None:
    assert list(OPTIMIZER_CLS_NAMES) == [
        "Adagrad", "Adam", "Ftrl", "Momentum", "RMSProp", "SGD", "AdamW",
    ]  # fmt: skip
    assert OPTIMIZER_CLS_NAMES["SGD"] is train.GradientDescentOptimizer
    assert OPTIMIZER_CLS_NAMES["AdamW"] is AdamWOptimizer
    assert len(set(OPTIMIZER_SUMMARIES)) == 8


def test_package_exports_the_original_names() -> None:
    assert package.optimize_loss is optimizers.optimize_loss
    assert package.get_regularization_loss is optimizers.get_regularization_loss
    assert hasattr(mp_wrapper, "MixedPrecisionOptimizerWrapper")
    assert hasattr(mp_wrapper, "mp_regularizer_wrapper")


# Norms


def test_global_norm_takes_mixed_dtypes_and_undeduplicated_rows() -> None:
    rows = IndexedSlices(torch.tensor([[3.0], [4.0]]), torch.tensor([1, 1]), (4, 1))
    pairs = [(rows, None), pair(12.0, 0.0, dtype=torch.float16), pair(84.0, dtype=torch.float64)]
    norm = _global_norm_with_cast(pairs)
    assert (norm.dtype, norm.shape, norm.item()) == (torch.float32, (), 85.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # cast to float32, as shipped
@pytest.mark.parametrize(("as_shipped", "norm"), [(False, 5e30), (True, INF)])
def test_global_norm_does_not_overflow_early(
    as_shipped: bool, norm: float, dtype: torch.dtype
) -> None:
    grad, var = pair(3e30, 4e30)
    got = _global_norm_with_cast([(torch.as_tensor(grad, dtype=dtype), var)], as_shipped=as_shipped)
    assert got.item() == pytest.approx(norm)


def test_global_norm_needs_all_gradients() -> None:
    with pytest.raises(ValueError, match="'w:0' has no gradient, but its norm is asked for"):
        _global_norm_with_cast([pair(1.0), (None, W)])


# Clipping


def test_missing_norm_is_computed() -> None:
    (clipped,), norm = _clip_by_global_norm([torch.tensor([3.0, 4.0])], 1.0)
    assert norm == 5.0
    np.testing.assert_allclose(clipped, [0.6, 0.8], rtol=1e-6)


def test_passed_norm_is_used() -> None:
    (clipped,), norm = _clip_by_global_norm([[3.0, 4.0]], 1.0, 10.0)
    assert norm == 10.0
    np.testing.assert_allclose(clipped, [0.3, 0.4], rtol=1e-6)


def test_clipped_slices_keep_their_rows() -> None:
    rows = IndexedSlices(torch.tensor([[3.0], [4.0]]), torch.tensor([1, 1]), (4, 1))
    (clipped,), _ = _clip_by_global_norm([rows], 1.0)
    assert clipped.indices.tolist() == [1, 1]
    assert clipped.dense_shape == (4, 1)
    np.testing.assert_allclose(clipped.values.flatten(), [0.6, 0.8], rtol=1e-6)


@pytest.mark.parametrize(
    ("values", "clip", "result"),
    [
        ([0.0, 0.0], 1.0, [0.0, 0.0]),
        ([3.0, 4.0], 0.0, [0.0, 0.0]),
        ([INF, 1.0], 1.0, [NAN, 0.0]),
        ([NAN, 1.0], 1.0, [NAN, NAN]),
        ([3e30, 4e30], 1.0, [0.6, 0.8]),
        ([3.0, 4.0], 5.0, [3.0, 4.0]),
        ([3.0, 4.0], 1, [0.6, 0.8]),
    ],
)
def test_clipping_handles_zero_and_nonfinite_norms(values: Any, clip: float, result: Any) -> None:
    ((clipped, _),) = _clip_gradients_by_norm([pair(*values)], clip)
    np.testing.assert_allclose(clipped, result, rtol=1e-6)


@pytest.mark.parametrize("clip", [-1.0, -1e-30, NAN])
def test_negative_clip_norm_raises_except_as_shipped(clip: float) -> None:
    pairs = [pair(3.0, 4.0)]
    text = f"is the largest norm, 0 or more, not {clip}"
    for refuse in (
        lambda: _clip_gradients_by_norm(pairs, clip),
        lambda: _clip_by_global_norm([pairs[0][0]], clip),
        lambda: post_process_gradients(pairs, [], 0.1, clip, None),
    ):
        with pytest.raises(ValueError, match=text):
            refuse()
    ((clipped, _),) = _clip_gradients_by_norm(pairs, clip, as_shipped=True)
    np.testing.assert_allclose(clipped, [NAN, NAN] if clip != clip else [3.0, 4.0])


@pytest.mark.parametrize(
    "take",
    [
        lambda: post_process_gradients([], None, 0.1, None, None),
        lambda: _clip_gradients_by_norm([], 1.0),
        lambda: reduce_gradients([], True),
        lambda: MixedPrecisionOptimizerWrapper(train.GradientDescentOptimizer(0.1)).apply_gradients(
            []
        ),
    ],
)
def test_empty_gradients_raise(take: Any) -> None:
    with pytest.raises(ValueError, match="No variables provided"):
        take()


def test_clipped_gradients_are_of_their_variables_dtype() -> None:
    new_pairs = _clip_gradients_by_norm([pair(3.0, dtype=torch.float16), pair(4.0)], 1.0)
    assert [grad.dtype for grad, _ in new_pairs] == [torch.float16, torch.float32]
    np.testing.assert_allclose([grad.item() for grad, _ in new_pairs], [0.6, 0.8], rtol=1e-3)


def test_scalars_are_clipped() -> None:
    ((clipped, _),) = _clip_gradients_by_norm([(torch.tensor(4.0), SCALAR)], 1.0)
    assert clipped.shape == ()
    assert clipped == 1.0


def test_scalar_gradients_raise_as_shipped() -> None:
    with pytest.raises(ValueError, match="'s:0' of shape"):
        _clip_gradients_by_norm([(torch.tensor(4.0), SCALAR)], 1.0, as_shipped=True)


@pytest.mark.parametrize("tensors", ["abc", b"abc", 3, iter([1.0])])
def test_t_list_must_be_a_sequence(tensors: Any) -> None:
    with pytest.raises(TypeError, match="t_list should be a sequence, not"):
        _clip_by_global_norm(tensors, 1.0, 1.0)


def test_a_graph_clips_rows_and_tensors() -> None:
    with _graph.Graph().as_default(), _graph.Session() as session:
        table = _graph.Variable([[1.0], [2.0]], name="table")
        w = _graph.Variable([1.0, 1.0], name="w")
        x = _graph.placeholder(torch.float32, ())
        loss = _graph.embedding_lookup(table, [1, 1]).sum() * x + (3.0 * w).sum() * x
        pairs = list(zip(_graph.gradients(loss, [table, w]), [table, w], strict=True))
        new_pairs = _clip_gradients_by_norm(pairs, 2.0)
        norm = _global_norm_with_cast(pairs)
        assert isinstance(new_pairs[0][0], _graph.SymbolicSlices)
        assert new_pairs[1][0].shape == (2,)
        session.run(_graph.global_variables_initializer())
        size, (rows, dense) = session.run([norm, [grad for grad, _ in new_pairs]], {x: 2.0})
        assert size == pytest.approx(math.sqrt(80))
        np.testing.assert_allclose(rows.values, 2 * np.full((2, 1), 2.0) / size, rtol=1e-6)
        np.testing.assert_allclose(dense, 2 * np.full(2, 6.0) / size, rtol=1e-6)


# LARC


@pytest.mark.parametrize(("as_shipped", "factor"), [(False, 1e-7), (True, NAN)])
def test_larc_with_zero_rate_and_zero_weights(as_shipped: bool, factor: float) -> None:
    zeros = Variable([0.0, 0.0], name="bias")
    ((got, _),) = post_process_gradients(
        [(torch.tensor([1.0, 2.0]), zeros)],
        [],
        0.0,
        None,
        {"larc_eta": 0.1},
        as_shipped=as_shipped,
    )
    np.testing.assert_allclose(got, [factor, 2 * factor], rtol=1e-6)


@pytest.mark.parametrize("mode", ["clip", "scale"])
def test_larc_works_on_scalars_and_takes_a_tensor_for_a_rate(mode: str) -> None:
    var = Variable(2.0, name="s")
    ((got, _),) = post_process_gradients(
        [(torch.tensor(4.0), var)],
        [],
        torch.tensor(0.5),
        None,
        {"larc_eta": 0.1, "larc_mode": mode},
    )
    assert got.shape == ()
    assert got.item() == pytest.approx(0.4 if mode == "clip" else 0.2, rel=1e-5)


def test_larc_saturates_in_the_variables_dtype() -> None:
    grad = torch.tensor([1e-7], dtype=torch.float16)
    var = Variable(torch.tensor([60000.0], dtype=torch.float16), name="w")
    ((got, _),) = post_process_gradients(
        [(grad, var)], [], 0.1, None, {"larc_eta": 0.5, "larc_mode": "scale"}
    )
    assert got.item() == (torch.tensor(65504.0).half() * grad).item()


def test_larc_makes_rows_dense_and_measures_their_sums() -> None:
    rows = IndexedSlices(torch.tensor([[3.0], [1.0], [3.0]]), torch.tensor([1, 0, 1]), (3, 1))
    var = Variable([[1.0], [2.0], [2.0]], name="table")
    ((got, _),) = post_process_gradients([(rows, var)], [], 1.0, None, {"larc_eta": 0.1})
    factor = 0.1 * 3 / math.sqrt(37)
    np.testing.assert_allclose(got.flatten(), [factor, 6 * factor, 0], rtol=1e-6)


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({}, "larc_eta parameter has to be specified"),
        ({"larc_eta": 1}, "larc_eta has to be of type float, not 1"),
        ({"larc_eta": 0.1, "larc_mode": "foo"}, "larc_mode has to be one of ['clip', 'scale']"),
        ({"larc_eta": 0.1, "min_update": 0}, "min_update has to be of type float"),
        ({"larc_eta": 0.1, "foo": 1.0}, "Unknown parameter: foo"),
    ],
)
def test_parameters_of_larc_are_checked(params: Any, text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        post_process_gradients([pair(1.0)], [], 0.1, None, params)


def test_clipping_and_larc_exclude_one_another() -> None:
    with pytest.raises(AttributeError, match="LARC and gradient norm clipping should not"):
        post_process_gradients([pair(1.0)], [], 0.1, 0.0, {"larc_eta": 0.1})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ((None, 0.1, None, None), "the summary global_gradient_norm would need its norm"),
        (([], 0.1, 1.0, None), "clip_gradients would need its norm"),
        (([], 0.1, None, {"larc_eta": 0.1}), "larc_params would need its norm"),
    ],
)
def test_missing_gradients_raise_if_norms_are_needed(options: Any, text: str) -> None:
    with pytest.raises(ValueError, match=f"'w:0' has no gradient, but {text}"):
        post_process_gradients([pair(1.0), (None, W)], *options)


def test_missing_gradients_are_kept_without_norms() -> None:
    first, (missing, var) = post_process_gradients([pair(1.0), (None, W)], [], 0.1, None, None)
    assert first[0].tolist() == [1.0]
    assert missing is None
    assert var is W


def test_given_gradients_and_variables_are_not_written_to() -> None:
    grad, var = pair(3.0, 4.0)
    for clip, larc in ((1.0, None), (None, {"larc_eta": 0.1})):
        post_process_gradients([(grad, var)], None, 0.1, clip, larc, summary_writer=Writer())
    assert (grad.tolist(), var.tolist()) == ([3.0, 4.0], [1.0, 1.0])


def test_processed_gradients_are_summarized() -> None:
    writer = Writer()
    post_process_gradients(
        [pair(3.0, 4.0)],
        OPTIMIZER_SUMMARIES,
        0.1,
        1.0,
        None,
        summary_writer=writer,
        global_step=7,
    )
    assert writer.scalars == pytest.approx(
        {
            "global_gradient_norm": 5.0,
            "global_clipped_gradient_norm": 1.0,
            "gradient_norm/w_0": 1.0,
            "variable_norm/w_0": math.sqrt(2),
        }
    )
    assert set(writer.histograms) == {"gradients/w_0", "variables/w_0"}
    assert set(writer.steps) == {7}


@pytest.mark.parametrize("writer", [1, object()])
def test_a_writer_needs_its_methods(writer: Any) -> None:
    with pytest.raises(TypeError, match="summary_writer must have the methods add_scalar and"):
        post_process_gradients([pair(1.0)], [], 0.1, None, None, summary_writer=writer)


# Reduction


def test_reduce_gradients_without_horovod_raises() -> None:
    with pytest.raises(NotImplementedError, match="on_horovod is false"):
        reduce_gradients([pair(1.0)], on_horovod=False)


def test_single_worker_mean_is_the_gradient() -> None:
    grad, var = pair(1.0)
    ((got, _),) = reduce_gradients([(grad, var)], on_horovod=True)
    assert got.tolist() == [1.0]


def test_custom_reduce_function_gives_the_mean() -> None:
    grads: list[Any] = []

    def half(grad: Any) -> Any:
        grads.append(grad)
        return grad * 0.5

    rows = IndexedSlices(torch.tensor([[2.0]]), torch.tensor([1]), (3, 1))
    pairs = [pair(1.0), (None, W), (rows, W)]
    new_pairs = reduce_gradients(pairs, True, all_reduce=half)
    assert new_pairs[0][0].tolist() == [0.5]
    assert new_pairs[1][0] is None
    assert new_pairs[2][0].values.tolist() == [[1.0]]
    assert len(grads) == 2


@pytest.mark.parametrize(("shared", "kind"), [(True, torch.Tensor), (False, IndexedSlices)])
def test_shared_embeddings_are_reduced_dense(shared: bool, kind: type) -> None:
    model = SimpleNamespace(_decoder=SimpleNamespace(params={"shared_embed": shared}))
    rows = IndexedSlices(torch.tensor([[2.0], [3.0]]), torch.tensor([1, 1]), (2, 1))
    var = Variable([[0.0], [0.0]], name="table")
    ((got, _),) = reduce_gradients([(rows, var)], True, model, all_reduce=lambda grad: grad)
    assert isinstance(got, kind)


def test_as_shipped_rows_need_a_model() -> None:
    rows = IndexedSlices(torch.tensor([[2.0]]), torch.tensor([0]), (1, 1))
    options: Any = {"all_reduce": lambda grad: grad, "as_shipped": True}
    assert reduce_gradients([pair(1.0)], True, **options)
    with pytest.raises(AttributeError, match="_decoder"):
        reduce_gradients([(rows, W)], True, **options)


RANK = """
import json, sys
import torch
from torch import distributed
from thalweg import IndexedSlices, Variable
from thalweg.openseq2seq.optimizers import optimize_loss

rank, path = int(sys.argv[1]), sys.argv[2]
distributed.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
w = Variable(torch.tensor([1.0, 1.0], dtype=torch.float16), name="w")
table = Variable([[0.0], [0.0], [0.0]], name="table")
factor = torch.tensor(1.0)

def loss():
    rows = torch.nn.functional.embedding(torch.tensor([rank, 2]), table, sparse=True)
    return (w.float() * torch.tensor([1.0, 2.0])).sum() * (rank + 1) * factor + rows.sum()

step = optimize_loss(loss, "SGD", {}, lambda s: 0.25, [w, table], "mixed", summaries=[],
                     loss_scaling="Backoff", loss_scaling_params={"scale_max": 8.0},
                     on_horovod=True)
step()
factor.fill_(float("inf") if rank else 1.0)
step()
print(json.dumps([w.tolist(), table.flatten().tolist(), int(step.global_step),
                  float(step.loss_scaler.loss_scale)]))
distributed.destroy_process_group()
"""


@pytest.mark.skipif(not distributed.is_available(), reason="torch without torch.distributed")
def test_ranks_average_and_skip_together(tmp_path: Path) -> None:
    outcomes = run_ranks(RANK, tmp_path)
    assert outcomes[0] == outcomes[1]
    w, table, step, scale = outcomes[0]
    assert w == [1 - 0.375, 1 - 0.75]
    assert table == [-0.125, -0.125, -0.25]
    assert (step, scale) == (1, 4.0)


# Regularization


def test_callable_collection_items_are_called_again() -> None:
    w = Variable([1.0, 2.0], name="w")
    collection = _graph.get_collection_ref(LOSSES)
    collection += [lambda: (w * w).sum(), torch.tensor(1.5, dtype=torch.float16)]
    try:
        first = get_regularization_loss()
        w.assign([0.0, 1.0])
        second = get_regularization_loss()
    finally:
        collection.clear()
    assert (first.item(), second.item(), second.dtype) == (6.5, 2.5, torch.float32)
    (grad,) = torch.autograd.grad(second, [w])
    assert grad.tolist() == [0.0, 2.0]


def test_a_scope_chooses_among_the_losses() -> None:
    with _graph.Graph().as_default(), _graph.Session() as session:
        for scope, value in (("encoder", 1.0), ("decoder", 2.0)):
            with _graph.name_scope(scope):
                _graph.add_to_collection(LOSSES, _graph.constant(value, name="penalty"))
        assert session.run(get_regularization_loss("decoder")) == 2.0
        assert session.run(get_regularization_loss()) == 3.0
        assert session.run(get_regularization_loss("none")) == 0.0


def test_a_sum_in_a_graph_can_be_named() -> None:
    with _graph.Graph().as_default():
        _graph.add_to_collection(LOSSES, _graph.constant(1.0))
        assert get_regularization_loss().name == "total_regularization_loss:0"
        _graph.add_to_collection(LOSSES, _graph.constant(1.0))
        assert get_regularization_loss(name="sum").name == "sum:0"
