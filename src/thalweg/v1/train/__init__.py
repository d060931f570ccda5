"""TensorFlow 1's optimizers: `tf.compat.v1.train`."""

from thalweg._core.config_registry import OPTIMIZERS, RATES
from thalweg.v1.missing import attribute_of
from thalweg.v1.train import decay, experimental, input_producers, slot_creator
from thalweg.v1.train.adadelta import AdadeltaOptimizer
from thalweg.v1.train.adagrad import AdagradOptimizer
from thalweg.v1.train.adagrad_da import AdagradDAOptimizer
from thalweg.v1.train.adam import AdamOptimizer
from thalweg.v1.train.assigned_averages import assign_moving_average, weighted_moving_average
from thalweg.v1.train.coordinator import Coordinator, LooperThread
from thalweg.v1.train.decay import *  # noqa: F403
from thalweg.v1.train.ftrl import FtrlOptimizer
from thalweg.v1.train.global_step import (
    assert_global_step,
    create_global_step,
    get_global_step,
    get_or_create_global_step,
    global_step,
)
from thalweg.v1.train.gradient_descent import GradientDescentOptimizer
from thalweg.v1.train.input_producers import *  # noqa: F403
from thalweg.v1.train.momentum import MomentumOptimizer
from thalweg.v1.train.monitored import basic_session_run_hooks, session_run_hook
from thalweg.v1.train.monitored.basic_session_run_hooks import *  # noqa: F403
from thalweg.v1.train.monitored.basic_session_run_hooks import SecondOrStepTimer
from thalweg.v1.train.monitored.checkpoint_saver_hook import (
    CheckpointSaverHook,
    CheckpointSaverListener,
)
from thalweg.v1.train.monitored.monitored_session import MonitoredSession, SingularMonitoredSession
from thalweg.v1.train.monitored.monitored_training_session import MonitoredTrainingSession
from thalweg.v1.train.monitored.scaffold import Scaffold
from thalweg.v1.train.monitored.session_manager import (
    ChiefSessionCreator,
    SessionCreator,
    SessionManager,
)
from thalweg.v1.train.monitored.session_run_hook import *  # noqa: F403
from thalweg.v1.train.monitored.summary_saver_hook import StepCounterHook, SummarySaverHook
from thalweg.v1.train.moving_averages import ExponentialMovingAverage
from thalweg.v1.train.optimizer import Optimizer
from thalweg.v1.train.proximal_adagrad import ProximalAdagradOptimizer
from thalweg.v1.train.proximal_gradient_descent import ProximalGradientDescentOptimizer
from thalweg.v1.train.queue_runner import QueueRunner, add_queue_runner, start_queue_runners
from thalweg.v1.train.rmsprop import RMSPropOptimizer
from thalweg.v1.train.saving import checkpoint_management, checkpoint_utils
from thalweg.v1.train.saving.checkpoint import Checkpoint
from thalweg.v1.train.saving.checkpoint_management import *  # noqa: F403
from thalweg.v1.train.saving.checkpoint_manager import CheckpointManager
from thalweg.v1.train.saving.checkpoint_reader import CheckpointReader as NewCheckpointReader
from thalweg.v1.train.saving.checkpoint_utils import *  # noqa: F403
from thalweg.v1.train.saving.saver import Saver, SaverDef
from thalweg.v1.train.sync_replicas import SyncReplicasOptimizer

__all__ = [  # pyright: ignore[reportUnsupportedDunderAll]
    *basic_session_run_hooks.__all__, *checkpoint_management.__all__, *checkpoint_utils.__all__,
    *decay.__all__, *input_producers.__all__, *session_run_hook.__all__,
    "AdadeltaOptimizer", "AdagradDAOptimizer", "AdagradOptimizer", "AdamOptimizer", "Checkpoint",
    "CheckpointManager", "CheckpointSaverHook", "CheckpointSaverListener", "ChiefSessionCreator",
    "Coordinator", "ExponentialMovingAverage", "FtrlOptimizer", "GradientDescentOptimizer",
    "LooperThread", "MomentumOptimizer", "MonitoredSession", "MonitoredTrainingSession",
    "NewCheckpointReader", "Optimizer", "ProximalAdagradOptimizer",
    "ProximalGradientDescentOptimizer", "QueueRunner", "RMSPropOptimizer", "Saver", "SaverDef",
    "Scaffold", "SecondOrStepTimer", "SessionCreator", "SessionManager", "SingularMonitoredSession",
    "StepCounterHook", "SummarySaverHook", "SyncReplicasOptimizer", "add_queue_runner",
    "assert_global_step", "assign_moving_average", "create_global_step", "experimental",
    "get_global_step", "get_or_create_global_step", "global_step", "slot_creator",
    "start_queue_runners", "weighted_moving_average",
]  # fmt: skip

__dir__ = __all__.copy

__getattr__ = attribute_of("train")

OPTIMIZERS.add_all(
    "v1:",
    (
        AdadeltaOptimizer, AdagradDAOptimizer, AdagradOptimizer, AdamOptimizer, FtrlOptimizer,
        GradientDescentOptimizer, MomentumOptimizer, ProximalAdagradOptimizer,
        ProximalGradientDescentOptimizer, RMSPropOptimizer,
    ),
)  # fmt: skip
RATES.add("train.piecewise_constant_decay", decay.piecewise_constant_decay)
# Rates of `cosine_decay_restarts` cannot be saved to files.
RATES.add_all(
    "train.",
    (getattr(decay, name) for name in decay.__all__ if name != "cosine_decay_restarts"),
)
