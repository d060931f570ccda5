"""Keras' JSON description of an optimizer: plain names and numbers, nothing that is resolved."""

from __future__ import annotations

import re
from typing import Any, cast

from thalweg._formats import json_text
from thalweg._formats.json_text import as_object
from thalweg.errors import InvalidConfigError

# Top-level modules of Keras' own classes; "builtins" is that of plain names.
_KERAS_MODULES = ("keras", "tf_keras", "tensorflow", "builtins")
Described = tuple[str | None, dict[str, Any] | None]


def load_json(title: str, text: bytes) -> dict[str, Any]:
    """Return a JSON text that describes something.

    Raises:
        InvalidConfigError: It is no JSON, or no object.
    """
    try:
        found = json_text.loads(text)
    except InvalidConfigError as error:
        raise InvalidConfigError(f"{title}: {error}") from error
    if not isinstance(found, dict):
        raise InvalidConfigError(f"{title}: a description of something has names and values.")
    return as_object(found)


def optimizer_of(title: str, described: object) -> Described:
    """Return the class and the configuration of an optimizer that a file describes.

    Args:
        title: The file, for errors.
        described: What it says: None, the name of a class, or a dictionary with name and
            configuration.

    Raises:
        InvalidConfigError: It says neither.
    """
    if described is None:
        return None, None
    if isinstance(described, str):
        return _check_class_name(title, described), None
    fields = as_object(described)
    if "class_name" not in fields:
        raise InvalidConfigError(f"{title}: the optimizer has no class.")
    config = fields.get("config")
    if not isinstance(config, dict | None):
        raise InvalidConfigError(f"{title}: the optimizer's configuration is {config!r:.80}.")
    return _qualified_class_name(title, fields), None if config is None else as_object(config)


def _qualified_class_name(title: str, fields: dict[str, Any]) -> str:
    """Return the class name of a serialized object, as "package>Name" unless Keras defines it.

    Keras 3 and `.keras` files keep the package, or the module of a class that is not registered, in
    a field of its own. A class of yours called Adam must not be mistaken for that of Keras.
    """
    name = _check_class_name(title, fields["class_name"])
    registered, module = fields.get("registered_name"), fields.get("module")
    # "Custom" is the package of classes that are registered without one. Keras 2.11 to 2.15 has its
    # own classes there, too, but no registered name for them where there is a module.
    is_yours = "module" in fields and str(registered).startswith("Custom>")
    if isinstance(registered, str) and ">" in registered and not is_yours:
        return _check_class_name(title, registered)
    if module is None and isinstance(registered, str):
        # Keras has no module for a class of a script.
        module = "__main__"
    if ">" in name or not isinstance(module, str) or module.split(".")[0] in _KERAS_MODULES:
        return name
    return _check_class_name(title, f"{module}>{name}")


def _check_class_name(title: str, name: object) -> str:
    if not isinstance(name, str) or not re.fullmatch(r"([\w .-]+>)?[\w ]+", name):
        raise InvalidConfigError(f"{title}: the optimizer's class is {name!r:.80}, which is none.")
    return name


def layers_of(described: dict[str, object]) -> dict[str, str]:
    """Return the names of a model's layers by the groups in which Keras 3 saves them, in its order.

    A group is named as the layer's class, with a number if it is not the first one.
    """
    layers = as_object(described.get("config")).get("layers")
    found: dict[str, str] = {}
    counts: dict[str, int] = {}
    for layer in map(as_object, cast(list[Any], layers) if isinstance(layers, list) else []):
        if isinstance(layer.get("class_name"), str):
            kind = _snake_case(layer["class_name"])
            count = counts[kind] = counts.get(kind, -1) + 1
            group = f"{kind}_{count}" if count else kind
            name = as_object(layer.get("config")).get("name")
            found[group] = name if isinstance(name, str) and name else group
    return found


def _snake_case(name: str) -> str:
    """The name of a class as Keras writes it in paths: "batch_normalization", "conv2d"."""
    return re.sub(r"(?<=.)(?=[A-Z][a-z])|(?<=[a-z])(?=[A-Z])", "_", name).lower()
