"""TensorFlow's private modules have the private names that optimizers ask them for."""

from __future__ import annotations

from pathlib import Path

import pytest

import fresh_process
import thalweg.tf as tf
from case_batches import many
from thalweg.tf import private_modules
from thalweg.v1 import train

PRIVATE_NAMES = {
    "distribute.distribute_utils": "get_loss_reduction is_distributed_variable value_container",
    "trackable.base": "SaveType Trackable TrackableReference",
    "trackable.constants": "SaveType",
    "training.tracking.base": "Trackable",
    "eager.context": "DEVICE_PLACEMENT_SILENT device_policy eager_mode graph_mode num_gpus",
    "eager.function": "defun",
    "framework.dtypes": "float32 resource",
    "framework.indexed_slices": "IndexedSlices IndexedSlicesValue",
    "framework.ops": "_get_graph_from_inputs colocate_with control_dependencies convert_to_tensor"
    " convert_to_tensor_or_indexed_slices convert_to_tensor_v2 IndexedSlices IndexedSlicesValue"
    " Tensor",
    "framework.tensor_conversion": "convert_to_tensor convert_to_tensor_v2",
    "keras": "optimizers",
    "keras.optimizer_v2.learning_rate_schedule": "LearningRateSchedule deserialize serialize",
    "keras.optimizer_v2.optimizer_v2": "OptimizerV2 _deduplicate_indexed_slices _var_key",
    "ops.variable_scope": "get_variable variable variable_scope",
    "util.nest": "flatten map_structure pack_sequence_as",
    "framework.tensor_shape": "dimension_value TensorShape",
    "ops.cond": "cond",
    "lib.core._pywrap_bfloat16": "TF_bfloat16_type",
    "ops.partitioned_variables": "fixed_size_partitioner min_max_variable_partitioner"
    " variable_axis_size_partitioner",
    "pywrap_tensorflow": "NewCheckpointReader TF_bfloat16_type",
    "ops.ref_variable": "RefVariable",
    "ops.resource_variable_ops": "BaseResourceVariable ResourceVariable assign_add_variable_op"
    " is_resource_variable resource_scatter_add"
    " resource_scatter_sub resource_scatter_update",
    "ops.resources": "initialize_resources local_resources shared_resources",
    "ops.state_ops": "assign assign_sub scatter_add scatter_sub scatter_update",
    "ops.variable_v1": "VariableV1",
    "ops.variables": "RefVariable VariableV1 moving_average_variables",
    "training.experimental.loss_scale": "DynamicLossScale FixedLossScale get",
    "training.experimental.loss_scale_optimizer": "MixedPrecisionLossScaleOptimizer",
    "training.moving_averages": "ExponentialMovingAverage assign_moving_average"
    " weighted_moving_average",
    "training.optimizer": "Optimizer _deduplicate_indexed_slices _get_processor"
    " _DenseResourceVariableProcessor _OptimizableVariable _RefVariableProcessor _TensorProcessor"
    " _var_key get_filtered_grad_fn",
    "training.slot_creator": "create_slot create_slot_with_initializer create_zeros_slot",
    "training.training_util": "get_or_create_global_step _increment_global_step",
    "util.tf_contextlib": "contextmanager",
}


@many("path", list(PRIVATE_NAMES))
def test_private_names_are_available(path: str) -> None:
    module = private_modules.module(f"tensorflow.python.{path}")
    for name in PRIVATE_NAMES[path].split():
        assert getattr(module, name) is not None


def test_private_names_are_library_objects() -> None:
    ops = private_modules.module("tensorflow.python.framework.ops")
    resources = private_modules.module("tensorflow.python.ops.resource_variable_ops")
    averages = private_modules.module("tensorflow.python.training.moving_averages")
    w = tf.Variable([1.0, 2.0])
    with ops.colocate_with(w, ignore_existing=True):
        resources.resource_scatter_add(w.handle, [1], [3.0])
    assert (w.numpy().tolist(), resources.is_resource_variable(w)) == ([1.0, 5.0], True)
    assert averages.assign_moving_average is train.assign_moving_average
    with pytest.raises(AttributeError, match="private to TensorFlow"):
        _ = private_modules.module("tensorflow.python.training.optimizer").no_such_name


def test_resources_are_initialized() -> None:
    resources = private_modules.module("tensorflow.python.ops.resources")
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        w = tf.Variable([1.0, 2.0])
        session.run(resources.initialize_resources([w]))
        session.run(resources.initialize_resources(resources.shared_resources()))
        assert session.run(w).tolist() == [1.0, 2.0]


def test_schedules_are_read_as_schedules() -> None:
    module = private_modules.module("tensorflow.python.keras.optimizer_v2.learning_rate_schedule")
    schedule = module.ExponentialDecay(0.5, 10, 0.25)
    new_schedule = module.deserialize(module.serialize(schedule))
    assert new_schedule.get_config() == schedule.get_config()


def test_graph_is_found_from_inputs() -> None:
    find = private_modules.module("tensorflow.python.framework.ops")._get_graph_from_inputs
    with tf.Graph().as_default() as graph:
        x = tf.constant(1.0)
    with tf.Graph().as_default() as other_graph:
        assert find([x]) is graph
        assert find([1.0]) is other_graph
        assert find([x], other_graph) is other_graph
    assert graph._graph_key != other_graph._graph_key


def test_modules_of_replicas_and_of_checkpoints_are_imported_in_scripts(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        """
from tensorflow.python.distribute import distribute_utils
from tensorflow.python.distribute import reduce_util
from tensorflow.python.framework import ops
from tensorflow.python.trackable import base as trackable
from tensorflow.python.training import optimizer
import tensorflow as tf

w = tf.Variable([1.0, 2.0])
assert distribute_utils.value_container(w) is w
assert not distribute_utils.is_distributed_variable(w)
assert distribute_utils.get_loss_reduction() == reduce_util.ReduceOp.SUM
assert trackable.SaveType.CHECKPOINT == "checkpoint"
assert issubclass(optimizer.Optimizer, trackable.Trackable)
with ops.name_scope(None, "scope", [w], skip_on_eager=False) as name:
    assert name == "scope/", name


class Saved(trackable.Trackable):
    def __init__(self):
        self.w = self._track_trackable(w, name="w")


saved = Saved()
assert saved._trackable_children(save_type=trackable.SaveType.CHECKPOINT) == {"w": w}
path = tf.train.Checkpoint(saved=saved).save(FOLDER + "/ckpt")
w.assign([0.0, 0.0])
tf.train.Checkpoint(saved=saved).restore(path).assert_consumed()
assert w.numpy().tolist() == [1.0, 2.0]
print("done")
""".replace("FOLDER", repr(str(tmp_path)))
    )
    process = fresh_process.run("-m thalweg.tf", str(script))
    assert (process.stdout, process.returncode) == ("done\n", 0), process.stderr
