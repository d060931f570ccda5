"""Files of TensorFlow's own tests for `tensorflow_tests.py`, and what is excluded, with reasons."""

from __future__ import annotations

from fnmatch import fnmatch

FILES = [
    "tensorflow/contrib/layers/python/layers/optimizers_test.py",
    "tensorflow/contrib/mixed_precision/python/*_test.py",
    "tensorflow/contrib/opt/python/training/*_test.py",
    "tensorflow/contrib/optimizer_v2/*_test.py",
    "tensorflow/contrib/training/python/training/sgdr_learning_rate_decay_test.py",
    "tensorflow/python/keras/mixed_precision/experimental/loss_scale_optimizer_test.py",
    "tensorflow/python/keras/optimizer_v2/*_test.py",
    "tensorflow/python/keras/optimizers_test.py",
    "tensorflow/python/kernel_tests/clip_ops_test.py",
    "tensorflow/python/kernel_tests/partitioned_variables_test.py",
    "tensorflow/python/ops/clip_ops_test.py",
    "tensorflow/python/training/*_test.py",
    "tensorflow/python/training/experimental/*_test.py",
    "tensorflow/python/training/saving/*_test.py",
    "tensorflow/python/training/tracking/util*_test.py",
    "tf_keras/mixed_precision/loss_scale_optimizer_test.py",
    "tf_keras/optimizers/*_test.py",
    "tf_keras/optimizers/*/*_test.py",
    "tf_keras/tests/tracking_util_with_v1_optimizers_test.py",
]

CLUSTERS = "clusters of TensorFlow's servers"
REWRITING = "rewriting of graphs"
MISSING_OPTIMIZERS = "optimizers of tf.contrib that Thalweg lacks"
SUPERVISOR = "tf.train.Supervisor"
KERAS_SCALING = "tf.keras.mixed_precision, which is that of Keras 3"
META_GRAPHS = "meta graphs and definitions of graphs"
SESSIONS = "private classes of TensorFlow's sessions"
TRACKING = "private classes of TensorFlow that track objects"
NEW_KERAS = "optimizers of Keras 2.11 and later; those of Thalweg have the interface before it"
PRIVATE = "functions and attributes that are private to TensorFlow"
TABLES = "lookup tables"
DEVICES = "devices of single operations, and a file of a checkpoint for each"
DEBUGGER = "TensorFlow's debugger"
# Parts of the names of files, and the feature that their tests are about.
EXCLUDED_FILES = {
    "training/server_lib": CLUSTERS,
    "training/localhost_cluster": CLUSTERS,
    "training/device_setter_test": CLUSTERS,
    "training/drop_stale_gradient": CLUSTERS,
    "training/elastic_average": CLUSTERS,
    "training/model_average": CLUSTERS,
    "training/warm_starting_util": "tf.train.warm_start",
    "training/evaluation_test": "NumPy 1: its tests convert arrays of one element to integers",
    "training/checkpoint_ops_test": "private initializers from vocabularies",
    "training/quantize_training": REWRITING,
    "experimental/mixed_precision_test": REWRITING,
    "training/input_test": "queues of examples",
    "training/saver_large": "files of more than 2 GB",
    "training/adam_gs": MISSING_OPTIMIZERS,
    "training/addsign": MISSING_OPTIMIZERS,
    "training/agn_": MISSING_OPTIMIZERS,
    "training/external_": MISSING_OPTIMIZERS,
    "training/ggt": MISSING_OPTIMIZERS,
    "training/lazy_adam_gs": MISSING_OPTIMIZERS,
    "training/matrix_functions": MISSING_OPTIMIZERS,
    "training/multitask": MISSING_OPTIMIZERS,
    "training/powersign": MISSING_OPTIMIZERS,
    "training/reg_adagrad": MISSING_OPTIMIZERS,
    "training/shampoo": MISSING_OPTIMIZERS,
    "training/sign_decay": MISSING_OPTIMIZERS,
    "contrib/optimizer_v2": MISSING_OPTIMIZERS,
    "sgdr_learning_rate": "tf.contrib.training",
    "contrib/mixed_precision": "tf.contrib.mixed_precision",
    "training/tracking/": TRACKING,
    "tracking_util_with_v1": TRACKING,
    "saving/functional_saver": TRACKING,
    "training/supervisor_test": SUPERVISOR,
    "training/basic_loops_test": SUPERVISOR,
    "training/tensorboard_logging": "tensorboard_logging, which is private to TensorFlow",
    "mixed_precision/experimental/loss_scale_optimizer": KERAS_SCALING,
    "tf_keras/mixed_precision": KERAS_SCALING,
    "tf_keras/optimizers/lion_test": NEW_KERAS,
    "tf_keras/optimizers/optimizer_test": NEW_KERAS,
    "tf_keras/optimizers/optimizer_pss_test": CLUSTERS,
}
# Patterns of "file:test", and the feature that the test is about.
EXCLUDED_TESTS = {
    "*/layers/optimizers_test.py:*.testGradientNoise*": "values of TensorFlow's random numbers",
    "*/variable_clipping_optimizer_test.py:*Distributed": CLUSTERS,
    "*/partitioned_variables_test.py:*.testMetaGraphSaveLoad": META_GRAPHS,
    "*/monitored_session_test.py:WrappedSessionTest.*": SESSIONS,
    "*/monitored_session_test.py:CoordinatedSessionTest.*": SESSIONS,
    "*/monitored_session_test.py:RecoverableSessionTest.*": SESSIONS,
    "*/monitored_session_test.py:MonitoredTrainingSessionWithDistributeCoordinatorTest.*": CLUSTERS,
    "*/monitored_session_test.py:MonitoredSessionTest.*recover*": CLUSTERS,
    "*/monitored_session_test.py:MonitoredSessionTest.test_retry*": CLUSTERS,
    "*/monitored_session_test.py:MonitoredSessionTest.test_step_fn_exception*": CLUSTERS,
    "*/basic_session_run_hooks_test.py:ProfilerHookTest.*": "tf.train.ProfilerHook",
    "*/saver_test.py:MetaGraphTest.*": META_GRAPHS,
    "*/saver_test.py:ScopedGraphTest.*": META_GRAPHS,
    "*/sync_replicas_optimizer_test.py:*.test*Workers*": CLUSTERS,
    "*/session_manager_test.py:*.testWaitForSession*": CLUSTERS,
    "*/partitioned_variables_test.py:*.testVariableAxisSizePartitioner": "variables of strings",
    "*/legacy/optimizer_v2_test.py:*.test_create_slots_for_sharded_variables*": CLUSTERS,
    "*/partitioned_variables_test.py:*.testConcat": PRIVATE,
    "*/checkpoint_utils_test.py:CheckpointsTest.testInitFromCheckpoint": META_GRAPHS,
    "*/checkpoint_utils_test.py:WaitForNewCheckpointTest.*": PRIVATE,
    "*/checkpoint_management_test.py:*.testUpdateCheckpointStateSaveRelativePaths": PRIVATE,
    "*/basic_session_run_hooks_test.py:*.test_summary_writer_defs": META_GRAPHS,
    "*/monitored_session_test.py:HookedSessionTest.*": SESSIONS,
    "*/monitored_session_test.py:MonitoredSessionTest.test_last_step": SESSIONS,
    "*/monitored_session_test.py:MonitoredSessionTest.test_num_steps": SESSIONS,
    "*/monitored_session_test.py:MonitoredSessionTest.test_merge_*run_options*": DEBUGGER,
    "*/monitored_session_test.py:*.test_regular_exception_reported_to_coord_*": SESSIONS,
    "*/monitored_session_test.py:MonitoredSessionTest.test_raises_regular_exceptions_in*": SESSIONS,
    "*/monitored_session_test.py:MonitoredSessionTest.test_stop_cleanly_when_no_*": SESSIONS,
    "*/moving_averages_test.py:*.testAverageVariablesDeviceAssignment": DEVICES,
    "*/moving_averages_test.py:*.testImportedGraphVariablesToRestore": META_GRAPHS,
    "*/saver_test.py:SaverTest.testBasic": TABLES,
    "*/saver_test.py:SaverTest.testBasicsWithListOfVariables": TABLES,
    "*/saver_test.py:SaverTest.testResourceBasic": TABLES,
    "*/saver_test.py:SaverTest.testSameName": TABLES,
    "*/saver_test.py:SaverTest.testSaveCopyRestoreWithSaveRelativePaths": TABLES,
    "*/saver_test.py:SaverTest.testVariables": TABLES,
    "*/saver_test.py:SaverTest.testEagerGraphCompatibility": PRIVATE,
    "*/saver_test.py:SaverTest.testFilenameTensor": META_GRAPHS,
    "*/saver_test.py:SaverTest.testResourceColocation": DEVICES,
    "*/saver_test.py:SaverTest.testResourceVariableReadOpsAdded*": META_GRAPHS,
    "*/saver_test.py:SaverTest.testSaveToURI": "file systems of TensorFlow, such as file://",
    "*/saver_test.py:SaverTest.testSomeErrors": PRIVATE,
    "*/saver_test.py:SaveRestoreShardedTest*.testBasics": DEVICES,
    "*/saver_test.py:SaveRestoreShardedTest*.testSaverDef": META_GRAPHS,
    "*/saver_test.py:MaxToKeepTest.testSharded": DEVICES,
    "*/saver_test.py:MaxToKeepTest.testNonSharded": META_GRAPHS,
    "*/saver_test.py:MaxToKeepTest.testNoMetaGraph": META_GRAPHS,
    "*/saver_test.py:WriteGraphTest.*": META_GRAPHS,
    "*/saver_test.py:TrackableCompatibilityTests.testLoadFromObjectBased*": TRACKING,
    "*/saver_test.py:TrackableCompatibilityTests.testMoreComplexSaveableReturned": TRACKING,
    "*/saver_test.py:TrackableCompatibilityTests.testNotSaveableButIsTrackable": TRACKING,
    "*/saver_test.py:TrackableCompatibilityTests.testSingleTensorEvaluation": TRACKING,
}


def get_excluded_feature(name: str, test: str = "") -> str | None:
    """Return the feature of an excluded file, or of an excluded test of a file; None for others."""
    if not test:
        return next((EXCLUDED_FILES[part] for part in EXCLUDED_FILES if part in name), None)
    full = f"{name}:{test}"
    matches = (EXCLUDED_TESTS[pattern] for pattern in EXCLUDED_TESTS if fnmatch(full, pattern))
    return next(matches, None)
