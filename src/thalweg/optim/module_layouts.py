"""Decisions about matrix layouts of parameters by the class and the source of their modules."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable

from torch import Tensor, nn

from thalweg._base.matrix_layout import MatrixLayout
from thalweg.optim.selectors import EMBEDDINGS

Decision = tuple[MatrixLayout | None, str]
_NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.modules.batchnorm._BatchNorm)  # pyright: ignore[reportPrivateUsage]
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
# `RNNBase` is last because `LSTM` and `GRU` are subclasses of it.
_GATES = ((nn.LSTM, 4), (nn.LSTMCell, 4), (nn.GRU, 3), (nn.GRUCell, 3), (nn.RNNBase, 1))
_ROUTER = re.compile(r"router|gating", re.IGNORECASE)
_NOT_MULTIPLIED = re.compile(r"bias|emb|pos|token|mask|scale", re.IGNORECASE)


def class_decision(layers: Iterable[nn.Module], leaf: str, param: Tensor) -> Decision | None:
    """Return (layout or None for AdamW, reason) if the class of a module decides, else None.

    Args:
        layers: The modules that own the parameter.
        leaf: The parameter's name in its module.
    """
    for owner in layers:
        if isinstance(owner, EMBEDDINGS):
            return None, "rows are looked up"
        if isinstance(owner, _NORMS):
            return None, "norm"
        if isinstance(owner, _TRANSPOSED):
            return None, "transposed convolution"
        if isinstance(owner, nn.MultiheadAttention) and leaf.endswith("_proj_weight"):
            fused = leaf == "in_proj_weight"
            return MatrixLayout(rows=3 if fused else 1), "queries, keys and values"
        if type(owner).__name__ == "NonDynamicallyQuantizableLinear":
            return MatrixLayout(), "output of attention"
        if _ROUTER.search(type(owner).__name__):
            return None, "router"
        for kind, count in _GATES:
            if isinstance(owner, kind) and leaf.startswith("weight"):
                rows = 1 if leaf.startswith("weight_hr") else count
                return MatrixLayout(rows=rows), "gates of a recurrent layer"
    return None


def is_router(model: nn.Module, name: str) -> bool:
    """Return True if a weight is that of a layer called gate or router beside experts."""
    parent, _, layer = name.rpartition(".")[0].rpartition(".")
    return layer in ("gate", "router") and hasattr(model.get_submodule(parent), "experts")


def adapter_layout(name: str, layout_of: Callable[[str], MatrixLayout]) -> MatrixLayout | None:
    """Return the layout of a LoRA matrix of PEFT; None for any other parameter.

    `lora_A` is one matrix. `lora_B` has as many blocks of rows as the weight that it adapts.

    Args:
        layout_of: `layout_of(name)` returns the layout of the weight called `name`.
    """
    if re.search(r"\.lora_A\.[^.]+\.weight$", name):
        return MatrixLayout()
    if not (match := re.search(r"^(.*)\.lora_B\.[^.]+\.weight$", name)):
        return None
    base = layout_of(f"{match[1]}.base_layer.weight")
    blocks = base.columns if base.transposed else base.rows
    return MatrixLayout(rows=blocks, interleaved=base.interleaved and blocks != 1)


def is_whole_by_source(model: nn.Module, name: str, owner: nn.Module) -> bool:
    """Return True if source code shows that no code splits the output of a layer.

    In a `Sequential`, return True for each layer except the last. In any other module, return True
    if the source of its class calls the layer and never splits, slices or reshapes the result.
    Return False without source.

    Args:
        name: The name of the layer's weight among the parameters of `model`.
        owner: The layer; the result is False unless it is a `Linear` or a convolution.
    """
    if not isinstance(owner, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
        return False
    parent_name, _, attribute = name.rpartition(".")[0].rpartition(".")
    parent = model.get_submodule(parent_name)
    if isinstance(parent, nn.Sequential):
        return list(parent.children())[-1] is not owner
    try:
        source = inspect.getsource(type(parent))
    except (OSError, TypeError):
        return False
    calls = re.findall(rf"^(.*)\bself\.{attribute}\((.*)$", source, re.MULTILINE)
    variables = [match[1] for begin, _ in calls if (match := re.match(r"\s*(\w+) = \S*$", begin))]
    divides = r"\.(split|chunk|unbind|tensor_split|view|reshape|unflatten)\(|\(.*\)\["
    if not calls or any(re.search(divides, end) for _, end in calls):
        return False
    return not any(
        re.search(rf"\b{variable}\s*(\.\w+\(.*\))*(\.(split|chunk|unbind|tensor_split|view|reshape)|\[)"
                  rf"|(split|chunk|unbind)\({variable}\b", source)
        for variable in variables
    )  # fmt: skip


def unused_decision(layers: Iterable[nn.Module], leaf: str) -> str:
    """Return a reason for AdamW if the name of a parameter shows that no product uses it; else "".

    Args:
        layers: The modules that own the parameter.
        leaf: The parameter's name in its module.
    """
    is_layer = any(
        isinstance(owner, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d) for owner in layers
    )
    return "" if is_layer or not _NOT_MULTIPLIED.search(leaf) else "nothing multiplies with it"
