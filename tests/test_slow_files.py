"""`pytest -m slow` collects every file that can have slow tests, and skips others."""

from __future__ import annotations

from pathlib import Path

import pytest

from slow_files import can_have_slow_tests

HELPERS = {
    "marks.py": "import pytest\n\n\ndef slow_unless():\n    pytest.mark.slow\n\n\ndef same(): ...",
    "tables.py": "from marks import slow_unless\n\n\nTABLE = slow_unless()\n\n\nNAMES = 1",
    "plain.py": "import plain\nfrom others import something",
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("@pytest.mark.slow\ndef test(): ...", True),
        ("from marks import slow_unless\n\n\n@slow_unless()\ndef test(): ...", True),
        ("import marks\n\n\ndef test():\n    marks.slow_unless()", True),
        ("from folder.tables import TABLE", True),
        ("def test():\n    import tables\n    tables.TABLE", True),
        ("from marks import same", False),
        ("from tables import NAMES", False),
        ("from plain import PLAIN", False),
        ("import pytest\n\n\ndef test_tables(): ...", False),
    ],
)
def test_files_with_slow_tests_are_found(text: str, expected: bool, tmp_path: Path) -> None:
    for name, helper in HELPERS.items():
        (tmp_path / name).write_text(helper)
    path = tmp_path / "test_some.py"
    path.write_text(text)
    assert can_have_slow_tests(path, tmp_path) == expected
