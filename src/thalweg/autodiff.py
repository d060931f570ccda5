"""`GradientTape` over torch's autograd, and functions that compute gradients for optimizers.

Torch records always, not only under a tape. So a gradient also flows through what was computed
from a variable before the tape began, where TensorFlow returns None.
"""

from __future__ import annotations

import contextlib
import enum
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import distributed
from torch.autograd.graph import GradientEdge, get_gradient_edge

from thalweg._base.context_managers import ContextSetting
from thalweg._base.showing import show_value
from thalweg._base.tracing import untraced
from thalweg.errors import FailedPreconditionError, InvalidArgumentError, InvalidTypeError
from thalweg.indexed_slices import Gradient, as_gradient, embedding_lookup
from thalweg.variable import is_variable, tensor_of, to_tensor

__all__ = [
    "Gradient",
    "GradientTape",
    "UnconnectedGradients",
    "embedding_lookup",
    "gradients_of",
    "variables_of",
]


def __dir__() -> list[str]:
    return sorted(__all__)


class UnconnectedGradients(enum.Enum):
    """Gradient of a source that the target does not depend on: None, or zeros."""

    NONE = "none"
    ZERO = "zero"


Begin = Callable[[Sequence[torch.Tensor]], Callable[[torch.Tensor], None] | None]


class _Recording(threading.local):
    """Per thread: the recording tapes, innermost last, and the callback set by `watching`."""

    def __init__(self) -> None:
        self.tapes: list[GradientTape] = []
        self.begin: Begin | None = None


_recording = _Recording()


class GradientTape:
    """Compute gradients of the operations inside the `with` block.

    Args:
        persistent: True if `gradient` may be called more than once.
        watch_accessed_variables: True if all trainable variables are sources, False if only tensors
            passed to `watch`.

    Example:
        >>> x = torch.tensor(3.0, requires_grad=True)
        >>> with GradientTape() as tape:
        ...     y = x * x
        >>> tape.gradient(y, x)
        tensor(6.)
    """

    def __init__(self, persistent: bool = False, watch_accessed_variables: bool = True) -> None:
        self._persistent = persistent
        self._accessed = watch_accessed_variables
        self._used = False
        # True if another tape recorded the same graph, which then must outlive the first gradient.
        self._keeps_graph = False
        self._watched_edges: dict[int, tuple[torch.Tensor, GradientEdge]] = {}
        self._enabled_tensors: list[torch.Tensor] = []
        self._is_open = False
        self._grad_was_enabled = True

    def __enter__(self) -> GradientTape:
        if self._is_open:
            raise InvalidArgumentError(
                "Tape is still recording, This can happen if you try to re-enter an "
                "already-active tape."
            )
        if self._used:
            self.reset()
        self._keeps_graph = bool(_recording.tapes)
        for tape in _recording.tapes:
            tape._keeps_graph = True
        _recording.tapes.append(self)
        for tensor in self._enabled_tensors:
            tensor.requires_grad_(True)
        self._is_open = True
        self._grad_was_enabled = torch.is_grad_enabled()
        torch.set_grad_enabled(True)
        return self

    def __exit__(self, *error: object) -> None:
        self._is_open = False
        torch.set_grad_enabled(self._grad_was_enabled)
        for tensor in self._enabled_tensors:
            tensor.requires_grad_(False)
        self._stop()

    def watch(self, tensor: object) -> None:
        """Make operations on `tensor` differentiable until the `with` block ends.

        Until then, `requires_grad` of the tensor is True. Integer tensors are ignored.

        Args:
            tensor: A tensor, or nested lists, tuples or dicts of tensors.

        Raises:
            InvalidTypeError: An element of `tensor` is not a tensor.
            FailedPreconditionError: The tape is not recording.
        """
        if self not in _recording.tapes:
            raise FailedPreconditionError("watch() was called on a tape which is not recording.")
        for leaf in _tensors(tensor):
            if not (leaf.is_floating_point() or leaf.is_complex()):
                continue
            if not leaf.requires_grad:
                self._enabled_tensors.append(leaf)
                leaf.requires_grad_(True)
            self._watched_edges[id(leaf)] = (leaf, get_gradient_edge(leaf))

    def watched_variables(self, target: object = None) -> tuple[torch.Tensor, ...]:
        """Return the variables of this tape, in the order of their creation.

        Without a target, return the parameters passed to `watch`: torch does not record reads. With
        a target, also return the trainable variables that the target was computed from, unless the
        tape has `watch_accessed_variables=False`.
        """
        variables = [
            x for x, _ in self._watched_edges.values() if isinstance(x, torch.nn.Parameter)
        ]
        if self._accessed and target is not None:
            variables += variables_of(target)
        return tuple(_by_creation(variables))

    @untraced
    def gradient(
        self,
        target: object,
        sources: object,
        output_gradients: object = None,
        unconnected_gradients: UnconnectedGradients | str = UnconnectedGradients.NONE,
    ) -> Any:
        """Return the gradients of the sum of all elements of `target` by each source.

        Args:
            target: A tensor, or nested lists, tuples or dicts of tensors, whose sums are added.
            sources: A tensor, nested tensors, or an iterator over tensors.
            output_gradients: Optional. Weights of the targets' elements: for each target a tensor
                of its shape, or None for weights of 1; nested like `target`.
            unconnected_gradients: "none" or "zero".

        Returns:
            Gradients nested like `sources`: a tensor like the source, or IndexedSlices if torch's
            gradient is sparse. A source without connection gets None, or zeros with "zero".

        Raises:
            FailedPreconditionError: The second call on a tape that is not persistent.
            InvalidTypeError: A target or source is not a tensor.
            InvalidArgumentError: A weight's shape differs from its target's.
        """
        if self._used:
            raise FailedPreconditionError(
                "A non-persistent GradientTape can only be used to compute one set of gradients "
                "(or jacobians)"
            )
        zero = parse_unconnected(unconnected_gradients) is UnconnectedGradients.ZERO
        if isinstance(sources, Iterator):
            sources = list(sources)
        leaves, targets = list(_tensors(sources)), list(_tensors(target))
        weights = _weights(targets, target, output_gradients)
        if not self._persistent:
            self._stop()
        gradients = _differentiate(
            [self._edge(tensor) for tensor in targets],
            [self._edge(tensor) for tensor in leaves],
            weights,
            leaves,
            retain_graph=self._persistent or self._keeps_graph,
            # An outer tape also records the gradient.
            create_graph=bool(_recording.tapes),
        )
        if zero:
            pairs = zip(gradients, leaves, strict=True)
            gradients = [torch.zeros_like(leaf) if g is None else g for g, leaf in pairs]
        if not self._persistent:
            self._used = True
            self._watched_edges.clear()
        return _pack(sources, iter(gradients))

    @contextlib.contextmanager
    def stop_recording(self) -> Iterator[None]:
        """Exclude operations inside this `with` block from the gradient.

        While another tape records, nothing is excluded, because torch records once for all tapes.

        Raises:
            FailedPreconditionError: The tape is not recording.
        """
        if self not in _recording.tapes:
            raise FailedPreconditionError("Trying to stop recording a tape which is not recording.")
        self._stop()
        try:
            with torch.set_grad_enabled(bool(_recording.tapes) and torch.is_grad_enabled()):
                yield
        finally:
            _recording.tapes.append(self)

    def reset(self) -> None:
        """Clear the watched tensors, and allow `gradient` again.

        Unlike in TensorFlow, `gradient` still works for tensors computed before the reset.
        """
        for tensor in self._enabled_tensors:
            tensor.requires_grad_(False)
        self._enabled_tensors.clear()
        self._watched_edges.clear()
        self._used = False

    def _stop(self) -> None:
        if self in _recording.tapes:
            _recording.tapes.remove(self)

    def _edge(self, tensor: torch.Tensor) -> torch.Tensor | GradientEdge | None:
        """Return a tensor, or the graph edge of a watched tensor; None for an unrecorded tensor."""
        if id(tensor) in self._watched_edges:
            # A watched tensor may not require a gradient after the tape's end, but its edge stays.
            return self._watched_edges[id(tensor)][1]
        if not tensor.requires_grad:
            return None
        if not self._accessed:
            watched_nodes = {edge.node for _, edge in self._watched_edges.values()}
            if watched_nodes.isdisjoint(_nodes([tensor])):
                return None
        return tensor


@untraced
def gradients_of(
    target: torch.Tensor | Sequence[torch.Tensor],
    variables: Iterable[torch.Tensor],
    grad_outputs: object = None,
) -> list[Gradient]:
    """Return the gradient of the sum of `target` by each variable, and free the target's graph.

    Args:
        target: A tensor, or several tensors, whose sums are added.
        variables: Tensors to differentiate by.
        grad_outputs: Optional. A weight of the target's shape, or a weight for each target.

    Returns:
        For each variable a tensor, or IndexedSlices if torch's gradient is sparse. None for a
        variable that does not require a gradient or that the target does not depend on.

    Raises:
        InvalidTypeError: A target or variable is not a tensor.
        InvalidArgumentError: A weight's shape differs from its target's.
    """
    targets, sources = list(_tensors(target)), list(_tensors(list(variables)))
    weights = _weights(targets, target, grad_outputs)
    return _differentiate(
        [tensor if tensor.requires_grad else None for tensor in targets],
        [leaf if leaf.requires_grad else None for leaf in sources],
        weights,
        sources,
    )


def variables_of(target: object) -> list[torch.Tensor]:
    """Return the trainable leaves from which `target`, a tensor or nested tensors, was computed.

    Returns:
        First each `Variable`, in the order of creation. Then torch's parameters and leaves, in the
        order of a depth-first walk of the graph.

    Raises:
        InvalidTypeError: A target is not a tensor.
    """
    tensors = [tensor for tensor in _tensors(target) if tensor.requires_grad]
    leaves = [leaf for leaf in _leaves_below(tensors) if getattr(leaf, "trainable", True)]
    return _by_creation(filter(is_variable, leaves))


def _leaves_below(tensors: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield the leaves that get a gradient in a backward pass from these tensors."""
    for node in _nodes(tensors):
        if node.name() == "torch::autograd::AccumulateGrad":
            yield node.variable


def has_replicas() -> bool:
    """Return True if this process belongs to a process group of at least two ranks.

    `DistributedDataParallel` may then average gradients in hooks. Those run in `backward` but not
    in `autograd.grad`.
    """
    return (
        distributed.is_available()
        and distributed.is_initialized()
        and distributed.get_world_size() > 1
    )


def _differentiate(
    outputs: Sequence[torch.Tensor | GradientEdge | None],
    inputs: Sequence[torch.Tensor | GradientEdge | None],
    weights: Sequence[torch.Tensor],
    tensors: Sequence[torch.Tensor],
    retain_graph: bool = False,
    create_graph: bool = False,
) -> list[Gradient]:
    """Return a gradient for each of `tensors`; None for a skipped or unconnected tensor.

    For each of `tensors`, `inputs` has the tensor, its graph edge, or None to skip the tensor. An
    output of None is left out. `weights` are the gradients of the outputs.
    """
    starts = [
        (output, weight)
        for output, weight in zip(outputs, weights, strict=True)
        if output is not None
    ]
    ends = [end for end in inputs if end is not None]
    if not starts or not ends:
        return [None] * len(inputs)
    if has_replicas() and not create_graph:
        leaves = [x for x, end in zip(tensors, inputs, strict=True) if end is not None]
        are_leaves = all(leaf.is_leaf and leaf.requires_grad for leaf in leaves)
        if are_leaves and all(isinstance(output, torch.Tensor) for output, _ in starts):
            results = _by_backward(starts, leaves, retain_graph)
            return [None if end is None else as_gradient(next(results)) for end in inputs]
    # torch accepts tensors and edges mixed, contrary to its annotations.
    gradients = torch.autograd.grad(  # pyright: ignore[reportCallIssue]
        [output for output, _ in starts],  # pyright: ignore[reportArgumentType]
        ends,  # pyright: ignore[reportArgumentType]
        [weight for _, weight in starts],
        retain_graph=retain_graph or create_graph,
        create_graph=create_graph,
        allow_unused=True,
    )
    results = iter(gradients)
    return [None if end is None else as_gradient(next(results)) for end in inputs]


def watching(begin: Begin) -> ContextSetting:
    """Return a context manager that sets a callback for gradients in multi-process training.

    Args:
        begin: Called before the first backward pass of the `with` block, with the leaves that
            get a gradient. Returns None, or a hook to call with each leaf when its `grad` is
            complete.
    """
    change = partial(setattr, _recording, "begin")
    return ContextSetting(lambda: ([partial(change, begin)], [partial(change, _recording.begin)]))


def _by_backward(
    starts: Sequence[tuple[Any, torch.Tensor]],
    inputs: Sequence[torch.Tensor],
    retain_graph: bool,
) -> Iterator[torch.Tensor | None]:
    """Compute gradients of `inputs` by a `backward` that runs hooks; keep each `grad` unchanged."""
    outputs = [output for output, _ in starts]
    leaves = {id(leaf): leaf for leaf in [*_leaves_below(outputs), *inputs]}.values()
    previous_grads = [leaf.grad for leaf in leaves]
    begin, _recording.begin = _recording.begin, None
    hook = None if begin is None else begin(inputs)
    handles: list[Any] = []
    try:
        for leaf in leaves:
            leaf.grad = None
        if hook is not None:
            handles += [leaf.register_post_accumulate_grad_hook(hook) for leaf in inputs]
        torch.autograd.backward(outputs, [weight for _, weight in starts], retain_graph)
        return iter([_own(leaf.grad) for leaf in inputs])
    finally:
        for handle in handles:
            handle.remove()
        for leaf, grad in zip(leaves, previous_grads, strict=True):
            leaf.grad = grad


def _own(grad: torch.Tensor | None) -> torch.Tensor | None:
    """Return a gradient, copied if it is a view of a bucket that later passes overwrite."""
    is_view = grad is not None and grad.layout == torch.strided and grad._is_view()
    return grad.clone() if grad is not None and is_view else grad


def _weights(
    targets: Sequence[torch.Tensor], structure: object, weights: object
) -> list[torch.Tensor]:
    """Return the gradient of each target: its entry in `weights`, or a tensor of ones for None."""
    if weights is None or isinstance(structure, torch.Tensor):
        weights_by_target = [weights] * len(targets)
    else:
        weights_by_target = list(_leaves(weights))
    if len(weights_by_target) != len(targets):
        raise InvalidArgumentError(
            f"{len(weights_by_target)} output gradients were given for {len(targets)} targets."
        )
    return [
        _weight(target, weight) for target, weight in zip(targets, weights_by_target, strict=True)
    ]


def _weight(target: torch.Tensor, weight: object) -> torch.Tensor:
    if weight is None:
        return torch.ones_like(target)
    weight = to_tensor(weight, target.dtype).to(target.device)
    if weight.shape != target.shape:
        raise InvalidArgumentError(
            f"an output gradient has shape {tuple(weight.shape)} but its target has shape "
            f"{tuple(target.shape)}."
        )
    return weight


def parse_unconnected(unconnected: UnconnectedGradients | str) -> UnconnectedGradients:
    """Return a member for a member or its value; raise InvalidArgumentError if unknown."""
    try:
        return UnconnectedGradients(unconnected)
    except ValueError:
        raise InvalidArgumentError(
            f"Unknown value for unconnected_gradients: {show_value(unconnected)}"
        ) from None


def _nodes(tensors: Iterable[torch.Tensor]) -> Iterator[Any]:
    """Yield each autograd node reachable from `tensors` once, in depth-first order."""
    stack = [get_gradient_edge(tensor).node for tensor in tensors][::-1]
    visited = set()
    while stack:
        node = stack.pop()
        if node in visited:
            continue
        visited.add(node)
        yield node
        stack += [child for child, _ in reversed(node.next_functions) if child is not None]


def _by_creation(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    unique = {id(tensor): tensor for tensor in tensors}
    return sorted(unique.values(), key=lambda tensor: getattr(tensor, "_uid", math.inf))


def _leaves(structure: object) -> Iterator[object]:
    """Yield the leaves of nested lists, tuples, dicts and iterators, in order."""
    if isinstance(structure, (list, tuple, dict, Iterator)):
        for element in structure.values() if isinstance(structure, dict) else structure:
            yield from _leaves(element)
    else:
        yield structure


def _tensors(structure: object) -> Iterator[torch.Tensor]:
    for leaf in map(tensor_of, _leaves(structure)):
        if not isinstance(leaf, torch.Tensor):
            suggestion = ""
            if hasattr(leaf, "graph"):
                suggestion = (
                    " It belongs to a graph: take gradients() there, and run it with Session.run."
                )
            elif leaf is None or isinstance(leaf, (bool, int, float)):
                suggestion = (
                    " A function that computes a loss returns a tensor: no float() or item()."
                )
            raise InvalidTypeError(
                f"Passed in object {show_value(leaf)}, expected a tensor or variable.{suggestion}"
            )
        yield leaf


def _pack(structure: Any, leaves: Iterator[Any]) -> object:
    """Return a copy of the nested `structure` with its tensors replaced by the next `leaves`."""
    if isinstance(tensor_of(structure), torch.Tensor):
        return next(leaves)
    if isinstance(structure, dict):
        return {key: _pack(element, leaves) for key, element in structure.items()}
    elements = [_pack(element, leaves) for element in structure]
    if hasattr(structure, "_fields"):  # a named tuple
        return type(structure)(*elements)
    return tuple(elements) if isinstance(structure, tuple) else elements
