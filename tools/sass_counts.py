"""Count the machine instructions that CUDA kernels of torch's AdamW execute for each element.

    python tools/sass_counts.py                        the table of docs/cuda.md
    python tools/sass_counts.py --kernels 8bit --capabilities 90 --save folder

Kernels are compiled ahead of time, without a GPU, and disassembled with the tools in Triton's
wheel. A count is that of one pass through the loop over whole tiles, divided by the elements that
a thread updates in it. Side paths for rare numbers, such as the quotient of a denormal number, are
not counted: the shortest way through the loop avoids them.
"""

from __future__ import annotations

import argparse
import math
import re
import subprocess
import tempfile
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from thalweg._engines.codegen import Update
from thalweg._engines.cuda import launch
from thalweg._engines.cuda.codegen import Kernel, generate_update
from thalweg._engines.cuda.codegen_blocks import generate_blocks
from thalweg._engines.split_weight_rule import split_rule
from thalweg.rules.torch.adam import TORCH_ADAM

CAPABILITIES = (80, 90, 100)
# Names of kernels in tables, and storage of the slots.
SLOTS = {
    "bfloat16": ("bfloat16", "bfloat16"),
    "stochastic": ("bfloat16", "bfloat16"),
    "linear8": ("linear8", "root8"),
    "8bit": ("softsign8", "root8"),
    "split + 8bit": ("softsign8", "root8", "split8"),
    "dynamic8": ("dynamic8", "dynamic8_positive"),
}

_LABEL = re.compile(r"^(\.L\w+):")
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+([^;]+?)\s*;")
_BRANCH = re.compile(r"\bBRA\b.*`\((\.L\w+)\)")
_TILE = re.compile(r"start = opaque\(tile\) \* (\d+)")


@dataclass(frozen=True)
class Count:
    """Machine code of a kernel for one compute capability.

    Attributes:
        per_element: Executed instructions for each element.
        registers: Registers of a thread.
        spilled: Bytes of local memory and of the stack.
    """

    per_element: float
    registers: int
    spilled: int


def make_kernel(name: str) -> Kernel:
    """Return the kernel of AdamW over bfloat16 for a name of `SLOTS`; it keeps denormals."""
    slots = SLOTS[name]
    storage = ("bfloat16", "bfloat16", *slots)
    formula = split_rule(TORCH_ADAM).update if "split8" in slots else TORCH_ADAM.update
    if name == "bfloat16":
        return generate_update(Update(formula, storage), "float32", flush=False)
    return generate_blocks(Update(formula, storage, draws=name == "stochastic"), flush=False)


def run_tool(name: str, *options: str, binary: bytes) -> str:
    """Return the output of a binary tool in Triton's wheel for a file of machine code."""
    triton: Any = import_module("triton")
    tool = Path(triton.__file__).parent / "backends/nvidia/bin" / name
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        command = [tool, *options, file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def parse_assembly(text: str) -> tuple[list[str], dict[str, int]]:
    """Return the instructions of a disassembly, and the index of the one after each label."""
    instructions: list[str] = []
    labels: dict[str, int] = {}
    for line in text.splitlines():
        if label := _LABEL.match(line.strip()):
            labels[label[1]] = len(instructions)
        elif instruction := _INSTRUCTION.search(line):
            instructions.append(instruction[1])
    return instructions, labels


def trace_loop(instructions: list[str], labels: dict[str, int]) -> list[str]:
    """Return the instructions that usual numbers execute in one pass of the first loop.

    These are the shortest way through the loop without a call.

    Raises:
        ValueError: There is no loop.
    """
    targets = {
        index: labels[branch[1]]
        for index, text in enumerate(instructions)
        if (branch := _BRANCH.search(text))
    }
    loops = [(target, index) for index, target in targets.items() if target < index]
    if not loops:
        raise ValueError("The kernel has no loop.")
    start, end = loops[0]
    lengths, next_index = {end: 1.0}, dict[int, int]()
    for index in range(end - 1, start - 1, -1):
        text = instructions[index]
        followers = [targets[index]] if index in targets else []
        if not text.startswith(("BRA", "EXIT")):
            followers.append(index + 1)
        reachable = [follower for follower in followers if index < follower <= end]
        next_index[index] = min(reachable, key=lambda follower: lengths[follower], default=end)
        lengths[index] = 1 + lengths[next_index[index]] if reachable else math.inf
        lengths[index] += math.inf if "CALL" in text else 0
    path = [start]
    while path[-1] != end:
        path.append(next_index[path[-1]])
    return [instructions[index] for index in path]


def count_instructions(kernel: Kernel, capability: int, folder: Path | None = None) -> Count:
    """Return the counts of a kernel compiled for a compute capability.

    Args:
        kernel: A kernel over dense gradients.
        capability: 90 means 9.0.
        folder: Optional. Where the disassembly is saved.
    """
    binary = launch.compiled_for(kernel, True, capability)
    text = run_tool("nvdisasm", "-c", binary=binary.code)
    path = trace_loop(*parse_assembly(text))
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{kernel.name}_{capability}.sass").write_text(text)
        (folder / f"{kernel.name}_{capability}.path").write_text("\n".join(path) + "\n")
    usage = run_tool("cuobjdump", "--dump-resource-usage", binary=binary.code)
    registers, stack, local = (
        int(re.findall(rf"\b{name}:(\d+)", usage)[0]) for name in ("REG", "STACK", "LOCAL")
    )
    tile = int(_TILE.findall(kernel.source)[0])
    return Count(len(path) * kernel.threads / tile, registers, stack + local)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Count instructions of kernels.")
    parser.add_argument("--kernels", nargs="+", choices=SLOTS, default=list(SLOTS))
    parser.add_argument("--capabilities", nargs="+", type=int, default=CAPABILITIES)
    parser.add_argument("--save", type=Path, help="a folder for disassemblies and hot paths")
    options = parser.parse_args()
    heads = [f"{capability / 10:.1f}" for capability in options.capabilities]
    print("| | " + " | ".join(f"{head} | registers" for head in heads) + " |")
    print("|---" * (1 + 2 * len(heads)) + "|")
    for name in options.kernels:
        kernel = make_kernel(name)
        cells = [name]
        for capability in options.capabilities:
            count = count_instructions(kernel, capability, options.save)
            spills = f", {count.spilled} bytes spilled" if count.spilled else ""
            cells += [f"{count.per_element:.1f}", f"{count.registers}{spills}"]
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
