"""The classes of `torch.optim` with steps in one pass over memory.

Each is a subclass of the torch class, with the same arguments, defaults, keys, errors, hooks and
files.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from thalweg._core.param_groups import Group, parameter_names
from thalweg._core.sparse_gradients import is_misplaced
from thalweg.errors import InvalidArgumentError
from thalweg.formula import Rule
from thalweg.optim.fused_torch_optimizer import FusedTorchOptimizer
from thalweg.rules import torch as rules


class Adam(FusedTorchOptimizer, torch.optim.Adam):
    """`torch.optim.Adam` in one pass over memory.

    Epsilon is added after bias correction, unlike in `thalweg.keras.optimizers.Adam`. Arguments,
    groups, errors and state are torch's: `state[p]` holds `step`, `exp_avg`, `exp_avg_sq` and, with
    `amsgrad`, `max_exp_avg_sq`, of the parameter's shape and dtype.

    Source: Kingma & Ba 2015; torch.optim.Adam
    """

    _sparse = "Adam does not support sparse gradients, please consider SparseAdam instead"

    @classmethod
    def _choose_rule(cls, group: Group) -> Rule:
        return rules.TORCH_AMSGRAD if group["amsgrad"] else rules.TORCH_ADAM


class AdamW(FusedTorchOptimizer, torch.optim.AdamW):
    """`torch.optim.AdamW` in one pass; decay is decoupled and multiplied by the learning rate.

    Args:
        weight_decay: The fraction of each parameter that a step subtracts, times the rate.

    Source: Loshchilov & Hutter 2019; torch.optim.AdamW
    """

    _sparse = Adam._sparse
    # Groups and states of torch before 2.7 lack this key.
    fixed_options = {"decoupled_weight_decay": True}
    _choose_rule = Adam._choose_rule  # pyright: ignore[reportAssignmentType, reportPrivateUsage]


class SGD(FusedTorchOptimizer, torch.optim.SGD):
    """`torch.optim.SGD` in one pass; sparse gradients update their rows.

    With momentum `state[p]` holds `momentum_buffer`, which starts as the first gradient. Torch's
    step handles sparse gradients with momentum: it moves every row that any gradient so far has
    named. For sparse gradients with weight decay, torch's step raises RuntimeError.

    Args:
        dampening: The fraction of a gradient that is not added to the momentum.

    Source: Sutskever et al. 2013; torch.optim.SGD
    """

    _counts = False
    _optional = _rowwise = ("momentum_buffer",)

    @classmethod
    def _choose_rule(cls, group: Group) -> Rule:
        return rules.TORCH_SGD if group["momentum"] == 0 else rules.TORCH_MOMENTUM

    @staticmethod
    def _takes_rows(group: Group) -> bool:
        """Return True if sparse gradients update rows only: without momentum."""
        return group["momentum"] == 0 and group["weight_decay"] == 0

    def _check_memories(self) -> None:
        """Raise if torch's step would write outside a tensor; replace unsafe momenta.

        Torch adds a sparse gradient at the wrong elements of a momentum with a storage offset.
        A copy without an offset then replaces the momentum in `state`.

        Raises:
            InvalidArgumentError: A gradient is dense and its momentum sparse, or a row index is out
                of range.
            LayoutError: A tensor has no memory for its elements.
        """
        super()._check_memories()
        for group in self.param_groups:
            params = [param for param in group["params"] if param.grad is not None]
            names = parameter_names(self.param_groups, params)
            for param, name in zip(params, names, strict=True):
                entries: dict[str, Any] = self.state.get(param) or {}
                momentum = entries.get("momentum_buffer")
                if group["momentum"] == 0 or not isinstance(momentum, Tensor):
                    continue
                # Torch's step fails here after it has written to other parameters.
                if momentum.is_sparse and not param.grad.is_sparse:
                    raise InvalidArgumentError(
                        f"The gradient of '{name}' is dense, and its momentum sparse, to which"
                        " torch adds none. Have all of its gradients dense, or all sparse."
                    )
                # Momenta of this package are views of one larger tensor, most with an offset.
                has_offset = not momentum.is_sparse and momentum.storage_offset()
                if has_offset and param.grad.is_sparse and is_misplaced(param.grad):
                    entries["momentum_buffer"] = momentum.clone()


class RMSprop(FusedTorchOptimizer, torch.optim.RMSprop):
    """`torch.optim.RMSprop` in one pass; epsilon is added to the root.

    `state[p]` holds `step`, `square_avg` and, with momentum, `momentum_buffer`; if centered,
    `grad_avg`.

    Args:
        alpha: Share of the running mean of squares that a step keeps.

    Source: Hinton's lecture 6, Graves 2013; torch.optim.RMSprop
    """

    _sparse = "RMSprop does not support sparse gradients"

    @classmethod
    def _choose_rule(cls, group: Group) -> Rule:
        centered = group["centered"]
        if group["momentum"] > 0:
            if centered:
                return rules.TORCH_CENTERED_MOMENTUM_RMSPROP
            return rules.TORCH_MOMENTUM_RMSPROP
        return rules.TORCH_CENTERED_RMSPROP if centered else rules.TORCH_RMSPROP


class Adagrad(FusedTorchOptimizer, torch.optim.Adagrad):
    """`torch.optim.Adagrad` in one pass; sparse gradients update their rows.

    `state[p]` holds `step` and `sum`, which the constructor creates. With options that add state,
    such as `ema_decay`, the first step creates both.

    Args:
        lr_decay: After n steps the rate is divided by 1 + n * lr_decay.

    Source: Duchi et al. 2011; torch.optim.Adagrad
    """

    _rule = "TORCH_ADAGRAD"
    _sparse = ""
    _unread = ("initial_accumulator_value",)

    @staticmethod
    def _takes_rows(group: Group) -> bool:
        """Return True; raise RuntimeError for weight decay, which excludes sparse gradients."""
        if group["weight_decay"]:
            raise RuntimeError("weight_decay option is not compatible with sparse gradients")
        return True

    def _initials_of_group(self, group: Group) -> dict[str, object]:
        """Return the initial accumulator of a group as the start of "sum"."""
        name = "initial_accumulator_value"
        # As in torch, the argument of the constructor counts for all groups.
        return {"sum": self.defaults.get(name, group.get(name, 0.0))}


class Adadelta(FusedTorchOptimizer, torch.optim.Adadelta):
    """`torch.optim.Adadelta` in one pass.

    `state[p]` holds `step`, `square_avg` and `acc_delta`.

    Source: Zeiler 2012; torch.optim.Adadelta
    """

    _rule = "TORCH_ADADELTA"


class Adamax(FusedTorchOptimizer, torch.optim.Adamax):
    """`torch.optim.Adamax` in one pass; epsilon is added to the magnitude of the gradient.

    `state[p]` holds `step`, `exp_avg` and `exp_inf`.

    Source: Kingma & Ba 2015, algorithm 2; torch.optim.Adamax
    """

    _rule = "TORCH_ADAMAX"


class NAdam(FusedTorchOptimizer, torch.optim.NAdam):
    """`torch.optim.NAdam` in one pass.

    `state[p]` holds `step`, `mu_product`, `exp_avg` and `exp_avg_sq`.

    Args:
        momentum_decay: How fast the schedule of the momentum rises; `decay` in Keras.

    Source: Dozat 2016; torch.optim.NAdam
    """

    _rule = "TORCH_NADAM"
    _single = ("step", "mu_product")


class RAdam(FusedTorchOptimizer, torch.optim.RAdam):
    """`torch.optim.RAdam` in one pass.

    `state[p]` holds `step`, `exp_avg` and `exp_avg_sq`.

    Source: Liu et al. 2020; torch.optim.RAdam
    """

    _rule = "TORCH_RADAM"


class SparseAdam(FusedTorchOptimizer, torch.optim.SparseAdam):
    """`torch.optim.SparseAdam` in one pass; changes only the rows of a sparse gradient.

    `state[p]` holds `step`, a Python number, `exp_avg` and `exp_avg_sq`.

    Source: Kingma & Ba 2015; torch.optim.SparseAdam
    """

    _rule = "TORCH_SPARSE_ADAM"
    _sparse = ""
    _dense = "SparseAdam does not support dense gradients, please consider Adam instead"
    _has_python_scalars = True
    _single = ()
    _unread = ("maximize",)
    _unsupported_options = {
        "state_storage": "cannot have state_storage: its gradients are sparse, and slots in 8 bits"
        " are updated block by block",
        "round": "cannot have round: its gradients are sparse, and random bits are drawn for dense"
        " ones",
        "gradients": "cannot have gradients='flat': its gradients are sparse, and those are dense",
    }


class ASGD(FusedTorchOptimizer, torch.optim.ASGD):
    """`torch.optim.ASGD` in one pass.

    `state[p]` holds `step`, `eta`, `mu` and the mean `ax`.

    Args:
        lambd: How much of each parameter decays, and how fast the rate falls.
        alpha: The power by which the rate falls.
        t0: The step after which parameters are averaged.

    Source: Polyak & Juditsky 1992; torch.optim.ASGD
    """

    _rule = "TORCH_ASGD"
    _as_tensors = ("eta", "mu")
    _single = ("step", "eta", "mu")

    def _initials_of_group(self, group: Group) -> dict[str, float]:
        """Return the start of "eta" for a group: the learning rate of the first step."""
        return {"eta": float(group["lr"])}


class Rprop(FusedTorchOptimizer, torch.optim.Rprop):
    """`torch.optim.Rprop` in one pass.

    `state[p]` holds `step`, `prev` and `step_size`.

    Args:
        etas: The factors of a step's size after a change of the gradient's sign, and without one.
        step_sizes: The smallest and the largest size of a step.

    Source: Riedmiller & Braun 1993; torch.optim.Rprop
    """

    _rule = "TORCH_RPROP"

    def _initials_of_group(self, group: Group) -> dict[str, float]:
        """Return the start of "step_size" for a group."""
        return {"step_size": float(group["lr"])}
