"""Workflows and forms of the repository: least privilege, pinned actions, the right versions."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".github"
WORKFLOWS = {path.name: path for path in sorted((FOLDER / "workflows").glob("*.yml"))}
FORMS = {path.name: path for path in sorted((FOLDER / "ISSUE_TEMPLATE").glob("*.yml"))}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
JOBS = {
    "complete.yml": {"complete"},
    "docs.yml": {"docs"},
    "release.yml": {"build", "publish"},
    "tests.yml": {"formatting", "tests"},
    "trainers.yml": {"trainers"},
}
PINNED = re.compile(r"uses: [\w./-]+@[0-9a-f]{40} # v\d+(\.\d+)+\s*$")


def load(name: str) -> dict[Any, Any]:
    """Return a workflow. YAML reads its key `on` as True."""
    return yaml.safe_load(WORKFLOWS[name].read_text())


def steps_of(name: str, action: str) -> Iterator[dict[str, Any]]:
    """Yield the steps of a workflow that use an action."""
    for job in load(name)["jobs"].values():
        for step in job["steps"]:
            if step.get("uses", "").startswith(f"{action}@"):
                yield step


def test_workflows_have_the_expected_jobs() -> None:
    assert {name: {*load(name)["jobs"]} for name in WORKFLOWS} == JOBS


@pytest.mark.parametrize("name", JOBS)
def test_a_workflow_has_least_privilege_and_limits(name: str) -> None:
    workflow = load(name)
    granted = [workflow["permissions"]]
    for job in workflow["jobs"].values():
        assert job["runs-on"] == "ubuntu-24.04"
        assert job["timeout-minutes"] <= 350
        granted.append(job.get("permissions", {}))
    writes = [permission for permission in granted if "write" in str(permission)]
    assert all(grant in ({}, {"contents": "read"}, {"id-token": "write"}) for grant in granted)
    assert len(writes) == (name == "release.yml")
    assert "github.ref" in workflow["concurrency"]["group"]
    assert "pull_request_target" not in workflow[True]


@pytest.mark.parametrize("name", JOBS)
def test_actions_are_pinned_to_commits(name: str) -> None:
    lines = [line for line in WORKFLOWS[name].read_text().splitlines() if "uses:" in line]
    assert lines
    assert [line for line in lines if not PINNED.search(line)] == []


def test_an_action_has_one_version() -> None:
    text = "".join(path.read_text() for path in WORKFLOWS.values())
    versions: dict[str, set[str]] = {}
    for action, version in re.findall(r"uses: ([\w./-]+)@(.*)$", text, re.MULTILINE):
        versions.setdefault(action, set()).add(version)
    assert {action: len(uses) for action, uses in versions.items() if len(uses) > 1} == {}


@pytest.mark.parametrize("name", JOBS)
def test_packages_are_cached_and_no_credentials_stay(name: str) -> None:
    for step in steps_of(name, "actions/setup-python"):
        assert step["with"]["cache"] == "pip"
        paths = step["with"]["cache-dependency-path"].split()
        assert paths
        assert all((ROOT / path).is_file() for path in paths)
    assert all(
        step["with"]["persist-credentials"] is False for step in steps_of(name, "actions/checkout")
    )


def test_tests_run_on_each_python_of_the_classifiers() -> None:
    prefix = "Programming Language :: Python :: 3."
    expected = [row[len(prefix) - 2 :] for row in PROJECT["classifiers"] if row.startswith(prefix)]
    job = load("tests.yml")["jobs"]["tests"]
    assert job["strategy"]["matrix"]["python"] == expected
    assert PROJECT["requires-python"] == f">={expected[0]}"
    (setup,) = [step for step in job["steps"] if "setup-python" in step.get("uses", "")]
    assert setup["with"]["python-version"] == "${{ matrix.python }}"


@pytest.mark.parametrize("name", ["complete.yml", "docs.yml", "release.yml"])
def test_other_workflows_run_on_the_python_of_the_documentation(name: str) -> None:
    settings = yaml.safe_load((ROOT / ".readthedocs.yaml").read_text())
    expected = settings["build"]["tools"]["python"]
    versions = {step["with"]["python-version"] for step in steps_of(name, "actions/setup-python")}
    assert versions == {expected}
    assert PROJECT["requires-python"] == f">={expected}"


@pytest.mark.parametrize("name", JOBS)
def test_workflow_commands_name_existing_files(name: str) -> None:
    text = WORKFLOWS[name].read_text()
    for extras in re.findall(r"-e '\.\[(.*)\]'", text):
        assert {*extras.split(",")} <= {*EXTRAS}
    paths = re.findall(r"(?:python |\s)((?:tools/|\.ci/)\w+(?:\.py)?)", text)
    assert all((ROOT / path).is_file() for path in paths)
    if name not in ("complete.yml", "trainers.yml"):  # which run a script
        installs = [line for line in text.splitlines() if "pip install" in line]
        assert installs
        assert all("-c constraints.txt" in line for line in installs)


def test_a_release_is_published_for_a_tag_after_the_checks() -> None:
    workflow = load("release.yml")
    assert workflow[True] == {"push": {"tags": ["v*"]}}
    assert workflow["permissions"] == {}
    build, publish = workflow["jobs"]["build"], workflow["jobs"]["publish"]
    commands = [step.get("run", "") for step in build["steps"]]
    assert commands.index("python -m build --no-isolation") < commands.index(
        "python tools/release.py --built"
    )
    assert any(".ci/installed" in command for command in commands)
    assert publish["needs"] == "build"
    assert publish["environment"]["name"] == "release"
    assert publish["permissions"] == {"id-token": "write"}
    assert not any("run" in step for step in publish["steps"])
    assert publish["steps"][-1]["uses"].startswith("pypa/gh-action-pypi-publish@")
    assert "password" not in WORKFLOWS["release.yml"].read_text()
    assert "secrets." not in "".join(path.read_text() for path in WORKFLOWS.values())


def test_documentation_is_built_as_on_read_the_docs() -> None:
    settings = yaml.safe_load((ROOT / ".readthedocs.yaml").read_text())
    (install,) = settings["python"]["install"]
    text = WORKFLOWS["docs.yml"].read_text()
    (extras,) = re.findall(r"-e '\.\[(.*)\]'", text)
    assert {*extras.split(",")} == {*install["extra_requirements"]}
    assert settings["sphinx"]["fail_on_warning"] is True
    assert "sphinx-build -q -W " in text


@pytest.mark.parametrize("name", sorted({*FORMS} - {"config.yml"}))
def test_issue_form_has_the_fields_github_requires(name: str) -> None:
    form = yaml.safe_load(FORMS[name].read_text())
    assert {"name", "description", "body"} <= {*form}
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert any(field.get("validations", {}).get("required") for field in fields)
    ids = [field["id"] for field in fields]
    assert len({*ids}) == len(ids)
    for field in fields:
        assert field["type"] in ("checkboxes", "dropdown", "input", "textarea")
        assert field["attributes"]["label"]


def test_forms_for_bugs_and_features_and_a_private_contact_exist() -> None:
    assert {"bug.yml", "config.yml", "feature.yml"} <= {*FORMS}
    (link,) = yaml.safe_load(FORMS["config.yml"].read_text())["contact_links"]
    assert link["url"] == PROJECT["urls"]["Security"]
    assert {"name", "about", "url"} == {*link}


def test_the_readme_has_badges_of_existing_workflows_alone() -> None:
    badges = re.findall(r"actions/workflows/([\w.]+)/badge\.svg", (ROOT / "README.md").read_text())
    assert {*badges} <= {*WORKFLOWS}


def test_actions_are_updated_by_pull_requests() -> None:
    settings = yaml.safe_load((FOLDER / "dependabot.yml").read_text())
    assert [update["package-ecosystem"] for update in settings["updates"]] == ["github-actions"]
