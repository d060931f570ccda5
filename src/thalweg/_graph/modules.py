"""A call of a torch module is one operation; its parameters and buffers are graph variables.

`torch.nn.Module.__call__` is replaced while a graph is being built. Without the replacement, the
module's `forward` would run now. `forward` would make decisions that belong to a run (training or
evaluation, branches on data), write to the module's buffers, and leave parameters without names.
torch has no other place to intercept the call. `__torch_function__` and its modes see functions
only, and global hooks of modules cannot skip `forward`. (torch.fx replaces `__call__`, too.)

The replacement acts in a thread that is building a graph, on calls that receive a symbolic tensor.
All other calls go to the previous function.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from thalweg._base.context_managers import no_grad
from thalweg._base.execution_context import executing_eagerly
from thalweg._base.locks import Lock, on_fork
from thalweg._core.nest import leaves_of, mapped
from thalweg._graph import recording
from thalweg._graph.arguments import Reference
from thalweg._graph.node_names import node_name_from
from thalweg._graph.nodes import Nodes, SymbolicTensor
from thalweg._graph.variables import GraphVariable, variable_of


class Calls(Lock):
    """Lock that is held while modules are called with tensors of a session.

    During a call, torch's `functional_call` replaces the tensors of the module, also for other
    threads. A child that is forked during the call lacks the thread that puts the tensors back.
    """

    def __init__(self) -> None:
        super().__init__()
        # (dict of tensors, name, tensor) triples of each call, the innermost call last.
        self._pending_calls: list[list[tuple[dict[str, Any], str, Any]]] = []
        on_fork(self, Calls._restore_modules)

    def begin_call(self, module: torch.nn.Module, is_outermost: bool) -> None:
        """Save the parameters and buffers of a module, to restore them in a forked child.

        The caller holds the lock. If `is_outermost`, first drop the tensors of failed calls.
        """
        if is_outermost:
            self._pending_calls.clear()
        self._pending_calls.append(
            [
                (tensors, name, tensor)
                for layer in module.modules()
                for tensors in (layer._parameters, layer._buffers)
                for name, tensor in tensors.items()
            ]
        )

    def end_call(self) -> None:
        """Drop the record of the innermost call, whose module has its tensors back."""
        self._pending_calls.pop()

    def _restore_modules(self) -> None:
        """Restore, in a forked child, tensors of modules that another thread was calling."""
        if not self.is_abandoned():
            return
        while self._pending_calls:
            for tensors, name, tensor in self._pending_calls.pop():
                tensors[name] = tensor


_calls = Calls()


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

    def find_variable(name: str, tensor: torch.Tensor) -> GraphVariable:
        return variable_of(graph, tensor, f"{prefix}/{name.replace('.', '/')}")

    # Outside of the current branch or loop, since all runs share the variables.
    with graph.control_dependencies(None):
        weights = {
            name: find_variable(name, parameter)
            for name, parameter in module.named_parameters(remove_duplicate=False)
        }
        buffers = {
            name: Reference(find_variable(name, buffer))
            for name, buffer in module.named_buffers(remove_duplicate=False)
        }
    # The inputs of a module are values of the run, which other operations may need unchanged.
    writes_to_inputs = any(getattr(layer, "inplace", False) is True for layer in module.modules())
    call = functools.partial(_call_on_copies if writes_to_inputs else _call_functionally, module)
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
    """Return a module's result with other parameters and buffers; update `buffers` in place.

    `weights` and `buffers` are {name in the module: tensor}.
    """
    tensors = {**weights, **buffers}
    is_outermost = not _calls.is_mine()
    with _calls:
        _calls.begin_call(module, is_outermost)
        # All names of tied weights are in `tensors`, so torch need not search for them.
        result = torch.func.functional_call(
            module, tensors, tuple(args), dict(kwargs), tie_weights=False
        )
        _calls.end_call()
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


class _Interception:
    """State of the replacement of `Module.__call__`, and count of graphs under construction."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.builders = 0
        self.original: Any = None
        self.replacement: Any = None


_state = _Interception()


def start_intercepting() -> None:
    """Replace `Module.__call__`, until `stop_intercepting` was called equally often."""
    with _state.lock:
        _state.builders += 1
        if _state.builders == 1:
            _state.original = torch.nn.Module.__call__
            _state.replacement = _intercepting_call(_state.original)
            torch.nn.Module.__call__ = _state.replacement


def stop_intercepting() -> None:
    """Undo one `start_intercepting`."""
    with _state.lock:
        _state.builders -= 1
        # Another tracer may have put its own wrapper on top. When that is taken off, ours comes
        # back and stays: it passes on all calls until a graph is built again.
        if _state.builders == 0 and torch.nn.Module.__call__ is _state.replacement:
            torch.nn.Module.__call__ = _state.original


@contextlib.contextmanager
def intercept_modules() -> Iterator[None]:
    """Return a context manager that intercepts calls of modules."""
    start_intercepting()
    try:
        yield
    finally:
        stop_intercepting()


def _intercepting_call(original: Callable[..., object]) -> Callable[..., object]:
    """Return a `Module.__call__` that records calls with symbolic tensors as operations.

    A call without symbolic tensors returns `original(module, *args, **kwargs)`.
    """

    def call(module: torch.nn.Module, *args: object, **kwargs: object) -> object:
        if not executing_eagerly():
            leaves = leaves_of((args, kwargs))
            symbols = (leaf for leaf in leaves if isinstance(leaf, SymbolicTensor))
            symbol = next(symbols, None)
            if symbol is not None:
                return call_module(symbol.graph, module, args, kwargs)
        return original(module, *args, **kwargs)

    return call
