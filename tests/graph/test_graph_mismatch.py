"""Shapes that no run could put together are refused when the node is built."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import thalweg.tf
import thalweg.v1 as tf

F = torch.nn.functional
Build = Callable[[Any, Any, Any], Any]

MISFITS: dict[str, Build] = {
    "matmul": lambda x, y, w: torch.matmul(x, w),
    "operator": lambda x, y, w: x @ w,
    "reflected matmul": lambda x, y, w: torch.ones(2, 3) @ w.T @ x.T,
    "method": lambda x, y, w: x.matmul(w),
    "mm": lambda x, y, w: torch.mm(x, w),
    "constant": lambda x, y, w: x @ torch.ones(3, 2),
    "linear": lambda x, y, w: F.linear(x, torch.ones(5, 3)),
    "Linear": lambda x, y, w: torch.nn.Linear(3, 1)(x),
    "Sequential": lambda x, y, w: torch.nn.Sequential(
        torch.nn.Linear(4, 5), torch.nn.ReLU(), torch.nn.Linear(3, 1)
    )(x),
    "add": lambda x, y, w: x + y,
    "reflected sub": lambda x, y, w: torch.ones(3) - x,
    "mul": lambda x, y, w: x.mul(y),
    "list": lambda x, y, w: x - [1.0, 2.0, 3.0],
    "maximum": lambda x, y, w: torch.maximum(x, y),
    "where": lambda x, y, w: torch.where(x > 0, x, y),
    "greater": lambda x, y, w: x > y,
    "outer": lambda x, y, w: x[:, None] + y,
    "tf.matmul": lambda x, y, w: thalweg.tf.matmul(x, w),
    "tf.multiply": lambda x, y, w: thalweg.tf.multiply(x, y),
}


def graph_of(size: int | None) -> tuple[tf.Graph, Any, Any, Any]:
    graph = tf.Graph()
    with graph.as_default():
        x = tf.placeholder(torch.float32, [size, 4], name="x")
        y = tf.placeholder(torch.float32, [size, 3], name="y")
        w = tf.Variable(torch.zeros(3, 5), name="w")
    return graph, x, y, w


@pytest.mark.parametrize("size", [2, None])
@pytest.mark.parametrize("case", MISFITS)
def test_mismatched_shapes_raise(case: str, size: int | None) -> None:
    graph, *tensors = graph_of(size)
    with graph.as_default(), pytest.raises(ValueError, match=r"The inputs .*have the shapes"):
        MISFITS[case](*tensors)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda x, y, w: x @ w,
            r"^matmul: \(None, 4\) and \(3, 5\) do not fit together: 4 is not 3\. The inputs"
            r" 'x:0', 'w:0' have the shapes \(None, 4\), \(3, 5\)\.$",
        ),
        (
            lambda x, y, w: x + y,
            r"^add: \(None, 4\) and \(None, 3\) do not broadcast: 3 is not 4 in dimension -1\. The"
            r" inputs 'x:0', 'y:0' have the shapes \(None, 4\), \(None, 3\)\.$",
        ),
        (
            lambda x, y, w: x * torch.ones(3),
            r"^mul: .* inputs 'x:0', a constant have the shapes \(None, 4\), \(3,\)\.$",
        ),
    ],
)
def test_shape_error_names_operation_and_tensors(build: Build, message: str) -> None:
    graph, *tensors = graph_of(None)
    count = len(graph.get_operations())
    with graph.as_default(), pytest.raises(tf.InvalidArgumentError, match=message):
        build(*tensors)
    assert len(graph.get_operations()) == count


@pytest.mark.parametrize(
    ("build", "shapes"),
    [
        (lambda a, b: a @ b, ([None, None], [3, 5])),
        (lambda a, b: a @ b, ([2, 4], [None, 5])),
        (lambda a, b: a @ b, ([None, 2, 3], [5, None, 4])),
        (lambda a, b: a @ b, (None, [3, 5])),
        (lambda a, b: a + b, ([None, 4], [3, None])),
        (lambda a, b: a + b, ([None, None, 5], [3, 4, 5])),
        (lambda a, b: a + b, ([None, 4], [7, 4])),
        (lambda a, b: a + b, ([None, 4], [1])),
        (lambda a, b: a[:2] + b, ([None, 4], [None, 1])),
        (lambda a, b: torch.nn.Linear(3, 1)(a) + b, ([None, None], [1])),
        (lambda a, b: F.linear(a, b), ([None, 4], [None, None])),
        (lambda a, b: a.reshape(-1, 6) * b, ([None, 4], [6])),
        (lambda a, b: torch.cat([a, b]) @ torch.ones(4, 1), ([None, None], [2, 4])),
    ],
)
def test_possibly_compatible_shapes_are_accepted(build: Any, shapes: tuple[Any, Any]) -> None:
    with tf.Graph().as_default():
        first, second = (tf.placeholder(torch.float32, shape) for shape in shapes)
        assert build(first, second).dtype == torch.float32
