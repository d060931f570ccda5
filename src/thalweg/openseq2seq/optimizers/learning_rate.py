"""The learning rate of a step, and what follows from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from thalweg._base.context_managers import no_grad
from thalweg._base.device_counters import number_of
from thalweg._core.hyperparameters import is_function
from thalweg._core.vectors import is_host
from thalweg._graph import is_symbolic
from thalweg.errors import NotFoundError
from thalweg.v1.train.callable_rate import CallableRate
from thalweg.variable import Variable, check_held, name_of, to_tensor

_DECAY = "weight_decay"


class LiveRate:
    """Tensors of shape () that an optimizer reads, set anew before each step of eager mode.

    Args:
        policy: Takes the global step; returns a number, a tensor, or a callable that returns one.
        global_step: The variable that counts updates.

    Attributes:
        value: The learning rate.
        source: What tells how it is computed: a `CallableRate`, or else the policy.
    """

    def __init__(self, policy: Callable[[Any], object], global_step: Any) -> None:
        self._policy = policy
        self._step = global_step
        self._seen: Variable | None = None  # the step, where a device counts
        self._derived: list[tuple[Tensor, Callable[[], Tensor]]] = []
        self.source: object = policy
        self._given: Any = None  # what the policy gave last; a number has more digits than `value`
        rate = self._evaluate_hypers()
        check_held(rate, "The learning rate that the policy returned")
        self.value = rate.clone()
        self._due: list[Tensor] = []  # what `set` sets
        self._set_to: object = None  # the number, where the policy gave one

    def _shown(self) -> Any:
        """The step as the policy sees it: on the host, where its own arithmetic may be."""
        step = self._step
        if is_host(step):
            return step
        if self._seen is None:
            name = name_of(step, "global_step").split(":")[0]
            self._seen = Variable(0, dtype=step.dtype, name=name, trainable=False)
        self._seen.detach().fill_(number_of(step))
        return self._seen

    def _evaluate_hypers(self) -> Tensor:
        return _floating(self._asked())

    def _asked(self) -> object:
        """What the policy gives now."""
        found = self._policy(self._shown())
        self.source = found if isinstance(found, CallableRate) else self._policy
        self._given = called(found)
        return self._given

    def times(self, factor: object) -> Tensor:
        """Return a tensor that is `factor` times the learning rate in every step.

        Of two numbers it is their product as Python has it, as in a graph, rounded once.
        """

        def product() -> Tensor:
            return _floating(called(factor) * self._given)

        made = product().clone()
        self._derived.append((made, product))
        return made

    @property
    def tensors(self) -> list[Tensor]:
        """Tensors that `refresh` sets."""
        return [self.value, *(tensor for tensor, _ in self._derived)]

    def ask(self) -> bool:
        """Ask the policy for the present global step; whether `set` has anything to set then."""
        before = self._given
        with no_grad():
            given = self._asked()
            is_same = given is before and type(given) is float and not self._derived
            if is_same and number_of(self.value) == self._set_to:
                return False
            self._due = [_floating(given), *(product() for _, product in self._derived)]
        return True

    def set(self) -> None:
        """Set all to what `ask` has found."""
        with no_grad():
            for tensor, value in zip(self.tensors, self._due, strict=True):
                tensor.copy_(value)
        self._set_to = number_of(self.value) if type(self._given) is float else None

    def refresh(self) -> None:
        """Set all to the present global step."""
        self.ask()
        self.set()


def _floating(value: object) -> Tensor:
    found = to_tensor(value).detach()
    return found if found.is_floating_point() else found.float()


def called(value: Any) -> Any:
    """Return the result of a callable; return other values unchanged."""
    is_called = callable(value) and is_function(value) and not is_symbolic(value)
    return value() if is_called else value


def scaled_decay(
    params: Mapping[str, object], product: Callable[[Any], object], in_place: bool
) -> dict[str, Any]:
    """Return the parameters of AdamW, their weight decay times the learning rate.

    Args:
        params: The parameters.
        product: Gives a number times the learning rate.
        in_place: Whether `params` itself is changed, as OpenSeq2Seq does.

    Raises:
        NotFoundError: There is no weight decay.
    """
    if _DECAY not in params:
        raise NotFoundError(f"AdamW needs {_DECAY} in optimizer_params.")
    decay = product(params[_DECAY])
    if in_place:
        params[_DECAY] = decay  # pyright: ignore[reportIndexIssue]
    return {**params, _DECAY: decay}
