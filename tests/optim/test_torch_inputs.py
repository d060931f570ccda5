"""Inputs of torch's tests: complete with a partial import, too."""

from __future__ import annotations

from pathlib import Path

import pytest

import fresh_process
import torch_inputs

PROGRAM = """
import sys
import torch.testing._internal.common_optimizers
sys.path.insert(0, sys.argv[1])
import torch_inputs
assert not torch_inputs.STAND_INS
print(torch_inputs.describe_inputs(), end="")
"""


@pytest.mark.slow
def test_torch_inputs_equal_the_complete_table() -> None:
    process = fresh_process.run(PROGRAM, str(Path(torch_inputs.__file__).parent))
    assert process.returncode == 0, process.stderr
    assert len(torch_inputs.INPUTS) > 50
    assert process.stdout == torch_inputs.describe_inputs()
