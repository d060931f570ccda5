"""`save` and `restore`: a training in one file."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from thalweg._base.context_managers import no_grad
from thalweg._base.tracing import untraced
from thalweg._core import state
from thalweg._core.dtensor import any_on_mesh
from thalweg._core.slots import SlotStore
from thalweg._formats import container
from thalweg._formats.atomic_write import Path, Progress
from thalweg._formats.format_detection import TRAINING, reader_of
from thalweg._formats.json_text import as_object
from thalweg._formats.path_resolution import locate_checkpoint
from thalweg._formats.stored_tensor import StoredTensor, of_tensor
from thalweg.checkpoint import optimizer_config
from thalweg.checkpoint.json_encoding import JsonReader, Writer
from thalweg.checkpoint.named_state import (
    Variables,
    as_checkpointable,
    extra_states,
    gather_dtensors,
    name_tensors,
    prepare_loading,
    prepare_values,
    slots_of,
    state_of,
    with_extra_states,
)
from thalweg.checkpoint.torch_adapter import TorchOptimizerAdapter, without_converted
from thalweg.errors import (
    CheckpointMismatchError,
    CheckpointWarning,
    InvalidConfigError,
    ThalwegError,
    warn,
)

if TYPE_CHECKING:
    from thalweg.distribute.process_group import Ranks


@dataclass(frozen=True)
class Snapshot:
    """Contents of a training to be written to a file.

    Attributes:
        document: Everything except tensors, as JSON.
        tensors: {name in the file: tensor}.
        slots: The slot store of the optimizer, which receives the path after writing; or None.
        ranks: The ranks that share the training, or None. Rank 0 writes the file.
    """

    document: dict[str, Any]
    tensors: dict[str, Tensor]
    slots: SlotStore | None = None
    ranks: Ranks | None = None

    def write(self, path: Path, progress: Progress | None = None, waits: bool = True) -> None:
        """Write the file; if there are several ranks, only rank 0 writes.

        Args:
            path: The file. An existing file is replaced once the new file is complete.
            progress: None, or `progress(bytes_written, total_bytes)` is called during writing.
            waits: True if all ranks call this method; they wait until rank 0 has written.

        Raises:
            CheckpointWriteError: The file cannot be written. An existing file is unchanged.
        """

        def write() -> None:
            container.write(path, self.stored_tensors(), self.document, progress)

        if self.ranks is not None and waits:
            self.ranks.write_once(write, os.fsdecode(path))
        elif self.is_here():
            write()
        if self.slots is not None:
            self.slots.saved(os.fsdecode(path))

    def is_here(self) -> bool:
        """Return True if this process writes the file."""
        return self.ranks is None or not self.ranks.rank

    def stored_tensors(self) -> dict[str, StoredTensor]:
        """Return the tensors in the form that the container writes."""
        return {name: of_tensor(tensor) for name, tensor in self.tensors.items()}


@dataclass(frozen=True)
class Restored:
    """Results of `restore`.

    Attributes:
        optimizer: The argument `optimizer`, or a new optimizer; None if none was restored.
        extra: The value saved as `extra`, or None.
        metrics: The metrics passed to `CheckpointManager.save`; {} if there were none.
        step: The number passed to `CheckpointManager.save`, or None.
        left: Names of the file's variables that were not restored, and "optimizer" if ignored.
    """

    optimizer: Any = None
    extra: Any = None
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    step: int | None = None
    left: tuple[str, ...] = ()


@untraced
def take_snapshot(
    *,
    optimizer: object = None,
    variables: Variables | None = None,
    module: torch.nn.Module | None = None,
    extra: object = None,
    metrics: Mapping[str, float] | None = None,
    copies: bool = True,
) -> Snapshot:
    """Return the contents that `save` writes, copied while no step runs.

    Parameters that are not listed here, and errors, are as for `save`.

    Args:
        metrics: Optional. {name: number} to save.
        copies: False to return the tensors themselves instead of copies. The tensors must not
            change before they are written.
    """
    tensors = name_tensors(variables, module)
    optimizer = None if optimizer is None else as_checkpointable(optimizer)
    with _hold_steps(optimizer), nullcontext() if copies else state.uncopied():
        return _copy_training(optimizer, tensors, module, extra, metrics, copies)


def _hold_steps(optimizer: Any) -> AbstractContextManager[Any]:
    """Return a context manager that blocks an optimizer's steps in other threads."""
    return nullcontext() if optimizer is None else optimizer._locked()


def _copy_training(
    optimizer: Any,
    named_tensors: dict[str, Tensor],
    module: torch.nn.Module | None,
    extra: object,
    metrics: Mapping[str, float] | None,
    copies: bool,
) -> Snapshot:
    """Return the snapshot of a training; the caller blocks the steps of its optimizer.

    Args:
        named_tensors: {name: variable}; DTensors are gathered, so all ranks call this function.
        module: The module whose extra states are saved, or None.
        extra: Numbers, texts, tensors, or lists, tuples and dicts of these.
        metrics: {name: number}, or None.
        copies: True to copy the variables.
    """
    # `state_of` copies already.
    state_writer, content_writer = Writer(copies=False), Writer(copies=copies)
    document: dict[str, Any] = {"kind": TRAINING}
    slots = slots_of(optimizer)
    shards = None if slots is None else slots.parts
    ranks = None if shards is None else shards.ranks
    if any_on_mesh(named_tensors.values()) or getattr(optimizer, "is_on_mesh", False):
        # DTensors exist only if torch.distributed is available.
        from thalweg.distribute.process_group import Ranks

        ranks = Ranks()
    if optimizer is not None:
        with nullcontext() if shards is None else shards.collecting():
            document["state"] = state_writer(state_of(optimizer, named_tensors), "optimizer")
        document["optimizer"] = optimizer_config.describe_optimizer(optimizer, named_tensors)
        document["rates"] = state_writer(optimizer_config.list_schedule_states(optimizer), "rates")
    document["variables"] = content_writer(gather_dtensors(named_tensors), "variables")
    if module_states := extra_states(module):
        document["extra_states"] = content_writer(module_states, "extra_states")
    document["extra"] = content_writer(extra, "extra")
    metric_values = {name: float(metric) for name, metric in (metrics or {}).items()}
    document["metrics"] = content_writer(metric_values, "metrics")
    return Snapshot(document, {**state_writer.tensors, **content_writer.tensors}, slots, ranks)


@untraced
def save(
    path: Path,
    *,
    optimizer: object = None,
    variables: Variables | None = None,
    module: torch.nn.Module | None = None,
    extra: object = None,
    progress: Progress | None = None,
) -> None:
    """Write a training to a file; training continued by `restore` computes equal bits.

    The write is atomic: a temporary file in the same directory is written, synced and renamed. The
    file has the safetensors format, with a checksum of every tensor, and contains no code. Tensors
    on the CPU are written without a copy. With `progress`, the state is copied first, as `progress`
    may call `step`.

    If slots are sharded by a `thalweg.distribute.Strategy`, or variables are DTensors, all ranks
    call this function. Rank 0 writes, and all ranks wait until it is done.

    Args:
        path: The file. An existing file is replaced once the new file is complete.
        optimizer: Optional. For an optimizer of `thalweg.keras` or `thalweg.v1`, or a step of
            `optimize_loss`, the state, class and arguments are saved. Your own functions and rules
            are saved by name only. For an optimizer of `thalweg.optim` or `torch.optim`, the state
            and groups are saved, and `restore` needs an optimizer of the saved class.
        variables: Optional. {name: tensor}, or a list of tensors that have names.
        module: Optional. A module whose parameters, persistent buffers and extra states are saved.
        extra: Optional. Numbers, texts, tensors, arrays, or lists, tuples and dicts of these.
        progress: Optional. `progress(bytes_written, total_bytes)` is called during writing.

    Raises:
        CheckpointWriteError: The file cannot be written. An existing file is unchanged.
        ReplicaLostError: A rank that has a shard of the slots did not answer.
        FailedPreconditionError: The optimizer is in graph mode: use `thalweg.v1.train.Saver`.
        InvalidTypeError: A value has a type that cannot be saved.

    Example:
        >>> import tempfile, thalweg
        >>> from thalweg.keras.optimizers import SGD
        >>> folder = tempfile.mkdtemp()
        >>> w, opt = thalweg.Variable([1.0, 2.0], name="w"), SGD(0.5, clipnorm=5.0)
        >>> _ = opt.apply_gradients([([1.0, -1.0], w)])
        >>> save(f"{folder}/run", optimizer=opt, variables=[w], extra={"epoch": 3})
        >>> new_w = thalweg.Variable([0.0, 0.0], name="w")
        >>> restored = restore(f"{folder}/run", variables=[new_w])
        >>> new_w.numpy(), restored.optimizer.clipnorm, restored.extra
        (array([0.5, 2.5], dtype=float32), 5.0, {'epoch': 3})
    """
    tensors = name_tensors(variables, module)
    optimizer = None if optimizer is None else as_checkpointable(optimizer)
    # The lock is held until all is written, so nothing need be copied, unless `progress` steps.
    with no_grad(), _hold_steps(optimizer), nullcontext() if progress else state.uncopied():
        copies = progress is not None
        _copy_training(optimizer, tensors, module, extra, None, copies).write(path, progress)


@untraced
def restore(
    path: Path,
    *,
    optimizer: object = None,
    variables: Variables | Literal[False] | None = None,
    module: torch.nn.Module | None = None,
    check_arguments: bool = True,
    convert: bool = False,
    progress: Progress | None = None,
) -> Restored:
    """Restore a training that `save` wrote; on an error, change nothing.

    The checksums are verified first. Another process may replace the file meanwhile, but must not
    change it in place.

    Args:
        path: The file; ".safetensors" may be left off.
        optimizer: Optional. The optimizer to restore. By default, a new optimizer is made if the
            file has an optimizer. False ignores it, for a model that is not trained.
        variables, module: The variables to set, as for `save`. Names, shapes and dtypes must equal
            those in the file. Without both, the file's variables are ignored with a
            `CheckpointWarning`; `variables=False` suppresses the warning.
        check_arguments: True to raise if the arguments of `optimizer` differ from the saved
            arguments. Hyperparameters of Keras optimizers are state: they are set, not compared.
        convert: True to convert state of `thalweg.optim` to the storage format of `optimizer`, as
            `load_state_dict(state, convert=True)` does. The arguments `state_storage`, `weights`,
            `round` and `seed` may then differ, and `masters` may replace split weights. State that
            the file lacks is initialized from the parameters, with a warning. By default, a
            different storage format raises.
        progress: Optional. `progress(bytes_read, total_bytes)` is called during reading.

    Returns: The optimizer, the value saved as `extra`, and the names of parts not restored.

    Raises:
        MissingFileError: The file does not exist.
        DataLossError: The file is damaged, or its format is unknown.
        UnsupportedCheckpointError: The file is a checkpoint of TensorFlow or Keras; the message
            names the function that reads it.
        UnsafeCheckpointError: The file is a pickle.
        CheckpointMismatchError: Names, shapes, dtypes or arguments differ; lists up to ten.
        NotFoundError: A new optimizer would need parameters or user code.
        InvalidConfigError: The file's description of the training is invalid.
        FailedPreconditionError: The optimizer is in graph mode: a graph has its state.
    """
    has_targets = variables is not False and (variables is not None or module is not None)
    tensors = name_tensors(variables or None, module)
    if optimizer is not None and optimizer is not False:
        optimizer = as_checkpointable(optimizer)
    path, document, reader = _open_checkpoint(path, progress)
    unrestored = () if has_targets else tuple(document["variables"])
    states_module = module if has_targets else None
    with _name_file_in_errors(path), ExitStack() as exit_stack:
        loadings: list[state.Loading] = []
        if has_targets:
            loadings.append(prepare_values(tensors, _read_by_name(reader, document, "variables")))
        target_optimizer = _choose_optimizer(document, optimizer, tensors, check_arguments, convert)
        if isinstance(target_optimizer, TorchOptimizerAdapter) and convert:
            values = _read_by_name(reader, document, "variables") if has_targets else {}
            target_optimizer.convert_to_fit(values)
        arguments = (target_optimizer, reader, document, tensors, check_arguments)
        loadings += _prepare_optimizer(*arguments, exit_stack)
        copying_reader = JsonReader(reader.tensors, copies=True)
        states: dict[str, Any] = document["extra_states"] if states_module is None else {}
        names = (*unrestored, *states)
        names += ("optimizer",) if optimizer is False and "optimizer" in document else ()
        outcome = _describe_restored(target_optimizer, document, reader, copying_reader, names)
        read_states = partial(_read_by_name, copying_reader, document, "extra_states")
        # Nothing has changed so far. If `restore` raises, the extra states are set back.
        with with_extra_states(states_module, read_states() if states_module else {}):
            state.restore(*(replace(loading, is_ours=True) for loading in loadings))
    if (slots := slots_of(target_optimizer)) is not None:
        slots.saved(os.fsdecode(path))
    _warn_of_rest(path, states if has_targets else {}, () if variables is False else unrestored)
    return outcome


def _open_checkpoint(
    path: Path, progress: Progress | None
) -> tuple[str, dict[str, Any], JsonReader]:
    """Return (path of the file, its JSON document, decoder that gives memory-mapped tensors).

    Raises:
        InvalidConfigError: The file does not contain a training.
    """
    path = locate_checkpoint(path).path_if_ours()
    contents = container.mapped(path, progress)
    document = _check_document(contents.document, path)
    tensors = {name: stored.tensor() for name, stored in contents.tensors.items()}
    return path, document, JsonReader(tensors)


def _describe_restored(
    optimizer: Any,
    document: Mapping[str, Any],
    reader: JsonReader,
    copying_reader: JsonReader,
    names: tuple[str, ...],
) -> Restored:
    """Return the result of `restore`; `names` are the names of parts not restored.

    `reader` decodes the metrics. `copying_reader` decodes `extra`, and copies the tensors in it
    from the memory-mapped file.
    """
    is_adapter = isinstance(optimizer, TorchOptimizerAdapter)
    return Restored(
        optimizer.optimizer if is_adapter else optimizer,
        copying_reader(document["extra"]),
        _read_by_name(reader, document, "metrics"),
        document["step"],
        names,
    )


def _warn_of_rest(path: str, states: Mapping[str, object], names: Sequence[str]) -> None:
    """Warn of unrestored extra states (`states`) and variables (`names`), if there are any."""
    if states:
        warn(
            f"{path} has extra states of modules, such as {next(iter(states))!r}, which were not"
            " set: give module=.",
            CheckpointWarning,
        )
    if names:
        warn(
            f"{path} has {len(names)} variables, such as {names[0]!r}, and none was set: give"
            " module= or variables=. variables=False says that this is meant.",
            CheckpointWarning,
        )


def _choose_optimizer(
    document: Mapping[str, Any],
    optimizer: Any,
    named_tensors: Mapping[str, Tensor],
    check_arguments: bool,
    convert: bool,
) -> Any:
    """Return `optimizer`, or a new optimizer from the file if `optimizer` is None.

    Return None if `optimizer` is False, or if `optimizer` is None and the file has no optimizer.

    Args:
        optimizer: The user's optimizer, None, or False to restore no optimizer.
        named_tensors: {name: variable}, for arguments that are variables.
        check_arguments: True to raise if arguments differ. A different class always raises.
        convert: True to ignore differences that `convert=True` of `restore` accepts.

    Raises:
        CheckpointMismatchError: The user's optimizer has another class or other arguments, or the
            file has no optimizer.
        NotFoundError: The class or an argument of a new optimizer is user code.
    """
    if optimizer is False:
        return None
    if "optimizer" not in document:
        if optimizer is not None:
            raise CheckpointMismatchError("there is no optimizer. Nothing was loaded.")
        return None
    saved_config = document["optimizer"]
    if optimizer is None:
        return optimizer_config.make_optimizer(saved_config, named_tensors)
    current_config = optimizer_config.describe_optimizer(optimizer, named_tensors)
    # Nadam stores `schedule_decay` as the hyperparameter `decay`, which loading sets.
    loaded = {"schedule_decay", *as_object(document["state"].get("hyperparameters"))}
    differences = optimizer_config.describe_differences(saved_config, current_config, loaded)
    unconvertible = differences
    if isinstance(optimizer, TorchOptimizerAdapter):
        configs = (saved_config, current_config)
        rests = [*map(without_converted, configs, configs[::-1])]
        unconvertible = optimizer_config.describe_differences(rests[0], rests[1], loaded)
    if convert:
        differences = unconvertible
    is_other_class = saved_config["class"] != current_config["class"]
    if differences and (check_arguments or is_other_class):
        ways = ["check_arguments=False"] * bool(unconvertible)
        ways += ["convert=True"] * (unconvertible != differences)
        advice = f" restore(..., {', '.join(ways)}) goes on with yours." * (not is_other_class)
        raise state.mismatch(differences, outcome=f"Nothing was loaded.{advice}")
    return optimizer


def _prepare_optimizer(
    optimizer: Any,
    reader: JsonReader,
    document: Mapping[str, object],
    named_tensors: dict[str, Tensor],
    check_arguments: bool,
    exit_stack: ExitStack,
) -> list[state.Loading]:
    """Return the validated writes that set the states of an optimizer and of its schedules.

    Set nothing. Return [] if `optimizer` is None. The optimizer is locked until `exit_stack` is
    closed. With `check_arguments=False`, a saved schedule that differs from that of `optimizer` is
    ignored.

    Raises:
        CheckpointMismatchError: Names, shapes or dtypes of the state differ.
        InvalidConfigError: The saved state is malformed.
    """
    if optimizer is None:
        return []
    try:
        saved_state = _read_by_name(reader, document, "state")
        loading = exit_stack.enter_context(prepare_loading(optimizer, saved_state, named_tensors))
        rates = _read_by_name(reader, document, "rates")
        return [loading, optimizer_config.prepare_schedules(optimizer, rates, check_arguments)]
    except (TypeError, ValueError, LookupError, AttributeError, OverflowError) as error:
        if isinstance(error, ThalwegError):
            raise
        raise InvalidConfigError(f"the optimizer's state is not one: {error}") from error


@contextmanager
def _name_file_in_errors(path: str) -> Generator[None]:
    """Prefix a ThalwegError of the `with` block with the file's path."""
    try:
        yield
    except ThalwegError as error:
        error.args = (f"{path}: {error}",)
        raise


def _read_by_name(reader: JsonReader, document: Mapping[str, Any], section: str) -> dict[str, Any]:
    """Return a decoded section of a document. The section must be a dict with strings as keys.

    Raises:
        InvalidConfigError: The decoded section has another type.
    """
    decoded = reader(document[section])
    if not isinstance(decoded, dict) or not all(type(name) is str for name in as_object(decoded)):
        raise InvalidConfigError(
            f"{section!r} must be a dict of values by name, not {state.shown(decoded)}."
        )
    return as_object(decoded)


def _check_document(document: Mapping[str, object], path: Path) -> dict[str, Any]:
    """Return a copy of a document with defaults for missing sections.

    An invalid step becomes None.

    Raises:
        InvalidConfigError: The document is not of a training, or a section has an invalid type.
    """
    kind = document.get("kind")
    if kind != TRAINING:
        raise InvalidConfigError(f"{path} is not a checkpoint of a training: {reader_of(kind)}.")
    for name in ("variables", "extra_states", "optimizer", "state", "rates", "metrics"):
        if not isinstance(document.get(name, {}), dict):
            raise InvalidConfigError(f"{path}: {name!r} is no dict.")
    if "optimizer" in document:
        description = as_object(document["optimizer"])
        if [type(description.get(name)) for name in ("class", "arguments")] != [str, dict]:
            raise InvalidConfigError(f"{path}: the optimizer has no class or no arguments.")
        if "state" not in document:
            raise InvalidConfigError(f"{path}: the optimizer has no state.")
    step = document.get("step")
    sections = ("variables", "extra_states", "rates", "metrics")
    empty: dict[str, object] = {**{name: {} for name in sections}, "extra": None}
    return {**empty, **document, "step": step if type(step) is int else None}
