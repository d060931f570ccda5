"""Files with one wrong value under correct checksums, as `attack/resealed.py` produced them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from thalweg import CheckpointMismatchError, InvalidConfigError, Variable, checkpoint, optim
from thalweg._formats import bundle, container
from thalweg._formats.stored_tensor import of_tensor
from thalweg.checkpoint import CheckpointManager, tensorflow
from thalweg.checkpoint.tensorflow.detection.scalars import as_count
from thalweg.checkpoint.tensorflow.save import _Graph
from thalweg.keras.optimizers import Adam

PARTS = ("variables", "metrics", "state", "rates")
VALUES: tuple[Any, ...] = (
    {"$scalar": ["bool", 1]},
    {"$float": "nan"},
    {"$tuple": [{"x": 1}]},
    {"$dict": [[1, 2]]},
    {"$dict": [[{"$tuple": [1]}, 2]]},
)


def _restored(path: Path) -> list[Variable]:
    targets = [Variable([0.0, 0.0], "w")]
    checkpoint.restore(path, variables=targets)
    return targets


def _managed(path: Path) -> None:
    manager = CheckpointManager(path.parent, keep=1)
    manager.restore_or_initialize(variables=[Variable([0.0, 0.0], "w")])


def _converted(path: Path) -> None:
    tensorflow.convert(path, path.with_name("out"), to="tf1")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("read", [_restored, _managed, _converted])
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("value", VALUES, ids=str)
def test_section_that_is_not_a_dictionary_raises(
    value: Any, part: str, read: Callable[[Path], Any], tmp_path: Path
) -> None:
    path, w = tmp_path / "checkpoint-1.safetensors", Variable([1.0, 2.0], "w")
    opt = Adam(0.1)
    opt.apply_gradients([([1.0, 1.0], w)])
    checkpoint.save(path, variables=[w], optimizer=opt)
    contents = container.read(path)
    container.write(path, contents.tensors, {**contents.document, part: value})
    with pytest.raises(InvalidConfigError, match=part):
        read(path)


@pytest.mark.parametrize("value", [[1, 2], "x", {"$tuple": [1, 0]}, None], ids=str)
def test_non_numeric_argument_raises(value: Any, tmp_path: Path) -> None:
    w, opt = Variable([1.0, 2.0], "w"), Adam(0.1)
    opt.apply_gradients([([1.0, 1.0], w)])
    checkpoint.save(tmp_path / "run", variables=[w], optimizer=opt)
    contents = container.read(tmp_path / "run")
    description = dict(contents.document["optimizer"])
    arguments = {**description["arguments"], "amsgrad": {"$number": ["float32", value]}}
    document = {**contents.document, "optimizer": {**description, "arguments": arguments}}
    container.write(tmp_path / "run", contents.tensors, document)
    with pytest.raises(InvalidConfigError, match=r"\$number of .* is no number"):
        _restored(tmp_path / "run")


def test_step_with_several_elements_raises(tmp_path: Path) -> None:
    w = torch.nn.Parameter(torch.ones(2))
    opt = optim.Adam([w])
    w.grad = torch.ones(2)
    opt.step()
    checkpoint.save(tmp_path / "run", optimizer=opt, variables={"w": w})
    contents = container.read(tmp_path / "run")
    tensors = {
        name: of_tensor(torch.ones(2)) if name.endswith("step") else tensor
        for name, tensor in contents.tensors.items()
    }
    container.write(tmp_path / "run", tensors, dict(contents.document))
    with pytest.raises(CheckpointMismatchError, match=r"'w/step' is of shape \(2,\), not \(\)"):
        checkpoint.restore(tmp_path / "run", optimizer=opt, variables={"w": w})
    assert opt.state[w]["step"].item() == 1


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float32, torch.bool])
def test_out_of_range_counts_raise(dtype: torch.dtype) -> None:
    with pytest.raises(CheckpointMismatchError, match=r"global_step is 10{30} in the file"):
        as_count(10**30, dtype)


def test_invalid_power_raises(tmp_path: Path) -> None:
    graph = _Graph()
    node = graph.add_variable("w", of_tensor(torch.ones(2)), "w")
    place = graph.find_or_add(["optimizer"])
    for kind, name in (("m", "w/Adam"), ("v", "w/Adam_1")):
        graph.add_slot(place, node, "w", kind, of_tensor(torch.ones(2)), name)
    for power in ("beta1_power", "beta2_power"):
        graph.add_variable(f"optimizer/{power}", of_tensor(torch.tensor(1j)), power)
    graph.add_variable("global_step", of_tensor(torch.tensor(5)), "global_step")
    bundle.write(tmp_path / "ckpt", graph.tensors, graph.as_object_graph())
    targets, kwargs = {"w": Variable([0.0, 0.0], "w")}, {"learning_rate": 0.1, "epsilon": 1e-6}
    with pytest.raises(CheckpointMismatchError, match="beta1_power' is complex64"):
        tensorflow.restore(tmp_path / "ckpt", targets, **kwargs)
    assert not targets["w"].any()
