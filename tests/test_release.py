"""Checks before a release: the repository passes them, and damage makes each of them fail."""

from __future__ import annotations

import runpy
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
TOOL = runpy.run_path(str(ROOT / "tools" / "release.py"))
FILES = (
    *TOOL["TEMPLATES"],
    "pyproject.toml",
    "CHANGELOG.md",
    "ARCHITECTURE.md",
    "README.md",
    "src/thalweg/version.py",
)


def found(check: str, root: Path) -> list[str]:
    return list(TOOL[check](root))


@pytest.mark.parametrize("check", ["versions", "links", "templates"])
def test_repository_passes_release_checks(check: str) -> None:
    assert found(check, ROOT) == []


def test_changelog_lacks_at_most_a_date() -> None:
    assert [text for text in found("changelog", ROOT) if "has no date" not in text] == []


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for folder in ("docs", "benchmarks"):
        shutil.copytree(ROOT / folder, tmp_path / folder, dirs_exist_ok=True)
    return tmp_path


def edited(name: str, old: str, new: str) -> Callable[[Path], None]:
    def edit(root: Path) -> None:
        text = (root / name).read_text()
        assert old in text
        (root / name).write_text(text.replace(old, new, 1))

    return edit


BROKEN: dict[str, tuple[str, Callable[[Path], Any], str]] = {
    "another version": (
        "versions",
        edited("CITATION.cff", "version: 0.1.0", "version: 0.0.9"),
        "CITATION.cff has 0.0.9, pyproject.toml 0.1.0",
    ),
    "no version": (
        "versions",
        edited("src/thalweg/version.py", "__version__ = ", "version = "),
        "version.py has no version",
    ),
    "no heading": ("changelog", edited("CHANGELOG.md", "## 0.1.0", "## 0.0.9"), "no heading for"),
    "another heading": (
        "changelog",
        edited("CHANGELOG.md", "### Added", "### News"),
        "'News' of 0.1.0 is none of Added, Changed, Fixed, Numerics",
    ),
    "a link to a file": (
        "links",
        edited("README.md", "[PyTorch][torch] |", "[PyTorch](docs/torch.md) |"),
        "the link docs/torch.md is not whole",
    ),
    "a link to nothing": (
        "links",
        edited("README.md", "main/docs/torch.md", "main/docs/torches.md"),
        "leads to no file",
    ),
    "no template": (
        "templates",
        lambda root: (root / ".github/pull_request_template.md").unlink(),
        "pull_request_template.md is missing",
    ),
}


@pytest.mark.parametrize(("check", "damage", "message"), BROKEN.values(), ids=BROKEN)
def test_missing_release_requirements_are_reported(
    check: str, damage: Callable[[Path], Any], message: str, copy: Path
) -> None:
    damage(copy)
    (fault,) = [text for text in found(check, copy) if "has no date" not in text]
    assert message in fault


def git(root: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.example")
    subprocess.run(["git", *identity, *arguments], cwd=root, check=True, capture_output=True)


def test_existing_tag_is_checked(copy: Path) -> None:
    git(copy, "init")
    git(copy, "add", ".")
    git(copy, "commit", "-m", "all")
    assert found("tag", copy) == ["HEAD has no tag v0.1.0"]
    git(copy, "tag", "v0.1.0")
    assert found("tag", copy) == []
    (copy / "README.md").write_text("")
    assert found("tag", copy) == ["there are changes that are not committed"]


def test_built_files_are_checked(copy: Path) -> None:
    (fault,) = found("wheel", copy)
    assert fault.startswith("dist has nothing, not thalweg-0.1.0-py3-none-any.whl")
    (copy / "dist").mkdir()
    summary = TOOL["project_in"](copy)["description"]
    with zipfile.ZipFile(copy / "dist" / "thalweg-0.1.0-py3-none-any.whl", "w") as wheel:
        metadata = f"Metadata-Version: 2.4\nVersion: 0.1.0\nSummary: {summary}\n"
        wheel.writestr("thalweg-0.1.0.dist-info/METADATA", metadata)
        for name in TOOL["IN_WHEEL"][1:]:
            wheel.writestr(name, "")
    with tarfile.open(copy / "dist" / "thalweg-0.1.0.tar.gz", "w:gz"):
        pass
    assert found("wheel", copy) == [
        "the wheel has no thalweg/py.typed",
        "the source distribution has no tests",
    ]


def test_repository_addresses_are_consistent(copy: Path) -> None:
    git(copy, "init")
    git(copy, "add", ".")
    old_urls = TOOL["project_in"](copy)["urls"]
    paths = TOOL["move"](copy, "https://github.com/someone/fork/")
    assert {"README.md", "pyproject.toml", "CITATION.cff"} <= {*paths}
    paths = TOOL["move_documentation"](copy, "https://pages.example/fork/")
    assert {"README.md", "pyproject.toml", "CITATION.cff"} <= {*paths}
    assert found("links", copy) == []
    text = (copy / "README.md").read_text()
    assert old_urls["Source"].removeprefix("https://") not in text
    assert old_urls["Documentation"].removeprefix("https://") not in text
    assert "<https://pages.example/fork>" in text
    urls = TOOL["project_in"](copy)["urls"]
    assert urls["Documentation"] == "https://pages.example/fork"
    assert urls["Source"] == "https://github.com/someone/fork"
    hosts = [text.partition(" has the placeholder ")[2] for text in found("placeholders", copy)]
    assert [host for host in hosts if not host.startswith("pypi.org/")] == []


PLACEHOLDERS = """# A comment, and an empty line.

pages.example replace it
code.example/a/b ask the owner
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one\nhttps://pages.example/x\n", ["2 has the placeholder pages.example: replace it"]),
        ("at pages.example.", ["1 has the placeholder pages.example: replace it"]),
        (
            "pages.example\ncode.example/a/b#c\n",
            [
                "1 has the placeholder pages.example: replace it",
                "2 has the placeholder code.example/a/b: ask the owner",
            ],
        ),
        ("my-pages.example, pages.example-2, v.pages.example, code.example/a/bc\n", []),
    ],
)
def test_placeholders_are_named_with_file_and_line(
    text: str, expected: list[str], tmp_path: Path
) -> None:
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "placeholders.txt").write_text(PLACEHOLDERS)
    (tmp_path / "page.md").write_text(text)
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\xff\xfe")
    (tmp_path / "ignored.md").write_text("pages.example")
    git(tmp_path, "init")
    git(tmp_path, "add", "tools", "page.md", "picture.png")
    assert found("placeholders", tmp_path) == [f"page.md:{place}" for place in expected]


def test_a_release_fails_while_a_placeholder_is_used(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    git(copy, "init")
    git(copy, "add", ".")
    assert TOOL["placeholders"] in TOOL["BEFORE"]
    assert not TOOL["main"](copy, (TOOL["placeholders"],))
    assert "pyproject.toml:" in capsys.readouterr().out
    (copy / "tools" / "placeholders.txt").write_text("# All addresses are real.\n")
    assert TOOL["main"](copy, (TOOL["placeholders"],))


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="lists the files of the repository")
def test_commands_replace_every_placeholder_of_the_repository() -> None:
    files = {text.partition(":")[0] for text in found("placeholders", ROOT)}
    assert {Path(name).suffix for name in files} <= TOOL["SUFFIXES"]
