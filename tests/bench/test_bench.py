"""`thalweg bench`: contents of its results; figures are not tested."""

import io
import json
import os
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from rich.console import Console
from safetensors.torch import save_file

from thalweg import rules
from thalweg._cli import options
from thalweg._cli.bench import (
    compare,
    memory,
    peers,
    registry,
    roofline,
    shapes,
    table,
    timing,
    workload,
)
from thalweg._cli.commands.bench import bench
from thalweg._cli.main import main as command
from thalweg._cli.registry import applied, by_class

TINY = shapes.of("tiny", [(3, 4), (5,), ()])


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch):
    """Measure blocks of two steps: their length decides how exact figures are, and nothing else."""
    steps = timing._steps_of_block
    monkeypatch.setattr(timing, "_steps_of_block", lambda contender, block: steps(contender, 0.0))


@pytest.mark.parametrize(
    ("name", "tensors", "parameters"),
    [
        ("gpt2", 148, 124_439_808),
        ("resnet50", 161, 25_557_032),
        ("small2000", 2000, 2_000_000),
    ],
)
def test_named_sets_have_the_shapes_of_the_models(name, tensors, parameters):
    model_shapes = shapes.load(name)
    assert len(model_shapes.shapes) == tensors
    assert model_shapes.parameters == parameters
    assert model_shapes.bytes == 4 * parameters


@pytest.fixture
def state_dict():
    head = torch.zeros(4, 3)
    norm, batches = torch.ones(3, dtype=torch.float16), torch.tensor(7)
    return {"in": head, "out": head, "norm": norm, "batches": batches, "empty": torch.zeros(0, 2)}


@pytest.mark.parametrize("wrap", [lambda state: state, lambda state: {"epoch": 3, "model": state}])
def test_a_state_dict_counts_tied_weights_once_and_skips_integers(tmp_path, state_dict, wrap):
    torch.save(wrap(state_dict), tmp_path / "model.pt")
    model_shapes = shapes.load(str(tmp_path / "model.pt"))
    assert model_shapes.name == "model"
    assert model_shapes.shapes == ((4, 3), (3,))
    assert model_shapes.dtypes == (torch.float32, torch.float16)


def test_a_safetensors_file_gives_its_shapes(tmp_path):
    save_file(
        {"a": torch.zeros(4, 3), "b": torch.zeros(2, dtype=torch.bfloat16), "n": torch.tensor([1])},
        tmp_path / "model.safetensors",
    )
    model_shapes = shapes.load(str(tmp_path / "model.safetensors"))
    assert set(zip(model_shapes.shapes, model_shapes.dtypes, strict=True)) == {
        ((4, 3), torch.float32),
        ((2,), torch.bfloat16),
    }


@pytest.mark.parametrize("name", ["broken.pt", "broken.safetensors", "integers.pt", "missing.pt"])
def test_file_without_shapes_raises_with_its_name(tmp_path, name):
    path = tmp_path / name
    if name.startswith("broken"):
        path.write_bytes(b"nothing of the kind")
    elif name.startswith("integers"):
        torch.save({"n": torch.tensor([1])}, path)
    with pytest.raises(ValueError, match=name.replace(".", r"\.")):
        shapes.load(str(path))


def _archive(path, name="a.txt"):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(name, b"x")


class Network(torch.nn.Linear):
    """Module that is pickled in place of its state_dict."""


# What is in the way, and what is said of it.
WRONG = {
    "none.pt": (lambda path: None, "there is no set and no file '"),
    "gpt3": (lambda path: None, "there is no set and no file '"),
    "folder": (lambda path: path.mkdir(), "cannot be read: Is a directory"),
    "empty.pt": (lambda path: path.touch(), "is empty: it was never written"),
    "zeros.pt": (lambda path: path.write_bytes(bytes(99)), "is zeros alone"),
    "text.pt": (lambda path: path.write_text("weights"), "is no state_dict, or a damaged one;"),
    "words.json": (lambda path: path.write_text('{"a": [1, 2]}'), "is text, JSON perhaps"),
    "page.pt": (lambda path: path.write_text("<!doctype html><p>"), "is a web page"),
    "lfs.pt": (lambda path: path.write_text("version https://git-lfs.github"), "git lfs pull"),
    "weights.h5": (lambda path: path.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(99)), "an HDF5 file"),
    "some.zip": (_archive, "is a zip archive"),
    "model.keras": (lambda path: _archive(path, "metadata.json"), "is a `.keras` file"),
    "array.npy": (lambda path: np.save(path, np.zeros(3)), "is an array of NumPy's"),
    "cut.pt": (
        lambda path: (torch.save({"a": torch.zeros(99)}, path), path.write_bytes(
            path.read_bytes()[:400]))[0], "is no state_dict, or a damaged one;"),
    "module.pt": (
        lambda path: torch.save(Network(2, 2), path), "Network, which are not loaded, as that may"),
    "list.pt": (lambda path: torch.save([torch.zeros(3)], path), "holds no tensors of float32,"),
    "sparse.pt": (
        lambda path: torch.save({"a": torch.eye(3).to_sparse()}, path), "holds no tensors of"),
    "broken.safetensors": (
        lambda path: path.write_bytes(bytes([255] * 99)),
        "is no safetensors file, or a damaged one: "),
    "none.safetensors": (lambda path: None, "there is no set and no file '"),
    "nothing.safetensors": (lambda path: save_file({}, path), "holds no tensors of float32,"),
    "folder.safetensors": (lambda path: path.mkdir(), "cannot be read: Is a directory"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_invalid_file_error_names_its_cause(name, tmp_path):
    make, message = WRONG[name]
    make(tmp_path / name)
    outcome = CliRunner().invoke(command, ["bench", str(tmp_path / name)])
    assert outcome.exit_code == 2, outcome.output
    (line,) = outcome.stderr.splitlines()
    assert line.startswith("Error: Invalid value for SHAPES: ")
    assert name in line
    assert message in line
    assert "gpt2, resnet50, small2000, a state_dict saved with torch.save, or a" in line
    assert not outcome.stdout


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read all files")
def test_unreadable_file_raises(tmp_path):
    (tmp_path / "model.pt").touch(mode=0)
    with pytest.raises(ValueError, match=r"'.*model\.pt' cannot be read: Permission denied; gpt2"):
        shapes.load(str(tmp_path / "model.pt"))


def test_safetensors_file_with_other_suffix_is_read(tmp_path):
    save_file({"a": torch.zeros(4, 3)}, tmp_path / "model.bin")
    assert shapes.load(str(tmp_path / "model.bin")).shapes == ((4, 3),)


@pytest.mark.parametrize("slots", range(roofline.MOST_SLOTS + 1))
def test_the_roofline_adds_over_the_streams_of_a_rule(slots):
    rule = roofline.RULES[slots]
    assert len(rule.slots) == slots
    variables, gradients = [torch.ones(7)], [torch.full((7,), 2.0)]
    step = roofline.roofline(slots, variables, gradients)
    step()
    step()
    assert variables[0].tolist() == [5.0] * 7
    assert gradients[0].tolist() == [2.0] * 7
    assert roofline.count_streams(slots) == 3 + 2 * slots


@pytest.mark.parametrize("name", registry.RULE_ENTRIES)
def test_every_entry_is_a_rule_with_that_many_slots(name):
    by_name = {rule.name: rule for rule in rules.RULES}
    entry = registry.entry(name)
    assert len(by_name[name].element_slots) == entry.slots
    assert workload.make_optimizer(entry)._choose_rule() is by_name[name]


def test_every_rule_can_be_measured():
    assert [rule.name for rule in rules.RULES] == list(registry.RULE_ENTRIES)


@pytest.mark.parametrize("name", [name for name in by_class() if ":" in name])
def test_every_optimizer_of_tensorflow_1_can_be_measured_by_its_name(name):
    entry, tensors = registry.entry(name), workload.make_tensors(TINY)
    optimizer = workload.make_optimizer(entry)
    assert type(optimizer) is by_class()[name].cls
    assert len(optimizer._choose_rule().element_slots) == entry.slots
    initial = [var.detach().clone() for var in tensors.variables]
    workload.thalweg_step(entry, tensors)()
    assert not any(torch.equal(a, b) for a, b in zip(initial, tensors.variables, strict=True))


def test_a_measured_adagrad_da_counts_its_steps():
    steps = []
    entry, tensors = registry.entry("v1:AdagradDAOptimizer"), workload.make_tensors(TINY)
    optimizer = workload.make_optimizer(entry)
    for _ in range(3):
        applied(optimizer)(zip(tensors.gradients, tensors.variables, strict=True))
        steps.append(int(optimizer._global_step))
    assert steps == [1, 2, 3]


def test_norms_are_streams_of_their_own(monkeypatch):
    monkeypatch.setattr(memory, "extra_bytes", lambda step: 0)
    rows = compare.compare("LARS", registry.entry("LARS"), TINY, (), rounds=3)
    row, limit = rows
    assert limit.of_roofline == 1
    shares = [7 / 5 * b / a for a, b in zip(row.rounds_ms, limit.rounds_ms, strict=True)]
    assert min(shares) <= row.of_roofline <= max(shares)


@pytest.mark.parametrize("form", peers.TORCH_FORMS)
def test_torch_steps_move_the_shared_variables(form):
    tensors = workload.make_tensors(TINY)
    initial = [var.detach().clone() for var in tensors.variables]
    step = peers.torch_step(registry.entry("Adam"), tensors, form)
    assert step is not None
    step()
    assert not any(torch.equal(a, b) for a, b in zip(initial, tensors.variables, strict=True))


def test_a_rule_that_torch_lacks_has_no_torch_step():
    tensors = workload.make_tensors(TINY)
    assert peers.torch_step(registry.entry("Ftrl"), tensors, "foreach") is None
    assert peers.torch_step(registry.entry("Nadam"), tensors, "fused") is None


def test_rounds_are_interleaved_and_counted():
    calls = []
    contenders = [timing.Contender(name, lambda name=name: calls.append(name)) for name in "ab"]
    timings = timing.measure(contenders, rounds=4, block=0.0, budget=0.0)
    assert {name: len(times) for name, times in timings.seconds.items()} == {"a": 3, "b": 3}
    # Warm-up of a and b, then rounds a b, b a, a b of three steps each.
    assert "".join(calls[6:]) == "aaabbb" + "bbbaaa" + "aaabbb"


def test_disturbed_rounds_do_not_count():
    seconds = {"a": [1.0, 1.0, 9.0, 1.1, 1.0], "b": [2.0, 2.0, 2.0, 2.0, 7.0]}
    timings = timing.Timings(seconds, [0.0, 0.0, 0.0, 0.0, 0.0])
    assert timings.quiet() == [0, 1, 3]
    assert timings.ratio("b", "a") == 2.0
    busy = timing.Timings(seconds, [0.0, 2.0, 2.0, 2.0, 0.0])
    assert busy.quiet() == [0]
    assert busy.counted() == [0, 1, 2, 3, 4]
    assert busy.disturbance == 2.0


@pytest.mark.parametrize(
    ("seconds", "disturbances", "verdict"),
    [
        ([1.0, 1.0, 1.1, 1.0], [0.0, 0.0, 0.0, 2.0], "quiet"),
        ([1.0], [0.0], "quiet"),
        ([1.0, 1.0, 1.1, 1.0], [2.0, 2.0, 0.0, 0.0], "busy"),
        ([1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 0.0, 0.0], "unsteady"),
    ],
)
def test_noise_verdict_depends_on_the_spread_of_rounds(seconds, disturbances, verdict):
    assert timing.Timings({"a": seconds}, disturbances).verdict == verdict


def row(verdict, disturbance=0.0, contender="thalweg"):
    return compare.BenchmarkRow(
        "Adam", contender, 1.0, 1.0, 1.0, 1.0, 1, 8.0, disturbance, verdict, (1.0,)
    )


@pytest.mark.parametrize(
    ("rows", "verdict", "message"),
    [
        ([row("quiet")], "quiet", ""),
        (
            [row("quiet"), row("unsteady")],
            "unsteady",
            "Times jumped from round to round, 1 of 1 rounds were disturbed: do not trust these"
            " ratios",
        ),
        (
            [row("quiet"), replace(row("unsteady"), spread=0.3)],
            "unsteady",
            "Times jumped from round to round (the middle half of the ratios of Adam, thalweg,"
            " spans 30% of their median): do not trust",
        ),
        (
            [row("busy", 1.5), row("unsteady")],
            "busy",
            "Other processes used 1.5 cores, 1 of 1 rounds were disturbed: do not trust",
        ),
    ],
)
def test_report_has_the_noise_verdict(rows, verdict, message):
    report = table.report(TINY, rows, {"lr": 0.1})
    assert report["options"] == {"lr": 0.1}
    noise = report["noise"]
    assert (noise["verdict"], noise["trusted"]) == (verdict, verdict == "quiet")
    assert noise["message"].startswith(message)
    assert bool(noise["message"]) is bool(message)
    assert [entry["ms"] for entry in report["results"]] == [1.0] * len(rows)


def test_ratios_that_spread_are_not_steady():
    # All rounds are quiet by themselves; between them, another has used the memory.
    seconds = {"a": [1.0, 1.2, 1.0, 1.2, 1.0], "b": [1.2, 1.0, 1.2, 1.0, 1.2]}
    timings = timing.Timings(seconds, [0.0] * 5)
    assert timings.verdict == "quiet"
    assert timings.spread("a", "a") == 0
    assert timings.spread("a", "b") == pytest.approx((1.2 - 1 / 1.2) / (1 / 1.2))
    assert timing.Timings({"a": [1.0]}, [0.0]).spread("a", "a") == 0


@pytest.mark.parametrize(("noisy", "verdict"), [(False, "quiet"), (True, "unsteady")])
def test_a_row_whose_ratio_spreads_is_marked(monkeypatch, noisy, verdict):
    anchor = [1.0, 1.2] * 3 if noisy else [1.0] * 6

    def measured(contenders, **_):
        seconds = {peer.name: [1.2, 1.0] * 3 if noisy else [1.0] * 6 for peer in contenders}
        return timing.Timings(seconds | {compare.ANCHOR: anchor}, [0.0] * 6)

    monkeypatch.setattr(compare, "measure", measured)
    rows = compare.compare("Adam", registry.entry("Adam"), TINY, ())
    assert {row.verdict for row in rows} == {verdict}
    assert {row.quiet_rounds for row in rows} == {6}


def test_the_plot_holds_its_title():
    pytest.importorskip("matplotlib")
    large = shapes.of("a_model_with_a_long_name" * 4, [(3, 4)] * 1000)
    figure = table.figure(large, [row("quiet"), row("quiet", contender="roofline")])
    figure.draw_without_rendering()
    box = figure._suptitle.get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.width


def test_preparation_of_a_step_is_not_timed():
    order = []
    contender = timing.Contender("a", lambda: order.append("step"), lambda: order.append("before"))
    assert len(timing.time_steps(contender, 2)) == 2
    assert order == ["before", "step"] * 2


def test_memory_of_a_step_counts_python_numpy_and_torch():
    tensor = torch.zeros(1)
    assert memory.torch_peak(lambda: tensor.add_(1)) < 1024
    assert memory.torch_peak(lambda: torch.zeros(100_000).sum()) >= 400_000
    assert memory.python_peak(lambda: bytearray(200_000)) >= 200_000


MODULE = """
from thalweg import Hyper, Rule, Slot

def update(var, grad, m, *, learning_rate):
    m = m + grad
    return var - learning_rate * m, m

HYPERS = (Hyper("learning_rate", 0.1),)
SUM = Rule(name="Sum", update=update, hypers=HYPERS, slots=(Slot("m"),))
ADAM = Rule(name="Adam", update=update, hypers=HYPERS, slots=(Slot("m"),))

def wide(var, grad, a, b, c, d, e, f, g):
    return var, a, b, c, d, e, f, g

WIDE = Rule(name="Wide", update=wide, slots=[Slot(name) for name in "abcdefg"])
"""


@pytest.fixture
def module(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(MODULE)
    return str(path)


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setattr(peers, "installed_peers", lambda: ("torch-fused", "torch-foreach"))
    torch.save({"a": torch.zeros(4, 3), "b": torch.zeros(3)}, tmp_path / "model.pt")

    def call(*arguments):
        return CliRunner().invoke(bench, [str(tmp_path / "model.pt"), *arguments])

    return call


@pytest.mark.slow
def test_json_holds_every_contender(run):
    result = run("--rules", "adam,Ftrl", "--rounds", "3", "--json", "--threads", "1")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["shapes"] == {"name": "model", "tensors": 2, "parameters": 15, "bytes": 60}
    assert report["threads"] == 1
    pairs = {(row["rule"], row["contender"]) for row in report["results"]}
    adam = {("Adam", peer) for peer in ("thalweg", "torch-fused", "torch-foreach", "roofline")}
    assert pairs == adam | {("Ftrl", "thalweg"), ("Ftrl", "roofline")}
    for row in report["results"]:
        assert row["ms"] > 0
        assert row["extra_bytes"] >= 0
        in_torch = row["contender"] in ("thalweg", "torch") or "torch-" in row["contender"]
        assert (row["state_bytes"] is not None) == in_torch
        assert len(row["rounds_ms"]) >= 3


@pytest.mark.slow
def test_arguments_are_those_of_the_rules_and_states_are_counted(tmp_path):
    torch.save({"w": torch.ones(64, 128)}, tmp_path / "model.pt")
    arguments = (str(tmp_path / "model.pt"), "--rules", "optim:AdamW", "--rounds", "1", "--json")
    result = CliRunner().invoke(bench, [*arguments, "--set", "state_storage=8bit"])
    assert result.exit_code == 0, result.output
    rows = {row["contender"]: row["state_bytes"] for row in json.loads(result.stdout)["results"]}
    count = 64 * 128
    assert rows["torch-fused"] == 8 + 4 / count
    # Codes with their scales, the step and the two sizes of `encoded_shape`.
    assert rows["thalweg"] == 2 * (32 + 4) / 32 + (4 + 2 * 8) / count


@pytest.mark.parametrize(
    ("setting", "message"),
    [("state_storage=zip", "has 'zip'"), ("nonsense=1", "nonsense"), ("1", "1"),
     ("lr=fast", "optim:AdamW with lr='fast': TypeError"), ("betas=(0.9,)", "betas must be a pair"),
     ("capturable=True", "AssertionError: If capturable=True"), ("params=3", "'params'"),
     ("in_backward=True", "which is timed, idles"), ("learning_rate=-1", "learning rate: -1")],
)  # fmt: skip
def test_invalid_rule_settings_fail(run, setting, message):
    result = run("--rules", "optim:AdamW", "--set", setting, "--rounds", "1")
    assert result.exit_code == 2
    assert message in result.output


def test_learning_rate_can_be_set_as_an_argument():
    for entry in (registry.entry("Adam"), registry.own(rules.ADAM)):
        optimizer = workload.make_optimizer(entry, {"learning_rate": 0.5})
        assert float(optimizer.learning_rate) == 0.5


def test_tensorflow_1_rules_have_peers(run):
    result = run("--rules", "v1:adamoptimizer,LARS,Adam", "--rounds", "1", "--json")
    assert result.exit_code == 0, result.output
    pairs = {(row["rule"], row["contender"]) for row in json.loads(result.stdout)["results"]}
    all_four = ("thalweg", "torch-fused", "torch-foreach", "roofline")
    adam = {(rule, contender) for rule in ("Adam", "v1:AdamOptimizer") for contender in all_four}
    assert pairs == adam | {("LARS", "thalweg"), ("LARS", "roofline")}


def test_optimizers_of_torch_are_measured_by_their_names(run):
    result = run("--rules", "optim:adamw,torch:Momentum", "--rounds", "1", "--json")
    assert result.exit_code == 0, result.output
    pairs = {(row["rule"], row["contender"]) for row in json.loads(result.stdout)["results"]}
    peers = ("torch-fused", "torch-foreach", "roofline")
    assert pairs == {
        *(("optim:AdamW", contender) for contender in ("thalweg", *peers)),
        *(("torch:Momentum", contender) for contender in ("torch", *peers)),
    }
    refusal = run("--rules", "optim:Muon")
    assert (refusal.exit_code, "'optim:Muon' is for matrices" in refusal.output) == (2, True)


def test_rules_of_rows_and_columns_are_measured(run):
    result = run("--rules", "optim:Adafactor,torch:Adafactor,optim:SM3", "--rounds", "1", "--json")
    assert result.exit_code == 0, result.output
    pairs = {(row["rule"], row["contender"]) for row in json.loads(result.stdout)["results"]}
    peers = ("torch-foreach", "roofline")
    assert pairs == {
        *(("optim:Adafactor", contender) for contender in ("thalweg", *peers)),
        *(("torch:Adafactor", contender) for contender in ("torch", *peers)),
        *(("optim:SM3", contender) for contender in ("thalweg", "roofline")),
    }


@pytest.mark.parametrize(
    ("name", "slots", "read"),
    # A gradient twice and a variable; the gradient and none of what is kept of rows and columns.
    [("optim:Adafactor", 0, 3), ("optim:SM3", 0, 1), ("optim:AdamW", 2, 0)],
)
def test_reads_of_row_statistics_count(name, slots, read):
    entry = registry.entry(name)
    assert (entry.slots, entry.norms) == (slots, read)


def test_rules_of_the_user_are_measured_beside_the_others(run, module):
    names = f"Adam,{module}:SUM,{module}:ADAM"
    result = run("--rules", names, "--rounds", "1", "--json", "--threads", "1")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["noise"]["verdict"] in ("quiet", "busy", "unsteady")
    pairs = {(row["rule"], row["contender"]) for row in report["results"]}
    new = {(name, peer) for name in ("Sum", f"{module}:ADAM") for peer in ("thalweg", "roofline")}
    assert new <= pairs
    assert len(pairs) == 4 + len(new)


def test_a_step_of_a_rule_of_the_user_is_its_own():
    tensors, entry = workload.make_tensors(TINY), registry.own(rules.MOMENTUM)
    assert entry.slots == 1
    workload.thalweg_step(entry, tensors)()
    assert workload.make_optimizer(entry).rule is rules.MOMENTUM
    for form in peers.TORCH_FORMS:
        assert peers.torch_step(entry, tensors, form) is None
    assert peers.keras_step(entry, tensors) is None


@pytest.mark.slow
def test_busy_machine_is_reported_once(run, monkeypatch):
    counter = iter(range(10_000))
    monkeypatch.setattr(timing, "busy_elsewhere", lambda: float(next(counter)))
    result = run("--rules", "Adam,SGD", "--rounds", "2", "--peers", "torch-fused")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("Warning: Other processes used ")
    assert result.stderr.count("disturbed rounds are repeated, up to 60 s a rule.") == 1
    assert result.stderr.startswith("Other processes use ")
    assert "do not trust these ratios" in result.stdout
    as_json = run("--rounds", "2", "--peers", "torch-fused", "--json")
    assert not as_json.stderr
    report = json.loads(as_json.stdout)
    assert (report["noise"]["verdict"], report["noise"]["trusted"]) == ("busy", False)
    assert all(row["ratio"] > 0 and row["rounds_ms"] for row in report["results"])


@pytest.mark.parametrize(
    ("terminal", "arguments", "expected"),
    [(True, [], True), (True, ["--json"], False), (False, [], False)],
)
def test_progress_is_shown_on_a_terminal_only(run, monkeypatch, terminal, arguments, expected):
    monkeypatch.setattr(timing, "busy_elsewhere", lambda: 0.0)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
    else:
        monkeypatch.delenv("FORCE_COLOR", raising=False)
    result = run("--rounds", "1", "--peers", "torch-fused", *arguments)
    assert result.exit_code == 0, result.output
    for text in ("Adam on model", "warming up thalweg", "round 1, torch-fused", "the memory that"):
        assert (text in result.stderr) is expected
        assert text not in result.stdout


def test_more_threads_than_cores_are_not_used(run, monkeypatch):
    monkeypatch.setattr(options, "usable_cores", lambda: 1)
    result = run("--rounds", "1", "--threads", "99", "--json")
    assert result.stderr == "--threads 99 is more than the 1 core here; using 1.\n"
    assert json.loads(result.stdout)["threads"] == 1


def test_table_and_plot_are_printed(run, tmp_path):
    pytest.importorskip("matplotlib")
    initial = torch.get_num_threads()
    plot = tmp_path / "steps.svg"
    result = run("--rounds", "3", "--peers", "torch-fused", "--plot", str(plot))
    assert result.exit_code == 0, result.output
    assert "thalweg" in result.stdout
    assert "2 tensors, 15 parameters" in result.stdout
    assert "<svg" in plot.read_text()
    assert torch.get_num_threads() == initial


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rules", "Adan"], "no rule 'Adan'; near it: Adam,"),
        (["--rules", "v1:RMSProp"], "near it: v1:RMSPropOptimizer"),
        (["--rules", "v1:MovingAverageOptimizer"], "it needs another optimizer"),
        (["--rules", "qqq"], "--rules: there is no rule 'qqq'; all are listed by `thalweg rules`."),
        (["--rules", ","], "no rule given"),
        (["--peers", "jaxopt"], "--peers: no peer 'jaxopt'; here there are torch-fused"),
        (["--plot", "steps.docx"], "must end in"),
        (["--rounds", "0"], "'--rounds': it must be a whole number, 1 or more; not '0'"),
    ],
)
def test_a_wrong_option_is_exit_code_2(run, arguments, message):
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_unmeasurable_user_rule_fails(run, module):
    result = run("--rules", f"{module}:HYPERS")
    assert result.exit_code == 2
    assert "is a tuple, not a thalweg.Rule" in result.output
    result = run("--rules", f"{module}:WIDE")
    assert result.exit_code == 2
    assert "has 7 slots; up to 6 can be measured" in result.output


def test_sets_larger_than_memory_fail_early(run, monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda: 100)
    result = run()
    assert result.exit_code == 1
    assert "--peers torch-fused" in result.output


def test_a_narrow_terminal_gets_fewer_columns():
    figures = compare.BenchmarkRow(
        rule="v1:RMSPropOptimizer", contender="torch-foreach", ms=1.0, ratio=1.0, gbps=1.0,
        of_roofline=1.0, extra_bytes=10, state_bytes=8.0, disturbance=0.0, verdict="quiet",
        rounds_ms=(1.0,),
        quiet_rounds=1, spread=0.0,
    )  # fmt: skip
    for width, count in ((120, 8), (80, 6), (60, 4), (50, 3), (10, 3)):
        new_table = table.table(TINY, [figures], width)
        assert len(new_table.columns) == count, width
        screen = Console(file=io.StringIO(), width=width)
        screen.print(new_table)
        assert ("v1:RMSPropOptimizer" in screen.file.getvalue()) is (width > 10)
