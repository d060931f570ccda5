"""Trace of a forward pass that records how each weight is used and how its outputs are divided."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from thalweg.optim.traced_functions import (
    ADDED,
    CONTRACTIONS,
    LOOK_UPS,
    NO_LABEL,
    QUERIES,
    REDUCTIONS,
    SAME,
    SELECTIONS,
    STRUCTURAL,
    covers,
    distinct_labels,
    mapped,
    operands_of,
    positional,
    selected_matrices,
    tensors_in,
)
from thalweg.optim.traced_products import product_roles, product_shape
from thalweg.optim.weight_use import WeightUse

_LARGEST_COPY = 2**22


class ProjectionTrace(TorchFunctionMode):
    """Mode of torch in which a model with stand-ins for its weights runs on the CPU.

    Weights are meta tensors, which have shapes and strides but no memory. Their products with
    activations are zeros. Each product has labels: for every element the output of the weight that
    it is. Views, copies and elementwise functions pass labels on.

    Args:
        weights: The meta tensors.

    Attributes:
        uses: How each weight is used, in the order of `weights`.
    """

    def __init__(self, weights: Sequence[Tensor]) -> None:
        super().__init__()
        self.uses = [WeightUse(tuple(weight.shape)) for weight in weights]
        self._places = {id(weight): place for place, weight in enumerate(weights)}
        self._label_starts: list[int] = []
        self._labelled_uses: list[WeightUse] = []
        self._label_count = 0
        # Tensors are kept, so that no other tensor gets the `id` of one.
        self._labels: dict[int, tuple[Tensor, Tensor]] = {}
        self._weights = list(weights)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run a function of torch, and record what it does with weights and labelled tensors."""
        del types
        name = getattr(func, "__name__", "")
        if name in ("__get__", "__set__"):
            name = getattr(getattr(func, "__self__", None), "__name__", "")
            if name in ("device", "is_meta"):
                return torch.device("cpu") if name == "device" else False
        args, options = _on_cpu(args, self._use_of), _on_cpu(dict(kwargs or {}), self._use_of)
        for weight in tensors_in((args, options)):
            if self._use_of(weight) is not None:
                return self._with_weight(func, name, args, options, weight)
        result = func(*args, **options)
        with suppress(Exception):  # Outputs that are not followed make a layout undecided.
            self._follow(func, name, args, options, result)
        return result

    def mark_returned(self, result: Any, *, of_model: bool) -> None:
        """Record which outputs the result of the model or of a layer contains."""
        for tensor in tensors_in(result):
            for use, outputs in self._outputs_in(tensor):
                use.is_returned |= of_model
                if not of_model:
                    use.consume(outputs)

    def _use_of(self, tensor: Tensor) -> WeightUse | None:
        if not tensor.is_meta:
            return None
        place = self._places.get(id(tensor if tensor._base is None else tensor._base))
        return None if place is None else self.uses[place]

    def _with_weight(
        self,
        func: Callable[..., Any],
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        weight: Tensor,
    ) -> Any:
        """Run a function of a weight or of a view of one."""
        if args and args[0] is weight:
            # Functions that write to a weight return it.
            if name in SAME or (name.endswith("_") and not name.startswith("__")):
                return weight
            if (view := selected_matrices(name, args, weight)) is not None:
                return view
            result = func(*args, **kwargs) if name in STRUCTURAL or name in QUERIES else None
            if name in QUERIES or _all_views(result, self._use_of):
                return result
        args, kwargs = positional(name, args, kwargs)
        operands = operands_of(name, args)
        factors = operands[1:3] if name.strip("_") in ADDED else operands[:2]
        weights = [x for x in tensors_in(factors) if self._use_of(x) is not None]
        others = [x for x in tensors_in(factors) if self._use_of(x) is None]
        if name == "__rmatmul__":
            name, factors = "__matmul__", factors[::-1]
        if len(weights) == 1 == len(others):
            at = 0 if factors[0] is weights[0] else 1
            roles = product_roles(name, args, factors, at)
            if roles is not None:
                for added in tensors_in(operands):
                    if added is not weights[0] and (use := self._use_of(added)) is not None:
                        use.is_elementwise = True
                shape = product_shape(func, name, args, kwargs, factors)
                return self._product(name, weights[0], others[0], shape, roles)
        return self._with_copies(func, name, args, kwargs)

    def _product(
        self,
        name: str,
        weight: Tensor,
        activations: Tensor,
        shape: tuple[int, ...],
        roles: tuple[str, list[int | None]],
    ) -> Tensor:
        """Return zeros in place of the product of a weight and activations, with labels."""
        use = cast("WeightUse", self._use_of(weight))
        result = torch.zeros(shape, dtype=activations.dtype)
        if name.startswith("conv") and activations.shape[1 - weight.dim()] != weight.shape[1]:
            use.is_grouped = True
            self._pass_channels(activations, result)
            return result
        self._consume(activations)
        self._label_product(result, use, use.add_product(weight, roles[0]), roles)
        return result

    def _label_product(
        self, result: Tensor, use: WeightUse, outputs: Any, roles: tuple[str, list[int | None]]
    ) -> None:
        if not use.first_label:
            use.first_label = self._label_count + 1
            self._label_starts.append(use.first_label)
            self._labelled_uses.append(use)
            self._label_count += use.output_count
        labels = torch.from_numpy(np.ascontiguousarray(outputs)) + use.first_label
        if labels.dim() != len(roles[0]):
            return
        sizes = [1] * result.dim()
        axes: list[tuple[int, int]] = []
        for axis, (role, place) in enumerate(zip(*roles, strict=True)):
            if role == "i" or place is None:
                labels = labels.narrow(axis, 0, 1)
            else:
                axes.append((place % result.dim(), axis))
                sizes[place % result.dim()] = labels.shape[axis]
        order = [axis for _, axis in sorted(axes)]
        order += [axis for axis in range(labels.dim()) if axis not in order]
        self._set_labels(result, labels.permute(order).reshape(sizes).expand(result.shape))

    def _with_copies(
        self, func: Callable[..., Any], name: str, args: Any, kwargs: dict[str, Any]
    ) -> Any:
        """Run a function that is not a product, with zeros in place of weights."""
        weights = [x for x in tensors_in((args, kwargs)) if self._use_of(x) is not None]
        args, kwargs = (mapped(x, self._zeros_of) for x in (args, kwargs))
        result = func(*args, **kwargs)
        for weight in weights:
            use = cast("WeightUse", self._use_of(weight))
            if name in LOOK_UPS:
                use.is_looked_up = True
            elif not all(covers(x, weight.shape) for x in tensors_in(result)):
                use.other_uses.append(name)
            else:
                use.is_elementwise = True
        with suppress(Exception):
            self._follow(func, name, args, kwargs, result)
        return result

    def _zeros_of(self, x: Any) -> Any:
        if not isinstance(x, Tensor) or self._use_of(x) is None:
            return x
        if x.numel() > _LARGEST_COPY:
            return torch.zeros((), dtype=x.dtype).expand(x.shape)
        return torch.zeros(x.shape, dtype=x.dtype)

    def _pass_channels(self, source: Tensor, result: Tensor) -> None:
        """Label the result of a depthwise convolution as its input."""
        labels = self._labels_of(source)
        axis = 1 if source.dim() == result.dim() == 3 or source.dim() > 3 else 0
        if labels is None or source.shape[axis] != result.shape[axis]:
            self._consume(source)
            return
        for spatial in range(axis + 1, labels.dim()):
            labels = labels.amax(spatial, keepdim=True)
        self._set_labels(result, labels.expand(result.shape))

    def _follow(
        self, func: Callable[..., Any], name: str, args: Any, kwargs: dict[str, Any], result: Any
    ) -> None:
        """Label the result of a function of labelled tensors, or record the end of their labels."""
        labelled = [x for x in tensors_in((args, kwargs)) if id(x) in self._labels]
        results = tensors_in(result)
        if not labelled or not (results or name == "__setitem__"):
            return
        if name in ("__setitem__", "copy_"):
            self._assign(name, args)
        elif name in ("view_as_complex", "view_as_real"):
            # Labels of complex numbers have a dimension for real and imaginary part.
            self._set_labels(results[0], self._labels[id(labelled[0])][1])
        elif name in STRUCTURAL:
            self._follow_structural(func, name, args, kwargs, results)
        elif name == "glu":
            self._follow_glu(
                labelled[0], args[1] if len(args) > 1 else kwargs.get("dim", -1), result
            )
        elif name in SELECTIONS or name in REDUCTIONS:
            self._mark_uses(name, labelled)
        elif name.startswith("conv") and args[0] is labelled[0] and args[1].shape[1] == 1:
            self._pass_channels(args[0], result)
        elif name.strip("_") in CONTRACTIONS:
            for tensor in labelled:
                self._consume(tensor)
        else:
            self._follow_elementwise(name, args, labelled, results)

    def _follow_structural(
        self,
        func: Callable[..., Any],
        name: str,
        args: Any,
        kwargs: dict[str, Any],
        results: list[Tensor],
    ) -> None:
        """Label the results of a function that moves elements, by calling it with the labels."""
        func = Tensor.reshape if name == "view" else func
        if name in ("gather", "take_along_dim"):
            self._consume(args[0])  # Which outputs are gathered depends on data.
        moved = func(*mapped(args, self._label_arg), **mapped(kwargs, self._label_arg))
        for tensor, labels in zip(results, tensors_in(moved), strict=True):
            self._set_labels(tensor, labels)

    def _follow_glu(self, source: Tensor, axis: int, result: Tensor) -> None:
        """Record that a gated linear unit uses halves of its input apart; label its result."""
        halves = self._labels[id(source)][1].chunk(2, axis)
        for half in halves:
            self._record(half, WeightUse.consume)
        self._set_labels(result, halves[0])

    def _mark_uses(self, name: str, labelled: Sequence[Tensor]) -> None:
        """Record that a function selects by the outputs of weights, or reduces them."""
        for tensor in labelled:
            if name in SELECTIONS:
                for use, _ in self._outputs_in(tensor):
                    use.selects = True
            else:
                self._record(self._labels[id(tensor)][1], WeightUse.reduce)

    def _follow_elementwise(
        self, name: str, args: Any, labelled: list[Tensor], results: list[Tensor]
    ) -> None:
        first, *others = labelled
        fits = bool(results) and all(covers(x, first.shape) for x in results)
        if not fits:
            for tensor in labelled:
                self._consume(tensor)
            return
        labels = self._labels[id(first)][1]
        is_sum = name.strip("_").strip("ri") in ("add", "sub")
        if is_sum:
            full = [x for x in tensors_in(args) if x.shape == first.shape]
            for use, _ in self._outputs_in(first) if len(full) > 1 else ():
                use.joins_residual = True
        if not (is_sum and self._joined(first, others)) and not self._same(first, others):
            for tensor in labelled:
                self._consume(tensor)
            uses = [{id(use) for use, _ in self._outputs_in(x)} for x in labelled]
            if any(x != uses[0] for x in uses):
                # What gates the outputs of another weight ends here.
                self._labels.pop(id(results[0]), None)
                return
        for tensor in results:
            extra = (2,) if tensor.is_complex() and labels.dim() > tensor.dim() else ()
            if labels.dim() == first.dim() or extra:
                self._set_labels(tensor, labels.expand(*tensor.shape, *extra))

    def _same(self, first: Tensor, others: Sequence[Tensor]) -> bool:
        """Return True if all tensors have the same outputs, in any order."""
        found = (
            [distinct_labels(self._labels[id(x)][1]) for x in (first, *others)] if others else []
        )
        return all(np.array_equal(x, found[0]) for x in found)

    def _joined(self, first: Tensor, others: Sequence[Tensor]) -> bool:
        """Join the outputs of two weights whose sum is used as one, as with a low-rank adapter."""
        if len(others) != 1 or others[0].shape != first.shape:
            return False
        both = [self._labels[id(x)][1] for x in (first, others[0])]
        (use, *more), (other, *others_more) = (self._outputs_in(x) for x in (first, others[0]))
        if more or others_more or use[0] is other[0]:
            return False
        one, two = (x - u[0].first_label for x, u in zip(both, (use, other), strict=True))
        if use[0].output_count != other[0].output_count or not torch.equal(one, two):
            return False
        other[0].join(use[0])
        other[0].reduce(other[1])
        return True

    def _assign(self, name: str, args: Any) -> None:
        """Label what an assignment writes to, which may be a view of another tensor."""
        target, value = args[0], args[-1]
        labels = self._labels_of(target)
        if labels is None or any(s == 0 for s in labels.stride()):
            base = target if target._base is None else target._base
            known = self._label_arg(target)
            whole = torch.empty_strided(base.shape, base.stride(), dtype=torch.int64)
            whole.fill_(NO_LABEL)
            self._set_labels(base, whole)
            labels = whole.as_strided(target.shape, target.stride(), target.storage_offset())
            labels.copy_(known)
            self._set_labels(target, labels)
        values = self._label_arg(value) if isinstance(value, Tensor) else NO_LABEL
        labels[... if name == "copy_" else args[1]] = values

    def _label_arg(self, x: Any) -> Any:
        """Return an argument of a structural function with labels in place of floating tensors."""
        if not isinstance(x, Tensor):
            return x
        if (labels := self._labels_of(x)) is not None:
            return labels
        if x.is_floating_point() or x.is_complex():
            return torch.full(x.shape, NO_LABEL)
        return x

    def _labels_of(self, tensor: Tensor) -> Tensor | None:
        entry = self._labels.get(id(tensor))
        return None if entry is None else entry[1]

    def _set_labels(self, tensor: Tensor, labels: Tensor) -> None:
        self._labels[id(tensor)] = (tensor, labels)

    def _outputs_in(self, tensor: Tensor) -> list[tuple[WeightUse, Any]]:
        labels = self._labels_of(tensor)
        return [] if labels is None else self._split(labels)

    def _split(self, labels: Tensor) -> list[tuple[WeightUse, Any]]:
        """Return the weights whose outputs have these labels, and the outputs."""
        found = distinct_labels(labels)
        owners = np.searchsorted(self._label_starts, found, side="right") - 1
        uses: list[tuple[WeightUse, Any]] = []
        for owner in np.unique(owners).tolist():
            use = self._labelled_uses[owner]
            uses.append((use, found[owners == owner] - use.first_label))
        return uses

    def _consume(self, tensor: Tensor) -> None:
        if (labels := self._labels_of(tensor)) is not None:
            self._record(labels, WeightUse.consume)

    def _record(self, labels: Tensor, method: Callable[[WeightUse, Any], None]) -> None:
        for use, outputs in self._split(labels):
            method(use, outputs)


def _on_cpu(value: Any, use_of: Callable[[Tensor], WeightUse | None]) -> Any:
    """Return arguments with zeros or copies in place of tensors of other devices."""

    def move(x: Any) -> Any:
        if isinstance(x, torch.device):
            return torch.device("cpu")
        if not isinstance(x, Tensor) or x.device.type == "cpu" or use_of(x) is not None:
            return x
        return torch.zeros(x.shape, dtype=x.dtype) if x.is_meta else x.cpu()

    return mapped(value, move)


def _all_views(result: Any, use_of: Callable[[Tensor], WeightUse | None]) -> bool:
    views = tensors_in(result)
    return bool(views) and all(use_of(view) is not None for view in views)
