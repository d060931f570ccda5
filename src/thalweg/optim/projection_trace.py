"""Trace of a forward pass that records how each weight is used and how its outputs are divided."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from thalweg.optim.weight_use import WeightUse, product_roles

# Functions that move elements without computing: they act on labels as on the labelled tensors.
_STRUCTURAL = frozenset(
    "view reshape view_as reshape_as flatten unflatten transpose swapaxes swapdims permute movedim"
    " moveaxis t adjoint T mT squeeze unsqueeze expand expand_as repeat repeat_interleave tile roll"
    " split chunk tensor_split split_with_sizes unbind hsplit vsplit dsplit narrow select"
    " __getitem__ index_select cat concat concatenate stack hstack vstack dstack flip"
    " broadcast_to unfold take_along_dim gather masked_select as_strided take pad"
    " pixel_shuffle pixel_unshuffle atleast_2d atleast_3d diagonal".split()
)
_SAME = frozenset(
    "contiguous clone detach to float half bfloat16 double type type_as cpu data requires_grad_"
    .split()
)  # fmt: skip
_REDUCTIONS = frozenset(
    "mean sum var std norm vector_norm max min amax amin any all logsumexp var_mean std_mean prod"
    " argmin histc bincount isnan isinf isfinite nonzero count_nonzero allclose equal new_zeros"
    " new_empty new_ones new_full".split()
)
_SELECTIONS = frozenset("topk sort argsort argmax multinomial kthvalue".split())
_CONTRACTIONS = frozenset(
    "linear matmul rmatmul mm bmm mv dot addmm baddbmm addbmm einsum bilinear conv1d conv2d conv3d"
    " tensordot scaled_dot_product_attention grouped_mm grouped_mm_fallback cdist outer inner"
    " chain_matmul".split()
)
_QUERIES = frozenset("shape size dim ndim dtype numel stride is_floating_point requires_grad layout".split())
_LOOK_UPS = frozenset("embedding embedding_bag __getitem__ index_select gather take".split())
_LARGEST_COPY = 2**22
_NO_LABEL = -1


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
        for weight in _tensors((args, options)):
            if (use := self._use_of(weight)) is not None:
                return self._with_weight(func, name, args, options, weight, use)
        result = func(*args, **options)
        with suppress(Exception):  # Outputs that are not followed make a layout undecided.
            self._follow(func, name, args, options, result)
        return result

    def mark_returned(self, result: Any, *, of_model: bool) -> None:
        """Record which outputs the result of the model or of a layer contains."""
        for tensor in _tensors(result):
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
        use: WeightUse,
    ) -> Any:
        """Run a function of a weight or of a view of one."""
        if args and args[0] is weight:
            if name in _SAME or (name.endswith("_") and not name.startswith("__")):
                return weight
            if (view := _selected(name, args, weight)) is not None:
                return view
            result = func(*args, **kwargs) if name in _STRUCTURAL or name in _QUERIES else None
            if name in _QUERIES or _all_views(result, self._use_of):
                return result
        args, kwargs = _positional(name, args, kwargs)
        operands = _operands(name, args)
        begin = 1 if name.strip("_") in ("addmm", "baddbmm", "addbmm") else 0
        factors = operands[begin : begin + 2]
        others = [x for x in _tensors(factors) if self._use_of(x) is None]
        found = [x for x in _tensors(factors) if self._use_of(x) is not None]
        if len(found) != 1 or len(others) != 1:
            return self._with_copies(func, name, args, kwargs)
        weight = found[0]
        at = next(place for place, x in enumerate(factors) if x is weight)
        roles = product_roles(name, args, factors, at)
        if roles is None:
            return self._with_copies(func, name, args, kwargs)
        use = self._use_of(weight)
        assert use is not None
        for added in _tensors(operands):
            if (other_use := self._use_of(added)) is not None and added is not weight:
                other_use.is_elementwise = True
        if name.strip("_").startswith("grouped_mm"):
            shape = torch.Size([*others[0].shape[:-1], weight.shape[-1]])
        else:
            shape = func(*_mapped(args, _meta_of), **_mapped(kwargs, _meta_of)).shape
        result = torch.zeros(shape, dtype=others[0].dtype)
        if name.startswith("conv") and others[0].shape[1 - weight.dim()] != weight.shape[1]:
            use.is_grouped = True
            self._pass_channels(others[0], result)
            return result
        for tensor in others:
            self._consume(tensor)
        outputs = use.add_product(weight, roles[0])
        self._label_product(result, use, outputs, roles)
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
        weights = [x for x in _tensors((args, kwargs)) if self._use_of(x) is not None]
        args, kwargs = (_mapped(x, self._zeros_of) for x in (args, kwargs))
        result = func(*args, **kwargs)
        for weight in weights:
            use = self._use_of(weight)
            assert use is not None
            if name in _LOOK_UPS:
                use.is_looked_up = True
            elif not all(_covers(x, weight.shape) for x in _tensors(result)):
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
        labelled = [x for x in _tensors((args, kwargs)) if id(x) in self._labels]
        results = _tensors(result)
        if not labelled or not (results or name == "__setitem__"):
            return
        if name in ("__setitem__", "copy_"):
            self._assign(name, args)
        elif name in _SELECTIONS:
            for tensor in labelled:
                for use, _ in self._outputs_in(tensor):
                    use.selects = True
        elif name in ("view_as_complex", "view_as_real"):
            # Labels of complex numbers have a dimension for real and imaginary part.
            self._set_labels(results[0], self._labels[id(labelled[0])][1])
        elif name in _STRUCTURAL:
            func = Tensor.reshape if name == "view" else func
            if name in ("gather", "take_along_dim"):
                self._consume(args[0])  # Which outputs are gathered depends on data.
            moved = func(*_mapped(args, self._label_arg), **_mapped(kwargs, self._label_arg))
            for tensor, labels in zip(results, _tensors(moved), strict=True):
                self._set_labels(tensor, labels)
        elif name == "glu":
            for half in _halves(func, labelled[0], self._labels[id(labelled[0])][1], args, kwargs):
                self._record(half, WeightUse.consume)
            self._set_labels(results[0], half)
        elif name in _REDUCTIONS:
            for tensor in labelled:
                self._record(self._labels[id(tensor)][1], WeightUse.reduce)
        elif name.strip("_") in _CONTRACTIONS:
            for tensor in labelled:
                self._consume(tensor)
        else:
            self._follow_elementwise(name, args, labelled, results)

    def _follow_elementwise(
        self, name: str, args: Any, labelled: list[Tensor], results: list[Tensor]
    ) -> None:
        first, *others = labelled
        fits = bool(results) and all(_covers(x, first.shape) for x in results)
        if not fits:
            for tensor in labelled:
                self._consume(tensor)
            return
        labels = self._labels[id(first)][1]
        is_sum = name.strip("_").strip("ri") in ("add", "sub")
        if is_sum:
            full = [x for x in _tensors(args) if x.shape == first.shape]
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
        found = [_distinct(self._labels[id(x)][1]) for x in (first, *others)] if others else []
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
            whole.fill_(_NO_LABEL)
            self._set_labels(base, whole)
            labels = whole.as_strided(target.shape, target.stride(), target.storage_offset())
            labels.copy_(known)
            self._set_labels(target, labels)
        values = self._label_arg(value) if isinstance(value, Tensor) else _NO_LABEL
        labels[... if name == "copy_" else args[1]] = values

    def _label_arg(self, x: Any) -> Any:
        """Return an argument of a structural function for labels: floating tensors become labels."""
        if not isinstance(x, Tensor):
            return x
        if (labels := self._labels_of(x)) is not None:
            return labels
        if x.is_floating_point() or x.is_complex():
            return torch.full(x.shape, _NO_LABEL)
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
        found = _distinct(labels)
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


def _distinct(labels: Tensor) -> Any:
    """Return the different labels in a tensor, sorted."""
    # A dimension of stride 0 repeats the same labels.
    labels = labels[tuple(slice(None) if stride else slice(1) for stride in labels.stride())]
    found = labels.reshape(-1).numpy()
    found = found[found > 0]
    lowest = found.min() if found.size else 0
    flags = np.zeros(found.max() - lowest + 1 if found.size else 0, bool)
    flags[found - lowest] = True
    return np.flatnonzero(flags) + lowest


def _tensors(value: Any) -> list[Tensor]:
    """Return the tensors in a value and in the containers in it."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, tuple | list):
        return [tensor for element in value for tensor in _tensors(element)]
    return []


def _mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    """Return a value with a function applied to all that is not a container."""
    if type(value) in (tuple, list):
        return type(value)(_mapped(element, function) for element in value)
    if type(value) is dict:
        return {key: _mapped(element, function) for key, element in value.items()}
    return function(value)


def _on_cpu(value: Any, use_of: Callable[[Tensor], WeightUse | None]) -> Any:
    """Return arguments with zeros or copies in place of tensors of other devices."""

    def move(x: Any) -> Any:
        if isinstance(x, torch.device):
            return torch.device("cpu")
        if not isinstance(x, Tensor) or x.device.type == "cpu" or use_of(x) is not None:
            return x
        return torch.zeros(x.shape, dtype=x.dtype) if x.is_meta else x.cpu()

    return _mapped(value, move)


def _meta_of(x: Any) -> Any:
    return torch.empty_like(x, device="meta") if isinstance(x, Tensor) and not x.is_meta else x


def _all_views(result: Any, use_of: Callable[[Tensor], WeightUse | None]) -> bool:
    views = _tensors(result)
    return bool(views) and all(use_of(view) is not None for view in views)


def _covers(result: Tensor, shape: Sequence[int]) -> bool:
    """Return True if the shape of a result is that of an argument, broadcast."""
    sizes = result.shape[result.dim() - len(shape) :]
    return result.dim() >= len(shape) and all(
        size in (1, full) for size, full in zip(shape, sizes, strict=True)
    )


def _selected(name: str, args: tuple[Any, ...], weight: Tensor) -> Tensor | None:
    """Return matrices that a tensor of indices selects, as a view that repeats the first one."""
    index = None
    if name == "__getitem__":
        index = args[1][0] if isinstance(args[1], tuple) and len(args[1]) == 1 else args[1]
    elif name == "index_select" and args[1] == 0:
        index = args[2]
    if not isinstance(index, Tensor) or index.dtype == torch.bool or weight.dim() < 3:
        return None
    shape = (*index.shape, *weight.shape[1:])
    strides = ((0,) * index.dim(), weight.stride()[1:])
    return weight.as_strided(shape, (*strides[0], *strides[1]), weight.storage_offset())


def _positional(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments with input and weight by position."""
    kwargs = dict(kwargs)
    for place, names in enumerate((("input",), ("weight", "other", "mat2"))):
        keyword = next((x for x in names if x in kwargs), None)
        if keyword and len(args) == place and name.strip("_") in _CONTRACTIONS:
            args = (*args, kwargs.pop(keyword))
    return args, kwargs


def _operands(name: str, args: tuple[Any, ...]) -> list[Any]:
    if name == "einsum":
        return [*args[1]] if isinstance(args[1], tuple | list) else [*args[1:]]
    return [*args]


def _halves(
    func: Callable[..., Any], source: Tensor, labels: Tensor, args: Any, kwargs: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    del func, source
    axis = args[1] if len(args) > 1 else kwargs.get("dim", -1)
    first, second = labels.chunk(2, axis)
    return second, first
