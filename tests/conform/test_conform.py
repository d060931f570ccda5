"""Comparison of a foreign optimizer with one of ours."""

from __future__ import annotations

import html
import random
import re
import sys
import time
import xml.etree.ElementTree as ElementTree
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import other_optimizers as others
from thalweg import optim
from thalweg.conform import Candidate, ConformError, Outcome, compare
from thalweg.conform import atlas as atlases
from thalweg.conform.argument_search import list_trials
from thalweg.conform.atlas import NOT_DRIVEN, REFERENCE, Atlas, AtlasRow, Cell, Column
from thalweg.conform.external_optimizers import load_class
from thalweg.conform.svg import COLORS, _list_values, draw
from thalweg.conform.thalweg_optimizers import find_like, find_rule
from thalweg.rules.modern import MODERN_RULES

SIGN = Candidate(partial(optim.RuleOptimizer, rule=others.SIGN), "SignSGD")
MODERN = {f"optim:{rule.name}" for rule in MODERN_RULES}
FILE = str(Path(others.__file__))


def beside_sign(candidate: Any, **options: Any) -> Outcome:
    return compare(candidate, SIGN, **options)


def test_compare_reports_equal_bits() -> None:
    report = beside_sign(others.Plain)
    assert (report.verdict, report.difference, report.parting) == ("bits", 0.0, None)
    assert (report.way, report.steps, report.agrees) == ("list", 20, True)
    assert report.theirs == {"lr": 0.01, "scale": 1.0}
    assert report.ours["lr"] == 0.01  # theirs', where ours has it, too


def test_rounding_reports_the_first_difference() -> None:
    report = beside_sign(others.LastPlace)
    assert report.verdict == "rounding"
    assert 0 < report.difference <= 1e-5
    assert report.agrees
    assert report.parting is not None
    assert report.parting.theirs != report.parting.ours
    assert report.tried == []


def test_compare_locates_the_first_divergence() -> None:
    report = beside_sign(others.Later)
    assert (report.verdict, report.agrees) == ("parts", False)
    place = report.parting
    assert place is not None
    assert (place.step, place.parameter, place.shape, place.element) == (3, 1, (7,), (5,))
    assert place.theirs - place.ours == pytest.approx(0.25)
    assert report.difference > 0.1
    assert report.closed_by == []


def test_compare_finds_the_argument_that_closes_a_difference() -> None:
    report = beside_sign(others.Doubled)
    assert (report.verdict, report.closed_by) == ("parts", ["theirs double=False"])
    assert set(report.closed_by) <= set(report.tried)
    assert beside_sign(others.Doubled, search=False).tried == []
    single = Candidate(others.Doubled, "Doubled").with_arguments(double=False)
    assert beside_sign(single).verdict == "bits"


def test_arguments_are_passed_to_both_optimizers() -> None:
    sgd = Candidate(torch.optim.SGD, "SGD").with_arguments(momentum=0.5, nesterov=True)
    assert compare(sgd, optim.SGD).agrees
    second = Candidate(optim.SGD, "SGD").with_arguments(nesterov=False)
    report = compare(sgd, second)
    assert report.closed_by == ["theirs nesterov=False", "ours nesterov=True"]


def test_sentinel_default_takes_the_value_of_the_other_side() -> None:
    required: Any = object()
    bound = Candidate(lambda params, lr=required: others.Plain(params, lr), "ours")
    assert compare(others.Plain, bound).verdict == "bits"


def test_execution_options_are_not_shared() -> None:
    adam = Candidate(torch.optim.Adam, "Adam").with_arguments(maximize=True, foreach=True)
    report = compare(adam, optim.Adam)
    assert report.agrees
    assert (report.theirs["foreach"], report.ours["maximize"]) == (True, True)
    assert "foreach" not in report.ours


def test_search_tries_values_of_the_other_side_and_the_table() -> None:
    first = Candidate(lambda params, eps=1e-3, amsgrad=True, foreach=False: None, "one")
    second = Candidate(lambda params, eps=1e-8, weight_decay=0.1: None, "other")
    names = [name for name, _, _ in list_trials(first, second)]
    assert names[:2] == ["theirs eps=1e-08", "theirs eps=1e-16"]
    assert "theirs amsgrad=False" in names
    assert "ours eps=0.001" in names
    assert not [name for name in names if "foreach" in name or "both" in name]
    assert len(names) == len(set(names))
    with_decay = Candidate(lambda params, weight_decay=0.1: None, "decayed")
    assert [name for name, _, _ in list_trials(with_decay, with_decay)] == ["both weight_decay=0.0"]


@pytest.mark.parametrize(
    ("candidate", "driver"),
    [
        (others.NeedsClosure, "list, closure"),
        (Candidate(others.OfGroups, "OfGroups", group={"lr": 0.01}), "groups"),
        (others.OfModel, "model"),
        (others.WantsToBeTold, "list"),
        (others.OfMatrices, "list, matrices only"),
    ],
    ids=str,
)
def test_candidates_are_driven_by_their_signature(candidate: Any, driver: str) -> None:
    report = beside_sign(candidate)
    assert (report.verdict, report.way) == ("bits", driver)
    assert compare(others.Plain, candidate).verdict == "bits"  # ours may want such, too


def test_candidate_may_modify_its_gradients() -> None:
    assert beside_sign(others.Scribbling).verdict == "bits"


@pytest.mark.parametrize(
    ("candidate", "words"),
    [
        (others.Random, "Random is not deterministic: two equal runs differ in step 1"),
        (others.Still, "Still has not moved any parameter in 20 steps"),
        (others.Broken, r"Broken makes parameter 0 of shape \[.*\] nan in step 1"),
        (others.Failing, "Failing fails in step 4: ArithmeticError: no more"),
        (others.NeedsBase, "NeedsBase cannot be made without the argument 'base'"),
        (others.OfGroups, "OfGroups cannot be made of groups: KeyError: 'lr'"),
        (others.NoOptimizer, "NoOptimizer cannot be made of a list of parameters: TypeError"),
        (lambda params: object(), "makes a object, which has no step"),
    ],
)
def test_candidates_without_comparable_steps_raise(candidate: Any, words: str) -> None:
    with pytest.raises(ConformError, match=words):
        beside_sign(candidate)


def test_nonfinite_values_diverge() -> None:
    report = beside_sign(others.NotFinite)
    assert report.verdict == "parts"
    assert report.parting is not None
    assert report.parting.step == 2
    assert compare(others.NotFinite, others.NotFinite).verdict == "bits"


def test_unknown_arguments_raise() -> None:
    with pytest.raises(ConformError, match=r"no argument 'ep'\. Did you mean 'eps'\?"):
        Candidate(torch.optim.Adam, "Adam").with_arguments(ep=1)
    with pytest.raises(ConformError, match=r"no argument 'x'\. It takes lr, scale\."):
        Candidate(others.Plain, "Plain").with_arguments(x=1)


def test_comparison_keeps_the_random_state() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    state = random.getstate()
    beside_sign(others.Plain)
    assert torch.equal(torch.rand(2), expected)
    assert random.getstate() == state


@pytest.mark.parametrize(
    "name", ["optim:Adam", "optim:AMSGrad", "OPTIM:lamb", "torch:NAdam", "torch.optim:NAdam"]
)
def test_torch_style_rule_agrees_with_itself(name: str) -> None:
    assert compare(find_rule(name), find_rule(name)).verdict == "bits"


@pytest.mark.parametrize("name", ["Adam", "v1:MomentumOptimizer", "Nesterov"])
def test_tensorflow_style_rule_is_driven(name: str) -> None:
    rule = find_rule(name)
    torch_sgd = Candidate(torch.optim.SGD, "SGD").with_arguments(
        lr=0.01, momentum=0.9, nesterov=name == "Nesterov"
    )
    assert compare(torch_sgd, rule, search=False).agrees == (name != "Adam")


def test_rule_is_loaded_from_a_file() -> None:
    assert compare(others.Plain, find_rule(f"{FILE}:SIGN")).verdict == "bits"
    for name, words in (("function", "is a function, not a"), ("none", "has no 'none'")):
        with pytest.raises(ConformError, match=words):
            find_rule(f"{FILE}:{name}")


def test_find_like_finds_the_rule_of_equal_name() -> None:
    assert find_like("lamb").name == "optim:LAMB"
    assert find_like("ftrl").name == "Ftrl"
    with pytest.raises(ConformError, match=r"near it: .*ScheduleFreeAdamW.*Name ours with --rule"):
        find_like("AdamWScheduleFree")


def test_class_is_found_by_package_and_name() -> None:
    assert load_class("torch.optim:Adam") == (Candidate(torch.optim.Adam, "Adam"), "")
    assert load_class(f"{FILE}:Plain")[0].name == "Plain"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Adam", "not PACKAGE:CLASS"),
        (":Adam", "not PACKAGE:CLASS"),
        ("no_such_package.optim:Adam", "there is no module 'no_such_package' here"),
        ("torch.optim.nothing:Adam", "there is no module 'torch.optim.nothing' here"),
        ("torch.optim:Adan", "has no 'Adan'. Did you mean 'Adam'?"),
        ("torch.optim:lr_scheduler", "is a module, not a class"),
        ("other_optimizers:NoOptimizer", "is not an optimizer class: it has no step"),
        ("nowhere.py:Plain", "there is no file"),
    ],
)
def test_an_unknown_class_raises(name: str, words: str) -> None:
    with pytest.raises(ConformError, match=words):
        load_class(name)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A package of optimizers, whose own module needs what is not installed."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "large").mkdir()
    (tmp_path / "large" / "__init__.py").write_text("import not_installed_here\n")
    inner = tmp_path / "large" / "inner.py"
    yield inner
    for name in [name for name in sys.modules if name.partition(".")[0] == "large"]:
        del sys.modules[name]


def test_a_package_is_imported_without_its_parent(package: Path) -> None:
    package.write_text("from other_optimizers import Plain\n")
    side, note = load_class("large.inner:Plain")
    assert compare(side, SIGN).verdict == "bits"
    assert "without large itself, for 'large.inner' needs 'not_installed_here'" in note


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import not_installed_here", "needs 'not_installed_here', which is not installed"),
        ("1 / 0", "failed while it was imported: ZeroDivisionError"),
        (None, "there is no module 'large.inner' here"),
    ],
)
def test_a_failed_import_leaves_no_modules(package: Path, text: str | None, words: str) -> None:
    if text is not None:
        package.write_text(text)
    with pytest.raises(ConformError, match=words):
        load_class("large.inner:Plain")
    assert "large" not in sys.modules
    with pytest.raises(ConformError, match="'large' needs 'not_installed_here'"):
        load_class("large:Plain")


def table(*cells: Cell) -> Atlas:
    columns = [Column(f"package {place}", "module", "1.0") for place in range(len(cells))]
    row = AtlasRow("LAMB", "optim:LAMB", {"lr": 0.01}, list(cells))
    return Atlas(columns, [row], 1.0, 20, {"thalweg": "0"})


def test_atlas_plot_is_well_formed_xml() -> None:
    picture = draw(
        table(
            Cell("a:Lamb", "bits", 0.0, "list"),
            Cell("b:Lamb", "rounding", 2.5e-7, "model"),
            Cell("c:Lamb", "parts", 1.41, "groups", 3, ["theirs max_grad_norm=None"], 9),
            Cell("d:Lamb", "parts", None, "list", 1, [], 12, command="thalweg conform d:Lamb"),
            Cell("e:<&>", NOT_DRIVEN, note="e is <not> installed, nor is what it needs"),
            Cell("f:Lamb", REFERENCE),
            Cell(""),
        ),
        "thalweg conform --atlas a.svg",
    )
    root = ElementTree.fromstring(picture)
    texts = [node.text for node in root.iter() if node.text and node.tag.endswith("text")]
    for label in (
        "bits", "Lamb: list", "2.5e-07", "Lamb: model", "1.4, from step 3",
        "theirs max_grad_norm=None", "not finite, from step 1", "none of 12 tried closes it",
        "e:<&>: e is <not> installed, nor is what it needs", "package 6", "LAMB",
        "thalweg conform --atlas a.svg   (thalweg 0)",
    ):  # fmt: skip
        assert label in texts
    assert all(color in picture for color in COLORS.values())
    (title,) = [node.text for node in root.iter() if (node.text or "").startswith("d:Lamb")]
    assert "thalweg conform d:Lamb" in (title or "")
    assert "1 bits, 1 rounding, 2 another formula, 1 not driven. 1 of 1 names" in picture


def test_a_process_ends_in_time() -> None:
    began = time.monotonic()
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    sleeping = [sys.executable, "-c", program.replace("input()", "import time; time.sleep(60)")]
    assert atlases._run_in_time(sleeping, 0.3) == ("", "it took more than 0.3 s")
    assert time.monotonic() - began < 30


def test_a_crashed_process_is_reported() -> None:
    output, reason = atlases._run_in_time(
        [sys.executable, "-c", "import os; print(1, flush=True); os.abort()"], 60
    )
    assert output == "1\n"
    assert reason.startswith("its process ended with status -")


def test_atlas_lists_every_rule() -> None:
    atlas_list = atlases.read_list()
    assert {row.rule for row in atlas_list.rows} >= MODERN
    for row in atlas_list.rows:
        if not row.rule.startswith("timm.optim:"):
            find_rule(row.rule).with_arguments(**row.arguments)


def test_atlas_plot_has_every_listed_class() -> None:
    atlas = atlases.read_list()
    picture = (Path(__file__).parents[2] / "docs" / "atlas.svg").read_text()
    titles = [
        html.unescape(title) for title in re.findall(r"<g><title>(.*?)</title>", picture, re.S)
    ]
    class_names = [title.splitlines()[0] for title in titles if ":" in title.splitlines()[0]]
    assert sorted(class_names) == sorted(cell.name for _, _, cell in atlas.list_cells())
    texts = {html.unescape(text) for text in re.findall(r">([^<>]+)</text>", picture)}
    assert {row.optimizer for row in atlas.rows} <= texts
    assert {column.name for column in atlas.columns} <= texts
    assert {values for row in atlas.rows if (values := _list_values(row.arguments))} <= {*titles}
