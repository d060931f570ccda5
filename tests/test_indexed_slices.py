"""`IndexedSlices`: what it accepts, how it sums repeated rows, and its ways to and from torch."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thalweg import v1
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.indexed_slices import IndexedSlices, as_gradient, embedding_lookup
from thalweg.variable import Variable

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def slices_of(values, indices, dtype=torch.float32, rows=4):
    values = torch.tensor(values, dtype=dtype)
    return IndexedSlices(values, torch.tensor(indices), (rows, *values.shape[1:]))


def test_indexed_slices_has_tensor_attributes():
    slices = slices_of([[1.0], [2.0]], [3, 0], torch.float64)
    assert slices.dtype == torch.float64
    assert slices.device == torch.device("cpu")
    assert slices.shape == slices.dense_shape == (4, 1)


def test_dense_shape_is_optional_and_may_be_a_tensor():
    assert IndexedSlices([1.0], [0]).shape is None
    assert IndexedSlices([1.0], [0], torch.tensor([4])).shape == (4,)


def test_tensors_are_not_copied():
    values, indices = torch.ones(2, 3), torch.tensor([0, 1])
    slices = IndexedSlices(values, indices)
    assert slices.values is values
    assert slices.indices is indices


@pytest.mark.parametrize("dtype", [torch.int16, torch.uint8, torch.float32, torch.bool])
def test_indices_of_another_dtype_raise(dtype):
    with pytest.raises(InvalidTypeError, match="indices must be int32 or int64, not"):
        IndexedSlices(torch.ones(1), torch.ones(1, dtype=dtype))


@pytest.mark.parametrize(
    ("values", "indices", "dense_shape", "message"),
    [
        ((2, 3), (2, 1), None, r"one dimension; they have shape \(2, 1\)"),
        ((2, 3), (), None, "one dimension"),
        ((2, 3), (3,), None, r"\(2, 3\) do not match 3 indices"),
        ((), (1,), None, "do not match 1 indices"),
        ((2, 3), (2,), (4, 5), r"\(2, 3\) are not rows of a tensor of shape \(4, 5\)"),
        ((2, 3), (2,), (4,), "not rows"),
    ],
)
def test_mismatched_shapes_raise(values, indices, dense_shape, message):
    with pytest.raises(InvalidArgumentError, match=message):
        IndexedSlices(torch.ones(values), torch.ones(indices, dtype=torch.int64), dense_shape)


def test_devices_must_agree():
    with pytest.raises(InvalidArgumentError, match="values are on meta, indices on cpu"):
        IndexedSlices(torch.ones(1, device="meta"), torch.tensor([0]))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("bad", [9, 4, -1])
@pytest.mark.parametrize(
    ("style", "message"),
    [
        ("fused", r"^Index {} at offset 1 in indices is out of range$"),
        ("scatter", r"^indices\[1\] = {} is not in \[0, 4\)$"),
    ],
)
def test_index_out_of_range_is_named(dtype, bad, style, message):
    slices = IndexedSlices(torch.ones(3), torch.tensor([3, bad, -7], dtype=dtype))
    with pytest.raises(InvalidArgumentError, match=message.format(bad)):
        slices.check_range(4, style)


@pytest.mark.parametrize(("indices", "rows"), [([0, 3], 4), ([], 0)])
def test_indices_in_range_are_accepted(indices, rows):
    IndexedSlices(torch.ones(len(indices)), torch.tensor(indices).int()).check_range(rows)


def test_deduplicated_rows_keep_first_appearance_order():
    unique = slices_of([[1.0], [2.0], [4.0], [8.0]], [3, 0, 3, 2]).deduplicated()
    assert unique.indices.tolist() == [3, 0, 2]
    assert unique.values.tolist() == [[5], [2], [8]]
    assert unique.dense_shape == (4, 1)


@pytest.mark.parametrize("dtype", FLOATS)
def test_sum_is_in_order_of_appearance(dtype):
    # 1 is lost next to 2**60 in every order but the last one, in all four dtypes.
    large = 2.0**14 if dtype == torch.float16 else 2.0**60
    tiny = 2.0**-14 if dtype == torch.float16 else 1.0
    first = slices_of([large, tiny, -large], [1, 1, 1], dtype).deduplicated()
    merged = slices_of([large, -large, tiny], [1, 1, 1], dtype).deduplicated()
    assert first.values.item() == 0
    assert merged.values.item() == tiny


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_reduced_precision_is_rounded_once(dtype):
    ulp = torch.finfo(dtype).eps
    unique = slices_of([1.0, ulp / 2, ulp / 2], [0, 0, 0], dtype).deduplicated()
    assert unique.dtype == dtype
    assert unique.values.item() == 1 + ulp


def test_sum_starts_at_zero_as_in_tensorflow():
    unique = slices_of([-0.0, 1.0], [0, 1]).deduplicated()
    assert not torch.signbit(unique.values).any()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_deduplication_keeps_the_dtype_of_the_indices(dtype):
    slices = IndexedSlices(torch.ones(2), torch.tensor([1, 1], dtype=dtype))
    assert slices.deduplicated().indices.dtype == dtype


@pytest.mark.parametrize("row_shape", [(), (3,), (2, 0), (2, 3)])
def test_empty_slices_are_accepted(row_shape):
    empty = IndexedSlices(torch.ones(0, *row_shape), torch.ones(0).int(), (4, *row_shape))
    assert empty.deduplicated().values.shape == (0, *row_shape)
    assert empty.to_dense().shape == (4, *row_shape)
    assert empty.to_sparse().shape == (4, *row_shape)


def test_deduplication_does_not_touch_its_operand():
    slices = slices_of([1.0, 2.0], [1, 0])
    slices.deduplicated().values.zero_()
    assert slices.values.tolist() == [1, 2]


@settings(derandomize=True, deadline=None, max_examples=100)
@given(
    st.lists(st.integers(0, 5), max_size=30),
    st.sampled_from([(), (1,), (3,), (2, 2)]),
    st.integers(0, 2**32 - 1),
)
def test_deduplication_equals_the_plain_loop(indices, row_shape, seed):
    values = np.random.default_rng(seed).standard_normal((len(indices), *row_shape), np.float32)
    sums = {}
    for index, value in zip(indices, values, strict=True):
        sums[index] = sums.get(index, np.zeros(row_shape, np.float32)) + value
    unique = IndexedSlices(values, np.array(indices, np.int64)).deduplicated()
    assert unique.indices.tolist() == list(sums)
    for row, expected in zip(unique.values.numpy(), sums.values(), strict=True):
        assert row.tobytes() == np.asarray(expected).tobytes()


def test_to_dense_sums_repeated_rows():
    slices = slices_of([[1.0], [2.0], [4.0]], [3, 0, 3])
    assert slices.to_dense().tolist() == [[2], [0], [0], [5]]


@pytest.mark.parametrize("convert", [IndexedSlices.to_dense, IndexedSlices.to_sparse])
def test_dense_conversion_needs_a_dense_shape(convert):
    with pytest.raises(InvalidArgumentError, match="without dense_shape"):
        convert(IndexedSlices([1.0], [0]))


@pytest.mark.parametrize("convert", [IndexedSlices.to_dense, IndexedSlices.to_sparse])
def test_dense_conversion_needs_indices_in_range(convert):
    with pytest.raises(InvalidArgumentError, match=r"indices\[0\] = 4 is not in \[0, 4\)"):
        convert(slices_of([1.0], [4]))


def test_sparse_round_trip_keeps_order_and_repeats():
    slices = slices_of([[1.0], [2.0], [4.0]], [3, 0, 3])
    round_trip = IndexedSlices.from_sparse(slices.to_sparse())
    assert round_trip.indices.tolist() == [3, 0, 3]
    assert round_trip.values.tolist() == [[1], [2], [4]]
    assert round_trip.shape == (4, 1)


def test_coalesced_tensors_are_accepted():
    sparse = slices_of([1.0, 2.0, 4.0], [3, 0, 3]).to_sparse().coalesce()
    assert IndexedSlices.from_sparse(sparse).indices.tolist() == [0, 3]


@pytest.mark.parametrize(
    ("tensor", "error", "message"),
    [
        (torch.eye(2), InvalidTypeError, "not torch.strided"),
        (torch.eye(2).to_sparse(), InvalidArgumentError, "one sparse dimension, not 2"),
    ],
)
def test_other_layouts_raise(tensor, error, message):
    with pytest.raises(error, match=message):
        IndexedSlices.from_sparse(tensor)


@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        (lambda s: -s, [-2, -4]),
        (lambda s: s * 3, [6, 12]),
        (lambda s: 3 * s, [6, 12]),
        (lambda s: s / 2, [1, 2]),
        (lambda s: s * np.float64(3), [6, 12]),
        (lambda s: np.float64(3) * s, [6, 12]),
        (lambda s: s * torch.tensor(3.0, dtype=torch.float64), [6, 12]),
        (lambda s: torch.tensor(3.0) * s, [6, 12]),
        (lambda s: s / Variable(2.0, trainable=False), [1, 2]),
    ],
)
@pytest.mark.parametrize("dtype", FLOATS)
def test_scaling_keeps_dtype_indices_and_shape(scale, expected, dtype):
    result = scale(slices_of([2.0, 4.0], [3, 0], dtype))
    assert result.values.tolist() == expected
    assert (result.dtype, result.indices.tolist(), result.shape) == (dtype, [3, 0], (4,))


@pytest.mark.parametrize("factor", [torch.ones(1), np.ones(2), [2.0]])
def test_scaling_by_more_than_a_scalar_raises(factor):
    with pytest.raises(InvalidArgumentError, match="by a scalar only"):
        _ = slices_of([1.0], [0]) * factor


def test_repr_shows_all_parts():
    assert repr(IndexedSlices([1.0], [0], (4,))) == (
        "IndexedSlices(values=tensor([1.]), indices=tensor([0], dtype=torch.int32), "
        "dense_shape=(4,))"
    )


def test_as_gradient_keeps_dense_gradients_and_none():
    dense = torch.ones(1)
    assert as_gradient(dense) is dense
    assert as_gradient(None) is None


def test_as_gradient_makes_other_sparse_gradients_dense():
    gradient = as_gradient(torch.eye(2).to_sparse())
    assert isinstance(gradient, torch.Tensor)
    assert gradient.tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize("row_shape", [(), (2,), (2, 3)])
@pytest.mark.parametrize("ids", [[3, 0, 3], [[3, 0], [0, 3]], 2, np.array([1, 1])])
def test_embedding_lookup_gathers_rows(row_shape, ids):
    params = Variable(torch.randn(4, *row_shape))
    rows = embedding_lookup(params, ids)
    assert torch.equal(rows, params[torch.as_tensor(ids)])


@pytest.mark.parametrize("row_shape", [(), (2,), (2, 3)])
def test_gradient_of_embedding_lookup_has_one_row_for_each_id(row_shape):
    params = Variable(torch.zeros(4, *row_shape))
    embedding_lookup(params, [[3, 0], [3, 1]]).sum().backward()
    gradient = as_gradient(params.grad)
    assert isinstance(gradient, IndexedSlices)
    assert gradient.indices.tolist() == [3, 0, 3, 1]
    assert gradient.shape == params.shape


@pytest.mark.parametrize("bad", [9, -1])
def test_embedding_lookup_names_the_id_out_of_range(bad):
    with pytest.raises(InvalidArgumentError, match=rf"indices\[1\] = {bad} is not in \[0, 4\)"):
        embedding_lookup(Variable(torch.zeros(4, 2)), [0, bad])


def test_slices_and_lookups_of_a_graph_are_made_by_v1() -> None:
    with v1.Graph().as_default(), v1.Session() as session:
        values, rows = v1.placeholder("float32", [None, 1]), v1.placeholder("int32", [None])
        table = v1.Variable([[1.0], [2.0]])
        for call in (
            lambda: IndexedSlices(values, rows),
            lambda: IndexedSlices(torch.ones(1, 1), rows),
            lambda: IndexedSlices(torch.ones(1, 1), [0], rows),
            lambda: embedding_lookup(table, [0]),
            lambda: embedding_lookup(torch.ones(1, 1), rows),
        ):
            with pytest.raises(TypeError, match=r"belongs to a graph: use thalweg\.v1\.\w+ there"):
                call()
        slices = v1.IndexedSlices(values, rows)
        train = v1.train.GradientDescentOptimizer(0.5).apply_gradients([(slices, table)])
        session.run(v1.global_variables_initializer())
        session.run(train, {values: [[2.0]], rows: [1]})
        assert session.run(table).tolist() == [[1.0], [1.0]]
    eager = v1.IndexedSlices([[1.0]], [0])
    assert type(eager) is IndexedSlices
    assert all(isinstance(entry, v1.IndexedSlices) for entry in (eager, slices))
