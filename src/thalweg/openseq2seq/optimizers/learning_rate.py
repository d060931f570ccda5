"""Learning rate of a step, and tensors that depend on it."""

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
    """Learning rate of an eager training, as tensors that are set before each step.

    Args:
        policy: `policy(global_step)` returns a number, a tensor, or a callable without arguments
            that returns either.
        global_step: The variable that counts updates.

    Attributes:
        value: The learning rate, a tensor of shape ().
        source: The last result of the policy, if it is a `CallableRate`; else the policy.
    """

    def __init__(self, policy: Callable[[Any], object], global_step: Any) -> None:
        self._policy = policy
        self._step = global_step
        # Copy of the step on the host, if the step is on a device.
        self._host_step: Variable | None = None
        self._products: list[tuple[Tensor, Callable[[], Tensor]]] = []
        self.source: object = policy
        # Last result of the policy; a number has more digits than `value`.
        self._policy_value: Any = None
        rate = _floating(self._call_policy())
        check_held(rate, "The learning rate that the policy returned")
        self.value = rate.clone()
        # Values that `set` assigns to `tensors`.
        self._new_values: list[Tensor] = []
        # Value of the tensors, if the policy returned a number.
        self._set_to: object = None

    def _read_global_step(self) -> Any:
        """Return the global step's variable, or an updated host copy if it is on a GPU."""
        step = self._step
        if is_host(step):
            return step
        if self._host_step is None:
            name = name_of(step, "global_step").split(":")[0]
            self._host_step = Variable(0, dtype=step.dtype, name=name, trainable=False)
        self._host_step.detach().fill_(number_of(step))
        return self._host_step

    def _call_policy(self) -> object:
        """Call the policy and return the present rate; also store the rate and its source."""
        rate = self._policy(self._read_global_step())
        self.source = rate if isinstance(rate, CallableRate) else self._policy
        self._policy_value = called(rate)
        return self._policy_value

    def times(self, factor: object) -> Tensor:
        """Return a new tensor that `set` keeps equal to `factor` times the learning rate.

        The product of two Python numbers is computed by Python, then rounded to the tensor's dtype.
        """

        def product() -> Tensor:
            return _floating(called(factor) * self._policy_value)

        tensor = product().clone()
        self._products.append((tensor, product))
        return tensor

    @property
    def tensors(self) -> list[Tensor]:
        """Tensors that `refresh` sets."""
        return [self.value, *(tensor for tensor, _ in self._products)]

    def ask(self) -> bool:
        """Call the policy for the present step; return True if the tensors need new values.

        The new values are stored until `set` writes them.
        """
        old_value = self._policy_value
        with no_grad():
            new_value = self._call_policy()
            # A product may depend on other callables than the policy. After an error, the step
            # restores `value`; it then differs from the number that `set` stored.
            is_constant = new_value is old_value and type(new_value) is float and not self._products
            if is_constant and number_of(self.value) == self._set_to:
                return False
            self._new_values = [_floating(new_value), *(product() for _, product in self._products)]
        return True

    def set(self) -> None:
        """Set all tensors to the values found by `ask`."""
        with no_grad():
            for tensor, value in zip(self.tensors, self._new_values, strict=True):
                tensor.copy_(value)
        self._set_to = number_of(self.value) if type(self._policy_value) is float else None

    def refresh(self) -> None:
        """Set all tensors for the present global step."""
        self.ask()
        self.set()


def _floating(value: object) -> Tensor:
    tensor = to_tensor(value).detach()
    return tensor if tensor.is_floating_point() else tensor.float()


def called(value: Any) -> Any:
    """Return the result of a callable; return other values unchanged."""
    needs_call = callable(value) and is_function(value) and not is_symbolic(value)
    return value() if needs_call else value


def scaled_decay(
    params: Mapping[str, object], product: Callable[[Any], object], in_place: bool
) -> dict[str, Any]:
    """Return a copy of AdamW's parameters, with the weight decay times the learning rate.

    `product(number)` returns the number times the learning rate. `in_place` changes `params`, too,
    as OpenSeq2Seq does. Raise NotFoundError if there is no weight decay.
    """
    if _DECAY not in params:
        raise NotFoundError(f"AdamW needs {_DECAY} in optimizer_params.")
    decay = product(params[_DECAY])
    if in_place:
        params[_DECAY] = decay  # pyright: ignore[reportIndexIssue]
    return {**params, _DECAY: decay}
