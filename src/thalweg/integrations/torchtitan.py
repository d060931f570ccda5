"""Container of optimizers of `thalweg.optim` for torchtitan."""

# torchtitan has no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportUntypedBaseClass=false
from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.optim import Optimizer

from thalweg._base.showing import show_value
from thalweg.errors import InvalidArgumentError
from thalweg.integrations.versions import require_version
from thalweg.optim import Mixed

require_version("torchtitan", "0.3")
from torchtitan.components.checkpointer.utils import (  # noqa: E402  # pyright: ignore[reportMissingImports]
    canonical_fqn,
)
from torchtitan.components.optimizer import (  # noqa: E402  # pyright: ignore[reportMissingImports]
    OptimizersContainer,
    ParamGroupConfig,
)


class MixedOptimizers(OptimizersContainer):
    """One `thalweg.optim.Mixed` for each part of a model, with torchtitan's groups.

    Each `optimizer_name` is the name of a class of `thalweg.optim`, such as "Muon" or "AdamW", and
    `optimizer_kwargs` are its options; "layout" declares how a parameter is split into matrices.

    Args:
        config: The groups, and options of all groups such as `state_storage="8bit"`.
        model_parts: The parts of the model on this rank.

    Raises:
        InvalidArgumentError: A pattern matches no parameter, a parameter has no pattern, or an
            option is unknown.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(OptimizersContainer.Config):
        """Configuration of the container; `implementation` has no effect.

        Attributes:
            options: Options of the step for all groups, such as `ema_decay` or `state_storage`.
        """

        options: dict[str, Any] = field(default_factory=dict[str, Any])

    def __init__(self, config: Config, *, model_parts: list[nn.Module]) -> None:
        self.model_parts = model_parts
        self.optimizers = [
            Mixed(_groups(module, config.param_groups), **config.options) for module in model_parts
        ]
        params = [param for module in model_parts for param in module.parameters()]
        # Schedulers and torchtitan's checkpoints expect a `torch.optim.Optimizer`.
        Optimizer.__init__(self, [param for param in params if param.requires_grad], {})


def _groups(module: nn.Module, configs: list[ParamGroupConfig]) -> list[dict[str, Any]]:
    """Return a parameter group, a dict for `Mixed`, for each element of `configs`.

    A trainable parameter is in the group of the first `config.pattern` found in its name. Raise
    InvalidArgumentError if a group would be empty, or a parameter matches no pattern.
    """
    groups: list[dict[str, Any]] = [
        {"params": [], "rule": config.optimizer_name, **config.optimizer_kwargs}
        for config in configs
    ]
    for name, param in module.named_parameters():
        if not param.requires_grad:
            continue
        for config, group in zip(configs, groups, strict=True):
            if re.search(config.pattern, name):
                group["params"].append((canonical_fqn(name), param))
                break
        else:
            raise InvalidArgumentError(
                f"param_groups has no pattern for {show_value(name)}; the last one may be '.*'."
            )
    for config, group in zip(configs, groups, strict=True):
        if not group["params"]:
            raise InvalidArgumentError(
                f"param_groups has the pattern {show_value(config.pattern)}, which matches no"
                " parameter that an earlier one leaves."
            )
    return groups
