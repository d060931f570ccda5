"""The `.h5` files of Keras 2 and `tf.keras`.

The names of all variables are in attributes, "layer_names" and "weight_names", in the model's
order; the group of a layer, or of the optimizer, has them as paths.
"""

from __future__ import annotations

from collections.abc import Iterator

from thalweg._formats.hdf5.attributes import TextAttribute
from thalweg._formats.hdf5.datasets import ArrayDataset
from thalweg._formats.hdf5.file import Group
from thalweg._formats.keras_files.arrays import Arrays, array_of
from thalweg._formats.keras_files.config import Described, load_json, optimizer_of
from thalweg._formats.source import SourceFile

_MODEL, _OPTIMIZER = "model_weights", "optimizer_weights"
_LAYERS, _VARIABLES = "layer_names", "weight_names"
_TOP = "top_level_model_weights"  # what belongs to the model and to none of its layers


def is_legacy(root: Group) -> bool:
    """Return True if a file is a whole legacy model or, from `save_weights`, its layers."""
    return _MODEL in root.members or bool({_LAYERS, f"{_LAYERS}0"} & set(root.attributes))


def read(source: SourceFile, root: Group) -> tuple[Described, Arrays, Arrays]:
    """Return the optimizer's class and configuration, its arrays and the model's."""
    found: Described = None, None
    if "training_config" in root.attributes:
        found = _describe_optimizer(source, root.attributes["training_config"])
    model, optimizer = root.members.get(_MODEL, root), root.members.get(_OPTIMIZER)
    arrays = {} if optimizer is None else _read_arrays(source, _check_group(source, optimizer))
    return found, arrays, _read_variables(source, _check_group(source, model))


def _describe_optimizer(source: SourceFile, attribute: TextAttribute) -> Described:
    title = f"{source.title}: {attribute.name}"
    return optimizer_of(
        title, load_json(title, b"".join(attribute.read_texts())).get("optimizer_config")
    )


def _read_variables(source: SourceFile, model: Group) -> Arrays:
    """The variables by name; where two layers share one, by that of the layer and theirs."""
    layers = list(_read_names(source, model, _LAYERS))
    if _TOP in model.members and _TOP not in layers:
        layers.append(_TOP)
    found = {
        layer: _read_arrays(source, _check_group(source, _find_member(source, model, layer)))
        for layer in layers
    }
    names = [name for arrays in found.values() for name in arrays]
    are_unique = len(set(names)) == len(names)
    return {
        name if are_unique else f"{layer}/{name}": each
        for layer, arrays in found.items()
        for name, each in arrays.items()
    }


def _read_arrays(source: SourceFile, group: Group) -> Arrays:
    """The arrays that a group lists, without the ":0" that TensorFlow's names end in."""
    found: Arrays = {}
    for name in _read_names(source, group, _VARIABLES):
        dataset = _find_member(source, group, name)
        if not isinstance(dataset, ArrayDataset):
            raise source.data_loss_error(0, f"{group.name}/{name} is no dataset")
        title = name.removesuffix(":0")
        if title in found:
            raise source.data_loss_error(0, f"{group.name!r} lists {name!r} twice")
        found[title] = array_of(dataset)
    return found


def _read_names(source: SourceFile, group: Group, title: str) -> Iterator[str]:
    """A list of names; a long one is in several attributes, numbered from 0."""
    found = group.attributes
    if title not in found and f"{title}0" not in found:
        raise source.data_loss_error(0, f"{group.name!r} has no {title!r}")
    titles = [title] if title in found else [f"{title}{number}" for number in range(len(found))]
    for each in titles:
        for text in found[each].read_texts() if each in found else []:
            try:
                yield text.decode()
            except UnicodeDecodeError as error:
                raise source.data_loss_error(0, f"{group.name!r} lists {text[:40]!r}") from error


def _find_member(source: SourceFile, group: Group, path: str) -> Group | ArrayDataset:
    found: Group | ArrayDataset | None = group
    for part in path.split("/"):
        found = found.members.get(part) if isinstance(found, Group) else None
    if found is None:
        raise source.data_loss_error(0, f"{group.name}/{path} is listed and not there")
    return found


def _check_group(source: SourceFile, found: Group | ArrayDataset) -> Group:
    if isinstance(found, ArrayDataset):
        raise source.data_loss_error(0, f"{found.name!r} is no group")
    return found
