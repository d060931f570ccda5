"""Write the source of kernels over matrices of few rows and columns, many of them side by side.

Such matrices, as those of convolutions, keep about as many numbers of rows and columns as elements.
A kernel takes a block of them through the stack, where lane i of every array belongs to matrix i:
what is done to a matrix is done to all lanes at once, and what measures and fused stages make of
rows and columns never leaves the stack. The bits are those of
`_engines/row_column_reductions.py`, and of a stage's Python.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod

from thalweg._base.fused_stage import FusedStage
from thalweg._base.rule_passes import Measure
from thalweg._engines.codegen import Kernel, Update, indent_by
from thalweg._engines.cpu.codegen import HEADER, STORAGE, Element, name_kernel
from thalweg._engines.cpu.codegen_measure import STAGE_LITERAL, Elements
from thalweg._engines.cpu.codegen_stage import StageWriter, Values
from thalweg._engines.cpu.codegen_transpose import (
    LANES,
    SIDE,
    put_together,
    reduce_values,
    take_apart,
)
from thalweg._engines.formula_parser import LITERAL, transcribe
from thalweg._engines.fused_stage import SIZES, read_stage
from thalweg.formula import Formula, Rule, is_like_update

_NAMES, _ASSIGNED = re.compile(r"\w+"), re.compile(r"(\w+(?:, \w+)*) = ")

_KERNEL = """
def KERNEL_NAME(argument):
    work = int64_pointer(address_of(argument))
    slices, flush = work[1], work[2]
    bounds, chunks = int64_pointer(work[3]), int64_pointer(work[4])
    base, scalar_row = int64_pointer(work[5]), int64_pointer(work[6])
    scalars = float64_pointer(work[7])
    one = {literal}(flush | 1)
{rooms}
    ticket = take_ticket(work)
    while ticket < slices:
        for chunk in range(bounds[ticket], bounds[ticket + 1]):
            place = chunks[4 * chunk] * {width}
            row = scalar_row[chunks[4 * chunk]] * {n_scalars}
            begin = chunks[4 * chunk + 1]
            end = begin + chunks[4 * chunk + 3]
{scalars}
            for first in range(begin, end, {lanes}):
                count = min({lanes}, end - first)
{block}
        ticket = take_ticket(work)
"""

_ROUNDED = {kind: STORAGE[kind].load.format(STORAGE[kind].save) for kind in ("float16", "bfloat16")}

# The tree of `lines.combine_tiles`, as far as a block of a power of two goes.
_COMBINE = """
left = count
while left > 1:
    half = left >> 1
    for i in range(half):
        {total}[i] = {total}[2 * i] + {total}[2 * i + 1]
    if left & 1:
        {total}[half] = {total}[left - 1]
    left = (left + 1) >> 1
target = float64_pointer(base[place + {stream}])
target[first // {lanes}] = {total}[0]
"""


def stream_of_pass(rule: Rule, storage: Sequence[str], place: int) -> int:
    """The column of the table that says where what a pass measures of blocks goes.

    Before those of passes there are those of streams, and of slots of rows and columns.
    """
    return len(storage) + len(rule.shaped_slots) + place


class _Measured(Elements):
    """Measures that follow one another, of element i of lanes.

    Args:
        number: Of the group.
        formulas, stages, storage: As for `Sweep`; storage is that of lanes.
        scalars: All scalars of the kernel, by name.
        kinds: What formulas may ask for of a "row" or a "column", by name.
    """

    def __init__(
        self,
        number: int,
        formulas: tuple[Formula, ...],
        stages: tuple[Formula, ...],
        storage: tuple[str, ...],
        scalars: Mapping[str, str],
        kinds: Mapping[str, str],
    ) -> None:
        super().__init__(formulas, stages, storage, len(storage), False, kinds)
        self._name = f"measured{number}"
        self.scalar = {name: scalars[name] for name in self.scalar}
        streams = [f"p{stream}" for stream in self.read]
        self.arguments = [*streams, *self.scalar.values(), *self.see_vectors().values()]

    def see_vectors(self) -> dict[str, str]:
        return {name: f"seen_{name}" for name in self.vectors}

    def define(self, compute: str) -> list[str]:
        """The functions of the group."""
        body = indent_by(self.measure_element(), 1)
        parameters = ", ".join(["i", *self.arguments])
        return [*self.define_functions(compute), f"def {self._name}({parameters}):\n{body}"]

    def call(self, seen: Mapping[str, str]) -> str:
        """Its values of element i, which sees this of its row and column."""
        given = [*self.arguments[: len(self.arguments) - len(self.vectors)]]
        return f"{self._name}({', '.join(['i', *given, *(seen[name] for name in self.vectors)])})"


class Short:
    """Writes a kernel over matrices of so many rows and columns.

    Args:
        rule: A rule of measures and fused stages.
        passes: What the kernel does of its passes, in order: all fused stages and measures of rows
            and columns, and those measures of variables that it leaves in memory, block by block.
        update: The update as engines take it, or None: it is followed by writing what stages have
            made of slots.
        stages: As for `Update`.
        storage: Storage types of variable, gradient and slots of elements.
        lines: Those of slots of rows and columns.
        compute: "float32" or "float64".
        sides: Rows and columns.
        flush: Whether the update, and measures after `stages`, treat denormals as zero.
    """

    def __init__(
        self,
        rule: Rule,
        passes: Sequence[Measure | FusedStage],
        update: Formula | None,
        stages: tuple[Formula, ...],
        storage: tuple[str, ...],
        lines: tuple[str, ...],
        compute: str,
        sides: tuple[int, int],
        flush: bool,
    ) -> None:
        self._rule, self._passes, self._stages = rule, passes, stages
        self._storage, self._lines, self._compute = storage, lines, compute
        self._sides, self._flush = sides, flush
        self._counts = {"row": sides[0], "column": sides[1], "matrix": 1, "": 1}
        self._room = "numbers" if compute == "float32" else "lanes"
        self._plain = (compute,) * len(storage)
        self._update = update and Update(update, self._plain, stages, vectors=rule.vectors)
        self._place = {name: place for place, name in enumerate(self._list_scalars())}
        self._rooms: dict[str, str] = {}  # what makes each array
        self._definitions = [
            HEADER.format(literal=LITERAL, compute="float64"),
            HEADER.format(literal=STAGE_LITERAL, compute=compute),
        ]
        self._read: set[int] = set()
        self._seen: dict[str, Values] = {}  # what elements see of rows and columns,
        self._made: dict[str, Values] = {}  # and what stages have made of slots, which they do not
        self._narrowed: set[str] = set()  # names of what elements see, in their type
        # What is done to matrix `lane`, in parts that treat denormals in one way each.
        self._parts: list[tuple[bool, list[str]]] = []

    def write(self) -> Kernel:
        """The kernel."""
        slots, totals = self._read_slots(), list[str]()
        for number, own in enumerate(_grouped(self._passes)):
            if isinstance(own, FusedStage):
                self._run_stage(own)
            else:
                totals += self._measure(number, own)
        written = list[str]()
        if self._update is not None:
            self._update_elements(self._update)
            self._read |= {*self._update.read_streams()}
            changed = {stream for _, stream in self._update.written_results()}
            written += [line for stream in sorted(changed) for line in self._write_stream(stream)]
            written += self._write_slots()
        read = [line for stream in sorted(self._read) for line in self._read_stream(stream)]
        computed, names = self._each_matrix(), tuple(self._place)
        text = _KERNEL.format(
            literal=STAGE_LITERAL,
            rooms=indent_by([f"{name} = {made}" for name, made in self._rooms.items()], 1),
            width=stream_of_pass(self._rule, self._storage, len(self._rule.passes)),
            n_scalars=len(names),
            scalars=indent_by(
                [f"s{k} = scalars[row + {k}]" for k in range(len(names))]
                + [f"t{k} = {STAGE_LITERAL}(s{k})" for k in range(len(names))]
                or ["pass"],
                3,
            ),
            lanes=LANES,
            block=indent_by([*slots, *read, *computed, *totals, *written], 4),
        )
        definitions = "\n\n".join(dict.fromkeys(self._definitions)) + "\n"
        return name_kernel("s", definitions, text, names)

    def _do(self, lines: list[str], flush: bool = False) -> None:
        """Have something done to matrix `lane`."""
        flush = flush and self._flush
        if self._parts and self._parts[-1][0] == flush:
            self._parts[-1][1].extend(lines)
        else:
            self._parts.append((flush, lines))

    def _each_matrix(self) -> list[str]:
        """One loop over matrices for each part; what a later one reads goes through the stack."""
        names, found = [_names_of(lines) for _, lines in self._parts], list[str]()
        for number, (flush, lines) in enumerate(self._parts):
            given, made = names[number]
            before = {name for _, own in names[:number] for name in own}
            kept = [name for name in made if any(name in read for read, _ in names[number + 1 :])]
            for name in kept:
                room = self._room if name in self._narrowed else "lanes"
                self._reserve(f"kept_{name}", 1, room)
            loop = [
                "for lane in range(count):",
                *(f"    {name} = kept_{name}[lane]" for name in given if name in before),
                *(f"    {line}" for line in lines),
                *(f"    kept_{name}[lane] = {name}" for name in kept),
            ]
            if flush:
                loop = ["found = begin_denormals(flush)", *loop, "end_denormals(found)"]
            found += loop
        return found

    def _list_scalars(self) -> dict[str, None]:
        """The names of all that formulas ask for, but numbers of rows and columns, and sizes."""
        names: dict[str, None] = {}
        for each in self._passes:
            if isinstance(each, FusedStage):
                own = read_stage(self._rule, each).scalars
                names |= dict.fromkeys(name for name in own if name not in SIZES)
            else:
                plain = self._plain
                kinds = self._rule.vectors
                names |= dict.fromkeys(
                    Elements(
                        (each.function,), self._stages, plain, len(plain), False, kinds
                    ).scalars
                )
        return names | dict.fromkeys(self._update.scalars if self._update is not None else ())

    def _reserve(self, name: str, count: int, room: str = "lanes") -> str:
        """An array of so many numbers of each matrix."""
        self._rooms[name] = f"{room}({count * LANES})"
        return name

    # Memory

    def _read_slots(self) -> list[str]:
        """Read what is kept of rows and columns."""
        lines: list[str] = []
        for place, slot in enumerate(self._rule.shaped_slots):
            of = str(slot.per)
            count, stored = self._counts[of], STORAGE[self._lines[place]]
            name = self._reserve(f"slot_{slot.name}", count, self._room)
            stream = len(self._storage) + place
            lines.append(self._point_at(stream, self._lines[place], count))
            lines += take_apart(f"x{stream}", name, (1, count), stored.load, "")
            self._seen[slot.name] = values = Values(f"own_{slot.name}", of)
            self._do([f"{values.at(k)} = {name}[lane + {k * LANES}]" for k in range(count)])
        return lines

    def _write_slots(self) -> list[str]:
        """Write what stages have made of them, rounded as torch does."""
        lines: list[str] = []
        for place, slot in enumerate(self._rule.shaped_slots):
            if slot.name in self._made:
                count, stored = self._counts[str(slot.per)], STORAGE[self._lines[place]]
                name, made = self._reserve(f"new_{slot.name}", count), self._made[slot.name]
                self._do([f"{name}[lane + {k * LANES}] = {made.at(k)}" for k in range(count)])
                target = f"x{len(self._storage) + place}"
                lines += put_together(name, target, (1, count), stored.save, "")
        return lines

    def _read_stream(self, stream: int) -> list[str]:
        kind, count = self._storage[stream], prod(self._sides)
        name = self._reserve(f"p{stream}", count, self._room)
        load = f"{STAGE_LITERAL}({STORAGE[kind].load})"
        pointer, spare = self._point_at(stream, kind, count), self._reserve_spare()
        return [pointer, *take_apart(f"x{stream}", name, self._sides, load, spare)]

    def _write_stream(self, stream: int) -> list[str]:
        save, spare = STORAGE[self._storage[stream]].save, self._reserve_spare()
        return put_together(f"p{stream}", f"x{stream}", self._sides, save, spare)

    def _reserve_spare(self) -> str:
        size = prod(self._sides)
        return self._reserve("spare", size, self._room) if size > SIDE else ""

    def _point_at(self, stream: int, kind: str, count: int) -> str:
        stored = STORAGE[kind]
        at = f"base[place + {stream}] + first * {count * stored.size}"
        return f"x{stream} = {stored.pointer}({at})"

    # Arithmetic

    def _narrow(self, names: Iterable[str]) -> dict[str, Values]:
        """What elements see of rows and columns, in the type of the arithmetic.

        It is rounded where denormals are kept, and goes through the stack in this type: LLVM would
        compare what is wider in its place, in which no number of the type is denormal.
        """
        found = {name: Values(f"seen_{name}", self._seen[name].of) for name in names}
        for name, each in found.items():
            lines = range(self._counts[each.of])
            self._narrowed |= {each.at(k) for k in lines}
            self._do([f"{each.at(k)} = {STAGE_LITERAL}({self._seen[name].at(k)})" for k in lines])
        return found

    @staticmethod
    def _of_element(seen: Mapping[str, Values], row: int, column: int) -> dict[str, str]:
        """What an element is given of its row and column."""
        places = {"row": row, "column": column}
        return {name: each.at(places[each.of]) for name, each in seen.items()}

    def _each_element(self) -> Iterator[tuple[int, int, int]]:
        """The number of each element, with its row and column."""
        for number in range(prod(self._sides)):
            yield number, *divmod(number, self._sides[1])

    def _measure(self, number: int, measures: list[Measure]) -> list[str]:
        """Take measures; returns what leaves those of variables in memory."""
        formulas = tuple(dict.fromkeys(each.function for each in measures))
        scalars = {name: f"s{place}" for name, place in self._place.items()}
        kinds = {name: each.of for name, each in self._seen.items()}
        own = _Measured(number, formulas, self._stages, self._plain, scalars, kinds)
        self._definitions += own.define(self._compute)
        self._read |= {*own.read}
        seen = self._narrow(own.vectors)
        lines, totals = list[str](), list[str]()
        values = {formula: f"value{number}_{k}" for k, formula in enumerate(formulas)}
        for k, row, column in self._each_element():
            targets = ", ".join(f"{name}_{k}" for name in values.values())
            call = own.call(self._of_element(seen, row, column))
            lines += [f"i = lane + {k * LANES}", f"{targets} = {call}"]
        for each in measures:
            found = reduce_values(each, values[each.function], self._sides)
            if each.over != "variable":
                self._seen[each.makes] = made = Values(f"measured_{each.makes}", each.over)
                lines += [f"{made.at(k)} = {value} + 0.0" for k, value in enumerate(found)]
                continue
            total = self._reserve(f"total_{each.makes}", 1)
            lines.append(f"{total}[lane] = {found[0]}")
            stream = stream_of_pass(self._rule, self._storage, self._rule.passes.index(each))
            text = _COMBINE.format(total=total, stream=stream, lanes=LANES)
            totals += text.strip().splitlines()
        self._do(lines, flush=bool(self._stages))
        return totals

    def _run_stage(self, stage: FusedStage) -> None:
        """Run a fused stage."""
        formula, title = read_stage(self._rule, stage), f"stage{self._passes.index(stage)}"
        letter, literal = ("t", STAGE_LITERAL) if is_like_update(stage.function) else ("s", LITERAL)
        inputs = {name: Values(f"{letter}{place}", "") for name, place in self._place.items()}
        for name, count in zip(SIZES, self._sides, strict=False):
            inputs[name] = Values(str(count), "")
        inputs |= {**self._seen, **self._made}
        writer = StageWriter(title, literal, self._counts)
        lines, results = writer.write_stage(formula, inputs)
        kinds = {slot.name: self._lines[k] for k, slot in enumerate(self._rule.shaped_slots)}
        for name, made in zip(stage.makes, results, strict=True):
            if name not in kinds:
                self._seen[name] = made
                continue
            # Later stages see it as it is stored, in no wider a type than that of the arithmetic.
            self._made[name] = stored = Values(f"{title}_new_{name}", made.of)
            kind = kinds[name] if kinds[name] != "float64" else self._compute
            rounded = _ROUNDED.get(kind, f"{kind}({{}})")
            lines += [
                f"{stored.at(k)} = {rounded.format(made.at(k))}"
                for k in range(self._counts[made.of])
            ]
        self._do(lines)

    def _update_elements(self, update: Update) -> None:
        """Update the elements."""
        element = Element(update, self._compute)
        update.scalar = {name: f"t{self._place[name]}" for name in update.scalar}
        self._definitions.append(of_update(element.define_functions()))
        seen, lines = self._narrow(update.vectors), list[str]()
        for k, row, column in self._each_element():
            own = map(of_update, element.update_element(self._of_element(seen, row, column)))
            lines += [f"i = lane + {k * LANES}", *own]
        self._do(lines, flush=True)


def of_update(text: str) -> str:
    """Return a text of a formula in the type of the update."""
    return re.sub(rf"\b{LITERAL}\b", STAGE_LITERAL, text)


def _grouped(passes: Sequence[Measure | FusedStage]) -> list[FusedStage | list[Measure]]:
    """The passes, with measures that follow one another together unless one reads another."""
    found: list[FusedStage | list[Measure]] = []
    for each in passes:
        last = found[-1] if found else None
        if isinstance(each, FusedStage):
            found.append(each)
        elif isinstance(last, list) and not any(
            other.makes in transcribe(each.function).scalars for other in last
        ):
            last.append(each)
        else:
            found.append([each])
    return found


def _names_of(lines: Sequence[str]) -> tuple[dict[str, None], dict[str, None]]:
    """The names that lines read before they give them to something, and those that they give."""
    given, made = dict[str, None](), dict[str, None]()
    for line in lines:
        target = _ASSIGNED.match(line)
        read = _NAMES.findall(line[target.end() :] if target else line)
        given |= dict.fromkeys(name for name in read if name not in made)
        made |= dict.fromkeys(target[1].split(", ") if target else ())
    return given, made
