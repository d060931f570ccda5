"""The README's examples run, and the code blocks of the docs are doctests."""

from __future__ import annotations

import doctest
import importlib
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import doc_blocks
import fresh_process
import thalweg
from case_batches import many
from thalweg import checkpoint, optim
from thalweg._core.slot_optimizer import SlotOptimizer
from thalweg._formats import container
from thalweg.keras import optimizers as keras_optimizers
from thalweg.v1 import train

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
DOCS = ROOT / "docs"
GENERATED = ("_build", "classes")  # by the documentation's build
PAGES = sorted(
    path
    for path in DOCS.rglob("*.md")
    if path.relative_to(DOCS).parts[0] not in (*GENERATED, "with")  # tests/integrations has those
)
SESSIONS = {
    str(path.relative_to(ROOT)): [*doc_blocks.sessions(path)]
    for path in (*PAGES, ROOT / "CONTRIBUTING.md")
}
QUICK = {
    name: quick
    for name, page_sessions in SESSIONS.items()
    if (quick := [session for session in page_sessions if session.mark not in ("slow", "process")])
}
SLOW = [block for page in SESSIONS.values() for block in page if block.mark in ("slow", "process")]
OF_KERAS = ("docs/keras3.md", "docs/tensorflow.md", "docs/tutorials/keras.md")
COMMANDS = [
    (path.relative_to(ROOT), line.partition("#")[0])
    for path in (*PAGES, ROOT / "README.md")
    for block in re.findall(r"```sh\n(.*?)```", path.read_text(), re.DOTALL)
    for line in block.replace("\\\n", " ").splitlines()
]
SOURCE = Path(thalweg.__file__).parent
FILES = (path.relative_to(SOURCE.parent).with_suffix("") for path in SOURCE.rglob("*.py"))
NAMES = (".".join(path.parts).removesuffix(".__init__") for path in FILES)
MODULES = sorted(name for name in NAMES if not re.search(r"\.(cli|race|bench)\b", name))
EXTRAS = {  # what modules import that may not be installed
    re.compile(r"\.keras3|\.tf\.keras\.(models|lookup)"): "keras",
    re.compile(r"cuda\.(device|blockwise|dynamic8)_functions"): "triton",
    re.compile(r"integrations\.lightning$"): "lightning",
    re.compile(r"integrations\.transformers$"): "transformers",
    re.compile(r"integrations\.torchtitan$"): "torchtitan",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder in which blocks run, with links to the files of the repository."""
    for name in ("tests", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("number", range(len([*doc_blocks.sessions(ROOT / "README.md")])))
def test_readme_example_prints_its_documented_output(number: int, folder: Path) -> None:
    session = [*doc_blocks.sessions(ROOT / "README.md")][number]
    assert doc_blocks.run(session, folder) == ""


def test_readme_commands_are_single_lines() -> None:
    commands = re.findall(r"<!-- \w+ command -->\n```sh\n(.*?)```", README, re.DOTALL)
    assert [command.count("\n") for command in commands] == [1, 1]


def test_the_command_line_converts_a_checkpoint(tmp_path: Path) -> None:
    page = (DOCS / "command-line.md").read_text()
    (block,) = re.findall(r"```sh\n(thalweg convert .*?)```", page, re.DOTALL)
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    command = f'thalweg() {{ "{sys.executable}" -m thalweg "$@"; }}\n{block}'
    process = subprocess.run(["sh", "-ec", command], cwd=tmp_path, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert "variables/layer2/kernel" in process.stdout
    tensors = container.read(tmp_path / "adam.safetensors").tensors
    variables = {
        name.removeprefix("variables/"): thalweg.Variable(torch.zeros_like(tensor.tensor()))
        for name, tensor in tensors.items()
        if name.startswith("variables/")
    }
    loaded = checkpoint.restore(tmp_path / "adam.safetensors", variables=variables)
    assert (loaded.optimizer._lr, loaded.optimizer._beta1) == (0.01, 0.8)


@pytest.mark.slow
def test_a_page_trains_on_two_ranks() -> None:
    pytest.importorskip("torch.distributed.run")
    page = (DOCS / "distribute.md").read_text()
    ((command, message),) = re.findall(r"```sh\n(torchrun .*)\n# (.*)\n```", page)
    command = command.replace("torchrun", f"{sys.executable} -m torch.distributed.run --standalone")
    process = subprocess.run(command.split(), cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert process.stdout.splitlines() == [message], process.stderr


@pytest.mark.parametrize("name", QUICK)
def test_each_block_of_a_page_runs_alone(name: str, folder: Path) -> None:
    if name in OF_KERAS:
        pytest.importorskip("keras", reason="Keras 3 is not installed")
    assert "".join(doc_blocks.run(session, folder) for session in QUICK[name]) == ""


@pytest.mark.slow
@pytest.mark.parametrize("session", SLOW, ids=lambda session: session.name)
def test_a_heavy_block_runs_alone(session: doc_blocks.Session, folder: Path) -> None:
    assert doc_blocks.run(session, folder) == ""


def test_few_blocks_continue_another() -> None:
    texts = [path.read_text() for path in PAGES]
    continued = sum(text.count("<!-- continues -->\n```python") for text in texts)
    assert 0 < continued < sum(text.count("```python") for text in texts) / 5


@pytest.mark.parametrize("mark", ["continues", "by itself"])
def test_unknown_block_mark_raises(mark: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"<!-- {mark} -->\n```python\nprint(1)  # 1\n```\n")
    with pytest.raises(ValueError, match=re.escape("page.md:3")):
        [*doc_blocks.sessions(page)]


def test_block_with_other_output_is_reported(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nx = 1\nprint(x)  # 2\n```\n\n```python\n>>> x\n1\n```\n")
    unprompted, prompted = doc_blocks.sessions(page)
    assert doc_blocks.run(unprompted, tmp_path) == "page.md:2 says ['2'] and prints ['1']"
    assert "NameError" in doc_blocks.run(prompted, tmp_path)  # x is of the block before


@many("command", [f"{path}: {line}" for path, line in COMMANDS if line.startswith("thalweg ")])
def test_documented_commands_exist(command: str) -> None:
    """Parse the name, the options and the number of arguments; nothing runs."""
    click = pytest.importorskip("click", reason="the command line is not installed")
    from thalweg._cli.main import main

    name, *arguments = shlex.split(command.partition(": thalweg ")[2])
    subcommand = main.get_command(click.Context(main), name)
    assert subcommand is not None, command
    subcommand.make_context(name, arguments)


@pytest.mark.parametrize(
    ("path", "line"), [row for row in COMMANDS if re.match(r"(python|torchrun) ", row[1])]
)
def test_documented_scripts_exist(path: Path, line: str) -> None:
    scripts = re.findall(r"\S+/\S+\.py", line)
    assert all((ROOT / script).exists() for script in scripts), f"{path}: {line}"


def test_every_class_has_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS / "extensions"))
    texts = importlib.import_module("class_pages").texts()
    page_names = {name.removesuffix(".md") for name in texts if not name.endswith("index.md")}
    rooms = {
        "optim": optim,
        "tensorflow": optim.tensorflow,
        "keras": keras_optimizers,
        "v1": train,
    }
    exceptions = {"LBFGS", "Mixed", "Optimizer", "RuleOptimizer", "SyncReplicasOptimizer"}
    public = {
        f"{face}/{name}"
        for face, room in rooms.items()
        for name in set(dir(room)) - exceptions
        if isinstance(member := getattr(room, name), type)
        and issubclass(member, (torch.optim.Optimizer, SlotOptimizer))
    }
    assert public <= page_names
    for name in page_names:
        text = texts[f"{name}.md"]
        assert "## Formula" in text
        assert "def update" in text
        assert "**Source**" in text


TRACER = """
import os, sys, torch, thalweg
from thalweg.keras.optimizers import Adam

root = os.path.dirname(thalweg.__file__)
var, optimizer, entered = torch.nn.Parameter(torch.ones(5)), Adam(0.1), set()
def note(frame, event, argument):
    entered.add(os.path.relpath(frame.f_code.co_filename, root))
sys.setprofile(note)
optimizer.apply_gradients([(torch.ones(5), var)])
sys.setprofile(None)
print(*entered)
"""


def test_a_step_goes_through_the_files_that_the_contributing_page_lists(tmp_path: Path) -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text().partition("## Files of a step")[2]
    files = re.findall(r"^\| \d \| `(\S+)` \|", page.partition("\n## ")[0], re.MULTILINE)
    assert len(files) == 8
    paths = fresh_process.run(TRACER, THALWEG_CACHE_DIR=str(tmp_path)).stdout.split()
    assert {*files} <= {*paths}


def test_pages_for_beginners_install_the_command_before_they_run_it() -> None:
    for path in (DOCS / "start").glob("*.md"):
        text = path.read_text()
        command = re.search(r"^thalweg \w+", text, re.MULTILINE)
        install = re.search(r"^pip install 'thalweg\[(cli|race)\]'", text, re.MULTILINE)
        assert command is None or (install and install.start() < command.start()), path


def test_broken_links_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    links = ("b.html#here", "b.html#there", "c.html", "#", "https://example.org/")
    tmp_path.joinpath("a.html").write_text("".join(f'<a href="{link}">' for link in links))
    tmp_path.joinpath("b.html").write_text('<p id="here">')
    external, wrong = importlib.import_module("links").links_of(tmp_path)
    assert external == {"https://example.org/": {"a.html"}}
    assert wrong == [
        "a.html: b.html#there leads to no anchor",
        "a.html: c.html leads to no file",
    ]


def outside_code(path: Path) -> str:
    """Return the text of a page without its code blocks."""
    return re.sub(r"^ *```.*?^ *```$", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchor_of(heading: str) -> str:
    """Return the anchor that GitHub gives a heading; that of Sphinx may differ."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def find_link_fault(path: Path, text: str, target: str) -> str:
    """Return what is wrong with a link in the Markdown source of a page, or ""."""
    name, _, anchor = target.partition("#")
    file = path.parent / name if name else path
    if not text:
        return "has no text"
    if not file.exists() or DOCS / "classes" in file.resolve().parents:
        return "leads to a file that the repository lacks"
    headings = re.findall(r"^#+ (.*)$", outside_code(file), re.MULTILINE) if anchor else []
    return "leads to no heading" if anchor and anchor not in map(anchor_of, headings) else ""


def faults_of_links(path: Path) -> list[tuple[str, str]]:
    """Return the targets of the wrong links of a page with what is wrong."""
    links = re.findall(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)", outside_code(path))
    internal = [(text, target) for text, target in links if not re.match(r"\w+:", target)]
    faults = [(target, find_link_fault(path, text, target)) for text, target in internal]
    return [(target, fault) for target, fault in faults if fault]


@many("path", [*PAGES, *ROOT.glob("*.md")], ids=lambda path: str(path.relative_to(ROOT)))
def test_links_resolve_in_the_sources(path: Path) -> None:
    assert faults_of_links(path) == []


def test_links_that_fail_in_the_sources_are_found(tmp_path: Path) -> None:
    page = tmp_path / "a.md"
    links = ("[](a.md)", "[b](b.md)", "[c](a.md#c)", "[d](a.md#the-code-d)", "[e](https://e.org)")
    page.write_text("# The `code`: d\n" + " ".join(links) + "\n```\n[](f.md)\n```\n")
    assert faults_of_links(page) == [
        ("a.md", "has no text"),
        ("b.md", "leads to a file that the repository lacks"),
        ("a.md#c", "leads to no heading"),
    ]
    generated = find_link_fault(DOCS / "index.md", "optim", "classes/optim/index.md")
    assert generated == "leads to a file that the repository lacks"


@many("name", MODULES)
def test_docstring_examples_run(name: str) -> None:
    if any(regex.search(name) and find_spec(package) is None for regex, package in EXTRAS.items()):
        return
    module = importlib.import_module(name)
    if module.__name__.startswith("torch."):  # such as `thalweg.optim.lr_scheduler`, which it is
        return
    runner = doctest.DocTestRunner()
    for test in doctest.DocTestFinder().find(module):
        if test.examples:  # before any run, doctest looks whether any file of source has changed
            runner.run(test)
    assert runner.summarize().failed == 0


def test_every_public_name_is_documented() -> None:
    undocumented = [name for name in thalweg.__all__ if not getattr(thalweg, name).__doc__]
    assert not undocumented
