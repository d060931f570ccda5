"""Decisions about matrix layouts of parameters by the class and the source of their modules."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

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

_DIVIDERS = {
    "split", "chunk", "tensor_split", "split_with_sizes", "hsplit", "vsplit", "dsplit", "unbind",
    "view", "reshape", "unflatten", "glu", "rearrange", "narrow", "select", "index_select",
}  # fmt: skip
_SIZES = {"size", "dim", "numel", "stride", "new_zeros", "new_ones", "new_empty", "new_full"}
_LAYERS = re.compile(r"(Linear|Conv\dd)$")


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
        source = textwrap.dedent(inspect.getsource(type(parent)))
        tree = ast.parse(source)
    except (OSError, TypeError, SyntaxError):
        return False
    return uses_whole_outputs(tree, f"self.{attribute}")


def uses_whole_outputs(tree: ast.AST, layer: str) -> bool:
    """Return True if code calls a layer, such as "self.proj", and does not divide its outputs."""
    nodes = list(ast.walk(tree))
    if not any(isinstance(node, ast.Call) and ast.unparse(node.func) == layer for node in nodes):
        return False
    outputs = _Outputs(layer, {name for node in nodes if (name := _layer_made_in(node))}, set())
    name_count = -1
    # A variable may be used above its assignment, or by another function.
    while len(outputs.names) > name_count:
        name_count = len(outputs.names)
        if any(_divides(node, outputs) for node in nodes):
            return False
    return True


class _Outputs(NamedTuple):
    """Names of a layer and of variables with its outputs, in the source code of a class.

    Attributes:
        layer: The layer, such as "self.proj".
        layers: All layers of the class whose outputs depend on all elements of their inputs.
        names: The variables with outputs of the layer.
    """

    layer: str
    layers: set[str]
    names: set[str]


def _layer_made_in(node: ast.AST) -> str:
    """Return a name such as "self.proj" if a node assigns a `Linear` or a convolution, else ""."""
    match node:
        case ast.Assign(targets=[ast.Attribute() as target], value=ast.Call(func=func)) if (
            _LAYERS.search(ast.unparse(func))
        ):
            return ast.unparse(target)
        case _:
            return ""


def _divides(node: ast.AST, outputs: _Outputs) -> bool:
    """Return True if a node splits or indexes outputs; add variables it sets to `outputs.names`."""
    holds = partial(_holds, outputs=outputs)
    match node:
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
            return name in _DIVIDERS and any(map(holds, _list_operands(node)))
        # An element of a function's result, which may be a tuple.
        case (
            ast.Assign(targets=[ast.Tuple() | ast.List()], value=ast.Call(func=func))
            | ast.Subscript(value=ast.Call(func=func), slice=ast.Constant())
        ):
            return ast.unparse(func) == outputs.layer
        case (
            ast.Subscript(value=value)
            | ast.For(iter=value)
            | ast.comprehension(iter=value)
            | ast.Assign(targets=[ast.Tuple() | ast.List()], value=value)
        ):
            return holds(value)
        case (
            ast.Assign(targets=[ast.Name() | ast.Attribute() as target], value=value)
            | ast.AnnAssign(
                target=ast.Name() | ast.Attribute() as target, value=ast.expr() as value
            )
            | ast.AugAssign(target=target, op=ast.Mult() | ast.Div() | ast.Sub(), value=value)
            | ast.NamedExpr(target=target, value=value)
        ) if holds(value):
            outputs.names.add(ast.unparse(target))
        case _:
            pass
    return False


def _holds(value: ast.expr, outputs: _Outputs) -> bool:
    """Return True if an expression may yield outputs, perhaps after elementwise functions."""
    holds = partial(_holds, outputs=outputs)
    match value:
        case ast.Name() | ast.Attribute():
            return ast.unparse(value) in outputs.names
        case ast.IfExp(body=body, orelse=other):
            return holds(body) or holds(other)
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            return any(map(holds, elements))
        case ast.NamedExpr(value=inner) | ast.UnaryOp(operand=inner):
            return holds(inner)
        # The right operand of a sum is often added to the residual stream.
        case ast.BinOp(left=left, op=ast.Add()):
            return holds(left)
        case ast.BinOp(left=left, op=ast.Mult() | ast.Div() | ast.Sub(), right=right):
            return holds(left) or holds(right)
        case ast.Call(func=func):
            name = ast.unparse(func)
            if name == outputs.layer:
                return True
            if name in outputs.layers or name.rpartition(".")[2] in _SIZES:
                return False
            return any(map(holds, _list_operands(value)))
        case _:
            return False


def _list_operands(call: ast.Call) -> list[ast.expr]:
    """Return the object of a method, the first argument and the keyword arguments of a call."""
    objects = [call.func.value] if isinstance(call.func, ast.Attribute) else []
    return [*objects, *call.args[:1], *(keyword.value for keyword in call.keywords)]


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
