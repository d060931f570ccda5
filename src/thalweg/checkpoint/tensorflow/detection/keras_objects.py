"""The optimizers of Keras 2.11 and later in object checkpoints: lists of variables.

They have no slot variables. Keras 3 lists the variables that are trained, and for each kind of slot
those slots, in the same order. Before, names tell what belongs together: a slot of `layer1/kernel`
is called `Adam/m/layer1/kernel`. Hyperparameters, but for the learning rate, are in no checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from thalweg.checkpoint.tensorflow.detection.checkpoint_contents import FoundOptimizer, Slots
from thalweg.checkpoint.tensorflow.detection.keras_classes import OTHERS
from thalweg.checkpoint.tensorflow.detection.keras_config import INSIDE
from thalweg.checkpoint.tensorflow.detection.scalars import as_number, count_of
from thalweg.checkpoint.tensorflow.detection.slot_families import KERAS, Family, with_slots
from thalweg.checkpoint.tensorflow.detection.variable_order import Owner, owners_of

if TYPE_CHECKING:
    from thalweg._formats.stored_tensor import StoredTensor

MARKS = ("_variables", "_iterations")  # children by which such an optimizer is known
TRAINED = "_trainable_variables"  # of Keras 3
_SCALARS = {"_iterations": "iter", "_u_product": "momentum_cache"}
_RATE = "_learning_rate"
# By class: the kinds of slots by the words in their names, where these differ, and by the
# attributes that list them.
SLOT_KINDS = {
    "SGD": {"m": "momentum"},
    "Adamax": {"u": "v"},
    "RMSprop": {"velocity": "rms", "average_gradient": "mg"},
    "Adadelta": {"accumulated_grad": "accum_grad", "accumulated_delta_var": "accum_var"},
}
_LISTS = {
    "SGD": {"momentums": "momentum"},
    "Adam": {"_momentums": "m", "_velocities": "v", "_velocity_hats": "vhat"},
    "Nadam": {"_momentums": "m", "_velocities": "v"},
    "Adamax": {"_m": "m", "_u": "v"},
    "Adagrad": {"_accumulators": "accumulator"},
    "Adadelta": {"_accumulated_grads": "accum_grad", "_accumulated_delta_vars": "accum_var"},
    "RMSprop": {"_velocities": "rms", "_momentums": "momentum", "_average_gradients": "mg"},
    "Ftrl": {"_accumulators": "accumulator", "_linears": "linear"},
}


@dataclass(frozen=True)
class ListedVariables:
    """The variables of an optimizer of this kind.

    Attributes:
        place: Where it is.
        slots: All that are no scalars, in its order, with their full names.
        children: Its other variables, by its attributes.
        title: What its count of steps is called, without "/iteration".
        lists: The lists of slots, by its attributes.
        trained: The variables that it trains, in the order of the lists; None before Keras 3.
    """

    place: str
    slots: Sequence[tuple[str, StoredTensor]]
    children: Mapping[str, StoredTensor]
    title: str
    lists: Mapping[str, Sequence[StoredTensor]]
    trained: Sequence[Owner] | None


def sort_numbered(
    own: ListedVariables, owners: Sequence[Owner], class_name: str = ""
) -> FoundOptimizer:
    """Return the optimizer of a node.

    Args:
        own: Its variables.
        owners: The variables of the checkpoint that are no optimizer's.
        class_name: Optional. What it is known to be, where its name does not say it.
    """
    scalars = {_SCALARS[name]: each for name, each in own.children.items() if name in _SCALARS}
    if own.trained is not None:
        titles, found, lost = _by_lists(own, own.trained, class_name)
    else:
        titles, found, lost = _by_names(own, owners)
    others = {OTHERS[each] for title in titles if (each := _plain_title(title)) in OTHERS}
    lost += [f"nothing in thalweg.keras steps like {each}" for each in sorted(others)]
    family = None if lost else _family_titled(titles, found)
    known = dict(family.options) if family else {}
    if _RATE in own.children:
        known["learning_rate"] = as_number(own.children[_RATE])
    if family is not None and family.cls == "Nadam":
        known["decay"] = 1.0  # psi: there the momentum's schedule has no factor
    inside = family is not None and family.slots in (("rms",), ("rms", "mg"))
    kinds = sorted({kind for each in found.values() for kind in each})
    return FoundOptimizer(
        name=own.place,
        face="keras",
        family=family,
        candidates=(family.cls,) if family else tuple(sorted(titles)),
        evidence=", ".join([f"variables of {', '.join(sorted(titles)) or 'none'}", *kinds]),
        slots=found,
        scalars=scalars,
        hyperparameters=known,
        steps=count_of(scalars.get("iter")),
        notes=(INSIDE,) if inside else (),
        lost=tuple(lost),
    )


Sorted = tuple[set[str], Slots, list[str]]  # titles, slots, what is lost


def _by_lists(own: ListedVariables, trained: Sequence[Owner], class_name: str) -> Sorted:
    """Slots of Keras 3, whose lists have one for each variable."""
    title = re.sub(r"_\d+$", "", own.title.rpartition("/")[2])
    if _plain_title(title) in OTHERS:
        return {title}, {}, []
    cls = {each.lower(): each for each in _LISTS}.get(_plain_title(title), class_name)
    lists = {name: each for name, each in own.lists.items() if each}
    fitting = [cls] if cls else [each for each, kinds in _LISTS.items() if lists.keys() <= {*kinds}]
    kinds = _LISTS[fitting[0]] if len(fitting) == 1 else {}
    found: Slots = {}
    for name, values in lists.items():
        shapes = [each.shape for each in values]
        if name in kinds and shapes == [each.value.shape for each in trained]:
            for owner, value in zip(trained, values, strict=True):
                found.setdefault(owner.name, {})[kinds[name]] = value
    if sum(map(len, found.values())) == len(own.slots):
        return {cls or title}, found, []
    likely = f" as {' or '.join(fitting)} do" if len(fitting) > 1 else ""
    return {title}, {}, [f"{title!r} lists {', '.join(lists) or 'no slots'}{likely}"]


def _plain_title(title: str) -> str:
    return title.lower().replace("_", "")


def _by_names(own: ListedVariables, owners: Sequence[Owner]) -> Sorted:
    """Slots whose names end in those of their variables."""
    found: Slots = {}
    titles: set[str] = set()
    kinds: dict[str, list[tuple[str, StoredTensor]]] = {}
    for full, value in own.slots:
        scope, _, rest = full.partition("/")
        kind, _, owner = rest.partition("/")
        titles.add(scope)
        kinds.setdefault(SLOT_KINDS.get(scope, {}).get(kind, kind), []).append((owner, value))
    lost: list[str] = []
    for kind, slots in kinds.items():
        wanted = [(owner, value.shape) for owner, value in slots]
        places, unclear = owners_of(wanted, owners)
        lost += [each for each in unclear if each not in lost]
        for owner, (_, value) in zip(places, slots, strict=True):
            if owner is not None:
                found.setdefault(owner.name, {})[kind] = value
    return titles, found, lost


def _family_titled(titles: set[str], slots: Slots) -> Family | None:
    """The kind that the title says, if it has these slots."""
    kinds = {kind for own in slots.values() for kind in own}
    named = [each for each in with_slots(kinds, KERAS) if {each.cls} == titles]
    return named[0] if len(named) == 1 else None
