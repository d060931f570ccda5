"""TensorFlow's private modules that optimizers and their tests import.

Each has names that are public elsewhere: `tensorflow.python.ops.math_ops.square` is
`tf.square`. Other names raise errors.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import importlib
import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch

from thalweg import _graph as graphs
from thalweg._base.execution_context import eagerly, first_graph
from thalweg._base.scatter import UPDATES
from thalweg.distribute import ReduceOp
from thalweg.tf.control import colocate_with, function
from thalweg.tf.module_views import MergedModules
from thalweg.tf.variables import Variable

_PUBLIC = ("compat.v1", "compat.v1.math", "compat.v1.nn", "compat.v1.linalg", "compat.v1.random")
_TRAIN = ("compat.v1.train", "compat.v1")
_KERAS = ("keras.optimizers", "keras.optimizers.schedules")

# Names of TensorFlow's modules, and the modules of `tf` that have what they define.
_TABLE = (
    (
        "client.session eager.backprop eager.context framework.constant_op framework.dtypes"
        " framework.indexed_slices framework.ops framework.random_seed framework.tensor"
        " framework.tensor_conversion framework.tensor_shape framework.tensor_util ops.array_ops"
        " ops.check_ops ops.clip_ops ops.cond ops.control_flow_ops ops.custom_gradient"
        " ops.data_flow_ops ops.embedding_ops ops.gen_array_ops ops.gen_math_ops ops.gen_nn_ops"
        " ops.gen_state_ops ops.gradients ops.gradients_impl ops.gradients_util ops.init_ops"
        " ops.linalg_ops ops.math_ops ops.nn ops.nn_impl ops.nn_ops ops.partitioned_variables"
        " ops.random_ops ops.ref_variable ops.resource_variable_ops ops.resources ops.state_ops"
        " ops.tensor_array_ops ops.variable_scope ops.variable_v1 ops.variables",
        _PUBLIC,
    ),
    (
        "checkpoint.checkpoint pywrap_tensorflow training.adadelta training.adagrad"
        " training.adagrad_da training.adam training.basic_session_run_hooks"
        " training.checkpoint_management training.checkpoint_utils training.coordinator"
        " training.ftrl training.gradient_descent training.learning_rate_decay training.momentum"
        " training.monitored_session training.moving_averages training.optimizer"
        " training.proximal_adagrad training.proximal_gradient_descent training.queue_runner"
        " training.queue_runner_impl training.rmsprop training.saver training.session_manager"
        " training.session_run_hook training.sync_replicas_optimizer training.tracking.util"
        " training.training_util",
        _TRAIN,
    ),
    (
        "keras.optimizers keras.optimizer_v2.adadelta keras.optimizer_v2.adagrad"
        " keras.optimizer_v2.adam keras.optimizer_v2.adamax keras.optimizer_v2.ftrl"
        " keras.optimizer_v2.gradient_descent keras.optimizer_v2.nadam"
        " keras.optimizer_v2.optimizer_v2 keras.optimizer_v2.rmsprop",
        _KERAS,
    ),
    ("keras.optimizer_v2.learning_rate_schedule", ("keras.optimizers.schedules",)),
    ("data.ops.dataset_ops data.ops.iterator_ops", ("data", "compat.v1.data")),
    (
        "distribute.distribute_lib distribute.distribution_strategy_context"
        " distribute.mirrored_strategy distribute.reduce_util"
        " training.distribution_strategy_context",
        ("distribute",),
    ),
    ("eager.def_function eager.function", ("",)),
    ("framework.errors framework.errors_impl", ("errors",)),
    ("keras.engine.input_layer", ("keras.layers", "keras")),
    ("keras.engine.sequential keras.engine.training", ("keras.models",)),
    ("keras.layers.core", ("keras.layers",)),
    ("keras.utils.np_utils", ("keras.utils",)),
    ("lib.io.file_io", ("gfile", "io.gfile")),
    ("platform.googletest platform.test", ("test",)),
    ("platform.tf_logging", ("compat.v1.logging",)),
    ("summary.summary", ("compat.v1.summary",)),
    ("training.training", ("compat.v1.train",)),
    ("util.nest", ("nest",)),
)
_MODULES_BY_NAME = {
    **{name: modules for names, modules in _TABLE for name in names.split()},
    **{f"platform.{name}": (f"compat.v1.{name}",) for name in ("app", "flags", "gfile")},
    **{
        name: (name,)
        for name in (
            "keras", "keras.backend", "keras.callbacks", "keras.initializers", "keras.layers",
            "keras.losses", "keras.models", "keras.regularizers",
        )
    },
}  # fmt: skip
_TRACKABLE = ("trackable.base", "training.tracking.base", "training.checkpointable.base")
# Modules of which some or all names are not below `tf`.
_ELSEWHERE = {
    "keras.optimizer_v2.optimizer_v2": "thalweg.keras.optimizers.optimizer",
    "ops.gen_training_ops": "thalweg.v1.training_ops",
    "training.experimental.loss_scale": "thalweg.v1.train.experimental.loss_scale",
    "training.experimental.loss_scale_optimizer": (
        "thalweg.v1.train.experimental.loss_scale_optimizer"
    ),
    "training.moving_averages": "thalweg.v1.train.moving_averages",
    "training.optimizer": "thalweg.v1.train.optimizer",
    "training.slot_creator": "thalweg.v1.train.slot_creator",
    "training.training_util": "thalweg.v1.train.global_step",
    "training.gen_training_ops": "thalweg.v1.training_ops",
    "training.training_ops": "thalweg.v1.training_ops",
    **dict.fromkeys(_TRACKABLE, "thalweg._core.trackable"),
}


class SaveType(enum.StrEnum):
    """Kind of saving: an argument of `_trackable_children`."""

    SAVEDMODEL = "savedmodel"
    CHECKPOINT = "checkpoint"


# Each rank has variables of its own, which no container holds.
_DISTRIBUTED: dict[str, object] = {
    "get_loss_reduction": lambda: ReduceOp.SUM,
    "is_distributed_variable": lambda value: False,
    "is_mirrored": lambda value: False,
    "is_sync_on_read": lambda value: False,
    "value_container": lambda value: value,
}


@contextlib.contextmanager
def _graph_mode() -> Iterator[None]:
    with graphs.Graph().as_default():
        yield


def _ignore_decorator(*arguments: object, **options: object) -> Callable[[Any], object]:
    return lambda symbol: symbol


def _name_scope(
    name: str | None,
    default_name: str | None = None,
    values: Any = None,
    skip_on_eager: bool = True,
) -> Any:
    return graphs.name_scope(name, default_name, values)


def _bfloat16_type() -> Any:
    """Return the scalar type that NumPy arrays of bfloat16 have."""
    bfloat16: Any = torch.bfloat16
    return bfloat16.as_numpy_dtype


def _is_resource(var: object) -> bool:
    """Return True if `var` is a resource variable, as eager variables are."""
    return isinstance(var, Variable) and getattr(var, "is_resource", True)


class _Resources(type):
    """Metaclass of a class with all resource variables as instances."""

    def __instancecheck__(cls, instance: object) -> bool:
        return _is_resource(instance)


class ResourceVariable(metaclass=_Resources):
    """`tf.compat.v1.Variable` with `use_resource=True`."""

    def __new__(cls, *args: object, **kwargs: object) -> Any:
        return _attribute_at("compat.v1.Variable")(*args, **kwargs, use_resource=True)


_EXTRA_NAMES: dict[str, dict[str, object]] = {
    "distribute.distribute_utils": _DISTRIBUTED,
    **{name: {"SaveType": SaveType} for name in (*_TRACKABLE, "trackable.constants")},
    "eager.context": {
        "DEVICE_PLACEMENT_SILENT": 2,
        "device_policy": colocate_with,
        "eager_mode": eagerly,
        "graph_mode": _graph_mode,
        "num_gpus": torch.cuda.device_count,
        "xla_sharding_for_resource_variables_enabled": lambda: False,
    },
    "eager.function": {"defun": function},
    # There are no tensors of this dtype.
    "framework.dtypes": {"resource": "resource"},
    "framework.indexed_slices": {"IndexedSlicesValue": graphs.IndexedSlicesValue},
    "framework.ops": {
        "IndexedSlicesValue": graphs.IndexedSlicesValue,
        "_get_graph_from_inputs": lambda op_input_list, graph=None: (
            graph or first_graph(op_input_list)
        ),
        "colocate_with": colocate_with,
        "name_scope": _name_scope,
    },
    "framework.tensor_shape": {"dimension_value": lambda dimension: dimension},
    # There are no resources other than variables.
    "ops.resources": {"local_resources": list, "shared_resources": list},
    "ops.resource_variable_ops": {
        "ResourceVariable": ResourceVariable,
        "is_resource_variable": _is_resource,
    },
    "lib.core._pywrap_bfloat16": {"TF_bfloat16_type": _bfloat16_type},
    "pywrap_tensorflow": {"TF_bfloat16_type": _bfloat16_type},
    "util.tf_contextlib": {"contextmanager": contextlib.contextmanager},
    "util.deprecation": dict.fromkeys(
        ("deprecated", "deprecated_args", "deprecated_arg_values", "deprecated_endpoints"),
        _ignore_decorator,
    ),
    "util.tf_export": {"keras_export": _ignore_decorator, "tf_export": _ignore_decorator},
}
# {module: {name: path of the attribute below `tf`}} of further names, looked up at the import.
_RENAMED: dict[str, dict[str, str]] = {
    "framework.ops": {"convert_to_tensor_v2": "convert_to_tensor"},
    "framework.tensor_conversion": {"convert_to_tensor_v2": "convert_to_tensor"},
    "keras.optimizer_v2.optimizer_v2": {"OptimizerV2": "keras.optimizers.Optimizer"},
    "ops.resource_variable_ops": {
        "BaseResourceVariable": "compat.v1.Variable",
        "assign_add_variable_op": "compat.v1.assign_add",
        **{f"resource_scatter_{update}": f"compat.v1.scatter_{update}" for update in UPDATES},
    },
    "ops.resources": {"initialize_resources": "compat.v1.variables_initializer"},
    "ops.variable_scope": {"variable": "compat.v1.Variable"},
    **{
        name: dict.fromkeys(("RefVariable", "VariableV1"), "compat.v1.Variable")
        for name in ("ops.ref_variable", "ops.variable_v1", "ops.variables")
    },
}
_NAMES = {*_MODULES_BY_NAME, *_ELSEWHERE, *_EXTRA_NAMES}
_PACKAGES = {"", *(name[:end] for name in _NAMES for end, sign in enumerate(name) if sign == ".")}


def has(fullname: str) -> bool:
    """Return True if a module below `tensorflow.python` is available."""
    return fullname.removeprefix("tensorflow.python").removeprefix(".") in _NAMES | _PACKAGES


def module(fullname: str) -> MergedModules:
    """Return the module of the full name, such as "tensorflow.python.framework.ops".

    Raise AttributeError if the module is not available.
    """
    name = fullname.removeprefix("tensorflow.python").removeprefix(".")
    is_python = fullname.startswith("tensorflow.python")
    if not is_python or not has(fullname):
        parent, _, attribute = name.rpartition(".")
        if is_python and parent in _NAMES:
            # A missing name raises here, with a message about the parent module.
            getattr(module(f"tensorflow.python.{parent}"), attribute)
        raise AttributeError(
            "it is private to TensorFlow, and no optimizer imports it. Look for what it has in"
            " tf.compat.v1, or in torch.",
            name=name,
        )
    renamed = {label: _attribute_at(path) for label, path in _RENAMED.get(name, {}).items()}
    extras = {**_EXTRA_NAMES.get(name, {}), **renamed}
    return MergedModules(fullname, list(_candidates_for(name)), extras)


def _candidates_for(name: str) -> Iterator[object]:
    if name in _ELSEWHERE:
        yield importlib.import_module(_ELSEWHERE[name])
    for path in _MODULES_BY_NAME.get(name, ()):
        with contextlib.suppress(AttributeError):
            yield _attribute_at(path)


@functools.cache
def _attribute_at(path: str) -> Any:
    facade = importlib.import_module("thalweg.tf")
    return operator.attrgetter(path)(facade) if path else facade
