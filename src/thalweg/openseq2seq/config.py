"""`from_config`: settings of a training from an OpenSeq2Seq config."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, distributed

from thalweg._base.execution_context import is_deferred
from thalweg._base.showing import show_value
from thalweg._graph import GraphVariable, graph_variable_of, is_symbolic
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.openseq2seq.config_checks import check_gradients, check_optimizer, check_policy, of_key
from thalweg.openseq2seq.config_keys import training_params
from thalweg.openseq2seq.micro_batches import MicroBatches, MicroBatchStep
from thalweg.openseq2seq.optimizers.lr_policies import inv_poly_decay
from thalweg.openseq2seq.optimizers.mp_wrapper import mp_regularizer_wrapper
from thalweg.openseq2seq.optimizers.optimizers import get_regularization_loss, optimize_loss
from thalweg.openseq2seq.training_length import TrainingLength, policy_params, training_length
from thalweg.variable import Variable, name_of, named_variables, to_tensor

Regularizer = Callable[[Any], Any]


def made_regularizer(regularizer: object, params: Mapping[str, object]) -> Regularizer | None:
    """Return `regularizer(**params)`, a penalty function of weights; None if `regularizer` is None.

    Raises:
        TypeError: The regularizer does not accept the parameters, or does not return a function.
    """
    if regularizer is None:
        return None
    if not callable(regularizer):
        raise InvalidTypeError(
            f"regularizer must be a function that makes a regularizer, not"
            f" {show_value(regularizer)}."
        )
    function = regularizer(**params)
    if not callable(function):
        raise InvalidTypeError(
            "regularizer must make a function of weights;"
            f" with {dict(params)} it made {function!r}."
        )
    return function


def with_penalties(
    loss: Any, regularizer: Regularizer | None, weights: Sequence[object], is_mixed: bool
) -> Any:
    """Return a new loss: `loss` in float32, plus the penalties of weights.

    In mixed precision, the penalties of float16 and bfloat16 weights are left to the optimizer. A
    symbolic loss also includes the collection REGULARIZATION_LOSSES of its graph.

    Args:
        loss: A callable without arguments, or a symbolic tensor. The new loss is of the same kind.
        regularizer: `regularizer(weight)` returns a penalty or None. None adds no penalties.
        weights: The weights to penalize.
        is_mixed: True in mixed precision.
    """
    penalize = regularizer
    if penalize is not None and is_mixed:
        penalize = mp_regularizer_wrapper(penalize)

    def total() -> Any:
        # In mixed precision a penalty is None if `mp_regularizer_wrapper` stored its function.
        penalties = [penalize(weight) for weight in weights] if penalize else []
        return sum((penalty.to(torch.float32) for penalty in penalties if penalty is not None), 0.0)

    if is_symbolic(loss):
        with loss.graph.as_default():
            return loss.to(torch.float32) + (total() + get_regularization_loss())
    return lambda: to_tensor(loss()).to(torch.float32) + total()


# Variables, or pairs of a name and a variable.
Variables = torch.nn.Module | Iterable[Any]
Chooses = Callable[[str, Any], bool]


def listed(variables: Variables) -> list[Any]:
    """Return the variables as a list, without torch tensors that require no gradient.

    Raise TypeError if an item is not a variable.

    Args:
        variables: A module, (name, variable) pairs, or variables. Parameters of a module or of
            pairs get their names for messages and checkpoints; a `Variable` keeps its name.
    """
    if isinstance(variables, torch.nn.Module):
        selected_variables: list[Any] = named_variables(variables)
    else:
        items: list[Any] = list(variables)
        are_pairs = bool(items) and all(isinstance(item_or_pair, tuple) for item_or_pair in items)
        selected_variables = named_variables(items) if are_pairs else items
    for var in selected_variables:
        if not isinstance(var, Tensor | GraphVariable):
            raise InvalidTypeError(
                "variables must be a module, its named parameters, or variables; among them is"
                f" {show_value(var)}."
            )
    return [
        var for var in selected_variables if isinstance(var, GraphVariable) or var.requires_grad
    ]


def regularized(variables: Sequence[Tensor], choose: Chooses | None) -> list[Any]:
    """Return variables selected by a function of (name, variable), by default of 2+ dimensions."""
    if choose is None:
        return [var for var in variables if len(var.shape) >= 2]
    return [var for var in variables if choose(name_of(var), var)]


def trained(variables: Sequence[Tensor], frozen: re.Pattern[str] | None) -> list[Any]:
    """Return the variables whose names do not begin with a match of `frozen`; None matches none.

    Raises:
        ValueError: No variable is left.
        TypeError: `frozen` is not None, and a variable has no name.
    """
    trained_variables = list(variables)
    if frozen is not None:
        for index, var in enumerate(variables):
            if not (isinstance(var, Variable | GraphVariable) or hasattr(var, "_thalweg_name")):
                raise InvalidTypeError(
                    f"freeze_variables_regex goes by names, but variable {index}, of shape"
                    f" {tuple(var.shape)}, has none. Give the model or its named parameters."
                )
        trained_variables = [var for var in variables if frozen.match(name_of(var)) is None]
    if not trained_variables:
        reason = f": freeze_variables_regex {frozen.pattern!r} matches all" if frozen else ""
        raise InvalidArgumentError(f"There are no variables to train{reason}.")
    return trained_variables


# Keys of a config whose values are consecutive arguments of `optimize_loss`.
_STEP_PARAMS = (
    "dtype", "max_grad_norm", "summaries", "larc_params", "loss_scaling", "loss_scaling_params",
    "use_horovod", "iter_size",
)  # fmt: skip


@dataclass(frozen=True)
class TrainingConfig:
    """Training settings of a config, made by `from_config`.

    Attributes:
        params: The training keys of the config, completed with defaults; read-only.
        lr_policy_params: The parameters of the policy, completed by `policy_params`.
        length: The length of the training.
        regularizer: `regularizer(weights)` returns a penalty; or None.
        as_shipped: True to reproduce defects of OpenSeq2Seq.
    """

    params: Mapping[str, Any]
    lr_policy_params: Mapping[str, Any]
    length: TrainingLength
    regularizer: Regularizer | None = None
    as_shipped: bool = False

    @property
    def last_step(self) -> int:
        """Updates until the end."""
        return self.length.last_step

    @property
    def steps_in_epoch(self) -> int | None:
        """Updates in one pass over the data; None if the config counts steps."""
        return self.length.steps_in_epoch

    def learning_rate(self, global_step: object) -> Any:
        """Return the policy's learning rate at a global step: a number, a tensor, or a callable."""
        return self.params["lr_policy"](global_step=global_step, **self.lr_policy_params)

    def optimize(
        self,
        loss: Any,
        variables: Variables,
        *,
        regularize: Chooses | None = None,
        skip_update_ph: object = None,
        model: object = None,
        global_step: object = None,
        all_reduce: Callable[[Any], object] | None = None,
        summary_writer: object = None,
    ) -> Any:
        """Return a training step, made by `optimize_loss`.

        The loss is cast to float32, and the penalties of the config's regularizer are added. In
        mixed precision, penalties of float16 and bfloat16 variables change the gradients of the
        float32 masters, but not the loss. In graph mode the loss also includes the collection
        REGULARIZATION_LOSSES.

        Args:
            loss: A callable without arguments; in graph mode a symbolic tensor.
            variables: The model, its named parameters, or variables. A variable is not trained
                if it needs no gradient, or if `freeze_variables_regex` matches its name.
            regularize: Optional. `regularize(name, variable)` returns True to penalize the
                variable; `name` is for example "conv.weight:0". By default variables of two or more
                dimensions are penalized.
            skip_update_ph: For an `iter_size` above 1, see `optimize_loss`; required in graph mode.
                By default in eager mode every `iter_size`-th call makes an update.
            model, global_step, all_reduce, summary_writer: See `optimize_loss`.

        Returns:
            In graph mode a tensor. In eager mode a `TrainingStep`, or a `MicroBatchStep` that
            counts calls. A run or call takes a step and returns the loss before the step.

        Raises:
            ValueError: There is nothing to train, or `optimize_loss` rejects a value.
            TypeError: The loss or a variable has an unsupported type, a variable has no name for
                `freeze_variables_regex`, or `optimize_loss` rejects a type.
        """
        params = self.params
        in_graph = _is_graph_loss(loss)
        everything = listed(variables)
        if in_graph:
            with loss.graph.as_default():
                everything = [graph_variable_of(var) for var in everything]
        weights = regularized(everything, regularize)
        is_mixed = params["dtype"] == "mixed"
        batches = None
        if params["iter_size"] > 1 and skip_update_ph is None and not in_graph:
            batches = MicroBatches(params["iter_size"], short_first=self.as_shipped)
            skip_update_ph = batches.skips
        # `optimize_loss` changes the parameters of its caller `as_shipped`, hence the copy.
        step = optimize_loss(
            with_penalties(loss, self.regularizer, weights, is_mixed),
            params["optimizer"],
            copy.deepcopy(params["optimizer_params"]),
            self.learning_rate,
            trained(everything, _compile_pattern(params["freeze_variables_regex"])),
            *map(params.__getitem__, _STEP_PARAMS),
            skip_update_ph=skip_update_ph,
            model=model,
            global_step=global_step,
            all_reduce=all_reduce,
            summary_writer=summary_writer,
            as_shipped=self.as_shipped,
        )
        return step if batches is None else MicroBatchStep(step, batches)


def _is_graph_loss(loss: Any) -> bool:
    """Return True if a loss is of a graph; raise InvalidTypeError if it is not a loss."""
    in_graph = is_deferred(loss)
    if not is_symbolic(loss) and (in_graph or not callable(loss)):
        kind = "a tensor of the graph" if in_graph else "a callable that returns the loss"
        raise InvalidTypeError(f"loss must be {kind}, not {show_value(loss)}.")
    return in_graph


def from_config(
    base_params: Mapping[str, object],
    *,
    dataset_size: int | None = None,
    workers: int | None = None,
    as_shipped: bool = False,
) -> TrainingConfig:
    """Return the settings of a model's training, from a config in OpenSeq2Seq's format.

    Args:
        base_params: A dict. `optimizer` and `lr_policy` are required, and `max_steps` or
            `num_epochs`. See `optimize_loss` for other keys. Keys about data, model and logs are
            ignored. The dict is not changed.
        dataset_size: Examples in the data of all workers; needed with `num_epochs`.
        workers: The number of workers. By default 1; with `use_horovod`, the size of
            torch.distributed's default group if it is initialised.
        as_shipped: True to reproduce defects of OpenSeq2Seq: see `optimize_loss`. Also, an
            `iter_size` above 1 raises without `use_horovod`, and the first update uses only the
            first batch.

    Raises:
        ValueError: A key is missing or unknown, a value is invalid, a name of an optimizer, summary
            or algorithm is unknown, or the training length is invalid; see `training_length` and
            `policy_params`.
        TypeError: The policy, optimizer or regularizer is not callable, or does not accept its
            parameters.
        KeyError: "AdamW" without `weight_decay`.
        AttributeError: There are both `max_grad_norm` and `larc_params`.

    Example:
        >>> from thalweg import Variable
        >>> from thalweg.openseq2seq.optimizers.lr_policies import poly_decay
        >>> base_params = {
        ...     "optimizer": "Momentum",
        ...     "optimizer_params": {"momentum": 0.9},
        ...     "lr_policy": poly_decay,
        ...     "lr_policy_params": {"learning_rate": 0.5},
        ...     "max_grad_norm": 1.0,
        ...     "num_epochs": 2,
        ...     "batch_size_per_gpu": 16,
        ... }
        >>> train = from_config(base_params, dataset_size=160)
        >>> train.last_step
        20
        >>> w = Variable([3.0, 4.0], name="w")
        >>> step = train.optimize(lambda: (w * w).sum(), [w])
        >>> step(), step()
        (tensor(25.), tensor(20.2500))

    Reference: OpenSeq2Seq, models.Model
    """
    params = copy.deepcopy(training_params(base_params))
    if as_shipped and params["iter_size"] > 1 and not params["use_horovod"]:
        raise InvalidArgumentError("iter_size is only supported in Horovod mode.")
    _compile_pattern(params["freeze_variables_regex"])
    check_optimizer(params)
    check_gradients(params, as_shipped)
    length = training_length(
        max_steps=params["max_steps"],
        num_epochs=params["num_epochs"],
        dataset_size=dataset_size,
        batch_size_per_gpu=params["batch_size_per_gpu"],
        workers=_count_workers(params["use_horovod"]) if workers is None else workers,
        iter_size=params["iter_size"],
    )
    policy = params["lr_policy"]
    all_params = policy_params(policy, params["lr_policy_params"], length)
    if as_shipped and policy is inv_poly_decay:
        all_params.setdefault("as_shipped", True)
    check_policy(policy, all_params, length.last_step)
    with of_key("regularizer_params"):
        regularizer = made_regularizer(params["regularizer"], params["regularizer_params"])
    return TrainingConfig(
        MappingProxyType(params), MappingProxyType(all_params), length, regularizer, as_shipped
    )


def _count_workers(use_horovod: bool) -> int:
    has_group = distributed.is_available() and distributed.is_initialized()
    return distributed.get_world_size() if use_horovod and has_group else 1


def _compile_pattern(regex: Any) -> re.Pattern[str] | None:
    """Return the compiled regular expression; return None for None.

    Raise InvalidArgumentError if `regex` is not a regular expression.
    """
    if regex is None:
        return None
    try:
        return re.compile(regex)
    except (re.error, TypeError) as error:
        raise InvalidArgumentError(
            f"freeze_variables_regex must be a regular expression or None, not"
            f" {show_value(regex)}: {error}."
        ) from error
