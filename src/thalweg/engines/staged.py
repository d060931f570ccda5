"""A step of a rule with passes: what is made of each element, stages over matrices, the update."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from inspect import signature
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from thalweg.engines.arrays import Float64
from thalweg.engines.engine import (
    Call,
    Columns,
    Dtype,
    Formulas,
    Ready,
    Request,
    Round,
    Stages,
    in_rounds,
)
from thalweg.engines.given import check_given
from thalweg.engines.layout import compute_dtype, is_dense
from thalweg.engines.matrices import check_matrices, check_shaped_slots, matrix_shape
from thalweg.engines.spread import updates_of
from thalweg.engines.transcribe import place_of, transcribe
from thalweg.errors import InvalidArgumentError, InvalidTypeError, RuleError
from thalweg.formula import Pass, Rule, Stage
from thalweg.ground.switches import no_grad
from thalweg.indexed_slices import IndexedSlices

COUNT = "t"  # the scalar that is the number of a step
Plan = Callable[[Request], Ready]


class Batch(NamedTuple):
    """Variables whose matrices have one shape, dtype and device.

    Attributes:
        members: Their positions in the step.
        shape: Rows and columns.
        made: By name what passes make of them: a tensor of shape (batch, rows, columns), or one of
            each variable's shape where variables do not lie row by row.
    """

    members: list[int]
    shape: tuple[int, int]
    made: dict[str, Tensor | list[Tensor]]


class StagedStep:
    """A `Ready` of a rule with passes.

    What passes make lies in memory of its own, which is the plan's and no state: of each value a
    number for each element. Until the update is written nothing else has changed.

    Args:
        asked: The step.
        plans: For each pass, and for the update, what plans it.

    Raises:
        InvalidArgumentError, InvalidTypeError: As `check_matrices`; a gradient is sparse.
    """

    is_single = True

    def __init__(self, asked: Request, plans: Sequence[Plan]) -> None:
        rule = asked.rule
        title = f"rule {rule.name!r}"
        check_matrices(title, asked.variables, asked.titles)
        if len(in_rounds(asked.variables)) > 1:
            raise InvalidArgumentError(
                f"A variable comes twice in a step of {title}, which updates each once."
            )
        for grad, name in zip(asked.gradients, asked.titles, strict=True):
            if isinstance(grad, IndexedSlices):
                raise InvalidTypeError(
                    f"The gradient of '{name}' is sparse, and {title} is for matrices: give it a"
                    " dense one, or the rule whole=True."
                )
        self._rule = rule
        self._variables, self._titles = list(asked.variables), asked.titles
        self._seen: list[Any] | None = [] if not rule.shaped_slots else None
        self._batches = [_batch(rule, self._variables, own) for own in _alike(self._variables)]
        made = [dict[str, Tensor]() for _ in self._variables]
        for batch in self._batches:
            for name, each in batch.made.items():
                for index, tensor in zip(batch.members, each, strict=True):
                    made[index][name] = tensor.view(self._variables[index].shape)
        self._slots = [
            [*(own[name] for name in rule.made), *beside]
            for own, beside in zip(made, asked.slots or [()] * len(made), strict=True)
        ]
        self._updates = updates_of(rule)
        *passes, last = zip(plans, self._updates, strict=False)
        self._passes = [plan(self._asked_of(asked, each)) for plan, each in passes]
        self._last = last[0](self._asked_of(asked, last[1]))

    @property
    def dtypes(self) -> tuple[Dtype, ...]:
        """See `Ready`."""
        return self._last.dtypes

    def _asked_of(self, asked: Request, update: Rule) -> Request:
        """What is asked of the engines for a pass, or for the update."""
        asked = asked._replace(rule=update, slots=self._slots)
        # A pass writes no copies, and reads them where they count.
        is_last = update is self._updates[-1]
        return asked if is_last or asked.from_copies else asked._replace(copies=None)

    def try_rebind(self, asked: Request) -> bool:
        """See `Ready`."""
        if asked.rule is not self._rule:
            return False
        parts = zip((*self._passes, self._last), self._updates, strict=True)
        return all(part.try_rebind(self._asked_of(asked, each)) for part, each in parts)

    def run_passes(self, columns: Columns, slots: Sequence[Sequence[Tensor]]) -> list[Call]:
        """Make what the update is given; nothing that is kept is written.

        Args:
            columns: The scalars of the step.
            slots: For each variable its slots with a shape of their own, in the rule's order.

        Returns:
            What writes these slots, as functions in C.

        Raises:
            RuleError: A stage returns what it may not.
            InvalidArgumentError, InvalidTypeError, LayoutError: As `check_shaped_slots`.
        """
        self._check_slots(slots)
        passes, moved = iter(self._passes), dict[int, tuple[Tensor, Tensor]]()
        with no_grad():
            for each in self._rule.passes:
                if isinstance(each, Pass):
                    self._run_pass(each, next(passes), columns)
                else:
                    for batch in self._batches:
                        if min(batch.shape):
                            self._run_stage(each, batch, columns, slots, moved)
        if not moved:
            return []
        olds, news = zip(*moved.values(), strict=True)
        if columns.taken is not None:
            pairs = zip(news, olds, strict=True)
            news = [torch.where(columns.taken, new, old) for new, old in pairs]
        copy = torch._foreach_copy_  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
        return [partial(copy, list(olds), list(news))]

    def _check_slots(self, slots: Sequence[Sequence[Tensor]]) -> None:
        """Look at slots that are not those of the step before, where they lay."""
        try:
            seen = [
                (id(x), x.data_ptr(), x.shape, x.stride(), x.untyped_storage().nbytes())
                for own in slots
                for x in own
            ]
        except RuntimeError:  # it has no memory
            seen = None
        if seen is None or seen != self._seen:
            own = [each[len(self._rule.made) :] for each in self._slots]
            check_shaped_slots(self._rule, self._variables, own, slots, self._titles)
            self._seen = seen

    def _run_pass(self, each: Pass, ready: Ready, columns: Columns) -> None:
        try:
            rounds = list(ready.make_rounds(columns._replace(taken=None)))
        except KeyError:
            known = {**columns.shared[ready.dtypes[0]], **columns.separate}
            check_given(
                place_of(each.function), transcribe(each.function).scalars, known, self._rule
            )
            raise
        for own in rounds:
            for call in own.calls:
                call()

    def _run_stage(
        self,
        stage: Stage,
        batch: Batch,
        columns: Columns,
        slots: Sequence[Sequence[Tensor]],
        moved: dict[int, tuple[Tensor, Tensor]],
    ) -> None:
        """Run a stage over some variables, those whose steps have one number at a time.

        Args:
            moved: By `id` of a slot the slot, and what it is to become.
        """
        rule, dtype = self._rule, compute_dtype(self._variables[batch.members[0]].dtype)
        counts = [None] * len(batch.members)
        if stage.every > 1 or COUNT in names_of(stage):
            counts = [
                self._scalar(stage, COUNT, [index], columns, dtype) for index in batch.members
            ]
        for count in dict.fromkeys(counts):
            if count is not None and (count - 1) % stage.every:
                continue
            rows = [row for row, own in enumerate(counts) if own == count]
            members = [batch.members[row] for row in rows]
            is_whole = len(rows) == len(counts)
            given: dict[str, Any] = {}
            for name in names_of(stage):
                if name in batch.made:
                    made = batch.made[name]
                    whole = made if isinstance(made, Tensor) else torch.stack([*made])
                    whole = whole.view(-1, *batch.shape)
                    given[name] = whole if is_whole else whole[rows]
                elif (place := _place_of(rule, name)) is not None:
                    own = [slots[index][place] for index in members]
                    own = [moved[id(x)][1] if id(x) in moved else x.detach() for x in own]
                    given[name] = torch.stack(own).to(_computed(self._variables[members[0]]))
                else:
                    given[name] = self._scalar(stage, name, members, columns, dtype)
            with torch.autocast(self._variables[0].device.type, enabled=False):
                found = stage.function(**given)
            check_found(rule, stage, found, batch, given, len(rows))
            for name, value in found.items():
                if (place := _place_of(rule, name)) is None:
                    _store(batch, name, value, None if is_whole else rows)
                    continue
                for index, each in zip(members, value, strict=True):
                    slot = slots[index][place]
                    moved[id(slot)] = (slot.detach(), each.to(slot.dtype))

    def _scalar(
        self, stage: Stage, name: str, members: Sequence[int], columns: Columns, dtype: Dtype
    ) -> Any:
        """A scalar of the step: a number, or a tensor of shape (members, 1, 1) if it differs."""
        if name not in columns.separate:
            known = {**columns.shared[dtype], **columns.separate}
            check_given(_title(self._rule, stage), [name], known, self._rule)
            value = known[name]
            return value if isinstance(value, Tensor) else float(value)
        vector, first = columns.separate[name], self._variables[members[0]]
        own = torch.as_tensor(vector[list(members)], device=first.device)
        if bool((own == own[0]).all()):
            return float(own[0])
        return own.to(_computed(first)).view(-1, 1, 1)

    def compute_sums(
        self, formulas: Formulas, stages: Stages, columns: Columns
    ) -> Sequence[Float64]:
        """See `Ready`."""
        return self._last.compute_sums(formulas, stages, columns)

    def sums_on_device(
        self, formulas: Formulas, stages: Stages, columns: Columns
    ) -> Sequence[Tensor] | None:
        """See `Ready`."""
        return self._last.sums_on_device(formulas, stages, columns)

    def compute_leaves(self, formulas: Formulas, stages: Stages, columns: Columns) -> list[Float64]:
        """See `Ready`."""
        return self._last.compute_leaves(formulas, stages, columns)

    def max_abs(self) -> Float64:
        """See `Ready`."""
        return self._last.max_abs()

    def max_abs_on_device(self, wanted: Tensor) -> Tensor | None:
        """See `Ready`."""
        return self._last.max_abs_on_device(wanted)

    def make_rounds(self, columns: Columns) -> Iterator[Round]:
        """See `Ready`."""
        return self._last.make_rounds(columns)

    def release_gradients(self) -> None:
        """See `Ready`."""
        for each in (*self._passes, self._last):
            each.release_gradients()


@cache
def names_of(stage: Stage) -> tuple[str, ...]:
    """The names that a stage asks for."""
    given = signature(stage.function).parameters.values()
    return tuple(each.name for each in given if each.default is each.empty)


def _title(rule: Rule, stage: Stage) -> str:
    function = getattr(stage.function, "func", stage.function)
    return f"Stage {function.__qualname__} of rule {rule.name!r}"


def _place_of(rule: Rule, name: str) -> int | None:
    """The place of a slot with a shape of its own among those of the rule; None for no such one."""
    names = [slot.name for slot in rule.shaped_slots]
    return names.index(name) if name in names else None


def check_found(
    rule: Rule, stage: Stage, found: Any, batch: Batch, given: Mapping[str, Any], count: int
) -> None:
    """Refuse what a stage may not return.

    Raises:
        RuleError: It is no dict of what passes have made and slots with a shape of their own, each
            of the shape that it was given in.
    """
    title = _title(rule, stage)
    if not isinstance(found, Mapping):
        raise RuleError(f"{title} must return a dict, not {found!r}.")
    for name, value in cast("Mapping[str, Any]", found).items():
        if name in batch.made:
            wanted = (count, *batch.shape)
        elif name in given and _place_of(rule, name) is not None:
            wanted = tuple(given[name].shape)
        else:
            raise RuleError(
                f"{title} returns {name!r}, which is neither made by a pass, nor a slot with a"
                " shape of its own that it takes."
            )
        if not isinstance(value, Tensor) or tuple(value.shape) != wanted:
            shown = f"of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
            raise RuleError(f"{title} returns {name!r} {shown}; expected {wanted}.")


def _alike(variables: Sequence[Tensor]) -> list[list[int]]:
    """Positions of variables whose matrices have one shape, dtype and device."""
    found: dict[Any, list[int]] = {}
    for index, var in enumerate(variables):
        if var.numel():
            key = (*matrix_shape(var), var.dtype, var.device, var.is_contiguous())
            found.setdefault(key, []).append(index)
        else:
            found.setdefault(index, []).append(index)
    return list(found.values())


def _computed(var: Tensor) -> torch.dtype:
    """The dtype that a variable is computed in."""
    return torch.float64 if var.dtype == torch.float64 else torch.float32


def _batch(rule: Rule, variables: Sequence[Tensor], members: list[int]) -> Batch:
    first = variables[members[0]]
    shape, kind = matrix_shape(first), _computed(first)
    made: dict[str, Tensor | list[Tensor]] = {}
    for name in rule.made:
        if first.is_contiguous():
            made[name] = torch.empty(len(members), *shape, dtype=kind, device=first.device)
        else:
            made[name] = [_beside(variables[index], kind) for index in members]
    return Batch(members, shape, made)


def _beside(var: Tensor, kind: torch.dtype) -> Tensor:
    """Memory for a number of each element, in the order of the variable's."""
    if is_dense(var):
        return torch.empty_strided(var.shape, var.stride(), dtype=kind, device=var.device)
    return torch.empty(var.shape, dtype=kind, device=var.device)


def _store(batch: Batch, name: str, value: Tensor, rows: list[int] | None) -> None:
    made = batch.made[name]
    if isinstance(made, Tensor):
        if rows is None:
            made.copy_(value)
        else:
            made[rows] = value.to(made.dtype)
        return
    for row, own in zip(range(len(made)) if rows is None else rows, value, strict=True):
        made[row].copy_(own.reshape(made[row].shape))
