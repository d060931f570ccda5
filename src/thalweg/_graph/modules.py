"""A call of a torch module is one operation; its parameters and buffers are graph variables."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from thalweg._base.context_managers import no_grad
from thalweg._core.nest import mapped
from thalweg._graph import recording
from thalweg._graph.arguments import Reference
from thalweg._graph.module_call_state import calls
from thalweg._graph.nodes import Nodes
from thalweg._graph.unique_names import node_name_from
from thalweg._graph.variables import GraphVariable, variable_of


def call_module(
    graph: Nodes, module: torch.nn.Module, args: Sequence[object], kwargs: Mapping[str, object]
) -> Any:
    """Add one operation that calls `module`; return symbolic outputs in the module's structure.

    The first call creates graph variables for parameters and buffers, named after the module's
    class if a tensor has no name. A run updates the buffers, and reads `module.training`.

    Raises:
        InvalidArgumentError: All shapes are known and do not fit the module.
        NotImplementedError: The module contains DistributedDataParallel.
    """
    for layer in module.modules():
        if isinstance(layer, torch.nn.parallel.DistributedDataParallel):
            raise NotImplementedError(
                "DistributedDataParallel averages gradients in hooks of backward, which a session"
                " passes by. Call the module inside of it, and sum gradients over the replicas with"
                " _distributed_apply."
            )
    node_name = node_name_from(type(module).__name__)
    prefix = graph.unique_name(node_name, mark_as_used=False)
    # Outside of the current branch or loop, since all runs share the variables.
    with graph.control_dependencies(None):
        weights = {
            name: variable_of(graph, parameter, f"{prefix}/{_scope_path(name)}")
            for name, parameter in module.named_parameters(remove_duplicate=False)
        }
        buffers = {
            name: Reference(variable_of(graph, buffer, f"{prefix}/{_scope_path(name)}"))
            for name, buffer in module.named_buffers(remove_duplicate=False)
        }
    # The inputs of a module are values of the run, which other operations may need unchanged.
    call = functools.partial(
        _call_on_copies if _writes_to_inputs(module) else _call_functionally, module
    )
    arguments = (weights, buffers, tuple(args), dict(kwargs))
    sparse = frozenset(_find_sparse_weights(module, weights))
    return recording.record(graph, call, arguments, {}, node_name, sparse, stateful=bool(buffers))


def _call_functionally(
    module: torch.nn.Module,
    weights: Mapping[str, Any],
    buffers: Mapping[str, Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> object:
    """Call a module with `weights` and `buffers` as its tensors; update `buffers` in place."""
    tensors = {**weights, **buffers}
    is_outermost = not calls.is_mine()
    with calls:
        calls.begin_call(module, is_outermost)
        # All names of tied weights are in `tensors`, so torch need not search for them.
        result = torch.func.functional_call(
            module, tensors, tuple(args), dict(kwargs), tie_weights=False
        )
        calls.end_call()
    with no_grad():
        for name, buffer in buffers.items():
            # The module may have assigned another tensor, such as `self.count = self.count + 1`.
            if tensors[name] is not buffer:
                buffer.copy_(tensors[name])
    return result


def _call_on_copies(
    module: torch.nn.Module, weights: Any, buffers: Any, args: Any, kwargs: Any
) -> Any:
    """Call a module with copies of the input tensors, because the module overwrites its inputs."""
    args, kwargs = mapped(_clone_tensor, (tuple(args), dict(kwargs)))
    return _call_functionally(module, weights, buffers, args, kwargs)


def _clone_tensor(leaf: object) -> object:
    """Return a copy of a tensor; return any other leaf unchanged."""
    return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf


def _writes_to_inputs(module: torch.nn.Module) -> bool:
    """Return True if a layer of the module has `inplace` set."""
    return any(getattr(layer, "inplace", False) is True for layer in module.modules())


def _scope_path(name: str) -> str:
    """Return a dotted module name as a name scope."""
    return name.replace(".", "/")


def _find_sparse_weights(
    module: torch.nn.Module, weights: Mapping[str, GraphVariable]
) -> set[GraphVariable]:
    """Return the variables in `weights` that are used only by embeddings with `sparse=True`."""
    sparse: set[GraphVariable] = set()
    dense: set[GraphVariable] = set()
    for path, layer in module.named_modules(remove_duplicate=False):
        kinds = (torch.nn.Embedding, torch.nn.EmbeddingBag)
        owner = sparse if isinstance(layer, kinds) and layer.sparse else dense
        parameters = layer.named_parameters(recurse=False, remove_duplicate=False)
        owner.update(weights[f"{path}.{name}" if path else name] for name, _ in parameters)
    return sparse - dense
