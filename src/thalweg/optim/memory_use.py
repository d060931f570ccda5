"""Bytes of the tensors of a training, computed before its first step."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from thalweg._base.showing import show_value
from thalweg._core.dtensor import any_on_mesh, beside, local
from thalweg._core.options.accumulation import SUM, Accumulation
from thalweg._core.options.master_weights import Offload
from thalweg._core.param_groups import Group, Params, params_of
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.optim.class_lookup import kind_of
from thalweg.optim.fused_optimizer import FusedOptimizer
from thalweg.optim.param_scalars import CPU
from thalweg.optim.param_state import ParamState
from thalweg.optim.rule_optimizer import RuleOptimizer
from thalweg.optim.step_options import OPTIONS, StepOptions
from thalweg.optim.text_table import format_table
from thalweg.variable import REDUCED, dtype_name

# Options that are reported, but not applied.
_EXCLUDED = tuple(field.name for kind in OPTIONS if kind.has_resources for field in kind.keywords())


@dataclass(frozen=True)
class MemoryRow:
    """Total bytes of the tensors of a training with equal name, dtype and device.

    Attributes:
        name: "weights", "gradients"; for the state, the key of the entry, such as "exp_avg"; or
            "copies" for the parameters and states that `spikes` keeps.
        dtype: The dtype; torch.uint8 for encoded slots, including scales.
        device: The device type: "cpu", "cuda", or "meta" for parameters without memory.
        nbytes: The bytes of all tensors.
    """

    name: str
    dtype: torch.dtype
    device: str
    nbytes: int


@dataclass(frozen=True)
class MemoryUse:
    """Result of `memory`; printing shows a table.

    Attributes:
        title: Name of the optimizer's class, with the options that are on.
        parameters: Number of elements of all parameters; for DTensors, of this rank's parts.
        rows: Bytes of the weights, of the gradients and of each entry of the state.
        is_part: True if a parameter is a DTensor: then all numbers are this rank's.
    """

    title: str
    parameters: int
    rows: tuple[MemoryRow, ...]
    is_part: bool = False

    def __getitem__(self, name: str) -> int:
        """Return the bytes of all rows with a name."""
        return sum(row.nbytes for row in self.rows if row.name == name)

    @property
    def total(self) -> int:
        """Bytes of all rows."""
        return sum(row.nbytes for row in self.rows)

    def on(self, device: str) -> int:
        """Return the bytes on devices of a type."""
        return sum(row.nbytes for row in self.rows if row.device == device)

    @property
    def per_parameter(self) -> float:
        """Bytes of all rows for each element of the parameters."""
        return self.total / max(self.parameters, 1)

    def __str__(self) -> str:
        """Return a table with a line for each row, and the total of each device."""
        cells = [("", "dtype", "device", "bytes", "per parameter")]
        for row in self.rows:
            cells.append(
                (row.name, dtype_name(row.dtype), row.device, *self._format_bytes(row.nbytes))
            )
        for device in dict.fromkeys(row.device for row in self.rows):
            cells.append(("total", "", device, *self._format_bytes(self.on(device))))
        head = f"{self.title}: {self.parameters:,} parameters{' here' * self.is_part}"
        return f"{head}\n{format_table(cells, right_aligned=(3, 4))}"

    def _format_bytes(self, nbytes: int) -> tuple[str, str]:
        """Return the bytes and the bytes per parameter as text."""
        return f"{nbytes:,}", f"{nbytes / max(self.parameters, 1):.3f}"


def memory(
    params: nn.Module | FusedOptimizer | Params, rule: object = None, /, **options: Any
) -> MemoryUse:
    """Return the bytes of weights, gradients, optimizer state and copies in a training.

    The bytes are those after the first step, and are not allocated. Activations and temporary
    buffers are not counted. Parameters may be on the device "meta". Nothing is changed.

    Args:
        params: A module; parameters or groups, as for an optimizer's constructor; or an optimizer
            of `thalweg.optim`, without `rule` and options. Parameters of a module that need no
            gradient count as weights only.
        rule: The class of `thalweg.optim`, its name, or a `thalweg.Rule`.
        **options: Arguments of the class.

    Raises:
        InvalidTypeError: `rule` is not a class of `thalweg.optim`, a name or a rule. Or `params` is
            an optimizer of another package.
        InvalidArgumentError: No class has the name `rule`. Or `params` is an optimizer, and `rule`
            or an option is set, too.
        TypeError, ValueError: The constructor of the class rejects an argument.

    Example:
        >>> import torch
        >>> from thalweg import optim
        >>> model = torch.nn.Linear(80, 80, device="meta", dtype=torch.bfloat16)
        >>> print(optim.memory(model, optim.AdamW, weights="split", state_storage="8bit"))
        AdamW(state_storage='8bit', weights='split'): 6,480 parameters
                       dtype     device   bytes  per parameter
        weights        bfloat16  meta    12,960          2.000
        gradients      bfloat16  meta    12,960          2.000
        correction     uint8     meta     6,480          1.000
        encoded_shape  int64     meta        24          0.004
        exp_avg        float32   meta       320          0.049
        exp_avg        uint8     meta     7,200          1.111
        exp_avg_sq     float32   meta       320          0.049
        exp_avg_sq     uint8     meta     7,200          1.111
        step           float32   cpu          8          0.001
        total                    meta    47,464          7.325
        total                    cpu          8          0.001
    """
    twins = _Twins()
    if isinstance(params, FusedOptimizer):
        if rule is not None or options:
            extra = "rule" if rule is not None else next(iter(options))
            raise InvalidArgumentError(
                f"memory() of an optimizer reads its rule and options: leave out {extra}."
            )
        optimizer, step_options = _copy_on_meta(params, twins), params.step_options
        return _use_of(optimizer, step_options, twins.originals, twins)
    kind = _optimizer_class(params, rule)
    # Hooks, files and device copies of these would outlive the call.
    class_options = {name: option for name, option in options.items() if name not in _EXCLUDED}
    weights: Sequence[Tensor] = ()
    if isinstance(params, nn.Module):
        weights = list(params.parameters())
        params = [param for param in weights if param.requires_grad]
    optimizer = kind(
        [twins.of(candidate) for candidate in cast("Iterable[Any]", params)], **class_options
    )
    excluded = {name: options[name] for name in _EXCLUDED if name in options}
    step_options = StepOptions(**{**optimizer.step_options.on, **excluded})
    return _use_of(optimizer, step_options, weights or twins.originals, twins)


def _optimizer_class(params: object, rule: object) -> Any:
    """Return the optimizer class for `rule`: a class, a name or a `Rule`.

    Raises:
        InvalidTypeError: `rule` is not a class, a name or a rule; or `params` is an optimizer.
    """
    if isinstance(params, torch.optim.Optimizer):
        raise InvalidTypeError(
            f"params is an optimizer of torch, {show_value(type(params).__name__)}: memory() is"
            " defined for optimizers of thalweg.optim, and for parameters with a rule."
        )
    is_class = isinstance(rule, type) and issubclass(rule, FusedOptimizer)
    return rule if is_class else kind_of(rule)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


class _Twins:
    """Meta tensors, called twins, with the dtypes and shapes of parameters."""

    def __init__(self) -> None:
        self._twins: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def originals(self) -> list[Tensor]:
        """Parameters that have a twin, in order."""
        return [original for original, _ in self._twins.values()]

    def of(self, argument: Any) -> Any:
        """Return the twin of a parameter; in groups and tuples, replace parameters by twins.

        Groups and tuples are copied. Any other argument is returned unchanged.
        """
        if isinstance(argument, Tensor):
            return self._twins.setdefault(id(argument), (argument, _twin_of(argument)))[1]
        if isinstance(argument, dict) and "params" in argument:
            group = cast("Group", argument)
            # As in torch, a group may have a single tensor.
            params = [group["params"]] if isinstance(group["params"], Tensor) else group["params"]
            return {**group, "params": [self.of(param) for param in params]}
        if isinstance(argument, tuple):
            return tuple(self.of(param_state) for param_state in cast("tuple[Any, ...]", argument))
        return cast("Any", argument)

    def pairs(self, params: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Return (parameter, twin) for those of `params` that have a twin."""
        return [self._twins[id(param)] for param in params if id(param) in self._twins]


def _twin_of(param: Tensor) -> Tensor:
    """Return a parameter on the device "meta"; a DTensor for a DTensor."""
    shard = torch.empty_like(local(param).detach(), device="meta")
    twin = beside(shard, param)
    # Integer tensors cannot require a gradient.
    return nn.Parameter(twin, param.requires_grad) if twin.is_floating_point() else twin


def _copy_on_meta(optimizer: Any, twins: _Twins) -> Any:
    """Return a copy of an optimizer over twins of its parameters, without state."""
    cls = cast("Any", type(optimizer))
    copy = cls.__new__(cls)
    cache = copy.step_cache
    class_options = {
        name: option for name, option in optimizer.step_options.on.items() if name not in _EXCLUDED
    }
    groups = [twins.of(group) for group in optimizer.param_groups]
    copy.__dict__.update(optimizer.__dict__, step_cache=cache, param_groups=groups)
    copy.__dict__.update(state=defaultdict(dict), step_options=StepOptions(**class_options))
    return copy


def _make_state(optimizer: Any) -> dict[Tensor, dict[str, Any]]:
    """Return the state of trainable parameters after their first step, without running the step.

    The optimizer's `ParamState` objects create it; the optimizer's own state does not change.
    """
    states_and_params: list[tuple[ParamState, list[Tensor]]] = []
    if isinstance(optimizer, RuleOptimizer):
        param_state, params, _ = cast("Any", optimizer).whole_state()
        states_and_params.append((param_state, params))
    else:
        trainable = [param for param in params_of(optimizer.param_groups) if param.requires_grad]
        gradients = {id(param): param for param in trainable}
        for rule, members in optimizer._members_by_rule(gradients).items():
            params = [param for _, param in members.pairs]
            states_and_params.append((optimizer.part_of(rule, members.places[0], {}), params))
    state: dict[Tensor, dict[str, Any]] = defaultdict(dict)
    for param_state, params in states_and_params:
        # Creates masters, at which some slots start.
        param_state.targets(state, params, False)
        param_state.make(state, params, {}, (None, CPU))
        for param in params:
            state[param].update(param_state.made_of(param))
    return state


def _use_of(
    optimizer: Any, options: StepOptions, weights: Sequence[Tensor], twins: _Twins
) -> MemoryUse:
    """Return the bytes of weights, gradients, state and copies of a training.

    Args:
        optimizer: An optimizer of twins.
        weights: All parameters.
        twins: The twins of the parameters that the optimizer updates.
    """
    counts: Counter[tuple[str, torch.dtype, str]] = Counter()
    for param in weights:
        counts["weights", param.dtype, param.device.type] += local(param).nbytes
    entries: Counter[tuple[str, torch.dtype, str]] = Counter()
    state, has_sums = _make_state(optimizer), options.kinds.sums
    for param, twin in twins.pairs(weights):
        device, dtype, size = param.device.type, param.dtype, local(param).numel()
        sums_in_float32 = options.of(Accumulation).wide_sums or options.kinds.masters
        sum_dtype = torch.float32 if has_sums and sums_in_float32 and dtype in REDUCED else dtype
        counts["gradients", dtype, device] += size * dtype.itemsize * param.requires_grad
        if has_sums and param.requires_grad:
            entries[SUM, sum_dtype, device] += size * sum_dtype.itemsize
        is_offloaded = options.of(Offload).state_device is not None and device != "cpu"
        for name, entry in state.get(twin, {}).items():
            if isinstance(entry, Tensor):
                entry_device = device if entry.is_meta and not is_offloaded else "cpu"
                entries[name, entry.dtype, entry_device] += local(entry).nbytes
        # A step copies gradients to the CPU, and the new weights from there.
        if is_offloaded and param.requires_grad:
            counts["weights", dtype, "cpu"] += size * dtype.itemsize
            counts["gradients", sum_dtype, "cpu"] += size * sum_dtype.itemsize
    if (judge := options.judge) is not None and judge.copies:
        entries.update(_count_copies(judge.copies, entries, twins.originals))
    sorted_counts = [
        *counts.items(),
        *sorted(entries.items(), key=lambda item: (item[0][0], str(item))),
    ]
    rows = tuple(MemoryRow(*key, nbytes) for key, nbytes in sorted_counts)
    option_text = ", ".join(f"{name}={show_value(value)}" for name, value in options.on.items())
    title = f"{type(optimizer).__name__}({option_text})"
    parameters = sum(local(param).numel() for param in weights)
    return MemoryUse(title, parameters, rows, any_on_mesh(weights))


def _count_copies(
    copies: int, entries: Mapping[tuple[str, torch.dtype, str], int], params: Sequence[Tensor]
) -> Counter[tuple[str, torch.dtype, str]]:
    """Return the bytes of `copies` copies of parameters and state, by (name, dtype, device).

    Gradient sums are not copied.

    Args:
        entries: Bytes of the state by (name, dtype, device).
    """
    counts: Counter[tuple[str, torch.dtype, str]] = Counter()
    for (name, dtype, device), nbytes in entries.items():
        if name != SUM:
            counts["copies", dtype, device] += copies * nbytes
    for param in params:
        counts["copies", param.dtype, param.device.type] += copies * local(param).nbytes
    return counts
