"""`gradients` and `GradientTape`: derivatives, in graphs computed in a run by torch's autograd."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from thalweg import autodiff
from thalweg._base.execution_context import executing_eagerly, is_symbolic
from thalweg._base.showing import show_value
from thalweg._core.nest import leaves_of, mapped, packed
from thalweg._graph.add_operation import add
from thalweg._graph.arguments import IN_EAGER_MODE, densify
from thalweg._graph.default_graph import graph_variable_of
from thalweg._graph.nodes import Operation, SymbolicTensor
from thalweg._graph.shapes import Output
from thalweg._graph.symbolic_slices import SymbolicSlices
from thalweg._graph.variables import GraphVariable
from thalweg.autodiff import UnconnectedGradients, parse_unconnected
from thalweg.errors import FailedPreconditionError, InvalidArgumentError, InvalidTypeError
from thalweg.indexed_slices import Gradient, IndexedSlices, as_gradient
from thalweg.variable import to_tensor

_AGGREGATIONS = [0, 1, 2]


def gradients(
    ys: object,
    xs: object,
    grad_ys: object = None,
    name: str | None = "gradients",
    colocate_gradients_with_ops: bool = False,
    gate_gradients: bool = False,
    aggregation_method: object = None,
    stop_gradients: object = None,
    unconnected_gradients: UnconnectedGradients | str = UnconnectedGradients.NONE,
) -> list[Any]:
    """Return the derivatives of the sum of all elements of `ys` with respect to each of `xs`.

    Args:
        ys: A symbolic tensor or a list of them.
        xs: Symbolic tensors, variables, or torch parameters (for their graph variables).
        grad_ys: Optional. The output gradient of each of `ys`, in its shape; None means ones.
        name: The name of the one operation that computes all gradients.
        colocate_gradients_with_ops: Ignored.
        gate_gradients: Ignored; all gradients are computed before any is used.
        aggregation_method: One of `AggregationMethod`, 0, 1 or 2; without effect.
        stop_gradients: Optional. Tensors that are treated as constants.
        unconnected_gradients: For an x that no y depends on: "none" returns None, "zero" zeros.

    Returns:
        For each x a symbolic tensor, or `SymbolicSlices` if only row lookups use x. The value in a
        run is None for a parameter that a module does not use. The value is zeros if the run skips
        the branch or loop that uses x.

    Raises:
        InvalidTypeError: An element of `ys`, `xs` or `stop_gradients` is not symbolic.
        InvalidArgumentError: `ys` and `grad_ys` differ in number, tensors are of different graphs,
            or `aggregation_method` is unknown.
        FailedPreconditionError: Called in eager mode.
    """
    _check_mode(ys, xs)
    _check_aggregation(aggregation_method)
    zero = parse_unconnected(unconnected_gradients) is UnconnectedGradients.ZERO
    targets, sources, stops = (_as_symbols(nest) for nest in (ys, xs, stop_gradients))
    weights = _as_weights(targets, grad_ys)
    _check_graph(targets, (*targets, *sources, *stops))
    grads = _add_derivatives(targets, weights, sources, stops, zero, name or "gradients")
    absent = (lambda x: torch.zeros_like(x)) if zero else (lambda _: None)
    return [grads[x] if x in grads else absent(x) for x in sources]


def _add_derivatives(
    targets: Sequence[SymbolicTensor],
    weights: Sequence[object],
    sources: Sequence[SymbolicTensor],
    stops: Sequence[SymbolicTensor],
    zero: bool,
    name: str,
) -> dict[SymbolicTensor, SymbolicTensor | SymbolicSlices]:
    """Add one operation for all gradients; return {source: gradient}.

    Sources on which no target depends have no entry. `weights` are the output gradients of
    `targets`; `stops` are treated as constants. If a run finds that no
    target depends on a source, the gradient of this run is None, or zeros if `zero`.
    """
    uses = _find_uses(targets, frozenset(stops))
    connected = list(dict.fromkeys(x for x in sources if x in uses))
    if not connected:
        return {}
    # Each use must be a row lookup. None, which marks a target, needs a dense gradient.
    by_rows = [
        all(user is not None and x in user.sparse_flows for user in uses[x]) for x in connected
    ]
    choosing = _find_conditional(uses)
    zeros = [zero or x in choosing for x in connected]
    op = add(
        connected[0].graph,
        name,
        GradientsOfRun([*connected, *stops], [x for x in uses if isinstance(x, GraphVariable)]),
        mapped(densify, (targets, weights, connected, stops, by_rows, zeros)),
        outputs=[Output(x.dtype, x.shape) for x in connected],
        picks=tuple(range(len(connected))),
        type="Gradients",
    )
    return dict(zip(connected, map(_as_slices, op.outputs, by_rows), strict=True))


def _check_mode(ys: object, xs: object) -> None:
    """Raise FailedPreconditionError in eager mode, with advice by the types of `ys` and `xs`."""
    if executing_eagerly():
        is_of_graph = any(isinstance(leaf, SymbolicTensor) for leaf in leaves_of((ys, xs)))
        advice = f" {IN_EAGER_MODE}" if is_of_graph else " Use GradientTape in eager mode."
        raise FailedPreconditionError(f"gradients() needs a graph.{advice}")


def _check_aggregation(method: object) -> None:
    """Raise InvalidArgumentError for an unknown aggregation method."""
    if method is not None and method not in _AGGREGATIONS:
        raise InvalidArgumentError(
            f"Invalid `aggregation_method` specified {method}. Accepted values are {_AGGREGATIONS}."
        )


def _check_graph(targets: Sequence[SymbolicTensor], tensors: Sequence[SymbolicTensor]) -> None:
    """Raise InvalidArgumentError unless all tensors are of the graph of the targets."""
    for tensor in tensors:
        if targets and tensor.graph is not targets[0].graph:
            raise InvalidArgumentError(
                f"Tensor '{tensor.name}' must be from the same graph as '{targets[0].name}'."
            )


class GradientsOfRun:
    """Function of a gradient operation: calls torch's autograd in a run.

    Attributes:
        watched: Sources and stops. In a run, each must be a separate tensor of autograd's graph.
        read: The variables from which the targets are computed.
    """

    __name__ = "gradients"

    def __init__(
        self, sources: Iterable[SymbolicTensor], read: Iterable[SymbolicTensor] = ()
    ) -> None:
        self.watched, self.read = tuple(sources), frozenset(read)

    def __call__(
        self,
        ys: Sequence[Any],
        weights: Sequence[Any],
        xs: Sequence[Any],
        stops: Sequence[Any],
        by_rows: Sequence[bool],
        zeros: Sequence[bool],
        *,
        retain_graph: bool,
        create_graph: bool,
    ) -> list[Gradient]:
        """Return the gradient of each of `xs`.

        Args:
            ys: Values to differentiate.
            weights: The output gradient of each of `ys`; None stands for ones.
            xs: Values with respect to which `ys` are differentiated.
            stops: Values through which no gradient flows.
            by_rows: For each of `xs`, True to return `IndexedSlices`.
            zeros: For each of `xs`, True to return zeros, not None, if no y depends on it.
            retain_graph, create_graph: As in `torch.autograd.grad`.
        """
        # Without `requires_grad`, a y depends on no x in this run, and autograd would raise.
        starts = [(y, w) for y, w in zip(ys, weights, strict=True) if y.requires_grad]
        indices = [index for index, x in enumerate(xs) if x.requires_grad]
        ends = [xs[index] for index in indices]
        results: list[Any] = [None] * len(xs)
        if starts and ends:
            hooks = [_block_gradient(stop) for stop in stops if stop.grad_fn is not None]
            try:
                grads = torch.autograd.grad(
                    [y for y, _ in starts],
                    ends,
                    [_check_weight(y, w) for y, w in starts],
                    retain_graph=retain_graph or create_graph,
                    create_graph=create_graph,
                    allow_unused=True,
                )
            finally:
                for hook in hooks:
                    hook.remove()
            for index, gradient in zip(indices, grads, strict=True):
                results[index] = gradient
        for index, gradient in enumerate(results):
            is_dense = gradient is not None and gradient.layout is torch.strided
            if not is_dense or by_rows[index]:
                details = as_gradient(gradient), xs[index], by_rows[index], zeros[index]
                results[index] = _finish_gradient(*details)
        return results


def as_differentiable(value: object) -> Any:
    """Return a tensor as a separate leaf or node of autograd's graph; integers are unchanged."""
    if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
        return value
    # An alias adds a node of its own, so that a gradient can be taken at this tensor alone.
    return value[...] if value.requires_grad else value.detach().requires_grad_()


def _block_gradient(stop: torch.Tensor) -> Any:
    """Stop gradients at `stop` in autograd's graph; `remove()` of the result undoes this."""
    # A node may have several outputs; only the gradient of this tensor is cut.
    index = stop.output_nr

    def cut_gradient(incoming: tuple[object, ...]) -> tuple[object, ...]:
        return tuple(None if i == index else gradient for i, gradient in enumerate(incoming))

    node: Any = stop.grad_fn
    return node.register_prehook(cut_gradient)


def _check_weight(y: torch.Tensor, weight: Any) -> torch.Tensor:
    """Return the output gradient of `y`, ones for None; raise if the shapes differ."""
    if weight is None:
        return torch.ones_like(y)
    if weight.shape != y.shape:
        raise InvalidArgumentError(
            f"an output gradient has shape {tuple(weight.shape)} but its target has shape "
            f"{tuple(y.shape)}."
        )
    return weight.to(y.device)


def _finish_gradient(gradient: Gradient, x: torch.Tensor, by_rows: bool, zero: bool) -> Gradient:
    """Return the gradient of `x`, as `IndexedSlices` if `by_rows`. None becomes zeros if `zero`."""
    if gradient is None and zero and by_rows:
        no_rows = torch.zeros(0, dtype=torch.int64, device=x.device)
        return IndexedSlices(x.new_zeros((0, *x.shape[1:])), no_rows, x.shape)
    if gradient is None:
        return torch.zeros_like(x) if zero else None
    if by_rows and isinstance(gradient, torch.Tensor):
        # A module reached its embedding's weights in a second way: every row has a gradient.
        rows = torch.arange(len(gradient), dtype=torch.int64, device=gradient.device)
        return IndexedSlices(gradient, rows, gradient.shape)
    return gradient


def _find_uses(
    targets: Sequence[SymbolicTensor], stops: frozenset[SymbolicTensor]
) -> dict[SymbolicTensor, list[Operation | None]]:
    """Return {tensor: operations that use the tensor} for the tensors that gradients reach.

    Gradients flow from `targets` back to `stops`. The list of a target also contains None.
    """
    uses: dict[SymbolicTensor, list[Operation | None]] = {}
    pending: list[tuple[SymbolicTensor, Operation | None]] = [
        (target, None) for target in targets if target.is_differentiable()
    ]
    while pending:
        tensor, user = pending.pop()
        is_new = tensor not in uses
        uses.setdefault(tensor, []).append(user)
        if is_new and tensor not in stops:
            pending += [(x, tensor.op) for x in tensor.op.flows_to(tensor)]
    return uses


def _find_conditional(uses: dict[SymbolicTensor, list[Operation | None]]) -> set[SymbolicTensor]:
    """Return the inputs of branches and loops, and all tensors from which the inputs are computed.

    A run that skips a branch may compute no gradient for these tensors. `uses`: see `_find_uses`.
    """
    pending = [x for x, users in uses.items() if any(op and op.subgraphs for op in users)]
    reachable: set[SymbolicTensor] = set()
    while pending:
        tensor = pending.pop()
        if tensor not in reachable:
            reachable.add(tensor)
            pending += tensor.op.flows_to(tensor)
    return reachable


def _as_slices(output: SymbolicTensor, by_rows: bool) -> SymbolicTensor | SymbolicSlices:
    """Return an output, as slices if `by_rows`; mark it as possibly sparse."""
    output.may_be_sparse = True
    return SymbolicSlices.of(output) if by_rows else output


def _as_symbols(nest: object) -> list[SymbolicTensor]:
    """Return the symbolic tensors of a nest in a flat list."""
    items = list(nest) if isinstance(nest, (list, tuple)) else [] if nest is None else [nest]
    return [_as_symbol(item) for item in items]


def _as_symbol(item: object) -> SymbolicTensor:
    """Return the symbolic tensor of an item; raise InvalidTypeError if there is none."""
    symbol = graph_variable_of(item)
    if not isinstance(symbol, SymbolicTensor):
        raise InvalidTypeError(f"Passed in object {show_value(item)}, expected a symbolic tensor.")
    return symbol


def _as_weights(targets: Sequence[SymbolicTensor], grad_ys: object) -> list[object]:
    """Return a list with the output gradient of each target; None stands for ones.

    Raise InvalidArgumentError unless `grad_ys` is None or has one item per target.
    """
    if grad_ys is None:
        return [None] * len(targets)
    weights = list(grad_ys) if isinstance(grad_ys, (list, tuple)) else [grad_ys]
    if len(weights) != len(targets):
        raise InvalidArgumentError(f"{len(weights)} grad_ys were given for {len(targets)} ys.")
    pairs = zip(weights, targets, strict=True)
    return [
        weight
        if weight is None or isinstance(weight, SymbolicTensor)
        else to_tensor(weight, target.dtype)
        for weight, target in pairs
    ]


class GradientTape(autodiff.GradientTape):
    """Recorder of computations for `gradient`; see `thalweg.GradientTape`.

    In graph mode symbolic tensors have symbolic gradients, computed by `gradients`. Symbolic
    tensors need no `watch`.

    Args:
        persistent, watch_accessed_variables: As in `thalweg.GradientTape`.
    """

    def watch(self, tensor: object) -> None:
        """Watch eager tensors; in graph mode, skip symbolic tensors."""
        if not executing_eagerly():
            tensor = [leaf for leaf in leaves_of(tensor) if not is_symbolic(leaf)]
        super().watch(tensor)

    def gradient(
        self,
        target: object,
        sources: object,
        output_gradients: object = None,
        unconnected_gradients: UnconnectedGradients | str = UnconnectedGradients.NONE,
    ) -> Any:
        """Return the gradient of `target` for each source; see `gradients` for symbolic targets."""
        targets = list(leaves_of(target))
        is_of_graph = not executing_eagerly() and any(map(is_symbolic, targets))
        if not is_of_graph or self._used:
            return super().gradient(target, sources, output_gradients, unconnected_gradients)
        self._used = not self._persistent
        weights = None if output_gradients is None else list(leaves_of(output_gradients))
        grads = gradients(
            targets, list(leaves_of(sources)), weights, unconnected_gradients=unconnected_gradients
        )
        return packed(sources, iter(grads))
