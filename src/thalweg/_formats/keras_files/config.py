"""Keras' JSON description of an optimizer: plain names and numbers."""

from __future__ import annotations

import re
from typing import Any, cast

from thalweg._formats import json_text
from thalweg._formats.json_text import as_object
from thalweg.errors import InvalidConfigError

# Top-level modules of Keras' classes; "builtins" is the module of plain names.
_KERAS_MODULES = ("keras", "tf_keras", "tensorflow", "builtins")
OptimizerDescription = tuple[str | None, dict[str, Any] | None]


def load_json(source: str, text: bytes) -> dict[str, Any]:
    """Return the JSON object in a text; `source` names the text in errors.

    Raise InvalidConfigError if the text is not JSON, or not an object.
    """
    try:
        decoded = json_text.loads(text)
    except InvalidConfigError as error:
        raise InvalidConfigError(f"{source}: {error}") from error
    if not isinstance(decoded, dict):
        raise InvalidConfigError(f"{source}: a description of something has names and values.")
    return as_object(decoded)


def optimizer_of(source: str, description: object) -> OptimizerDescription:
    """Return (class name or None, configuration or None) of an optimizer.

    Args:
        source: The file, for errors.
        description: None, the name of a class, or a dictionary with name and configuration.

    Raises:
        InvalidConfigError: `description` is invalid.
    """
    if description is None:
        return None, None
    if isinstance(description, str):
        return _check_class_name(source, description), None
    fields = as_object(description)
    if "class_name" not in fields:
        raise InvalidConfigError(f"{source}: the optimizer has no class.")
    config = fields.get("config")
    if not isinstance(config, dict | None):
        raise InvalidConfigError(f"{source}: the optimizer's configuration is {config!r:.80}.")
    return _qualified_class_name(source, fields), None if config is None else as_object(config)


def _qualified_class_name(source: str, fields: dict[str, Any]) -> str:
    """Return the class name of a serialized object, for users' classes as "package>Name".

    The package is stored in a separate field. A user's class called Adam must not be mistaken for
    Keras' Adam.
    """
    name = _check_class_name(source, fields["class_name"])
    registered, module = fields.get("registered_name"), fields.get("module")
    # "Custom" is the package of classes that are registered without one, also of Keras' classes in
    # 2.11 to 2.15; but these have no registered name if there is a module.
    is_yours = "module" in fields and str(registered).startswith("Custom>")
    if isinstance(registered, str) and ">" in registered and not is_yours:
        return _check_class_name(source, registered)
    if module is None and isinstance(registered, str):
        # Keras saves no module for classes of scripts.
        module = "__main__"
    if ">" in name or not isinstance(module, str) or module.split(".")[0] in _KERAS_MODULES:
        return name
    return _check_class_name(source, f"{module}>{name}")


def _check_class_name(source: str, name: object) -> str:
    """Return the name of a class; raise InvalidConfigError unless it is a string."""
    if not isinstance(name, str) or not re.fullmatch(r"([\w .-]+>)?[\w ]+", name):
        raise InvalidConfigError(f"{source}: the optimizer's class is {name!r:.80}, which is none.")
    return name


def layers_of(description: dict[str, object]) -> dict[str, str]:
    """Return {HDF5 group: layer name} from a model's JSON description, in the model's order.

    Keras 3 names the groups by class: those of dense layers are "dense", "dense_1", "dense_2".
    """
    layers = as_object(description.get("config")).get("layers")
    names: dict[str, str] = {}
    counts: dict[str, int] = {}
    for layer in map(as_object, cast(list[Any], layers) if isinstance(layers, list) else []):
        if isinstance(layer.get("class_name"), str):
            kind = _snake_case(layer["class_name"])
            count = counts[kind] = counts.get(kind, -1) + 1
            group = f"{kind}_{count}" if count else kind
            name = as_object(layer.get("config")).get("name")
            names[group] = name if isinstance(name, str) and name else group
    return names


def _snake_case(name: str) -> str:
    """Return the name of a class as in Keras' paths: "batch_normalization", "conv2d"."""
    return re.sub(r"(?<=.)(?=[A-Z][a-z])|(?<=[a-z])(?=[A-Z])", "_", name).lower()
