"""The optimizers of Keras 2.11 and later in object checkpoints: a list of variables, by names.

They have no slot variables; a slot of `layer1/kernel` is called `Adam/m/layer1/kernel`. Their
hyperparameters, but for the learning rate, are in no checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from thalweg.checkpoint.tensorflow.sorting.contents import FoundOptimizer
from thalweg.checkpoint.tensorflow.sorting.families import KERAS, Family, with_slots
from thalweg.checkpoint.tensorflow.sorting.keras_config import INSIDE
from thalweg.checkpoint.tensorflow.sorting.numbers import as_number, count_of

if TYPE_CHECKING:
    from thalweg.storage.stored import Stored

MARKS = ("_variables", "_iterations")  # children by which such an optimizer is known
_SCALARS = {"_iterations": "iter", "_u_product": "momentum_cache"}
_RATE = "_learning_rate"
_KINDS = {
    "SGD": {"m": "momentum"},
    "Adamax": {"u": "v"},
    "RMSprop": {"velocity": "rms", "average_gradient": "mg"},
    "Adadelta": {"accumulated_grad": "accum_grad", "accumulated_delta_var": "accum_var"},
}


def numbered(
    place: str,
    slots: Mapping[str, Stored],
    children: Mapping[str, Stored],
    owners: Mapping[str, str],
) -> FoundOptimizer:
    """The optimizer of a node.

    Args:
        place: Where it is.
        slots: The variables of its list by their full names.
        children: Its other variables, by its attributes.
        owners: The variables of the checkpoint by their full names.
    """
    found: dict[str, dict[str, Stored]] = {}
    scopes: set[str] = set()
    strange: list[str] = []
    for full, value in slots.items():
        scope, _, rest = full.partition("/")
        kind, _, owner = rest.partition("/")
        if owner not in owners:
            strange.append(full)
            continue
        scopes.add(scope)
        found.setdefault(owners[owner], {})[_KINDS.get(scope, {}).get(kind, kind)] = value
    scalars = {_SCALARS[name]: each for name, each in children.items() if name in _SCALARS}
    family = _family(scopes, found, strange)
    known = dict(family.options) if family else {}
    if _RATE in children:
        known["learning_rate"] = as_number(children[_RATE])
    if family is not None and family.cls == "Nadam":
        known["decay"] = 1.0  # psi: there the momentum's schedule has no factor
    inside = family is not None and family.slots in (("rms",), ("rms", "mg"))
    kinds = sorted({kind for own in found.values() for kind in own})
    return FoundOptimizer(
        name=place,
        face="keras",
        family=family,
        candidates=(family.cls,) if family else tuple(sorted(scopes)),
        evidence=", ".join([f"variables of {', '.join(sorted(scopes)) or 'none'}", *kinds]),
        slots=found,
        scalars=scalars,
        hyperparameters=known,
        steps=count_of(scalars.get("iter")),
        notes=(INSIDE,) if inside else (),
    )


def _family(
    scopes: set[str], slots: Mapping[str, Mapping[str, Stored]], strange: list[str]
) -> Family | None:
    """The kind that the scope of the names says, if it has these slots."""
    if strange or len(scopes) != 1:
        return None
    kinds = {kind for own in slots.values() for kind in own}
    named = [each for each in with_slots(kinds, KERAS) if each.cls in scopes]
    return named[0] if len(named) == 1 else None
