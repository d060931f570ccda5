"""`state_dict` and `load_state_dict` of v1 optimizers: what eager mode keeps, by name."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor

from thalweg.core.pairs import check_variables, distinct, flatten
from thalweg.core.section import run
from thalweg.core.slots import SlotStore
from thalweg.errors import FailedPreconditionError, InvalidArgumentError
from thalweg.graph import executing_eagerly, is_symbolic
from thalweg.v1.train.matching import check_matches, distinct_names, tensors_of
from thalweg.v1.train.state import State, base_name


class StateDict(State):
    """The part of `Optimizer` that saves and loads."""

    def state_dict(self, var_list: Iterable[Any] | None = None) -> dict[str, Tensor]:
        """Copies of the slots and of the optimizer's other variables, by name.

        A slot is called like its variable and itself, "w/momentum"; what belongs to no variable
        has its own name, "beta1_power". Hyperparameters, `global_step` and the variables that are
        trained are not in it. Before the first step it is empty.

        Args:
            var_list: Optional. The variables that have slots, in the order in which
                `load_state_dict` will be given them; needed if several have the same name.

        Raises:
            FailedPreconditionError: The state is variables of a graph, which sessions keep.
            InvalidArgumentError: Several variables have the same name and there is no `var_list`,
                or one that has slots is not in it.
            InvalidTypeError: The optimizer wraps another one.
        """
        self._check_has_state()
        with self._locked():
            present = self._present(self._chosen_for_state(var_list))
            return {name: value.detach().clone() for name, value in present.items()}

    def load_state_dict(
        self, state_dict: Mapping[str, Any], var_list: Iterable[Any] | None = None
    ) -> None:
        """Set all slots and other variables of the optimizer; all or nothing.

        Args:
            state_dict: What `state_dict` returned: tensors or arrays by name.
            var_list: The variables it was of; those that have slots by default. Needed before the
                first step, and if several variables have the same name.

        Raises:
            CheckpointMismatchError: Names, shapes or dtypes differ. Nothing was loaded.
            FailedPreconditionError: There are no slots yet and no `var_list`, or the state is
                variables of a graph, which sessions keep.
            InvalidArgumentError, InvalidTypeError: See `state_dict`.
        """
        self._check_has_state()
        given = tensors_of(state_dict)
        with self._locked(), torch.inference_mode(False), torch.no_grad():
            variables = self._chosen_for_state(var_list)
            if not (given or self._slots.owners()):
                return  # it was saved before the first step
            if not variables:
                raise FailedPreconditionError(
                    f"{self._name} has no slots before its first step. Give the variables:"
                    " load_state_dict(state_dict, var_list). Nothing was loaded."
                )
            # What there is decides: a variable may have another shape by now than its slots.
            wanted = self._wanted(variables) | self._present(variables)
            check_matches(given, wanted, f"The state of {self._name}")
            self._create_slots(variables)
            own = self._present(variables)
            run([partial(own[name].detach().copy_, value) for name, value in given.items()])

    def _locked(self) -> Any:
        raise NotImplementedError

    def _create_slots(self, var_list: Sequence[Any]) -> None:
        raise NotImplementedError

    def _check_has_state(self) -> None:
        own = [*self._slots.owners(), *self._non_slots.values()]
        if not executing_eagerly() or any(map(is_symbolic, own)):
            raise FailedPreconditionError(
                f"The state of {self._name} is variables of a graph: a session has its values. Run"
                " variables() of the optimizer."
            )

    def _chosen_for_state(self, var_list: Any) -> list[Tensor]:
        """The variables of a state, in the order in which those of one name are numbered."""
        owners = self._slots.owners()
        if var_list is None:
            names = [base_name(var) for var in owners]
            repeated = [name for name in dict.fromkeys(names) if names.count(name) > 1]
            if repeated:
                raise InvalidArgumentError(
                    f"{names.count(repeated[0])} variables are called '{repeated[0]}': give them as"
                    " var_list, in the same order each time, or names by"
                    " thalweg.named_variables(module)."
                )
            return owners
        variables = distinct(flatten(var_list))
        check_variables(variables)
        known = {id(var) for var in variables}
        left = [base_name(var) for var in owners if id(var) not in known]
        if left:
            raise InvalidArgumentError(
                f"var_list must hold all variables that {self._name} has slots of; not in it:"
                f" {left[:10]}."
            )
        return variables

    def _present(self, variables: Sequence[Tensor]) -> dict[str, Any]:
        names = distinct_names([base_name(var) for var in variables], "#")
        slots = {
            f"{name}/{key}": slot
            for name, var in zip(names, variables, strict=True)
            for key, slot in self._slots.all_of(var).items()
        }
        return slots | {name: each for (name, _), each in self._non_slots.items()}

    def _wanted(self, variables: Sequence[Tensor]) -> dict[str, Any]:
        """State of these names, shapes and dtypes, without touching the optimizer's own."""
        twin = self._stateless()
        twin._create_slots(variables)
        return twin._present(variables)

    def _stateless(self) -> Self:
        """A twin that has made no slots, to see what they would be."""
        twin = copy.copy(self)
        twin._slots, twin._non_slots, twin._slot_names = SlotStore(), {}, {}
        return twin
