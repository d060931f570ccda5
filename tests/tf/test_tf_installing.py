"""Scripts that import tensorflow, with `thalweg.tf` in its place."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

import fresh_process
import thalweg
from thalweg.errors import FailedPreconditionError, InvalidArgumentError
from thalweg.tf import install

VERSION_2 = """
import importlib.util
import sys

import tensorflow as tf
import tensorflow.compat.v1 as tf1
import tensorflow.keras.optimizers as optimizers
from tensorflow.io import gfile
from tensorflow.keras import optimizers as again
from tensorflow.keras.optimizers.schedules import ExponentialDecay
from tensorflow.python.eager import context
from tensorflow.python.framework import ops
from tensorflow.python.keras.optimizer_v2 import adam
from tensorflow.python.ops import math_ops, resource_variable_ops
from tensorflow.python.training import optimizer, training_ops
from tensorflow.python.util.tf_export import tf_export

import thalweg
from thalweg.keras.optimizers import Adam

print(__name__, sys.argv[1:])
assert tf.Variable is thalweg.tf.Variable and tf.keras.optimizers.Adam is Adam
assert tf1.Session is thalweg.tf.compat.v1.Session and gfile.exists is tf.io.gfile.exists
assert again.Adam is optimizers.Adam is adam.Adam and ExponentialDecay(0.1, 1, 0.5)(1) == 0.05
assert ops.Graph is tf.Graph and math_ops.square is tf1.square
assert optimizer.Optimizer is thalweg.v1.train.Optimizer
assert training_ops.apply_adam is thalweg.v1.training_ops.apply_adam
assert issubclass(tf_export("a")(int), int) and context.executing_eagerly()
assert isinstance(tf.Variable(1.0), resource_variable_ops.ResourceVariable)
assert importlib.util.find_spec("tensorflow").name == tf.__name__ == "tensorflow"
assert importlib.util.find_spec("tensorflow.keras") is not None
assert importlib.util.find_spec("tensorflow.nothing") is None
assert "Session" in dir(tf1) and "square" in dir(math_ops)
for line in (
    "import tensorflow.lite",
    "from tensorflow import estimator",
    "from tensorflow.keras.optimizers import Adamm",
    "import tensorflow.python.ops.ctc_ops",
    "from tensorflow.python.ops.math_ops import bucketize",
    "import tensorflow.square",
):
    try:
        exec(line)
    except ImportError as error:
        print(error)
try:
    tf1.placeholder(tf.float32)
except RuntimeError:
    tf1.disable_v2_behavior()
print(tf1.placeholder(tf.float32).shape, tf.__version__)
"""

OUTPUT = [
    "__main__ ['--rate', '0.1']",
    "Cannot import tensorflow.lite: thalweg.tf has no 'lite'; use torch.export.",
    "Cannot import tensorflow.estimator: thalweg.tf has no 'estimator'; use tf.keras.Model.",
    "Cannot import tensorflow.keras.optimizers.Adamm: thalweg.tf has no"
    " 'keras.optimizers.Adamm'; Did you mean 'Adam'?",
    "Cannot import tensorflow.python.ops.ctc_ops: it is private to TensorFlow, and no optimizer"
    " imports it. Look for what it has in tf.compat.v1, or in torch.",
    "Cannot import tensorflow.python.ops.math_ops.bucketize: thalweg has no"
    " tensorflow.python.ops.math_ops.bucketize: the module is private to TensorFlow, and only"
    " names that are public elsewhere too are found in it. Look for a function of tf.compat.v1,"
    " or of torch.",
    "Cannot import tensorflow.square: tensorflow.square is no module, but a name of one.",
    "<unknown> 2.16.0",
]


def test_version_2_script_runs(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(VERSION_2)
    process = fresh_process.run("-m thalweg.tf", str(script), "--rate", "0.1")
    assert process.stdout.splitlines() == OUTPUT, process.stderr


VERSION_1 = """
import tensorflow as tf
import helper
from tensorflow.contrib.framework import get_or_create_global_step
from tensorflow.contrib.opt import AdamWOptimizer
from tensorflow.python.training import optimizer

step = get_or_create_global_step()
assert step is tf.contrib.framework.get_global_step() is tf.train.get_global_step()
w = tf.Variable([1.0, 2.0], name="w")
assert tf.contrib.framework.get_variables("w") == [w]
assert tf.contrib.framework.get_variables(suffix="step") == [step]
assert tf.contrib.framework.get_trainable_variables() == [w]
x = tf.placeholder(tf.float32, [2])
loss = tf.reduce_mean(tf.square(w - x), reduction_indices=[0])
train = tf.train.GradientDescentOptimizer(0.5).minimize(loss)
assert isinstance(tf.train.AdamOptimizer(), optimizer.Optimizer)
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    session.run(train, {x: [0.0, 0.0]})
    print(session.run(w), tf.__version__, helper.CONSTANT.graph is w.graph)
"""


@pytest.mark.parametrize("arguments", [["--version", "1"], []])
def test_version_1_script_runs(tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "script.py").write_text(VERSION_1)
    (tmp_path / "helper.py").write_text("import tensorflow as tf\nCONSTANT = tf.constant(1)\n")
    process = fresh_process.run("-m thalweg.tf", *arguments, str(tmp_path / "script.py"))
    assert process.stdout == "[0.5 1. ] 1.15.0 True\n", process.stderr


OPENSEQ2SEQ = """
import tensorflow as tf
import open_seq2seq.optimizers.novograd
from open_seq2seq.optimizers import get_regularization_loss, lr_policies, optimize_loss
from open_seq2seq.optimizers.lr_policies import poly_decay
from open_seq2seq.optimizers.mp_wrapper import MixedPrecisionOptimizerWrapper
from open_seq2seq.optimizers.optimizers import OPTIMIZER_CLS_NAMES, reduce_gradients

assert lr_policies.poly_decay is poly_decay
w = tf.get_variable("w", initializer=[3.0, 4.0])
train = optimize_loss(
    tf.reduce_sum(w * w),
    open_seq2seq.optimizers.novograd.NovoGrad,
    {},
    lambda step: poly_decay(step, 0.5, 10),
)
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    print(session.run(train))
    print(session.run(w))
for line in ("import open_seq2seq.models", "from open_seq2seq.optimizers import nothing"):
    try:
        exec(line)
    except ImportError as error:
        print(error)
"""
OPENSEQ2SEQ_SAID = [
    "25.0",
    "[2.7 3.6]",
    "Cannot import open_seq2seq.models: thalweg has open_seq2seq.optimizers, which trains."
    " Models, data and losses are torch's.",
    "Cannot import open_seq2seq.optimizers.nothing: thalweg has open_seq2seq.optimizers, which"
    " trains. Models, data and losses are torch's.",
]


def test_script_importing_openseq2seq_runs(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(OPENSEQ2SEQ)
    process = fresh_process.run("-m thalweg.tf", str(script))
    assert process.stdout.splitlines() == OPENSEQ2SEQ_SAID, process.stderr
    (tmp_path / "open_seq2seq").mkdir()
    (tmp_path / "open_seq2seq" / "__init__.py").write_text("WHERE = 'its own'\n")
    script.write_text("import tensorflow\nfrom open_seq2seq import WHERE\nprint(WHERE)\n")
    process = fresh_process.run("-m thalweg.tf", str(script))
    assert process.stdout == "its own\n", process.stderr


# What packages do that look for a TensorFlow of their own; each is imported after the script's.
NEIGHBOURS = """
import importlib.util
import tempfile
import thalweg

thalweg.install_as_tensorflow()
thalweg.install_as_tensorflow()
import tensorflow as tf
import torch


def asks(package):
    found = {"__name__": package + ".utils"}
    code = "import importlib.util\\ndef spec(name): return importlib.util.find_spec(name)"
    exec(code, found)
    return found["spec"]("tensorflow.math")


print(asks("transformers"), asks("myown").name)
"""
NEIGHBOURS_TENSORBOARD = """
from torch.utils.tensorboard import SummaryWriter

with SummaryWriter(tempfile.mkdtemp()) as writer:
    writer.add_scalar("loss", 1.0, 0)
    writer.add_embedding(torch.eye(3))
import tensorboard.compat

print(tensorboard.compat.tf.__name__)
"""
NEIGHBOURS_KERAS = """
import keras
from keras.src.utils import backend_utils, module_utils

print(keras.backend.backend(), module_utils.tensorflow.available, backend_utils.in_tf_graph())
try:
    module_utils.tensorflow.TypeSpec
except ImportError as error:
    print(error)
keras.utils.set_random_seed(1)
model = tf.keras.Sequential([keras.layers.RandomFlip(), tf.keras.layers.Dense(1)])
model.compile("adam", loss="mse")
model.fit(tf.ones([4, 2, 2, 3]), tf.zeros([4, 2, 2, 1]), verbose=0)
print(keras.saving.serialize_keras_object(model)["class_name"])
"""


@pytest.mark.slow
def test_optional_tensorflow_imports_of_other_packages_fail() -> None:
    program, expected = NEIGHBOURS, ["None tensorflow.math"]
    if importlib.util.find_spec("tensorboard") is not None:
        program += NEIGHBOURS_TENSORBOARD
        expected += ["tensorboard.compat.tensorflow_stub"]
    if importlib.util.find_spec("keras") is not None:
        program += NEIGHBOURS_KERAS
        expected += ["torch False False"]
        expected += ["tensorflow.TypeSpec requires the tensorflow module.", "Sequential"]
    process = fresh_process.run(program, KERAS_BACKEND="torch")
    assert process.stdout.splitlines() == expected, process.stderr


def test_imported_tensorflow_is_not_replaced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    finders = list(sys.meta_path)
    monkeypatch.setitem(sys.modules, "tensorflow", ModuleType("tensorflow"))
    with pytest.raises(FailedPreconditionError, match="imported already"):
        thalweg.install_as_tensorflow()
    monkeypatch.delitem(sys.modules, "tensorflow")
    (tmp_path / "tensorflow.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(FailedPreconditionError, match=r"is installed, in .*tensorflow\.py"):
        thalweg.install_as_tensorflow()
    with pytest.raises(InvalidArgumentError, match="1 or 2, not 3"):
        thalweg.install_as_tensorflow(3)
    assert sys.meta_path == finders


def test_installing_a_second_version_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [install._TensorFlowFinder(1), *sys.meta_path])
    installed = list(sys.meta_path)
    thalweg.install_as_tensorflow(1)
    with pytest.raises(FailedPreconditionError, match="TensorFlow 1 in this process already"):
        thalweg.install_as_tensorflow(2)
    assert sys.meta_path == installed
