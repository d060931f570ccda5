"""What Keras 3 saves.

A `.keras` file is an archive with a description of the model, which says how the optimizer was
configured, and with the variables as a `.weights.h5` file. There a group "vars" has the variables
of a layer or an optimizer, numbered: "layers/dense_1/vars/0".
"""

from __future__ import annotations

from collections.abc import Iterable

from thalweg.storage.hdf5 import file
from thalweg.storage.hdf5.datasets import Dataset
from thalweg.storage.hdf5.file import Group
from thalweg.storage.json_text import table
from thalweg.storage.keras_files import archive as zipped
from thalweg.storage.keras_files.arrays import Arrays, array
from thalweg.storage.keras_files.config import Described, layers_of, loaded, optimizer_of
from thalweg.storage.keras_files.names import LAYERS, VARIABLES, by_number, named
from thalweg.storage.source import Source

CONFIG, WEIGHTS = "config.json", "model.weights.h5"
_OPTIMIZER = "optimizer"
_METRICS = "metrics"  # sums that Keras 2.12 to 2.15 saved, too, and that are not the model's
_LARGEST = 100_000_000  # bytes of a description


Place = tuple[int | None, str]  # of a layer in the model, if that is known, and its group


def archive(source: Source) -> tuple[Described, Arrays, Arrays, dict[str, Place]]:
    """The optimizer's class and configuration, and what `weights` returns, of a `.keras` file."""
    members = zipped.members(source)
    for name in (WEIGHTS, CONFIG):
        if name not in members:
            raise _without(source, name, members)
    if members[CONFIG].size > _LARGEST:
        raise source.damaged(members[CONFIG].begin, f"{CONFIG!r} has more than 100 MB")
    text = zipped.content(source, members[CONFIG])
    described = loaded(text.title, bytes(text.raw(0, text.size)))
    compiled = table(described.get("compile_config"))
    found = optimizer_of(text.title, compiled.get("optimizer"))
    inner = zipped.content(source, members[WEIGHTS])
    return found, *weights(inner, file.root(inner), layers_of(described))


def _without(source: Source, name: str, members: Iterable[str]) -> Exception:
    others = [each for each in members if each.startswith("model.") and each != WEIGHTS]
    if name == WEIGHTS and others:
        return source.unsupported(0, f"weights in {others[0]!r} are not read, only in {name!r}")
    first = next(iter(members), "nothing")
    return source.damaged(
        0, f"the archive has no {name!r}, as a file of Keras has; it begins with {first[:80]!r}"
    )


def weights(
    source: Source, root: Group, layers: dict[str, str]
) -> tuple[Arrays, Arrays, dict[str, Place]]:
    """The optimizer's arrays, the model's, and where these are.

    Args:
        source: The file.
        root: Its first group.
        layers: The names of the model's layers by their groups, in its order, if it is known.

    Raises:
        UnsupportedCheckpointError: The file is none of Keras'.
    """
    places = {f"{LAYERS}/{group}": number for number, group in enumerate(layers)}

    def place(path: str) -> tuple[int, object]:
        return places.get("/".join(path.split("/")[:2]), len(places)), by_number(path)

    owners = _owners(source, root)
    ordered = {path: owners[path] for path in sorted(owners, key=place)}
    optimizer: Arrays = {}
    for path in [path for path in ordered if path.split("/")[0] == _OPTIMIZER]:
        for number, dataset in enumerate(ordered.pop(path)):
            if dataset.name != f"{path}/{number}":
                raise source.damaged(0, f"{path}/{number} is missing")
            optimizer[dataset.name] = array(dataset)
    found = named(root, ordered, layers)
    groups = {each.name: each.name.rsplit("/", 2)[0] for each in found.values()}
    where = {
        name: (places.get("/".join(each.name.split("/")[:2])), groups[each.name])
        for name, each in found.items()
    }
    return optimizer, {name: array(each) for name, each in found.items()}, where


def _owners(source: Source, root: Group) -> dict[str, list[Dataset]]:
    """The variables of each group that is called "vars", as they are numbered."""
    found: dict[str, list[Dataset]] = {}
    for dataset in sorted(root.datasets(), key=lambda each: by_number(each.name)):
        path = dataset.name.rpartition("/")[0]
        if path.split("/")[0] == _METRICS:
            continue
        if path.rpartition("/")[2] != VARIABLES:
            text = f"an HDF5 file, but not one of Keras: {dataset.name!r} is in no group 'vars'"
            raise source.unsupported(0, text)
        found.setdefault(path, []).append(dataset)
    if not found:
        raise source.unsupported(0, "an HDF5 file without variables")
    return found
