"""The file `checkpoint`: read, written, and rejected where it leads out of its folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bundle_files import GOLDENS
from thalweg._formats.bundle import CheckpointState, read_state, write_state
from thalweg.errors import DataLossError, ThalwegError, UnsafeCheckpointError

SHARED_FIXTURES = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
LAST_LINE = 'model_checkpoint_path: "model.ckpt-5"\n'


def parsed(folder: Path, text: str | bytes) -> CheckpointState | None:
    data = text.encode() if isinstance(text, str) else text
    (folder / "checkpoint").write_bytes(data)
    return read_state(folder)


def test_tensorflow_state_file_is_read() -> None:
    home = GOLDENS / "ckpt_v1" / "adam"
    path = str(home / "model.ckpt-5")
    assert read_state(home) == CheckpointState(path, [path])
    assert read_state(home, "other") is None
    assert read_state(home / "none") is None


def test_state_file_is_written_as_by_tensorflow(tmp_path: Path) -> None:
    path = str(tmp_path / "model.ckpt-5")
    write_state(tmp_path, CheckpointState(path, [path]))
    sample = GOLDENS / "ckpt_v1" / "adam" / "checkpoint"
    assert (tmp_path / "checkpoint").read_bytes() == sample.read_bytes()
    paths = [str(tmp_path / name) for name in ("sub/a-1", 'b"\n\té')]
    state = CheckpointState(paths[1], paths, [1700000000.25, 1.0], 1e22)
    write_state(tmp_path, state, "other")
    assert (tmp_path / "other").read_text() == (
        'model_checkpoint_path: "b\\"\\n\\t\\303\\251"\n'
        'all_model_checkpoint_paths: "sub/a-1"\n'
        'all_model_checkpoint_paths: "b\\"\\n\\t\\303\\251"\n'
        "all_model_checkpoint_timestamps: 1700000000.25\n"
        "all_model_checkpoint_timestamps: 1.0\n"
        "last_preserved_timestamp: 1e+22\n"
    )
    (tmp_path / "sub").mkdir()
    assert read_state(tmp_path, "other") == state


PATHS = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=20)
TIMES = st.floats(allow_nan=False, allow_infinity=False)


@SHARED_FIXTURES
@given(st.lists(PATHS.filter(lambda path: path not in (".", "..")), max_size=3), st.lists(TIMES))
def test_state_file_round_trips(tmp_path: Path, names: list[str], times: list[float]) -> None:
    paths = [str(tmp_path / name) for name in names]
    state = CheckpointState(paths[-1] if paths else "", paths, times)
    write_state(tmp_path, state)
    assert read_state(tmp_path) == state


TEXTS = {
    "": "",
    "# nothing\n": "",
    LAST_LINE: "model.ckpt-5",
    "model_checkpoint_path:'a'": "a",
    'model_checkpoint_path : "a" "b"\n \'c\' # more\n': "abc",
    'model_checkpoint_path: "a",': "a",
    'model_checkpoint_path: "a";all_model_checkpoint_timestamps: 1': "a",
    'model_checkpoint_path: ["a"]': "a",
    r'model_checkpoint_path: "\x61\142\u0063\U00000064\303\251\'\"\\\?"': "abcdé'\"\\?",
    'all_model_checkpoint_timestamps: [1, -2.5, .5e3, 3f]\nmodel_checkpoint_path: "a"': "a",
}


@pytest.mark.parametrize("text", TEXTS)
def test_text_format_variants_are_parsed(text: str, tmp_path: Path) -> None:
    state = parsed(tmp_path, text)
    expected = TEXTS[text]
    assert state is not None
    assert state.model_checkpoint_path == (str(tmp_path / expected) if expected else "")


DAMAGED = {
    "\xff": "is no UTF-8",
    "model_checkpoint_path": "a name and a colon are due",
    "model_checkpoint_path:": "there is '' where a value is due",
    'model_checkpoint_path "a"': "a name and a colon are due",
    'model_checkpoint_path: "a': "it makes no sense at character 23",
    'model_checkpoint_path: "a\n"': "it makes no sense",
    'model_checkpoint_path: "a\\"': "it makes no sense",
    'model_checkpoint_path: "\\z"': "there is no escape",
    'model_checkpoint_path: "\\ud800"': "there is no character",
    'model_checkpoint_path: "\\U00110000"': "there is no character",
    "model_checkpoint_path: 5": "its value is no str",
    'all_model_checkpoint_timestamps: "a"': "its value is no float",
    "all_model_checkpoint_timestamps: nan": "where a value is due",
    "all_model_checkpoint_timestamps: 1e999": "beyond all numbers",
    f"all_model_checkpoint_timestamps: {'1' * 5000}": "beyond all numbers",
    'model_checkpoint_path: ["a"': "there is '' in a list",
    'model_checkpoint_path: ["a",]': "where a value is due",
    'model_checkpoint_path: ["a" 5]': "there is '5' in a list",
    f"{LAST_LINE}{LAST_LINE}": "more than one checkpoint as the last one",
    'other: "a"': "other: there is no such field",
    "model_checkpoint_path { }": "it makes no sense at character 22",
    f"{LAST_LINE}5": "there is '5' where a name and a colon are due",
    "\0": "it makes no sense at character 0",
}


@pytest.mark.parametrize("text", DAMAGED)
def test_damaged_text_raises(text: str, tmp_path: Path) -> None:
    with pytest.raises(DataLossError, match=DAMAGED[text]) as error:
        parsed(tmp_path, text.encode("latin-1"))
    assert str(error.value).startswith(str(tmp_path / "checkpoint"))
    assert len(str(error.value)) < 500


OUTSIDE_PATHS = [
    "/etc/passwd",
    "../x",
    "sub/../../x",
    "..",
    ".",
    "sub/..",
    "",
    "sub/",
    "link/x",
    "link/../x",
    "a\\0b",
    "a" * 5000,
    "/",
]


@pytest.mark.parametrize("field", ["model_checkpoint_path", "all_model_checkpoint_paths"])
@pytest.mark.parametrize("path", OUTSIDE_PATHS)
def test_path_outside_the_folder_raises(path: str, field: str, tmp_path: Path) -> None:
    home = tmp_path / "run"
    (home / "sub").mkdir(parents=True)
    (home / "link").symlink_to("/etc")
    text = f'{field}: "{path}"'
    if not path:
        state = parsed(home, text)
        assert state is not None
        assert {state.model_checkpoint_path, *state.all_model_checkpoint_paths} == {""}
        return
    with pytest.raises(UnsafeCheckpointError, match="it names"):
        parsed(home, text)


def test_path_inside_the_folder_is_accepted(tmp_path: Path) -> None:
    home = tmp_path / "run"
    (home / "sub").mkdir(parents=True)
    (tmp_path / "linked").symlink_to("run")
    for path in ("x", "./x", "sub/x", "sub/../x", "../run/x", str(home / "x"),
                 str(tmp_path / "linked" / "x")):  # fmt: skip
        for folder in (home, tmp_path / "linked"):
            state = parsed(folder, f'model_checkpoint_path: "{path}"')
            assert state is not None
            assert state.model_checkpoint_path == os.path.join(folder, path)
    sibling = tmp_path / "run2"
    sibling.mkdir()
    with pytest.raises(UnsafeCheckpointError):
        parsed(home, f'model_checkpoint_path: "{sibling}/x"')


def test_relative_folder_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("", ".", "run"):
        Path(folder or ".").mkdir(exist_ok=True)
        path = os.path.join(folder, "model.ckpt-5")
        write_state(folder, CheckpointState(path, [path]))
        assert Path(folder, "checkpoint").read_text().startswith(LAST_LINE)
        assert read_state(folder) == CheckpointState(path, [path])
    absolute = str(tmp_path / "run" / "model.ckpt-5")
    write_state("run", CheckpointState(absolute))
    assert Path("run/checkpoint").read_text() == LAST_LINE  # so that the folder can be moved


def test_writing_a_path_outside_the_folder_raises(tmp_path: Path) -> None:
    with pytest.raises(UnsafeCheckpointError, match="which is not in its folder"):
        write_state(tmp_path, CheckpointState("/elsewhere/model.ckpt-5"))
    with pytest.raises(UnsafeCheckpointError, match="which is not in its folder"):
        write_state(tmp_path, CheckpointState("", (str(tmp_path / "a"), "/b")))
    assert not os.listdir(tmp_path)


def test_special_files_raise(tmp_path: Path) -> None:
    cases: dict[str, type[ThalwegError]] = {
        "link": UnsafeCheckpointError,
        "pipe": DataLossError,
        "folder": DataLossError,
        "large": DataLossError,
    }
    (tmp_path / "real").write_text(LAST_LINE)
    (tmp_path / "link").symlink_to("real")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 40)
    for name, kind in cases.items():
        with pytest.raises(kind, match=name):
            read_state(tmp_path, name)
