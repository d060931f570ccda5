"""Files that say one wrong thing under right checksums, as `attack/resealed.py` met them."""

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
from thalweg.checkpoint.tensorflow.export.object_checkpoint import _Graph
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
    own = [Variable([0.0, 0.0], "w")]
    checkpoint.restore(path, variables=own)
    return own


def _managed(path: Path) -> None:
    manager = CheckpointManager(path.parent, keep=1)
    manager.restore_or_initialize(variables=[Variable([0.0, 0.0], "w")])


def _converted(path: Path) -> None:
    tensorflow.convert(path, path.with_name("out"), to="tf1")


@pytest.mark.parametrize("read", [_restored, _managed, _converted])
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("value", VALUES, ids=str)
def test_a_part_that_is_no_dictionary_once_it_is_read(
    value: Any, part: str, read: Callable[[Path], Any], tmp_path: Path
) -> None:
    path, w = tmp_path / "checkpoint-1.safetensors", Variable([1.0, 2.0], "w")
    opt = Adam(0.1)
    opt.apply_gradients([([1.0, 1.0], w)])
    checkpoint.save(path, variables=[w], optimizer=opt)
    found = container.read(path)
    container.write(path, found.tensors, {**found.document, part: value})
    with pytest.raises(InvalidConfigError, match=part):
        read(path)


@pytest.mark.parametrize("value", [[1, 2], "x", {"$tuple": [1, 0]}, None], ids=str)
def test_an_argument_that_is_no_number(value: Any, tmp_path: Path) -> None:
    w, opt = Variable([1.0, 2.0], "w"), Adam(0.1)
    opt.apply_gradients([([1.0, 1.0], w)])
    checkpoint.save(tmp_path / "run", variables=[w], optimizer=opt)
    found = container.read(tmp_path / "run")
    description = dict(found.document["optimizer"])
    arguments = {**description["arguments"], "amsgrad": {"$number": ["float32", value]}}
    document = {**found.document, "optimizer": {**description, "arguments": arguments}}
    container.write(tmp_path / "run", found.tensors, document)
    with pytest.raises(InvalidConfigError, match=r"\$number of .* is no number"):
        _restored(tmp_path / "run")


def test_a_step_of_several_numbers(tmp_path: Path) -> None:
    w = torch.nn.Parameter(torch.ones(2))
    opt = optim.Adam([w])
    w.grad = torch.ones(2)
    opt.step()
    checkpoint.save(tmp_path / "run", optimizer=opt, variables={"w": w})
    found = container.read(tmp_path / "run")
    tensors = {
        name: of_tensor(torch.ones(2)) if name.endswith("step") else each
        for name, each in found.tensors.items()
    }
    container.write(tmp_path / "run", tensors, dict(found.document))
    with pytest.raises(CheckpointMismatchError, match=r"'w/step' is of shape \(2,\), not \(\)"):
        checkpoint.restore(tmp_path / "run", optimizer=opt, variables={"w": w})
    assert opt.state[w]["step"].item() == 1


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float32, torch.bool])
def test_counts_that_no_integer_holds(dtype: torch.dtype) -> None:
    with pytest.raises(CheckpointMismatchError, match=r"global_step is 10{30} in the file"):
        as_count(10**30, dtype)


def test_a_power_that_is_no_real_number(tmp_path: Path) -> None:
    made = _Graph()
    node = made.add_variable("w", of_tensor(torch.ones(2)), "w")
    place = made.find_or_add(["optimizer"])
    for kind, name in (("m", "w/Adam"), ("v", "w/Adam_1")):
        made.add_slot(place, node, "w", kind, of_tensor(torch.ones(2)), name)
    for power in ("beta1_power", "beta2_power"):
        made.add_variable(f"optimizer/{power}", of_tensor(torch.tensor(1j)), power)
    made.add_variable("global_step", of_tensor(torch.tensor(5)), "global_step")
    bundle.write(tmp_path / "ckpt", made.tensors, made.as_object_graph())
    own, given = {"w": Variable([0.0, 0.0], "w")}, {"learning_rate": 0.1, "epsilon": 1e-6}
    with pytest.raises(CheckpointMismatchError, match="beta1_power' is complex64"):
        tensorflow.restore(tmp_path / "ckpt", own, **given)
    assert not own["w"].any()
