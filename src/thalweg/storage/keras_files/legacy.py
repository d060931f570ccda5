"""The `.h5` files of Keras 2 and `tf.keras`.

The names of all variables are in attributes, "layer_names" and "weight_names", in the model's
order; the group of a layer, or of the optimizer, has them as paths.
"""

from __future__ import annotations

from collections.abc import Iterator

from thalweg.storage.hdf5.attributes import Attribute
from thalweg.storage.hdf5.datasets import Dataset
from thalweg.storage.hdf5.file import Group
from thalweg.storage.keras_files.arrays import Arrays, array
from thalweg.storage.keras_files.config import Described, loaded, optimizer_of
from thalweg.storage.source import Source

_MODEL, _OPTIMIZER = "model_weights", "optimizer_weights"
_LAYERS, _VARIABLES = "layer_names", "weight_names"
_TOP = "top_level_model_weights"  # what belongs to the model and to none of its layers


def is_legacy(root: Group) -> bool:
    """Whether a file is one of these: a whole model, or (as `save_weights` has it) its layers."""
    return _MODEL in root.members or bool({_LAYERS, f"{_LAYERS}0"} & set(root.attributes))


def read(source: Source, root: Group) -> tuple[Described, Arrays, Arrays]:
    """The optimizer's class and configuration, its arrays and the model's."""
    found: Described = None, None
    if "training_config" in root.attributes:
        found = _described(source, root.attributes["training_config"])
    model, optimizer = root.members.get(_MODEL, root), root.members.get(_OPTIMIZER)
    arrays = {} if optimizer is None else _arrays(source, _group(source, optimizer))
    return found, arrays, _variables(source, _group(source, model))


def _described(source: Source, attribute: Attribute) -> Described:
    title = f"{source.title}: {attribute.name}"
    return optimizer_of(title, loaded(title, b"".join(attribute.texts())).get("optimizer_config"))


def _variables(source: Source, model: Group) -> Arrays:
    """The variables by name; where two layers share one, by that of the layer and theirs."""
    layers = list(_names(source, model, _LAYERS))
    if _TOP in model.members and _TOP not in layers:
        layers.append(_TOP)
    found = {layer: _arrays(source, _group(source, _at(source, model, layer))) for layer in layers}
    names = [name for arrays in found.values() for name in arrays]
    are_unique = len(set(names)) == len(names)
    return {
        name if are_unique else f"{layer}/{name}": each
        for layer, arrays in found.items()
        for name, each in arrays.items()
    }


def _arrays(source: Source, group: Group) -> Arrays:
    """The arrays that a group lists, without the ":0" that TensorFlow's names end in."""
    found: Arrays = {}
    for name in _names(source, group, _VARIABLES):
        dataset = _at(source, group, name)
        if not isinstance(dataset, Dataset):
            raise source.damaged(0, f"{group.name}/{name} is no dataset")
        title = name.removesuffix(":0")
        if title in found:
            raise source.damaged(0, f"{group.name!r} lists {name!r} twice")
        found[title] = array(dataset)
    return found


def _names(source: Source, group: Group, title: str) -> Iterator[str]:
    """A list of names; a long one is in several attributes, numbered from 0."""
    found = group.attributes
    if title not in found and f"{title}0" not in found:
        raise source.damaged(0, f"{group.name!r} has no {title!r}")
    titles = [title] if title in found else [f"{title}{number}" for number in range(len(found))]
    for each in titles:
        for text in found[each].texts() if each in found else []:
            try:
                yield text.decode()
            except UnicodeDecodeError as error:
                raise source.damaged(0, f"{group.name!r} lists {text[:40]!r}") from error


def _at(source: Source, group: Group, path: str) -> Group | Dataset:
    found: Group | Dataset | None = group
    for part in path.split("/"):
        found = found.members.get(part) if isinstance(found, Group) else None
    if found is None:
        raise source.damaged(0, f"{group.name}/{path} is listed and not there")
    return found


def _group(source: Source, found: Group | Dataset) -> Group:
    if isinstance(found, Dataset):
        raise source.damaged(0, f"{found.name!r} is no group")
    return found
