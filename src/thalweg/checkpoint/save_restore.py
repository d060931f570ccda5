"""`save` and `restore`: a whole training in one file."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from thalweg._base.context_managers import no_grad
from thalweg._base.tracing import untraced
from thalweg._core import state
from thalweg._core.meshes import any_on_mesh
from thalweg._core.slots import SlotStore
from thalweg._formats import container
from thalweg._formats.format_detection import TRAINING, reader_of
from thalweg._formats.json_text import as_object
from thalweg._formats.path_resolution import locate_checkpoint
from thalweg._formats.stored_tensor import StoredTensor, of_tensor
from thalweg.checkpoint import optimizer_config, schedule_state
from thalweg.checkpoint.extra_states import extra_states, with_extra_states
from thalweg.checkpoint.json_encoding import JsonReader, Writer
from thalweg.checkpoint.named_state import (
    Variables,
    as_checkpointable,
    gather_dtensors,
    name_tensors,
    prepare_loading,
    prepare_values,
    slots_of,
    state_of,
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

Path = str | os.PathLike[str]
Progress = Callable[[int, int], None]
KIND = TRAINING


@dataclass(frozen=True)
class Snapshot:
    """Copies of a training at one moment, to be written whenever.

    Attributes:
        document: What is no tensor, as JSON.
        tensors: The tensors by their names in a file.
        slots: Those of the optimizer, which are told of the file; None if it has none.
        ranks: Those that have parts of it, if it is shared out; rank 0 has the snapshot.
    """

    document: dict[str, Any]
    tensors: dict[str, Tensor]
    slots: SlotStore | None = None
    ranks: Ranks | None = None

    def write(self, path: Path, progress: Progress | None = None, together: bool = True) -> None:
        """Write it; see `save`.

        Args:
            path, progress: As in `save`.
            together: Whether all ranks wait for it.
        """
        write = partial(self._write_file, path, progress)
        if self.ranks is not None and together:
            self.ranks.write_once(write, os.fsdecode(path))
        elif self.is_here():
            write()
        if self.slots is not None:
            self.slots.saved(os.fsdecode(path))

    def is_here(self) -> bool:
        """Return True if this process writes the file."""
        return self.ranks is None or not self.ranks.rank

    def stored_tensors(self) -> dict[str, StoredTensor]:
        """Return the tensors as a file has them."""
        return {name: of_tensor(each) for name, each in self.tensors.items()}

    def _write_file(self, path: Path, progress: Progress | None) -> None:
        container.write(path, self.stored_tensors(), self.document, progress)


@dataclass(frozen=True)
class Restored:
    """Results of `restore`.

    Attributes:
        optimizer: The optimizer, given or new; None if the file has none, or it was not restored.
        extra: The value saved as `extra`, or None.
        metrics: The metrics that a `CheckpointManager` was given for it.
        step: The step that a `CheckpointManager` was given, or None.
        left: The names of the file's variables that were not restored, and "optimizer" if it was
            not.
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
    """Return the contents that `save` writes, taken between two steps.

    Arguments and errors are those of `save`; without `copies` nothing may change before it is
    written.
    """
    tensors = name_tensors(variables, module)
    optimizer = None if optimizer is None else as_checkpointable(optimizer)
    with _hold_steps(optimizer), nullcontext() if copies else state.uncopied():
        return _copy_training(optimizer, tensors, module, extra, metrics, copies)


def _hold_steps(optimizer: Any) -> AbstractContextManager[Any]:
    """A block that holds back the steps of other threads."""
    return nullcontext() if optimizer is None else optimizer._locked()


def _copy_training(
    optimizer: object,
    tensors: dict[str, Tensor],
    module: torch.nn.Module | None,
    extra: object,
    metrics: Mapping[str, float] | None,
    copies: bool,
) -> Snapshot:
    own, given = Writer(copies=False), Writer(copies=copies)  # a state is a copy already
    document: dict[str, Any] = {"kind": KIND}
    slots = slots_of(optimizer)
    parts = None if slots is None else slots.parts
    ranks = None if parts is None else parts.ranks
    if any_on_mesh(tensors.values()):
        from thalweg.distribute.process_group import (
            Ranks,
        )  # which is there where tensors are on one

        ranks = Ranks()
    if optimizer is not None:
        with nullcontext() if parts is None else parts.collecting():
            document["state"] = own(state_of(optimizer, tensors), "optimizer")
        document["optimizer"] = optimizer_config.describe_optimizer(optimizer, tensors)
        document["rates"] = own(schedule_state.states_of(optimizer), "rates")
    document["variables"] = given(gather_dtensors(tensors), "variables")
    if own_states := extra_states(module):
        document["extra_states"] = given(own_states, "extra_states")
    document["extra"] = given(extra, "extra")
    numbers = {name: float(each) for name, each in (metrics or {}).items()}
    document["metrics"] = given(numbers, "metrics")
    return Snapshot(document, {**own.tensors, **given.tensors}, slots, ranks)


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
    """Write a training to a file, from which `restore` goes on with the same bits.

    The file is there whole or not at all: it is written beside its place, synced, and renamed. It
    is a safetensors file, with a checksum of every tensor, and nothing in it is executed. Tensors
    on the CPU are written from where they are, with 16 MiB of memory beside them; with `progress`,
    which may take a step, the state is copied first.

    Args:
        path: The file. What is there is replaced once the new one is complete.
        optimizer: Optional. One of `thalweg.keras` or `thalweg.v1`, or a step of `optimize_loss`:
            its state, its class, and its arguments with schedules, clipping and policies. Functions
            and rules of your own are only named. Or one of `thalweg.optim` or `torch.optim`, with
            its groups, which `restore` is given anew.
        variables: Optional. Tensors by name, or tensors that have names.
        module: Optional. Its parameters and buffers are saved by their names in it, and what its
            `get_extra_state` returns.
        extra: Optional. Numbers, texts, tensors, arrays, and lists, tuples and dicts of those.
        progress: Optional. Called with the bytes written and the bytes in all.

    Where the optimizer's slots are shared out over the ranks of a `thalweg.distribute.Strategy`, or
    variables are DTensors, all ranks call this: rank 0 writes, and the others go on when it has.

    Raises:
        CheckpointWriteError: The file cannot be written. What was there before is intact.
        ReplicaLostError: Another rank, which has a part of the slots, did not answer.
        FailedPreconditionError: The optimizer's state is variables of a graph: use
            `thalweg.v1.train.Saver`.
        InvalidTypeError: Something is of a type that no file holds.

    Example:
        >>> import tempfile, thalweg
        >>> from thalweg.keras.optimizers import SGD
        >>> folder = tempfile.mkdtemp()
        >>> w, opt = thalweg.Variable([1.0, 2.0], name="w"), SGD(0.5, clipnorm=5.0)
        >>> _ = opt.apply_gradients([([1.0, -1.0], w)])
        >>> save(f"{folder}/run", optimizer=opt, variables=[w], extra={"epoch": 3})
        >>> again = thalweg.Variable([0.0, 0.0], name="w")
        >>> found = restore(f"{folder}/run", variables=[again])
        >>> again.numpy(), found.optimizer.clipnorm, found.extra
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
    """Set a training to what `save` wrote; all of it or nothing.

    Args:
        path: The file; ".safetensors" may be left off.
        optimizer: Optional. The optimizer that is to go on; without one, and with one in the file,
            a new one is made as the file describes it. False leaves it in the file, as where a
            model is used and not trained.
        variables, module: The variables, as `save` was given them: each must be in the file, in its
            shape and dtype, and there must be no others. Without them the file's are left there,
            with a `CheckpointWarning`; `variables=False` says that this is meant.
        check_arguments: Whether the optimizer that is given must have been made with the arguments
            of the one that was saved. Hyperparameters of Keras' optimizers are part of the state,
            and are set.
        convert: Whether the state of an optimizer of `thalweg.optim` is made what the one that is
            given keeps, or refused: as `load_state_dict(state, convert=True)` does. Other
            `state_storage`, `weights`, `round` and `seed` are then no difference of arguments, nor
            are `masters` in place of split weights; what options keep beside that and the file does
            not have begins at the parameters, of which a warning tells.
        progress: Optional. Called with the bytes read and the bytes in all.

    Returns:
        The optimizer, what was saved as `extra`, and the names of what was left in the file.

    The file's bytes are verified, and then copied from the file to where they belong: no more
    memory is taken for them. It may be replaced meanwhile, but not changed in place.

    Raises:
        MissingFileError: There is no such file.
        DataLossError: The file is damaged, or is something else; names the tensor, or what it is.
        UnsupportedCheckpointError: It is a checkpoint of TensorFlow or Keras; says what reads it.
        UnsafeCheckpointError: It is a pickle.
        CheckpointMismatchError: Names, shapes, dtypes or arguments differ; lists up to ten.
        NotFoundError: No optimizer is given, and the one that was saved has arguments that only
            you can make again; names them.
        InvalidConfigError: The file describes nothing that is known here.
        FailedPreconditionError: The optimizer's state is variables of a graph.

    Nothing has changed then.
    """
    places = variables is not False and (variables is not None or module is not None)
    tensors = name_tensors(variables or None, module)
    if optimizer is not None and optimizer is not False:
        optimizer = as_checkpointable(optimizer)
    path = locate_checkpoint(path).path_if_ours()
    contents = container.mapped(path, progress=progress)
    document = _check_document(contents.document, path)
    reader = JsonReader({name: each.tensor() for name, each in contents.tensors.items()})
    left = () if places else tuple(document["variables"])
    target = module if places else None  # of extra states
    with _name_file_in_errors(path), ExitStack() as held:
        loadings = (
            [prepare_values(tensors, _read_by_name(reader, document, "variables"))]
            if places
            else []
        )
        given = _choose_optimizer(document, optimizer, tensors, check_arguments, convert)
        if isinstance(given, TorchOptimizerAdapter) and convert:
            values = _read_by_name(reader, document, "variables") if places else {}
            given.convert_to_fit(values)
        if given is not None:
            loadings += _of_optimizer(given, reader, document, tensors, check_arguments, held)
        copied = JsonReader(reader.tensors, copies=True)
        states: dict[str, Any] = document["extra_states"] if target is None else {}
        is_left = optimizer is False and "optimizer" in document
        restored = Restored(
            given.optimizer if isinstance(given, TorchOptimizerAdapter) else given,
            copied(document["extra"]),
            _read_by_name(reader, document, "metrics"),
            document["step"],
            (*left, *states, *["optimizer"] * is_left),
        )
        own = {} if target is None else _read_by_name(copied, document, "extra_states")
        with with_extra_states(target, own):
            state.restore(*(replace(each, is_ours=True) for each in loadings))
    if places:
        _warn_of_states(path, states)
    if (slots := slots_of(given)) is not None:
        slots.saved(os.fsdecode(path))
    if variables is not False:
        _warn_of_variables(path, left)
    return restored


def _warn_of_states(path: str, left: Mapping[str, object]) -> None:
    if left:
        warn(
            f"{path} has extra states of modules, such as {next(iter(left))!r}, which were not"
            " set: give module=.",
            CheckpointWarning,
        )


def _warn_of_variables(path: str, left: Sequence[str]) -> None:
    if left:
        warn(
            f"{path} has {len(left)} variables, such as {left[0]!r}, and none of them was set: give"
            " module= or variables=. variables=False says that this is meant.",
            CheckpointWarning,
        )


def _choose_optimizer(
    document: Mapping[str, object],
    given: object,
    tensors: Mapping[str, Tensor],
    check: bool,
    convert: bool,
) -> Any:
    """The optimizer that a file's state is for: the one that is given, or a new one; or None."""
    if given is False:
        return None
    if "optimizer" in document:
        return _find_optimizer(document, given, tensors, check, convert)
    if given is not None:
        raise CheckpointMismatchError("there is no optimizer. Nothing was loaded.")
    return None


def _of_optimizer(
    optimizer: object,
    reader: JsonReader,
    document: Mapping[str, object],
    tensors: dict[str, Tensor],
    check: bool,
    held: ExitStack,
) -> list[state.Loading]:
    """What sets the state of an optimizer and its rates, while `held` holds its other steps back.

    Raises:
        InvalidConfigError: There is something else instead of a state.
    """
    try:
        own = _read_by_name(reader, document, "state")
        found = held.enter_context(prepare_loading(optimizer, own, tensors))
        return [
            found,
            schedule_state.prepare_rates(
                optimizer, _read_by_name(reader, document, "rates"), check
            ),
        ]
    except (TypeError, ValueError, LookupError, AttributeError, OverflowError) as error:
        if isinstance(error, ThalwegError):
            raise
        raise InvalidConfigError(f"the optimizer's state is not one: {error}") from error


@contextmanager
def _name_file_in_errors(path: str) -> Generator[None]:
    """Put the name of the file in front of errors."""
    try:
        yield
    except ThalwegError as error:
        error.args = (f"{path}: {error}",)
        raise


def _find_optimizer(
    document: Mapping[str, Any],
    given: Any,
    tensors: Mapping[str, Tensor],
    check: bool,
    convert: bool,
) -> object:
    description = document["optimizer"]
    if given is None:
        return optimizer_config.make_optimizer(description, tensors)
    own = optimizer_config.describe_optimizer(given, tensors)
    loaded = {"schedule_decay", *as_object(document["state"].get("hyperparameters"))}
    found = optimizer_config.describe_differences(description, own, loaded)
    rest = found
    if isinstance(given, TorchOptimizerAdapter):
        wanted, here = map(without_converted, (description, own), (own, description))
        rest = optimizer_config.describe_differences(wanted, here, loaded)
    if convert:
        found = rest
    is_other = description["class"] != own["class"]
    if found and (check or is_other):
        ways = ["check_arguments=False"] * bool(rest) + ["convert=True"] * (rest != found)
        hint = f" restore(..., {', '.join(ways)}) goes on with yours." * (not is_other)
        raise state.mismatch(found, outcome=f"Nothing was loaded.{hint}")
    return given


def _read_by_name(reader: JsonReader, document: Mapping[str, Any], part: str) -> dict[str, Any]:
    """A part of a document: values by their names.

    Raises:
        InvalidConfigError: It is something else, which a mark in JSON may stand for.
    """
    found = reader(document[part])
    if not isinstance(found, dict) or not all(type(name) is str for name in as_object(found)):
        raise InvalidConfigError(
            f"{part!r} must be a dict of values by name, not {state.shown(found)}."
        )
    return as_object(found)


def _check_document(document: Mapping[str, object], path: Path) -> dict[str, Any]:
    kind = document.get("kind")
    if kind != KIND:
        raise InvalidConfigError(f"{path} is not a checkpoint of a training: {reader_of(kind)}.")
    for name in ("variables", "extra_states", "optimizer", "state", "rates", "metrics"):
        if not isinstance(document.get(name, {}), dict):
            raise InvalidConfigError(f"{path}: {name!r} is no dict.")
    if "optimizer" in document:
        description = as_object(document["optimizer"])
        if not isinstance(description.get("class"), str) or not isinstance(
            description.get("arguments"), dict
        ):
            raise InvalidConfigError(f"{path}: the optimizer has no class or no arguments.")
        if "state" not in document:
            raise InvalidConfigError(f"{path}: the optimizer has no state.")
    step = document.get("step")
    parts = ("variables", "extra_states", "rates", "metrics")
    empty: dict[str, object] = {**{name: {} for name in parts}, "extra": None}
    return {**empty, **document, "step": step if type(step) is int else None}
