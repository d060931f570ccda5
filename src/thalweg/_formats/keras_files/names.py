"""Names for what Keras 3 has numbered."""

from __future__ import annotations

import re
from typing import Any

from thalweg._formats.hdf5.datasets import ArrayDataset
from thalweg._formats.hdf5.file import Group

VARIABLES, LAYERS = "vars", "layers"  # groups of what something has

_KERNEL, _SCALED = ("kernel", "bias"), ("gamma", "beta")
_SEPARABLE = ("depthwise_kernel", "pointwise_kernel", "bias")
_CELL = ("kernel", "recurrent_kernel", "bias")
_NAMES: dict[str, tuple[str, ...]] = {
    "dense": _KERNEL,
    "einsum_dense": _KERNEL,
    "conv1d": _KERNEL,
    "conv2d": _KERNEL,
    "conv3d": _KERNEL,
    "conv1d_transpose": _KERNEL,
    "conv2d_transpose": _KERNEL,
    "conv3d_transpose": _KERNEL,
    "depthwise_conv1d": _KERNEL,
    "depthwise_conv2d": _KERNEL,
    "separable_conv1d": _SEPARABLE,
    "separable_conv2d": _SEPARABLE,
    "embedding": ("embeddings",),
    "batch_normalization": (*_SCALED, "moving_mean", "moving_variance"),
    "layer_normalization": _SCALED,
    "group_normalization": _SCALED,
    "cell": _CELL,
    "lstm_cell": _CELL,
    "gru_cell": _CELL,
    "simple_rnn_cell": _CELL,
}


def by_number(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key that orders names by their numbers: "dense_2" before "dense_10"."""
    parts = re.split(r"(\d{1,18})", name)
    return tuple((1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts)


def variables_by_path(
    root: Group, owners: dict[str, list[ArrayDataset]], layers: dict[str, str]
) -> dict[str, ArrayDataset]:
    """Variables by path, "dense/kernel": the layers' names in the model, and what a layer has.

    If that would give two variables one name, all have their path in the file.

    Args:
        root: The file's first group.
        owners: The numbered variables of each group that is called "vars".
        layers: The names of the model's layers by their groups, as far as they are known.
    """
    found: dict[str, ArrayDataset] = {}
    for path, datasets in owners.items():
        title = _layer_path(root, path, layers)
        kind = re.sub(r"_\d+$", "", path.split("/")[-2]) if "/" in path else ""
        for dataset, own in zip(datasets, _variable_names(kind, datasets), strict=True):
            found["/".join((*title, own))] = dataset
    every = [dataset for datasets in owners.values() for dataset in datasets]
    if len(found) < len(every):
        return {dataset.name: dataset for dataset in every}
    return found


def _variable_names(kind: str, datasets: list[ArrayDataset]) -> list[str]:
    """The names of a layer's variables, or their numbers where the names are not known."""
    numbers = [dataset.name.rpartition("/")[2] for dataset in datasets]
    names = _NAMES.get(kind, ())
    if names[-1:] == ("bias",) and len(numbers) == len(names) - 1:
        names = names[:-1]
    is_plain = numbers == [str(number) for number in range(len(names))]
    return list(names) if names and is_plain else numbers


def _layer_path(root: Group, path: str, layers: dict[str, str]) -> list[str]:
    title: list[str] = []
    group: Any = root
    for place, part in enumerate(path.split("/")[:-1]):
        group = group.members[part]
        known = layers.get(part, part) if place == 1 and path.startswith(f"{LAYERS}/") else part
        if part != LAYERS:
            title.append(_stored_name(group) or known)
    return title


def _stored_name(group: Group) -> str:
    """The name that a layer has in the model, "" if the file does not say it."""
    inner = group.members.get(VARIABLES)
    if not isinstance(inner, Group) or "name" not in inner.attributes:
        return ""
    return b"".join(inner.attributes["name"].read_texts()).decode(errors="replace")
