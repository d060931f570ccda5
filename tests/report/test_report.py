"""Files of diagnostics that are read while they grow or are cut, pages of them, and tables."""

from __future__ import annotations

import base64
import html.parser
import io
import json
import math
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from thalweg._cli.layer_table import elide, find_shared, rank_layers
from thalweg._cli.main import main
from thalweg._cli.report import bins
from thalweg._cli.report.history import History, read_history
from thalweg._cli.report.page import TrainingReport, draw
from thalweg.diagnostics.jsonl_reader import UNMEASURED, JsonLinesReader
from thalweg.diagnostics.spikes import Spikes
from thalweg.errors import DataLossError, UnsupportedCheckpointError

HOSTILE = "</script><img src=x onerror=alert(1)>&amp;\"'"
HEADER: dict[str, Any] = {
    "thalweg": "diagnostics", "version": 1, "every": 1, "names": ["a.weight", HOSTILE],
    "sizes": [4, 4], "groups": [0, 0], "columns": ["ratio", "gradient_norm"],
}  # fmt: skip


def record(step: int, ratio: object = (0.001, 0.002), loss: object = 1.0) -> dict[str, object]:
    return {"step": step, "time": 1.0, "loss": loss, "ratio": list(ratio), "gradient_norm": [1, 2]}  # pyright: ignore


def write(path: Path, *lines: object) -> Path:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("".join(f"{text}\n" for text in texts))
    return path


def invoke(*arguments: object, **environment: str) -> Result:
    return CliRunner().invoke(main, [*map(str, arguments)], env=environment)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write(tmp_path / "run.jsonl", HEADER, *(record(step) for step in range(1, 31)))


DAMAGED = {
    "cut": '{"step": 2, "loss": 1.0, "ratio": [0.0',
    "no object": "[1, 2]",
    "no step": '{"loss": 1.0}',
    "a step that is a text": '{"step": "2"}',
    "short": '{"step": 2, "ratio": [0.1], "gradient_norm": [1, 2]}',
    "a word": '{"step": 2, "ratio": ["a", 1], "gradient_norm": [1, 2]}',
    "nested": '{"step": 2, "ratio": [[1], 1], "gradient_norm": [1, 2]}',
    "nested alike": '{"step": 2, "ratio": [[1], [1]], "gradient_norm": [1, 2]}',
    "a step beyond all": '{"step": 1000000000000000000000000000000}',
    "steps beyond all": json.dumps({**HEADER, "every": 10**30}),
    "bytes": "\0\0\0",
    "a broken header": '{"thalweg": "diagnostics", "version": 1, "names": [1], "columns": []}',
}


@pytest.mark.parametrize("line", DAMAGED.values(), ids=DAMAGED)
def test_damaged_lines_are_counted(line: str, tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", HEADER, record(1), line, record(3))
    with JsonLinesReader(path) as reader:
        assert [row.step for row in reader.read_all()] == [1, 3]
        assert reader.damaged == 1


@pytest.mark.parametrize(
    "row", [[0.25, 1e-5], [None, "NaN"], ["Infinity", 0], [3, -1e300], ["0.5", True], [2, 2]]
)
def test_records_in_other_forms_have_the_same_numbers(row: list[Any], tmp_path: Path) -> None:
    entry = record(1, row)
    mirror = dict(reversed(entry.items()))
    texts = [json.dumps(entry), json.dumps(entry, separators=(",", ":")), json.dumps(mirror)]
    texts += [json.dumps(entry, indent=1).replace("\n", " "), json.dumps(entry)]
    path = write(tmp_path / "run.jsonl", HEADER, *texts)
    with JsonLinesReader(path) as reader:
        first, *copies = reader.read_all()
        assert reader.damaged == 0
    assert first.rows["gradient_norm"].tolist() == [1.0, 2.0]
    for copy in copies:
        np.testing.assert_equal(copy, first)
    assert len(copies) == 4


def test_missing_and_nonfinite_numbers_are_read(tmp_path: Path) -> None:
    path = write(
        tmp_path / "run.jsonl", HEADER, record(1, [None, "NaN"]), record(2, ["Infinity", 0])
    )
    with JsonLinesReader(path) as reader:
        first, second = (row.rows["ratio"].tolist() for row in reader.read_all())
    assert first[0] == UNMEASURED
    assert math.isnan(first[1])
    assert second == [math.inf, 0.0]


def test_a_growing_file_is_followed(run: Path) -> None:
    with JsonLinesReader(run) as reader, run.open("a") as file:
        assert len(list(reader.read_new())) == 30
        text = json.dumps(record(31)) + "\n"
        file.write(text[:20])
        file.flush()
        assert not list(reader.read_new())
        file.write(text[20:])
        file.flush()
        assert [row.step for row in reader.read_new()] == [31]
        assert reader.damaged == 0
        write(run, HEADER, record(1))
        assert [row.step for row in reader.read_new()] == [1]
        assert reader.restarts == 1


@pytest.mark.parametrize("text", ["", "step,loss\n1,2\n", '{"a": 1}\n', "\x89PNG", "{" * 99_999])
def test_files_of_another_kind_raise(text: str, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(text)
    with pytest.raises(DataLossError, match="no file of diagnostics"):
        read_history(path)
    for command in ("watch", "report"):
        result = invoke(command, path)
        assert result.exit_code == 1
        assert "is no file of diagnostics" in result.stderr


@pytest.mark.parametrize("prefix", ["\ufeff", "\n", "\ufeff \r\n\n"])
def test_files_that_begin_with_a_mark_or_blank_lines_are_read(prefix: str, tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", HEADER, record(1), record(2))
    path.write_bytes(prefix.encode() + path.read_bytes())
    with JsonLinesReader(path) as reader:
        assert [row.step for row in reader.read_all()] == [1, 2]
        assert reader.damaged == (prefix[1:] != "" and prefix[0] == "\ufeff")


def test_other_versions_and_missing_files_raise(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", {**HEADER, "version": 2})
    with pytest.raises(UnsupportedCheckpointError, match="version 2"):
        read_history(path)
    result = invoke("report", tmp_path / "none.jsonl")
    assert (result.exit_code, "there is no file" in result.stderr) == (1, True)


def test_resumed_training_replaces_repeated_steps(tmp_path: Path) -> None:
    second_header = {**HEADER, "names": [HOSTILE, "new"]}
    path = write(tmp_path / "run.jsonl", HEADER, *map(record, range(1, 9)), second_header,
                 record(5, [0.5, 0.25], 7.0))  # fmt: skip
    history = read_history(path)
    assert (list(history.losses), history.losses[5], history.resumed) == ([1, 2, 3, 4, 5], 7.0, [5])
    steps, values = history.column("ratio")
    assert (steps.tolist(), history.names) == ([1, 2, 3, 4, 5], ["a.weight", HOSTILE, "new"])
    assert values[-1].tolist() == [UNMEASURED, 0.5, 0.25]
    assert values[0].tolist() == [0.001, 0.002, UNMEASURED]


@pytest.mark.parametrize(
    ("first", "end", "interval", "expected"),
    [(1, 1, 1, (1, 1)), (1, 1000, 1, (1, 1000)), (1, 1001, 1, (2, 501)),
     (1, 10_000, 10, (10, 1000)), (10, 137, 10, (10, 13)), (1, 123_457, 10, (130, 950))],
)  # fmt: skip
def test_make_bins_covers_the_range(
    first: int, end: int, interval: int, expected: tuple[int, int]
) -> None:
    new_bins = bins.make_bins(first, end, interval)
    assert (new_bins.width, new_bins.count) == expected
    assert new_bins.bin_of(np.array([first, end])).tolist() == [0, new_bins.count - 1]


def test_a_bin_keeps_its_largest_number() -> None:
    new_bins = bins.Bins(1, 3, 3)
    values = np.array([[1.0, UNMEASURED], [5.0, 0.0], [2.0, math.nan], [7.0, math.inf]])
    largest = bins.keep_largest(new_bins, np.array([1, 2, 3, 8]), values)
    np.testing.assert_equal(largest, [[5, math.nan], [UNMEASURED] * 2, [7, math.inf]])


def decode(text: str) -> list[float]:
    """Return numbers from their codes, as the page decodes them."""
    raw = np.frombuffer(base64.b64decode(text), np.uint8).reshape(-1, 3).astype(int)
    numbers: list[float] = []
    for code in (raw @ [1, 256, 65536]).tolist():
        if code < bins.FIRST:
            numbers.append([UNMEASURED, 0.0, math.nan, math.inf][code])
            continue
        magnitude, sign = divmod(code - bins.FIRST, 2)
        exponent, digits = divmod(magnitude, 9000)
        text = f"{'-' * sign}{digits + 1000}e{exponent + bins.LEAST_EXPONENT - 3}"
        numbers.append(float(text))
    return numbers


def test_numbers_of_four_digits_are_kept_exactly() -> None:
    rng = np.random.default_rng(0)
    sizes = 10.0 ** rng.uniform(-307, 308, 5000)
    values = [float(f"{number:.4g}") for number in sizes * rng.choice([1, -1], 5000)]
    values += [1.0, 9.999, 0.9999, 1e-3, 1e22, 1e-22, 0.0, math.nan, math.inf, UNMEASURED, 5e-324]
    np.testing.assert_equal(decode(bins.encode(np.array(values))), values)


class Scripts(html.parser.HTMLParser):
    """Parser of the elements of a page, and of the element that holds its data."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.data, self._is_data = "", False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._is_data = ("id", "data") in attrs
        assert not {"src", "href", "onerror"} & {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        if self._is_data:
            self.data += data


def read_page(page: str) -> tuple[dict[str, Any], list[str]]:
    parser = Scripts()
    parser.feed(page)
    return json.loads(parser.data), parser.tags


def test_report_page_has_data_and_layers(run: Path, tmp_path: Path) -> None:
    with run.open("a") as file:
        file.write(json.dumps(record(31, [None, "NaN"], "NaN"))[:-1] + "}\n{cut\n")
    result = invoke("report", run, "--title", HOSTILE)
    assert result.exit_code == 0, result.output
    assert result.stderr == "1 damaged line was skipped.\n"
    page = (tmp_path / "run.html").read_text()
    data, tags = read_page(page)
    assert HOSTILE not in page
    assert "img" not in tags
    (training,) = data["trainings"]
    assert (data["title"], training["names"]) == (HOSTILE, ["a.weight", HOSTILE])
    assert not re.search(r"https?:|//[a-z]|@import|url\(", page)
    assert data["bins"] == {"first": 1, "width": 1, "count": 31, "last": 31}
    ratio, gradient = (decode(column["codes"]) for column in training["columns"])
    np.testing.assert_equal(ratio, [*[0.001] * 30, UNMEASURED, *[0.002] * 30, math.nan])
    assert gradient == [1.0] * 31 + [2.0] * 31
    assert training["loss"]["mean"] == [*[1.0] * 30, "NaN"]
    assert [warning[:3] for warning in training["warned"]][-1] == [-1, 31, "loss left its band"]


def test_trainings_share_one_axis(run: Path) -> None:
    longer, unmeasured = read_history(run), History()
    unmeasured.losses = dict.fromkeys(range(1, 11), 2.0)
    trainings = [
        TrainingReport(longer, HOSTILE, "rate 1"), TrainingReport(unmeasured, "b", note="no"),
        TrainingReport(History(), "c"),
    ]  # fmt: skip
    page = draw(trainings, HOSTILE, HOSTILE)
    data, tags = read_page(page)
    assert HOSTILE not in page
    assert "img" not in tags
    assert data["bins"] == {"first": 1, "width": 1, "count": 30, "last": 30}
    first, second, third = data["trainings"]
    assert (first["name"], first["summary"], second["note"]) == (HOSTILE, "rate 1", "no")
    assert second["loss"]["mean"] == [2.0] * 10 + [None] * 20
    assert second["facts"] == "Steps 1 to 10. Loss from 2 to 2."
    assert [len(training["columns"]) for training in (first, second, third)] == [2, 0, 0]


@pytest.mark.parametrize("columns", [[], ["cosine"], ["gradient_norm"]])
@pytest.mark.parametrize("layers", [0, 2])
def test_pages_and_tables_support_other_columns(
    columns: list[str], layers: int, tmp_path: Path
) -> None:
    rows = [{"step": step, **{column: [1, 2][:layers] for column in columns}} for step in range(3)]
    fields = {key: HEADER[key][:layers] for key in ("names", "sizes", "groups")}
    path = write(tmp_path / "run.jsonl", {**HEADER, **fields, "columns": columns}, *rows)
    assert invoke("report", path).exit_code == 0
    result = invoke("watch", path)
    assert (result.exit_code, "step 2" in result.stdout) == (0, True), result.output


def test_columns_may_have_any_names(tmp_path: Path) -> None:
    column = "[/b]\x1b[2J"
    path = write(tmp_path / "run.jsonl", {**HEADER, "columns": [column]},
                 {"step": 1, column: [1, 2]})  # fmt: skip
    result = invoke("watch", path)
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.stdout
    assert r"[/b]\x1b[2J" in result.stdout


def test_file_with_only_a_header_is_reported(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", HEADER)
    assert "no step yet" in invoke("watch", path).stdout
    assert invoke("report", path).exit_code == 0


def test_a_large_page_is_small() -> None:
    history, rng = History(), np.random.default_rng(0)
    history.names = [f"transformer.h.{place // 12}.weight{place % 12}" for place in range(300)]
    for step in range(1, 10_001):
        history.losses[step] = 1 / step
    for step in range(1, 10_001, 10):  # as many columns as there are at most
        row = rng.lognormal(-6, 2, 300)
        history.rows[step] = {"ratio": row, "gradient_norm": row * 100}
    assert len(draw([TrainingReport(history)], "large").encode()) < 3_000_000


def test_the_largest_numbers_are_drawn(run: Path) -> None:
    with run.open("a") as file:
        file.write(json.dumps(record(32, [1.7976931348623157e308, 1.0])) + "\n")
        file.write('{"step": 33, "loss": 1.7976931348623157e308}\n')
    outcome = invoke("report", run, "--json")
    assert outcome.exit_code == 0, outcome.output
    assert json.loads(outcome.stdout)["step"] == 33


def test_output_option_sets_the_page_path(run: Path, tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    assert invoke("report", run, "-o", target).stdout == f"Saved {target}\n"
    assert target.is_file()
    result = invoke("report", run, "-o", run)
    assert (result.exit_code, "is FILE itself" in result.stderr) == (2, True)
    assert run.read_text().startswith("{")
    result = invoke("report", run, "-o", tmp_path / "none" / "page.html")
    assert (result.exit_code, "there is no folder" in result.stderr) == (2, True)


def test_page_never_overwrites_its_input_or_a_device(run: Path) -> None:
    content = run.read_bytes()
    page = run.rename(run.with_suffix(".html"))  # so that the default is the same file
    for arguments in ((page,), (page, "-o", page)):
        result = invoke("report", *arguments)
        assert (result.exit_code, "is FILE itself" in result.stderr) == (2, True)
    os.mkfifo(pipe := run.with_suffix(".pipe"))
    result = invoke("report", page, "-o", pipe)
    assert (result.exit_code, "is a device" in result.stderr) == (2, True)
    assert pipe.is_fifo()
    assert page.read_bytes() == content
    assert "Is a directory" in invoke("report", "").stderr  # a variable of a shell that is not set


def test_named_pipe_raises() -> None:
    reading, writing = os.pipe()
    with open(reading), open(writing, "w"), pytest.raises(DataLossError, match="is a pipe"):
        JsonLinesReader(f"/dev/fd/{reading}")


def test_piped_watch_prints_one_table(run: Path) -> None:
    with run.open("a") as file:
        file.write(json.dumps(record(31, [0.5, "NaN"])) + '\n{"step": 4, "lo')
    result = invoke("watch", run, COLUMNS="60")
    assert result.exit_code == 0, result.output
    assert max(map(len, result.stdout.splitlines())) <= 60
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["NaN", "2"] in [line[-2:] for line in lines]
    _, first, second = [line[0] for line in lines if line and line[-1] in ("1", "2")]
    assert (first[0], second) == ("<", "a.weight")  # what is not finite stands first
    assert "not finite first, then the largest update" in result.stdout
    assert "1 damaged line was skipped." in result.stdout


def test_ctrl_c_ends_watch_silently(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from rich.console import Console

    from thalweg._cli.commands import watch

    class Stdout(io.StringIO):
        def isatty(self) -> bool:
            return True

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    screen = Stdout()
    monkeypatch.setattr(watch.sys, "stdout", screen)
    monkeypatch.setattr(watch, "make_console", lambda: Console(file=screen, force_terminal=True))
    monkeypatch.setattr(watch.time, "sleep", interrupt)
    with pytest.raises(SystemExit) as error:
        main(["watch", str(run)])
    assert error.value.code == 130
    assert "step 30" in screen.getvalue()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("command", ["watch", "report"])
def test_examples_of_help_run(command: str, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shlex

    monkeypatch.chdir(run.parent)
    examples = re.findall(r"^ +thalweg (.*)$", invoke(command, "--help").stdout, re.MULTILINE)
    assert examples
    for example in examples:
        result = invoke(*shlex.split(example))
        assert result.exit_code == 0, result.output


def test_layers_keep_model_order() -> None:
    rows = {"ratio": np.array([1.0, 3.0, math.nan, UNMEASURED, 2.0]), "nonfinite": np.eye(5)[4]}
    assert rank_layers(rows).indices.tolist() == [2, 4, 1, 0, 3]


def test_long_names_are_elided_in_the_middle() -> None:
    name = "model.layers.10.self_attn.q_proj.weight"
    assert elide(name, 16) == "model.la….weight"
    assert len(elide(name, 16)) == 16
    assert find_shared([name, "model.layers.11.bias"]) == "model.layers."
    assert find_shared([name]) == ""
    assert elide(name, 99) == name


# Warnings.


def feed(
    rows: list[dict[str, Any]], losses: list[float] | None = None
) -> list[tuple[str, int, str]]:
    spikes, events = Spikes(), []
    for place, row in enumerate(rows):
        loss = None if losses is None else losses[place]
        columns = {key: np.array(column, float) for key, column in row.items()}
        events += spikes.feed(columns, ("a", "b"), place + 1, loss, (100, 100))
    return [(event.name, event.step, event.what) for event in events]


def usual(count: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    return [
        {"ratio": rng.lognormal(-7, 0.2, 2), "gradient_norm": rng.lognormal(0, 0.3, 2),
         "update_norm": [1, 1], "weight_norm": [10, 10], "cosine": rng.uniform(-1, 1, 2)}
        for _ in range(count)
    ]  # fmt: skip


def changed(rows: list[dict[str, Any]], start: int, end: int, **columns: Any) -> list[Any]:
    return [{**row, **columns} if start <= step < end else row for step, row in enumerate(rows, 1)]


CASES = {
    "nothing": ({}, 1, 1, []),
    "a spike that lasts": ({"ratio": [0.001, 1]}, 90, 99, [("b", 90, "update beside weight")]),
    "a spike that is noise": ({"gradient_norm": [1, 1000]}, 90, 91, []),
    "not finite": ({"nonfinite": [0, 3]}, 90, 99, [("b", 90, "gradient is not finite, elements")]),
    "a step that was not taken": ({"nonfinite": [0, 3], "update_norm": [0, 0]}, 90, 91, []),
    "dead": ({"gradient_norm": [1, 0]}, 90, 200, [("b", 140, "gradient is all 0")]),
    "without a gradient": ({"gradient_norm": [1, -math.inf]}, 90, 200, [("b", 140, "no gradient")]),
    "a rate of 0": ({"update_norm": [1, 0]}, 90, 200,
                    [("b", 140, "no update, though there is a gradient")]),
    "lost": ({"unchanged": [0.1, 0.9]}, 1, 200,
             [("b", 51, "updates lost by the dtype, share of elements")]),
    "a resume": ({"cosine": [math.nan, math.nan]}, 90, 91,
                 [("x", 90, "momentum is empty, here and in 1 others")]),
    "first weights": ({"weight_norm": [10, 100]}, 1, 200,
                      [("b", 1, "first weights are large, root mean square")]),
}  # fmt: skip


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("columns", "start", "end", "expected"), CASES.values(), ids=CASES)
def test_training_problems_are_warned_about(
    columns: Any, start: int, end: int, expected: list[Any]
) -> None:
    rows = feed(changed(usual(160), start, end, **columns))
    assert [("x" if "momentum" in row[2] else row[0], *row[1:]) for row in rows] == expected


LAYERS = tuple("abcdefgh")
LARGE = {"gradient_norm": 100.0, "ratio": 1.0, "nonfinite": 3.0, "zero": 0.999}
# Of eight layers: by column those that leave their band at step 60, for how many rows, the step at
# which the loss leaves, and the layers of the batch that is reported.
BATCHES: dict[str, tuple[dict[str, str], int, int | None, str]] = {
    "five": ({"gradient_norm": "bcdef"}, 1, 61, "bcdef"),
    "all": ({"gradient_norm": "abcdefgh"}, 1, 60, "abcdefgh"),
    "that last": ({"gradient_norm": "abcdefgh"}, 9, None, "abcdefgh"),
    "updates, as of a learning rate": ({"ratio": "abcdefgh"}, 9, None, "abcdefgh"),
    "in different columns": ({"ratio": "abc", "gradient_norm": "cde"}, 9, None, "abcde"),
    "of which one lasts": ({"gradient_norm": "bcdef", "ratio": "a"}, 1, 61, "abcdef"),
    "not finite": ({"nonfinite": "bcdefgh"}, 1, None, "bcdefgh"),
    "few elements": ({"zero": "abcdefg"}, 9, None, "abcdefg"),
    "half": ({"gradient_norm": "bcde"}, 9, None, ""),
    "noise": ({"gradient_norm": "abcdefgh"}, 1, None, ""),
}


@pytest.mark.parametrize(("columns", "rows", "loss_step", "crowd"), BATCHES.values(), ids=BATCHES)
def test_batch_is_reported_if_most_layers_spike(
    columns: dict[str, str], rows: int, loss_step: int | None, crowd: str
) -> None:
    spikes, events, rng = Spikes(), [], np.random.default_rng(0)
    for step in range(1, 91):
        row = {"ratio": rng.lognormal(-7, 0.2, 8), "gradient_norm": rng.lognormal(0, 0.3, 8),
               "nonfinite": np.zeros(8), "zero": np.full(8, 0.5)}  # fmt: skip
        if 60 <= step < 60 + rows:
            for key, layers in columns.items():
                row[key][[LAYERS.index(layer) for layer in layers]] = LARGE[key]
        events += spikes.feed(row, LAYERS, step, 9.0 if step == loss_step else 1.0)
    batches = [event for event in events if event.kind == "batch"]
    of_layers = [event for event in events if event.kind == "spike"]
    if not crowd:
        assert not batches
        assert sorted(event.name for event in of_layers) == [*("bcde" if rows > 1 else "")]
        return
    assert not of_layers
    (batch,) = batches
    assert (batch.name, batch.title, batch.step) == ("", "batch", 60)
    assert batch.layers == tuple(crowd)
    assert batch.what.startswith(f"{len(crowd)} layers left their band, farthest ")
    assert str(batch).startswith("step 60: batch: ")
    assert len(events) == 1 + (loss_step is not None)


def test_first_spiking_layer_is_named_before_the_batch() -> None:
    spikes, events, rng = Spikes(), [], np.random.default_rng(0)
    for step in range(1, 66):
        norms = rng.lognormal(0, 0.3, 8)
        norms[2 if step == 60 else slice(None)] *= 1000 if step >= 60 else 1
        events += spikes.feed({"gradient_norm": norms}, LAYERS, step)
    assert [(event.title, event.step, "".join(event.layers)) for event in events] == [
        ("c", 60, ""), ("batch", 61, "abdefgh")
    ]  # fmt: skip


def test_frozen_layers_are_ignored_in_batch_warnings() -> None:
    spikes, events, rng = Spikes(), [], np.random.default_rng(0)
    for step in range(1, 91):
        norms = rng.lognormal(0, 0.3, 8)
        norms[3:] = UNMEASURED
        norms[:2] *= 1000 if step >= 60 else 1
        events += spikes.feed({"gradient_norm": norms}, LAYERS, step)
    batches = ["".join(event.layers) for event in events if event.kind == "batch"]
    assert batches == ["ab"]


def test_pages_and_tables_report_a_batch_warning(tmp_path: Path) -> None:
    large = [[1, 2], [1000, 2000]]
    rows = [{**record(step), "loss": 9.0 if step == 40 else 1.0, "gradient_norm": large[step == 40]}
            for step in range(1, 50)]  # fmt: skip
    path = write(tmp_path / "run.jsonl", HEADER, *rows)
    events = json.loads(invoke("report", path, "--json").stdout)["warned"]
    assert [(event["kind"], event["layers"]) for event in events] == [
        ("batch", HEADER["names"]), ("loss", [])
    ]  # fmt: skip
    (training,) = read_page(path.with_suffix(".html").read_text())[0]["trainings"]
    assert [(warning[0], warning[1], *warning[5:]) for warning in training["warned"]] == [
        (-1, 40, "batch", [0, 1]), (-1, 40, "loss", [])
    ]  # fmt: skip
    assert "step 40: batch: 2 layers left their band" in invoke("watch", path).stdout


def test_page_without_drawn_columns_reports_a_batch_warning(tmp_path: Path) -> None:
    rows = [{"step": step, "time": 1.0, "loss": 9.0 if step == 40 else 1.0,
             "zero": [0.999 if step == 40 else 0.5] * 2} for step in range(1, 50)]  # fmt: skip
    path = write(tmp_path / "run.jsonl", {**HEADER, "columns": ["zero"]}, *rows)
    result = invoke("report", path)
    assert result.exit_code == 0, result.output
    (training,) = read_page(path.with_suffix(".html").read_text())[0]["trainings"]
    assert [warning[5:] for warning in training["warned"]] == [["batch", []], ["loss", []]]


def test_loss_confirms_a_short_spike() -> None:
    rows = changed(usual(120), 90, 91, gradient_norm=[1, 1000])
    losses = [1.0] * 120
    losses[92] = 5.0
    assert feed(rows, losses) == [("b", 90, "gradient norm"), ("", 93, "loss left its band")]


def test_weights_that_grow_are_named() -> None:
    rows = [{**row, "weight_norm": [10, 10 * 1.03 ** max(0, step - 150)]}
            for step, row in enumerate(usual(200))]  # fmt: skip
    ((name, step, description),) = feed(rows)
    assert (name, description) == ("b", "weights grow, in 50 steps by a factor of")
    assert 170 < step < 180


def test_parameters_without_elements_are_not_silent() -> None:
    spikes, rows = Spikes(), {"gradient_norm": np.array([1.0, UNMEASURED])}
    assert not [event for n in range(99) for event in spikes.feed(rows, "ab", n, None, (4, 0))]


def test_resumed_training_is_judged_from_its_start() -> None:
    spikes, events = Spikes(), []
    for is_resumed, steps in ((False, range(1, 1001)), (True, range(501, 701))):
        for step in steps:
            growth = 1.03 ** max(0, step - 600) if is_resumed else 1.0
            zero = step > 990 if not is_resumed else step < 570
            row = {"gradient_norm": np.array([1.0, float(not zero)]),
                   "weight_norm": np.array([10.0, 10.0 * growth])}  # fmt: skip
            events += spikes.feed(row, ("a", "b"), step)
    assert [(event.step, event.what) for event in events] == [
        (551, "gradient is all 0"), (624, "weights grow, in 50 steps by a factor of")
    ]  # fmt: skip


def test_finished_files_are_judged(tmp_path: Path) -> None:
    rows = [record(step, [0.001, 1 if step > 40 else 0.002]) for step in range(1, 60)]
    path = write(tmp_path / "run.jsonl", HEADER, *rows)
    (event,) = Spikes.read(path)
    assert (event.name, event.step, event.number, event.kind) == (HOSTILE, 41, 1.0, "spike")
    assert str(event).endswith("update beside weight 1, usually 0.002")
