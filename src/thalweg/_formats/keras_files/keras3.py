"""Reader of the files that Keras 3 saves.

A `.keras` file is an archive with a description of the model, which has the optimizer's
configuration, and with the variables as a `.weights.h5` file. There a group "vars" has the
variables of a layer or an optimizer, numbered: "layers/dense_1/vars/0".
"""

from __future__ import annotations

from collections.abc import Iterable

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
from thalweg._formats.keras_files.names import (
    LAYERS,
    VARIABLES,
    Arrays,
    array_of,
    by_number,
    variables_by_path,
)
from thalweg._formats.source import SourceFile

CONFIG, WEIGHTS = "config.json", "model.weights.h5"
_OPTIMIZER = "optimizer"
_METRICS = "metrics"  # sums of metrics, which Keras 2.12 to 2.15 saved, too
_LARGEST = 100_000_000  # bytes of a description


Place = tuple[int | None, str]  # number of a layer in the model, if known, and its group


def read_archive(
    source: SourceFile,
) -> tuple[OptimizerDescription, Arrays, Arrays, dict[str, Place]]:
    """Return the contents of a `.keras` file.

    Returns:
        (class name, configuration) of the optimizer, {name: array} of the optimizer, {name: array}
        of the model, and {name: (index of the layer or None, group)} of the model's arrays.
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
    positions = {f"{LAYERS}/{group}": index for index, group in enumerate(layers)}

    def place_of(path: str) -> tuple[int, object]:
        return positions.get("/".join(path.split("/")[:2]), len(positions)), by_number(path)

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
    variables = variables_by_path(root, ordered_groups, layers)
    groups = {dataset.name: dataset.name.rsplit("/", 2)[0] for dataset in variables.values()}
    locations = {
        name: (positions.get("/".join(dataset.name.split("/")[:2])), groups[dataset.name])
        for name, dataset in variables.items()
    }
    return optimizer, {name: array_of(dataset) for name, dataset in variables.items()}, locations


def _variables_by_group(source: SourceFile, root: Group) -> dict[str, list[ArrayDataset]]:
    """Return {path: datasets in numerical order} of all groups that are called "vars"."""
    groups: dict[str, list[ArrayDataset]] = {}
    for dataset in sorted(root.iterate_datasets(), key=lambda array: by_number(array.name)):
        path = dataset.name.rpartition("/")[0]
        if path.split("/")[0] == _METRICS:
            continue
        if path.rpartition("/")[2] != VARIABLES:
            text = f"an HDF5 file, but not one of Keras: {dataset.name!r} is in no group 'vars'"
            raise source.unsupported_error(0, text)
        groups.setdefault(path, []).append(dataset)
    if not groups:
        raise source.unsupported_error(0, "an HDF5 file without variables")
    return groups
