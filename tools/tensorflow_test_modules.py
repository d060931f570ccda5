"""Modules that TensorFlow's own tests import, for `tensorflow_tests.py`.

Modules that only tests import, such as `tensorflow.python.framework.test_util`, are replaced by
short ones. Other private modules have the names that are public elsewhere in `thalweg.tf`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import itertools
import operator
from collections.abc import Callable
from fnmatch import fnmatch
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from absl.testing import parameterized
from tensorflow_test_doubles import (
    FakeSummaryWriter,
    add_doubles,
    create_identity_with_grad_check_fn,
    latest_summaries,
)

import thalweg.tf as tf
from thalweg import _graph
from thalweg._base.execution_context import eagerly, executing_eagerly
from thalweg._formats.bundle import CheckpointState
from thalweg.tf import private_modules


def run_in_graph(test: Callable[..., object]) -> Callable[..., object]:
    """Return a test that builds and runs a graph: that of the caller if there is one."""

    @functools.wraps(test)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
        with _graph.Graph().as_default() if executing_eagerly() else contextlib.nullcontext():
            test(self, *args, **kwargs)

    return wrapped


def run_eagerly(test: Callable[..., object]) -> Callable[..., object]:
    """Return a test that runs in eager mode."""

    @functools.wraps(test)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
        with eagerly():
            test(self, *args, **kwargs)

    return wrapped


def run_in_both(test: Callable[..., object]) -> Callable[..., object]:
    """Return a test that runs in the session of a graph, and in eager mode."""

    @functools.wraps(test)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
        with _graph.Graph().as_default(), self.session():
            test(self, *args, **kwargs)
        self.tearDown()
        self.setUp()
        with eagerly():
            test(self, *args, **kwargs)

    return wrapped


def make_decorator(wrap: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return a decorator of tests and of their classes, with or without arguments."""

    def decorate(target: Any = None, *args: object, **options: object) -> Any:
        if not callable(target):
            return decorate
        if not inspect.isclass(target):
            return wrap(target)
        for name, member in list(vars(target).items()):
            if name.startswith("test") and callable(member):
                setattr(target, name, wrap(member))
        return target

    return decorate


def evaluate(self: Any, tensors: object) -> Any:
    """Return the values of tensors of the default graph, which the default session may lack."""
    session = _graph.get_default_session()
    if session is None or session.graph is _graph.get_default_graph():
        return type(self).evaluate(self, tensors)
    with self.cached_session() as session:
        return session.run(tensors)


def combine(**options: Any) -> list[dict[str, Any]]:
    """Return all combinations of the values of `options`."""
    values = [value if isinstance(value, list) else [value] for value in options.values()]
    return [dict(zip(options, choice, strict=True)) for choice in itertools.product(*values)]


def times(*groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return all combinations of one entry of each group."""
    return [functools.reduce(operator.or_, choice) for choice in itertools.product(*groups)]


def generate(cases: list[dict[str, Any]]) -> Callable[[Any], Any]:
    """Return a decorator that repeats a test, or those of a class, for each of `cases`."""

    def repeat(test: Callable[..., object]) -> Any:
        accepted = inspect.signature(test).parameters
        takes_all = any(value.kind is value.VAR_KEYWORD for value in accepted.values())

        def run_case(self: Any, *args: Any, mode: str = "", **options: Any) -> None:
            options = {name: options[name] for name in options if takes_all or name in accepted}
            contexts = {"graph": _graph.Graph().as_default(), "eager": eagerly()}
            plain = contextlib.nullcontext()
            # In a graph, Keras has a session of its own.
            with contexts.get(mode, plain), self.session() if mode == "graph" else plain:
                self.evaluate = functools.partial(evaluate, self)
                test(self, *args, **options)

        named = [{"testcase_name": f"_{index}", **case} for index, case in enumerate(cases)]
        return parameterized.named_parameters(*named)(run_case)

    def decorate(target: Any) -> Any:
        if not inspect.isclass(target):
            return repeat(target)
        for name, member in list(vars(target).items()):
            if name.startswith("test") and callable(member):
                delattr(target, name)
                for index, case in enumerate(repeat(member)):
                    setattr(target, f"{name}_{index}", functools.partialmethod(call_case, case))
        return target

    return decorate


def call_case(self: object, case: Callable[[object], object]) -> None:
    """Call one case of a parameterized test."""
    case(self)


def get_test_data(
    train_samples: int,
    test_samples: int,
    input_shape: tuple[int, ...],
    num_classes: int,
    random_seed: int | None = None,
) -> Any:
    """Return arrays of noisy samples around one random center per class, and their classes."""
    random = np.random.RandomState(random_seed)
    labels = random.randint(0, num_classes, train_samples + test_samples)
    centers = 2 * num_classes * random.random_sample((num_classes, *input_shape))
    samples = (centers[labels] + random.normal(size=(len(labels), *input_shape))).astype("float32")
    train, test = slice(train_samples), slice(train_samples, None)
    return (samples[train], labels[train]), (samples[test], labels[test])


def get_small_sequential_mlp(
    num_hidden: int, num_classes: int, input_dim: int | None = None
) -> Any:
    """Return a model of two dense layers, without weights if `input_dim` is None."""
    last = "softmax" if num_classes > 1 else "sigmoid"
    dense: Any = tf.keras.layers.Dense
    options = {} if input_dim is None else {"input_dim": input_dim}
    hidden = dense(num_hidden, activation="relu", **options)
    return tf.keras.Sequential([hidden, dense(num_classes, activation=last)])


class KerasTestCase(parameterized.TestCase, tf.test.TestCase):
    """Test case of Keras."""


def return_true(*args: object, **kwargs: object) -> bool:
    """Return True."""
    return True


def return_false(*args: object, **kwargs: object) -> bool:
    """Return False."""
    return False


IN_GRAPH = "deprecated_graph_mode_only run_deprecated_v1 run_v1_only"
IN_BOTH = "run_in_graph_and_eager_modes run_all_in_graph_and_eager_modes run_in_v1_v2"
UNCHANGED = """also_run_as_tf_function disable_xla run_distribute_test run_gpu_only run_cuda_only
    assert_no_new_tensors with_control_flow_v2 run_with_all_model_types enable_v2_dtype_behavior"""
DECORATORS = {
    **dict.fromkeys(IN_GRAPH.split(), make_decorator(run_in_graph)),
    **dict.fromkeys(IN_BOTH.split(), make_decorator(run_in_both)),
    **dict.fromkeys(("run_v2_only", "run_all_keras_modes"), make_decorator(run_eagerly)),
    **dict.fromkeys(UNCHANGED.split(), make_decorator(lambda test: test)),
}
TEST_UTIL: dict[str, object] = {
    **DECORATORS,
    "TensorFlowTestCase": tf.test.TestCase,
    "device": lambda *args, **options: contextlib.nullcontext(),
    "use_gpu": lambda *args, **options: contextlib.nullcontext(),
    "IsBuiltWithNvcc": return_false,
    "is_gpu_available": return_false,
    "get_small_sequential_mlp": get_small_sequential_mlp,
    "get_test_data": get_test_data,
    "should_run_eagerly": return_true,
    "should_run_tf_function": return_true,
}
COMBINATIONS: dict[str, object] = {
    **DECORATORS,
    "NamedObject": lambda name, value: value,
    "TestCase": KerasTestCase,
    "combine": combine,
    "generate": generate,
    "keras_mode_combinations": lambda **options: combine(mode="eager", run_eagerly=True),
    "times": times,
}
MODULES: dict[str, dict[str, Any]] = {
    "tensorflow.contrib.testing.python.framework.fake_summary_writer": {
        "FakeSummaryWriter": FakeSummaryWriter,
    },
    "tensorflow.contrib.testing.python.framework.util_test": {"latest_summaries": latest_summaries},
    "tensorflow.python.distribute.combinations": COMBINATIONS,
    "tensorflow.python.framework.test_combinations": COMBINATIONS,
    "tensorflow.python.training.checkpoint_state_pb2": {"CheckpointState": CheckpointState},
    "tensorflow.python.training.tracking.tracking": {"AutoTrackable": tf.train.Checkpoint},
    "tensorflow.python.framework.test_util": TEST_UTIL,
    "tensorflow.python.keras.combinations": COMBINATIONS,
    "tensorflow.python.keras.keras_parameterized": COMBINATIONS,
    "tensorflow.python.keras.testing_utils": TEST_UTIL,
    "tensorflow.python.keras.mixed_precision.experimental.test_util": {
        "create_identity_with_grad_check_fn": create_identity_with_grad_check_fn,
    },
    "tf_keras.testing_infra.test_combinations": COMBINATIONS,
    "tf_keras.testing_infra.test_utils": TEST_UTIL,
}
PLACES = [
    "compat.v1",
    "compat.v1.train",
    "compat.v1.nn",
    "compat.v1.math",
    "compat.v1.summary",
    "keras.optimizers",
    "keras.layers",
    "keras.models",
    "keras.optimizers.schedules",
    "keras.utils",
    "distribute",
    "compat.v1.train.experimental",
    "compat.v1.contrib.opt",
    "compat.v1.contrib.layers",
]
# Places that come first, by patterns of names of modules.
FIRST_PLACES = {
    "*keras*.loss_scale_optimizer": "keras.mixed_precision",
    "*.learning_rate_schedule": "keras.optimizers.schedules",
    "tensorflow.python.util.compat": "compat",
    "tf_keras": "keras",
    "tf_keras.backend": "keras.backend",
    "tf_keras.callbacks": "keras.callbacks",
    "tf_keras.losses": "keras.losses",
    "tf_keras.optimizers.legacy*": "keras.optimizers.legacy",
    "tf_keras.optimizers.schedules*": "keras.optimizers.schedules",
}


class PrivateModule(ModuleType):
    """A module of TensorFlow or Keras that has the public names of Thalweg."""

    def __init__(self, name: str, roots: list[Path]) -> None:
        super().__init__(name)
        self.__path__, self.roots, self.places = [], roots, list[Any]()
        if name.startswith("tensorflow.python.") and private_modules.has(name):
            self.places.append(private_modules.module(name))
        for pattern, place in FIRST_PLACES.items():
            if fnmatch(name, pattern):
                self.places.append(private_modules._attribute_at(place))
        if name.endswith(("legacy.optimizer_v2", "optimizer_v2.optimizer_v2")):
            self.places.append(
                private_modules.module("tensorflow.python.keras.optimizer_v2.optimizer_v2")
            )
        if name == "tf_keras.optimizers.legacy.adam":  # the same numbers, without a fused kernel
            self.NonFusedAdam = tf.keras.optimizers.legacy.Adam
        self.places += [private_modules._attribute_at(place) for place in PLACES] + [tf]

    def __getattr__(self, name: str) -> Any:
        full = f"{self.__name__}.{name}"
        path = full.replace(".", "/")
        if not name.startswith("__"):
            if any((root / f"{path}{end}").exists() for root in self.roots for end in ("", ".py")):
                return importlib.import_module(full)
            for place in self.places:
                with contextlib.suppress(AttributeError, ImportError):
                    return getattr(place, name)
        raise AttributeError(f"Thalweg has no {full}.", name=name)


class Finder(MetaPathFinder, Loader):
    """Find private modules that the tests import and `thalweg.tf` lacks."""

    def __init__(self, roots: list[Path]) -> None:
        self.roots = roots
        add_doubles()

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        packages = ("tensorflow.contrib", "tensorflow.core", "tensorflow.keras", "tf_keras")
        is_python = fullname.startswith("tensorflow.python")
        is_keras = fullname.startswith("tensorflow.python.keras") or fullname == "tensorflow.python"
        is_here = fullname in MODULES or fullname.startswith(packages)
        if not fullname.rpartition(".")[2].islower():  # a class that the module lacks
            return None
        if is_here or is_keras or (is_python and not private_modules.has(fullname)):
            return ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        if spec.name not in MODULES:
            return PrivateModule(spec.name, self.roots)
        module = ModuleType(spec.name)
        vars(module).update(MODULES[spec.name])
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the module is complete."""
