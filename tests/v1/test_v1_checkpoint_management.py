"""Listing and reading checkpoints, and `init_from_checkpoint`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import thalweg.v1 as tf
from captured_log import Logged
from graph_training import bits
from sessions import initialized
from thalweg._formats import container
from thalweg._formats.stored_tensor import of_tensor
from thalweg.errors import DataLossError, NotFoundError, UnsafeCheckpointError
from thalweg.v1 import train
from thalweg.v1.train.saving import checkpoint_management

GOLDENS = Path(__file__).parents[1] / "goldens" / "checkpoints"
ADAM = GOLDENS / "ckpt_v1" / "adam"


def saved(prefix: Path, **values: Any) -> str:
    """A checkpoint of ours; "__" in a name stands for "/"."""
    tensors = {
        name.replace("__", "/"): of_tensor(torch.as_tensor(value)) for name, value in values.items()
    }
    container.write(f"{prefix}.safetensors", tensors, {})
    return str(prefix)


# --- The file `checkpoint` ------------------------------------------------------------------------


def test_the_newest_checkpoint_is_found(tmp_path: Path) -> None:
    assert train.latest_checkpoint(tmp_path) is None
    assert train.latest_checkpoint(tmp_path / "nowhere") is None
    assert train.get_checkpoint_state(tmp_path) is None
    first_path, two = (saved(tmp_path / f"m-{number}", w=1.0) for number in (1, 2))
    train.update_checkpoint_state(tmp_path, two, [first_path, two])
    assert train.latest_checkpoint(str(tmp_path)) == two
    state = train.get_checkpoint_state(tmp_path)
    assert list(state.all_model_checkpoint_paths) == [first_path, two]
    assert train.latest_checkpoint(ADAM) == str(ADAM / "model.ckpt-5")


def test_latest_checkpoint_of_missing_files_is_none(tmp_path: Path, logged: Logged) -> None:
    train.update_checkpoint_state(tmp_path, str(tmp_path / "gone"))
    assert train.latest_checkpoint(tmp_path) is None
    assert logged.messages == [f"Couldn't match files for checkpoint {tmp_path / 'gone'}"]


class Clock:
    """Clock that only `sleep` advances, and which runs functions at their times."""

    def __init__(self, events: dict[float, Callable[[], object]]) -> None:
        self.seconds_passed, self.events = 0.0, events

    def monotonic(self) -> float:
        return self.seconds_passed

    def sleep(self, seconds: float) -> None:
        self.seconds_passed += seconds
        for moment in [moment for moment in self.events if moment <= self.seconds_passed]:
            self.events.pop(moment)()


def test_checkpoints_iterator_yields_new_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "later"

    def save(number: int) -> Callable[[], None]:
        def write() -> None:
            folder.mkdir(exist_ok=True)
            train.update_checkpoint_state(folder, saved(folder / f"m-{number}", w=1.0))

        return write

    clock = Clock({3.0: save(1), 20.0: save(2), 24.0: save(3)})
    monkeypatch.setattr(checkpoint_management, "time", clock)
    paths = train.checkpoints_iterator(folder, min_interval_secs=10, timeout=30)
    moments = [(os.path.basename(path), clock.seconds_passed) for path in paths]
    assert moments == [("m-1", 3.0), ("m-2", 20.0), ("m-3", 30.0)]
    assert clock.seconds_passed == 70.0


def test_timeout_function_ends_checkpoints_iterator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_management, "time", Clock({}))
    answers = [False, False, True]
    paths = train.checkpoints_iterator(tmp_path, timeout=0, timeout_fn=lambda: answers.pop(0))
    assert (list(paths), answers) == ([], [])
    assert list(train.checkpoints_iterator(tmp_path, timeout=0)) == []


FOLDERS: dict[str, tuple[str, str, list[str], tuple[str, list[str]]]] = {
    "absolute": (
        "/run",
        "/run/m-2",
        ["/run/m-1", "/run/m-2"],
        ("/run/m-2", ["/run/m-1", "/run/m-2"]),
    ),
    "absolute folder": ("/run", "m-2", ["m-1"], ("m-2", ["m-1", "m-2"])),
    "relative": ("run", "run/m-2", ["run/m-1"], ("m-2", ["m-1", "m-2"])),
    "mixed": ("run", "/run/m-2", [], ("/run/m-2", ["/run/m-2"])),
}


@pytest.mark.parametrize("case", FOLDERS)
def test_checkpoint_states_equal_tensorflow(case: str) -> None:
    folder, newest, all_paths, (path, paths) = FOLDERS[case]
    state = train.generate_checkpoint_state_proto(folder, newest, all_paths)
    assert state.model_checkpoint_path == path
    assert list(state.all_model_checkpoint_paths) == paths


def test_timestamps_must_match_checkpoints(tmp_path: Path) -> None:
    newest = str(tmp_path / "m-2")
    paths = [str(tmp_path / "m-1"), newest]
    train.update_checkpoint_state(
        tmp_path, newest, paths, all_model_checkpoint_timestamps=[1.5, 2.5],
        last_preserved_timestamp=0.5,
    )  # fmt: skip
    state = train.get_checkpoint_state(tmp_path)
    assert list(state.all_model_checkpoint_timestamps) == [1.5, 2.5]
    assert state.last_preserved_timestamp == 0.5
    with pytest.raises(ValueError, match=r"^Checkpoint timestamps, if provided, must match checkp"):
        train.generate_checkpoint_state_proto(tmp_path, newest, paths, [1.0])


def test_invalid_checkpoint_states_raise(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"conflicts with path used for checkpoint state"):
        train.update_checkpoint_state(tmp_path, str(tmp_path / "checkpoint"))
    with pytest.raises(UnsafeCheckpointError, match=r"which is not in its folder"):
        train.update_checkpoint_state(tmp_path / "a", str(tmp_path / "b" / "m"))
    assert not list(tmp_path.iterdir())


TEXTS: dict[str, tuple[str, type[Exception], str]] = {
    "empty": ("", ValueError, r"^Invalid checkpoint state loaded from "),
    "no path": ('all_model_checkpoint_paths: "m"\n', ValueError, r"^Invalid checkpoint state"),
    "damaged": ('model_checkpoint_path: "m', DataLossError, r"checkpoint"),
    "elsewhere": (
        'model_checkpoint_path: "/elsewhere/m"\n',
        UnsafeCheckpointError,
        r"'/elsewhere/m', which is not in its folder; if you trust it, give that path",
    ),
    "above": ('model_checkpoint_path: "../m"\n', UnsafeCheckpointError, r"not in its folder"),
    "old ones elsewhere": (
        'model_checkpoint_path: "m"\nall_model_checkpoint_paths: "/etc/m"\n',
        UnsafeCheckpointError,
        r"not in its folder",
    ),
}


@pytest.mark.parametrize("case", TEXTS)
def test_malformed_or_unsafe_checkpoint_states_raise(case: str, tmp_path: Path) -> None:
    text, kind, message = TEXTS[case]
    (tmp_path / "checkpoint").write_text(text)
    for call in (train.get_checkpoint_state, train.latest_checkpoint, train.list_variables):
        with pytest.raises(kind, match=message):
            call(tmp_path)


# --- Files ----------------------------------------------------------------------------------------


def test_checkpoint_exists_finds_all_formats(tmp_path: Path) -> None:
    saved(tmp_path / "ours", w=1.0)
    for name in ("theirs.index", "old", "half.data-00000-of-00001"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "folder").mkdir()
    names = ["ours", "theirs", "old", "half", "folder", "none", "ours.safetensors.index"]
    existing = [name for name in names if train.checkpoint_exists(tmp_path / name)]
    assert existing == ["ours", "theirs", "old"]
    assert train.checkpoint_exists(str(ADAM / "model.ckpt-5"))


def test_get_checkpoint_mtimes_returns_file_times(tmp_path: Path) -> None:
    for number, name in enumerate(["ours.safetensors", "theirs.index", "old"]):
        (tmp_path / name).write_bytes(b"")
        os.utime(tmp_path / name, (1000.5 + number, 1000.5 + number))
    names = ["theirs", "none", "ours", "old"]
    assert train.get_checkpoint_mtimes([tmp_path / x for x in names]) == [1001.5, 1000.5, 1002.5]


def test_files_are_removed(tmp_path: Path) -> None:
    ends = ["safetensors", "index", "data-00000-of-00001", "meta", "other", "index.bak"]
    for prefix in ("m-1", "m-[1]", "m-1?"):
        for end in ends:
            (tmp_path / f"{prefix}.{end}").write_bytes(b"")
    (tmp_path / "m-1").write_bytes(b"")
    train.remove_checkpoint(tmp_path / "m-[1]")
    train.remove_checkpoint(str(tmp_path / "m-1"))
    remaining = {path.name for path in tmp_path.iterdir()}
    assert remaining == {
        "m-1", "m-1.other", "m-1.index.bak", "m-[1].other", "m-[1].index.bak",
        *(f"m-1?.{end}" for end in ends),
    }  # fmt: skip
    (tmp_path / "m-1.safetensors").write_bytes(b"")
    train.remove_checkpoint(tmp_path / "m-1", checkpoint_format_version=1)
    assert {path.name for path in tmp_path.iterdir()} == remaining - {"m-1"}


def test_a_clock_that_was_set_back_deletes_no_checkpoint(tmp_path: Path, logged: Logged) -> None:
    objects = train.Checkpoint()
    first = train.CheckpointManager(objects, tmp_path, max_to_keep=1).save()
    path = tmp_path / "checkpoint"
    text = path.read_text()
    path.write_text(re.sub("last_preserved_timestamp: .*", "last_preserved_timestamp: 1e11", text))
    manager = train.CheckpointManager(objects, tmp_path, max_to_keep=1)
    assert "behind the last preserved checkpoint timestamp" in logged.messages[0]
    assert (manager.latest_checkpoint, manager.checkpoints) == (first, [])
    second = manager.save()
    assert manager.checkpoints == [second]
    assert train.checkpoint_exists(first)
    assert train.get_checkpoint_state(tmp_path).last_preserved_timestamp < 1e11


# --- What is in a checkpoint ----------------------------------------------------------------------


def test_a_checkpoint_of_tensorflow_is_described() -> None:
    reader = train.NewCheckpointReader(str(ADAM / "model.ckpt-5"))
    shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    assert shapes["layer1/kernel/Adam_1"] == [4, 6]
    assert (shapes["global_step"], dtypes["global_step"]) == ([], torch.int64)
    assert reader.has_tensor("beta1_power")
    assert not reader.has_tensor("gamma")
    assert b"layer2/bias/Adam_1 (DT_FLOAT) [3]" in reader.debug_string().split(b"\n")
    with np.load(ADAM / "values.npz") as expected:
        for name in shapes:
            tensor = reader.get_tensor(name)
            assert tensor.dtype == expected[f"value|{name}"].dtype
            assert tensor.tobytes() == expected[f"value|{name}"].tobytes()
    assert train.list_variables(ADAM) == [(name, shapes[name]) for name in sorted(shapes)]


def test_thalweg_checkpoint_variables_are_listed_and_loaded(tmp_path: Path) -> None:
    half = torch.tensor([1.5, 2.0], dtype=torch.bfloat16)
    prefix = saved(tmp_path / "m", net__w=[[1.0, 2.0]], step=7, half=half)
    assert train.list_variables(prefix) == [("half", [2]), ("net/w", [1, 2]), ("step", [])]
    assert train.load_variable(prefix, "net/w:0").tolist() == [[1.0, 2.0]]
    assert train.load_variable(f"{prefix}.safetensors", "step") == 7
    assert isinstance(train.load_variable(prefix, "step"), np.int64)
    assert torch.equal(train.load_variable(prefix, "half"), half)  # NumPy has no such dtype
    with pytest.raises(NotFoundError, match=r"^Key w not found in checkpoint "):
        train.load_variable(prefix, "w")


def test_strings_are_listed_and_read() -> None:
    prefix = str(GOLDENS / "ckpt_v1" / "adam_object" / "model.ckpt")
    key = "_CHECKPOINTABLE_OBJECT_GRAPH"
    assert (key, []) in train.list_variables(prefix)
    texts = str(GOLDENS / "bundles" / "strings" / "model.ckpt")
    reader = train.load_checkpoint(texts)
    kinds = reader.get_variable_to_dtype_map()
    names = [name for name, kind in kinds.items() if kind == "string"]
    assert names
    for name in names:
        value = reader.get_tensor(name)
        assert list(np.shape(value)) == reader.get_variable_to_shape_map()[name]


def test_missing_checkpoints_raise(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"^Couldn't find 'checkpoint' file or checkpoints in give"
    ):
        train.load_checkpoint(tmp_path)
    for kind in (NotFoundError, FileNotFoundError, KeyError):
        with pytest.raises(kind, match=r"Failed to find any matching files for .*/none"):
            train.list_variables(tmp_path / "none")
    (tmp_path / "other").write_bytes(b"")
    with pytest.raises(DataLossError, match=r"/other: It is no checkpoint of .*: it is empty"):
        train.load_variable(tmp_path / "other", "w")


# --- Variables that begin with a checkpoint -------------------------------------------------------


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    return saved(
        tmp_path / "m", net__w=[1.0, 2.0], net__b=[3.0], net__deep__w=[4.0], w=[5.0, 6.0], extra=7
    )


def made(name: str, size: int) -> Any:
    return tf.get_variable(name, initializer=np.zeros(size, np.float32))


MAPS: dict[str, tuple[Callable[[Any], dict[str, Any]], dict[str, list[float]]]] = {
    "a variable": (lambda variables: {"net/w": variables["mine/w"]}, {"mine/w": [1, 2]}),
    "its name": (lambda variables: {"w": "mine/w", "net/b": "b"}, {"mine/w": [5, 6], "b": [3]}),
    "a scope": (
        lambda variables: {"net/": "mine/"},
        {"mine/w": [1, 2], "mine/b": [3], "mine/deep/w": [4]},
    ),
    "an inner scope": (lambda variables: {"net/deep/": "mine/deep/"}, {"mine/deep/w": [4]}),
    "root to scope": (lambda variables: {"/": "single/"}, {"single/w": [5, 6]}),
}
SIZES = {"mine/w": 2, "mine/b": 1, "mine/deep/w": 1, "b": 1, "single/w": 2}


@pytest.mark.parametrize("case", MAPS)
def test_init_from_checkpoint_sets_initial_values(graph: tf.Graph, prefix: str, case: str) -> None:
    variables = {name: made(name, size) for name, size in SIZES.items()}
    early = tf.global_variables_initializer()
    make, expected = MAPS[case]
    train.init_from_checkpoint(prefix, make(variables))
    session = initialized()
    for name, var in variables.items():
        assert session.run(var).tolist() == expected.get(name, [0] * SIZES[name]), name
        assert session.run(var.initial_value).tolist() == session.run(var).tolist()
    early_session = tf.Session()
    early_session.run(early)  # what was built before initializes as it did
    assert all(not early_session.run(var).any() for var in variables.values())


def test_root_scope_maps_all_variables(graph: tf.Graph, tmp_path: Path, prefix: str) -> None:
    w, deep, b = made("w", 2), made("deep/w", 1), made("b", 1)
    train.init_from_checkpoint(prefix, {"net/": "/"})
    session = initialized()
    assert [x.tolist() for x in session.run([w, deep, b])] == [[1, 2], [4], [3]]


def test_several_variables_start_from_one_tensor(graph: tf.Graph, prefix: str) -> None:
    w, w_again, b = made("w", 2), made("same", 2), made("b", 1)
    train.init_from_checkpoint(prefix, [("net/w", w), ("net/b", b), ("net/w", "same")])
    assert [x.tolist() for x in initialized().run([w, w_again, b])] == [[1, 2], [1, 2], [3]]


def test_module_parameters_start_from_a_checkpoint(graph: tf.Graph, tmp_path: Path) -> None:
    layer = torch.nn.Linear(2, 1)
    output = layer(tf.placeholder("float32", [None, 2]))
    weight, bias = tf.trainable_variables()
    prefix = saved(tmp_path / "m", old__kernel=[[5.0, 6.0]], old__bias=[7.0])
    train.init_from_checkpoint(prefix, {"old/kernel": layer.weight, "old/bias": bias.op.name})
    session = initialized()
    assert session.run([weight, bias])[0].tolist() == [[5, 6]]
    assert session.run(bias).tolist() == [7]
    assert output.graph is graph


def test_init_from_checkpoint_does_not_initialize_slots(graph: tf.Graph, prefix: str) -> None:
    w = made("mine/w", 2)
    train.init_from_checkpoint(prefix, {"net/w": w})
    train_op = train.MomentumOptimizer(1.0, 0.5).minimize((w * w).sum())
    session = initialized()
    session.run(train_op)
    assert session.run(w).tolist() == [-1, -2]


INVALID_MAPS: dict[str, tuple[Callable[[Any], dict[str, Any]], type[Exception], str]] = {
    "no such tensor": (
        lambda variables: {"w": variables["mine/w"], "x": variables["mine/b"]},
        ValueError,
        r"^Tensor x is not found in .*/m checkpoint",
    ),
    "another shape": (
        lambda variables: {"w": variables["mine/w"], "net/w": variables["mine/b"]},
        ValueError,
        r"^Shape of variable mine/b:0 \(\(1,\)\) doesn't match with shape of tensor net/w \(",
    ),
    "another dtype": (
        lambda variables: {"extra": variables["scalar"], "w": variables["mine/w"]},
        TypeError,
        r"^Variable scalar:0 is float32, tensor extra of the checkpoint is int64",
    ),
    "no such variable": (
        lambda variables: {"w": "nothing"},
        ValueError,
        r"^Assignment map with scope only name nothing should map to scope only w\.",
    ),
    "a scope to a name": (
        lambda variables: {"w": "mine/"},
        ValueError,
        r"Should be 'scope/': 'other_scope/'\.",
    ),
    "missing in a scope": (
        lambda variables: {"net/deep/": "mine/"},
        ValueError,
        r"^Tensor net/deep/b \(b in net/deep/\) is not found in .*/m checkpoint$",
    ),
    "no variable": (lambda _: {"w": 3}, TypeError, r"^assignment_map maps names of a checkpoint"),
}


@pytest.mark.parametrize("case", INVALID_MAPS)
def test_invalid_assignment_maps_change_nothing(graph: tf.Graph, prefix: str, case: str) -> None:
    variables = {name: made(name, size) for name, size in SIZES.items()}
    variables["scalar"] = tf.get_variable("scalar", initializer=np.float32(0))
    initializers = [var.initializer for var in variables.values()]
    make, kind, message = INVALID_MAPS[case]
    with pytest.raises(kind, match=message):
        train.init_from_checkpoint(prefix, make(variables))
    assert [var.initializer for var in variables.values()] == initializers


def test_folder_means_its_newest_checkpoint(graph: tf.Graph) -> None:
    with tf.variable_scope("layer1"):
        kernel = tf.get_variable("kernel", (4, 6))
    train.init_from_checkpoint(ADAM, {"layer1/": "layer1/"})
    session = initialized()
    assert session.run(kernel).tobytes() == train.load_variable(ADAM, "layer1/kernel").tobytes()


def test_a_checkpoint_is_read_when_the_session_begins(graph: tf.Graph, tmp_path: Path) -> None:
    w = made("w", 1)
    path = saved(tmp_path / "m", w=[1.0])
    train.init_from_checkpoint(path, {"w": w})
    saved(tmp_path / "m", w=[2.0])
    session = initialized()
    assert session.run(w) == [2]
    Path(f"{path}.safetensors").unlink()
    second_session = tf.Session()
    with pytest.raises(FileNotFoundError, match=r"Failed to find any matching files"):
        second_session.run(w.initializer)
    assert bits(second_session) == {}


PARTS: dict[str, Callable[[Any], Any]] = {
    "name": lambda variable: {"net/w": "own/w"},
    "variable": lambda variable: {"net/w": variable},
    "list of parts": lambda variable: {"net/w": list(variable)},
    "scope": lambda variable: {"net/": "own/"},
    "pairs": lambda variable: [("net/w", part) for part in variable],
}


@pytest.mark.parametrize("kind", PARTS)
def test_partitioned_variable_starts_from_its_slices(kind: str, tmp_path: Path) -> None:
    values = np.arange(10, dtype=np.float32).reshape(5, 2)
    prefix = saved(tmp_path / "m", net__w=values)
    with tf.Graph().as_default():
        variable = tf.get_variable("own/w", [5, 2], partitioner=tf.fixed_size_partitioner(3))
        train.init_from_checkpoint(prefix, PARTS[kind](variable))
        assert initialized().run(variable.as_tensor()).tolist() == values.tolist()


def test_a_partitioned_variable_of_another_shape_is_an_error(tmp_path: Path) -> None:
    prefix = saved(tmp_path / "m", net__w=np.zeros((5, 2), np.float32))
    with tf.Graph().as_default():
        tf.get_variable("w", [4, 2], partitioner=tf.fixed_size_partitioner(2))
        with pytest.raises(ValueError, match=r"w/part_0:0 \(\(4, 2\)\) doesn't match"):
            train.init_from_checkpoint(prefix, {"net/w": "w"})
        with pytest.raises(TypeError, match="assignment_map maps names"):
            train.init_from_checkpoint(prefix, {"net/w": []})
