"""`GradientTape` and its helpers give TensorFlow's gradients, structures and errors."""

import gc
import weakref
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thalweg.autodiff import (
    GradientTape,
    UnconnectedGradients,
    embedding_lookup,
    gradients_of,
    variables_of,
)
from thalweg.errors import FailedPreconditionError, InvalidArgumentError, InvalidTypeError
from thalweg.indexed_slices import IndexedSlices
from thalweg.variable import Variable, name_of


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


def square_of(x, **options):
    with GradientTape(**options) as tape:
        y = x * x
    return tape, y


def test_gradient_of_a_variable_is_correct():
    x = Variable(3.0)
    tape, y = square_of(x)
    assert tape.gradient(y, x).item() == 6


def test_gradient_leaves_grad_alone():
    x = Variable(3.0)
    tape, y = square_of(x)
    gradient = tape.gradient(y, x)
    assert x.grad is None
    assert not gradient.requires_grad


def test_elements_of_a_target_are_summed():
    x = Variable([1.0, 2.0])
    tape, y = square_of(x)
    assert tape.gradient(y, x).tolist() == [2, 4]


def test_gradients_of_several_targets_add_up():
    x = Variable(3.0)
    with GradientTape() as tape:
        targets = {"square": x * x, "double": [2 * x]}
    assert tape.gradient(targets, x).item() == 8


@pytest.mark.parametrize("weights", [[1.0, 10.0], np.array([1.0, 10.0]), torch.tensor([1.0, 10.0])])
def test_output_gradients_weigh_the_target(weights):
    x = Variable([1.0, 2.0])
    tape, y = square_of(x)
    assert tape.gradient(y, x, output_gradients=weights).tolist() == [2, 40]


def test_output_gradients_weigh_several_targets():
    x = Variable(3.0)
    with GradientTape() as tape:
        targets = [x * x, 2 * x]
    assert tape.gradient(targets, x, output_gradients=[None, 10.0]).item() == 26


@pytest.mark.parametrize(
    ("weights", "message"),
    [(1.0, r"shape \(\) but its target has shape \(2,\)"), ([1.0], r"shape \(1,\)")],
)
def test_output_gradients_of_wrong_shape_raise(weights, message):
    x = Variable([1.0, 2.0])
    tape, y = square_of(x)
    with pytest.raises(InvalidArgumentError, match=message):
        tape.gradient(y, x, output_gradients=weights)


def test_output_gradients_of_wrong_count_raise():
    x = Variable(1.0)
    tape, y = square_of(x)
    with pytest.raises(InvalidArgumentError, match="2 output gradients were given for 1 targets"):
        tape.gradient([y], x, output_gradients=[1.0, 1.0])


def test_result_has_the_structure_of_the_sources():
    x, y = Variable(1.0), Variable(2.0)
    with GradientTape() as tape:
        z = 2 * x + 3 * y
    sources = {"a": [x, (y,)], "b": Pair(y, x)}
    two, three = torch.tensor(2.0), torch.tensor(3.0)
    assert tape.gradient(z, sources) == {"a": [two, (three,)], "b": Pair(three, two)}


def test_sources_may_be_an_iterator():
    module = torch.nn.Linear(2, 1)
    with GradientTape() as tape:
        y = module(torch.ones(2))
    assert [g.shape for g in tape.gradient(y, module.parameters())] == [(1, 2), (1,)]


@pytest.mark.parametrize(
    ("unconnected", "expected"),
    [("none", None), ("zero", 0.0), (UnconnectedGradients.ZERO, 0.0)],
)
def test_unconnected_sources_have_none_or_zero_gradients(unconnected, expected):
    x, unused = Variable(1.0), Variable(2.0)
    tape, y = square_of(x)
    gradient = tape.gradient(y, [x, unused], unconnected_gradients=unconnected)[1]
    assert (gradient if gradient is None else gradient.item()) == expected


@pytest.mark.parametrize("source", [Variable(1), torch.ones(1), Variable(1.0, trainable=False)])
def test_constant_sources_have_no_gradient(source):
    x = Variable(1.0)
    with GradientTape() as tape:
        y = x * source
    assert tape.gradient(y, source) is None


def test_target_without_gradient_gives_none():
    x = Variable(1.0)
    with GradientTape() as tape:
        y = torch.ones(2)
    assert tape.gradient(y, x) is None


def test_unknown_choice_for_unconnected_gradients_raises():
    x = Variable(1.0)
    tape, y = square_of(x)
    with pytest.raises(InvalidArgumentError, match="Unknown value for unconnected_gradients: 'no'"):
        tape.gradient(y, x, unconnected_gradients="no")


@pytest.mark.parametrize("source", ["x", None, [1.0]])
def test_sources_must_be_tensors(source):
    x = Variable(1.0)
    tape, y = square_of(x)
    with pytest.raises(InvalidTypeError, match="expected a tensor or variable"):
        tape.gradient(y, source)


def test_second_gradient_of_a_tape_raises():
    x = Variable(1.0)
    tape, y = square_of(x)
    tape.gradient(y, x)
    with pytest.raises(FailedPreconditionError, match="only be used to compute one set of"):
        tape.gradient(y, x)


def test_persistent_tape_gives_many_gradients():
    x = Variable(3.0)
    tape, y = square_of(x, persistent=True)
    assert [tape.gradient(y, x).item() for _ in range(3)] == [6, 6, 6]


@pytest.mark.parametrize("persistent", [True, False])
def test_gradient_can_be_computed_within_the_block(persistent):
    x = Variable(3.0)
    with GradientTape(persistent=persistent) as tape:
        gradient = tape.gradient(x * x, x)
    assert gradient.item() == 6


def test_watched_variable_may_be_its_own_target():
    x = torch.tensor(3.0)
    with GradientTape() as tape:
        tape.watch(x)
    assert tape.gradient(x, x).item() == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.tensor(3.0),
        lambda: Variable(3.0, trainable=False),
        lambda: torch.nn.Parameter(torch.tensor(3.0), requires_grad=False),
    ],
)
def test_watched_tensors_are_differentiable_for_the_block_only(make):
    x = make()
    with GradientTape() as tape:
        tape.watch([{"x": x}])
        y = x * x
        assert x.requires_grad
    assert not x.requires_grad
    assert tape.gradient(y, x).item() == 6


def test_watching_ends_when_the_block_raises():
    x = torch.tensor(3.0)
    with pytest.raises(TypeError), GradientTape() as tape:
        tape.watch([x, "not a tensor"])
    assert not x.requires_grad


def test_watched_integers_have_no_gradients():
    x = torch.tensor(3)
    with GradientTape() as tape:
        tape.watch(x)
        y = x * 2.0
    assert tape.gradient(y, x) is None


def test_watch_needs_a_recording_tape():
    with pytest.raises(FailedPreconditionError, match="not recording"):
        GradientTape().watch(torch.tensor(3.0))


def test_intermediate_tensors_can_be_sources():
    x = Variable(3.0)
    with GradientTape() as tape:
        y = x * x
        z = y * y
    assert tape.gradient(z, y).item() == 18


def test_only_watched_variables_count_without_watch_accessed_variables():
    x, factor = Variable(3.0), Variable(5.0)
    with GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(x)
        y, unseen = x * factor, factor * 2
        z = y * unseen
    gradients = tape.gradient(z, [x, factor, y, unseen])
    assert [g if g is None else g.item() for g in gradients] == [50, None, 10, None]


def test_tape_records_under_no_grad():
    x = Variable(3.0)
    with torch.no_grad():
        tape, y = square_of(x)
        assert not torch.is_grad_enabled()
    assert tape.gradient(y, x).item() == 6


def test_stop_recording_leaves_a_factor_out():
    x = Variable(3.0)
    with GradientTape() as tape:
        with tape.stop_recording():
            factor = x * x
        y = factor * x
    assert tape.gradient(y, x).item() == 9


def test_stop_recording_does_not_blind_an_outer_tape():
    x = Variable(3.0)
    with GradientTape() as outer, GradientTape() as inner, inner.stop_recording():
        y = x * x
    assert outer.gradient(y, x).item() == 6


def test_stop_recording_needs_a_recording_tape():
    with pytest.raises(FailedPreconditionError, match="which is not recording"):
        GradientTape().stop_recording().__enter__()


def test_reset_forgets_watched_tensors():
    x = torch.tensor(3.0)
    with GradientTape() as tape:
        tape.watch(x)
        tape.reset()
        y = x * x
    assert tape.gradient(y, x) is None


def test_a_tape_can_be_used_again():
    x = Variable(3.0)
    tape, y = square_of(x)
    tape.gradient(y, x)
    with tape:
        y = 2 * x
    assert tape.gradient(y, x).item() == 2


def test_an_open_tape_cannot_be_entered_again():
    with GradientTape() as tape, pytest.raises(InvalidArgumentError, match="still recording"):
        tape.__enter__()


def test_second_derivative_by_nested_tapes():
    x = torch.tensor(3.0)
    with GradientTape() as outer:
        outer.watch(x)
        with GradientTape() as inner:
            inner.watch(x)
            y = x * x * x
        first = inner.gradient(y, x)
    assert first.item() == 27
    assert outer.gradient(first, x).item() == 18


def test_two_tapes_may_differentiate_the_same_operations():
    x = Variable(3.0)
    with GradientTape() as first, GradientTape() as second:
        y = x * x
    assert second.gradient(y, x).item() == first.gradient(y, x).item() == 6


def test_a_single_tape_frees_the_graph():
    x = Variable(3.0)
    tape, y = square_of(x)
    tape.gradient(y, x)
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()


def test_a_used_tape_holds_no_activations():
    x = Variable(3.0)
    with GradientTape() as tape:
        y = x * x
        z = y * y
    tape.gradient(z, x)
    reference = weakref.ref(y)
    del y, z
    gc.collect()
    assert reference() is None


def test_gradient_of_an_embedding_is_indexed_slices():
    layer = torch.nn.Embedding(5, 2, sparse=True)
    with GradientTape() as tape:
        y = layer(torch.tensor([4, 1, 4]))
    gradient = tape.gradient(y, layer.weight)
    assert isinstance(gradient, IndexedSlices)
    assert gradient.indices.tolist() == [4, 1, 4]
    assert gradient.shape == (5, 2)


def test_gradient_of_a_variable_used_as_a_whole_is_dense():
    params = Variable(torch.zeros(5, 2))
    with GradientTape() as tape:
        y = embedding_lookup(params, [4]).sum() + params.sum()
    gradient = tape.gradient(y, params)
    assert isinstance(gradient, torch.Tensor)
    assert gradient[4].tolist() == [2, 2]


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_sparse_gradient_under_an_outer_tape(rank):
    params = Variable(torch.zeros([5] * rank))
    with GradientTape(), GradientTape() as tape:
        y = embedding_lookup(params, [4, 1])
        gradient = tape.gradient(y, params)
    assert gradient.indices.tolist() == [4, 1]


def test_variables_come_in_order_of_creation():
    b, a = Variable(1.0, name="b"), Variable(2.0, name="a")
    tensor = torch.ones((), requires_grad=True)
    assert variables_of([tensor * a, b * a]) == [b, a, tensor]


def test_non_trainable_variables_are_not_found():
    x, fixed = Variable(1.0), Variable(1.0, trainable=False)
    with GradientTape() as tape:
        tape.watch(fixed)
        y = x * fixed
        assert variables_of(y) == [x]


@pytest.mark.parametrize("target", [torch.ones(1), []])
def test_constants_have_no_variables(target):
    assert variables_of(target) == []


def test_a_deep_graph_is_walked():
    x = Variable(1.0)
    y = x * 1
    for _ in range(5_000):
        y = y + x
    assert variables_of(y) == [x]


@pytest.mark.parametrize(("accessed", "names"), [(True, ["b:0", "a:0"]), (False, ["a:0"])])
def test_watched_variables_lists_names_in_creation_order(accessed, names):
    b, a = Variable(1.0, name="b"), Variable(2.0, name="a")
    with GradientTape(watch_accessed_variables=accessed) as tape:
        tape.watch([a, torch.ones(1)])
        y = a * b
    assert [name_of(v) for v in tape.watched_variables(y)] == names
    assert tape.watched_variables() == (a,)


def test_gradients_of_takes_variables_in_any_state():
    x, second, fixed = Variable(3.0), Variable(1.0), torch.ones(1)
    gradient, *gradients = gradients_of(x * x, [x, second, fixed])
    assert isinstance(gradient, torch.Tensor)
    assert gradient.item() == 6
    assert gradients == [None, None]


def test_gradients_of_a_constant_are_none():
    assert gradients_of(torch.ones(1), [Variable(1.0)]) == [None]


def test_gradients_of_a_weighted_target_are_weighted():
    x = Variable([1.0, 2.0])
    (gradient,) = gradients_of(x * x, [x], grad_outputs=torch.tensor([1.0, 10.0]))
    assert isinstance(gradient, torch.Tensor)
    assert gradient.tolist() == [2, 40]


def test_source_may_be_listed_twice():
    x = Variable(3.0)
    tape, y = square_of(x)
    assert [g.item() for g in tape.gradient(y, [x, x])] == [6, 6]


@settings(derandomize=True, deadline=None, max_examples=50)
@given(st.recursive(st.floats(-8, 8, width=16), lambda s: st.lists(s) | st.tuples(s, s)))
def test_nested_sources_give_equally_nested_gradients(values):
    def convert(item, leaf):
        if isinstance(item, (list, tuple)):
            return type(item)(convert(x, leaf) for x in item)
        return leaf(item)

    def total(item):
        return sum(map(total, item)) if isinstance(item, (list, tuple)) else item * item

    sources = convert(values, lambda x: Variable(float(x)))
    with GradientTape() as tape:
        target = total(sources) + Variable(0.0)
    gradients = convert(tape.gradient(target, sources), torch.Tensor.item)
    assert gradients == convert(values, lambda x: 2 * float(x))
