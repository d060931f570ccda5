"""Machine instructions of AdamW's kernels, counted by `tools/sass_counts.py`."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

TOOL: dict[str, Any] = runpy.run_path(
    str(Path(__file__).parents[2] / "tools" / "sass_counts.py"), run_name="sass_counts"
)
# Most instructions for each element, by compute capability.
MAX_COUNTS = {
    "bfloat16": (38, 38, 33),
    "stochastic": (71, 70, 70),
    "linear8": (73, 72, 68),
    "8bit": (84, 84, 81),
    "split + 8bit": (93, 93, 90),
    "dynamic8": (142, 142, 131),
}
MAX_REGISTERS = {"8bit": 128, "dynamic8": 128}  # with more, three programs run at once, not four


@pytest.mark.slow
@pytest.mark.parametrize("name", MAX_COUNTS)
def test_kernels_execute_few_instructions(name):
    kernel = TOOL["make_kernel"](name)
    for capability, max_count in zip(TOOL["CAPABILITIES"], MAX_COUNTS[name], strict=True):
        count = TOOL["count_instructions"](kernel, capability)
        assert round(count.per_element) <= max_count, (capability, count)
        assert count.spilled == 0, (capability, count)
        assert count.registers <= MAX_REGISTERS.get(name, 168), (capability, count)


LOOP = """
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_x_1:
        /*0010*/                   FMUL R2, R2, R3 ;
        /*0020*/              @!P0 BRA `(.L_x_2) ;
        /*0030*/                   CALL.REL.NOINC `($slowpath) ;
.L_x_2:
        /*0040*/               @P1 BRA `(.L_x_1) ;
        /*0050*/                   EXIT ;
"""


def test_rare_paths_are_not_counted():
    path = TOOL["trace_loop"](*TOOL["parse_assembly"](LOOP))
    assert [line.split()[-2] if "BRA" in line else line.split()[0] for line in path] == [
        "FMUL", "BRA", "BRA",
    ]  # fmt: skip
