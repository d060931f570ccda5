"""Static shapes and dtypes, found by *trials*: calls on meta tensors with invented unknown sizes.

A meta tensor has a shape and a dtype but no memory. Sizes of the result that differ between trials
are unknown. Trials also find the paths of gradients.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from thalweg._base.context_managers import enable_grad
from thalweg._base.execution_context import eagerly
from thalweg._base.static_shape import UNKNOWN
from thalweg._core.nest import leaves_of, mapped, packed
from thalweg._graph.arguments import Reference
from thalweg._graph.nodes import SymbolicTensor
from thalweg._graph.shape_mismatch import Failure, common_sizes, describe_misfit
from thalweg.autodiff import variables_of
from thalweg.errors import InvalidArgumentError, InvalidTypeError

# Two that most functions accept: divisible by small numbers, and unlike the sizes of real layers.
_SIZES = (840, 1320)
# A slice such as x[:100] of an unknown dimension may be shorter than 100.
_SMALL = 1
# Ranks of the trials with inputs of unknown rank.
_RANKS = (2, 1, 0, 3, 4)

# `_run_trial` of one call: its arguments are `size`, `rank` and `watch`.
Trial = Callable[..., object]


@dataclass(frozen=True)
class Output:
    """Description of one output of an operation before it runs.

    Attributes:
        dtype: A torch dtype, or None.
        shape: Sizes, with None for an unknown size. None if the rank is unknown.
        flows: The inputs that a gradient of this output reaches; None stands for all.
    """

    dtype: torch.dtype | None = None
    shape: Sequence[int | None] | None = None
    flows: tuple[SymbolicTensor, ...] | None = None

    def __post_init__(self) -> None:
        if self.shape is UNKNOWN:
            object.__setattr__(self, "shape", None)


def infer_outputs(function: Callable[..., object], arguments: Sequence[object], name: str) -> Any:
    """Return the result of `function(*arguments)` with an `Output` in place of each tensor.

    The function runs on meta tensors. If the function needs the values of elements, return a single
    `Output` of unknown shape.

    Raises:
        InvalidArgumentError: The known sizes do not fit together.
        InvalidTypeError: A part of the result that is not a tensor depends on unknown sizes.
        TypeError: The function does not accept the arguments.
    """
    inputs = [leaf for leaf in leaves_of(arguments) if isinstance(leaf, SymbolicTensor)]
    unknown = Output(next((x.dtype for x in inputs if x.is_differentiable()), None))
    if any(tensor.dtype is None for tensor in inputs):
        return unknown
    run_trial = partial(_run_trial, function, arguments, inputs)
    if any(tensor.shape is UNKNOWN for tensor in inputs):
        return _infer_dtypes(run_trial, inputs) or unknown
    has_full_shapes = all(None not in (tensor.shape or ()) for tensor in inputs)
    try:
        sizes = _SIZES[:1] if has_full_shapes else _SIZES
        results = [run_trial(size) for size in sizes]
    except Exception as error:
        if _needs_data(error):
            return unknown
        if isinstance(error, TypeError):
            raise
        reason = str(error) if has_full_shapes else _describe_misfit(run_trial)
        if not reason:
            return _infer_broadcast(run_trial, inputs, name) or unknown
        raise InvalidArgumentError(f"{name}: {reason} {_describe_inputs(arguments)}") from error
    merged = _merge_trials(results, name)
    return merged if has_full_shapes else _refine_by_small_trial(merged, run_trial)


def _needs_data(error: Exception) -> bool:
    """Return True if an error probably means that a function needs element values."""
    # torch's errors about data that meta tensors lack contain the word.
    if "meta" in str(error) or isinstance(error, NotImplementedError):
        return True
    return not isinstance(error, (TypeError, RuntimeError, IndexError, ValueError))


def _refine_by_small_trial(merged: object, run_trial: Trial) -> object:
    """Return `merged` with None for sizes that differ in a trial with small inputs.

    `merged` is the merged result of larger trials. Return it unchanged if the small trial fails.
    """
    # Some functions do not accept inputs this small.
    try:
        small = list(leaves_of(run_trial(_SMALL)))
    except Exception:
        return merged
    large = list(leaves_of(merged))
    if len(large) != len(small):
        return merged
    return packed(merged, map(_without_unequal_sizes, large, small))


def _infer_broadcast(run_trial: Trial, inputs: Sequence[SymbolicTensor], name: str) -> object:
    """Return the common outputs of trials whose unknown sizes are 1 or a known size of an input.

    With these sizes inputs may broadcast. Return None if all trials fail, or if a result contains
    other objects than tensors.
    """
    results: dict[int, object] = {}
    for size in _known_sizes(inputs):
        try:
            trial = run_trial(size)
        # The function does not accept this size.
        except Exception:
            continue
        if not all(isinstance(leaf, Output) for leaf in leaves_of(trial)):
            return None
        results[size] = trial
    if not results:
        return None
    (first_size, merged), *others = results.items()
    # After one trial, a size equal to the invented number may come from there.
    if not others:
        return mapped(lambda leaf: _without_size(leaf, first_size), merged)
    if len({len(list(leaves_of(result))) for result in results.values()}) > 1:
        return None
    for _, trial_outputs in others:
        merged = _merge_trials([merged, trial_outputs], name)
    return merged


def _known_sizes(inputs: Sequence[SymbolicTensor]) -> list[int]:
    """Return the known sizes of all inputs and the small trial size, ascending."""
    sizes = {size for tensor in inputs for size in tensor.shape or () if size is not None}
    return sorted(sizes | {_SMALL})


def _without_size(output: Output, size: int) -> Output:
    """Return a description in which every dimension of this size is unknown."""
    shape = None if output.shape is None else tuple(None if n == size else n for n in output.shape)
    return Output(output.dtype, shape, output.flows)


def _without_unequal_sizes(output: object, trial: object) -> object:
    """Return a description without the sizes that differ in a trial."""
    if not (isinstance(output, Output) and isinstance(trial, Output)):
        return output
    shape = common_sizes([output.shape, trial.shape])
    return output if shape is None else Output(output.dtype, shape, output.flows)


def _run_trial(
    function: Callable[..., object],
    arguments: Sequence[object],
    inputs: Sequence[SymbolicTensor],
    size: int,
    rank: int = 0,
    watch: contextlib.AbstractContextManager[object] | None = None,
) -> object:
    """Call `function` on meta tensors; return the result with an `Output` in place of each tensor.

    `size` and `rank` replace unknown sizes and ranks. `watch` is a context manager for the call.
    """
    trials = {tensor: _meta_tensor(tensor, size, rank) for tensor in inputs}

    def trial_value(leaf: object) -> object:
        """Return the meta tensor for an argument."""
        if isinstance(leaf, SymbolicTensor):
            # torch forbids in-place writes to leaves that require gradients; a clone is no leaf.
            return trials[leaf].clone()
        if isinstance(leaf, Reference):
            return _meta_tensor(leaf.symbol, size, rank).detach()
        return torch.empty_like(leaf, device="meta") if isinstance(leaf, torch.Tensor) else leaf

    # autograd must record the call, since its graph tells the inputs that gradients reach.
    watching = contextlib.nullcontext() if watch is None else watch
    with eagerly(), torch.device("meta"), enable_grad(), watching:
        result = function(*mapped(trial_value, arguments))
    symbols = {id(value): tensor for tensor, value in trials.items()}
    return mapped(lambda leaf: _output_of(leaf, symbols), result)


def _describe_misfit(run_trial: Trial) -> str:
    """Return why the known shapes contradict each other, or "" if the reason is unknown."""
    calls = []
    for size in (*_SIZES, _SMALL):
        watch = Failure()
        try:
            run_trial(size, watch=watch)
        except Exception as error:
            if watch.call is None or error is not watch.error:
                return ""
            calls.append(watch.call)
        else:
            return ""
    return describe_misfit(calls)


def _describe_inputs(arguments: Sequence[object]) -> str:
    """Return a sentence about the tensors among the arguments and their shapes."""
    leaves = [x.symbol if isinstance(x, Reference) else x for x in leaves_of(arguments)]
    tensors = [x for x in leaves if isinstance(x, SymbolicTensor | torch.Tensor)]
    names = [f"'{x.name}'" if isinstance(x, SymbolicTensor) else "a constant" for x in tensors]
    shapes = [str(tuple(x.shape or ())) for x in tensors]
    return f"The inputs {', '.join(names)} have the shapes {', '.join(shapes)}."


def _meta_tensor(tensor: SymbolicTensor, size: int, rank: int) -> torch.Tensor:
    """Return a meta tensor with `size` for each unknown size of a symbolic tensor."""
    shape = (None,) * rank if tensor.shape is UNKNOWN else tensor.shape
    sizes = [size if static_size is None else static_size for static_size in shape]
    requires_grad = tensor.is_differentiable()
    return torch.empty(sizes, dtype=tensor.dtype, device="meta", requires_grad=requires_grad)


def _output_of(leaf: object, symbols: dict[int, SymbolicTensor]) -> object:
    """Return the description of a trial's tensor; other leaves unchanged."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    sources = variables_of(leaf) if leaf.requires_grad else []
    flows = tuple(symbols[id(x)] for x in sources if id(x) in symbols)
    return Output(leaf.dtype, tuple(leaf.shape), flows)


def _merge_trials(results: Sequence[object], name: str) -> object:
    """Return the merged outputs of one or two trials; see `_merge_outputs`."""
    pairs = zip(*(leaves_of(result) for result in results), strict=True)
    return packed(results[0], (_merge_outputs(pair[0], pair[-1], name) for pair in pairs))


def _merge_outputs(first: object, trial: object, name: str) -> object:
    """Return the common `Output` of two trials; sizes that differ are None.

    If `first` is not an `Output`, return `first`, or raise InvalidTypeError if `trial` differs.
    """
    if not isinstance(first, Output):
        if first is not trial and first != trial:
            raise InvalidTypeError(f"{name} gives {first!r} or {trial!r}: only a run knows which.")
        return first
    shapes = [first.shape, trial.shape if isinstance(trial, Output) else None]
    return Output(first.dtype, common_sizes(shapes), first.flows)


def _infer_dtypes(run_trial: Trial, inputs: Sequence[SymbolicTensor]) -> object:
    """Return outputs with dtypes but unknown shapes, for inputs of unknown rank.

    Trials assume several ranks. A shape is () if at least three trials succeed and all return ().
    Return None if all trials fail, or if a result contains other objects than tensors.
    """
    results = []
    for size in (_SIZES[0], *_known_sizes(inputs)):
        for rank in _RANKS:
            try:
                results.append(run_trial(size, rank))
            # The function does not accept this rank, or the size.
            except Exception:
                continue
        if results:
            break
    if not results or not all(isinstance(leaf, Output) for leaf in leaves_of(results[0])):
        return None
    outputs = [list(leaves_of(result)) for result in results]
    valid_results = [leaves for leaves in outputs if len(leaves) == len(outputs[0])]
    merged = []
    columns: Any = zip(*valid_results, strict=True)
    for column in columns:
        is_scalar = len(column) > 2 and all(output.shape == () for output in column)
        merged.append(Output(column[0].dtype, () if is_scalar else None, column[0].flows))
    return packed(results[0], iter(merged))
