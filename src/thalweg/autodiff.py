"""`GradientTape` over torch's autograd, and gradients as optimizers take them.

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
    """Gradients of sources that the target does not depend on."""

    NONE = "none"
    ZERO = "zero"


Begin = Callable[[Sequence[torch.Tensor]], Callable[[torch.Tensor], None] | None]


class _Recording(threading.local):
    """The tapes that record in this thread, the innermost last."""

    def __init__(self) -> None:
        self.tapes: list[GradientTape] = []
        self.begin: Begin | None = None


_recording = _Recording()


class GradientTape:
    """Compute gradients of what runs inside the `with` block.

    Args:
        persistent: Whether `gradient` may be called more than once.
        watch_accessed_variables: Whether all trainable variables are sources, or only what
            `watch` was told of.

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
        # Two tapes may have recorded the same graph, which then must outlive the first gradient.
        self._shares_graph = False
        self._watched: dict[int, tuple[torch.Tensor, GradientEdge]] = {}
        self._made_differentiable: list[torch.Tensor] = []
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
        self._shares_graph = bool(_recording.tapes)
        for tape in _recording.tapes:
            tape._shares_graph = True
        _recording.tapes.append(self)
        for tensor in self._made_differentiable:
            tensor.requires_grad_(True)
        self._is_open = True
        self._grad_was_enabled = torch.is_grad_enabled()
        torch.set_grad_enabled(True)
        return self

    def __exit__(self, *error: object) -> None:
        self._is_open = False
        torch.set_grad_enabled(self._grad_was_enabled)
        for tensor in self._made_differentiable:
            tensor.requires_grad_(False)
        self._stop()

    def watch(self, tensor: object) -> None:
        """Make what is computed from `tensor` differentiable until the `with` block ends.

        A tensor that does not require a gradient is made to for that time; integer tensors are
        passed over, as they have no gradient.

        Args:
            tensor: A tensor, or nested lists, tuples or dicts of them.

        Raises:
            InvalidTypeError: Something in it is not a tensor.
            FailedPreconditionError: The tape does not record.
        """
        if self not in _recording.tapes:
            raise FailedPreconditionError("watch() was called on a tape which is not recording.")
        for leaf in _tensors(tensor):
            if not (leaf.is_floating_point() or leaf.is_complex()):
                continue
            if not leaf.requires_grad:
                self._made_differentiable.append(leaf)
                leaf.requires_grad_(True)
            self._watched[id(leaf)] = (leaf, get_gradient_edge(leaf))

    def watched_variables(self, target: object = None) -> tuple[torch.Tensor, ...]:
        """Return the variables this tape knows, in the order in which they were created.

        Torch does not tell what was read, so without a target these are the watched ones alone.
        With a target, or a nest of them, the trainable variables it was computed from come in.
        """
        found = [x for x, _ in self._watched.values() if isinstance(x, torch.nn.Parameter)]
        if self._accessed and target is not None:
            found += variables_of(target)
        return tuple(_by_creation(found))

    @untraced
    def gradient(
        self,
        target: object,
        sources: object,
        output_gradients: object = None,
        unconnected_gradients: UnconnectedGradients | str = UnconnectedGradients.NONE,
    ) -> Any:
        """Differentiate the sum of all elements of `target` by `sources`.

        Args:
            target: A tensor, or nested lists, tuples or dicts of tensors, whose gradients add up.
            sources: Tensors, nested in the same way. Also an iterator over tensors.
            output_gradients: Optional. A weight of the same shape for each target, nested alike;
                a None among them stands for ones.
            unconnected_gradients: "none" or "zero".

        Returns:
            In the structure of `sources`: a tensor of the source's shape and dtype, or
            IndexedSlices where torch's gradient is sparse, or None without a connection.

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
        zero = _parse(unconnected_gradients) is UnconnectedGradients.ZERO
        if isinstance(sources, Iterator):
            sources = list(sources)
        leaves = list(_tensors(sources))
        targets = list(_tensors(target))
        weights = _weights(targets, target, output_gradients)
        if not self._persistent:
            self._stop()
        gradients = _differentiate(
            [self._edge(tensor) for tensor in targets],
            [self._edge(tensor) for tensor in leaves],
            weights,
            leaves,
            retain_graph=self._persistent or self._shares_graph,
            create_graph=bool(_recording.tapes),  # an outer tape records the gradient as well
        )
        if zero:
            pairs = zip(gradients, leaves, strict=True)
            gradients = [torch.zeros_like(leaf) if g is None else g for g, leaf in pairs]
        if not self._persistent:
            self._used = True
            self._watched.clear()
        return _pack(sources, iter(gradients))

    @contextlib.contextmanager
    def stop_recording(self) -> Iterator[None]:
        """Leave out of the gradient what runs in this `with` block.

        Torch has one record for all tapes: where another tape records too, nothing is left out.

        Raises:
            FailedPreconditionError: The tape does not record.
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
        """Forget what was watched, and allow `gradient` again.

        What torch recorded stays with the tensors, so that gradients of tensors computed earlier
        remain possible, other than in TensorFlow.
        """
        for tensor in self._made_differentiable:
            tensor.requires_grad_(False)
        self._made_differentiable.clear()
        self._watched.clear()
        self._used = False

    def _stop(self) -> None:
        if self in _recording.tapes:
            _recording.tapes.remove(self)

    def _edge(self, tensor: torch.Tensor) -> torch.Tensor | GradientEdge | None:
        """Where in torch's graph `tensor` stands, or None if this tape did not follow it."""
        if id(tensor) in self._watched:
            # A plain tensor does not require a gradient any more when its tape has ended.
            return self._watched[id(tensor)][1]
        if not tensor.requires_grad:
            return None
        if not self._accessed:
            watched = {edge.node for _, edge in self._watched.values()}
            if watched.isdisjoint(_nodes([tensor])):
                return None
        return tensor


@untraced
def gradients_of(
    target: torch.Tensor | Sequence[torch.Tensor],
    variables: Iterable[torch.Tensor],
    grad_outputs: object = None,
) -> list[Gradient]:
    """Return the gradient of the sum of `target` by each variable. Frees the graph of the target.

    Args:
        target: A tensor, or several, whose gradients add up.
        variables: Tensors, in any state: one that does not require a gradient has none.
        grad_outputs: Optional. A weight of the target's shape, or one for each target.

    Returns:
        For each variable a tensor, IndexedSlices where torch's gradient is sparse, or None. All
        None if the target does not require a gradient.

    Raises:
        InvalidTypeError: Something is not a tensor.
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
    """Return the trainable variables that `target`, or a nest of tensors, was computed from.

    Returns:
        Variables in the order in which they were created, then torch's own leaves in the order in
        which a walk from the target meets them.

    Raises:
        InvalidTypeError: Something is not a tensor.
    """
    tensors = [tensor for tensor in _tensors(target) if tensor.requires_grad]
    found = [leaf for leaf in _leaves_below(tensors) if getattr(leaf, "trainable", True)]
    return _by_creation(filter(is_variable, found))


def _leaves_below(tensors: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """The leaves that a backward pass from these tensors gives a gradient."""
    for node in _nodes(tensors):
        if node.name() == "torch::autograd::AccumulateGrad":
            yield node.variable


def has_replicas() -> bool:
    """Return True if other processes may hold replicas of a module, which torch synchronizes in
    hooks.

    `DistributedDataParallel` averages gradients in hooks of `backward`, which `autograd.grad`
    passes by. Nothing tells its parameters from others.
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
    """The gradients of `outputs` by `inputs`, which are `tensors` or their places."""
    starts = [
        (out, weight) for out, weight in zip(outputs, weights, strict=True) if out is not None
    ]
    ends = [end for end in inputs if end is not None]
    if not starts or not ends:
        return [None] * len(inputs)
    if has_replicas() and not create_graph:
        wanted = [x for x, end in zip(tensors, inputs, strict=True) if end is not None]
        if all(isinstance(out, torch.Tensor) for out, _ in starts) and _are_leaves(wanted):
            found = _by_backward(starts, wanted, retain_graph)
            return [None if end is None else as_gradient(next(found)) for end in inputs]
    # torch takes tensors and edges mixed, which its annotations do not say.
    gradients = torch.autograd.grad(  # pyright: ignore[reportCallIssue]
        [out for out, _ in starts],  # pyright: ignore[reportArgumentType]
        ends,  # pyright: ignore[reportArgumentType]
        [weight for _, weight in starts],
        retain_graph=retain_graph or create_graph,
        create_graph=create_graph,
        allow_unused=True,
    )
    found = iter(gradients)
    return [None if end is None else as_gradient(next(found)) for end in inputs]


def watching(begin: Begin) -> ContextSetting:
    """Be told of gradients as they come, where there are other processes.

    Args:
        begin: Called before the first backward pass of the block, with the leaves that get a
            gradient. Returns None, or what is called with each leaf when its `grad` is complete.
    """
    change = partial(setattr, _recording, "begin")
    return ContextSetting(lambda: ([partial(change, begin)], [partial(change, _recording.begin)]))


def _are_leaves(tensors: Iterable[torch.Tensor]) -> bool:
    return all(tensor.is_leaf and tensor.requires_grad for tensor in tensors)


def _by_backward(
    starts: Sequence[tuple[Any, torch.Tensor]],
    wanted: Sequence[torch.Tensor],
    retain_graph: bool,
) -> Iterator[torch.Tensor | None]:
    """The gradients of leaves, by a `backward` whose hooks are called; each `grad` is kept."""
    outputs = [out for out, _ in starts]
    leaves = {id(leaf): leaf for leaf in [*_leaves_below(outputs), *wanted]}.values()
    kept = [leaf.grad for leaf in leaves]
    begin, _recording.begin = _recording.begin, None
    arrived = None if begin is None else begin(wanted)
    handles: list[Any] = []
    try:
        for leaf in leaves:
            leaf.grad = None
        if arrived is not None:
            handles += [leaf.register_post_accumulate_grad_hook(arrived) for leaf in wanted]
        torch.autograd.backward(outputs, [weight for _, weight in starts], retain_graph)
        return iter([_own(leaf.grad) for leaf in wanted])
    finally:
        for handle in handles:
            handle.remove()
        for leaf, grad in zip(leaves, kept, strict=True):
            leaf.grad = grad


def _own(grad: torch.Tensor | None) -> torch.Tensor | None:
    """A gradient that no later pass writes to, as to a part of a bucket."""
    is_part = grad is not None and grad.layout == torch.strided and grad._is_view()
    return grad.clone() if grad is not None and is_part else grad


def _weights(
    targets: Sequence[torch.Tensor], structure: object, weights: object
) -> list[torch.Tensor]:
    """The output gradient of each target: as given, or ones."""
    if weights is None or isinstance(structure, torch.Tensor):
        given = [weights] * len(targets)
    else:
        given = list(_leaves(weights))
    if len(given) != len(targets):
        raise InvalidArgumentError(
            f"{len(given)} output gradients were given for {len(targets)} targets."
        )
    return [_weight(target, weight) for target, weight in zip(targets, given, strict=True)]


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


def _parse(unconnected: UnconnectedGradients | str) -> UnconnectedGradients:
    try:
        return UnconnectedGradients(unconnected)
    except ValueError:
        raise InvalidArgumentError(
            f"Unknown value for unconnected_gradients: {show_value(unconnected)}"
        ) from None


def _nodes(tensors: Iterable[torch.Tensor]) -> Iterator[Any]:
    """The nodes of torch's graph below `tensors`, each once, in depth-first order."""
    stack = [get_gradient_edge(tensor).node for tensor in tensors][::-1]
    seen = set()
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        yield node
        stack += [below for below, _ in reversed(node.next_functions) if below is not None]


def _by_creation(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    unique = {id(tensor): tensor for tensor in tensors}
    return sorted(unique.values(), key=lambda tensor: getattr(tensor, "_uid", math.inf))


def _leaves(structure: object) -> Iterator[object]:
    """What nested lists, tuples, dicts and iterators contain, in order."""
    if isinstance(structure, (list, tuple, dict, Iterator)):
        for item in structure.values() if isinstance(structure, dict) else structure:
            yield from _leaves(item)
    else:
        yield structure


def _tensors(structure: object) -> Iterator[torch.Tensor]:
    for leaf in map(tensor_of, _leaves(structure)):
        if not isinstance(leaf, torch.Tensor):
            hint = ""
            if hasattr(leaf, "graph"):
                hint = (
                    " It belongs to a graph: take gradients() there, and run it with Session.run."
                )
            elif leaf is None or isinstance(leaf, (bool, int, float)):
                hint = " A function that computes a loss returns a tensor: no float() or item()."
            raise InvalidTypeError(
                f"Passed in object {show_value(leaf)}, expected a tensor or variable.{hint}"
            )
        yield leaf


def _pack(structure: Any, leaves: Iterator[Any]) -> object:
    """`structure` with its leaves replaced, one after the other."""
    if isinstance(tensor_of(structure), torch.Tensor):
        return next(leaves)
    if isinstance(structure, dict):
        return {key: _pack(item, leaves) for key, item in structure.items()}
    items = [_pack(item, leaves) for item in structure]
    if hasattr(structure, "_fields"):  # a named tuple
        return type(structure)(*items)
    return tuple(items) if isinstance(structure, tuple) else items
