"""`restore`: a training that TensorFlow began goes on."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Any, cast

import torch
from torch import Tensor

from thalweg._base.context_managers import writable
from thalweg._base.showing import show_value
from thalweg._core import state
from thalweg._core.state import Entry
from thalweg._formats.keras_files import KerasFile
from thalweg.checkpoint.tensorflow.detection.checkpoint_contents import (
    GLOBAL_STEP,
    FoundOptimizer,
    TensorFlowCheckpoint,
)
from thalweg.checkpoint.tensorflow.detection.keras_classes import base_class_name, keras_class
from thalweg.checkpoint.tensorflow.detection.keras_file import sorted_file
from thalweg.checkpoint.tensorflow.detection.loss_scales import STEPS
from thalweg.checkpoint.tensorflow.detection.object_checkpoint import sorted_objects
from thalweg.checkpoint.tensorflow.detection.saver_names import sorted_names
from thalweg.checkpoint.tensorflow.detection.scalars import as_count, count_of
from thalweg.checkpoint.tensorflow.detection.slot_families import Family
from thalweg.checkpoint.tensorflow.importers.keras import loading_keras, without_momentum
from thalweg.checkpoint.tensorflow.importers.optimize_loss import (
    inner_of,
    is_training,
    loading_training,
    with_averages,
)
from thalweg.checkpoint.tensorflow.importers.optimizer_factory import (
    class_of,
    families_of,
    family_of,
    make_wrapped,
    refuse_lost,
    refuse_options,
)
from thalweg.checkpoint.tensorflow.importers.v1 import loading_v1, with_moving_averages
from thalweg.checkpoint.tensorflow.load import load
from thalweg.checkpoint.tensorflow.mapping.mapped_tensors import MappedTensors
from thalweg.checkpoint.tensorflow.mapping.mapping_rules import Rules
from thalweg.checkpoint.tensorflow.mapping.targets import TargetTensors
from thalweg.errors import (
    CheckpointMismatchError,
    InvalidArgumentError,
    InvalidTypeError,
    NotFoundError,
)
from thalweg.keras.optimizers import Optimizer as KerasOptimizer
from thalweg.openseq2seq.optimizers.novograd import NovoGrad
from thalweg.v1.train import Optimizer as V1Optimizer
from thalweg.v1.train.experimental.loss_scale import DynamicLossScale, LossScale
from thalweg.v1.train.experimental.loss_scale_optimizer import MixedPrecisionLossScaleOptimizer


def restore(
    checkpoint: Any,
    variables: object,
    rules: object = None,
    optimizer: object = None,
    *,
    which: int | None = None,
    global_step: object = None,
    **hyperparameters: object,
) -> Any:
    """Set variables to those of a file of TensorFlow, and go on with its optimizer.

    All or nothing: names, shapes, dtypes and values are looked at before anything is set. Values
    are set to the bit; a float32 variable is not read into a float64 one.

    Args:
        checkpoint: What `load` returned, or what it takes.
        variables: A module, a dictionary of variables by name, or a list of variables.
        rules: Optional. The path of a rules file, a dictionary of patterns and parameters, or a
            function that takes a name of TensorFlow's and returns that of a parameter, a pair of
            it and its axes, or None. By default variables are found by their names, where that
            leaves no doubt; what has other axes than in TensorFlow needs a rule.
        optimizer: Optional. An optimizer or a class, of `thalweg.v1` or `thalweg.keras`; for a
            training of OpenSeq2Seq the step that `optimize_loss` made. By default a new one of the
            kind that the file has. False leaves it in the file.
        which: Optional. The place of the optimizer in `checkpoint.optimizers`, if there are
            several.
        global_step: Optional. A variable that is set to the file's count of steps.
        **hyperparameters: Arguments of the new optimizer that the file does not hold, such as
            `learning_rate`. A number that is not the file's is refused; a schedule or a callable
            takes its place. And `loss_scale`, a `DynamicLossScale` of
            `thalweg.v1.train.experimental` that is set to the one that the file has around its
            optimizer.

    Returns:
        The optimizer. If the file has none, the one that was given, as it was, or None; but a
        `.keras` file, and a `.h5` file that describes one, is refused without one.

    Raises:
        CheckpointMismatchError: Names, shapes, dtypes or values do not go together; lists up to ten
            differences. Nothing was loaded.
        OptionError: A hyperparameter is needed that the file does not hold.
        InvalidConfigError: A rule is none.
        InvalidArgumentError: The file has several optimizers, and nothing says which one is meant.
    """
    file = checkpoint if isinstance(checkpoint, TensorFlowCheckpoint) else load(checkpoint)
    targets = TargetTensors.of(variables)
    file, found = choose_optimizer(file, targets, optimizer, which, hyperparameters)
    try:
        placed = MappedTensors.of(file, targets, Rules.of(rules))
        scale = _prepare_loss_scale(found, hyperparameters)
        opt = _make_optimizer(file, found, optimizer, global_step, hyperparameters)
        with writable(), ExitStack() as held:
            loadings = [_prepare_values(placed, found, global_step), scale]
            if optimizer is False:
                pass
            elif found is not None or is_training(opt):
                setting = _prepare_optimizer(opt, placed, found, is_new=opt is not optimizer)
                loadings.insert(0, held.enter_context(setting))
            state.restore(*loadings)
    except CheckpointMismatchError as error:
        raise CheckpointMismatchError(f"{file.path}: {error}") from error
    return opt


def choose_optimizer(
    file: TensorFlowCheckpoint,
    targets: TargetTensors,
    optimizer: object,
    which: int | None,
    given: Mapping[str, object],
) -> tuple[TensorFlowCheckpoint, FoundOptimizer | None]:
    """Return the file, sorted with what is known of its optimizer, and that optimizer.

    Arguments and errors are those of `restore`.
    """
    file = _sort_as_given(file, optimizer, given, targets)
    return file, _find_optimizer(file, optimizer, which)


def _prepare_values(
    placed: MappedTensors, found: FoundOptimizer | None, global_step: Any
) -> state.Loading:
    """What sets the variables, and the count of steps."""
    pairs = placed.variables()
    if global_step is not None:
        pairs.append(
            (Entry(GLOBAL_STEP, global_step), _step_count(placed.file, found, global_step))
        )
    differences = [entry.difference(value) for entry, value in pairs]
    if any(differences):
        raise state.mismatch([each for each in differences if each])
    return state.Loading(pairs)


def _sort_as_given(
    file: TensorFlowCheckpoint, optimizer: Any, given: Mapping[str, object], targets: TargetTensors
) -> TensorFlowCheckpoint:
    """The file, sorted with what the optimizer that is given is known to be."""
    inner, is_class = inner_of(optimizer), inspect.isclass(optimizer)
    if isinstance(file.source, KerasFile):
        cls = cast(type[Any], optimizer if is_class else inner.__class__)
        if keras_class(file.source.class_name) is None and issubclass(cls, KerasOptimizer):
            config = dict(given) if is_class else inner.get_config()
            return sorted_file(file.path, file.source, base_class_name(cls), config)
        return file
    keras = cast(type[Any], optimizer if is_class else inner.__class__)
    if file.graph is not None and issubclass(keras, KerasOptimizer):
        if any(found.lost for found in file.optimizers):
            return sorted_objects(file.path, file.source, file.graph, base_class_name(keras))
        return file
    families: list[Family] = []
    if file.kind == "saver" and is_class and issubclass(optimizer, V1Optimizer):
        families = families_of(optimizer, given) or [Family(optimizer.__name__, "", ())]
    elif file.kind == "saver" and isinstance(inner, V1Optimizer) and targets.trained:
        name = next(name for name in targets.tensors if name in targets.trained)
        families = [family_of(inner, targets.tensors[name])]
    return sorted_names(file.path, file.source, families) if families else file


def _find_optimizer(
    file: TensorFlowCheckpoint, optimizer: object, which: int | None
) -> FoundOptimizer | None:
    """The optimizer of the file that is meant."""
    found = file.optimizers
    if which is not None:
        if not 0 <= which < len(found):
            raise NotFoundError(f"{file.path} has {len(found)} optimizers, none of number {which}.")
        return found[which]
    if len(found) > 1 and isinstance(inner_of(optimizer), V1Optimizer):
        name = inner_of(optimizer).get_name()
        found = tuple(each for each in found if each.name == name) or found
    if len(found) > 1:
        listed = "; ".join(f"{index}: {each}" for index, each in enumerate(file.optimizers))
        raise InvalidArgumentError(
            f"{file.path} has {len(file.optimizers)} optimizers. Give which=...: {listed}."
        )
    return found[0] if found else None


def _prepare_loss_scale(found: FoundOptimizer | None, given: dict[str, object]) -> state.Loading:
    """Remove a `LossScale` from `given`, and return the `Loading` that sets it from the file.

    If `given["loss_scale"]` is not a `LossScale`, `given` stays as it is, and the `Loading` is
    empty.

    Raises:
        InvalidArgumentError: The loss scale is not a `DynamicLossScale`.
        CheckpointMismatchError: The file has no loss scale, or its values do not fit.
    """
    if not isinstance(given.get("loss_scale"), LossScale):
        return state.Loading()
    scale: Any = given.pop("loss_scale")
    if not isinstance(scale, DynamicLossScale):
        raise InvalidArgumentError(
            f"loss_scale must be a DynamicLossScale, not {show_value(scale)}."
        )
    if found is None or not found.loss_scale:
        raise state.mismatch(["there is no loss scale around the optimizer"])
    values = _of_scale(found)
    own: dict[str, Any] = cast(Any, scale)._weights
    entries = [Entry(f"loss_scale/{name}", own[name]) for name in own]
    missing = [f"{each.name!r} is missing" for each in entries if each.name not in values]
    pairs = [(each, values[each.name]) for each in entries if each.name in values]
    found_here = [*missing, *(each for own, value in pairs if (each := own.difference(value)))]
    if found_here:
        raise state.mismatch(found_here)
    return state.Loading(pairs)


def _of_scale(found: FoundOptimizer) -> dict[str, Tensor]:
    """What a loss scale remembers, by the names of `MixedPrecisionLossScaleOptimizer`."""
    values = {name: each.tensor() for name, each in found.loss_scale.items()}
    steps = count_of(found.loss_scale.get(STEPS))
    if steps is not None:
        values[STEPS] = as_count(steps, torch.int64)  # Keras 3 counts in 32 bits
    return {f"loss_scale/{name}": value for name, value in values.items()}


def _step_count(
    file: TensorFlowCheckpoint, found: FoundOptimizer | None, variable: object
) -> Tensor:
    """The count of steps in a file, in the dtype of the variable that is to hold it."""
    if not isinstance(variable, Tensor):
        raise InvalidTypeError(f"global_step must be a variable, not {show_value(variable)}.")
    count = file.steps_of([found] if found else [])
    if count is None:
        notes = "".join(f"; {note}" for note in (found.notes if found else ()))
        raise state.mismatch([f"there is no count of steps for global_step{notes}"])
    return as_count(count, variable.dtype)


def _make_optimizer(
    file: TensorFlowCheckpoint,
    found: FoundOptimizer | None,
    optimizer: object,
    global_step: object,
    given: Mapping[str, object],
) -> object:
    """The optimizer that goes on."""
    if optimizer is False or (optimizer is None and found is None):
        if given:
            raise InvalidArgumentError(
                f"{', '.join(given)} would be of an optimizer, and there is none."
            )
        if optimizer is None:
            _refuse_none(file)
        return None
    if optimizer is not None and found is not None:
        refuse_lost(found)
    cls = class_of(found, file.path) if optimizer is None and found is not None else optimizer
    if inspect.isclass(cls) and issubclass(cls, V1Optimizer | KerasOptimizer):
        if found is not None:
            refuse_options(found, file.path)
        arguments = dict(given)
        if global_step is not None and GLOBAL_STEP in inspect.signature(cls).parameters:
            arguments[GLOBAL_STEP] = global_step
        return make_wrapped(cls, found, arguments, file)
    if not (isinstance(optimizer, V1Optimizer | KerasOptimizer) or is_training(optimizer)):
        raise InvalidTypeError(
            "optimizer must be an optimizer of thalweg.v1 or thalweg.keras, a class of one, or a"
            f" step of optimize_loss, not {show_value(optimizer)}."
        )
    if given:
        raise InvalidArgumentError(
            f"{', '.join(given)} would be of a new optimizer, and one was given."
        )
    return optimizer


def _refuse_none(file: TensorFlowCheckpoint) -> None:
    """Refuse to go on without an optimizer where a whole training is expected."""
    own = file.source
    if isinstance(own, KerasFile) and (own.kind == "keras" or own.class_name is not None):
        what = f"{own.class_name} is described, and no state of it is there"
        raise CheckpointMismatchError(
            f"{what if own.class_name else 'there is no optimizer: the model was not compiled'}."
            " Give restore(..., optimizer=...) to begin with a new one; optimizer=False reads the"
            " variables alone. Nothing was loaded."
        )


def _prepare_optimizer(
    opt: object, placed: MappedTensors, found: FoundOptimizer | None, is_new: bool
) -> AbstractContextManager[state.Loading]:
    """Return a context manager whose `Loading` sets the state of `opt` to that of the file.

    Args:
        opt: The optimizer, or the training step that has one.
        placed: The tensors of the file, by variable.
        found: The optimizer in the file, or None.
        is_new: Whether `opt` was made from the file, so that its hyperparameters are already set.

    Raises:
        CheckpointMismatchError: The state in the file does not fit `opt`.
    """
    slots = placed.slots(found)
    if isinstance(inner_of(opt), NovoGrad):
        slots = with_averages(slots, placed.file)
    scalars = {} if found is None else {n: each.tensor() for n, each in found.scalars.items()}
    if is_training(opt):
        return loading_training(opt, placed, slots, scalars)
    if isinstance(opt, MixedPrecisionLossScaleOptimizer) and found is not None:
        scalars |= _of_scale(found)
    if isinstance(opt, V1Optimizer):
        return loading_v1(opt, with_moving_averages(opt, slots, placed), scalars)
    is_zero = found is not None and found.hyperparameters.get("momentum") == 0
    # The constructor of a new optimizer requires the momentum, if the file does not have it.
    is_known = is_zero or (is_new and found is not None and found.family is not None)
    if is_known and getattr(opt, "_momentum", None) is False:
        slots = without_momentum(slots)
    hypers = {} if is_new or found is None else found.hyperparameters
    return loading_keras(opt, slots, scalars, hypers)
