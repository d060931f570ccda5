"""Bundles that Thalweg writes and TensorFlow restores: `tests/goldens/checkpoints/bundles/ours*`.

`python tests/support/bundle_examples.py DIR` writes the files again, with their values.json;
`tools/record_bundles.py --restore DIR` has TensorFlow restore them.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from thalweg._formats import bundle, stored_tensor
from thalweg._formats.bundle import Node, ObjectGraph, SavedAttribute, SlotVariable
from thalweg._formats.stored_tensor import StoredTensor

VALUE = ".ATTRIBUTES/VARIABLE_VALUE"
SLOT = ".OPTIMIZER_SLOT/optimizer"
DTYPES = {
    "F32": torch.float32, "F64": torch.float64, "F16": torch.float16, "BF16": torch.bfloat16,
    "I8": torch.int8, "I16": torch.int16, "I32": torch.int32, "I64": torch.int64,
    "U8": torch.uint8, "U16": torch.uint16, "U32": torch.uint32, "U64": torch.uint64,
    "BOOL": torch.bool, "C64": torch.complex64, "C128": torch.complex128,
}  # fmt: skip
TENSORFLOW = {
    **{key: str(dtype).removeprefix("torch.") for key, dtype in DTYPES.items()},
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
}
BITS = [0.0, -0.0, 1e-40, float("inf"), -float("inf"), float("nan"), 3.4e38, 0.1]


def by_name() -> dict[str, StoredTensor]:
    """Return tensors of all dtypes, as of `tf.train.Saver`."""
    tensors: dict[str, Tensor] = {
        "layer/kernel": torch.arange(12.0).reshape(3, 4),
        "layer/kernel/Adam": -torch.arange(12.0).reshape(3, 4),
        "layer/kernel/Adam_1": torch.arange(12.0).reshape(3, 4) / 7,
        "bits": torch.tensor(BITS),
        "beta1_power": torch.tensor(0.59049),
        "global_step": torch.tensor(5),
        "empty": torch.zeros(0, 3),
    }
    for key, dtype in DTYPES.items():
        tensors[f"dtypes/{key}"] = torch.tensor([[0, 1, 1], [1, 0, 1]]).to(dtype)
    return {name: stored_tensor.of_tensor(tensor) for name, tensor in tensors.items()}


def as_objects() -> tuple[dict[str, StoredTensor], ObjectGraph]:
    """Return a model of two variables with Adam's slots and powers, as of `tf.train.Checkpoint`."""
    names = {
        "step": "step",
        "save_counter": "save_counter",  # `Checkpoint.restore` makes one, and asks for its value
        "model/w": "w",
        "model/b": "b",
        "optimizer/beta1_power": "beta1_power",
        "optimizer/beta2_power": "beta2_power",
        f"model/w/{SLOT}/m": "w/Adam",
        f"model/b/{SLOT}/m": "b/Adam",
        f"model/w/{SLOT}/v": "w/Adam_1",
        f"model/b/{SLOT}/v": "b/Adam_1",
    }
    shapes = {"w": (3, 2), "b": (1,)}
    stored_tensors: dict[str, StoredTensor] = {}
    leaves: list[Node] = []
    for place, (path, name) in enumerate(names.items()):
        shape = shapes.get(name.split("/")[0], ())
        value = torch.full(shape, 0.1) * (place + 1) + torch.arange(6.0)[: len(shape) * 6].sum()
        if name in ("step", "save_counter"):
            value = torch.tensor(2**40 + place)
        elif shape:
            value = value + torch.arange(float(value.numel())).reshape(shape) / 3
        stored_tensors[f"{path}/{VALUE}"] = stored_tensor.of_tensor(value)
        leaves.append(Node(attributes=(SavedAttribute("VARIABLE_VALUE", name, f"{path}/{VALUE}"),)))
    root = Node({"model": 1, "optimizer": 2, "step": 3, "save_counter": 4})
    model = Node({"w": 5, "b": 6})
    slots = tuple(
        SlotVariable(var, slot, 9 + place)
        for place, (slot, var) in enumerate((s, v) for s in "mv" for v in (5, 6))
    )
    optimizer = Node({"beta1_power": 7, "beta2_power": 8}, (), slots)
    return stored_tensors, ObjectGraph((root, model, optimizer, *leaves))


def describe_tensor(tensor: StoredTensor) -> list[Any]:
    return [TENSORFLOW[tensor.dtype], list(tensor.shape), tensor.data.hex()]


def digests(folder: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.glob("model.ckpt.*"))
    }


def write(home: Path) -> None:
    """Write both bundles with their values and hashes."""
    for name, (tensors, graph) in {
        "ours": (by_name(), None),
        "ours_object": as_objects(),
    }.items():
        folder = home / name
        folder.mkdir(parents=True, exist_ok=True)
        bundle.write(folder / "model.ckpt", tensors, graph)
        contents = {
            "sha256": digests(folder),
            "tensors": {key: describe_tensor(tensor) for key, tensor in tensors.items()},
        }
        (folder / "values.json").write_text(json.dumps(contents, indent=0) + "\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
