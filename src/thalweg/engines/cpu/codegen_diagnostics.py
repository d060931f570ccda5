"""Write the source of an update that also tells of itself, leaf by leaf; see `diagnostics`.

Each element is updated as by the plain kernel. Beside that its gradient, weight, momentum and move,
which are in registers, go into the lanes of sums in the order of `measuring`, and into largest
magnitudes, as integers that order them. What is rare among the gradients of a leaf is counted
afterwards, if its smallest or largest magnitude says that there is any.
"""

from __future__ import annotations

from thalweg.engines.codegen import Kernel, Update, indent_by
from thalweg.engines.cpu.codegen import STORAGE, Element, name_kernel, point_at_chunk
from thalweg.engines.diagnostics import COUNTS, MEASURED, PEAKS
from thalweg.engines.measuring import LANES

_KERNEL = """
def KERNEL_NAME(argument):
    work = int64_pointer(address_of(argument))
    slices, flush = work[1], work[2]
    bounds, chunks = int64_pointer(work[3]), int64_pointer(work[4])
    base, scalar_row = int64_pointer(work[5]), int64_pointer(work[6])
    scalars, told = float32_pointer(work[7]), float64_pointer(work[8])
    one = float32(flush | 1)
{lanes}
    found = begin_denormals(flush)
    ticket = take_ticket(work)
    while ticket < slices:
        for chunk in range(bounds[ticket], bounds[ticket + 1]):
            tensor = chunks[4 * chunk]
            offset, grad_offset = chunks[4 * chunk + 1], chunks[4 * chunk + 2]
            length = chunks[4 * chunk + 3]
{pointers}
            row = scalar_row[tensor] * {n_scalars}
{scalars}
            width = {count}
            while width >= 2 * length:  # the lanes beyond are +0 and stay so
                width >>= 1
            for lane in range(width):
{zero}
            gradient_max, update_max, weight_max = int32(0), int32(0), int32(0)
            least, most = {raw}(0x7FFFFFFF), {raw}(0)
            agreement, unchanged, zero, denormal, nonfinite = 0, 0, 0, 0, 0
            start = 0
            while start < length:
                for i in range(start, min(start + {count}, length)):
{element}
                start += {count}
            if least < {tiny}:
                for i in range(length):
                    size = {magnitude}
                    zero += int64(size == 0)
                    denormal += int64(size < {tiny})
                denormal -= zero
            if most >= {infinite}:
                for i in range(length):
                    nonfinite += int64({magnitude} >= {infinite})
            while width > 1:
                width >>= 1
                for lane in range(width):
{fold}
{keep}
        ticket = take_ticket(work)
    end_denormals(found)
"""

# Of the type of gradients: its bits without the sign, what they are kept in, the least that is no
# denormal, and infinity.
_BITS = {
    "float32": ("magnitude_of(p1[i])", "int32", 0x00800000, 0x7F800000),
    "float16": ("int32(p1[i] & 0x7FFF)", "int32", 0x0400, 0x7C00),
    "bfloat16": ("int32(p1[i] & 0x7FFF)", "int32", 0x0080, 0x7F80),
}


def can_tell(update: Update) -> bool:
    """Whether there is a kernel for it: of float32, with a gradient of 32 bits or fewer."""
    return update.storage[0] != "float64" and update.storage[1] in _BITS


def generate_telling(update: Update, first: int, momentum: int | None, sign: int) -> Kernel:
    """The kernel of an update in float32 that tells of itself.

    Args:
        update: What becomes of an element; one for which `can_tell`.
        first: How many of its stages come before what is told of a gradient.
        momentum: The stream of the momentum; None for none.
        sign: -1 if it is that of negatives of gradients, else 1.

    Returns:
        The kernel; of each leaf it makes `MEASURED`, where those of a momentum are 0 without one.
    """
    element = Element(update, "float32")
    own = ["gradient", "update", "weight"]
    own += ["product", "momentum"] if momentum is not None else []
    magnitude, raw, tiny, infinite = _BITS[update.storage[1]]

    places = {name: f"told[{len(MEASURED)} * chunk + {k}]" for k, name in enumerate(MEASURED)}
    keep = [f"{places[name]} = lanes_{name}[0]" for name in own]
    keep += [f"{places[name]} = float64(float_of({name}))" for name in PEAKS]
    keep += [f"{places[name]} = float64({name})" for name in COUNTS]
    text = _KERNEL.format(
        lanes=indent_by([f"lanes_{name} = lanes()" for name in own], 1),
        pointers=indent_by(point_at_chunk(update), 3),
        n_scalars=len(update.scalars),
        scalars=indent_by(
            [f"s{k} = scalars[row + {k}]" for k in range(len(update.scalars))] or ["pass"], 3
        ),
        count=LANES,
        zero=indent_by([f"lanes_{name}[lane] = 0.0" for name in own], 4),
        raw=raw,
        magnitude=magnitude,
        tiny=tiny,
        infinite=infinite,
        element=indent_by(_update_element(element, first, momentum, sign, magnitude), 5),
        fold=indent_by([f"lanes_{name}[lane] += lanes_{name}[lane + width]" for name in own], 5),
        keep=indent_by(keep, 3),
    )
    return name_kernel("d", element.define_functions(), text, update.scalars)


def _update_element(
    element: Element, first: int, momentum: int | None, sign: int, magnitude: str
) -> list[str]:
    """Update element i, and tell of it."""
    update = element.update
    gradient = update.name_of(1)
    lines = element.update_element()
    at = len(update.local_scalars()) + len(update.read_streams())
    # A product with one flushes what any arithmetic of the update flushes; LLVM cannot tell that it
    # is one. Loads and stages keep denormals that nothing has computed with.
    before = [
        f"told_old = {element.load_value(0)}",
        f"told_gradient = {update.apply_stages(update.stages[:first], gradient)} * one",
        f"told_raw = {magnitude}",
    ]
    if momentum is not None:
        minus = "-" if sign < 0 else ""
        before.append(f"told_momentum = {minus}{update.name_of(momentum)} * one")
    is_written = any(stream == 0 for _, stream in update.written_results())
    new = STORAGE[update.storage[0]].load.format("p0[i]") if is_written else "told_old"
    after = [
        f"told_new = {new}",
        "told_move = told_new - told_old",
        "lane = i - start",
        "g, u, w = float64(told_gradient), float64(told_move), float64(told_new * one)",
        "lanes_gradient[lane] += g * g",
        "lanes_update[lane] += u * u",
        "lanes_weight[lane] += w * w",
        *(
            _largest(name, value)
            for name, value in (
                ("gradient_max", "magnitude_of(told_gradient)"),
                ("update_max", "magnitude_of(told_move)"),
                ("weight_max", "magnitude_of(told_new * one)"),
                ("most", "told_raw"),
            )
        ),
        "least = told_raw if told_raw < least else least",
        "unchanged += int64((told_new == told_old) & (told_raw != 0))",
    ]
    if momentum is not None:
        after += [
            "m = float64(told_momentum)",
            "both = g * m",
            "lanes_product[lane] += both",
            "lanes_momentum[lane] += m * m",
            "agreement += int64(both > 0.0)",
        ]
    return [*lines[:at], *before, *lines[at:], *after]


def _largest(name: str, value: str) -> str:
    return f"{name} = {value} if {value} > {name} else {name}"
