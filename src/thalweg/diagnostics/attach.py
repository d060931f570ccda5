"""Diagnostics of Keras and TensorFlow 1 optimizers, which have no constructor option for them.

Steps that are not measured may be replayed: they repeat the kernel calls of an earlier step.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor

from thalweg._base.execution_context import is_symbolic
from thalweg._base.showing import show_value
from thalweg._core.commit import TAKEN
from thalweg._core.grads_and_vars import distinct
from thalweg._core.plan_cache import PlanCache
from thalweg._core.slot_optimizer import SlotOptimizer
from thalweg._core.state import positioned
from thalweg._engines.protocol import StepRequest
from thalweg.diagnostics.recorder import Diagnostics, SinkLike, TableRecorder
from thalweg.diagnostics.step_watch import StepWatch
from thalweg.diagnostics.table import Parameters
from thalweg.errors import FailedPreconditionError, InvalidTypeError, NumericsWarning, warn
from thalweg.variable import titles_of


def attach(optimizer: Any, every: int = 1, sinks: Iterable[SinkLike] = ()) -> Diagnostics:
    """Start measuring steps of a Keras or TensorFlow 1 optimizer.

    Args:
        optimizer: The optimizer, its wrapper, an optimizer of `thalweg.integrations.keras3`, or the
            train operation of `optimize_loss`.
        every, sinks: As for `Diagnostics`.

    Returns:
        A new `Diagnostics`, whose attribute `table` has the measurements.

    Raises:
        InvalidTypeError: `optimizer` has another type.
        FailedPreconditionError: The optimizer is measured already.
        NotImplementedError: A subclass updates each variable by a method. Or the optimizer is in a
            graph, and its subclass has methods that are called only while the graph is built.

    Example:
        >>> from thalweg import Variable, diagnostics, keras
        >>> w = Variable([1.0, 2.0], name="w")
        >>> optimizer = keras.optimizers.Adam(0.5)
        >>> recorder = diagnostics.attach(optimizer)
        >>> _ = optimizer.apply_gradients([([3.0, -4.0], w)])
        >>> recorder.table["w:0"].gradient_norm
        5.0
    """
    innermost, config = find_optimizer(optimizer), Diagnostics(every, sinks)
    with innermost._locked():
        if innermost._recorder is not None:
            raise FailedPreconditionError(
                f"{_title(innermost)} is measured already: detach(optimizer) first, or add sinks"
                " with to(optimizer, sink)."
            )
        if innermost._one_by_one():
            raise NotImplementedError(
                f"diagnostics of {_title(innermost)} are not defined: functions such as"
                " `_resource_apply_dense` update its variables one by one."
            )
        if any(map(is_symbolic, innermost._slots.owners())) and innermost._is_recorded():
            raise _graph_error(innermost)
        vars(innermost)["_recorder"] = Attached(innermost, config)
    return config


def detach(optimizer: Any) -> None:
    """Stop measuring steps of an optimizer. Send the last table to the sinks if it is not sent yet.

    Args:
        optimizer: As for `attach`.

    Raises:
        InvalidTypeError, FailedPreconditionError: The optimizer is not measured by `attach`.
    """
    innermost = find_optimizer(optimizer)
    with innermost._locked():
        if innermost._recorder is None:
            raise FailedPreconditionError(f"{_title(innermost)} is not measured.")
        recorder = innermost._recorder
        recorder.settle()
        vars(innermost).pop("_recorder")  # pyright: ignore[reportUnknownMemberType]
        recorder.config.detach()


def to(optimizer: Any, *sinks: SinkLike) -> Diagnostics:
    """Add sinks to an optimizer whose steps are measured.

    Args:
        optimizer: An optimizer of `thalweg.optim` with `diagnostics=`, or as for `attach`.
        *sinks: As for `Diagnostics`.

    Returns:
        The `Diagnostics` of the optimizer.

    Raises:
        FailedPreconditionError: The optimizer is not measured.
        InvalidTypeError: A sink is invalid.
    """
    if isinstance(optimizer, torch.optim.Optimizer):
        cache = getattr(optimizer, "step_cache", None)
        recorder, missing = getattr(cache, "diagnosing", None), _MAKE
    else:
        recorder, missing = find_optimizer(optimizer)._recorder, "diagnostics.attach(optimizer)"
    if recorder is None:
        raise FailedPreconditionError(f"{_title(optimizer)} is not measured: {missing}.")
    for sink in sinks:
        recorder.config.add(sink)
    return recorder.config


_MAKE = "make it with diagnostics=10"


def _title(optimizer: object) -> str:
    """Return the name of an optimizer for messages."""
    return type(optimizer).__name__


def _graph_error(optimizer: object) -> NotImplementedError:
    """Return the error for an optimizer of a graph with a method that is called only once."""
    return NotImplementedError(
        f"diagnostics of {_title(optimizer)} are not defined in a graph, which calls functions of a"
        " subclass once, when it is built. Set HOOKS_AT_EACH_RUN = True in the class, or"
        " detach(optimizer)."
    )


def find_optimizer(optimizer: Any) -> Any:
    """Return the Keras or v1 optimizer inside of all wrappers.

    Args:
        optimizer: An optimizer of `thalweg.keras.optimizers` or `thalweg.v1`, or an object whose
            attribute `op`, `optimizer` or `wrapped` leads to it, such as a train operation.

    Raises:
        InvalidTypeError: `optimizer` has another type, such as `torch.optim.Optimizer`.
    """
    candidate = optimizer
    # `op` leads from a train operation, and `wrapped` from an optimizer of Keras 3.
    for name in ("op", "optimizer", "wrapped"):
        if not isinstance(candidate, SlotOptimizer):
            candidate = getattr(candidate, name, candidate)
    if isinstance(candidate, SlotOptimizer):
        return candidate._innermost()  # pyright: ignore[reportPrivateUsage]
    is_torchs = isinstance(optimizer, torch.optim.Optimizer)
    suggestion = f" Steps of thalweg.optim's are measured if you {_MAKE}." if is_torchs else ""
    raise InvalidTypeError(
        "optimizer must be one of thalweg.keras.optimizers or thalweg.v1, not"
        f" {show_value(optimizer)}.{suggestion}"
    )


class _Watch(StepWatch):
    """Measurements of a step. The table lists low-precision copies instead of float32 masters."""

    def owners_of(self, hooks: Any, request: StepRequest) -> list[Tensor]:
        """Return the variables of the request. A low-precision copy replaces its float32 master."""
        copies = request.copies or [None] * len(request.variables)
        pairs = zip(request.variables, copies, strict=True)
        return [var if copy is None else copy for var, copy in pairs]


class Attached(TableRecorder):
    """Recorder of an optimizer's measured steps, between `attach` and `detach`.

    A table has a row for each variable of earlier measured steps, too. Rows are keyed by name.
    """

    def __init__(self, optimizer: SlotOptimizer, config: Diagnostics) -> None:
        super().__init__(optimizer, config)
        self._count = 0
        # By name, since references, even weak ones, prevent that variables are swapped.
        self._sizes: dict[str, int] = {}

    def next_step(self) -> int:
        """Return the number of the next step."""
        count = self.optimizer._steps_taken()
        if count is not None:
            self._count = count
        return self._count + 1

    def add_taken(self, steps: int) -> None:
        """Add a number of steps to the count."""
        self._count += steps

    def known_parameters(self) -> Parameters:
        """Return the parameters of all tables so far."""
        names, sizes = list(self._sizes), list(self._sizes.values())
        return Parameters(self.config.every, names, sizes, [0] * len(names))

    def _rows(self, watch: _Watch) -> tuple[Parameters, Mapping[int, int]]:
        """Return the parameters of the table, and {id(parameter): row}."""
        variables = distinct(watch.params)
        names = positioned(titles_of(variables), " (index {})")
        self._sizes |= {name: var.numel() for name, var in zip(names, variables, strict=True)}
        row_of = {name: row for row, name in enumerate(self._sizes)}
        rows = {id(var): row_of[name] for name, var in zip(names, variables, strict=True)}
        return self.known_parameters(), rows

    def refuse_graph(self) -> NoReturn:
        """Raise NotImplementedError for a graph in which steps cannot be measured."""
        raise _graph_error(self.optimizer)

    def refuse_ranks(self) -> NoReturn:
        """Raise NotImplementedError for a step with variables that are distributed over ranks."""
        raise NotImplementedError(
            f"diagnostics of {_title(self.optimizer)} are not defined where ranks have parts of"
            " its variables or slots, as of DTensors or by shard_slots=True: detach(optimizer)."
        )

    def between(self, step: Any) -> Between:
        """Return a wrapper of a replayed step. The wrapper does not replay measured steps."""
        return Between(step, self)

    @contextmanager
    def around(self, hooks: Any) -> Generator[None]:
        """Count the step in a `with` block if it is committed, and record a measured step.

        `hooks` is the adapter of the step. Its attribute `watch` is set to a new `_Watch` if the
        step is measured, else to None.

        Raises:
            NotImplementedError: Variables or slots are distributed over ranks.
        """
        if hooks.sharing is not None:
            self.refuse_ranks()
        step = self.next_step()
        watch = hooks.watch = _Watch() if step % self.config.every == 0 else None
        try:
            yield
        finally:
            is_committed = bool(hooks.begun) and hooks.begun[0].startswith(TAKEN)
            self.add_taken(is_committed)
        if watch is None or not is_committed:
            return
        if watch.is_begun:
            self.record(watch, step, hooks.apply_flag)
        else:
            warn(
                f"There is no table of step {step}: its variables were updated one by one, as"
                " complex ones are.",
                NumericsWarning,
            )


class Between:
    """Wrapper of a replayed step that does not replay measured steps."""

    is_due = False
    # The step may call functions of the user.
    calls = True

    def __init__(self, step: Any, recorder: Attached) -> None:
        self._step, self._recorder = step, recorder

    @property
    def taken(self) -> int:
        """Number of replayed steps."""
        return self._step.taken

    @property
    def read(self) -> Any:
        """Results of user functions that `take` called before it returned False; else None."""
        return getattr(self._step, "read", None)

    def is_over(self, pairs: list[Any]) -> bool:
        """Return True if the next step is not measured, and `pairs` can be replayed."""
        return not self._recorder.is_due() and self._step.is_over(pairs)

    def take(self, optimizer: Any, plan_cache: PlanCache, inputs: Any) -> bool:
        """Replay the step with new `inputs`; return True if it was taken.

        Return False if the step is measured, or cannot be replayed with these inputs. If the
        optimizer has another recorder now, also set `plan_cache.replay` to None.
        """
        if optimizer._recorder is not self._recorder:
            plan_cache.replay = None
            return False
        if self._recorder.is_due():
            return False
        previous_count = self._step.taken
        try:
            return self._step.take(optimizer, plan_cache, inputs)
        finally:
            self._recorder.add_taken(self._step.taken - previous_count)
