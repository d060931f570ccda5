"""Source of CPU kernels that update chunks and reduce the diagnostics of each chunk.

Each element is updated as by the kernel without diagnostics. Gradient, weight, momentum and move of
an element then enter maxima of magnitudes, and a block on the stack. Blocks are summed in the order
of `diagnostic_sums`. A second loop counts zeros, denormals and non-finite gradients, if there are
any.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from thalweg._engines.codegen import Kernel, Update, fill
from thalweg._engines.cpu.codegen import STORAGE, Element, write_kernel
from thalweg._engines.diagnostic_sums import BLOCK, COLUMNS, POWERS, ROWS
from thalweg._engines.diagnostics import COUNTS, MEASURED, PEAKS, PRODUCTS

_CHUNK = """
for lane in range({count}):
    {zero}
{clear}
least, most = {raw}(0x7FFFFFFF), {raw}(0)
agreement, unchanged = int32(0), int32(0)
zero, denormal, nonfinite = 0, 0, 0
start = 0
while start < length:
    {begin}
    rest = min({block}, length - start)
    for at in range(rest):
        i = start + at
        {element}
    for at in range(rest, {block}):  # +0, which changes no sum
        {pad}
    {scale}
    for lane in range({count}):
        {add}
    start += {block}
if least < {tiny}:
    for i in range(length):
        size = {magnitude}
        zero += int64(size == 0)
        denormal += int64(size < {tiny})
    denormal -= zero
if most >= {infinite}:
    for i in range(length):
        nonfinite += int64({magnitude} >= {infinite})
width = {count}
while width > 1:
    width >>= 1
    for lane in range(width):
        {fold}
{keep}
"""

_QUANTITIES = ("gradient", "update", "weight", "momentum")  # of a block

# Of the type of gradients: its bits without the sign, what they are kept in, the least that is no
# denormal, and infinity.
_BITS = {
    "float32": ("magnitude_of(p1[i])", "int32", 0x00800000, 0x7F800000),
    "float16": ("int32(p1[i] & 0x7FFF)", "int32", 0x0400, 0x7C00),
    "bfloat16": ("int32(p1[i] & 0x7FFF)", "int32", 0x0080, 0x7F80),
}


def can_diagnose(update: Update) -> bool:
    """Return False for updates with encoded slots, random rounding or float64 numbers."""
    var, grad = update.storage[:2]
    is_plain = not update.draws and STORAGE.keys() >= {*update.storage}
    return is_plain and var != "float64" and grad in _BITS


def generate_diagnosed(update: Update, stage_count: int, momentum: int | None, sign: int) -> Kernel:
    """Return the kernel of an update in float32 that also computes diagnostics.

    Args:
        update: An update for which `can_diagnose` returns True.
        stage_count: The gradient is measured after this number of `update.stages`.
        momentum: The index of the momentum among the update's tensors; None without momentum.
        sign: -1 if the momentum averages negative gradients, else 1.

    Returns:
        The kernel. For each chunk it writes the numbers of `MEASURED`. Without momentum, it writes
        no sums of the momentum.
    """
    element = Element(update.traced, "float32")
    quantities = _QUANTITIES if momentum is not None else _QUANTITIES[:3]
    sums = {name: pair for name, pair in PRODUCTS.items() if {*pair} <= {*quantities}}
    magnitude, raw, tiny, infinite = _BITS[update.storage[1]]
    chunk = fill(
        _CHUNK,
        count=COLUMNS,
        block=BLOCK,
        zero=[f"lanes_{name}[lane] = 0.0" for name in sums],
        clear=[f"{name}_max = int32(0)" for name in quantities],
        raw=raw,
        begin=[f"{name}_peak = int32(0)" for name in quantities],
        magnitude=magnitude,
        tiny=tiny,
        infinite=infinite,
        element=_update_element(element, stage_count, momentum, sign, magnitude),
        pad=[f"kept_{name}[at] = float32(0.0)" for name in quantities],
        scale=[line for name in quantities for line in _scale(name)],
        add=_add_columns(quantities, sums),
        fold=[f"lanes_{name}[lane] += lanes_{name}[lane + width]" for name in sums],
        keep=_store_results(sums),
    )
    setup = [
        "results = float64_pointer(work[8])",
        *(f"lanes_{name} = lanes({COLUMNS})" for name in sums),
        *(f"kept_{name} = numbers({BLOCK})" for name in quantities),
    ]
    return write_kernel(element, chunk, "d", setup)


def _store_results(sums: Iterable[str]) -> list[str]:
    """Return lines that write a chunk's results: sums named `sums`, peaks and counts."""
    values = {name: f"lanes_{name}[0]" for name in sums}
    values |= {name: f"float64(float_of({name}))" for name in PEAKS}
    values |= {name: f"float64({name})" for name in COUNTS}
    columns = {name: f"{len(MEASURED)} * chunk + {k}" for k, name in enumerate(MEASURED)}
    return [f"results[{columns[name]}] = {value}" for name, value in values.items()]


def _update_element(
    element: Element, stage_count: int, momentum: int | None, sign: int, magnitude: str
) -> list[str]:
    """Return lines that update element `i`, and store measured numbers in arrays at index `at`.

    Args:
        stage_count, momentum, sign: As for `generate_diagnosed`.
        magnitude: An expression of the magnitude of the stored gradient.
    """
    update = element.update
    gradient = update.name_of(1)
    lines = element.update_element()
    insertion_index = len(update.local_scalars()) + len(update.read_streams())
    # A product with one flushes what any arithmetic of the update flushes; LLVM cannot tell that it
    # is one. Loads and stages keep denormals that nothing has computed with.
    measure_lines = [
        f"old_value = {element.load_value(0)}",
        *_keep("gradient", f"{update.apply_stages(update.stages[:stage_count], gradient)} * one"),
        f"raw_value = {magnitude}",
        _largest("most", "raw_value"),
        "least = raw_value if raw_value < least else least",
    ]
    if momentum is not None:
        minus = "-" if sign < 0 else ""
        measure_lines += _keep("momentum", f"{minus}{update.name_of(momentum)} * one")
        # Not by the sign of a product, which may be too small for one.
        signs = "(now_gradient {0} float32(0.0)) & (now_momentum {0} float32(0.0))"
        sign_tests = [signs.format(order) for order in "<>"]
        measure_lines.append(
            f"agreement = int32(agreement + int32({sign_tests[0]} | {sign_tests[1]}))"
        )
    writes_variable = any(stream == 0 for _, stream in update.written_results())
    new = STORAGE[update.storage[0]].load.format("p0[i]") if writes_variable else "old_value"
    final_lines = [
        f"new_value = {new}",
        *_keep("update", "new_value - old_value"),
        *_keep("weight", "new_value * one"),
        "unchanged = int32(unchanged + int32((new_value == old_value) & (raw_value != 0)))",
    ]
    return [*lines[:insertion_index], *measure_lines, *lines[insertion_index:], *final_lines]


def _keep(name: str, value: str) -> list[str]:
    """Return lines that store a number in the array `kept_{name}`, and update `{name}_peak`."""
    return [
        f"now_{name} = {value}",
        f"kept_{name}[at] = now_{name}",
        _largest(f"{name}_peak", f"magnitude_of(now_{name})"),
    ]


def _scale(name: str) -> list[str]:
    """Return lines that set `scale_{name}`, a power of two, and `undo_{name}`, its inverse.

    Products with `scale_{name}` bring the numbers of a block near 1. The lines also raise
    `{name}_max` to the peak of the block, if the peak is larger.
    """
    return [
        _largest(f"{name}_max", f"{name}_peak"),
        f"power = min({name}_peak >> 23, {POWERS[1]})",
        f"power = power if power > {POWERS[0]} else {POWERS[0]}",
        f"scale_{name} = float_of(int32((254 - power) << 23))",
        f"undo_{name} = float64(float_of(int32(power << 23)))",
    ]


def _add_columns(quantities: Sequence[str], sums: Mapping[str, tuple[str, str]]) -> list[str]:
    """Return lines that sum products of measured numbers over column `lane` of a block.

    Args:
        quantities: The names of the measured numbers.
        sums: {name of a sum: names of the two factors}.
    """
    lines: list[str] = []
    for row in range(ROWS):
        index_text = f"lane + {row * COLUMNS}" if row else "lane"
        lines += [f"{name} = kept_{name}[{index_text}] * scale_{name}" for name in quantities]
        lines += [f"sum_{name} {'+=' if row else '='} {a} * {b}" for name, (a, b) in sums.items()]
    return lines + [
        f"lanes_{name}[lane] += float64(sum_{name}) * (undo_{a} * undo_{b})"
        for name, (a, b) in sums.items()
    ]


def _largest(name: str, value: str) -> str:
    """Return a statement that raises a variable to a larger value."""
    return f"{name} = {value} if {value} > {name} else {name}"
