"""TensorFlow 1's optimizers: `tf.compat.v1.train`."""

from thalweg.v1.missing import attribute_of
from thalweg.v1.train.adadelta import AdadeltaOptimizer
from thalweg.v1.train.adagrad import AdagradOptimizer
from thalweg.v1.train.adagrad_da import AdagradDAOptimizer
from thalweg.v1.train.adam import AdamOptimizer
from thalweg.v1.train.coordinator import Coordinator
from thalweg.v1.train.decay import (
    cosine_decay,
    cosine_decay_restarts,
    exponential_decay,
    inverse_time_decay,
    linear_cosine_decay,
    natural_exp_decay,
    noisy_linear_cosine_decay,
    piecewise_constant,
    piecewise_constant_decay,
    polynomial_decay,
)
from thalweg.v1.train.ftrl import FtrlOptimizer
from thalweg.v1.train.global_step import (
    assert_global_step,
    create_global_step,
    get_global_step,
    get_or_create_global_step,
    global_step,
)
from thalweg.v1.train.gradient_descent import GradientDescentOptimizer
from thalweg.v1.train.momentum import MomentumOptimizer
from thalweg.v1.train.moving_averages import ExponentialMovingAverage
from thalweg.v1.train.optimizer import Optimizer
from thalweg.v1.train.proximal_adagrad import ProximalAdagradOptimizer
from thalweg.v1.train.proximal_gradient_descent import ProximalGradientDescentOptimizer
from thalweg.v1.train.queue_runner import QueueRunner, add_queue_runner, start_queue_runners
from thalweg.v1.train.rmsprop import RMSPropOptimizer
from thalweg.v1.train.session_run_hook import SessionRunHook
from thalweg.v1.train.sync_replicas import SyncReplicasOptimizer

__all__ = [
    "AdadeltaOptimizer",
    "AdagradDAOptimizer",
    "AdagradOptimizer",
    "AdamOptimizer",
    "Coordinator",
    "ExponentialMovingAverage",
    "FtrlOptimizer",
    "GradientDescentOptimizer",
    "MomentumOptimizer",
    "Optimizer",
    "ProximalAdagradOptimizer",
    "ProximalGradientDescentOptimizer",
    "QueueRunner",
    "RMSPropOptimizer",
    "SessionRunHook",
    "SyncReplicasOptimizer",
    "add_queue_runner",
    "assert_global_step",
    "cosine_decay",
    "cosine_decay_restarts",
    "create_global_step",
    "exponential_decay",
    "get_global_step",
    "get_or_create_global_step",
    "global_step",
    "inverse_time_decay",
    "linear_cosine_decay",
    "natural_exp_decay",
    "noisy_linear_cosine_decay",
    "piecewise_constant",
    "piecewise_constant_decay",
    "polynomial_decay",
    "start_queue_runners",
]

__getattr__ = attribute_of("train")
