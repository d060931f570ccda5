"""Reader of the `.h5` files of Keras 2 and `tf.keras`.

The names of all variables are in attributes, "layer_names" and "weight_names", in the model's
order; the group of a layer, or of the optimizer, has them as paths.
"""

from __future__ import annotations

from collections.abc import Iterator

from thalweg._formats.hdf5.datasets import ArrayDataset
from thalweg._formats.hdf5.file import Group
from thalweg._formats.keras_files.config import OptimizerDescription, load_json, optimizer_of
from thalweg._formats.keras_files.keras3 import Arrays, array_of
from thalweg._formats.source import SourceFile

_MODEL, _OPTIMIZER = "model_weights", "optimizer_weights"
_LAYERS, _VARIABLES = "layer_names", "weight_names"
_TOP = "top_level_model_weights"  # weights of the model outside of its layers


def is_legacy(root: Group) -> bool:
    """Return True if a file is a legacy model, or the legacy result of `save_weights`."""
    return _MODEL in root.members or bool({_LAYERS, f"{_LAYERS}0"} & set(root.attributes))


def read(source: SourceFile, root: Group) -> tuple[OptimizerDescription, Arrays, Arrays]:
    """Return ((class name, configuration) of the optimizer, its arrays, the model's arrays)."""
    description: OptimizerDescription = None, None
    if "training_config" in root.attributes:
        attribute = root.attributes["training_config"]
        label = f"{source.title}: {attribute.name}"
        config = load_json(label, b"".join(attribute.texts))
        description = optimizer_of(label, config.get("optimizer_config"))
    model, optimizer = root.members.get(_MODEL, root), root.members.get(_OPTIMIZER)
    arrays = {} if optimizer is None else _read_arrays(source, _check_group(source, optimizer))
    return description, arrays, _read_variables(source, _check_group(source, model))


def _read_variables(source: SourceFile, model: Group) -> Arrays:
    """Return {name: array} of the model; if any names are equal, {layer/name: array} for all."""
    layers = list(_read_names(source, model, _LAYERS))
    if _TOP in model.members and _TOP not in layers:
        layers.append(_TOP)
    arrays_by_layer = {
        layer: _read_arrays(source, _check_group(source, _find_member(source, model, layer)))
        for layer in layers
    }
    names = [name for arrays in arrays_by_layer.values() for name in arrays]
    are_unique = len(set(names)) == len(names)
    return {
        name if are_unique else f"{layer}/{name}": array
        for layer, arrays in arrays_by_layer.items()
        for name, array in arrays.items()
    }


def _read_arrays(source: SourceFile, group: Group) -> Arrays:
    """Return {name without ":0": array} of the arrays that an attribute of a group lists."""
    arrays: Arrays = {}
    for name in _read_names(source, group, _VARIABLES):
        dataset = _find_member(source, group, name)
        if not isinstance(dataset, ArrayDataset):
            raise source.data_loss_error(0, f"{group.name}/{name} is no dataset")
        array_name = name.removesuffix(":0")
        if array_name in arrays:
            raise source.data_loss_error(0, f"{group.name!r} lists {name!r} twice")
        arrays[array_name] = array_of(dataset)
    return arrays


def _read_names(source: SourceFile, group: Group, list_name: str) -> Iterator[str]:
    """Yield the names in the attribute `list_name`, or if it is split, `list_name` + "0", "1"..."""
    attributes = group.attributes
    if list_name not in attributes and f"{list_name}0" not in attributes:
        raise source.data_loss_error(0, f"{group.name!r} has no {list_name!r}")
    numbered = [f"{list_name}{index}" for index in range(len(attributes))]
    for attribute in [list_name] if list_name in attributes else numbered:
        for text in attributes[attribute].texts if attribute in attributes else []:
            try:
                yield text.decode()
            except UnicodeDecodeError as error:
                raise source.data_loss_error(0, f"{group.name!r} lists {text[:40]!r}") from error


def _find_member(source: SourceFile, group: Group, path: str) -> Group | ArrayDataset:
    """Return the member at a path below a group; raise DataLossError if it is missing."""
    member: Group | ArrayDataset | None = group
    for segment in path.split("/"):
        member = member.members.get(segment) if isinstance(member, Group) else None
    if member is None:
        raise source.data_loss_error(0, f"{group.name}/{path} is listed and not there")
    return member


def _check_group(source: SourceFile, node: Group | ArrayDataset) -> Group:
    """Return a node if it is a group; raise DataLossError if it is a dataset."""
    if isinstance(node, ArrayDataset):
        raise source.data_loss_error(0, f"{node.name!r} is no group")
    return node
