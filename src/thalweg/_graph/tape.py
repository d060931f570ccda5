"""`GradientTape` for eager tensors and for tensors of a graph."""

from __future__ import annotations

from typing import Any

from thalweg import autodiff
from thalweg._base.execution_context import executing_eagerly, is_symbolic
from thalweg._core.nest import leaves_of, packed
from thalweg._graph.gradients import gradients
from thalweg.autodiff import UnconnectedGradients


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
