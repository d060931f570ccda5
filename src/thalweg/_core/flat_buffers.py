"""Flat buffers: tensors that contain several parameters of a model, or parts of parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch.distributed as dist
from torch import Tensor, nn

from thalweg._core.gradient_transforms import GradientTransforms
from thalweg.errors import InvalidArgumentError
from thalweg.formula import Rule


class FlatBuffer(NamedTuple):
    """Flat buffer among the parameters of an optimizer.

    Attributes:
        param: The first flat buffer.
        origin: The library that made it, for messages.
        is_part: True if a step does not have the rest of the model.
        is_stepped_alone: True if `step` is called separately for each buffer of the model.
    """

    param: Tensor
    origin: str
    is_part: bool
    is_stepped_alone: bool = False


class AddedParams:
    """Record of the parameters passed to an optimizer, to detect that a library replaced them."""

    def __init__(self) -> None:
        self._ids: set[int] = set()
        self._has_matrices = False

    def add(self, params: Sequence[Tensor]) -> None:
        """Add parameters to the record."""
        self._ids.update(map(id, params))
        self._has_matrices = self._has_matrices or any(param.dim() > 1 for param in params)

    def find_replacement(self, params: Sequence[Tensor]) -> FlatBuffer | None:
        """Return the first of `params` as a flat buffer if a library replaced the parameters.

        DeepSpeed ZeRO, Megatron and apex replace parameters by unmarked tensors of one dimension.
        A replacement is recognized by two conditions: all of `params` are plain tensors of one
        dimension that were never passed to `add`; and the parameters passed to `add` include a
        matrix or outnumber `params`. Return None if a condition is false.

        Args:
            params: The parameters that the optimizer's groups have now.
        """
        for param in params:
            if param.dim() != 1 or isinstance(param, nn.Parameter) or id(param) in self._ids:
                return None
        if not params or not (self._has_matrices or len(params) < len(self._ids)):
            return None
        return FlatBuffer(params[0], "DeepSpeed ZeRO or a library like it", _has_other_ranks())


def find_marked(params: Sequence[Tensor]) -> FlatBuffer | None:
    """Return the first parameter that FSDP1 or DeepSpeed ZeRO-3 has marked as flat, or None."""
    views: list[Tensor] = []
    for param in params:
        if getattr(param, "_is_flat_param", False) or type(param).__name__ == "FlatParameter":
            size = getattr(param, "_unpadded_unsharded_size", None)
            is_shard = _has_other_ranks() if size is None else param.numel() < size.numel()
            return FlatBuffer(param, "FullyShardedDataParallel", is_shard)
        if hasattr(param, "ds_id"):
            # ZeRO-3 calls `step` for each of its sub-groups, with the other groups empty.
            return FlatBuffer(param, "DeepSpeed ZeRO-3", is_part=True, is_stepped_alone=True)
        if getattr(param, "_fsdp_flattened", False):
            views.append(param)
    # With use_orig_params=True, parameters are sharded as views of one dimension; those that are
    # not sharded (NO_SHARD) keep their shapes.
    if views and all(view.dim() == 1 for view in views):
        return FlatBuffer(views[0], "FullyShardedDataParallel", is_part=True)
    return None


def is_reducing(rule: Rule | None, transforms: GradientTransforms) -> bool:
    """Return True if a step reduces over variables, by its rule or by what precedes that."""
    by_rule = rule is not None and (rule.reduces_variables or rule.per_optimizer is not None)
    return by_rule or transforms.reduces_variables or transforms.has_global_norm


def check_reductions(
    flat: FlatBuffer,
    label: str,
    rule: Rule | None,
    transforms: GradientTransforms,
    *,
    is_by_shape: bool = False,
) -> None:
    """Raise an error if a step needs full parameters, but a flat buffer splits or joins them.

    Do nothing if the rule and the transforms are elementwise.

    Args:
        label: The buffer's name, for the message.
        rule: The rule of the step, or None.
        transforms: The transforms of gradients, which may need norms.
        is_by_shape: True if the shape of a parameter chooses the rule.

    Raises:
        InvalidArgumentError: The message names the flat buffer and the rule or option that reduces.
    """
    name = "" if rule is None else f"rule {rule.name!r}"
    if rule is not None and rule.reduces_variables:
        reason = f"{name} reduces over each parameter, and needs whole ones"
    elif is_by_shape:
        reason = f"{name} depends on the shape of each parameter"
    elif transforms.reduces_variables:
        reason = "clipping or scaling by the norm of each parameter needs whole parameters"
    elif not flat.is_part:
        return
    elif transforms.global_clipnorm is not None:
        reason = "clipping by the common norm needs all gradients of the model"
    elif rule is not None and rule.per_optimizer is not None:
        reason = f"{name} adds up over all parameters of the model"
    else:
        return
    raise InvalidArgumentError(
        f"'{label}' is a flat buffer of {flat.origin}, which holds several parameters or parts of"
        f" them: {reason}. Use a rule that updates each element by itself, such as AdamW or Lion,"
        " without trust ratios and other options over whole parameters, and clip norms with that"
        " library; or shard with torch's fully_shard, which keeps parameters whole."
    )


# `autodiff.has_replicas` is the same, in a module that most trainings do not load.
def _has_other_ranks() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
