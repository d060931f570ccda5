"""One step, told once.

    check > state > prepare > transform > repeat or plan > measure > decide > write >
    constrain > finish > count

A face says what it has to by `Hooks`, and `take` does the rest. Whatever may fail does so before
the first write. The writes are one section that no interruption can split; what follows them is
done to its end, too, but for the one function of the user's that failed or was interrupted.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from thalweg.core.columns import Groups, columns_of, per_variable, processed
from thalweg.core.outcome import (
    After,
    Outcome,
    constrained,
    constraint_of,
    not_taken,
    putting_back,
    say,
    written,
)
from thalweg.core.pairs import Gradient, Pair, distinct, has_rows
from thalweg.core.processing import NOTHING, Decision, Processing, materialised, whole
from thalweg.core.section import Call, calls, consume
from thalweg.engines import Gate, Selection, check_gradients, check_scalars, saturate
from thalweg.engines.engine import Copies, Dtype, Ready, Request, Round
from thalweg.errors import InvalidArgumentError
from thalweg.formula import Rule
from thalweg.indexed_slices import IndexedSlices
from thalweg.running import current_session
from thalweg.variable import variable_constraint

_SPARE = 16  # variables of earlier steps, updated on their own, whose plans may be kept
Shared = Mapping[Dtype, Mapping[str, Any]]  # a step's scalars, for each compute dtype


class Hooks:
    """What a face has to say about one step: names, state, scalars and hooks, no arithmetic.

    Attributes:
        selection: The engine.
        calls: Whether `prepare` calls users' functions, which may move a variable's memory.
        repeats: Whether a step like the one before needs no more than its scalars: nothing of the
            user's wants to see it.
        constrains: Whether constraints follow the updates; not in a part of a step that is put
            back as a whole.
        is_prepared: Whether `prepare` has been called.
        begun: Is given a sentence when the step is written: that it was taken.
    """

    selection: Selection
    calls: bool = False
    repeats: bool = True
    constrains: bool = True
    is_prepared: bool = False

    def __init__(self) -> None:
        self.begun: list[str] = []

    def rule(self) -> Rule | None:
        """The rule of this step; None if `apply_one` is all there is."""
        return None

    def titles(self, variables: Sequence[Tensor]) -> list[str]:
        """The variables' names for messages."""
        raise NotImplementedError

    def convert(self, given: Sequence[tuple[Any, Any]]) -> list[Pair]:
        """What a caller gave, as tensors and `IndexedSlices`; pairs without a gradient go."""
        return list(given)

    def check(self, pairs: Sequence[Pair], narrow: bool) -> None:
        """Refuse a step that cannot be taken as a whole."""
        raise NotImplementedError

    def create(self, variables: Sequence[Tensor]) -> None:
        """Make the state that these variables, each given once, lack."""

    def prepare(self, variables: Sequence[Tensor]) -> None:
        """Read the hyperparameters of the step, once."""

    def transform(self, pairs: list[Pair]) -> list[Pair]:
        """The pairs as the user's own functions change them; checked."""
        return pairs

    def groups(self, variables: Sequence[Tensor], gradients: Sequence[Any]) -> Groups:
        """For each variable what tells its hyperparameters from those of others; None for none."""
        return None

    def scalars(self, dtype: Dtype, group: Hashable) -> dict[str, Any]:
        """All scalars that the rule may ask for, of a compute dtype, for a group."""
        raise NotImplementedError

    def slots(self, var: Tensor) -> list[Tensor]:
        """The slots of a variable in the order of the rule."""
        raise NotImplementedError

    def one_by_one(self, pairs: Sequence[Pair]) -> bool:
        """Whether the user's own functions update the variables, by `apply_one`."""
        return self.rule() is None

    def apply_one(self, grad: Gradient, var: Tensor) -> None:
        """Update a variable in place."""
        raise NotImplementedError

    def written(self, variables: Sequence[Tensor]) -> list[Tensor]:
        """What `apply_one` may write to."""
        raise NotImplementedError

    def finish(self) -> list[After]:
        """What is called after the updates and before the counters."""
        return []

    def counts(self, shared: Shared) -> list[Call]:
        """What counts the step, as functions in C; given the scalars of the first group."""
        return []


class _Planned(NamedTuple):
    """A step that is ready.

    Attributes:
        request: What is asked of the engines.
        ready: Their answer.
        scalar_slots: For each variable its slots of shape ().
        narrow: Whether 16-bit gradients of float32 variables were allowed.
    """

    request: Request
    ready: Ready
    scalar_slots: Sequence[Sequence[Tensor]]
    narrow: bool


class Kept:
    """What is kept from one step to the next."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.last: _Planned | None = None  # the step that may be repeated
        self._alone: dict[int, Kept] = {}

    def alone(self, var: Tensor) -> Kept:
        """What is kept for steps over this variable only."""
        return self._alone.setdefault(id(var), Kept())

    def forget_others(self, variables: Sequence[Tensor]) -> None:
        """Let go of variables that were updated on their own in earlier steps, if they are many."""
        if len(self._alone) > 2 * len(variables) + _SPARE:
            own = {id(var) for var in variables}
            self._alone = {key: each for key, each in self._alone.items() if key in own}


class Plans:
    """What an optimizer keeps: for eager mode, and for each session.

    Plans hold addresses, so a copy begins anew.
    """

    def __init__(self) -> None:
        self._eager = Kept()
        self._sessions: WeakKeyDictionary[Any, Kept] = WeakKeyDictionary()

    def now(self) -> Kept:
        """What is kept for the session that runs in this thread, or for eager mode."""
        session = current_session()
        if session is None:
            return self._eager
        return self._sessions.setdefault(session, Kept())

    def __deepcopy__(self, memo: dict[int, Any]) -> Plans:
        return Plans()

    def __reduce__(self) -> tuple[Any, ...]:
        return Plans, ()


def take(
    hooks: Hooks,
    kept: Kept,
    given: Sequence[tuple[Any, Any]],
    how: Processing = NOTHING,
    copies: Copies = None,
    *,
    is_last: bool = True,
    tries: bool = True,
) -> Outcome:
    """Take a step, or what comes of one variable in it.

    Args:
        hooks: The face.
        kept: From the steps before.
        given: Gradients and variables, as `hooks.convert` takes them.
        how: What happens to the gradients before the rule.
        copies: For each variable a tensor of a 16-bit type that is set to it, or None.
        is_last: Whether the step ends here, with `finish` and counters.
        tries: Whether to try `repeat` first.

    Returns:
        Whether it was taken, and what was raised after that.

    Raises:
        Whatever a check or a function of the user's raises, with a note that nothing has changed.
    """
    again = repeat(hooks, kept, given, how, copies, is_last=is_last) if tries else None
    if again is not None:
        return again
    # Slots made in inference mode could not be updated outside it.
    with not_taken(hooks.begun), torch.inference_mode(False), torch.no_grad():
        return _anew(hooks, kept, given, how, copies, is_last)


def repeat(
    hooks: Hooks,
    kept: Kept,
    given: Sequence[tuple[Any, Any]],
    how: Processing = NOTHING,
    copies: Copies = None,
    *,
    is_last: bool = True,
) -> Outcome | None:
    """Take a step if it is the one before with other gradients.

    Args:
        hooks, kept, given, how, copies, is_last: As in `take`; `given` may hold anything.

    Returns:
        The outcome, or None if the step is left to `take`.
    """
    if kept.last is None:
        return None
    try:
        planned = _again(hooks, kept, given, how, copies)
        return None if planned is None else _carried_out(hooks, planned, how, is_last)
    except BaseException as error:
        say(error, hooks.begun)
        raise


def finish(hooks: Hooks) -> list[BaseException]:
    """End a step whose variables were updated one after the other, each with `is_last=False`.

    Returns:
        What was raised.
    """
    return written([], hooks.finish(), hooks.counts({}))


def _again(
    hooks: Hooks, kept: Kept, given: Sequence[tuple[Any, Any]], how: Processing, copies: Copies
) -> _Planned | None:
    """The step, if it is the one before with other gradients."""
    rule = hooks.rule()
    if kept.last is None or rule is None or not hooks.repeats:
        return None
    last, ready, scalar_slots, narrow = kept.last
    try:
        gradients, variables = [grad for grad, _ in given], [var for _, var in given]
    except (TypeError, ValueError):
        return None
    stages, selection = how.stages, hooks.selection
    asked = Request(rule, stages, variables, gradients, last.slots, last.titles, selection, copies)
    if how.narrow != narrow or not ready.again(asked):
        return None
    try:
        _prepare(hooks, variables)
    except BaseException:
        ready.let_go()
        raise
    if hooks.calls and not ready.again(asked):
        ready.let_go()
        return None
    return _Planned(asked, ready, scalar_slots, narrow)


def _prepare(hooks: Hooks, variables: Sequence[Tensor]) -> None:
    if not hooks.is_prepared:
        hooks.prepare(variables)
        hooks.is_prepared = True


def _anew(
    hooks: Hooks,
    kept: Kept,
    given: Sequence[tuple[Any, Any]],
    how: Processing,
    copies: Copies,
    is_last: bool,
) -> Outcome:
    """The careful way: everything is looked at, and planned anew where that is needed."""
    kept.last = None
    pairs = hooks.convert(given)
    hooks.check(pairs, how.narrow)
    hooks.create(distinct([var for _, var in pairs]))
    _prepare(hooks, [var for _, var in pairs])
    pairs = hooks.transform(pairs)
    rule = hooks.rule()
    if rule is None or hooks.one_by_one(pairs):
        if is_last:
            kept.forget_others([var for _, var in pairs])
        return _by_hooks(hooks, pairs, how, copies, is_last)
    if rule.whole and how and how.trust is None and _has_rows(pairs):
        # Rows are processed as they come, before the rule has them added up.
        pairs, decision = materialised(pairs, how, hooks.selection.denormals == "flush")
        if not decision.taken:
            return Outcome(False, written(decision.calls))
        how = Processing(calls=decision.calls)
    if rule.is_whole or how.trust is not None:
        pairs = whole(pairs)
    variables = [var for _, var in pairs]
    slots = [hooks.slots(var) for var in variables]
    own, scalar_slots = _divided(rule, slots)
    titles = hooks.titles(variables)
    _check_shapes(variables, own, titles)
    gradients = [grad for grad, _ in pairs]
    asked = Request(rule, how.stages, variables, gradients, own, titles, hooks.selection, copies)
    if hooks.calls:
        hooks.check(pairs, how.narrow)
    ready = kept.gate.ready(asked)
    outcome = _carried_out(
        hooks, _Planned(asked, ready, scalar_slots, how.narrow), how, is_last, check=True
    )
    if ready.is_single:
        kept.last = _Planned(asked._replace(gradients=()), ready, scalar_slots, how.narrow)
    return outcome


def _carried_out(
    hooks: Hooks, planned: _Planned, how: Processing, is_last: bool, check: bool = False
) -> Outcome:
    """Measure, decide, write, constrain, finish, count."""
    asked, ready, scalar_slots, _ = planned
    rule = asked.rule
    try:
        groups = hooks.groups(asked.variables, asked.gradients)
        columns = columns_of(groups, hooks.scalars, ready.dtypes, asked.variables)
        decision, moved = Decision(True, []), []
        if how or rule.measures:
            known = how.known(ready, asked.variables, columns, tuple(rule.measures.values()))
            columns = processed(columns, known, how, ready.dtypes)
            decision = known.decision()
            if not decision.taken:
                return Outcome(False, written(decision.calls, begun=hooks.begun))
            if rule.per_variable is not None:
                columns, moved = per_variable(asked, scalar_slots, columns, known)
        if check:
            for values in columns.shared.values():
                check_scalars(rule, {**values, **columns.separate})
        counts = [*moved, *decision.calls]
        then: list[After] = []
        if is_last:
            counts += hooks.counts(columns.shared)
            then += hooks.finish()
        write = _at_once if ready.is_single else _in_rounds
        return Outcome(True, write(hooks, asked, ready.rounds(columns), then, counts))
    finally:
        ready.let_go()


def _at_once(
    hooks: Hooks, asked: Request, rounds: Iterator[Round], then: list[After], counts: list[Call]
) -> list[BaseException]:
    """Write a step in which no variable comes twice."""
    (own,) = rounds
    if hooks.constrains:
        places = _constrained(asked)
        then = [constraint_of(asked.variables[k], asked.titles[k]) for k in places] + then
    return written(own.calls, then, counts, hooks.begun)


def _constrained(asked: Request) -> list[int]:
    """Positions of the variables that have a constraint, which may have been given just now."""
    found = [getattr(var, "constraint", None) for var in asked.variables]
    if found.count(None) == len(found):
        return []
    places = [place for place, constraint in enumerate(found) if constraint is not None]
    for place in places:
        if has_rows(asked.gradients[place]):
            raise _sparse(asked.titles[place])
    return places


def _sparse(title: str) -> RuntimeError:
    return RuntimeError(f"Cannot use a constraint function on a sparse variable: '{title}'.")


def _in_rounds(
    hooks: Hooks, asked: Request, rounds: Iterator[Round], then: list[After], counts: list[Call]
) -> list[BaseException]:
    """Write a step in which variables come twice; what interrupts it has it put back."""
    tensors = [*asked.variables, *(slot for each in asked.slots for slot in each)]
    tensors += [copy for copy in asked.copies or () if copy is not None]
    errors: list[BaseException] = []
    undo = calls(putting_back(distinct(tensors)))
    try:
        for own in rounds:
            consume(calls(own.calls))
            for index in own.members if hooks.constrains else ():
                errors += constrained(asked.variables[index], asked.titles[index])
        return errors + written([], then, counts, hooks.begun)
    except BaseException:
        if not hooks.begun:
            consume(undo)
        raise


def _by_hooks(
    hooks: Hooks, pairs: list[Pair], how: Processing, copies: Copies, is_last: bool
) -> Outcome:
    """Have the user's own functions update each variable; what they write is put back if one fails.

    A constraint follows its variable's update.
    """
    flush = hooks.selection.denormals == "flush"
    pairs, decision = materialised(pairs, how, flush)
    if not decision.taken:
        return Outcome(False, written(decision.calls, begun=hooks.begun))
    variables = [var for _, var in pairs]
    titles = hooks.titles(variables)
    errors: list[BaseException] = []
    followers = [copy for copy in copies or () if copy is not None]
    undo = calls(putting_back([*hooks.written(distinct(variables)), *followers]))
    try:
        for (grad, var), title in zip(pairs, titles, strict=True):
            hooks.apply_one(grad, var)
            if not isinstance(grad, IndexedSlices):
                errors += constrained(var, title)
        for var, copy in zip(variables, copies or (), strict=False):
            if copy is not None:
                saturate(var, copy)
        counts = [*decision.calls, *(hooks.counts({}) if is_last else ())]
        then = hooks.finish() if is_last else []
        return Outcome(True, errors + written([], then, counts, hooks.begun))
    except BaseException:
        if not hooks.begun:
            consume(undo)
        raise


def _has_rows(pairs: Sequence[Pair]) -> bool:
    return any(isinstance(grad, IndexedSlices) for grad, _ in pairs)


def _divided(
    rule: Rule, slots: Sequence[Sequence[Tensor]]
) -> tuple[Sequence[Sequence[Tensor]], Sequence[Sequence[Tensor]]]:
    """Slots of elements and slots of shape ()."""
    if not rule.scalar_slots:
        return slots, ()
    kinds = [slot.scalar for slot in rule.slots]
    parts = [
        [[slot for slot, kind in zip(own, kinds, strict=True) if kind is scalar] for own in slots]
        for scalar in (False, True)
    ]
    return parts[0], parts[1]


def _check_shapes(
    variables: Sequence[Tensor], slots: Sequence[Sequence[Tensor]], titles: Sequence[str]
) -> None:
    """Refuse a variable that was given another shape since its slots were made."""
    for var, own, title in zip(variables, slots, titles, strict=True):
        for slot in own:
            if slot.shape != var.shape:
                raise InvalidArgumentError(
                    f"'{title}' has shape {tuple(var.shape)} now, but its slot has shape"
                    f" {tuple(slot.shape)}. Make a new optimizer for it."
                )


def scatters(rule: Rule) -> bool:
    """Whether TensorFlow has scatter kernels for the rule, with their own words for a bad index."""
    return rule.update_untouched is not None or rule.duplicates == "successive"


def check_pairs(
    pairs: Sequence[Pair], titles: Sequence[str], *, scatter: bool, narrow: bool = False
) -> None:
    """Refuse a step that cannot be taken as a whole; nothing has changed then.

    Args:
        pairs: The step, gradients converted.
        titles: The variables' names for messages.
        scatter: Whether a bad index is reported as TensorFlow's scatter kernels do, or as its
            fused sparse kernels do.
        narrow: Whether a gradient of a float32 variable may be of a 16-bit type.

    Raises:
        InvalidTypeError: For a dtype that is not computed, or a gradient of another dtype.
        InvalidArgumentError: For another shape or device, or an index out of range.
        LayoutError: For memory that cannot be updated in place.
        RuntimeError: For a sparse gradient of a constrained variable.
    """
    gradients, variables = [grad for grad, _ in pairs], [var for _, var in pairs]
    check_gradients(variables, gradients, titles, scatter=scatter, narrow=narrow)
    for grad, var, title in zip(gradients, variables, titles, strict=True):
        if isinstance(grad, IndexedSlices) and variable_constraint(var) is not None:
            raise _sparse(title)
