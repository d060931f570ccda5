"""`from_config`: settings of a training from an OpenSeq2Seq config."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from torch import distributed

from thalweg._base.execution_context import is_deferred
from thalweg._base.showing import show_value
from thalweg._graph import graph_variable_of, is_symbolic
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.openseq2seq.config_checks import check_gradients, check_optimizer, check_policy, of_key
from thalweg.openseq2seq.config_keys import training_params
from thalweg.openseq2seq.micro_batches import MicroBatches, MicroBatchStep
from thalweg.openseq2seq.optimizers.lr_policies import inv_poly_decay
from thalweg.openseq2seq.optimizers.optimizers import optimize_loss
from thalweg.openseq2seq.regularized_loss import Regularizer, made_regularizer, with_penalties
from thalweg.openseq2seq.training_length import TrainingLength, policy_params, training_length
from thalweg.openseq2seq.variable_selection import Chooses, Variables, listed, regularized, trained

# Keys of a config whose values are consecutive arguments of `optimize_loss`.
_STEP_PARAMS = (
    "dtype", "max_grad_norm", "summaries", "larc_params", "loss_scaling", "loss_scaling_params",
    "use_horovod", "iter_size",
)  # fmt: skip


@dataclass(frozen=True)
class TrainingConfig:
    """Training settings of a config, made by `from_config`.

    Attributes:
        params: The keys of the config that are about training, with defaults for those that it
            leaves out. It cannot be changed.
        lr_policy_params: The parameters of the policy, completed by `policy_params`.
        length: The length of the training.
        regularizer: A function of weights that returns their penalty, or None.
        as_shipped: Whether defects of OpenSeq2Seq are computed as well.
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
        """Return a step of training; see `optimize_loss`, which makes it.

        The loss is cast to float32, and the penalties of the config's regularizer are added to it;
        in mixed precision those of float16 and bfloat16 variables act on the float32 masters
        instead, and are in no loss. In graph mode the penalties of the graph's collection
        REGULARIZATION_LOSSES are added, too.

        Args:
            loss: A callable without arguments; in graph mode a symbolic tensor.
            variables: The model, its named parameters, or variables. Those that need no gradient
                and those that `freeze_variables_regex` matches are not trained.
            regularize: Optional. Takes the name of a variable, such as "conv.weight:0", and the
                variable; returns whether the regularizer is for it. By default it is for all of
                two dimensions or more, which leaves biases and scales alone.
            skip_update_ph: Optional, for an `iter_size` above 1. By default every `iter_size`-th
                call makes an update in eager mode; a graph needs a placeholder.
            model, global_step, all_reduce, summary_writer: See `optimize_loss`.

        Returns:
            In eager mode a `TrainingStep`, or a `MicroBatchStep` that counts the calls. In graph
            mode a tensor for a session. Both make a step and give the loss from before it.

        Raises:
            ValueError: There is nothing to train, or `optimize_loss` refuses a value.
            TypeError: The loss or a variable is none, a variable has no name where
                `freeze_variables_regex` needs one, or `optimize_loss` refuses a type.
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
        base_params: A dict. `optimizer` and `lr_policy` are required, and one of `max_steps` and
            `num_epochs`; see `optimize_loss` for what the others mean. A whole config may be
            given: the keys about data, model and logs are left alone. It is not changed.
        dataset_size: Examples in the data of all workers; needed with `num_epochs`.
        workers: How many share the data. By default the size of torch.distributed's default group
            if the config has `use_horovod` and a group is initialised, else 1.
        as_shipped: Whether defects of OpenSeq2Seq are computed as well: those of `optimize_loss`;
            an `iter_size` above 1 is refused without `use_horovod`; and the first update is made
            of one batch alone.

    Raises:
        ValueError: A key is missing or unknown, a value of another type or out of range, a name of
            an optimizer, a summary or an algorithm unknown, or the length of the training means
            nothing; see `training_length` and `policy_params`.
        TypeError: The policy, the optimizer or the regularizer is no function, or does not take
            the parameters that the config has for it.
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
    """Return the compiled regular expression, or None for None.

    Raises:
        InvalidArgumentError: `regex` is not a regular expression.
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
