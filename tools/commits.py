"""Check commit subjects: imperative, at most 72 characters.

    python tools/commits.py              the commits since origin/main, or the last one
    python tools/commits.py RANGE        those of a range, such as v0.1..HEAD

A subject begins with a capitalised verb of commit_verbs.txt ("Fix the clip norm of empty groups")
and does not end with a full stop. Merge commits are skipped. If a verb is missing, add it to the
list.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERBS = Path(__file__).with_name("commit_verbs.txt")
LONGEST = 72


def find_faults(subject: str, verbs: frozenset[str]) -> list[str]:
    """Return what is wrong with the subject of a commit."""
    first, faults = subject.split(" ")[0], list[str]()
    if first.lower() not in verbs:
        faults.append(f"does not begin with an imperative verb of {VERBS.name}, but with {first!r}")
    elif not first[0].isupper():
        faults.append("does not begin with a capital letter")
    if len(subject) > LONGEST:
        faults.append(f"has {len(subject)} characters; {LONGEST} are allowed")
    if subject.endswith("."):
        faults.append("ends with a full stop")
    return faults


def read_verbs() -> frozenset[str]:
    """Return the verbs of commit_verbs.txt."""
    lines = VERBS.read_text().splitlines()
    return frozenset(verb for line in lines if not line.startswith("#") for verb in line.split())


def read_subjects(commits: str) -> list[str]:
    """Return the subjects of a range of commits, without merges.

    Raises:
        SystemExit: git does not know the range.
    """
    command = ["git", "-C", str(ROOT), "log", "--no-merges", "--format=%s", commits]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        sys.exit(f"git log {commits}: {process.stderr.strip()}")
    return process.stdout.splitlines()


def default_range() -> str:
    """Return the commits since origin/main; the last commit without that branch."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--verify", "-q", "origin/main"]
    has_origin = subprocess.run(command, capture_output=True, check=False).returncode == 0
    return "origin/main..HEAD" if has_origin else "HEAD~1..HEAD"


def main() -> None:
    """Print each subject with faults; exit with 1 if there is one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("commits", nargs="?", help="a range for git log")
    commits, verbs = parser.parse_args().commits or default_range(), read_verbs()
    wrong = [(subject, find_faults(subject, verbs)) for subject in read_subjects(commits)]
    lines = [f"{subject!r} {'; '.join(faults)}" for subject, faults in wrong if faults]
    if lines:
        sys.exit("\n".join(lines))


if __name__ == "__main__":
    main()
