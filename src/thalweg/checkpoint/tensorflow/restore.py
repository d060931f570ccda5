"""`restore`: continue a training of TensorFlow or Keras."""

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
from thalweg.checkpoint.tensorflow.detection.keras_file import sorted_file
from thalweg.checkpoint.tensorflow.detection.object_checkpoint import sorted_objects
from thalweg.checkpoint.tensorflow.detection.saver_names import sorted_names
from thalweg.checkpoint.tensorflow.detection.scalars import STEPS, as_count, count_of
from thalweg.checkpoint.tensorflow.detection.slot_families import (
    Family,
    base_class_name,
    keras_class,
)
from thalweg.checkpoint.tensorflow.importers import loadings, optimizer_factory
from thalweg.checkpoint.tensorflow.load import load
from thalweg.checkpoint.tensorflow.mapping.mapped_tensors import MappedTensors, TargetTensors
from thalweg.checkpoint.tensorflow.mapping.mapping_rules import Rules
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
    """Set variables to the values in a TensorFlow or Keras file, and return the optimizer.

    Names, shapes, dtypes and values are validated before anything is set. Values are copied without
    conversion: float32 is not read into a float64 variable.

    Args:
        checkpoint: The result of `load`, or its argument.
        variables: A module, a dictionary of variables by name, or a list of variables.
        rules: Optional. The path of a rules file, {pattern: parameter}, or a function:
            `rules(name)` returns the parameter of a TensorFlow name, a pair (parameter, axes), or
            None to omit the variable. By default, variables are matched by name if that is
            unambiguous. A variable whose axes differ in TensorFlow needs a rule.
        optimizer: Optional. An optimizer or class of `thalweg.v1` or `thalweg.keras`, or for
            OpenSeq2Seq the step that `optimize_loss` made. By default, a new optimizer of the class
            in the file is made. False ignores the optimizer in the file.
        which: Optional. The index of the optimizer in `checkpoint.optimizers`, if there are
            several.
        global_step: Optional. A variable that is set to the file's step count.
        **hyperparameters: Arguments of the new optimizer that the file lacks, such as
            `learning_rate`. A number that differs from the file's raises; a schedule or callable
            replaces it. A `DynamicLossScale` as `loss_scale` is set to the loss scale in the file.

    Returns:
        The optimizer; None with `optimizer=False`, or by default if the file has no optimizer.
        Without an optimizer in the file, `optimizer` is unchanged.

    Raises:
        CheckpointMismatchError: Names, shapes, dtypes or values do not match; lists up to ten
            differences. Or `optimizer` is None, and a model of Keras was saved without optimizer
            state. Nothing was loaded.
        OptionError: A required hyperparameter is not in the file.
        InvalidConfigError: A rule is invalid.
        InvalidArgumentError: The file has several optimizers, and `which` is not given.
        NotFoundError: `which` is not the index of an optimizer.
    """
    contents = checkpoint if isinstance(checkpoint, TensorFlowCheckpoint) else load(checkpoint)
    targets = TargetTensors.of(variables)
    contents, detected = choose_optimizer(contents, targets, optimizer, which, hyperparameters)
    try:
        mapped = MappedTensors.of(contents, targets, Rules.of(rules))
        scale = _prepare_loss_scale(detected, hyperparameters)
        opt = _make_optimizer(contents, detected, optimizer, global_step, hyperparameters)
        with writable(), ExitStack() as exit_stack:
            writes = [_prepare_values(mapped, detected, global_step), scale]
            if optimizer is False:
                pass
            elif detected is not None or loadings.is_training(opt):
                loading = _prepare_optimizer(opt, mapped, detected, is_new=opt is not optimizer)
                writes.insert(0, exit_stack.enter_context(loading))
            state.restore(*writes)
    except CheckpointMismatchError as error:
        raise CheckpointMismatchError(f"{contents.path}: {error}") from error
    return opt


def choose_optimizer(
    checkpoint: TensorFlowCheckpoint,
    targets: TargetTensors,
    optimizer: object,
    index: int | None,
    arguments: Mapping[str, object],
) -> tuple[TensorFlowCheckpoint, FoundOptimizer | None]:
    """Return (checkpoint, its optimizer or None); `index` is the argument `which` of `restore`.

    If names do not show which tensors are slots, the checkpoint is a copy that is sorted anew by
    the class of `optimizer`. Errors are as for `restore`.
    """
    checkpoint = _sort_for_optimizer(checkpoint, optimizer, arguments, targets)
    return checkpoint, _find_optimizer(checkpoint, optimizer, index)


def _prepare_values(
    mapped: MappedTensors, detected: FoundOptimizer | None, global_step: Any
) -> state.Loading:
    """Return the validated writes that set the variables and `global_step`; set nothing."""
    pairs = mapped.variables()
    if global_step is not None:
        pairs.append(
            (Entry(GLOBAL_STEP, global_step), _step_count(mapped.file, detected, global_step))
        )
    problems = [line for entry, tensor in pairs if (line := entry.difference(tensor))]
    state.raise_mismatch(problems)
    return state.Loading(pairs)


def _sort_for_optimizer(
    checkpoint: TensorFlowCheckpoint,
    optimizer: Any,
    arguments: Mapping[str, object],
    targets: TargetTensors,
) -> TensorFlowCheckpoint:
    """Return the checkpoint, sorted anew into variables and slots for the class of `optimizer`.

    For `thalweg.v1`, files of `tf.train.Saver` are sorted anew. For `thalweg.keras`, Keras files
    without a Keras class and object checkpoints with unassigned slots are sorted anew. All other
    checkpoints are returned unchanged.
    """
    inner, is_class = loadings.inner_of(optimizer), inspect.isclass(optimizer)
    cls = cast(type[Any], optimizer if is_class else inner.__class__)
    if isinstance(checkpoint.source, KerasFile):
        if keras_class(checkpoint.source.class_name) is None and issubclass(cls, KerasOptimizer):
            config = dict(arguments) if is_class else inner.get_config()
            return sorted_file(checkpoint.path, checkpoint.source, base_class_name(cls), config)
        return checkpoint
    if checkpoint.graph is not None and issubclass(cls, KerasOptimizer):
        if any(detected.lost for detected in checkpoint.optimizers):
            return sorted_objects(
                checkpoint.path, checkpoint.source, checkpoint.graph, base_class_name(cls)
            )
        return checkpoint
    families: list[Family] = []
    if checkpoint.kind == "saver" and is_class and issubclass(optimizer, V1Optimizer):
        families = optimizer_factory.families_of(optimizer, arguments) or [
            Family(optimizer.__name__, "", ())
        ]
    elif checkpoint.kind == "saver" and isinstance(inner, V1Optimizer) and targets.trained:
        name = next(name for name in targets.tensors if name in targets.trained)
        families = [optimizer_factory.family_of(inner, targets.tensors[name])]
    return sorted_names(checkpoint.path, checkpoint.source, families) if families else checkpoint


def _find_optimizer(
    checkpoint: TensorFlowCheckpoint, optimizer: Any, index: int | None
) -> FoundOptimizer | None:
    """Return an optimizer of the file; None if the file has none.

    If `index` is None, return the only optimizer, or the only optimizer with the name of
    `optimizer`. Raise NotFoundError if `index` is out of range, or InvalidArgumentError if `index`
    is None and several optimizers are possible.
    """
    candidates = checkpoint.optimizers
    if index is not None:
        if not 0 <= index < len(candidates):
            raise NotFoundError(
                f"{checkpoint.path} has {len(candidates)} optimizers, none of number {index}."
            )
        return candidates[index]
    if len(candidates) > 1 and isinstance(loadings.inner_of(optimizer), V1Optimizer):
        name = loadings.inner_of(optimizer).get_name()
        named = tuple(candidate for candidate in candidates if candidate.name == name)
        candidates = named or candidates
    if len(candidates) > 1:
        optimizers = enumerate(checkpoint.optimizers)
        descriptions = "; ".join(f"{index}: {detected}" for index, detected in optimizers)
        raise InvalidArgumentError(
            f"{checkpoint.path} has {len(checkpoint.optimizers)} optimizers."
            f" Give which=...: {descriptions}."
        )
    return candidates[0] if candidates else None


def _prepare_loss_scale(
    detected: FoundOptimizer | None, arguments: dict[str, object]
) -> state.Loading:
    """Pop a `LossScale` from `arguments`; return the writes that load its state from the file.

    Return no writes if `arguments["loss_scale"]` is not a `LossScale`.

    Raises:
        InvalidArgumentError: The loss scale is not a `DynamicLossScale`.
        CheckpointMismatchError: The file has no loss scale, or an invalid one.
    """
    if not isinstance(arguments.get("loss_scale"), LossScale):
        return state.Loading()
    scale: Any = arguments.pop("loss_scale")
    if not isinstance(scale, DynamicLossScale):
        raise InvalidArgumentError(
            f"loss_scale must be a DynamicLossScale, not {show_value(scale)}."
        )
    if detected is None or not detected.loss_scale:
        raise state.mismatch(["there is no loss scale around the optimizer"])
    weights: dict[str, Any] = cast(Any, scale)._weights
    entries = [Entry(f"loss_scale/{name}", weights[name]) for name in weights]
    return state.fitting(entries, _loss_scale_values(detected), "")


def _loss_scale_values(detected: FoundOptimizer) -> dict[str, Tensor]:
    """Return {name in `MixedPrecisionLossScaleOptimizer`: tensor} of a loss scale's state."""
    values = {name: tensor.tensor() for name, tensor in detected.loss_scale.items()}
    steps = count_of(detected.loss_scale.get(STEPS))
    if steps is not None:
        # Keras 3 counts in 32 bits.
        values[STEPS] = as_count(steps, torch.int64)
    return {f"loss_scale/{name}": tensor for name, tensor in values.items()}


def _step_count(
    checkpoint: TensorFlowCheckpoint, detected: FoundOptimizer | None, variable: object
) -> Tensor:
    """Return the file's step count in the dtype of `variable`; raise if missing or too large."""
    if not isinstance(variable, Tensor):
        raise InvalidTypeError(f"global_step must be a variable, not {show_value(variable)}.")
    count = checkpoint.steps_of([detected] if detected else [])
    if count is None:
        notes = "".join(f"; {note}" for note in (detected.notes if detected else ()))
        raise state.mismatch([f"there is no count of steps for global_step{notes}"])
    return as_count(count, variable.dtype)


def _make_optimizer(
    checkpoint: TensorFlowCheckpoint,
    detected: FoundOptimizer | None,
    optimizer: Any,
    global_step: object,
    arguments: Mapping[str, object],
) -> object:
    """Return the optimizer to load: `optimizer`, or a new optimizer if it is a class or None.

    With None, the new optimizer has the class in the file. Return None if `optimizer` is False, or
    if `optimizer` is None and the file has no optimizer.
    """
    if optimizer is False or (optimizer is None and detected is None):
        if arguments:
            raise InvalidArgumentError(
                f"{', '.join(arguments)} would be of an optimizer, and there is none."
            )
        if optimizer is None:
            _require_optimizer(checkpoint)
        return None
    if optimizer is not None and detected is not None:
        optimizer_factory.check_lost(detected)
    cls: Any = optimizer
    if optimizer is None and detected is not None:
        cls = optimizer_factory.class_of(detected, checkpoint.path)
    if inspect.isclass(cls) and issubclass(cls, V1Optimizer | KerasOptimizer):
        if detected is not None:
            optimizer_factory.check_options(detected, checkpoint.path)
        constructor_arguments = dict(arguments)
        if global_step is not None and GLOBAL_STEP in inspect.signature(cls).parameters:
            constructor_arguments[GLOBAL_STEP] = global_step
        return optimizer_factory.make_wrapped(cls, detected, constructor_arguments, checkpoint)
    if not (isinstance(optimizer, V1Optimizer | KerasOptimizer) or loadings.is_training(optimizer)):
        raise InvalidTypeError(
            "optimizer must be an optimizer of thalweg.v1 or thalweg.keras, a class of one, or a"
            f" step of optimize_loss, not {show_value(optimizer)}."
        )
    if arguments:
        raise InvalidArgumentError(
            f"{', '.join(arguments)} would be of a new optimizer, and one was given."
        )
    return optimizer


def _require_optimizer(checkpoint: TensorFlowCheckpoint) -> None:
    """Raise CheckpointMismatchError for a file of a Keras model without optimizer state."""
    source = checkpoint.source
    if isinstance(source, KerasFile) and (source.kind == "keras" or source.class_name is not None):
        reason = "there is no optimizer: the model was not compiled"
        if source.class_name:
            reason = f"{source.class_name} is described, and no state of it is there"
        raise CheckpointMismatchError(
            f"{reason}."
            " Give restore(..., optimizer=...) to begin with a new one; optimizer=False reads the"
            " variables alone. Nothing was loaded."
        )


def _prepare_optimizer(
    opt: object, mapped: MappedTensors, detected: FoundOptimizer | None, is_new: bool
) -> AbstractContextManager[state.Loading]:
    """Return a context manager that yields the validated writes of the optimizer's state.

    Args:
        opt: The optimizer, or the training step that has an optimizer.
        mapped: The tensors of the file, by variable.
        detected: The optimizer in the file, or None.
        is_new: True if `opt` was made from the file, so its hyperparameters are already set.

    Raises:
        CheckpointMismatchError: The state in the file does not fit `opt`.
    """
    slots = mapped.slots(detected)
    if isinstance(loadings.inner_of(opt), NovoGrad):
        slots = loadings.with_averages(slots, mapped.file)
    stored = {} if detected is None else detected.scalars
    scalars = {name: scalar.tensor() for name, scalar in stored.items()}
    if loadings.is_training(opt):
        return loadings.loading_training(opt, mapped, slots, scalars)
    if isinstance(opt, MixedPrecisionLossScaleOptimizer) and detected is not None:
        scalars |= _loss_scale_values(detected)
    if isinstance(opt, V1Optimizer):
        return loadings.loading_v1(opt, loadings.with_moving_averages(opt, slots, mapped), scalars)
    is_zero = detected is not None and detected.hyperparameters.get("momentum") == 0
    # The constructor of a new optimizer requires the momentum, if the file does not have it.
    has_momentum = is_zero or (is_new and detected is not None and detected.family is not None)
    if has_momentum and getattr(opt, "_momentum", None) is False:
        slots = loadings.without_momentum(slots)
    arguments = {} if is_new or detected is None else detected.hyperparameters
    return loadings.loading_keras(opt, slots, scalars, arguments)
