"""`Session`: runs a graph and stores the values of the graph's variables."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from thalweg._base.context_managers import ContextSetting, writable
from thalweg._base.execution_context import SessionVariable, thread
from thalweg._base.exports import exported_from
from thalweg._base.locks import Lock, excuse, on_fork
from thalweg._base.tracing import untraced
from thalweg._core import atomic_section
from thalweg._core.nest import leaves_of, packed
from thalweg._graph.default_graph import get_default_graph
from thalweg._graph.feeds_and_fetches import convert_feeds, copy_to_cpu, exported, fetched_element
from thalweg._graph.gradients import as_differentiable
from thalweg._graph.locks import EXCLUSIVE, SHARED, ReadWriteLock
from thalweg._graph.nodes import Nodes, Operation, SymbolicTensor
from thalweg._graph.plan import RunPlan, make_plan
from thalweg._graph.run_frame import Frame
from thalweg._graph.variable_store import Leaves
from thalweg._graph.variables import GraphVariable
from thalweg.errors import FailedPreconditionError, InvalidArgumentError

_C: Any = torch._C  # pyright: ignore[reportPrivateUsage]


@exported_from("thalweg.v1")
class Session:
    """Executor of a graph, with the values of the graph's variables.

    Args:
        target: Ignored; everything runs in this process.
        graph: By default the default graph.
        config: Ignored.

    A run reads variables before updates, unless control dependencies or data require
    another order. So a resource variable fetched beside a training operation has the value from
    before the step; any other variable has the value after the step. Several threads may call
    `run` at once: pure operations run at the same time, and updates run alone.

    Attributes:
        values: The values of the graph's variables.
        plans_made: Number of execution plans made; equal fetches share a plan.
    """

    def __init__(self, target: str = "", graph: Nodes | None = None, config: object = None) -> None:
        self.graph = get_default_graph() if graph is None else graph
        self.plans_made = 0
        self.values = Leaves()
        self._lock = ReadWriteLock()
        self._plans: dict[object, RunPlan] = {}
        self._generators: dict[object, torch.Generator] = {}
        self._resources: dict[Any, Any] = {}
        # Held so that no resource is created while the session is being closed.
        self._opening = Lock()
        self._context: contextlib.ExitStack | None = None
        on_fork(self, Session._forget_after_fork)

    def _forget_after_fork(self) -> None:
        """Reset the lock in a forked child; drop all values if another thread was writing some."""
        lost_writer = self._lock.renew(self._held_lock())
        if lost_writer:
            # Optimizers in that thread's run need no mark: all their writes are dropped here.
            excuse(lost_writer)
            self.values.clear(
                ": another thread was in a run of this session that updates variables when process"
                f" {os.getppid()} forked this one, so no value is left here. Initialize or load the"
                " variables."
            )

    def _held_lock(self) -> str | None:
        """Return the mode in which this thread holds the lock, or None."""
        for frame in reversed(thread.frames):
            if frame.lock is not None and frame.session is self:
                return frame.lock
        return None

    @untraced
    def run(
        self,
        fetches: object,
        feed_dict: Any = None,
        options: object = None,
        run_metadata: object = None,
    ) -> Any:
        """Compute `fetches` and all operations that `fetches` need, each once.

        Args:
            fetches: An operation, tensor, variable, slices, a name, or nested lists, tuples,
                named tuples and mappings of these.
            feed_dict: Optional. {tensor: value that replaces the tensor's value in this run}.
            options, run_metadata: Ignored.

        Returns:
            The structure of `fetches` with copies: a NumPy array or scalar for a tensor,
            `IndexedSlicesValue` for slices, None for an operation.

        Raises:
            FailedPreconditionError: The session is closed, or a variable is not initialized.
            InvalidTypeError: A fetch or the key of a feed is not an element of a graph.
            InvalidArgumentError: A placeholder is not fed, or a shape does not fit.
        """
        self.values.check_open()
        # The usual case, without flattening the fetches and packing the results.
        is_single = isinstance(fetches, Operation | SymbolicTensor)
        requests = (fetches,) if is_single else tuple(leaves_of(fetches))
        try:
            feeds = convert_feeds(self.graph, feed_dict) if feed_dict else {}
            plan = self._plan_for(requests, frozenset(feeds))
        except Exception as error:
            self._abandon_waiting(requests, error)
            raise
        results = self._execute_plan(plan, feeds)
        return results[0] if is_single else packed(fetches, iter(results))

    def make_callable(
        self, fetches: object, feed_list: Sequence[object] = ()
    ) -> Callable[..., Any]:
        """Return a function that runs `fetches` with the values of `feed_list` as arguments."""
        return lambda *values: self.run(fetches, dict(zip(feed_list, values, strict=True)))

    def _abandon_waiting(self, requests: tuple[object, ...], error: BaseException) -> None:
        """Report the error of a run that cannot begin to ranks that wait for its operations."""
        operations = self.graph.get_operations()
        if any(op.abandoned is not None for op in operations):
            # As if all placeholders were fed, since planning raises for a missing feed.
            keys = frozenset(x for op in operations if op.kind == "placeholder" for x in op.outputs)
            fetches = [fetched_element(self.graph, fetch) for fetch in requests]
            make_plan(fetches, keys).abandon_waiting(None, error)

    def _plan_for(self, requests: tuple[object, ...], feeds: frozenset[SymbolicTensor]) -> RunPlan:
        """Return the plan for fetches and fed tensors; make and cache it at the first call."""
        key = (requests, feeds)
        try:
            return self._plans[key]
        # A fetch that cannot be hashed is replaced by its element, or raises as no valid fetch.
        except TypeError:
            elements = tuple(fetched_element(self.graph, fetch) for fetch in requests)
            return self._plan_for(elements, feeds)
        except KeyError:
            fetches = [fetched_element(self.graph, fetch) for fetch in requests]
        self.plans_made += 1
        # Another thread may have stored an equal plan meanwhile.
        return self._plans.setdefault(key, make_plan(fetches, feeds))

    def _execute_plan(
        self,
        plan: RunPlan,
        feeds: Mapping[SymbolicTensor, object],
        export: Callable[[Any], object] = exported,
    ) -> list[Any]:
        """Run a plan in a new frame; return the list of `export(value)` of each fetch."""
        frame, frames = Frame(self, feeds), thread.frames
        records = partial(_C._set_grad_enabled, torch.is_grad_enabled())
        # Opened and closed in C: an interruption cannot leave the frame in place.
        with ContextSetting(lambda: ([partial(frames.append, frame)], [records, frames.pop])):
            try:
                return self.carry_out(plan, frame, export)
            except Exception as error:
                if frame.failed is not None:
                    plan.abandon_waiting(frame.failed, error)
                raise

    def carry_out(self, plan: RunPlan, frame: Frame, export: Callable[[Any], object]) -> list[Any]:
        """Run a plan in `frame`; return a list with `export(value)` of each fetch.

        The gradient mode of torch may be changed; the caller restores the mode.
        """
        if not plan.overwrites:
            return self._carry_out(plan, frame, export)
        # Tensors that autograd saves may share memory with variables, which updates change.
        save = torch.autograd.graph.saved_tensors_hooks
        with save(lambda value: self.values.copy_if_shared(value.detach()), lambda value: value):
            return self._carry_out(plan, frame, export)

    def _carry_out(
        self, plan: RunPlan, frame: Frame, export: Callable[[Any], object]
    ) -> list[object]:
        """Run a plan under the locks of its segments; see `carry_out`.

        If this thread has the session's lock already, take no lock.
        """
        for tensor in plan.watched_feeds:
            frame[tensor] = as_differentiable(frame[tensor])
        results: list[Any] = [None] * plan.count
        for index, tensor in plan.fed_fetches:
            results[index] = export(frame[tensor])
        is_nested = frame.lock is not None or len(thread.frames) > 1
        action = "started a run that updates variables"
        is_nested = is_nested and self._holds_lock(plan.writes, action)
        for lock, steps in plan.segments:
            if lock is None or is_nested:
                frame.run(steps, results, export)
            else:
                self._run_locked(lock, frame, partial(frame.run, steps, results, export))
        return results

    def _holds_lock(self, writes: bool, action: str) -> bool:
        """Return True if an outer run of this thread holds the session's lock.

        Raise FailedPreconditionError if `writes` is True, but the outer run's operation is pure.
        `action` is the end of the error's sentence.
        """
        held_mode = self._held_lock()
        if held_mode == SHARED and writes:
            raise FailedPreconditionError(f"An operation that is declared as pure {action}.")
        return held_mode is not None

    def evaluate(self, tensor: SymbolicTensor, frame: Frame) -> Any:
        """Return the value of a tensor that the run of `frame` lacks or has released."""
        plan = self._plan_for((tensor,), frozenset(frame.feeds))
        return self._execute_plan(plan, frame.feeds, lambda value: value)[0]

    def kept_in(self) -> list[dict[Any, Any]]:
        """Return the dictionaries that hold variable values, for direct lookup by `leaf`."""
        return self.values.kept_in()

    def leaf(self, variable: GraphVariable) -> SessionVariable:
        """Return the session's tensor of a variable; write to it only in place.

        Raise FailedPreconditionError if the variable is not initialized.
        """
        return self.values.get(variable)

    def leaves(self, variables: Sequence[GraphVariable]) -> list[SessionVariable]:
        """Return the tensors of several variables, in order; see `leaf`."""
        return self.values.all_of(variables)

    def is_initialized(self, variable: GraphVariable) -> bool:
        """Return True if a variable has a value in this session."""
        return variable in self.values

    def initialize(self, variable: GraphVariable, value: object) -> None:
        """Set the first value of a variable; called by the operation `variable.initializer`."""
        self.values.put(variable, value)

    def generator(self, key: object, seed: int) -> torch.Generator:
        """Return the random generator of the operation with this key, created with `seed`."""
        if key not in self._generators:
            self._generators[key] = torch.Generator(device="cpu").manual_seed(seed)
        return self._generators[key]

    def load(self, variable: GraphVariable, value: object) -> None:
        """Set the value of a variable outside of a run."""
        self._run_exclusively(lambda: self.values.put(variable, value))

    @untraced
    def snapshot(self, variables: Sequence[GraphVariable]) -> list[torch.Tensor]:
        """Return copies of the values of variables in CPU memory, all from one run.

        Raises:
            FailedPreconditionError: The session is closed, or a variable is not initialized.
            InvalidArgumentError: A variable is of another graph.
        """
        self.values.check_open()
        plan = self._plan_for(tuple(variables), frozenset())
        return self._execute_plan(plan, {}, copy_to_cpu)

    @untraced
    def load_all(self, values: Mapping[GraphVariable, torch.Tensor]) -> None:
        """Set the values of variables outside of a run; on an error set none.

        Raises:
            FailedPreconditionError: The session is closed, or a pure operation calls this.
            InvalidArgumentError: A variable is of another graph, or a value does not fit it.
        """
        for variable in values:
            if variable.graph is not self.graph:
                raise InvalidArgumentError(
                    f"'{variable.name}' is not an element of the session's graph."
                )

        def load_values() -> None:
            with writable():
                self.values.check_open()
                atomic_section.run(self.values.calls_to_load(values))

        self._run_exclusively(load_values)

    def resource(self, key: object, make: Callable[[], object]) -> Any:
        """Return the object stored under `key`; the first call creates it with `make()`.

        `Session.close` calls the object's method `close`, which must end all waits for the object.
        """
        with self._opening:
            self.values.check_open()
            if key not in self._resources:
                self._resources[key] = make()
            return self._resources[key]

    @property
    def closed(self) -> bool:
        """True if the session cannot run any more."""
        return self.values.is_closed

    def _run_exclusively(self, write: Callable[[], None]) -> None:
        """Call `write()` while no other thread reads or writes values."""
        if self._holds_lock(True, "gives a variable a value"):
            write()
        else:
            self._run_locked(EXCLUSIVE, Frame(self, {}), write)

    def _run_locked(self, lock: str, frame: Frame, work: Callable[[], None]) -> None:
        """Call `work()` with the session's lock in mode `lock`; set `frame.lock` meanwhile.

        A KeyboardInterrupt is raised only after the release of the lock.
        """
        interruption: BaseException | None = None
        try:
            self._lock.acquire(lock, frame)
            work()
        finally:
            while frame.lock is not None:
                try:
                    self._lock.release(frame)
                # An interruption even before the first statement of `release` is caught here.
                except BaseException as error:
                    interruption = error
            if interruption is not None:
                raise interruption

    def close(self) -> None:
        """Drop the values of all variables and end the session.

        Operations that wait in other threads end with CancelledError.
        """
        with self._opening:
            self.values.is_closed = True
            resources = list(self._resources.values())
            self._resources.clear()
        for resource in resources:
            resource.close()
        self.values.clear()
        self._plans.clear()

    @contextlib.contextmanager
    def as_default(self) -> Iterator[Session]:
        """Return a context manager: in this thread `eval` and `run` use this session by default."""
        thread.sessions.append(self)
        try:
            yield self
        finally:
            # Not the last entry: interactive sessions may be closed in any order.
            thread.sessions.remove(self)

    def __enter__(self) -> Session:
        # If a context cannot be entered, the stack leaves those entered before.
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.graph.as_default())
            stack.enter_context(self.as_default())
            self._context = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        if self._context is not None:
            self._context.close()
        self.close()


class InteractiveSession(Session):
    """Session that is the default session from construction to `close`."""

    def __init__(self, target: str = "", graph: Nodes | None = None, config: object = None) -> None:
        super().__init__(target, graph, config)
        self.__enter__()

    def close(self) -> None:
        """Stop being the default session; drop the values of all variables."""
        context, self._context = self._context, None
        if context is not None:
            context.close()
        super().close()
