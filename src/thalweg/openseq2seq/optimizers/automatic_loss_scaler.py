"""`AutomaticLossScaler`: a loss scale that follows the gradients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from thalweg._base.execution_context import is_deferred
from thalweg._core.config_registry import LOSS_SCALERS, Names
from thalweg._graph import Output, operation
from thalweg.errors import InvalidArgumentError, did_you_mean
from thalweg.indexed_slices import values_of
from thalweg.openseq2seq.optimizers.backoff import BackoffScaler
from thalweg.openseq2seq.optimizers.gradients import concrete
from thalweg.openseq2seq.optimizers.log_max import LogMaxScaler
from thalweg.openseq2seq.optimizers.loss_scaler import LossScaler

_SCALERS: dict[str, type[LossScaler]] = {"backoff": BackoffScaler, "logmax": LogMaxScaler}


class AutomaticLossScaler:
    """Loss scale that adapts to the gradients, so that few float16 gradients over- or underflow.

    Divide gradients by `loss_scale`, and pass them to `check_grads`. Take the step unless a
    gradient is NaN or infinite. Call `update_op` in each case. An object made while a graph is
    built belongs to that graph.

    Args:
        algorithm: "Backoff" or "LogMax", in upper or lower case.
        params: Optional. A dict of parameters, see `BackoffScaler` and `LogMaxScaler`.
        as_shipped: True to reproduce defects of OpenSeq2Seq, see `LogMaxScaler`.

    Attributes:
        SUPPORTED_ALGOS: The algorithms, in lower case.
        scaler: The `BackoffScaler` or `LogMaxScaler`.

    Raises:
        ValueError: The algorithm or a parameter is unknown, or a parameter has another type.

    Example:
        >>> scaler = AutomaticLossScaler("Backoff", {"scale_max": 256.0, "step_window": 2})
        >>> scales = []
        >>> for amax in (1.0, float("inf"), 1.0, 1.0):
        ...     _ = scaler.update_op(False, amax)
        ...     scales.append(float(scaler.loss_scale))
        >>> scales
        [256.0, 128.0, 128.0, 256.0]

    Reference: OpenSeq2Seq, optimizers.automatic_loss_scaler
    """

    SUPPORTED_ALGOS: ClassVar[list[str]] = list(_SCALERS)

    def __init__(
        self,
        algorithm: str = "Backoff",
        params: Mapping[str, object] | None = None,
        *,
        as_shipped: bool = False,
    ) -> None:
        name = algorithm.lower().strip()
        if name not in _SCALERS:
            choices = f"There are: {', '.join(_SCALERS)}."
            hint = did_you_mean(name, _SCALERS)
            raise InvalidArgumentError(
                f"Unknown scaling algorithm: {name}. {choices} {hint}".rstrip()
            )
        self.scaler = _SCALERS[name](params, as_shipped)
        self._algorithm = name

    def _arguments(self) -> dict[str, object]:
        """Return the constructor's arguments by name."""
        return {"algorithm": self._algorithm, **self.scaler._arguments()}

    def _keeps(self) -> tuple[object, ...]:
        """Return (): the wrapping optimizer saves the variables."""
        return ()

    def _made_by(self) -> tuple[Names, type[AutomaticLossScaler]]:
        return LOSS_SCALERS, type(self)

    @property
    def loss_scale(self) -> Any:
        """The variable that holds the factor, float32 of shape ()."""
        return self.scaler.loss_scale

    @property
    def variables(self) -> dict[str, Any]:
        """The variables of the state by name."""
        return self.scaler.variables

    def update_op(self, has_nan: object, amax: object) -> Any:
        """See `LossScaler.update_op`."""
        return self.scaler.update_op(has_nan, amax)

    def state_dict(self) -> dict[str, Tensor]:
        """See `LossScaler.state_dict`."""
        return self.scaler.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, object]) -> None:
        """See `LossScaler.load_state_dict`."""
        self.scaler.load_state_dict(state_dict)

    @staticmethod
    def check_grads(grads_and_vars: Iterable[tuple[object, object]]) -> tuple[Any, Any]:
        """Return (True if an element is NaN, largest magnitude in all gradients).

        Args:
            grads_and_vars: (gradient, variable) pairs. A gradient is a tensor (dense, or sparse
                COO), `IndexedSlices`, or None. Rows with equal indices are not summed.

        Returns:
            A bool tensor and a float32 tensor, of shape (). The magnitude is NaN if an element is
            NaN, and 0 if all gradients are empty.

        Raises:
            ValueError: There is no gradient.
        """
        gradients = [grad for grad, _ in grads_and_vars if grad is not None]
        if not gradients:
            raise InvalidArgumentError("No gradients provided for any variable.")
        if not is_deferred(*gradients):
            return _measure_gradients(gradients)
        outputs = [Output(torch.bool, ()), Output(torch.float32, ())]
        has_nan, amax = operation(
            _measure_gradients, [gradients], "check_grads", kind="pure", outputs=outputs
        )
        return has_nan, amax


def _measure_gradients(gradients: list[object]) -> tuple[Tensor, Tensor]:
    bounds = [bound for grad in gradients for bound in _find_bounds(grad)]
    # `np.max` returns NaN if any bound is NaN.
    amax = np.float32(np.max(np.abs(bounds), initial=0.0))
    is_nan = torch.tensor(bool(np.isnan(amax)), dtype=torch.bool, device="cpu")
    return is_nan, torch.tensor(amax, dtype=torch.float32, device="cpu")


def _find_bounds(grad: object) -> list[float]:
    """Return [lowest, highest element], both NaN if any is; [] without elements."""
    rows = concrete(grad)
    values = None if rows is None else values_of(rows)
    if values is None or not values.numel():
        return []
    return [float(bound) for bound in torch.aminmax(values.detach())]
