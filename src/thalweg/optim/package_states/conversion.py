"""Conversion of a state dict of another package to the form of an optimizer here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from thalweg._core.dtensor import is_on_mesh
from thalweg._core.options.clipping import Clipping
from thalweg._core.options.update_targets import MASTER
from thalweg._core.param_groups import Group
from thalweg._core.quantized_slots import codec_of, encode_tensor, records_beside, shape_entry
from thalweg._core.state import mismatch
from thalweg.formula import Rule
from thalweg.optim import state_mismatch
from thalweg.optim.package_states.codes import Codes
from thalweg.optim.package_states.member import Member, Report
from thalweg.optim.package_states.table import PACKAGES, Package
from thalweg.optim.param_scalars import scalar_dtype
from thalweg.optim.quantized_state import SHAPE, STORAGE, storage_of

_OF_GROUPS = ("params", "param_names")


@dataclass
class Conversion:
    """State converted from another package, with reports of exact, rounded and lost parts.

    Attributes:
        state: The state dict in the form of the optimizer.
        reports: The report of each class of the other package.
        values: (name, parameter, new value) of parameters that the load changes.
    """

    state: dict[str, Any]
    reports: list[Report]
    values: list[tuple[str, Tensor, Tensor]]

    def report_of(self, source: str, target: str) -> Report:
        """Return the report of a class, created if missing, and move it to the end."""
        # `_convert_members` adds to the last report.
        report = next((x for x in self.reports if x.source == source), Report(source, target))
        self.reports = [*(x for x in self.reports if x is not report), report]
        return report

    def notes(self) -> list[str]:
        """Return warnings about rounded and lost parts."""
        return [
            "converted from " + "; ".join(report.lines())
            for report in self.reports
            if report.rounded or report.lost
        ]


def recognize(saved_state: Mapping[str, Any], kinds: Sequence[str] = ()) -> list[Package] | None:
    """Return the package that wrote each group; return None if any group is of no known package.

    Args:
        kinds: Optional. The class name in `thalweg.optim` of each group. Of several matching
            packages, the first whose states this class can load has priority.
    """
    packages: list[Package | None] = []
    for group_index, group in enumerate(saved_state["param_groups"]):
        names = _entry_names(saved_state, [group])
        # A group without state is taken to be of the package of all other groups.
        entries = names or _entry_names(saved_state, saved_state["param_groups"])
        candidates = [package for package in PACKAGES if package.matches(entries, group)]
        kind = kinds[group_index] if group_index < len(kinds) else ""
        matching_kind = [package for package in candidates if kind in package.into]
        packages.append((matching_kind or candidates or [None])[0])
    known = [package for package in packages if package is not None]
    return known if known and len(known) == len(packages) else None


def _entry_names(saved_state: Mapping[str, Any], groups: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the entry names that all parameters of groups have in common."""
    keys = [key for group in groups for key in group["params"]]
    states: list[Mapping[str, Any] | None] = [saved_state["state"].get(key) for key in keys]
    names = [set(entries) for entries in states if isinstance(entries, Mapping) and entries]
    return set[str].intersection(*names) if names else set()


def convert_state(
    optimizer: Any, saved_state: dict[str, Any], allow_loss: bool
) -> Conversion | None:
    """Return another package's state in the form of the optimizer; None if no package matches.

    Args:
        saved_state: The state dict, in a valid form.
        allow_loss: True to leave out parts without a counterpart here. False raises for them.

    Raises:
        CheckpointMismatchError: The state belongs to another optimizer class, a part does not fit,
            or a part would be lost.
    """
    groups, saved_groups = optimizer.param_groups, saved_state["param_groups"]
    kinds = [_find_class_name(optimizer, group) for group in groups]
    packages = recognize(saved_state, kinds)
    if packages is None:
        return None
    label, sizes = type(optimizer).__name__, state_mismatch.sizes(groups)
    if sizes != (saved_sizes := state_mismatch.sizes(saved_groups)):
        raise mismatch([f"groups have {saved_sizes} parameters, those here {sizes}"], label)
    conversion = Conversion({**saved_state, "state": dict(saved_state["state"])}, [], [])
    converted_groups: list[dict[str, Any]] = []
    for group_index, (package, kind) in enumerate(zip(packages, kinds, strict=True)):
        if kind not in package.into:
            expected = " or ".join(package.into)
            problem = (
                f"group {group_index} is of {package.name}, which {expected} continues, here {kind}"
            )
            raise mismatch([problem], label)
        pair = groups[group_index], saved_groups[group_index]
        members = _match_members(pair, saved_state["state"], package)
        report = conversion.report_of(package.name, kind)
        options = _convert_group(optimizer, pair, package, report)
        converted_groups.append({**options, "params": [key for _, key, _ in members]})
        _convert_members(optimizer, members, pair, package, conversion)
    conversion.state["param_groups"] = converted_groups
    lost_entries = [
        f"{entry_name}, {reason}"
        for report in conversion.reports
        for entry_name, reason in report.lost.items()
    ]
    if lost_entries and not allow_loss:
        sentence = "Nothing was loaded; allow_loss=True leaves it out."
        raise mismatch([f"the state has {problem}" for problem in lost_entries], label, sentence)
    return conversion


def _find_class_name(optimizer: Any, group: Group) -> str:
    """Return the name of the class of this package that updates a group."""
    classes = optimizer.class_of(group).__mro__
    names = [cls.__name__ for cls in classes if cls.__module__.startswith("thalweg.")]
    return names[0] if names else type(optimizer).__name__


def _convert_group(
    optimizer: Any, pair: tuple[Group, Mapping[str, Any]], package: Package, report: Report
) -> dict[str, Any]:
    """Return the converted options of a saved group, completed by options of the optimizer's group.

    Args:
        pair: (group of the optimizer, saved group).
        report: Report to which converted and lost options are added.
    """
    group, saved_group = pair
    options = {name: value for name, value in group.items() if name not in _OF_GROUPS}
    for name, value in saved_group.items():
        if name in _OF_GROUPS:
            continue
        if name in package.renamed:
            try:
                options |= package.renamed[name](value, saved_group)
            # Options of a file may have any type.
            except (KeyError, TypeError, IndexError, AttributeError):
                text = f"{name!r} is {state_mismatch.told(value)}, which is not an option of it"
                raise mismatch([text], package.name) from None
            report.exact[name] = ""
        elif name in package.neutral:
            _note_neutral(optimizer, name, value, package, report)
        elif name not in (*package.unread, *package.numbers.values()):
            options[name] = value
            report.exact[name] = ""
    if problems := optimizer.choice_faults({**group, **options}):
        raise mismatch(problems, package.name)
    rule = optimizer.rule_of({**group, **options})
    storage = storage_of(rule)
    return {**options, **package.fixed, **({STORAGE: storage} if storage else {})}


def _note_neutral(
    optimizer: Any, name: str, value: object, package: Package, report: Report
) -> None:
    """Add an option without a counterpart to `report.lost`, unless its value has no effect."""
    is_scalar = isinstance(value, bool | int | float | str | None)
    if is_scalar and value == package.neutral[name]:
        return
    reason = f"which is {state_mismatch.told(value)}"
    if name == "max_grad_norm":
        if is_scalar and value == optimizer.step_options.of(Clipping).clip_grad_norm:
            report.exact[name] = ""
            return
        reason += "; an optimizer with clip_grad_norm of this value has it"
    report.lost[name] = reason


def _convert_members(
    optimizer: Any,
    members: list[tuple[Tensor, Any, Any]],
    pair: tuple[Group, Mapping[str, Any]],
    package: Package,
    conversion: Conversion,
) -> None:
    """Convert the states of a group's parameters in `conversion.state`, in place.

    Args:
        members: (parameter, saved key, title) of each parameter.
        pair: (group of the optimizer, saved group).
        conversion: The conversion, whose `state`, `values` and `reports[-1]` are changed.
    """
    (group, saved_group), states = pair, conversion.state["state"]
    report = conversion.reports[-1]
    for param, key, label in members:
        entries = states.get(key)
        if not isinstance(entries, Mapping):
            if entries is not None:
                text = f"the state of '{label}' is {state_mismatch.told(entries)}, no dict"
                raise mismatch([text], package.name)
            continue
        if not entries:
            continue
        member = Member(
            str(label), cast("Mapping[str, Any]", entries), saved_group, param, group, report
        )
        states[key] = _convert_entries(optimizer, member, package)
        # In evaluation mode the saved parameters are the means x; steps start at the points y.
        if saved_group.get("train_mode") is False:
            conversion.values.append((str(label), param, _train_point(member)))
    if package.remark:
        report.rounded["steps"] = package.remark


def _match_members(
    pair: tuple[Group, Mapping[str, Any]], states: Mapping[Any, Any], package: Package
) -> list[tuple[Tensor, Any, Any]]:
    """Return (parameter, saved key, title) of each parameter of a group.

    Match by name if both groups have equal names, else by order. Muon's distributed classes sort
    parameters by shape; their states are matched in this order.
    """
    group, saved_group = pair
    names, saved_names = (member_group.get("param_names") for member_group in pair)
    if names and saved_names and Counter(names) == Counter(saved_names):
        return state_mismatch.matched(group, {**saved_group}, [])
    members = state_mismatch.members_of(group, saved_group)
    if package.name != "Muon" or all(
        _fits_shape(states.get(key), param) for param, key, _ in members
    ):
        return members
    order = sorted(range(len(members)), key=lambda n: members[n][0].shape, reverse=True)
    keys = dict(zip(order, saved_group["params"], strict=True))
    return [(param, keys[index], label) for index, (param, _, label) in enumerate(members)]


def _fits_shape(entries: Mapping[str, Any] | None, param: Tensor) -> bool:
    """Return True if Muon's state of a parameter has its shape, or is absent."""
    momentum = entries.get("momentum_buffer") if isinstance(entries, Mapping) else None
    return not isinstance(momentum, Tensor) or momentum.shape == param.shape


def _convert_entries(optimizer: Any, member: Member, package: Package) -> dict[str, Any]:
    """Return the converted state of a parameter; add its parts to `member.report`."""
    rule: Rule = optimizer.rule_of(member.target_group)
    names = {*package.entries, *package.unread, *package.numbers.values(), *package.slots.values()}
    converted_entries = {name: value for name, value in member.entries.items() if name not in names}
    dtypes = {
        slot.name: slot.dtype or (torch.float64 if slot.per else torch.float32)
        for slot in rule.scalar_slots
    }
    if MASTER in converted_entries and not optimizer.step_options.kinds.has_master(member.param):
        del converted_entries[MASTER]
        if member.param.dtype != torch.float32:
            member.report.lost[MASTER] = "which an optimizer with masters=True has"
    for name, source in package.numbers.items():
        scalar = member.number(source) if isinstance(source, str) else source(member)
        dtype = dtypes.get(name, scalar_dtype())
        converted_entries[name] = torch.tensor(float(scalar), dtype=dtype, device="cpu")
        member.report.exact[name] = ""
    for name, source in package.slots.items():
        value = member.tensor(source) if isinstance(source, str) else source(member)
        converted_entries[name] = _convert_slot(optimizer, rule, member, name, value)
    tensors = [entry for entry in converted_entries.values() if isinstance(entry, Tensor)]
    if any(tensor.dtype == torch.uint8 for tensor in tensors):
        converted_entries[SHAPE] = shape_entry(member.param)
    return converted_entries


def _convert_slot(
    optimizer: Any, rule: Rule, member: Member, name: str, value: Tensor | Codes
) -> Tensor:
    """Return `value`, the slot `name` of another package, in the optimizer's encoding.

    If the optimizer does not encode the slot, return decoded numbers, which the loader casts later.
    Record rounding in `member.report`. Raise CheckpointMismatchError for an encoded DTensor slot.
    """
    slot = next((slot for slot in rule.slots if slot.name == name), None)
    member.report.exact[name] = ""
    codec = None if slot is None or not slot.storage else codec_of(slot, member.param)
    if codec is not None and is_on_mesh(member.param):
        raise member.fail(name, "is of a DTensor, whose codes are not converted")
    if isinstance(value, Codes):
        records = None if codec is None else value.records(codec.name)
        if records is not None and codec is not None:
            return records_beside(codec, records, member.param)
        value = value.decode().view(member.param.shape)
    if codec is not None:
        member.report.rounded[name] = f"encoded as {codec.name}"
        return records_beside(codec, encode_tensor(codec, value.float()), member.param)
    if slot is not None:
        dtype = optimizer.step_options.kinds.of(slot, member.param)
        if torch.finfo(dtype).bits < torch.finfo(value.dtype).bits:
            member.report.rounded[name] = f"rounded to {state_mismatch.dtype_name(dtype)}"
    return value


def _train_point(member: Member) -> Tensor:
    """Return the point y at which schedule-free steps take gradients, from the mean x."""
    beta = member.beta(0) if "betas" in member.group else member.number("momentum")
    param = member.param.detach()
    member.report.exact["parameters"] = ""
    return param.lerp(member.tensor("z").to(param), 1 - beta)
