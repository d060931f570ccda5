"""`torch.optim.Adafactor` with row and column statistics in fused steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from thalweg._core.dtensor import is_on_mesh
from thalweg._core.param_groups import Group
from thalweg.formula import Rule
from thalweg.optim.fused_torch_optimizer import FusedTorchOptimizer
from thalweg.optim.group_options import read_eps
from thalweg.rules.torch.adafactor import adafactor, kind_of

_DTYPES = (torch.float32, torch.float64, torch.bfloat16)  # of parameters that engines update


class Adafactor(FusedTorchOptimizer, torch.optim.Adafactor):
    """`torch.optim.Adafactor`, with steps in three passes over memory.

    `state[p]` holds `step`. For a matrix it also holds `row_var` and `col_var`: the parameter's
    shape with 1 in place of the last dimension, or the last but one. For any other parameter it
    holds `variance`. Torch's step updates DTensors, float16 parameters, and devices other than CPU
    and GPU.

    Args:
        beta2_decay: A new square has the weight step ** beta2_decay in its running mean.
        eps: The least root of a mean square (None: the epsilon of the dtype), and the least root
            mean square of a parameter.
        d: The largest root mean square of a step before it is multiplied by the rate.

    Source: Shazeer & Stern 2018, https://arxiv.org/abs/1804.04235; torch.optim.Adafactor
    """

    _rule = "TORCH_ADAFACTOR"
    _unread = ("eps",)
    _unsupported_options = {
        "state_storage": "has no slots that state_storage may encode: of matrices it keeps a number"
        " for each row and column, and what it keeps of others it measures"
    }

    @staticmethod
    def _rule_by_shape(group: Group, param: Tensor) -> Rule:
        """Return a parameter's rule: row and column means for matrices, else elementwise means."""
        root_floor, of_variable = read_eps(group["eps"], allows_none=True)
        if root_floor is None:
            root_floor = torch.finfo(param.dtype).eps
        return adafactor(root_floor, of_variable, kind_of(param.shape))

    @classmethod
    def _check_choices(cls, group: Mapping[str, Any]) -> None:
        read_eps(group["eps"], allows_none=True)

    @staticmethod
    def _computes(param: Tensor) -> bool:
        """Return True if the engines support the dtype and layout of a parameter."""
        return not is_on_mesh(param) and param.dtype in _DTYPES
