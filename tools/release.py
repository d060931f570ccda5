"""Check what a release needs: `python tools/release.py`, and `--built` when it is tagged and built.

    python tools/release.py --address https://github.com/OWNER/NAME
    python tools/release.py --documentation https://NAME.readthedocs.io

write another address of the repository or of the documentation into every file that has the
present one. placeholders.txt lists addresses that no release may contain.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from email.parser import Parser
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SECTIONS = ("Added", "Changed", "Fixed", "Numerics", "Deprecated", "Removed")
TEMPLATES = (
    "CITATION.cff", "SECURITY.md", "CONTRIBUTING.md", "LICENSE", ".readthedocs.yaml",
    ".github/pull_request_template.md", ".github/ISSUE_TEMPLATE/bug.yml", "docs/stability.md",
    "docs/releasing.md", "tools/placeholders.txt", ".github/ISSUE_TEMPLATE/feature.yml",
    ".github/ISSUE_TEMPLATE/config.yml", ".github/workflows/tests.yml",
    ".github/workflows/docs.yml", ".github/workflows/release.yml",
)  # fmt: skip
IN_WHEEL = (
    "thalweg/py.typed", "thalweg/optim/classes.pyi", "thalweg/optim/tensorflow.pyi",
    "thalweg/optim/lr_scheduler.py",
)  # fmt: skip
# Files in which addresses are replaced.
SUFFIXES = {".cff", ".md", ".toml", ".yaml", ".yml"}
PLACEHOLDERS = "tools/placeholders.txt"
Check = Callable[[Path], Iterator[str]]


def project_in(root: Path) -> dict[str, Any]:
    """Return the table `project` of pyproject.toml."""
    return tomllib.loads((root / "pyproject.toml").read_text())["project"]


def versions(root: Path) -> Iterator[str]:
    """Check that one version stands in all places."""
    expected = project_in(root)["version"]
    places = {
        "src/thalweg/version.py": r'^__version__ = "(.*)"$',
        "CITATION.cff": r"^version: (.*)$",
    }
    for file, pattern in places.items():
        matches = re.findall(pattern, (root / file).read_text(), re.MULTILINE)
        if matches != [expected]:
            yield f"{file} has {', '.join(matches) or 'no version'}, pyproject.toml {expected}"


def changelog(root: Path) -> Iterator[str]:
    """Check that the version has a date and that its entries are under known headings."""
    version, text = project_in(root)["version"], (root / "CHANGELOG.md").read_text()
    heading = re.search(rf"^## {re.escape(version)}\b(.*)$", text, re.MULTILINE)
    if heading is None:
        yield f"CHANGELOG.md has no heading for {version}"
        return
    if not re.fullmatch(r" \(\d{4}-\d{2}-\d{2}\)", heading[1]):
        yield f"CHANGELOG.md: '## {version}{heading[1]}' has no date: '## {version} (YYYY-MM-DD)'"
    (part, *_) = re.split(r"^## ", text[heading.end() :], maxsplit=1, flags=re.MULTILINE)
    (preamble, *parts) = re.split(r"^### (.*)$", part, flags=re.MULTILINE)
    if "\n- " in preamble or not parts:
        yield f"CHANGELOG.md: entries of {version} are under {', '.join(SECTIONS)}"
    for title in parts[::2]:
        if title not in SECTIONS:
            yield f"CHANGELOG.md: '{title}' of {version} is none of {', '.join(SECTIONS)}"


def links(root: Path) -> Iterator[str]:
    """Check that the links of README.md are whole and lead to files."""
    source, text = project_in(root)["urls"]["Source"], (root / "README.md").read_text()
    raw = source.replace("https://github.com/", "https://raw.githubusercontent.com/")
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    links_ = re.findall(r"\]\(([^)\s]+)\)", prose) + re.findall(r"^\[[^\]]+\]: (\S+)$", prose, re.M)
    for link in links_:
        if not link.startswith("https://"):
            yield f"README.md: the link {link} is not whole"
        for base in (f"{source}/blob/main/", f"{raw}/main/"):
            path = link.removeprefix(base).partition("#")[0]
            if link.startswith(base) and not (root / path).exists():
                yield f"README.md: {link} leads to no file"


def templates(root: Path) -> Iterator[str]:
    """Yield messages about missing community files."""
    for name in TEMPLATES:
        if not (root / name).is_file():
            yield f"{name} is missing"


def placeholders(root: Path) -> Iterator[str]:
    """Yield each line of a file of the repository that has an address of placeholders.txt."""
    list_path = root / PLACEHOLDERS
    if not list_path.is_file():
        return
    lines = [line for line in list_path.read_text().splitlines() if line and line[0] != "#"]
    addresses = [line.partition(" ") for line in lines]
    for name in _git(root, "ls-files", "-z").split("\0"):
        path = root / name
        if name == PLACEHOLDERS or not path.is_file():
            continue
        content = path.read_bytes()
        for address, _, remedy in addresses:
            # The pattern is hundreds of times slower than a search for the address.
            if address.encode() not in content:
                continue
            pattern = _pattern_of(address)
            for number, line in enumerate(content.split(b"\n"), 1):
                if pattern.search(line.decode(errors="replace")):
                    yield f"{name}:{number} has the placeholder {address}: {remedy.strip()}"


def tag(root: Path) -> Iterator[str]:
    """Check that the commit has the version's tag and that nothing is uncommitted."""
    expected_tag = f"v{project_in(root)['version']}"
    if expected_tag not in _git(root, "tag", "--points-at", "HEAD").split():
        yield f"HEAD has no tag {expected_tag}"
    if _git(root, "status", "--porcelain"):
        yield "there are changes that are not committed"


def wheel(root: Path) -> Iterator[str]:
    """Check that `dist` has a wheel and a source distribution of the version, and nothing else."""
    project = project_in(root)
    stem = f"{project['name']}-{project['version']}"
    expected_files = {f"{stem}-py3-none-any.whl", f"{stem}.tar.gz"}
    files = {path.name for path in (root / "dist").glob("*")}
    if files != expected_files:
        expected_text = ", ".join(sorted(expected_files))
        yield f"dist has {', '.join(sorted(files)) or 'nothing'}, not {expected_text}"
        return
    with zipfile.ZipFile(root / "dist" / f"{stem}-py3-none-any.whl") as wheel_file:
        names = wheel_file.namelist()
        metadata = Parser().parsestr(wheel_file.read(f"{stem}.dist-info/METADATA").decode())
    with tarfile.open(root / "dist" / f"{stem}.tar.gz") as source_archive:
        sources = source_archive.getnames()
    if metadata["Version"] != project["version"] or metadata["Summary"] != project["description"]:
        yield "the wheel was built from another pyproject.toml: build it again"
    yield from (f"the wheel has no {name}" for name in IN_WHEEL if name not in names)
    if any(name.startswith("tests/") for name in names):
        yield "the wheel has tests"
    if f"{stem}/tests/test_docs.py" not in sources:
        yield "the source distribution has no tests"


def description(root: Path) -> Iterator[str]:
    """Check that the package index can show the built description."""
    if importlib.util.find_spec("twine") is None:
        yield "twine is not installed: pip install -e '.[release]'"
        return
    files = sorted(map(str, (root / "dist").glob("*")))
    command = [sys.executable, "-m", "twine", "check", "--strict", *files]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        yield f"twine check --strict: {' '.join((process.stdout + process.stderr).split())}"


BEFORE: tuple[Check, ...] = (versions, changelog, links, templates, placeholders)
BUILT: tuple[Check, ...] = (tag, wheel, description)


def _git(root: Path, *arguments: str) -> str:
    process = subprocess.run(
        ["git", *arguments], cwd=root, capture_output=True, text=True, check=True
    )
    return process.stdout


def _pattern_of(address: str) -> re.Pattern[str]:
    """Return a pattern of an address that is not a part of a longer name."""
    return re.compile(rf"(?<![\w.-]){re.escape(address)}(?![\w-])")


def move(root: Path, address: str) -> list[str]:
    """Write another address of the repository wherever the present one is.

    Returns:
        The files that were changed.
    """
    old = project_in(root)["urls"]["Source"].removeprefix("https://github.com/")
    new = address.rstrip("/").removeprefix("https://github.com/")
    hosts = ("github.com", "raw.githubusercontent.com")
    return _replace(root, {f"{host}/{old}": f"{host}/{new}" for host in hosts})


def move_documentation(root: Path, address: str) -> list[str]:
    """Write another address of the documentation wherever the present one is.

    Returns:
        The files that were changed.
    """
    old = project_in(root)["urls"]["Documentation"].removeprefix("https://").rstrip("/")
    return _replace(root, {old: address.rstrip("/").removeprefix("https://")})


def _replace(root: Path, addresses: dict[str, str]) -> list[str]:
    """Replace addresses in all pages and settings, and return the files that were changed."""
    changed_files: list[str] = []
    for name in _git(root, "ls-files", "-z").split("\0"):
        path = root / name
        if path.suffix in SUFFIXES and path.is_file():
            text = new_text = path.read_text()
            for old, new in addresses.items():
                if old in new_text:
                    new_text = _pattern_of(old).sub(new, new_text)
            if new_text != text:
                path.write_text(new_text)
                changed_files.append(name)
    return changed_files


def main(root: Path, checks: tuple[Check, ...]) -> bool:
    """Print what each check finds, and whether none found anything."""
    is_ready = True
    for check in checks:
        troubles = list(check(root))
        is_ready = is_ready and not troubles
        lines = [f"no: {trouble}" for trouble in troubles] or ["yes"]
        sys.stdout.write("".join(f"{check.__name__:<12} {line}\n" for line in lines))
    return is_ready


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--built", action="store_true", help="check the tag and dist, too")
    parser.add_argument("--address", help="write this address of the repository everywhere")
    parser.add_argument("--documentation", help="write this address of the pages everywhere")
    arguments = parser.parse_args()
    paths = move(ROOT, arguments.address) if arguments.address else []
    paths += move_documentation(ROOT, arguments.documentation) if arguments.documentation else []
    if arguments.address or arguments.documentation:
        sys.stdout.write("\n".join([*paths, ""]))
    elif not main(ROOT, BEFORE + BUILT if arguments.built else BEFORE):
        sys.exit(1)
