"""`state_dict` and `load_state_dict` of v1 optimizers and averages in eager mode."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from torch import Tensor

from thalweg._base.showing import show_value
from thalweg._base.tracing import untraced
from thalweg._core import state
from thalweg._core.grads_and_vars import check_variables, distinct, flatten
from thalweg._core.state import Entry, Names
from thalweg._core.trackable import TrackableSlots
from thalweg._graph import executing_eagerly
from thalweg.errors import FailedPreconditionError, InvalidArgumentError, InvalidTypeError
from thalweg.v1.train.slot_creator import base_name
from thalweg.variable import to_tensor


class V1StateDict(TrackableSlots, state.StateDict):
    """Base class of optimizers and moving averages that saves and loads their state by name."""

    _name: str

    @untraced
    def state_dict(self, var_list: Iterable[object] | None = None) -> dict[str, Tensor]:
        """Return {name: copy} of all slots and optimizer-wide variables.

        A slot's name is "variable/slot", such as "w/momentum"; "w#1/momentum" belongs to the second
        variable named "w". An optimizer-wide variable has its own name, such as "beta1_power".
        Hyperparameters, `global_step` and trained variables are not included. Before the first step
        the result is empty. If a `thalweg.distribute.Strategy` shards slots, all ranks must call
        this method and receive all slots.

        Args:
            var_list: Optional. The variables with slots, in the order for `load_state_dict`;
                required if several variables have one name.

        Raises:
            FailedPreconditionError: The state consists of graph variables, which `Saver` saves.
            InvalidArgumentError: Several variables have one name and there is no `var_list`, or
                `var_list` lacks a variable with slots.
        """
        return self._saved(select=lambda: self._chosen_for_state(var_list))

    def _saved(
        self, names: Names = state.keys_of, select: Callable[[], list[Tensor]] | None = None
    ) -> dict[str, Tensor]:
        """Return the state dict by `names` of the variables that `select` returns."""
        self._check_has_state()
        with self._locked():
            self._settle()
            variables = select() if select else self._owners()
            return state.snapshot(self._entries(variables, names(variables)))

    @untraced
    def load_state_dict(
        self, state_dict: Mapping[str, object], var_list: Iterable[object] | None = None
    ) -> None:
        """Set all slots and optimizer-wide variables from a dict; change nothing on an error.

        Args:
            state_dict: {name: tensor or array}, as returned by `state_dict`.
            var_list: Optional. The variables of the state; by default all variables with slots.
                Required before the first step, and if several variables have one name.

        Raises:
            CheckpointMismatchError: Names, shapes or dtypes differ. Nothing was loaded.
            FailedPreconditionError: There are no slots yet and no `var_list`, or the state consists
                of graph variables, which `Saver` restores.
            InvalidArgumentError: See `state_dict`.
        """
        with self._loading(state_dict, var_list) as loading:
            state.restore(loading)

    def _given_state(self, state_dict: object, var_list: object) -> tuple[object, object]:
        self._check_has_state()
        return tensors_of(state_dict), var_list

    def _fitting(
        self, given: Mapping[str, object], variables: object, names: Names
    ) -> state.Loading:
        """Check names, shapes and dtypes; return a `Loading`, the argument of `state.restore`.

        Args:
            given: {name: tensor or array}.
            variables: The variables of the state; None selects all variables with slots.
            names: `names(variables)` returns one key per variable.

        Raises:
            FailedPreconditionError: There are no slots and no variables.
            CheckpointMismatchError: Names, shapes or dtypes differ.
        """
        state_variables = self._chosen_for_state(variables)
        has_slots = any(self._slot_entries(var, "") for var in self._owners())
        without_slots = [*self._lasting_entries(), *self._own_entries()]
        if not has_slots and given.keys() <= {entry.name for entry in without_slots}:
            # It was saved before the first step, or by an optimizer that has no slots.
            return state.fitting(without_slots, given, f"The state of {self._name}")
        if not state_variables:
            raise FailedPreconditionError(
                f"{self._name} has no slots before its first step. Give the variables:"
                " load_state_dict(state_dict, var_list). Nothing was loaded."
            )
        return super()._fitting(given, state_variables, names)

    def _state_parts(
        self, given: Mapping[str, object], variables: list[Tensor], names: Names
    ) -> tuple[str, list[state.Given]]:
        """Create missing slots; return (title for errors, [(entries, {name: tensor}, True)]).

        `entries` are the tensors of self as `Entry`s. The dict is `given`, with new keys if an old
        version wrote it. True means that the dict must have a value for every entry.
        """
        # The existing slots decide: a variable may have another shape by now than its slots.
        self._create_for_state(variables, given)
        entries = self._entries(variables, names(variables))
        if names is state.keys_of:
            previous = self._entries(variables, state.positioned_keys_of(variables))
            given = state.as_now(
                given, [entry.name for entry in previous], [e.name for e in entries]
            )
        return f"The state of {self._name}", [([*self._lasting_entries(), *entries], given, True)]

    def _create_for_state(self, variables: Sequence[object], names: Collection[str]) -> None:
        """Create the slots that a state with these names has."""
        self._create_slots([*variables])

    def _check_has_state(self) -> None:
        variables = [*self._owners(), *(entry.own for entry in self._own_entries())]
        state.check_eager(f"The state of {self._name}", variables, executing_eagerly())

    def _chosen_for_state(self, var_list: object) -> list[Tensor]:
        """Return the variables of a state: `var_list`, or all variables with slots.

        Raises:
            InvalidArgumentError: Names repeat without `var_list`, or `var_list` lacks a variable
                with slots.
        """
        owners = self._owners()
        if var_list is None:
            names = [base_name(var) for var in owners]
            clashes = [name for name in dict.fromkeys(names) if names.count(name) > 1]
            if clashes:
                raise InvalidArgumentError(
                    f"{names.count(clashes[0])} variables are called '{clashes[0]}': give them as"
                    " var_list, in the same order each time, or names by"
                    " thalweg.named_variables(module)."
                )
            return owners
        variables = distinct(flatten(var_list))
        check_variables(variables)
        listed_ids = {id(var) for var in variables}
        missing_names = [base_name(var) for var in owners if id(var) not in listed_ids]
        if missing_names:
            raise InvalidArgumentError(
                f"var_list must hold all variables that {self._name} has slots of; not in it:"
                f" {missing_names[:10]}."
            )
        return variables

    def _entries(self, variables: Sequence[Tensor], keys: Sequence[str]) -> list[Entry]:
        """Return the entries of slots, named by `keys`, and of optimizer-wide variables."""
        slots = [
            entry
            for key, var in zip(keys, variables, strict=True)
            for entry in self._slot_entries(var, key)
        ]
        return slots + self._own_entries()

    def _slot_entries(self, var: Tensor, key: str) -> list[Entry]:
        """Return the entries of the slots of one variable."""
        return state.of_slots(self._slots, var, key)

    def _own_entries(self) -> list[Entry]:
        """Return the entries of optimizer-wide variables."""
        return []

    def _lasting_entries(self) -> list[Entry]:
        """Return the entries that exist before the first step."""
        return []


def tensors_of(table: object) -> dict[str, Tensor]:
    """Return {name: tensor} of a state of tensors or arrays.

    Raises:
        InvalidTypeError: `table` is not a mapping, or a value is not a tensor or array.
    """
    if not isinstance(table, Mapping):
        raise InvalidTypeError(f"A state is a dict of tensors by name, not {show_value(table)}.")
    tensors: dict[str, Tensor] = {}
    for name, entry in table.items():
        try:
            tensors[name] = to_tensor(entry)
        except InvalidTypeError as error:
            raise InvalidTypeError(f"{name!r} of the state: {error}") from error
    return tensors
