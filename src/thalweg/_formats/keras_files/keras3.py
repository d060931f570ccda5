"""Reader of the files that Keras 3 saves.

A `.keras` file is an archive with a description of the model, which has the optimizer's
configuration, and with the variables as a `.weights.h5` file. There a group "vars" has the
variables of a layer or an optimizer, numbered: "layers/dense_1/vars/0".
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from thalweg._formats.hdf5 import file
from thalweg._formats.hdf5.datasets import ArrayDataset
from thalweg._formats.hdf5.file import Group
from thalweg._formats.json_text import as_object
from thalweg._formats.keras_files import archive as zipped
from thalweg._formats.keras_files.config import (
    OptimizerDescription,
    layers_of,
    load_json,
    optimizer_of,
)
from thalweg._formats.source import SourceFile
from thalweg._formats.stored_tensor import StoredTensor

CONFIG, WEIGHTS = "config.json", "model.weights.h5"
_OPTIMIZER = "optimizer"
_METRICS = "metrics"  # sums of metrics, which Keras 2.12 to 2.15 saved, too
_VARIABLES, _LAYERS = "vars", "layers"  # names of groups
_LARGEST = 100_000_000  # bytes of a description

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

Arrays = dict[str, StoredTensor]
Place = tuple[int | None, str]  # number of a layer in the model, if known, and its group


def read_archive(
    source: SourceFile,
) -> tuple[OptimizerDescription, Arrays, Arrays, dict[str, Place]]:
    """Return the contents of a `.keras` file.

    Returns:
        (class name, configuration) of the optimizer, {name: array} of the optimizer, {name: array}
        of the model, and {name: (index of the layer, group)} of the model's arrays. The index is
        None if the layer is unknown.
    """
    members = zipped.list_members(source)
    for name in (WEIGHTS, CONFIG):
        if name not in members:
            raise _missing_member_error(source, name, members)
    if members[CONFIG].size > _LARGEST:
        raise source.data_loss_error(members[CONFIG].begin, f"{CONFIG!r} has more than 100 MB")
    text = zipped.read_member(source, members[CONFIG])
    description = load_json(text.title, bytes(text.read_uncounted(0, text.size)))
    compiled = as_object(description.get("compile_config"))
    optimizer = optimizer_of(text.title, compiled.get("optimizer"))
    inner = zipped.read_member(source, members[WEIGHTS])
    return optimizer, *read_weights(inner, file.root_group(inner), layers_of(description))


def _missing_member_error(source: SourceFile, name: str, members: Iterable[str]) -> Exception:
    """Return the error for an archive without the member `name`."""
    candidates = [name for name in members if name.startswith("model.") and name != WEIGHTS]
    if name == WEIGHTS and candidates:
        return source.unsupported_error(
            0, f"weights in {candidates[0]!r} are not read, only in {name!r}"
        )
    first = next(iter(members), "nothing")
    return source.data_loss_error(
        0, f"the archive has no {name!r}, as a file of Keras has; it begins with {first[:80]!r}"
    )


def read_weights(
    source: SourceFile, root: Group, layers: dict[str, str]
) -> tuple[Arrays, Arrays, dict[str, Place]]:
    """Return the arrays in a `.weights.h5` file.

    Args:
        source: The file.
        root: The root group.
        layers: {group: name} of the model's layers in the model's order; {} if unknown.

    Returns:
        {name: array} of the optimizer, {name: array} of the model, and {name: (index of the layer
        or None, group)} of the model's arrays.

    Raises:
        UnsupportedCheckpointError: The file is not a file of Keras.
    """
    positions = {f"{_LAYERS}/{group}": index for index, group in enumerate(layers)}

    def place_of(path: str) -> tuple[int, object]:
        return positions.get("/".join(path.split("/")[:2]), len(positions)), _by_number(path)

    datasets_by_group = _variables_by_group(source, root)
    ordered_groups = {
        path: datasets_by_group[path] for path in sorted(datasets_by_group, key=place_of)
    }
    optimizer: Arrays = {}
    for path in [path for path in ordered_groups if path.split("/")[0] == _OPTIMIZER]:
        for index, dataset in enumerate(ordered_groups.pop(path)):
            if dataset.name != f"{path}/{index}":
                raise source.data_loss_error(0, f"{path}/{index} is missing")
            optimizer[dataset.name] = array_of(dataset)
    variables = _variables_by_path(root, ordered_groups, layers)
    locations: dict[str, Place] = {}
    for name, dataset in variables.items():
        layer = "/".join(dataset.name.split("/")[:2])
        locations[name] = positions.get(layer), dataset.name.rsplit("/", 2)[0]
    return optimizer, {name: array_of(dataset) for name, dataset in variables.items()}, locations


def _variables_by_group(source: SourceFile, root: Group) -> dict[str, list[ArrayDataset]]:
    """Return {path: datasets in numerical order} of all groups that are called "vars"."""
    groups: dict[str, list[ArrayDataset]] = {}
    for dataset in sorted(root.iterate_datasets(), key=lambda array: _by_number(array.name)):
        path = dataset.name.rpartition("/")[0]
        if path.split("/")[0] == _METRICS:
            continue
        if path.rpartition("/")[2] != _VARIABLES:
            text = f"an HDF5 file, but not one of Keras: {dataset.name!r} is in no group 'vars'"
            raise source.unsupported_error(0, text)
        groups.setdefault(path, []).append(dataset)
    if not groups:
        raise source.unsupported_error(0, "an HDF5 file without variables")
    return groups


def array_of(dataset: ArrayDataset) -> StoredTensor:
    """Return the array of a dataset, as bfloat16 if its attribute "dtype" says so."""
    attribute = dataset.attributes.get("dtype")
    is_bfloat16 = (
        attribute is not None and dataset.elements.size == 2 and attribute.texts == [b"bfloat16"]
    )
    return dataset.read("BF16" if is_bfloat16 else None)


def _by_number(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key that orders names by their numbers: "dense_2" before "dense_10"."""
    pieces = re.split(r"(\d{1,18})", name)
    return tuple((1, int(piece), "") if piece.isdecimal() else (0, 0, piece) for piece in pieces)


def _variables_by_path(
    root: Group, datasets_by_group: dict[str, list[ArrayDataset]], layers: dict[str, str]
) -> dict[str, ArrayDataset]:
    """Return {path: dataset}; a path such as "dense/kernel" has the model's layer names.

    If any two variables have equal paths, the keys of all variables are the paths in the file.

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
        is_layer = depth == 1 and path.startswith(f"{_LAYERS}/")
        layer_name = layers.get(segment, segment) if is_layer else segment
        if segment != _LAYERS:
            layer_names.append(_stored_name(group) or layer_name)
    return layer_names


def _stored_name(group: Group) -> str:
    """Return the layer's name in the model; "" if the file does not have it."""
    inner = group.members.get(_VARIABLES)
    if not isinstance(inner, Group) or "name" not in inner.attributes:
        return ""
    return b"".join(inner.attributes["name"].texts).decode(errors="replace")
