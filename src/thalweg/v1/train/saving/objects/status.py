"""Results of `Checkpoint.restore`. They report what was restored, and load values into sessions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

from thalweg._graph import GraphVariable
from thalweg._graph.nodes import session_for
from thalweg.errors import NotConsumedError, listed
from thalweg.v1.train.saving.objects.members import ObjectMember
from thalweg.v1.train.saving.objects.restoration import Restoration


class InitializationOnlyStatus:
    """Status of a restore without a file.

    Args:
        members: `members()` returns the present members of the `Checkpoint`.
    """

    def __init__(self, members: Callable[[], Sequence[ObjectMember]]) -> None:
        self._members = members

    @property
    def waiting(self) -> list[str]:
        """The names of the file's values whose objects do not exist yet; here always empty."""
        return []

    def assert_consumed(self) -> Self:
        """Raise NotConsumedError, because nothing is restored."""
        raise NotConsumedError("No checkpoint was given to restore: nothing has been restored.")

    assert_existing_objects_matched = assert_nontrivial_match = assert_consumed

    def expect_partial(self) -> Self:
        """Return the status itself."""
        return self

    def run_restore_ops(self, session: object = None) -> None:
        """Raise NotConsumedError, because nothing is restored."""
        self.assert_consumed()

    def initialize_or_restore(self, session: object = None) -> None:
        """Initialize all variables of the graph, in graph mode.

        Args:
            session: By default the default session.
        """
        self._initialize_others(session, set())

    def _initialize_others(self, session: object, restored_ids: set[int]) -> None:
        member_objects = [member.held for member in self._members()]
        variables = [var for var in member_objects if isinstance(var, GraphVariable)]
        initializers = [var.initializer for var in variables if id(var) not in restored_ids]
        if initializers:
            session_for(session, "initialize variables").run(initializers)


class CheckpointLoadStatus(InitializationOnlyStatus):
    """Status of a restore: reports waiting values, and loads values into sessions.

    Args:
        values: The values of the file, and the restored objects.
        members: `members()` returns the present members of the `Checkpoint`.
    """

    def __init__(self, values: Restoration, members: Callable[[], Sequence[ObjectMember]]) -> None:
        super().__init__(members)
        self._values = values

    @property
    def waiting(self) -> list[str]:
        """The names of the file's values whose objects do not exist yet."""
        return self._values.waiting()

    def assert_consumed(self) -> Self:
        """Return self if no value waits for an object and each existing variable was restored.

        Raises:
            NotConsumedError: A value waits, or a variable has no value; the message has the names.
        """
        waiting = self.waiting
        if waiting:
            raise NotConsumedError(
                f"{self._values.source}: {listed(map(repr, waiting))} have no object yet. They are"
                " restored when it is made: slots at the first step. expect_partial() accepts that."
            )
        return self.assert_existing_objects_matched()

    def assert_existing_objects_matched(self) -> Self:
        """Return self if each existing variable was restored from the file.

        Raises:
            NotConsumedError: A variable was not restored; the message has the names.
        """
        bound = {id(entry) for entry in self._values.objects.values()}
        missing = [
            entry.path
            for entry in self._members()
            if entry.is_variable and id(entry.held) not in bound and entry.path != "save_counter"
        ]
        if missing:
            raise NotConsumedError(
                f"{self._values.source} has no values for {listed(map(repr, missing))}, which have"
                " not changed."
            )
        return self

    def assert_nontrivial_match(self) -> Self:
        """Return self if an object besides the root matched an object of the file.

        Raises:
            NotConsumedError: Only the root matched.
        """
        values, waiting = self._values, self.waiting
        if not any(position != 0 for position in values.objects):
            names = f": {listed(map(repr, waiting))} have no object" if waiting else ""
            raise NotConsumedError(
                f"Nothing except the root object matched a value of {values.source}{names}."
            )
        return self

    def run_restore_ops(self, session: object = None) -> None:
        """Load the values of graph variables into a session; do nothing without graph variables.

        Args:
            session: The session; None selects the default session.

        Raises:
            InvalidArgumentError: There is no session.
        """
        assignments = self._values.assignments
        if assignments:
            sess = session_for(session, "restore a checkpoint")
            pairs = {var: tensor for var, tensor in assignments.items() if var.graph is sess.graph}
            sess.load_all(pairs)

    def initialize_or_restore(self, session: object = None) -> None:
        """Load values into a session, and initialize variables that the file lacks (graph mode).

        Args:
            session: The session; None selects the default session.

        Raises:
            InvalidArgumentError: There is no session.
        """
        self.run_restore_ops(session)
        self._initialize_others(session, set(map(id, self._values.objects.values())))

    def __repr__(self) -> str:
        waiting = self.waiting
        description = f"waiting: {listed(map(repr, waiting))}" if waiting else "nothing waits"
        return f"<{type(self).__name__} of {self._values.source}, {description}>"
