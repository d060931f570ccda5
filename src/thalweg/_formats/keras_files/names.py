"""Arrays of Keras files, and names for variables that Keras 3 stores under numbers."""

from __future__ import annotations

import re
from typing import Any

from thalweg._formats.hdf5.datasets import ArrayDataset
from thalweg._formats.hdf5.file import Group
from thalweg._formats.stored_tensor import StoredTensor

Arrays = dict[str, StoredTensor]


def array_of(dataset: ArrayDataset) -> StoredTensor:
    """Return the array of a dataset, as bfloat16 if its attribute "dtype" says so."""
    attribute = dataset.attributes.get("dtype")
    is_bfloat16 = (
        attribute is not None and dataset.elements.size == 2 and attribute.texts == [b"bfloat16"]
    )
    return dataset.read("BF16" if is_bfloat16 else None)


VARIABLES, LAYERS = "vars", "layers"  # names of groups

_KERNEL, _SCALE = ("kernel", "bias"), ("gamma", "beta")
_SEPARABLE = ("depthwise_kernel", "pointwise_kernel", "bias")
_CELL = ("kernel", "recurrent_kernel", "bias")
_NAMES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("dense", "einsum_dense", "depthwise_conv1d", "depthwise_conv2d"), _KERNEL),
    **{f"conv{rank}d{suffix}": _KERNEL for suffix in ("", "_transpose") for rank in (1, 2, 3)},
    "separable_conv1d": _SEPARABLE,
    "separable_conv2d": _SEPARABLE,
    "embedding": ("embeddings",),
    "batch_normalization": (*_SCALE, "moving_mean", "moving_variance"),
    "layer_normalization": _SCALE,
    "group_normalization": _SCALE,
    **dict.fromkeys(("cell", "lstm_cell", "gru_cell", "simple_rnn_cell"), _CELL),
}


def by_number(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key that orders names by their numbers: "dense_2" before "dense_10"."""
    pieces = re.split(r"(\d{1,18})", name)
    return tuple((1, int(piece), "") if piece.isdecimal() else (0, 0, piece) for piece in pieces)


def variables_by_path(
    root: Group, datasets_by_group: dict[str, list[ArrayDataset]], layers: dict[str, str]
) -> dict[str, ArrayDataset]:
    """Return {path: dataset}; a path such as "dense/kernel" has the model's layer names.

    If two variables have equal paths, return {path in the file: dataset}.

    Args:
        root: The root group.
        datasets_by_group: {path of a group called "vars": its datasets}.
        layers: {group: name} of the model's layers, as far as known.
    """
    variables: dict[str, ArrayDataset] = {}
    for path, datasets in datasets_by_group.items():
        layer_names = _layer_path(root, path, layers)
        kind = re.sub(r"_\d+$", "", path.split("/")[-2]) if "/" in path else ""
        for dataset, variable_name in zip(datasets, _variable_names(kind, datasets), strict=True):
            variables["/".join((*layer_names, variable_name))] = dataset
    all_datasets = [dataset for datasets in datasets_by_group.values() for dataset in datasets]
    if len(variables) < len(all_datasets):
        return {dataset.name: dataset for dataset in all_datasets}
    return variables


def _variable_names(kind: str, datasets: list[ArrayDataset]) -> list[str]:
    """Return the names of a layer's variables; for unknown classes their numbers as text."""
    indices = [dataset.name.rpartition("/")[2] for dataset in datasets]
    names = _NAMES.get(kind, ())
    if names[-1:] == ("bias",) and len(indices) == len(names) - 1:
        names = names[:-1]
    are_consecutive = indices == [str(index) for index in range(len(names))]
    return list(names) if names and are_consecutive else indices


def _layer_path(root: Group, path: str, layers: dict[str, str]) -> list[str]:
    """Return the names of the layers on the path to a group "vars".

    `layers` is {group: name} for top-level groups. A name stored in the file is preferred.
    """
    layer_names: list[str] = []
    group: Any = root
    for depth, segment in enumerate(path.split("/")[:-1]):
        group = group.members[segment]
        layer_name = (
            layers.get(segment, segment)
            if depth == 1 and path.startswith(f"{LAYERS}/")
            else segment
        )
        if segment != LAYERS:
            layer_names.append(_stored_name(group) or layer_name)
    return layer_names


def _stored_name(group: Group) -> str:
    """Return the layer's name in the model; "" if the file does not have it."""
    inner = group.members.get(VARIABLES)
    if not isinstance(inner, Group) or "name" not in inner.attributes:
        return ""
    return b"".join(inner.attributes["name"].texts).decode(errors="replace")
