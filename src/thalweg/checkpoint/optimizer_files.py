"""Reading of other packages' optimizer states. No code of the files is executed."""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.serialization import safe_globals

from thalweg._formats.atomic_write import open_for_reading
from thalweg._formats.format_detection import OF_TORCH, PROBE_BYTES, ZIP, first_member
from thalweg._formats.json_text import as_object
from thalweg.checkpoint.deepspeed import find_folder, read_zero
from thalweg.checkpoint.save_restore import restore
from thalweg.errors import InvalidArgumentError, ThalwegError

# Keys under which trainers keep the state of the optimizer.
_NESTED = ("optimizer", "optimizer_state_dict", "optim", "optimizer_states")


class CodedTensor(Tensor):
    """Stand-in for a tensor class of torchao: it has attributes from a file, but no operations."""

    codes: Any
    qmap: Any
    scale: Any

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError(f"{func} of a tensor of a file")


class SavedObject:
    """Stand-in for an object of DeepSpeed; `value` is the first constructor argument."""

    value: Any = None

    def __init__(self, value: object = None, *_: object) -> None:
        self.value = value


_STAND_INS: list[Any] = [
    (CodedTensor, "torchao.optim.subclass_8bit.OptimState8bit"),
    (CodedTensor, "torchao.optim.subclass_4bit.OptimState4bit"),
    (SavedObject, "deepspeed.runtime.fp16.loss_scaler.LossScaler"),
    (SavedObject, "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler"),
    (SavedObject, "deepspeed.runtime.zero.config.ZeroStageEnum"),
    (SavedObject, "deepspeed.utils.tensor_fragment.fragment_address"),
]


def is_package_file(path: str | PathLike[str]) -> bool:
    """Return True if a path is a file of `torch.save`, or a folder of DeepSpeed."""
    if Path(path).is_dir():
        return find_folder(Path(path)) is not None
    try:
        with open_for_reading(path) as stream:
            start = stream.read(PROBE_BYTES)
        # The first member suffices: a file that is cut off has no list of members.
        return start.startswith(ZIP) and first_member(start).endswith(OF_TORCH)
    except (OSError, ThalwegError):
        return False


def load_file(path: str | PathLike[str]) -> Any:
    """Return the contents of a file of `torch.save`, read with `weights_only=True`.

    Tensors are on the CPU. Objects of torchao become `CodedTensor`, and objects of DeepSpeed become
    `SavedObject`.

    Raises:
        InvalidArgumentError: The file is damaged, or contains objects other than tensors and
            built-in types.
        OSError: The file cannot be read.
    """
    # Raises OSError for a file that cannot be read; all errors of `torch.load` become others.
    with open_for_reading(path):
        pass
    try:
        with safe_globals(_STAND_INS):
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        # Torch names the class after a paragraph of advice.
        match = re.search(r"GLOBAL (\S+)", str(error))
        first = str(error).split("\n", 1)[0]
        reason = f"it holds {match[1]}, and reading that executes code" if match else first
        message = f"{fspath(path)} cannot be read as plain data: {reason}"
        raise InvalidArgumentError(message) from None
    # A damaged archive raises anything.
    except Exception as error:
        raise InvalidArgumentError(
            f"{fspath(path)} is no file of torch.save, or damaged: {type(error).__name__}: {error}"
        ) from error


def read_state(path: str | PathLike[str]) -> dict[str, Any]:
    """Read the state dict of an optimizer from a file of `torch.save`, or from DeepSpeed.

    Code in the file is not executed. `load_state_dict(state, convert=True)` of `thalweg.optim`
    accepts the state, even if its class is of another package.

    Args:
        path: A file of `torch.save`, the folder of a checkpoint of DeepSpeed ZeRO 1 to 3, or a file
            written by `thalweg convert`. In a file of `torch.save`, the state dict may be inside a
            dict under "optimizer", "optimizer_state_dict", "optim" or "optimizer_states".

    Raises:
        InvalidArgumentError: The file is damaged, or holds no state dict.
        OSError: The file cannot be read.
    """
    if Path(path).is_dir():
        directory = find_folder(Path(path))
        if directory is None:
            raise InvalidArgumentError(f"{fspath(path)} has no files of DeepSpeed's optimizers.")
        return read_zero(directory, load_file)
    # A safetensors file begins with the length of its header, 8 bytes, and the header in JSON.
    with open_for_reading(path) as file:
        is_safetensors = file.read(9)[8:] == b"{"
    state = find_state(restore(Path(path)).extra if is_safetensors else load_file(path))
    if state is None:
        names = ", ".join(map(repr, _NESTED))
        raise InvalidArgumentError(
            f"{fspath(path)} holds no state dict of an optimizer: a dict with 'state' and"
            f" 'param_groups', or such a dict under {names}."
        )
    return state


def find_state(contents: Any) -> dict[str, Any] | None:
    """Return the state dict of an optimizer in the contents of a file; None if there is none.

    The state dict is `contents`, or under a key of trainers, such as "optimizer".
    """
    for name in (None, *_NESTED):
        candidate = contents if name is None else as_object(contents).get(name)
        if isinstance(candidate, list) and len(cast("list[Any]", candidate)) == 1:
            (candidate,) = cast("list[Any]", candidate)
        fields: Mapping[str, Any] = as_object(candidate)
        groups = fields.get("param_groups")
        is_grouped = isinstance(groups, list) and all(
            isinstance(as_object(group).get("params"), list) for group in cast("list[Any]", groups)
        )
        if is_grouped and isinstance(fields.get("state"), Mapping):
            return dict(fields)
    return None
