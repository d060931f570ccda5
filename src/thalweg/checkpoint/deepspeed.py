"""Reading of optimizer states of DeepSpeed ZeRO 1 to 3 for any number of ranks.

ZeRO concatenates the parameters of a group to one flat row, and each rank saves a part: a slice of
the row (stages 1 and 2), or one slice of every parameter (stage 3). Slots are cut likewise.
"""

# Contents of files have no types.
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false
from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from operator import itemgetter
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from thalweg._base.showing import show_value
from thalweg._core.state import flaw
from thalweg.errors import InvalidArgumentError

_OF_RANK = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")
Shapes = list[dict[str, tuple[int, ...]]]


@dataclass(frozen=True)
class ZeroFiles:
    """Contents of the files of one checkpoint.

    Attributes:
        directory: The folder, for messages.
        stage: The stage of ZeRO, 1 to 3.
        ranks: The optimizer state of each rank.
        shapes: For each group {name of parameter: shape}.
        clip: The maximum of the norm of gradients; 0 for none.
    """

    directory: Path
    stage: int
    ranks: list[Mapping[str, Any]]
    shapes: Shapes
    clip: object

    def fail(self, problem: str) -> InvalidArgumentError:
        """Return the InvalidArgumentError about a problem of this checkpoint; raise nothing."""
        return InvalidArgumentError(f"{self.directory}: {problem}.")

    def base(self, rank: int) -> Mapping[str, Any]:
        """Return the state dict of the optimizer inside ZeRO on `rank`; raise if malformed."""
        state = self.ranks[rank]
        name = "base_optimizer_state" if self.stage < 3 else "optimizer_state_dict"
        base = state.get(name)
        if not isinstance(base, Mapping) or not {"state", "param_groups"} <= base.keys():
            raise self.fail(
                f"{name!r} of rank {rank} is {show_value(base)}, not a state dict: save with"
                ' "elastic_checkpoint": false'
            )
        return cast("Mapping[str, Any]", base)

    def row(self, candidate: object, label: str) -> Tensor:
        """Return a tensor, flat and detached; raise unless it is a floating-point tensor."""
        problem = flaw(candidate)
        if problem or not isinstance(candidate, Tensor) or not candidate.is_floating_point():
            raise self.fail(f"{label} is {problem or show_value(candidate)}, not a row of numbers")
        return candidate.detach().reshape(-1)


def find_folder(path: Path) -> Path | None:
    """Return the folder with the ranks' optimizer states, or None if there is none.

    The folder is `path`, or a subfolder of `path` whose name is in the text file "latest".
    """
    if any(_OF_RANK.fullmatch(file.name) for file in path.glob("*_optim_states.pt")):
        return path
    latest = path / "latest"
    if not latest.is_file():
        return None
    tag = latest.read_text(encoding="utf-8", errors="replace")[:256].strip()
    # The tag comes from a file, and must not lead out of `path`.
    is_name = bool(re.fullmatch(r"[\w.-]+", tag)) and tag not in (".", "..")
    return find_folder(path / tag) if is_name and (path / tag).is_dir() else None


def read_zero(directory: Path, load_file: Callable[[Path], Any]) -> dict[str, Any]:
    """Join the files of all ranks to one state dict {"state": ..., "param_groups": ...}.

    The state of a parameter has its slots as full tensors, "step", and as "master" the float32
    value. "params" of a group has the keys of "state", "param_names" the parameters' names, and
    "max_grad_norm" the maximum norm of gradients, or 0.

    Args:
        load_file: `load_file(path)` returns the unpickled contents of a file in `directory`.

    Raises:
        InvalidArgumentError: Files are missing or damaged, or of a layout that is not supported.
    """
    files = _read_files(directory, load_file)
    groups = _make_groups(files)
    join = _join_flat if files.stage < 3 else _join_parts
    masters = join(files, _read_masters(files), "masters")
    states: dict[int, dict[str, Any]] = {}
    params = [(name, shape) for shapes in files.shapes for name, shape in shapes.items()]
    for index, (name, _) in enumerate(params):
        states[index] = {"master": masters[name]} if name in masters else {}
    for slot in _list_slots(files):
        rows = [_read_rows(files, rank, slot) for rank in range(len(files.ranks))]
        for index, tensor in enumerate(join(files, rows, slot).values()):
            states[index][slot] = tensor
    for index, step in enumerate(_list_steps(files)):
        states[index]["step"] = step
    return {"state": states, "param_groups": groups}


def _read_files(directory: Path, load_file: Callable[[Path], Any]) -> ZeroFiles:
    """Return the ranks' optimizer states, and the parameters' shapes from the model's file.

    The number of ranks, the stage and the shapes are validated, not the optimizer states.

    Args:
        directory: The folder with the files *_optim_states.pt, one for each data-parallel rank.
        load_file: `load_file(path)` returns the contents of a file, a dict.

    Raises:
        InvalidArgumentError: A file is missing, or is of model, pipeline or expert parallelism; or
            the stage is not 1, 2 or 3, or differs between ranks.
    """
    paths: dict[int, Path] = {}
    for file in sorted(directory.glob("*_optim_states.pt")):
        match = _OF_RANK.fullmatch(file.name)
        if match is None or int(match[2]):
            problem = f"{file.name} is of model, pipeline or expert parallelism"
            raise InvalidArgumentError(f"{directory}: {problem}, which is not supported.")
        paths[int(match[1])] = file
    count = len(paths)
    if not count or sorted(paths) != list(range(count)):
        raise InvalidArgumentError(
            f"{directory}: has files of ranks {sorted(paths)}, not of all ranks from 0 on."
        )
    contents = [load_file(paths[rank]) for rank in range(count)]
    ranks = [_get_entry(content, "optimizer_state_dict", dict) for content in contents]
    # Stage 3 has the maximum in the configuration alone.
    config = contents[0].get("ds_config")
    default = config.get("gradient_clipping", 0.0) if isinstance(config, dict) else 0.0
    clip = ranks[0].get("clip_grad", default)
    stages = [rank.get("zero_stage") for rank in ranks]
    # An enum in the file is read by `load_file` as an object with the attribute `value`.
    stage, *other_stages = (getattr(stage, "value", stage) for stage in stages)
    outline = ZeroFiles(directory, stage if isinstance(stage, int) else 0, ranks, [], clip)
    if outline.stage not in (1, 2, 3):
        raise outline.fail(f"'zero_stage' is {show_value(stage)}, not 1, 2 or 3")
    if any(other_stage != stage for other_stage in other_stages):
        raise outline.fail("'zero_stage' differs between the files of ranks")
    counts = ranks[0].get("partition_count", count)
    counts = counts if isinstance(counts, list) else [counts]
    if any(stored_count != count for stored_count in counts):
        raise outline.fail(f"{count} files are there, and 'partition_count' is {counts}")
    prefix = "zero_pp_rank_0_" if outline.stage == 3 else ""
    path = directory / f"{prefix}mp_rank_00_model_states.pt"
    if not path.is_file():
        raise outline.fail(f"{path.name} is missing")
    shapes = _get_entry(load_file(path), "param_shapes", list)
    return replace(outline, shapes=_check_shapes(outline, shapes))


def _get_entry(contents: object, name: str, kind: type) -> Any:
    """Return `contents[name]`; raise InvalidArgumentError if it is missing or is not a `kind`."""
    entry = contents.get(name) if isinstance(contents, Mapping) else None
    if not isinstance(entry, kind):
        raise InvalidArgumentError(
            f"{name!r} of a file of DeepSpeed is {show_value(entry)}, not a {kind.__name__}."
        )
    return entry


def _check_shapes(files: ZeroFiles, groups: list[Any]) -> Shapes:
    """Return copies of {parameter: shape} dicts; raise for invalid shapes and repeated names."""
    shapes: Shapes = []
    for group in groups:
        checked: dict[str, tuple[int, ...]] = {}
        for name, shape in group.items() if isinstance(group, Mapping) else [(None, None)]:
            is_shape = isinstance(shape, tuple | list) and all(
                isinstance(size, int) and 0 <= size < 1 << 48 for size in shape
            )
            if not isinstance(name, str) or not is_shape:
                raise files.fail(f"'param_shapes' has {show_value(shape)} for {show_value(name)}")
            checked[name] = tuple(cast("list[int]", shape))
        shapes.append(checked)
    names = [name for group in shapes for name in group]
    if len(names) != len(set(names)):
        raise files.fail("'param_shapes' has a name in two groups")
    return shapes


def _make_groups(files: ZeroFiles) -> list[dict[str, Any]]:
    """Return the param groups that rank 0 saved. "params" has the indices of parameters.

    "zero_stage", "param_names" and "max_grad_norm" are added.

    Raises:
        InvalidArgumentError: The groups are malformed, or differ in number from `files.shapes`.
    """
    saved_groups = files.base(0)["param_groups"]
    if not isinstance(saved_groups, list) or not all(
        isinstance(group, Mapping) for group in cast("list[Any]", saved_groups)
    ):
        raise files.fail(f"'param_groups' is {show_value(saved_groups)}, not a list of dicts")
    if len(saved_groups) != len(files.shapes):
        raise files.fail(
            f"{len(saved_groups)} groups of options are there, and {len(files.shapes)} of shapes"
        )
    groups: list[dict[str, Any]] = []
    first = 0
    for saved_group, shapes in zip(saved_groups, files.shapes, strict=True):
        options = {name: option for name, option in saved_group.items() if name != "params"}
        indices = [*range(first, first := first + len(shapes))]
        options |= {"zero_stage": files.stage, "params": indices, "param_names": [*shapes]}
        groups.append({**options, "max_grad_norm": files.clip})
    return groups


def _read_masters(files: ZeroFiles) -> list[list[Tensor]]:
    """Return the float32 parameters as saved: for each rank a list of one flat tensor per group."""
    name = "single_partition_of_fp32_groups" if files.stage < 3 else "fp32_flat_groups"
    rows: list[list[Tensor]] = []
    for rank, state in enumerate(files.ranks):
        pieces = _get_entry(state, name, list)
        rows.append([files.row(piece, f"{name!r} of rank {rank}") for piece in pieces])
    return rows


def _sort_states(files: ZeroFiles, rank: int) -> list[tuple[int, Any]]:
    """Return the (number, state) pairs of the groups of a rank, in ascending order."""
    states = files.base(rank)["state"]
    if not isinstance(states, Mapping):
        raise files.fail(f"'state' of rank {rank} is {show_value(states)}, not a dict")
    if not all(isinstance(key, int) for key in states):
        raise files.fail(f"'state' of rank {rank} has other keys than numbers")
    return sorted(states.items(), key=itemgetter(0))


def _list_slots(files: ZeroFiles) -> list[str]:
    """Return the names of the slots: tensors in the first state that are not scalars."""
    _, first = next(iter(_sort_states(files, 0)), (0, {}))
    if not isinstance(first, Mapping):
        raise files.fail(f"the state of a group is {show_value(first)}, not a dict")
    return [name for name, entry in first.items() if isinstance(entry, Tensor) and entry.dim()]


def _read_rows(files: ZeroFiles, rank: int, slot: str) -> list[Tensor]:
    """Return the tensors of a slot that `rank` saved, flattened: one per group, in group order."""
    return [
        files.row(_get_entry(entries, slot, Tensor), f"{slot!r} of group {key} of rank {rank}")
        for key, entries in _sort_states(files, rank)
    ]


def _list_steps(files: ZeroFiles) -> list[Any]:
    """Return the step count of each parameter, as rank 0 saved it; raise if a count is missing.

    In stages 1 and 2, each group has a state with a count. In stage 3, the first state has the
    count for all groups. If a state has no count, the group's options have it.
    """
    states = [entries for _, entries in _sort_states(files, 0)]
    values = [entries.get("step") if isinstance(entries, Mapping) else None for entries in states]
    groups = files.base(0)["param_groups"]
    steps: list[Any] = []
    for index, shapes in enumerate(files.shapes):
        step_count = (
            values[index] if files.stage < 3 and index < len(values) else (values or [None])[0]
        )
        steps += [groups[index].get("step") if step_count is None else step_count] * len(shapes)
    if any(step is None for step in steps):
        raise files.fail("no step count is there, neither of groups nor of parameters")
    return steps


def _join_flat(files: ZeroFiles, ranks: Sequence[list[Tensor]], label: str) -> dict[str, Tensor]:
    """Return {parameter: full tensor} for stages 1 and 2: each rank has a slice of a flat tensor.

    Args:
        ranks: For each rank a list with one tensor per group: the slice of the group's flat tensor.
        label: The name of the joined tensors in errors.

    Raises:
        InvalidArgumentError: The number of groups is wrong, or a flat tensor is too short.
    """
    values: dict[str, Tensor] = {}
    if any(len(rows) != len(files.shapes) for rows in ranks):
        counts = [len(rows) for rows in ranks]
        raise files.fail(f"{label} have {counts} groups, and 'param_shapes' {len(files.shapes)}")
    for index, shapes in enumerate(files.shapes):
        row = torch.cat([rows[index] for rows in ranks])
        first = 0
        for name, shape in shapes.items():
            end = first + prod(shape)
            if end > row.numel():
                raise files.fail(
                    f"{label} of group {index} have {row.numel()} numbers, too few for {name!r}"
                )
            # A view would keep the memory of the whole row.
            values[name] = row[first:end].view(shape).clone()
            first = end
    return values


def _join_parts(files: ZeroFiles, ranks: Sequence[list[Tensor]], label: str) -> dict[str, Tensor]:
    """Return {parameter: full tensor} for stage 3: each rank has an equal slice of each parameter.

    Args:
        ranks: For each rank a list with one flat tensor per group: the padded slices of all
            parameters, concatenated.
        label: The name of the joined tensors in errors.

    Raises:
        InvalidArgumentError: A flat tensor is too short.
    """
    no_values = torch.zeros(0, dtype=torch.float32, device="cpu")
    rows = [torch.cat(pieces) if pieces else no_values for pieces in ranks]
    values: dict[str, Tensor] = {}
    first = 0
    for shapes in files.shapes:
        for name, shape in shapes.items():
            count = prod(shape)
            size = -(-count // len(rows))
            if first + size > min(row.numel() for row in rows):
                raise files.fail(f"{label} have too few numbers for {name!r}")
            full_row = torch.cat([row[first : first + size] for row in rows])
            values[name] = full_row[:count].view(shape)
            first += size
    return values
