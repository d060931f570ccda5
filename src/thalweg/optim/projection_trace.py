"""Trace of a forward pass: integers, called labels, follow each output (row) of each weight.

An *output* of a weight is a row of it, or a column of a transposed weight. A *label* is an integer
that identifies an output of a weight. Each product of a weight and activations has an integer
tensor of labels, one per element.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from thalweg.optim import traced_functions as traced
from thalweg.optim.traced_functions import covers, mapped, tensors_in
from thalweg.optim.weight_use import WeightUse

_LARGEST_COPY = 2**22


class ProjectionTrace(TorchFunctionMode):
    """Torch function mode in which a model runs on the CPU with stand-ins for its weights.

    Weights are meta tensors, which have shapes and strides but no memory. Their products with
    activations are zeros. Each element of a product has the label of an output of the weight.
    Views, copies and elementwise functions pass labels on.

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
        """Run a torch function and record how it uses weights and labelled tensors.

        Return its result, except for a function of weights; see `_call_with_weight`.
        """
        del types
        name = getattr(func, "__name__", "")
        if name in ("__get__", "__set__"):
            name = getattr(getattr(func, "__self__", None), "__name__", "")
            # Models that create tensors on the device of a weight get tensors with values.
            if name in ("device", "is_meta"):
                return torch.device("cpu") if name == "device" else False
        args = mapped(args, self._move_to_cpu)
        options = mapped(dict(kwargs or {}), self._move_to_cpu)
        for weight in tensors_in((args, options)):
            if self._use_of(weight) is not None:
                return self._call_with_weight(func, name, args, options, weight)
        output = func(*args, **options)
        # An error here only leaves outputs without labels, and so a layout undecided.
        with suppress(Exception):
            self._trace_labels(func, name, args, options, output)
        return output

    def mark_returned(self, output: Any, *, of_model: bool) -> None:
        """Record the outputs that the result of the model, or of a layer, contains."""
        for tensor in tensors_in(output):
            for use, outputs in self._outputs_in(tensor):
                use.is_returned |= of_model
                if not of_model:
                    use.consume(outputs)

    def _use_of(self, tensor: Tensor) -> WeightUse | None:
        """Return the record of the weight that a tensor is, or is a view of; else None."""
        if not tensor.is_meta:
            return None
        place = self._places.get(id(tensor if tensor._base is None else tensor._base))
        return None if place is None else self.uses[place]

    def _call_with_weight(
        self,
        func: Callable[..., Any],
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        weight: Tensor,
    ) -> Any:
        """Call a function that takes a weight, or a view of a weight, and record the use.

        Return the weight or a view of it for functions that return views. For a product with
        activations, return labelled zeros. For any other function, run it with zeros in place of
        weights.

        Args:
            weight: The first weight in the arguments.
        """
        if args and args[0] is weight:
            # Functions that write to a weight return it.
            if name in traced.IDENTITIES or (name.endswith("_") and not name.startswith("__")):
                return weight
            if (view := traced.selected_matrices(name, args, weight)) is not None:
                return view
            is_query = name in traced.QUERIES
            output = func(*args, **kwargs) if is_query or name in traced.STRUCTURAL else None
            views = tensors_in(output)
            if is_query or (views and all(self._use_of(view) is not None for view in views)):
                return output
        args, kwargs = traced.positional(name, args, kwargs)
        operands = traced.operands_of(name, args)
        factors = operands[1:3] if name.strip("_") in traced.ADDED_PRODUCTS else operands[:2]
        weights = [factor for factor in tensors_in(factors) if self._use_of(factor) is not None]
        activations = [factor for factor in tensors_in(factors) if self._use_of(factor) is None]
        if name == "__rmatmul__":
            name, factors = "__matmul__", factors[::-1]
        if len(weights) == 1 == len(activations):
            weight_index = 0 if factors[0] is weights[0] else 1
            roles = traced.product_roles(name, args, factors, weight_index)
            if roles is not None:
                for operand in tensors_in(operands):
                    if operand is not weights[0] and (use := self._use_of(operand)) is not None:
                        use.is_elementwise = True
                shape = traced.product_shape(func, name, args, kwargs, factors)
                return self._product(name, weights[0], activations[0], shape, roles)
        return self._with_copies(func, name, args, kwargs)

    def _product(
        self,
        name: str,
        weight: Tensor,
        activations: Tensor,
        shape: tuple[int, ...],
        roles: tuple[str, list[int | None]],
    ) -> Tensor:
        """Return labelled zeros as the product of a weight and activations; record the product.

        Args:
            roles: (letters, indices): the roles of the weight's dimensions; see `product_roles`.
        """
        use = cast("WeightUse", self._use_of(weight))
        product = torch.zeros(shape, dtype=activations.dtype, device="cpu")
        if name.startswith("conv") and activations.shape[1 - weight.dim()] != weight.shape[1]:
            use.is_grouped = True
            self._pass_channels(activations, product)
            return product
        self._consume(activations)
        self._label_product(product, use, use.add_product(weight, roles[0]), roles)
        return product

    def _label_product(
        self, product: Tensor, use: WeightUse, outputs: Any, roles: tuple[str, list[int | None]]
    ) -> None:
        """Label each element of a product with its output of the weight.

        Args:
            use: The record of the weight. Its first product sets `first_label`.
            outputs: The output index of each element of the weight; see `WeightUse.add_product`.
            roles: The roles of the weight's dimensions; see `product_roles`.
        """
        if not use.first_label:
            use.first_label = self._label_count + 1
            self._label_starts.append(use.first_label)
            self._labelled_uses.append(use)
            self._label_count += use.output_count
        labels = torch.from_numpy(np.ascontiguousarray(outputs)) + use.first_label  # pyright: ignore[reportUnknownMemberType]
        if labels.dim() != len(roles[0]):
            return
        sizes = [1] * product.dim()
        axes: list[tuple[int, int]] = []
        for axis, (role, place) in enumerate(zip(*roles, strict=True)):
            if role == "i" or place is None:
                labels = labels.narrow(axis, 0, 1)
            else:
                axes.append((place % product.dim(), axis))
                sizes[place % product.dim()] = labels.shape[axis]
        # Axes move to their places in the product; all other dimensions of it are broadcast.
        order = [axis for _, axis in sorted(axes)]
        order += [axis for axis in range(labels.dim()) if axis not in order]
        self._set_labels(product, labels.permute(order).reshape(sizes).expand(product.shape))

    def _with_copies(
        self, func: Callable[..., Any], name: str, args: Any, kwargs: dict[str, Any]
    ) -> Any:
        """Run a function that is not a product, with zeros in place of weights; record the use."""
        weights = [arg for arg in tensors_in((args, kwargs)) if self._use_of(arg) is not None]
        args, kwargs = (mapped(container, self._zeros_of) for container in (args, kwargs))
        output = func(*args, **kwargs)
        for weight in weights:
            use = cast("WeightUse", self._use_of(weight))
            if name in traced.LOOK_UPS:
                use.is_lookup_table = True
            elif not all(covers(tensor, weight.shape) for tensor in tensors_in(output)):
                use.other_uses.append(name)
            else:
                use.is_elementwise = True
        with suppress(Exception):
            self._trace_labels(func, name, args, kwargs, output)
        return output

    def _move_to_cpu(self, arg: Any) -> Any:
        """Return the CPU for a device, a CPU copy of a tensor, and zeros for one on "meta".

        Weights and all other arguments are returned unchanged.
        """
        if isinstance(arg, torch.device):
            return torch.device("cpu")
        if not isinstance(arg, Tensor) or arg.device.type == "cpu" or self._use_of(arg) is not None:
            return arg
        return torch.zeros(arg.shape, dtype=arg.dtype, device="cpu") if arg.is_meta else arg.cpu()

    def _zeros_of(self, argument: Any) -> Any:
        """Return CPU zeros in place of a weight; other arguments unchanged."""
        if not isinstance(argument, Tensor) or self._use_of(argument) is None:
            return argument
        # An expanded zero takes no memory, but functions may not write to it.
        if argument.numel() > _LARGEST_COPY:
            return torch.zeros((), dtype=argument.dtype, device="cpu").expand(argument.shape)
        return torch.zeros(argument.shape, dtype=argument.dtype, device="cpu")

    def _pass_channels(self, source: Tensor, output: Tensor) -> None:
        """Give each channel of a depthwise convolution's result the label of its input channel.

        If the numbers of channels differ, record that all outputs are used together instead.
        """
        labels = self._labels_of(source)
        axis = 1 if source.dim() == output.dim() == 3 or source.dim() > 3 else 0
        if labels is None or source.shape[axis] != output.shape[axis]:
            self._consume(source)
            return
        for spatial in range(axis + 1, labels.dim()):
            labels = labels.amax(spatial, keepdim=True)
        self._set_labels(output, labels.expand(output.shape))

    def _trace_labels(
        self, func: Callable[..., Any], name: str, args: Any, kwargs: dict[str, Any], output: Any
    ) -> None:
        """Label the result of a function whose elements come from single outputs of weights.

        For other functions, record the use of outputs. Do nothing without a labelled argument.
        """
        labelled = [arg for arg in tensors_in((args, kwargs)) if id(arg) in self._labels]
        results = tensors_in(output)
        if not labelled or not (results or name == "__setitem__"):
            return
        if name in ("__setitem__", "copy_"):
            self._assign(name, args)
        elif name in ("view_as_complex", "view_as_real"):
            # Labels of complex numbers have a dimension for real and imaginary part.
            self._set_labels(results[0], self._labels[id(labelled[0])][1])
        elif name in traced.STRUCTURAL:
            self._follow_structural(func, name, args, kwargs, results)
        elif name == "glu":
            self._follow_glu(
                labelled[0], args[1] if len(args) > 1 else kwargs.get("dim", -1), output
            )
        elif name in traced.SELECTIONS or name in traced.REDUCTIONS:
            # `keepdim` is a bool, which is an int, too.
            dims = [x for x in (*args[1:], *kwargs.values()) if type(x) is int]
            self._mark_uses(name, labelled, dims[0] if dims and name in traced.MAXIMA else None)
        elif name.startswith("conv") and args[0] is labelled[0] and args[1].shape[1] == 1:
            self._pass_channels(args[0], output)
        elif name.strip("_") in traced.CONTRACTIONS:
            self._consume(*labelled)
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
        """Label `results` of a function that only moves elements, such as `transpose`.

        The labels are the result of the function on the labels of its arguments.
        """
        # Labels may have other strides than their tensor, so that `view` could raise.
        func = Tensor.reshape if name == "view" else func
        # The indices depend on data, so that any output may be gathered.
        if name in ("gather", "take_along_dim"):
            self._consume(args[0])
        moved_labels = func(*mapped(args, self._label_arg), **mapped(kwargs, self._label_arg))
        for tensor, labels in zip(results, tensors_in(moved_labels), strict=True):
            self._set_labels(tensor, labels)

    def _follow_glu(self, source: Tensor, axis: int, output: Tensor) -> None:
        """Record separate uses of the halves of a gated linear unit's input; label its result."""
        halves = self._labels[id(source)][1].chunk(2, axis)
        for half in halves:
            self._record(half, WeightUse.consume)
        self._set_labels(output, halves[0])

    def _mark_uses(self, name: str, labelled: Sequence[Tensor], max_dim: int | None) -> None:
        """Record that a function reduces the outputs in `labelled`, or selects some of them.

        A maximum along dimension `max_dim` is a selection if it is over all outputs of a weight.
        """
        for tensor in labelled:
            labels, uses = self._labels[id(tensor)][1], self._outputs_in(tensor)
            selects = name in traced.SELECTIONS
            if max_dim is not None:
                ends, size = [labels.select(max_dim, i) for i in (0, -1)], labels.shape[max_dim]
                selects = not torch.equal(*ends) and all(x.output_count == size for x, _ in uses)
            if selects:
                for use, _ in uses:
                    use.selects = True
            else:
                self._record(labels, WeightUse.reduce)

    def _follow_elementwise(
        self, name: str, args: Any, labelled: list[Tensor], results: list[Tensor]
    ) -> None:
        """Give the results of an elementwise function the labels of its first labelled argument.

        If arguments have different outputs, or if the result has another shape, record that the
        function uses the outputs together.
        """
        first, *other_tensors = labelled
        fits = bool(results) and all(covers(output, first.shape) for output in results)
        if not fits:
            self._consume(*labelled)
            return
        labels = self._labels[id(first)][1]
        is_sum = name.strip("_").strip("ri") in ("add", "sub")
        if is_sum:
            full = [argument for argument in tensors_in(args) if argument.shape == first.shape]
            for use, _ in self._outputs_in(first) if len(full) > 1 else ():
                use.joins_residual = True
        if not (is_sum and self._join_sum(first, other_tensors)) and not self._have_same_outputs(
            first, other_tensors
        ):
            self._consume(*labelled)
            uses = [{id(use) for use, _ in self._outputs_in(source)} for source in labelled]
            if any(use_ids != uses[0] for use_ids in uses):
                # A product of outputs of two weights, as in a gate, has outputs of neither.
                self._labels.pop(id(results[0]), None)
                return
        for tensor in results:
            extra = (2,) if tensor.is_complex() and labels.dim() > tensor.dim() else ()
            if labels.dim() == first.dim() or extra:
                self._set_labels(tensor, labels.expand(*tensor.shape, *extra))

    def _have_same_outputs(self, first: Tensor, other_tensors: Sequence[Tensor]) -> bool:
        """Return True if all tensors have the same outputs, in any order."""
        if not other_tensors:
            return True
        tensors = (first, *other_tensors)
        label_sets = [traced.distinct_labels(self._labels[id(tensor)][1]) for tensor in tensors]
        return all(np.array_equal(label_set, label_sets[0]) for label_set in label_sets)

    def _join_sum(self, first: Tensor, other_tensors: Sequence[Tensor]) -> bool:
        """Join the records of two weights whose outputs are added, as in LoRA; return True.

        The sum must have two labelled terms, with equal output indices in equal elements. For any
        other sum, change nothing and return False.
        """
        if len(other_tensors) != 1 or other_tensors[0].shape != first.shape:
            return False
        label_pair = [self._labels[id(tensor)][1] for tensor in (first, other_tensors[0])]
        (use, *more_uses), (other_use, *more_other_uses) = (
            self._outputs_in(tensor) for tensor in (first, other_tensors[0])
        )
        if more_uses or more_other_uses or use[0] is other_use[0]:
            return False
        first_outputs, second_outputs = (
            labels - entry[0].first_label
            for labels, entry in zip(label_pair, (use, other_use), strict=True)
        )
        if use[0].output_count != other_use[0].output_count or not torch.equal(
            first_outputs, second_outputs
        ):
            return False
        other_use[0].join(use[0])
        other_use[0].reduce(other_use[1])
        return True

    def _assign(self, name: str, args: Any) -> None:
        """Copy labels from source to target, for `copy_` or an indexed assignment.

        If the target has no labels, first create labels for its base tensor. The target's labels
        are a view of the base tensor's labels.
        """
        target, source = args[0], args[-1]
        labels = self._labels_of(target)
        if labels is None or any(stride == 0 for stride in labels.stride()):
            base = target if target._base is None else target._base
            former_labels = self._label_arg(target)
            # The strides of the base make `as_strided` select the labels of the view's elements.
            base_labels = torch.empty_strided(
                base.shape, base.stride(), dtype=torch.int64, device="cpu"
            )
            base_labels.fill_(traced.NO_LABEL)
            self._set_labels(base, base_labels)
            labels = base_labels.as_strided(target.shape, target.stride(), target.storage_offset())
            labels.copy_(former_labels)
            self._set_labels(target, labels)
        values = self._label_arg(source) if isinstance(source, Tensor) else traced.NO_LABEL
        labels[... if name == "copy_" else args[1]] = values

    def _label_arg(self, argument: Any) -> Any:
        """Return an argument of a structural function with labels in place of floating tensors."""
        if not isinstance(argument, Tensor):
            return argument
        if (labels := self._labels_of(argument)) is not None:
            return labels
        if argument.is_floating_point() or argument.is_complex():
            return torch.full(argument.shape, traced.NO_LABEL, dtype=torch.int64, device="cpu")
        return argument

    def _labels_of(self, tensor: Tensor) -> Tensor | None:
        """Return the labels of a tensor, or None."""
        entry = self._labels.get(id(tensor))
        return None if entry is None else entry[1]

    def _set_labels(self, tensor: Tensor, labels: Tensor) -> None:
        """Set the labels of a tensor."""
        self._labels[id(tensor)] = (tensor, labels)

    def _outputs_in(self, tensor: Tensor) -> list[tuple[WeightUse, Any]]:
        """Return (weight record, output indices) of all outputs in a tensor."""
        labels = self._labels_of(tensor)
        return [] if labels is None else self._split(labels)

    def _split(self, labels: Tensor) -> list[tuple[WeightUse, Any]]:
        """Return (weight record, output indices) for labels."""
        output_labels = traced.distinct_labels(labels)
        # The starts ascend: a label belongs to the last weight that starts at or before it.
        owners = cast("Any", np.searchsorted(self._label_starts, output_labels, side="right")) - 1
        uses: list[tuple[WeightUse, Any]] = []
        for owner in cast("list[int]", np.unique(owners).tolist()):
            use = self._labelled_uses[owner]
            uses.append((use, output_labels[owners == owner] - use.first_label))
        return uses

    def _consume(self, *tensors: Tensor) -> None:
        """Record for each tensor that a function uses all outputs in it together."""
        for tensor in tensors:
            if (labels := self._labels_of(tensor)) is not None:
                self._record(labels, WeightUse.consume)

    def _record(self, labels: Tensor, method: Callable[[WeightUse, Any], None]) -> None:
        """Call `method(record, output indices)` for each weight with these labels."""
        for use, outputs in self._split(labels):
            method(use, outputs)
