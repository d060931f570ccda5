"""Modules that scripts use around training: `tf.flags`, `tf.app`, `tf.logging`, `tf.gfile`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fresh_process
import thalweg.tf as tf
import thalweg.tf.compat.v1 as v1
from captured_log import Logged
from thalweg.errors import NotFoundError

SCRIPT = """
import thalweg.tf.compat.v1 as tf

flags = tf.app.flags
flags.DEFINE_string("name", "none", "A name.")
flags.DEFINE_integer("steps", 10, "How many.")
flags.DEFINE_float("rate", 0.1, "How fast.")
flags.DEFINE_boolean("fast", False, "Whether.")
flags.DEFINE_bool("loud", True, "Whether.")
flags.DEFINE_enum("mode", "train", ["train", "test"], "Which.")
flags.DEFINE_list("layers", "1,2", "Some.")
FLAGS = tf.flags.FLAGS
print(FLAGS.name, FLAGS.steps + 1, FLAGS.rate, FLAGS.fast, FLAGS.loud, FLAGS.mode, FLAGS.layers)
print("steps" in FLAGS, FLAGS["steps"].value, FLAGS.flag_values_dict()["rate"])
FLAGS.steps = 7
print(FLAGS.steps)


def main(rest):
    print(FLAGS.name, rest[1:])
    return 3


tf.app.run(main)
"""


def test_flags_are_parsed_when_one_is_read() -> None:
    switches = ("--name=x", "--fast", "--noloud", "--mode=test")
    process = fresh_process.run(SCRIPT, *switches, "--steps", "5", "--layers", "a,b", "file")
    assert process.stdout.splitlines() == [
        "x 6 0.1 True False test ['a', 'b']",
        "True 5 0.1",
        "7",
        "x ['file']",
    ], process.stderr
    assert process.returncode == 3


def test_app_run_leaves_unknown_flags_to_main() -> None:
    script = (
        "import thalweg.tf.compat.v1 as tf\n"
        "def main(rest): print(rest[1:])\n"
        "tf.app.run()\n"
    )  # fmt: skip
    process = fresh_process.run(script, "--unknown=1", "file")
    assert (process.stdout, process.returncode) == ("['--unknown=1', 'file']\n", 0), process.stderr


# Flags of absl.app, absl.logging and absl.flags, with what a script may define under their names.
ABSL_FLAGS = {
    "log_dir": "logs",
    "logtostderr": "none",
    "alsologtostderr": "none",
    "stderrthreshold": "none",
    "showprefixforinfo": "none",
    "logger_levels": "none",
    "verbosity": 3,
    "v": 2,
    "run_with_pdb": "yes",
    "pdb": "yes",
    "pdb_post_mortem": "yes",
    "run_with_profiling": "yes",
    "profile_file": "profile.out",
    "use_cprofile_for_profiling": "yes",
    "only_check_args": "yes",
    "help": "me",
    "helpshort": "me",
    "helpfull": "me",
    "helpxml": "me",
    "undefok": "yes",
}
REPLACING = """
import sys
import thalweg.tf.compat.v1 as tf

VALUES = {values}
for name, value in VALUES.items():
    define = tf.flags.DEFINE_integer if isinstance(value, int) else tf.flags.DEFINE_string
    define(flag_name=name, default_value=value, docstring="Mine.")


def main(rest):
    from absl import logging
    logging.error("to stderr")
    logging.set_verbosity(logging.INFO)
    print({{name: getattr(tf.flags.FLAGS, name) for name in VALUES}})
    try:
        tf.flags.DEFINE_string(list(VALUES)[0], "again", "Twice.")
    except tf.flags.DuplicateFlagError:
        print("defined twice")


tf.app.run(main)
"""


@pytest.mark.parametrize("uses_absl", [False, True])
def test_flag_replaces_an_absl_flag(uses_absl: bool) -> None:
    # absl interprets --undefok before it looks for a flag of this name.
    names = [name for name in ABSL_FLAGS if uses_absl and name != "undefok"]
    switches = {name: 7 if isinstance(ABSL_FLAGS[name], int) else "given" for name in names}
    script = REPLACING.format(values=ABSL_FLAGS)
    process = fresh_process.run(script, *(f"--{name}={value}" for name, value in switches.items()))
    expected = f"{ABSL_FLAGS | switches}\ndefined twice\n"
    assert (process.returncode, process.stdout) == (0, expected), process.stderr
    assert "to stderr" in process.stderr


@pytest.mark.parametrize(
    "call", [lambda: v1.flags.DEFINE_string, lambda: v1.flags.FLAGS.x, lambda: v1.app.run(print)]
)
def test_flags_without_absl_raise_with_advice(
    call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("absl", "absl.flags", "absl.app"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"pip install 'thalweg\[tf\]'"):
        call()


@pytest.fixture
def verbosity() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("tensorflow", "thalweg")]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


def test_log_messages_have_levels(verbosity: None, logged: Logged) -> None:
    v1.logging.set_verbosity(v1.logging.INFO)
    assert v1.logging.get_verbosity() == v1.logging.INFO == 20
    v1.logging.debug("left out")
    v1.logging.info("step %d", 3)
    v1.logging.warn("slow")
    v1.logging.log_if(v1.logging.ERROR, "not so", False)
    logging.getLogger("thalweg").info("of a hook")
    assert [(record.name, record.levelname, record.getMessage()) for record in logged.records] == [
        ("tensorflow", "INFO", "step 3"),
        ("tensorflow", "WARNING", "slow"),
        ("thalweg", "INFO", "of a hook"),
    ]
    assert tf.get_logger() is logging.getLogger("tensorflow")


def test_messages_of_one_line_are_counted(verbosity: None, logged: Logged) -> None:
    v1.logging.set_verbosity(v1.logging.INFO)
    for step in range(5):
        v1.logging.log_every_n(v1.logging.INFO, "every %d", 2, step)
        v1.logging.log_first_n(v1.logging.INFO, "first %d", 2, step)
    expected = ["every 0", "first 0", "first 1", "every 2", "every 4"]
    assert [record.getMessage() for record in logged.records] == expected


def test_log_messages_have_the_line_of_the_caller(verbosity: None, logged: Logged) -> None:
    log = v1.logging
    log.set_verbosity(log.DEBUG)
    for write in (log.debug, log.info, log.warning, log.warn, log.error, log.fatal):
        write("%d", 1)
    for write in (log.log, log.vlog):
        write(log.INFO, "%d", 1)
    log.log_if(log.INFO, "%d", True, 1)
    log.log_every_n(log.INFO, "%d", 1, 1)
    log.log_first_n(log.INFO, "%d", 1, 1)
    assert len(logged.records) == 11
    assert {record.pathname for record in logged.records} == {__file__}


def test_file_functions_work(tmp_path: Path) -> None:
    gfile, old = tf.io.gfile, v1.gfile
    folder = gfile.join(tmp_path, "a", "b")
    gfile.makedirs(folder)
    old.MakeDirs(folder)  # it may exist
    path = gfile.join(folder, "x.txt")
    with old.Open(path, "w") as file:
        file.write("ä\r\nb\n")
    with old.GFile(path) as file:
        assert file.readlines() == ["ä\r\n", "b\n"]
    with old.FastGFile(path, "rb") as file:
        assert file.read() == "ä\r\nb\n".encode()
    old.Copy(path, folder + "/y.txt")
    old.Rename(folder + "/y.txt", folder + "/z.txt")
    assert old.ListDirectory(folder) == gfile.listdir(folder) == ["x.txt", "z.txt"]
    names = [Path(path).name for path in gfile.glob([folder + "/z*", folder + "/*.txt"])]
    assert names == ["z.txt", "x.txt", "z.txt"]
    status = old.Stat(path)
    assert (status.length, status.is_directory, status.mtime_nsec > 0) == (6, False, True)
    assert (gfile.isdir(folder), old.IsDirectory(path)) == (True, False)
    walked = [(top, folders, sorted(files)) for top, folders, files in old.Walk(tmp_path / "a")]
    assert walked == [(str(tmp_path / "a"), ["b"], []), (folder, [], ["x.txt", "z.txt"])]
    gfile.remove(path)
    assert not old.Exists(path)
    old.DeleteRecursively(str(tmp_path / "a"))
    assert not gfile.exists(tmp_path / "a")


@pytest.mark.parametrize(
    "call",
    [
        lambda gfile, path: gfile.GFile(path),
        lambda gfile, path: gfile.GFile(path / "x", "w"),
        lambda gfile, path: gfile.listdir(path),
        lambda gfile, path: gfile.mkdir(path / "x"),
        lambda gfile, path: gfile.remove(path),
        lambda gfile, path: gfile.rmtree(path),
        lambda gfile, path: gfile.copy(path, "y"),
        lambda gfile, path: gfile.rename(path, "y"),
        lambda gfile, path: gfile.stat(path),
    ],
)
def test_a_missing_file_is_named(call: Callable[..., Any], tmp_path: Path) -> None:
    for kind in (NotFoundError, FileNotFoundError):
        with pytest.raises(kind, match="nothing"):
            call(tf.io.gfile, tmp_path / "nothing")


def test_existing_files_need_overwrite(tmp_path: Path) -> None:
    source, target = tmp_path / "one", tmp_path / "other"
    for path in (source, target):
        path.write_text(path.name)
    for change in (tf.io.gfile.copy, tf.io.gfile.rename):
        with pytest.raises(FileExistsError, match="overwrite=True"):
            change(source, target)
        assert target.read_text() == "other"
    tf.io.gfile.rename(source, target, overwrite=True)
    assert target.read_text() == "one"
