"""Parameters that torch has shared out itself, such as those of `fully_shard`.

Their state is shared out as they are, and each rank updates what lies in its memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from thalweg.core.groups import titles_in
from thalweg.core.meshes import any_on_mesh, is_imported, is_on_mesh
from thalweg.core.options.diagnostics import Diagnosed
from thalweg.core.state import Entry, Part
from thalweg.engines import current

if TYPE_CHECKING:
    from thalweg.distribute.sharding.meshes import Locals, LocalStep
    from thalweg.distribute.sharding.team import Team
    from thalweg.formula import Rule


def locals_of(params: Sequence[Tensor]) -> Locals | None:
    """What tells the local parts of parameters, if there are DTensors among them."""
    if not any_on_mesh(params):
        return None
    from thalweg.distribute.sharding.meshes import Locals

    return Locals()


def sharing_of(parts: Locals, team: Team | None) -> LocalStep:
    """Return how a step over local parts is shared.

    Args:
        parts: The local parts.
        team: The ranks that take the step together; None if they send no messages in it.
    """
    from thalweg.distribute.sharding.meshes import LocalStep

    return LocalStep(parts, team)


@contextmanager
def guard_ranks(optimizer: Any) -> Iterator[None]:
    """Take a step in the block on all ranks or on none, if ranks send messages in it.

    Args:
        optimizer: A `FusedOptimizer`. Its `_own.team` is set in the block.
    """
    team = _team_of(optimizer) if is_imported() else None
    if team is None:
        yield
        return
    optimizer._own.team = team
    try:
        with team.report_errors():
            yield
    finally:
        optimizer._own.team = None
        team.end()


def _team_of(optimizer: Any) -> Team | None:
    """Return the ranks that send messages in a step of an optimizer; None for none."""
    params = list(filter(is_on_mesh, optimizer._params()))
    if not params:
        return None
    from thalweg.distribute.sharding.meshes import are_misplaced
    from thalweg.distribute.sharding.team import Team

    around, matrix = optimizer._around, None
    # Gradients that were cut otherwise once may be so again, where this rank lacks one, too.
    sends = (
        optimizer._own.known_team is not None
        or around.clips
        or around.of(Diagnosed).diagnostics is not None
    )
    sends = sends or current().check_numerics or are_misplaced((p.grad, p) for p in params)
    for group in optimizer.param_groups:
        own = list(filter(is_on_mesh, group["params"]))
        rules = _rules_of(optimizer, group) if own else set[Any]()
        sends = sends or any(rule is None or rule.is_measured for rule in rules)
        if matrix is None and any(rule is None or rule.passes for rule in rules):
            matrix = own[0]
    if not (sends or matrix is not None):
        return None
    own = optimizer._own
    if own.known_team is None:
        own.known_team = Team(params, partial(_describe_step, optimizer), matrix)
    else:
        own.known_team.begin(params, partial(_describe_step, optimizer), matrix)
    return own.known_team


def _rules_of(optimizer: Any, group: dict[str, Any]) -> set[Rule | None]:
    """Return the rules of a group; None among them if its options choose none.

    The step raises an error for such options, of which the other ranks are told.
    """
    try:
        return optimizer._rules_around(group)
    except Exception:
        return {None}


def _describe_step(optimizer: Any) -> list[str]:
    """Return one line for each thing that ranks have alike in a step over DTensors."""
    from thalweg.distribute.sharding.team import describe_dtensors

    found_inf = vars(optimizer).get("found_inf")
    lines = [
        f"the class of the optimizer: {type(optimizer).__name__}",
        f"what the scaler found: {_words(found_inf)}",
    ]
    lines += [f"{name}: {_words(value)}" for name, value in sorted(optimizer._around.on.items())]
    for place, group in enumerate(optimizer.param_groups):
        if not any_on_mesh(group["params"]):
            continue
        names = [*optimizer._wanted_options(group), "rule"]
        lines += [f"{n} of group {place}: {_words(group[n])}" for n in names if n in group]
    params: list[Tensor] = list(filter(is_on_mesh, optimizer._params()))
    titles = titles_in(optimizer.param_groups, params)
    lines += describe_dtensors(params, titles, [param.grad for param in params])
    states = [optimizer.state.get(param, {}) for param in params]
    pairs = zip(titles, map(_words_of_state, states), strict=True)
    return lines + [f"the state of '{title}': {words}" for title, words in pairs]


def _words(value: object) -> str:
    """Return a number, a text or several of them in words; of anything else its type.

    Tensors of a device, and of several elements, are not read.
    """
    if isinstance(value, Tensor):
        is_number = value.device.type == "cpu" and not value.dim() and not is_on_mesh(value)
        return repr(value.item()) if is_number else _TENSOR
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, tuple | list):
        return f"({', '.join(map(_words, value))})"  # pyright: ignore[reportUnknownArgumentType]
    return type(value).__name__


_TENSOR = "a tensor"


def _words_of_state(own: dict[str, Any]) -> str:
    """Return the names of a parameter's state, with the value of its numbers of the host."""
    words = {name: _words(own[name]) for name in sorted(own, key=str)}
    return " ".join(n if word == _TENSOR else f"{n}={word}" for n, word in words.items()) or "none"


def placed(
    pairs: list[tuple[object, Tensor]], team: Team | None = None
) -> list[tuple[Any, Tensor]]:
    """Return the pairs with gradients cut as their parameters are; all ranks call this."""
    from thalweg.distribute.sharding import meshes

    return meshes.place_on_mesh(pairs, team)


def entry_of(name: str, own: Tensor) -> Entry:
    """A tensor that a state sets; of a DTensor this rank's part, given the whole or a DTensor."""
    parts = locals_of([own])
    if parts is None:
        return Entry(name, own)
    return Part(name, parts.part(own), var=own, parts=parts)
