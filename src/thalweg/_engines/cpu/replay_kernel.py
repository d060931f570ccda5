"""The look at a step like the one before, and its writes: one call, in which nothing else runs.

The functions here are compiled (`compiler.py`) and called with the lock of Python held, so nothing
comes between what is looked at and what is written. A block says where everything lies:
`snapshot.py` makes it after a step that was looked at carefully. Whatever is not as it says returns
a number, and nothing was written.

What is read is alive. The block's owner holds the lists, dictionaries, tensors and types that it
names. All else is read from those as they are now, and is followed only as far as it is what an
object holds at this moment: its TensorImpl, from that the storage, the version counter and what
autograd keeps, from that the gradient. No address is followed that was only remembered; prefetches
ask for such addresses, and no more.
"""

# Code for `compiler`, which finds its types itself.
# pyright: basic, reportUndefinedVariable=false
# ruff: noqa: F821, SIM102
from __future__ import annotations

from thalweg._engines.cpu.scalar_program import FLOAT32 as FLOAT32
from thalweg._engines.cpu.scalar_program import FLOAT64 as FLOAT64
from thalweg._engines.cpu.scalar_program import INT64 as INT64

# What a block has at which word. Records are arrays: their number, and where the first one lies.
TAKEN = 0  # how many steps were
LISTS = 2
DICTS = 4
TENSORS = 6
GRADIENTS = 8
LAUNCHES = 10
COLUMNS = 12
WRITTEN = 14  # numbers of tensors
BOUNDS = 16  # begins and ends of what is written, ascending
PY_LIST_SIZE = 18
PY_LIST_GET_ITEM = 19
PY_DICT_SIZE = 20
PY_DICT_NEXT = 21
# Offsets, as `probe.Layout` has them in this order.
IN_OBJECT = 22
IN_IMPL_STORAGE = 23
IN_IMPL_AUTOGRAD = 24
IN_IMPL_COUNTER = 25
IN_IMPL_DIMS = 26
IN_IMPL_OFFSET = 27
IN_IMPL_COUNT = 28
IN_IMPL_FLAGS = 29
FLAGS_MASK = 30
IN_IMPL_KEYS = 31
IN_STORAGE_DATA = 32
IN_STORAGE_DELETER = 33
IN_STORAGE_CONTEXT = 34
IN_STORAGE_BYTES = 35
IN_AUTOGRAD_GRADIENT = 36
IN_COUNTER = 37
PAIRS = 38  # a list of gradients and variables, or 0: gradients are those that parameters have
WATCHED = 39  # numbers that nobody else may have written
CLASS_OF_LISTS = 41
CLASS_OF_TUPLES = 42
CLASS_OF_GRADIENTS = 43
PY_TUPLE_SIZE = 44
PY_TUPLE_GET_ITEM = 45
MEASURES = 46  # launches, like those above
HAS_MEASURED = 48  # whether gradients are to lie where they were measured
CLIPPING = 49  # the block of `look_norm`
PROGRAMS = 50  # what makes scalars of kernels: see `program.py`
RULE_MEASURES = 52  # launches that measure what a rule asks for,
RULE_MEASURED = 54  # and the blocks of `look_measures`
TEAM = 56  # what calls the look at parts on several threads; 0 if one looks at all
TEAM_ROUTINE = 57  # the address of that look
TEAM_SIZE = 58
PARTED = 59  # how many gradients are among the parts: all, or none
TICKET = 60  # which part is the next one
DIFFERS = 61  # out: whether anything was found
OPTIONS = 62  # entries of dictionaries whose numbers are read at every step
CLASS_OF_FLOATS = 64
CLASS_OF_NUMPY_FLOATS = 65
IN_FLOAT = 66  # where an object of these classes has its number
MEMBERS = 67  # variables whose scalars are made for their step count; else `PROGRAMS` make all
NO_GRADIENT = 69  # the TensorImpl that stands for none
PY_LONG_AS_LONG = 70
PY_LONG_FROM_LONG = 71
NONE_OBJECT = 72  # the address of None
STEP_TABLE = 73  # the address of the numbers of coming steps, or 0
STEP_TABLE_SPANS = 74  # where the first numbers of a row go; its last are those of the columns
STEP_TABLE_ROW = 76  # bytes of a row
GUARDS = 77  # functions of torch whose results are 0 in ordinary steps; the first is profilers'
READS = 79  # numbers of tensors that go into programs with those of the table
BLOCK = 81

AHEAD = 8  # tensors
PART = 64  # records that a thread looks at before it asks for more
MANY = 512  # tensors, from which on threads of kernels look, too: each waits for memory

# Bytes of a record.
MEASURED = 96  # begins with what is called
LIST = 24  # the list, how many items, where they are listed
# The dictionary, the number of entries, their table, and the address of the owner's pointer to the
# dictionary; 0 for dictionaries without an owner.
DICT = 32
TENSOR = 192
GRADIENT = 128
LAUNCH = 32  # the kernel, its argument; what calls it on several threads, how many
COLUMN = 48  # where numbers lie, how many, their kind, what they become; what they are, if known
WATCH = 24  # where a number lies, how many bytes it has, what they are
OPTION = 24  # numbers in a tuple, or 0 for a number; where the numbers go, and their signs
MEMBER = 40
WRITE = 24  # the index of a tensor; how many members write it, 0 if each step does, and where
# their positions are
GUARD = 24  # the function, the bits of its result that count, whether that is their address
TABLE_HEAD = 16  # bytes before the first row: how many steps were taken before it, number of rows
READ = (
    32  # where a number lies, its kind; the register it goes to, whether it is rounded to float32
)
SPAN = 16  # registers of a program: where the first one lies, how many
CHUNK = 32  # a row of a work table, of which the last word is the number of elements

# Words of the block of `look_norm`.
CLIPPING_ROUTINE = 0
CLIPPING_IS_USUAL = 1
CLIPPING_TAKEN = 2

# Words of a tensor's record.
OBJECT = 0
CLASS = 1
IMPL = 2
STORAGE = 3
DATA = 4
BYTES = 5
DELETER = 6
CONTEXT = 7
SHAPE = 8  # how many dimensions, five sizes, five strides
OFFSET = 19
COUNT = 20
FLAGS = 21
KEYS = 22
COUNTER = 23  # out: where writes are counted

# Words of a gradient's record; FLAGS and KEYS are there, too.
OWNER = 0  # the record of its parameter
IS_THERE = 1
NEEDED = 2  # bytes
PLACE = 3  # where it lay when it was last found to lie apart from what is written
CELL = 4  # where a kernel looks for its address
ITEM = 5  # bytes of an element
GRADIENT_FLAGS = 6
GRADIENT_KEYS = 7
IS_ON = 8  # whether the chunks of the variable have their elements, or none
FOUND = 9  # the TensorImpl that is the gradient now
SPANS = 10  # two times: the lengths of its chunks in a table, those they have if on, how many

# Values of IS_THERE.
ABSENT = 0  # the parameter has no gradient
PRESENT = 1
MAY_BE_ABSENT = 2  # a parameter without a gradient is left out of the step

# Words of a member's record.
STEP_COUNT = 0  # the address of the number of its steps, or 0 if it has none
STEP_KIND = 1
MEMBER_PROGRAM = 2  # the record of the program that makes its scalars
ROW_CELL = 3  # where its kernel reads which row of scalars it has
ROW_SIZE = 4  # bytes

MOST = 1e30  # magnitude of an option; a step that is planned anew reports others

ANY_STEP = -1  # in place of the number of steps that were taken when this one was begun

# Parts of a step.
WHOLE = 0
MEASURE = 1  # gradients are measured, nothing is written
UPDATE = 2  # of gradients that were measured
CLIPPED = 3  # a whole one: gradients are measured, clipped by their common norm, and taken
# Flags that are added to a part.
TABLED = 8  # the numbers are in the table of coming steps; not with MEASURE
UNRECORDED = 16  # no step is taken while a profiler records operations

# What is not as it was.
OTHER_LIST = 1
OTHER_DICT = 2
OTHER_TENSOR = 3
OTHER_MEMORY = 4
OTHER_COUNTER = 5
OTHER_GRADIENT = 6
SHARED_GRADIENT = 7
OTHER_PAIRS = 8
WRITTEN_BY_OTHERS = 9
OTHER_STEP = 10
BEYOND = 11  # a norm that `look_norm` leaves to others; its sums were written
# All gradients are absent, so there is nothing to do.
NOTHING = 12
NOT_TABLED = 13  # the table has no row for the step
TRACED = 14  # a guard's result is not 0
DENORMAL = 15  # a number of `READS`, which may have to be flushed


def word(address):
    return int64_pointer(address)[0]


def lists_differ(block):
    """Whether a list has other items."""
    for k in range(block[LISTS]):
        record = int64_pointer(block[LISTS + 1] + LIST * k)
        own, count, items = record[0], record[1], int64_pointer(record[2])
        if call(block[PY_LIST_SIZE], own) != count:
            return 1
        for i in range(count):
            if call(block[PY_LIST_GET_ITEM], own, i) != items[i]:
                return 1
    return 0


def number_differs(block, value, number, sign):
    """Read a float object into a number.

    Returns 1 for other classes, for numbers of unusual size and for another sign: a momentum of 0,
    for example, chooses another rule.
    """
    kind = word(value + 8)
    if kind != block[CLASS_OF_FLOATS]:
        if kind != block[CLASS_OF_NUMPY_FLOATS]:
            return 1
    found = float64_pointer(value + block[IN_FLOAT])[0]
    number[0] = found
    positive = found > 0.0 and found < MOST
    negative = found < 0.0 and found > -MOST
    if sign > 0:
        if positive:
            return 0
        return 1
    if sign < 0:
        if negative:
            return 0
        return 1
    if found == 0.0:
        return 0
    return 1


def option_differs(block, value, option):
    """Read the numbers of an entry; return 1 where it is of another class or length."""
    numbers, signs = option[1], int64_pointer(option[2])
    if option[0] == 0:
        return number_differs(block, value, float64_pointer(numbers), signs[0])
    if word(value + 8) != block[CLASS_OF_TUPLES]:
        return 1
    if call(block[PY_TUPLE_SIZE], value) != option[0]:
        return 1
    for k in range(option[0]):
        item = call(block[PY_TUPLE_GET_ITEM], value, k)
        if number_differs(block, item, float64_pointer(numbers + 8 * k), signs[k]):
            return 1
    return 0


def dicts_differ(block):
    """Return 1 if a dictionary was replaced, or has other keys, values or another order; else 0.

    The value of an entry is an address; 0, for any value; or -1 - k, for option k, which is read.
    """
    place, key, value = cell(), cell(), cell()
    for k in range(block[DICTS]):
        record = int64_pointer(block[DICTS + 1] + DICT * k)
        own, count, items = record[0], record[1], int64_pointer(record[2])
        if record[3] != 0:
            if word(record[3]) != own:
                return 1
        if call(block[PY_DICT_SIZE], own) != count:
            return 1
        place[0] = 0
        for i in range(count):
            at = address_of(place)
            more = call(block[PY_DICT_NEXT], own, at, address_of(key), address_of(value))
            if more & 4294967295 == 0:  # an int of C
                return 1
            if key[0] != items[2 * i]:
                return 1
            wanted = items[2 * i + 1]
            if wanted > 0:
                if value[0] != wanted:
                    return 1
            if wanted < 0:
                option = int64_pointer(block[OPTIONS + 1] + OPTION * (-1 - wanted))
                if option_differs(block, value[0], option):
                    return 1
    return 0


def shape_differs(impl, record, dims):
    """Whether a TensorImpl has other sizes or strides than a record."""
    found = int64_pointer(impl + dims)
    count = record[SHAPE]
    if found[0] != count:
        return 1
    for axis in range(1, count + 1):
        if found[axis] != record[SHAPE + axis]:
            return 1
        if found[5 + axis] != record[SHAPE + 5 + axis]:
            return 1
    return 0


def tensor_differs(block, record):
    """What is other than it was in a tensor that the block's owner holds, or 0."""
    own = record[OBJECT]
    if word(own + 8) != record[CLASS]:
        return OTHER_TENSOR
    impl = word(own + block[IN_OBJECT])
    if impl != record[IMPL]:
        return OTHER_TENSOR
    if word(impl + block[IN_IMPL_KEYS]) != record[KEYS]:
        return OTHER_TENSOR
    if word(impl + block[IN_IMPL_FLAGS]) & block[FLAGS_MASK] != record[FLAGS]:
        return OTHER_TENSOR
    if shape_differs(impl, record, block[IN_IMPL_DIMS]):
        return OTHER_TENSOR
    if word(impl + block[IN_IMPL_OFFSET]) != record[OFFSET]:
        return OTHER_TENSOR
    if word(impl + block[IN_IMPL_COUNT]) != record[COUNT]:
        return OTHER_TENSOR
    storage = word(impl + block[IN_IMPL_STORAGE])
    if storage != record[STORAGE]:
        return OTHER_MEMORY
    if word(storage + block[IN_STORAGE_DATA]) != record[DATA]:
        return OTHER_MEMORY
    if word(storage + block[IN_STORAGE_BYTES]) != record[BYTES]:
        return OTHER_MEMORY
    if word(storage + block[IN_STORAGE_DELETER]) != record[DELETER]:
        return OTHER_MEMORY
    if word(storage + block[IN_STORAGE_CONTEXT]) != record[CONTEXT]:
        return OTHER_MEMORY
    counter = word(impl + block[IN_IMPL_COUNTER])
    if counter == 0:
        return OTHER_COUNTER
    record[COUNTER] = counter
    return 0


def is_apart(block, address, needed):
    """Whether memory lies apart from all that is written."""
    bounds, edges = int64_pointer(block[BOUNDS + 1]), block[BOUNDS]
    low, high = 0, edges
    while low < high:
        middle = (low + high) >> 1
        if bounds[middle] <= address:
            low = middle + 1
        else:
            high = middle
    if low & 1:
        return 0
    if low < edges and bounds[low] < address + needed:
        return 0
    return 1


def gradient_of(block, record):
    """The TensorImpl that a parameter has as its gradient, or 0."""
    autograd = word(word(record[OBJECT] + block[IN_OBJECT]) + block[IN_IMPL_AUTOGRAD])
    if autograd == 0:
        return 0
    return word(autograd + block[IN_AUTOGRAD_GRADIENT])


def gradient_in_pair(block, record, number):
    """The TensorImpl of the gradient in a pair, if that is one with the variable, else 0."""
    pair = call(block[PY_LIST_GET_ITEM], block[PAIRS], number)
    if word(pair + 8) != block[CLASS_OF_TUPLES]:
        return 0
    if call(block[PY_TUPLE_SIZE], pair) != 2:
        return 0
    if call(block[PY_TUPLE_GET_ITEM], pair, 1) != record[OBJECT]:
        return 0
    own = call(block[PY_TUPLE_GET_ITEM], pair, 0)
    if word(own + 8) != block[CLASS_OF_GRADIENTS]:
        return 0
    return word(own + block[IN_OBJECT])


def switch(gradient, on):
    """Give the chunks of a variable their elements, or none: kernels then leave it alone."""
    if gradient[IS_ON] != on:
        for span in range(2):
            lengths, full = gradient[SPANS + 3 * span], gradient[SPANS + 3 * span + 1]
            for k in range(gradient[SPANS + 3 * span + 2]):
                int64_pointer(lengths + CHUNK * k)[0] = int64_pointer(full + CHUNK * k)[0] * on
        gradient[IS_ON] = on
    return 0


def find_gradient(block, gradient, number):
    """Find the TensorImpl that is the gradient of a parameter that was looked at, or 0."""
    record = int64_pointer(gradient[OWNER])
    found = 0
    if block[PAIRS] == 0:
        found = gradient_of(block, record)
    else:
        found = gradient_in_pair(block, record, number)
    gradient[FOUND] = found
    prefetch_to_read(found)
    prefetch_to_read(found + 64)
    prefetch_to_read(found + 128)
    return 0


def gradient_differs(block, gradient):
    """What is other than it was in the gradient that `find_gradient` found, or 0."""
    record = int64_pointer(gradient[OWNER])
    found, storage = gradient[FOUND], 0
    if gradient[IS_THERE] == MAY_BE_ABSENT:
        is_absent = 0
        if found == 0 or found == block[NO_GRADIENT]:
            is_absent = 1
        switch(gradient, 1 - is_absent)
        if is_absent:
            return 0
    if found != 0:
        if word(found + block[IN_IMPL_KEYS]) != gradient[GRADIENT_KEYS]:
            return OTHER_GRADIENT
        storage = word(found + block[IN_IMPL_STORAGE])
    if gradient[IS_THERE] == ABSENT:
        if storage != 0:
            return OTHER_GRADIENT
        return 0
    if storage == 0:
        return OTHER_GRADIENT
    if word(found + block[IN_IMPL_FLAGS]) & block[FLAGS_MASK] != gradient[GRADIENT_FLAGS]:
        return OTHER_GRADIENT
    if shape_differs(found, record, block[IN_IMPL_DIMS]):
        return OTHER_GRADIENT
    begin = word(found + block[IN_IMPL_OFFSET]) * gradient[ITEM]
    data = word(storage + block[IN_STORAGE_DATA])
    if data == 0 and gradient[NEEDED] != 0:  # one without elements has no memory
        return OTHER_GRADIENT
    if begin + gradient[NEEDED] > word(storage + block[IN_STORAGE_BYTES]):
        return OTHER_GRADIENT
    if data + begin != gradient[PLACE]:
        if block[HAS_MEASURED]:
            return OTHER_GRADIENT
        if is_apart(block, data + begin, gradient[NEEDED]) == 0:
            return SHARED_GRADIENT
        gradient[PLACE] = data + begin
    cell = int64_pointer(gradient[CELL])
    cell[0] = data + begin
    return 0


def bits_of(watch):
    """What a number that is watched is now."""
    if watch[1] == 8:
        return word(watch[0])
    return int64(uint32_pointer(watch[0])[0])


def column_differs(column, words):
    """Whether others have written to numbers, which versions need not tell."""
    if words[5] == 0:
        return 0
    if words[2] == INT64:
        for i in range(words[1]):
            if int64_pointer(words[0])[i] != words[4]:
                return 1
        return 0
    known = float64_pointer(column + 32)[0]
    for i in range(words[1]):
        if words[2] == FLOAT32:
            if float32_pointer(words[0])[i] != float32(known):
                return 1
        elif float64_pointer(words[0])[i] != known:
            return 1
    return 0


def gradient_record(block, number):
    """Return the record of a gradient."""
    return int64_pointer(block[GRADIENTS + 1] + GRADIENT * number)


def first_that_differs(block, which, begin, end):
    """What is not as it was in the first of these tensors or gradients in which anything is."""
    if which == GRADIENTS:
        for k in range(begin, end + AHEAD):
            if k < end:
                find_gradient(block, gradient_record(block, k), k)
            if k >= begin + AHEAD:
                found = gradient_differs(block, gradient_record(block, k - AHEAD))
                if found != 0:
                    return found
        return 0
    last = block[TENSORS + 1] + TENSOR * (block[TENSORS] - 1)
    for k in range(begin, end):
        record = int64_pointer(block[TENSORS + 1] + TENSOR * k)
        ahead = int64_pointer(min(address_of(record) + AHEAD * TENSOR, last))
        prefetch_to_read(ahead[IMPL] + 64)
        prefetch_to_read(ahead[IMPL] + 128)
        prefetch_to_read(ahead[STORAGE])
        found = tensor_differs(block, record)
        if found != 0:
            return found
    return 0


def look_at_parts(block):
    """Look at one part after the other; several threads do it at once, and call nothing of Python.

    The thread that called them waits here, with the lock of Python.
    """
    ticket = int64_pointer(address_of(block) + 8 * TICKET)
    tensors, gradients = block[TENSORS], block[PARTED]
    before = (tensors + PART - 1) & -PART  # gradients come after the last part of tensors
    begin = PART * take_ticket(ticket)
    while begin < before + gradients:
        which, first, end = TENSORS, begin, tensors
        if begin >= before:
            which, first, end = GRADIENTS, begin - before, gradients
        if first_that_differs(block, which, first, min(first + PART, end)) != 0:
            block[DIFFERS] = 1
        begin = PART * take_ticket(ticket)


def team_differs(block):
    """Whether anything is not as it was among tensors and, if they are parted, gradients."""
    block[TICKET], block[DIFFERS], block[PARTED] = 0, 0, block[GRADIENTS]
    if block[PAIRS] != 0:  # which Python's functions read
        block[PARTED] = 0
    call(block[TEAM], block[TEAM_ROUTINE], address_of(block), block[TEAM_SIZE], 0)
    return block[DIFFERS]


def look(block):
    """What is not as it was; 0 if everything is."""
    if lists_differ(block):
        return OTHER_LIST
    if dicts_differ(block):
        return OTHER_DICT
    if block[PAIRS] != 0:
        if word(block[PAIRS] + 8) != block[CLASS_OF_LISTS]:
            return OTHER_PAIRS
        if call(block[PY_LIST_SIZE], block[PAIRS]) != block[GRADIENTS]:
            return OTHER_PAIRS
    tensors, gradients = block[TENSORS], block[GRADIENTS]  # that are left to this thread
    if block[TEAM] != 0:
        if team_differs(block) == 0:  # else the first is told, whoever found one
            tensors, gradients = 0, block[GRADIENTS] - block[PARTED]
    found = first_that_differs(block, TENSORS, 0, tensors)
    if found != 0:
        return found
    for k in range(block[WATCHED]):
        watch = int64_pointer(block[WATCHED + 1] + WATCH * k)
        if bits_of(watch) != watch[2]:
            return WRITTEN_BY_OTHERS
    for k in range(block[COLUMNS]):
        column = block[COLUMNS + 1] + COLUMN * k
        if column_differs(column, int64_pointer(column)):
            return WRITTEN_BY_OTHERS
    return first_that_differs(block, GRADIENTS, 0, gradients)


def launch_all(block, which):
    """Call kernels, one after the other."""
    for k in range(block[which]):
        launch = int64_pointer(block[which + 1] + LAUNCH * k)
        ticket = int64_pointer(launch[1])
        ticket[0] = 0
        if launch[2] == 0:
            call(launch[0], launch[1])
        else:
            call(launch[2], launch[0], launch[1], launch[3], 0)
    return 0


def next_step(member):
    """Return the number of the step that a member takes."""
    if member[STEP_COUNT] == 0:
        return 1.0
    return load_number(member[STEP_COUNT], member[STEP_KIND]) + 1.0


def set_scalars_of_member(member):
    """Give a member the row of scalars that its program makes for its step count.

    Members with one program and one step count share a row. Returns 1 where a scalar would be an
    error in Python, else 0.
    """
    program = int64_pointer(member[MEMBER_PROGRAM])
    last_step = float64_pointer(address_of(program) + 8 * LAST_STEP)
    step, is_made = next_step(member), 0
    if program[LAST_ROW] != NONE:
        if last_step[0] == step:
            is_made = 1
    if is_made == 0:
        registers, rows = float64_pointer(program[REGISTERS]), int64_pointer(program[ROW_COUNT])
        registers[0] = step
        if compute(program):
            return 1
        if store_rows(program, program[ROWS + 1] + member[ROW_SIZE] * rows[0], 1):
            return 1
        program[LAST_ROW], last_step[0] = rows[0], step
        rows[0] = rows[0] + 1
    row = int64_pointer(member[ROW_CELL])
    row[0] = program[LAST_ROW]
    return 0


def set_scalars_of_members(block):
    """Make the scalars of all members that have a gradient.

    Returns NOTHING if there is none, BEYOND where a scalar would be an error, else 0.
    """
    for k in range(block[PROGRAMS]):
        program = int64_pointer(block[PROGRAMS + 1] + PROGRAM * k)
        if program[ROW_COUNT] != 0:
            program[LAST_ROW] = NONE
            rows = int64_pointer(program[ROW_COUNT])
            rows[0] = 0
    count = 0
    for k in range(block[MEMBERS]):
        if gradient_record(block, k)[IS_ON]:
            count = count + 1
            member = int64_pointer(block[MEMBERS + 1] + MEMBER * k)
            if member[MEMBER_PROGRAM] != 0:  # one without elements has no kernel
                if set_scalars_of_member(member):
                    return BEYOND
    if count == 0:
        return NOTHING
    return 0


def count_steps(block):
    """Add 1 to the step counts of all members that have a gradient."""
    for k in range(block[MEMBERS]):
        member = int64_pointer(block[MEMBERS + 1] + MEMBER * k)
        if gradient_record(block, k)[IS_ON] and member[STEP_COUNT] != 0:
            step = next_step(member)
            if member[STEP_KIND] == INT64:
                whole = int64_pointer(member[STEP_COUNT])
                whole[0] = int64(step)
            elif member[STEP_KIND] == FLOAT32:
                narrow = float32_pointer(member[STEP_COUNT])
                narrow[0] = step
            else:
                wide = float64_pointer(member[STEP_COUNT])
                wide[0] = step


def is_written(block, written):
    """Return whether the step writes a tensor."""
    writers = int64_pointer(written[2])
    for k in range(written[1]):
        if gradient_record(block, writers[k])[IS_ON]:
            return 1
    return written[1] == 0


def write(block):
    """Take the step: kernels, numbers that each parameter has, counters of writes, the count."""
    launch_all(block, RULE_MEASURES)
    for k in range(block[RULE_MEASURED]):
        measured = block[RULE_MEASURED + 1] + MEASURED * k
        call(word(measured), measured)
    launch_all(block, LAUNCHES)
    count_steps(block)
    for k in range(block[COLUMNS]):
        column = int64_pointer(block[COLUMNS + 1] + COLUMN * k)
        number = float64_pointer(block[COLUMNS + 1] + COLUMN * k + 24)[0]
        if column[2] == INT64:
            whole = int64_pointer(column[0])
            for i in range(column[1]):
                whole[i] = column[3]
        elif column[2] == FLOAT32:
            narrow = float32_pointer(column[0])
            for i in range(column[1]):
                narrow[i] = number
        else:
            wide = float64_pointer(column[0])
            for i in range(column[1]):
                wide[i] = number
    for k in range(min(block[COLUMNS], block[WATCHED])):  # the first to be watched are those
        watch = int64_pointer(block[WATCHED + 1] + WATCH * k)
        watch[2] = bits_of(watch)
    for k in range(block[WRITTEN]):
        written = int64_pointer(block[WRITTEN + 1] + WRITE * k)
        if is_written(block, written):
            record = int64_pointer(block[TENSORS + 1] + TENSOR * written[0])
            take_ticket(uint32_pointer(record[COUNTER] + block[IN_COUNTER]))
    block[TAKEN] = block[TAKEN] + 1


def is_on(guard):
    """Return whether the result of a guard is not 0."""
    found = call(guard[0])
    if guard[2]:
        found = word(found)
    return (found & guard[1]) != 0


def is_traced(block, first):
    """Return whether one of the guards is on, from the first that counts."""
    for k in range(first, block[GUARDS]):
        if is_on(int64_pointer(block[GUARDS + 1] + GUARD * k)):
            return 1
    return 0


def is_tabled(block):
    """Return whether the table of coming steps has a row for the next one."""
    if block[STEP_TABLE] == 0:
        return 0
    table = int64_pointer(block[STEP_TABLE])
    row = block[TAKEN] - table[0]
    return row >= 0 and row < table[1]


def load_step(block):
    """Set the numbers of the next step, as the table has them."""
    row = block[TAKEN] - word(block[STEP_TABLE])
    place = block[STEP_TABLE] + TABLE_HEAD + block[STEP_TABLE_ROW] * row
    for k in range(block[STEP_TABLE_SPANS]):
        span = int64_pointer(block[STEP_TABLE_SPANS + 1] + SPAN * k)
        registers, numbers = int64_pointer(span[0]), int64_pointer(place)
        for i in range(span[1]):
            registers[i] = numbers[i]
        place = place + 8 * span[1]
    following = int64_pointer(place)
    for k in range(block[COLUMNS]):
        column = int64_pointer(block[COLUMNS + 1] + COLUMN * k)
        column[3] = following[k]
    return 0


def read_numbers(block):
    """Read the numbers of tensors into registers; return 1 where one is denormal, else 0."""
    for k in range(block[READS]):
        read = int64_pointer(block[READS + 1] + READ * k)
        number = load_number(read[0], read[1])
        if number != 0.0 and _f_absolute(number) < TINY_FLOAT32:
            return 1
        register = float64_pointer(read[2])
        register[0] = number
        if read[3]:
            register[0] = float64(float32(number))
    return 0


def step(block, pairs, taken, asked):
    """Look; if everything is as it was, and no other step came between, write, or measure."""
    part, first_guard = asked & 7, 1
    if asked & UNRECORDED:
        first_guard = 0
    if is_traced(block, first_guard):
        return TRACED
    if taken != ANY_STEP and block[TAKEN] != taken:
        return OTHER_STEP
    if asked & TABLED and is_tabled(block) == 0:
        return NOT_TABLED
    block[PAIRS] = pairs
    block[HAS_MEASURED] = 0
    if part == UPDATE:
        block[HAS_MEASURED] = 1
    found = look(block)
    if found != 0:
        return found
    if asked & TABLED:
        load_step(block)
        if read_numbers(block):
            return DENORMAL
    if block[MEMBERS] != 0 and part != MEASURE:
        found = set_scalars_of_members(block)
        if found != 0:
            return found
    if part == MEASURE or part == CLIPPED:  # noqa: SIM109
        launch_all(block, MEASURES)
    if part == CLIPPED:
        clipping = int64_pointer(block[CLIPPING])
        call(clipping[CLIPPING_ROUTINE], block[CLIPPING])
        if clipping[CLIPPING_IS_USUAL] == 0:
            return BEYOND
        clipping[CLIPPING_TAKEN] = block[TAKEN] + 1
    if part != MEASURE:
        if block[MEMBERS] == 0:
            for k in range(block[PROGRAMS]):
                if run(int64_pointer(block[PROGRAMS + 1] + PROGRAM * k)):
                    return BEYOND
        write(block)
    return 0
