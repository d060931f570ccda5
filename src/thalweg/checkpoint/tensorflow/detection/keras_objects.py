"""Detection of optimizers of Keras 2.11 or later in object checkpoints.

Their objects have no slot variables. Keras 3 lists the trained variables, and for each kind of slot
those slots, in the same order. Before, slots belong to variables by name: a slot of `layer1/kernel`
is called `Adam/m/layer1/kernel`. Of the hyperparameters only the learning rate is saved.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from thalweg._formats.stored_tensor import StoredTensor
from thalweg.checkpoint.tensorflow.detection.checkpoint_contents import FoundOptimizer, Slots
from thalweg.checkpoint.tensorflow.detection.keras_config import EPSILON_NOTE
from thalweg.checkpoint.tensorflow.detection.scalars import as_number, count_of
from thalweg.checkpoint.tensorflow.detection.slot_families import (
    KERAS,
    UNSUPPORTED,
    Family,
    with_slots,
)
from thalweg.checkpoint.tensorflow.detection.variable_order import Owner, owners_of

# Attributes that identify an optimizer of Keras 2.11 or later.
MARKS = ("_variables", "_iterations")
# The attribute of Keras 3 that lists the trained variables.
TRAINED = "_trainable_variables"
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
    """Variables of an optimizer of Keras 2.11 or later.

    Attributes:
        path: The path of the optimizer in the object graph.
        slots: (full name, tensor) of all variables that are not scalars, in order.
        children: {attribute: scalar}.
        scope: The name of the step counter without "/iteration".
        lists: {attribute: list of slots}.
        trained: The trained variables, in the order of the lists; None before Keras 3.
    """

    path: str
    slots: Sequence[tuple[str, StoredTensor]]
    children: Mapping[str, StoredTensor]
    scope: str
    lists: Mapping[str, Sequence[StoredTensor]]
    trained: Sequence[Owner] | None


def sort_numbered(
    listing: ListedVariables, variables: Sequence[Owner], class_name: str = ""
) -> FoundOptimizer:
    """Return the optimizer to which the listed variables belong.

    Args:
        variables: The variables of the checkpoint that belong to no optimizer.
        class_name: Optional. The class, if the optimizer is not named after its class.
    """
    scalars = {
        _SCALARS[name]: tensor for name, tensor in listing.children.items() if name in _SCALARS
    }
    if listing.trained is not None:
        labels, slots, problems = _sort_by_lists(listing, listing.trained, class_name)
    else:
        labels, slots, problems = _sort_by_names(listing, variables)
    names = sorted(UNSUPPORTED.keys() & {_plain_title(label) for label in labels})
    problems += [f"nothing in thalweg.keras steps like {UNSUPPORTED[name]}" for name in names]
    family = None if problems else _family_titled(labels, slots)
    arguments = dict(family.options) if family else {}
    if _RATE in listing.children:
        arguments["learning_rate"] = as_number(listing.children[_RATE])
    if family is not None and family.cls == "Nadam":
        # psi: in Keras the momentum's schedule has no factor.
        arguments["decay"] = 1.0
    differs = family is not None and family.slots in (("rms",), ("rms", "mg"))
    kinds = sorted({kind for by_kind in slots.values() for kind in by_kind})
    return FoundOptimizer(
        name=listing.path,
        face="keras",
        family=family,
        candidates=(family.cls,) if family else tuple(sorted(labels)),
        evidence=", ".join([f"variables of {', '.join(sorted(labels)) or 'none'}", *kinds]),
        slots=slots,
        scalars=scalars,
        hyperparameters=arguments,
        steps=count_of(scalars.get("iter")),
        notes=(EPSILON_NOTE,) if differs else (),
        lost=tuple(problems),
    )


# Class names or titles of the optimizer, slots by variable and kind, and problems.
Sorted = tuple[set[str], Slots, list[str]]


def _sort_by_lists(listing: ListedVariables, trained: Sequence[Owner], class_name: str) -> Sorted:
    """Sort the slots of a Keras 3 optimizer, which has one list of slots per kind.

    Returns:
        ({class name}, {variable: {kind: slot}}, []). If the lists do not fit exactly one class,
        ({optimizer's name}, {}, [description of the problem]). For a Keras class that
        `thalweg.keras` lacks, ({optimizer's name}, {}, []).
    """
    label = re.sub(r"_\d+$", "", listing.scope.rpartition("/")[2])
    if _plain_title(label) in UNSUPPORTED:
        return {label}, {}, []
    cls = {name.lower(): name for name in _LISTS}.get(_plain_title(label), class_name)
    lists = {name: tensors for name, tensors in listing.lists.items() if tensors}
    matches = [cls] if cls else [name for name, kinds in _LISTS.items() if lists.keys() <= {*kinds}]
    kinds = _LISTS[matches[0]] if len(matches) == 1 else {}
    slots: Slots = {}
    for name, tensors in lists.items():
        shapes = [tensor.shape for tensor in tensors]
        if name in kinds and shapes == [owner.value.shape for owner in trained]:
            for owner, tensor in zip(trained, tensors, strict=True):
                slots.setdefault(owner.name, {})[kinds[name]] = tensor
    # All arrays must be in lists of known kinds.
    if sum(map(len, slots.values())) == len(listing.slots):
        return {cls or label}, slots, []
    suffix = f" as {' or '.join(matches)} do" if len(matches) > 1 else ""
    return {label}, {}, [f"{label!r} lists {', '.join(lists) or 'no slots'}{suffix}"]


def _plain_title(label: str) -> str:
    """Return a title in lower case without underscores, for comparison."""
    return label.lower().replace("_", "")


def _sort_by_names(listing: ListedVariables, variables: Sequence[Owner]) -> Sorted:
    """Sort slots whose names end with the names of variables, "Adam/m/layer1/kernel".

    Returns:
        (first parts of the slots' names, {variable: {kind: slot}}, texts about omitted slots, whose
        variable is unknown).
    """
    slots: Slots = {}
    labels: set[str] = set()
    kinds: dict[str, list[tuple[str, StoredTensor]]] = {}
    for full, tensor in listing.slots:
        scope, _, path = full.partition("/")
        kind, _, owner_name = path.partition("/")
        labels.add(scope)
        kinds.setdefault(SLOT_KINDS.get(scope, {}).get(kind, kind), []).append((owner_name, tensor))
    problems: list[str] = []
    for kind, members in kinds.items():
        owner_keys = [(owner_name, tensor.shape) for owner_name, tensor in members]
        matches, unclear = owners_of(owner_keys, variables)
        problems += [problem for problem in unclear if problem not in problems]
        for owner, (_, tensor) in zip(matches, members, strict=True):
            if owner is not None:
                slots.setdefault(owner.name, {})[kind] = tensor
    return labels, slots, problems


def _family_titled(labels: set[str], slots: Slots) -> Family | None:
    """Return the family whose class is the only label and that has these slots, or None."""
    kinds = {kind for by_kind in slots.values() for kind in by_kind}
    matching = [family for family in with_slots(kinds, KERAS) if {family.cls} == labels]
    return matching[0] if len(matching) == 1 else None
