"""Native replay of a step. Names in capitals are indices of words in `block` or in a record.

The functions here are compiled (`compiler.py`). `guard_table.py` fills the *block*, an array of
64-bit words, after a step that was planned or rebound. If anything differs from the block, `step`
writes nothing and returns a constant of the section "Differences".

Most parts of a step are one call of `step`, with the interpreter lock held, so that nothing runs
between checks and writes. With PREPARED a part is three calls: `step` with the lock, which checks
all guards and computes scalars; `run_kernels` without the lock; and `step` with FINISH and the
lock, which checks nothing and writes step counts, columns and version counters. Other threads of
Python may run during `run_kernels`.

All memory that is read is alive. The owner of the block holds the lists, dictionaries, tensors and
types whose addresses are in the block. Other addresses are read from those objects in the same
call: from a tensor its TensorImpl, from a TensorImpl its storage, version counter and autograd
metadata, from autograd metadata the gradient. No other stored address is dereferenced; some are
only prefetched. With PREPARED, the kernels use addresses that the first call has read, although
other threads may replace gradients and storages. The caller (`optim/replay.py`) therefore holds a
reference to the memory of each gradient, and to the storage of each written tensor. A TensorImpl
may be replaced, too: FINISH reads the addresses of version counters again (`find_counters`).
"""

# Code for `compiler`, which finds its types itself.
# pyright: basic, reportUndefinedVariable=false
# ruff: noqa: F821, SIM102
from __future__ import annotations

from thalweg._engines.cpu.scalar_program import FLOAT32 as FLOAT32
from thalweg._engines.cpu.scalar_program import FLOAT64 as FLOAT64
from thalweg._engines.cpu.scalar_program import INT64 as INT64

# Words of a block. An array of records has two words: its length, and the address of the first
# record.
REPLAY_COUNT = 0
LISTS = 2
DICTS = 4
TENSORS = 6
GRADIENTS = 8
LAUNCHES = 10
COLUMNS = 12
WRITTEN_TENSORS = 14  # tensors whose version counters are incremented
BOUNDS = 16  # begin and end addresses of written memory, in ascending order
PY_LIST_SIZE = 18
PY_LIST_GET_ITEM = 19
PY_DICT_SIZE = 20
PY_DICT_NEXT = 21
# Offsets, in the order of `torch_layout_probe.Layout`.
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
PAIRS = 38  # a list of gradients and variables, or 0 for the gradients of the parameters
WATCHED_NUMBERS = 39  # numbers that only steps may write
CLASS_OF_LISTS = 41
CLASS_OF_TUPLES = 42
CLASS_OF_GRADIENTS = 43
PY_TUPLE_SIZE = 44
PY_TUPLE_GET_ITEM = 45
MEASURES = 46  # launches that compute the norms of gradients
NEEDS_MEASURED_ADDRESSES = 48  # 1 if gradients must have the addresses that were measured
CLIPPING = 49  # the block of `replay_global_norm`
PROGRAMS = 50  # programs that compute scalars of kernels: see `scalar_program.py`
RULE_MEASURES = 52  # launches that compute the measures of rules, and scalars from them
PART = 54  # the part of a step that runs
STATUS = 55  # out: OUT_OF_RANGE if `run_kernels` has not updated because of a norm, or 0
TEAM = 56  # the function that calls a function on several threads; 0 for one thread
TEAM_ROUTINE = 57  # the address of the compiled `check_parts`
TEAM_SIZE = 58
TEAM_GRADIENTS = 59  # the number of gradients that the threads check: all, or none
NEXT_PART = 60  # the index of the next part
TEAM_DIFFERS = 61  # out: 1 if a thread found a difference
OPTIONS = 62  # entries of dictionaries whose numbers are read at every step
CLASS_OF_FLOATS = 64
CLASS_OF_NUMPY_FLOATS = 65
IN_FLOAT = 66  # the offset of the number in an object of these classes
MEMBERS = 67  # variables with scalars for their own step count; if none, `PROGRAMS` run once
UNDEFINED_IMPL = 69  # the TensorImpl of an undefined tensor
PY_LONG_AS_LONG = 70
PY_LONG_FROM_LONG = 71
NONE_OBJECT = 72  # the address of None
STEP_TABLE = 73  # the address of the table of coming steps, or 0
STEP_TABLE_SPANS = 74  # registers that receive a row; its last numbers are for the columns
STEP_TABLE_ROW_BYTES = 76
GUARDS = 77  # functions of torch that return 0 in ordinary steps; the first is the profiler's
READS = 79  # scalars that are read from tensors and not from the table
PASS = 81  # launches of the pass that runs next
COUNTED_MEMBERS = 83  # the first members, one for each gradient; further ones are of passes
REGISTER_COLUMNS = 84  # columns whose numbers programs compute
SPREADS = 86  # scalars that are copied to the rows of kernels, reductions and their programs
IN_DICT_VERSION = 88  # the offset of the version in a dictionary, or 0 if there is none
BLOCK = 89

PREFETCH_DISTANCE = 8  # tensors between a prefetch and its use
RECORDS_PER_PART = 64
# From this number of tensors on, the threads of kernels check guards, too, because each check waits
# for memory.
TEAM_MIN_TENSORS = 512

# Sizes of records in bytes, and the words of small records.
LIST_BYTES = 24  # the list, the number of items, the address of their table
# The dictionary, the number of entries, their table, the address of the owner's pointer to the
# dictionary or 0, the version at which the entries were equal or 0, and 1 if there are options.
DICT_BYTES = 48
TENSOR_BYTES = 192
GRADIENT_BYTES = 128
# The kernel, its argument, the function that calls it on several threads or 0, their number.
LAUNCH_BYTES = 32
# The address of numbers, their count and format, the number that the step writes, the number before
# the step, and 1 if that number is compared.
COLUMN_BYTES = 48
WATCH_BYTES = 24  # the address of a number, its size in bytes, its bits
# The length of a tuple, or 0 for a single number; the addresses of the numbers and of their signs.
OPTION_BYTES = 24
MEMBER_BYTES = 48
REGISTER_COLUMN_BYTES = 16  # the address of a register, and the index of a column
STATE_NUMBER_BYTES = 24  # the address of a number, its format, and the value after the step
# The index of a tensor, the number of members that write it (0 if each step does), and the address
# of their indices.
WRITE_BYTES = 24
# The function, a mask for its result, and 1 if the result is an address of the bits.
GUARD_BYTES = 24
# Bytes before the first row: the number of steps before the first row, and the number of rows.
TABLE_HEAD_BYTES = 16
# The address of a number, its format, the register that receives it, and 1 to round to float32.
READ_BYTES = 32
SPAN_BYTES = 16  # registers of a program: the address of the first one, and their number
# The number of variables, the address of the first row of each, the address of the index of each
# variable's row from there on, the bytes of a row, the number of columns, and their address.
SPREAD_BYTES = 48
# The column of the source; the first address, and the bytes from one variable to the next; 1 to
# round to float32, and 1 to store float32.
SPREAD_COLUMN_BYTES = 40
CHUNK_BYTES = 32  # a row of a work table; its last word is the number of elements

# Words of the block of `replay_global_norm`.
CLIPPING_ROUTINE = 0
CLIPPING_HAS_FACTOR = 1
CLIPPING_STEP = 2

# Words of a tensor's record.
OBJECT = 0
CLASS = 1
IMPL = 2
STORAGE = 3
DATA = 4
BYTES = 5
DELETER = 6
CONTEXT = 7
SHAPE = 8  # the number of dimensions, five sizes, five strides
OFFSET = 19
COUNT = 20
FLAGS = 21
KEYS = 22
COUNTER = 23  # out: the address of the version counter

# Words of a gradient's record.
OWNER = 0  # the address of the parameter's record
PRESENCE = 1
EXTENT = 2  # bytes of all elements
SAFE_ADDRESS = 3  # the last address that did not overlap with written memory
CELL = 4  # the cell from which a kernel reads the gradient's address
ELEMENT_BYTES = 5
GRADIENT_FLAGS = 6
GRADIENT_KEYS = 7
IS_ENABLED = 8  # 0 if the chunks of the variable have length 0
CURRENT_IMPL = 9  # the TensorImpl of the present gradient
# Twice: the address of the lengths of the variable's chunks, the address of a copy of the full
# lengths, and their number.
SPANS = 10

# Values of PRESENCE.
ABSENT = 0  # the parameter has no gradient
PRESENT = 1
MAY_BE_ABSENT = 2  # a parameter without a gradient is left out of the step

# Words of a member's record.
STEP_COUNT = 0  # the address of the step count, or 0
STEP_KIND = 1
MEMBER_PROGRAM = 2  # the record of the program that computes its scalars
ROW_CELL = 3  # the cell from which a kernel reads the index of the row of scalars
ROW_BYTES = 4
NUMBER_RECORDS = 5  # the records of the numbers that the step replaces

MAX_OPTION = 1e30  # the largest magnitude of an option; a planned step reports larger ones

ANY_STEP = -1  # in place of an expected REPLAY_COUNT

# Parts of a step.
FULL_STEP = 0
MEASURE = 1  # compute the norms of gradients; write nothing
UPDATE = 2  # update with the gradients that were measured
CLIPPED = 3  # the complete step: measure gradients, clip by their global norm, update
RUN_PASS = 4  # compute scalars and run the kernels of a pass; write only memory of the plan
FINISH = 5  # without checks, the writes that follow the kernels of a PREPARED part
# Flags that are added to a part.
TABLED = 8  # read scalars from the table of coming steps; not with MEASURE
UNRECORDED = 16  # do not replay while a profiler records operations
# Stop before the kernels. The caller then calls `run_kernels`, which needs no interpreter lock, and
# the part FINISH.
PREPARED = 32

# Differences.
OTHER_LIST = 1
OTHER_DICT = 2
OTHER_TENSOR = 3
OTHER_MEMORY = 4
OTHER_COUNTER = 5
OTHER_GRADIENT = 6
SHARED_GRADIENT = 7
OTHER_PAIRS = 8
FOREIGN_WRITE = 9  # a watched number has a value that no step wrote
OTHER_STEP = 10
# The norm or a scalar is beyond the numbers that native code computes like Python; the sums of
# squares may have been written.
OUT_OF_RANGE = 11
ALL_GRADIENTS_ABSENT = 12
NOT_TABLED = 13  # the table has no row for the step
TRACING = 14  # a guard's result is not 0
DENORMAL = 15  # a number of `READS` is denormal, and may have to be flushed


def word(address):
    """Return the 64-bit word at an address."""
    return int64_pointer(address)[0]


def lists_differ(block):
    """Return 1 if the items of a list in LISTS differ from the recorded addresses, else 0."""
    for k in range(block[LISTS]):
        record = int64_pointer(block[LISTS + 1] + LIST_BYTES * k)
        list_address, count, items = record[0], record[1], int64_pointer(record[2])
        if call(block[PY_LIST_SIZE], list_address) != count:
            return 1
        for i in range(count):
            # A borrowed reference, which needs no release.
            if call(block[PY_LIST_GET_ITEM], list_address, i) != items[i]:
                return 1
    return 0


def number_differs(block, py_object, number, sign):
    """Copy the value of a float object to the pointer `number`, and check class, sign and size.

    Return 1 if the object is neither a float nor a NumPy float64, if its sign is not `sign` (-1, 0
    or 1), or if its magnitude is not below MAX_OPTION; else 0. Signs are checked because, for
    example, a momentum of 0 selects another rule.
    """
    # The class of an object follows its reference count.
    cls = word(py_object + 8)
    if cls != block[CLASS_OF_FLOATS]:
        if cls != block[CLASS_OF_NUMPY_FLOATS]:
            return 1
    new = float64_pointer(py_object + block[IN_FLOAT])[0]
    number[0] = new
    positive = new > 0.0 and new < MAX_OPTION
    negative = new < 0.0 and new > -MAX_OPTION
    if sign > 0:
        if positive:
            return 0
        return 1
    if sign < 0:
        if negative:
            return 0
        return 1
    if new == 0.0:
        return 0
    return 1


def option_differs(block, py_object, option):
    """Copy the numbers of an option, a float or a tuple of floats, to the addresses in `option`.

    Return 1 if a `number_differs`, or if the option is not a tuple of the recorded length; else 0.

    Args:
        py_object: The address of the option.
        option: The option's record of OPTION_BYTES, with the addresses of numbers and signs.
    """
    numbers, signs = option[1], int64_pointer(option[2])
    if option[0] == 0:
        return number_differs(block, py_object, float64_pointer(numbers), signs[0])
    if word(py_object + 8) != block[CLASS_OF_TUPLES]:
        return 1
    if call(block[PY_TUPLE_SIZE], py_object) != option[0]:
        return 1
    for k in range(option[0]):
        number_object = call(block[PY_TUPLE_GET_ITEM], py_object, k)
        if number_differs(block, number_object, float64_pointer(numbers + 8 * k), signs[k]):
            return 1
    return 0


def entries_differ(block, record):
    """Compare the entries of a dictionary with its record, and copy the numbers of options.

    Return 1 if number, order or identity of keys or values differ, else 0. A value is recorded as
    its address; as 0 if any value is accepted; or as -1 - k if `option_differs` compares it with
    record k of OPTIONS.
    """
    position, key, value = cell(), cell(), cell()
    dict_address, count, items = record[0], record[1], int64_pointer(record[2])
    if call(block[PY_DICT_SIZE], dict_address) != count:
        return 1
    position[0] = 0
    for i in range(count):
        position_address = address_of(position)
        key_address, value_address = address_of(key), address_of(value)
        has_entry = call(
            block[PY_DICT_NEXT], dict_address, position_address, key_address, value_address
        )
        # The function returns an int of C, so only 32 bits count.
        if has_entry & 4294967295 == 0:
            return 1
        if key[0] != items[2 * i]:
            return 1
        expected = items[2 * i + 1]
        if expected > 0:
            if value[0] != expected:
                return 1
        if expected < 0:
            option = int64_pointer(block[OPTIONS + 1] + OPTION_BYTES * (-1 - expected))
            if option_differs(block, value[0], option):
                return 1
    return 0


def dicts_differ(block):
    """Compare all dictionaries of DICTS with their records, and copy the numbers of options.

    Return 1 if an owner has another dictionary, or if `entries_differ`; else 0. Python gives a
    dictionary a new, unique version at each change. While the version is unchanged, entries are not
    compared again, unless the dictionary has options.
    """
    last_record = block[DICTS + 1] + DICT_BYTES * (block[DICTS] - 1)
    for k in range(block[DICTS]):
        record = int64_pointer(block[DICTS + 1] + DICT_BYTES * k)
        ahead = min(address_of(record) + PREFETCH_DISTANCE * DICT_BYTES, last_record)
        prefetch_to_read(word(ahead))
        if record[3] != 0:
            if word(record[3]) != record[0]:
                return 1
        version = 0
        if block[IN_DICT_VERSION] != 0:
            version = word(record[0] + block[IN_DICT_VERSION])
        if version == 0 or version != record[4]:
            if entries_differ(block, record):
                return 1
            if record[5] == 0:
                record[4] = version
    return 0


def shape_differs(impl, record, dims):
    """Return 1 if dimensions, sizes or strides of a TensorImpl differ from a record; else 0.

    `impl` is the address of the TensorImpl, `dims` the offset of its number of dimensions.
    """
    sizes = int64_pointer(impl + dims)
    count = record[SHAPE]
    if sizes[0] != count:
        return 1
    for axis in range(1, count + 1):
        if sizes[axis] != record[SHAPE + axis]:
            return 1
        if sizes[5 + axis] != record[SHAPE + 5 + axis]:
            return 1
    return 0


def storage_differs(block, record, storage):
    """Return 1 if the StorageImpl at `storage` differs from the record of a tensor; else 0.

    Address, data, size, deleter and context are compared.
    """
    if storage != record[STORAGE]:
        return 1
    if word(storage + block[IN_STORAGE_DATA]) != record[DATA]:
        return 1
    if word(storage + block[IN_STORAGE_BYTES]) != record[BYTES]:
        return 1
    if word(storage + block[IN_STORAGE_DELETER]) != record[DELETER]:
        return 1
    return word(storage + block[IN_STORAGE_CONTEXT]) != record[CONTEXT]


def prefetch_elements(address):
    """Prefetch the first 256 bytes of a tensor for the kernel that runs after all checks.

    The processor's own prefetcher starts only inside a larger tensor.
    """
    for line in range(4):
        prefetch_to_read(address + 64 * line)


def tensor_differs(block, record):
    """Compare a tensor with its record; return 0 or a constant for the first difference.

    OTHER_TENSOR: class, TensorImpl, dispatch keys, flags, sizes, strides or offset differ.
    OTHER_MEMORY: the storage differs. OTHER_COUNTER: there is no version counter. Without a
    difference, the record gets the present address of the version counter.
    """
    tensor = record[OBJECT]
    if word(tensor + 8) != record[CLASS]:
        return OTHER_TENSOR
    impl = word(tensor + block[IN_OBJECT])
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
    if storage_differs(block, record, word(impl + block[IN_IMPL_STORAGE])):
        return OTHER_MEMORY
    counter = word(impl + block[IN_IMPL_COUNTER])
    if counter == 0:
        return OTHER_COUNTER
    prefetch_elements(record[DATA])
    record[COUNTER] = counter
    return 0


def is_apart(block, address, extent):
    """Return 1 if the `extent` bytes at `address` are outside of all ranges in BOUNDS; else 0.

    BOUNDS has begin and end of each memory range that the step writes, in ascending order.
    """
    bounds, edges = int64_pointer(block[BOUNDS + 1]), block[BOUNDS]
    low, high = 0, edges
    while low < high:
        middle = (low + high) >> 1
        if bounds[middle] <= address:
            low = middle + 1
        else:
            high = middle
    # After an odd number of edges, the address is inside of a range.
    if low & 1:
        return 0
    if low < edges and bounds[low] < address + extent:
        return 0
    return 1


def gradient_of(block, record):
    """Return the address of the TensorImpl of a parameter's `grad`, or 0 if there is none.

    `record` is the record of the parameter.
    """
    autograd = word(word(record[OBJECT] + block[IN_OBJECT]) + block[IN_IMPL_AUTOGRAD])
    if autograd == 0:
        return 0
    return word(autograd + block[IN_AUTOGRAD_GRADIENT])


def gradient_in_pair(block, record, number):
    """Return the address of the TensorImpl of the gradient in item `number` of PAIRS, or 0.

    Return 0 unless the item is a tuple (plain tensor or None, variable of `record`). For None,
    return UNDEFINED_IMPL of the block.
    """
    pair = call(block[PY_LIST_GET_ITEM], block[PAIRS], number)
    if word(pair + 8) != block[CLASS_OF_TUPLES]:
        return 0
    if call(block[PY_TUPLE_SIZE], pair) != 2:
        return 0
    if call(block[PY_TUPLE_GET_ITEM], pair, 1) != record[OBJECT]:
        return 0
    grad_object = call(block[PY_TUPLE_GET_ITEM], pair, 0)
    if grad_object == block[NONE_OBJECT]:
        return block[UNDEFINED_IMPL]
    if word(grad_object + 8) != block[CLASS_OF_GRADIENTS]:
        return 0
    return word(grad_object + block[IN_OBJECT])


def set_enabled(gradient, enabled):
    """Make kernels update a variable if `enabled` is 1, or skip it if 0; return 0.

    Kernels skip a variable whose chunks (ranges of elements) have length 0. If the record's
    IS_ENABLED differs from `enabled`, change IS_ENABLED, and zero or restore the lengths.
    """
    if gradient[IS_ENABLED] != enabled:
        for span in range(2):
            lengths, full = gradient[SPANS + 3 * span], gradient[SPANS + 3 * span + 1]
            for k in range(gradient[SPANS + 3 * span + 2]):
                int64_pointer(lengths + CHUNK_BYTES * k)[0] = (
                    int64_pointer(full + CHUNK_BYTES * k)[0] * enabled
                )
        gradient[IS_ENABLED] = enabled
    return 0


def find_gradient(block, gradient, number):
    """Store the address of the TensorImpl of a gradient, or 0, in the gradient's record; return 0.

    If the step has PAIRS, the gradient is read from item `number`, else from the parameter. The
    TensorImpl is prefetched.
    """
    record = int64_pointer(gradient[OWNER])
    grad = 0
    if block[PAIRS] == 0:
        grad = gradient_of(block, record)
    else:
        grad = gradient_in_pair(block, record, number)
    gradient[CURRENT_IMPL] = grad
    prefetch_to_read(grad)
    prefetch_to_read(grad + 64)
    prefetch_to_read(grad + 128)
    return 0


def memory_differs(block, gradient, grad, storage):
    """Check the memory of a gradient, and store the address of the memory for the kernel.

    Return OTHER_GRADIENT if the storage is too small, or if NEEDS_MEASURED_ADDRESSES is set and the
    address has changed. Return SHARED_GRADIENT if the step writes a part of the memory. Else return
    0, and store the address in the record and for the kernel.

    Args:
        gradient: The record of the gradient.
        grad, storage: The addresses of the gradient's TensorImpl and StorageImpl.
    """
    begin = word(grad + block[IN_IMPL_OFFSET]) * gradient[ELEMENT_BYTES]
    data = word(storage + block[IN_STORAGE_DATA])
    # An empty gradient has no memory.
    if data == 0 and gradient[EXTENT] != 0:
        return OTHER_GRADIENT
    if begin + gradient[EXTENT] > word(storage + block[IN_STORAGE_BYTES]):
        return OTHER_GRADIENT
    if data + begin != gradient[SAFE_ADDRESS]:
        if block[NEEDS_MEASURED_ADDRESSES]:
            return OTHER_GRADIENT
        if is_apart(block, data + begin, gradient[EXTENT]) == 0:
            return SHARED_GRADIENT
        gradient[SAFE_ADDRESS] = data + begin
    cell = int64_pointer(gradient[CELL])
    cell[0] = data + begin
    prefetch_elements(data + begin)
    return 0


def gradient_differs(block, gradient):
    """Compare the gradient found by `find_gradient` with its record.

    Return 0, OTHER_GRADIENT or SHARED_GRADIENT. If the record has MAY_BE_ABSENT, a missing gradient
    is not a difference: kernels skip the variable until it has a gradient again.
    """
    record = int64_pointer(gradient[OWNER])
    grad, storage = gradient[CURRENT_IMPL], 0
    if grad == 0 and block[PAIRS] != 0:
        return OTHER_GRADIENT
    if gradient[PRESENCE] == MAY_BE_ABSENT:
        is_absent = 0
        if grad == 0 or grad == block[UNDEFINED_IMPL]:
            is_absent = 1
        set_enabled(gradient, 1 - is_absent)
        if is_absent:
            return 0
    if grad != 0:
        if word(grad + block[IN_IMPL_KEYS]) != gradient[GRADIENT_KEYS]:
            return OTHER_GRADIENT
        storage = word(grad + block[IN_IMPL_STORAGE])
    if gradient[PRESENCE] == ABSENT:
        if storage != 0:
            return OTHER_GRADIENT
        return 0
    if storage == 0:
        return OTHER_GRADIENT
    if word(grad + block[IN_IMPL_FLAGS]) & block[FLAGS_MASK] != gradient[GRADIENT_FLAGS]:
        return OTHER_GRADIENT
    if shape_differs(grad, record, block[IN_IMPL_DIMS]):
        return OTHER_GRADIENT
    return memory_differs(block, gradient, grad, storage)


def bits_of(watch):
    """Return the present bits of a watched number of 4 or 8 bytes."""
    if watch[1] == 8:
        return word(watch[0])
    return int64(uint32_pointer(watch[0])[0])


def column_differs(column, words):
    """Return 1 if an element of a column is not the number that a step wrote last; else 0.

    A column is an array whose elements a step sets to one number. Return 0 for a column without an
    expected number. Version counters alone do not detect all writes.

    Args:
        column: The address of the column's record.
        words: A pointer to this record.
    """
    if words[5] == 0:
        return 0
    if words[2] == INT64:
        for i in range(words[1]):
            if int64_pointer(words[0])[i] != words[4]:
                return 1
        return 0
    expected = float64_pointer(column + 32)[0]
    for i in range(words[1]):
        if words[2] == FLOAT32:
            if float32_pointer(words[0])[i] != float32(expected):
                return 1
        elif float64_pointer(words[0])[i] != expected:
            return 1
    return 0


def gradient_record(block, number):
    """Return a pointer to the record of the gradient with an index."""
    return int64_pointer(block[GRADIENTS + 1] + GRADIENT_BYTES * number)


def first_that_differs(block, table, begin, end):
    """Compare tensors or gradients with their records, until one differs.

    Return 0, or the constant of the first difference, as OTHER_TENSOR or OTHER_GRADIENT.

    Args:
        table: TENSORS or GRADIENTS.
        begin, end: The first index, and the index after the last one.
    """
    if table == GRADIENTS:
        # A TensorImpl is read several iterations after its prefetch.
        for k in range(begin, end + PREFETCH_DISTANCE):
            if k < end:
                find_gradient(block, gradient_record(block, k), k)
            if k >= begin + PREFETCH_DISTANCE:
                difference = gradient_differs(block, gradient_record(block, k - PREFETCH_DISTANCE))
                if difference != 0:
                    return difference
        return 0
    last_record = block[TENSORS + 1] + TENSOR_BYTES * (block[TENSORS] - 1)
    for k in range(begin, end):
        record = int64_pointer(block[TENSORS + 1] + TENSOR_BYTES * k)
        ahead = int64_pointer(
            min(address_of(record) + PREFETCH_DISTANCE * TENSOR_BYTES, last_record)
        )
        prefetch_to_read(ahead[IMPL] + 64)
        prefetch_to_read(ahead[IMPL] + 128)
        prefetch_to_read(ahead[STORAGE])
        difference = tensor_differs(block, record)
        if difference != 0:
            return difference
    return 0


def check_parts(block):
    """Compare tensors and gradients with their records; set TEAM_DIFFERS to 1 if one differs.

    Several threads call this function at once; each takes RECORDS_PER_PART records at a time until
    none is left. The function calls no function of Python: the thread that waits for the others
    holds the interpreter lock.
    """
    ticket = int64_pointer(address_of(block) + 8 * NEXT_PART)
    tensors, gradients = block[TENSORS], block[TEAM_GRADIENTS]
    # Gradients come after the last part of tensors.
    first_gradient = (tensors + RECORDS_PER_PART - 1) & -RECORDS_PER_PART
    begin = RECORDS_PER_PART * take_ticket(ticket)
    while begin < first_gradient + gradients:
        table, first, end = TENSORS, begin, tensors
        if begin >= first_gradient:
            table, first, end = GRADIENTS, begin - first_gradient, gradients
        if first_that_differs(block, table, first, min(first + RECORDS_PER_PART, end)) != 0:
            block[TEAM_DIFFERS] = 1
        begin = RECORDS_PER_PART * take_ticket(ticket)


def team_differs(block):
    """Run `check_parts` on several threads; return 1 if a tensor or gradient differs, else 0.

    The caller checks gradients in PAIRS, which need functions of Python. TEAM_GRADIENTS is 0 if the
    step has PAIRS, else the number of gradients.
    """
    block[NEXT_PART], block[TEAM_DIFFERS], block[TEAM_GRADIENTS] = 0, 0, block[GRADIENTS]
    # Pairs are read by functions of Python, so one thread checks their gradients.
    if block[PAIRS] != 0:
        block[TEAM_GRADIENTS] = 0
    call(block[TEAM], block[TEAM_ROUTINE], address_of(block), block[TEAM_SIZE], 0)
    return block[TEAM_DIFFERS]


def pairs_differ(block):
    """Return 0 if PAIRS is 0, or a list with one item for each gradient; else 1."""
    if block[PAIRS] == 0:
        return 0
    if word(block[PAIRS] + 8) != block[CLASS_OF_LISTS]:
        return 1
    return call(block[PY_LIST_SIZE], block[PAIRS]) != block[GRADIENTS]


def numbers_differ(block):
    """Return 1 if other code has written to a watched number or a column, else 0.

    The numbers are compared with their values after the last step.
    """
    for k in range(block[WATCHED_NUMBERS]):
        watch = int64_pointer(block[WATCHED_NUMBERS + 1] + WATCH_BYTES * k)
        if bits_of(watch) != watch[2]:
            return 1
    for k in range(block[COLUMNS]):
        column = block[COLUMNS + 1] + COLUMN_BYTES * k
        if column_differs(column, int64_pointer(column)):
            return 1
    return 0


def check_guards(block):
    """Compare all recorded objects with their records, until one differs.

    Return 0, or the first difference, a constant of the section "Differences". Present numbers of
    options, and addresses of gradients and version counters, are stored for the kernels.
    """
    if lists_differ(block):
        return OTHER_LIST
    if dicts_differ(block):
        return OTHER_DICT
    if pairs_differ(block):
        return OTHER_PAIRS
    tensors, gradients = block[TENSORS], block[GRADIENTS]
    if block[TEAM] != 0:
        # After a difference, this thread checks everything again, to return the first difference.
        if team_differs(block) == 0:
            tensors, gradients = 0, block[GRADIENTS] - block[TEAM_GRADIENTS]
    difference = first_that_differs(block, TENSORS, 0, tensors)
    if difference != 0:
        return difference
    if numbers_differ(block):
        return FOREIGN_WRITE
    return first_that_differs(block, GRADIENTS, 0, gradients)


def launch_all(block, table):
    """Run a table of kernels in order, each on the recorded number of threads; return 0.

    `table` is an index in the block: of the number of launches, followed by the table's address.
    """
    for k in range(block[table]):
        launch = int64_pointer(block[table + 1] + LAUNCH_BYTES * k)
        # Word 0 of an argument counts the slices that threads have taken.
        ticket = int64_pointer(launch[1])
        ticket[0] = 0
        if launch[2] == 0:
            call(launch[0], launch[1])
        else:
            call(launch[2], launch[0], launch[1], launch[3], 0)
    return 0


def next_step(member):
    """Return as float64 1 plus the step count of a member, a variable that counts its own steps.

    Without a stored count the result is 1.
    """
    if member[STEP_COUNT] == 0:
        return 1.0
    return load_number(member[STEP_COUNT], member[STEP_KIND]) + 1.0


def load_state_numbers(program, member):
    """Copy a variable's state numbers (scalars of the optimizer state) to registers of `program`.

    The first number is copied to register 1. Return 1 if a register has changed, else 0.
    """
    registers, differs = float64_pointer(program[REGISTERS]), 0
    for k in range(program[STATE_NUMBERS]):
        record = int64_pointer(member[NUMBER_RECORDS] + STATE_NUMBER_BYTES * k)
        number = load_number(record[0], record[1])
        if registers[1 + k] != number:
            differs = 1
        registers[1 + k] = number
    return differs


def follow_state_numbers(program, member):
    """Copy the new state numbers from a program's registers to a member's records; return 0.

    `write_state_numbers` later writes the records to the state.
    """
    registers, outputs = (
        float64_pointer(program[REGISTERS]),
        int64_pointer(program[STATE_NUMBERS + 1]),
    )
    for k in range(program[STATE_NUMBERS]):
        after = float64_pointer(member[NUMBER_RECORDS] + STATE_NUMBER_BYTES * k + 16)
        after[0] = registers[outputs[k]]
    return 0


def write_state_numbers(member):
    """Write the new numbers in a member's records to its state, if the member has a program."""
    if member[MEMBER_PROGRAM] != 0:
        for k in range(word(member[MEMBER_PROGRAM] + 8 * STATE_NUMBERS)):
            first = member[NUMBER_RECORDS] + STATE_NUMBER_BYTES * k
            record, after = int64_pointer(first), float64_pointer(first + 16)
            if record[1] == FLOAT32:
                float32_number = float32_pointer(record[0])
                float32_number[0] = after[0]
            else:
                float64_number = float64_pointer(record[0])
                float64_number[0] = after[0]


def set_scalars_of_member(member):
    """Set the index of the row of scalars that the kernel of a member reads.

    A member is a variable that counts its own steps. A scalar program computes the row. If the
    program's last row has an equal step number and equal state numbers, that row is used. Return 1
    if Python would raise an error, else 0.
    """
    program = int64_pointer(member[MEMBER_PROGRAM])
    last_step = float64_pointer(address_of(program) + 8 * LAST_STEP)
    step, has_row = next_step(member), 0
    differs = load_state_numbers(program, member)
    if program[LAST_ROW] != NONE:
        if last_step[0] == step and differs == 0:
            has_row = 1
    if has_row == 0:
        registers, rows = float64_pointer(program[REGISTERS]), int64_pointer(program[ROW_COUNT])
        registers[0] = step
        if compute(program):
            return 1
        if store_rows(program, program[ROWS + 1] + member[ROW_BYTES] * rows[0], 1):
            return 1
        program[LAST_ROW], last_step[0] = rows[0], step
        rows[0] = rows[0] + 1
    follow_state_numbers(program, member)
    row = int64_pointer(member[ROW_CELL])
    row[0] = program[LAST_ROW]
    return 0


def set_scalars_of_members(block):
    """Compute the scalars of all members that have a gradient and elements.

    A member is a variable with its own step count, for the update or for a pass. Rows of the last
    step are discarded; members with equal inputs share a new row. Return ALL_GRADIENTS_ABSENT if no
    member has a gradient. Return OUT_OF_RANGE, with some rows written, if Python would raise an
    error. Otherwise return 0.
    """
    for k in range(block[MEMBERS]):
        member = int64_pointer(block[MEMBERS + 1] + MEMBER_BYTES * k)
        if member[MEMBER_PROGRAM] != 0:
            program = int64_pointer(member[MEMBER_PROGRAM])
            program[LAST_ROW] = NONE
            rows = int64_pointer(program[ROW_COUNT])
            rows[0] = 0
    count, owner = 0, 0
    # Members of passes follow, with the gradients of the counted members in the same order.
    for k in range(block[MEMBERS]):
        if owner == block[COUNTED_MEMBERS]:
            owner = 0
        if gradient_record(block, owner)[IS_ENABLED]:
            count = count + 1
            member = int64_pointer(block[MEMBERS + 1] + MEMBER_BYTES * k)
            # An empty variable has no kernel.
            if member[MEMBER_PROGRAM] != 0:
                if set_scalars_of_member(member):
                    return OUT_OF_RANGE
        owner = owner + 1
    if count == 0:
        return ALL_GRADIENTS_ABSENT
    return 0


def count_steps(block):
    """Write the new step count and state numbers of each member that has a gradient."""
    for k in range(block[COUNTED_MEMBERS]):
        member = int64_pointer(block[MEMBERS + 1] + MEMBER_BYTES * k)
        if gradient_record(block, k)[IS_ENABLED]:
            write_state_numbers(member)
        if gradient_record(block, k)[IS_ENABLED] and member[STEP_COUNT] != 0:
            step = next_step(member)
            if member[STEP_KIND] == INT64:
                int64_count = int64_pointer(member[STEP_COUNT])
                int64_count[0] = int64(step)
            elif member[STEP_KIND] == FLOAT32:
                float32_count = float32_pointer(member[STEP_COUNT])
                float32_count[0] = step
            else:
                float64_count = float64_pointer(member[STEP_COUNT])
                float64_count[0] = step


def is_written(block, write_record):
    """Return 1 if this step writes the tensor of a record in WRITTEN_TENSORS, else 0.

    `write_record` has the indices of the members that write the tensor. The result is 1 if a member
    among them has a gradient, or if the record has no indices.
    """
    writers = int64_pointer(write_record[2])
    for k in range(write_record[1]):
        if gradient_record(block, writers[k])[IS_ENABLED]:
            return 1
    return write_record[1] == 0


def spread_scalars(block):
    """Copy each variable's scalars, computed by programs, to the addresses in SPREADS."""
    for s in range(block[SPREADS]):
        spread = int64_pointer(block[SPREADS + 1] + SPREAD_BYTES * s)
        first_rows, row_of = int64_pointer(spread[1]), int64_pointer(spread[2])
        for i in range(spread[0]):
            numbers = float64_pointer(first_rows[i] + spread[3] * row_of[i])
            for k in range(spread[4]):
                column = int64_pointer(spread[5] + SPREAD_COLUMN_BYTES * k)
                number, target = numbers[column[0]], column[1] + column[2] * i
                if column[4]:
                    float32_target = float32_pointer(target)
                    float32_target[0] = number
                else:
                    if column[3]:
                        number = float64(float32(number))
                    float64_target = float64_pointer(target)
                    float64_target[0] = number


def find_counters(block):
    """Store the present address of the version counter of each written tensor in its record.

    Other threads may have replaced a TensorImpl while kernels ran without the interpreter lock. The
    address is 0 for a tensor without a version counter.
    """
    for k in range(block[WRITTEN_TENSORS]):
        index = word(block[WRITTEN_TENSORS + 1] + WRITE_BYTES * k)
        record = int64_pointer(block[TENSORS + 1] + TENSOR_BYTES * index)
        impl = word(record[OBJECT] + block[IN_OBJECT])
        record[COUNTER] = word(impl + block[IN_IMPL_COUNTER])


def finish(block):
    """Write step counts and columns after the kernels of an update, and record watched numbers.

    Then increment the version counters of the written tensors, and REPLAY_COUNT. Write nothing
    after MEASURE or RUN_PASS, or if `run_kernels` has set STATUS. Return STATUS.
    """
    if block[STATUS] != 0 or block[PART] == MEASURE or block[PART] == RUN_PASS:
        return block[STATUS]
    count_steps(block)
    for k in range(block[COLUMNS]):
        column = int64_pointer(block[COLUMNS + 1] + COLUMN_BYTES * k)
        number = float64_pointer(block[COLUMNS + 1] + COLUMN_BYTES * k + 24)[0]
        if column[2] == INT64:
            int64_numbers = int64_pointer(column[0])
            for i in range(column[1]):
                int64_numbers[i] = column[3]
        elif column[2] == FLOAT32:
            float32_numbers = float32_pointer(column[0])
            for i in range(column[1]):
                float32_numbers[i] = number
        else:
            float64_numbers = float64_pointer(column[0])
            for i in range(column[1]):
                float64_numbers[i] = number
    # The first watched numbers are those of the columns.
    for k in range(min(block[COLUMNS], block[WATCHED_NUMBERS])):
        watch = int64_pointer(block[WATCHED_NUMBERS + 1] + WATCH_BYTES * k)
        watch[2] = bits_of(watch)
    for k in range(block[WRITTEN_TENSORS]):
        write_record = int64_pointer(block[WRITTEN_TENSORS + 1] + WRITE_BYTES * k)
        record = int64_pointer(block[TENSORS + 1] + TENSOR_BYTES * write_record[0])
        # torch's counter is atomic, too.
        if is_written(block, write_record) and record[COUNTER] != 0:
            take_ticket(uint32_pointer(record[COUNTER] + block[IN_COUNTER]))
    block[REPLAY_COUNT] = block[REPLAY_COUNT] + 1
    return 0


def is_active(guard):
    """Call a function of torch; return True if it reports an active tracer or mode.

    `guard` has the function's address, a mask, and 1 if the function returns a pointer to the bits.
    """
    bits = call(guard[0])
    if guard[2]:
        bits = word(bits)
    return (bits & guard[1]) != 0


def is_traced(block, first):
    """Return 1 if a guard function from index `first` on reports a tracer or mode, else 0."""
    for k in range(first, block[GUARDS]):
        if is_active(int64_pointer(block[GUARDS + 1] + GUARD_BYTES * k)):
            return 1
    return 0


def is_tabled(block):
    """Return 1 if there is a table of precomputed scalars with a row for the next step; else 0."""
    if block[STEP_TABLE] == 0:
        return 0
    table = int64_pointer(block[STEP_TABLE])
    row = block[REPLAY_COUNT] - table[0]
    return row >= 0 and row < table[1]


def load_step(block):
    """Copy the next step's row of the step table to registers and column records; return 0.

    `is_tabled` must have returned 1.
    """
    row = block[REPLAY_COUNT] - word(block[STEP_TABLE])
    source = block[STEP_TABLE] + TABLE_HEAD_BYTES + block[STEP_TABLE_ROW_BYTES] * row
    for k in range(block[STEP_TABLE_SPANS]):
        span = int64_pointer(block[STEP_TABLE_SPANS + 1] + SPAN_BYTES * k)
        # Words are copied as integers, whatever their format.
        registers, numbers = int64_pointer(span[0]), int64_pointer(source)
        for i in range(span[1]):
            registers[i] = numbers[i]
        source = source + 8 * span[1]
    column_words = int64_pointer(source)
    for k in range(block[COLUMNS]):
        column = int64_pointer(block[COLUMNS + 1] + COLUMN_BYTES * k)
        column[3] = column_words[k]
    return 0


def read_numbers(block):
    """Copy the scalars of READS from tensors to registers; some are rounded to float32.

    Return 1 at the first denormal number, which may have to be flushed; else 0.
    """
    for k in range(block[READS]):
        read = int64_pointer(block[READS + 1] + READ_BYTES * k)
        number = load_number(read[0], read[1])
        if number != 0.0 and _f_absolute(number) < TINY_FLOAT32:
            return 1
        register = float64_pointer(read[2])
        register[0] = number
        if read[3]:
            register[0] = float64(float32(number))
    return 0


def clip_by_norm(block):
    """Compute the clip factor from the sums of squares that kernels have measured, and store it.

    Return 1 if a number is out of range, and then store no factor; else 0.
    """
    clipping = int64_pointer(block[CLIPPING])
    call(clipping[CLIPPING_ROUTINE], block[CLIPPING])
    if clipping[CLIPPING_HAS_FACTOR] == 0:
        return 1
    clipping[CLIPPING_STEP] = block[REPLAY_COUNT] + 1
    return 0


def run_programs(block):
    """Run all programs of PROGRAMS, which store the scalars of kernels.

    Return 1 if Python would raise an error in a program, else 0.
    """
    for k in range(block[PROGRAMS]):
        if run(int64_pointer(block[PROGRAMS + 1] + PROGRAM * k)):
            return 1
    return 0


def fill_columns(block):
    """Copy the columns' new numbers from registers to the records of columns; return 0.

    `finish` writes the records to the columns.
    """
    for k in range(block[REGISTER_COLUMNS]):
        source = int64_pointer(block[REGISTER_COLUMNS + 1] + REGISTER_COLUMN_BYTES * k)
        column = int64_pointer(block[COLUMNS + 1] + COLUMN_BYTES * source[1])
        column[3] = word(source[0])
    return 0


def set_scalars(block):
    """Compute the scalars of PART that depend on no gradient, after `check_guards` has returned 0.

    Return 0, ALL_GRADIENTS_ABSENT, or OUT_OF_RANGE if a scalar cannot be computed. No variable and
    no state is written.
    """
    if block[PART] == MEASURE:
        return 0
    if block[MEMBERS] != 0:
        return set_scalars_of_members(block)
    if run_programs(block):
        return OUT_OF_RANGE
    return fill_columns(block)


def run_kernels(block):
    """Run the kernels of PART: norms of gradients, a pass, or reductions of rules and the update.

    Set STATUS to OUT_OF_RANGE and skip the update if the native code cannot compute the factor of a
    norm, else to 0. MEASURE and RUN_PASS write only memory of the plan.
    """
    part, block[STATUS] = block[PART], 0
    if part == MEASURE or part == CLIPPED:  # noqa: SIM109
        launch_all(block, MEASURES)
    if part == CLIPPED:
        if clip_by_norm(block):
            block[STATUS] = OUT_OF_RANGE
    if part == RUN_PASS:
        launch_all(block, PASS)
    elif part != MEASURE and block[STATUS] == 0:
        spread_scalars(block)
        launch_all(block, RULE_MEASURES)
        launch_all(block, LAUNCHES)


def step(block, pairs, replay_count, request):
    """Check all guards, then run the part of a step that `request` names.

    Args:
        block: The block of the `GuardTable`; changed.
        pairs: The list of (gradient, variable) tuples, or 0 to read gradients from parameters.
        replay_count: The number of replayed steps when this step began, or ANY_STEP.
        request: A part (FULL_STEP, UPDATE, RUN_PASS, ...) plus flags. RUN_PASS writes no state;
            FINISH checks nothing.

    Returns:
        0, or a constant for the first difference. After a difference, no tensor except the sums of
        a norm was written.
    """
    # The lower three bits are the part, the others are flags. Guard 0 is the profilers'.
    part, first_guard = request & 7, 1
    if part == FINISH:
        find_counters(block)
        return finish(block)
    if request & UNRECORDED:
        first_guard = 0
    if is_traced(block, first_guard):
        return TRACING
    if replay_count != ANY_STEP and block[REPLAY_COUNT] != replay_count:
        return OTHER_STEP
    if request & TABLED and is_tabled(block) == 0:
        return NOT_TABLED
    block[PAIRS], block[PART] = pairs, part
    block[NEEDS_MEASURED_ADDRESSES] = 0
    if part == UPDATE:
        block[NEEDS_MEASURED_ADDRESSES] = 1
    difference = check_guards(block)
    if difference != 0:
        return difference
    if request & TABLED:
        load_step(block)
        if read_numbers(block):
            return DENORMAL
    difference = set_scalars(block)
    if difference != 0 or request & PREPARED:
        return difference
    run_kernels(block)
    return finish(block)
