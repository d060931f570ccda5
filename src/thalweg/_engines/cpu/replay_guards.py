"""Native replay of a step: comparison of Python objects and tensors with a guard table's block.

The functions here are compiled together with `replay_block.py` (`replay_routines.py`). Names in
capitals are indices of words in `block` or in a record. `replay_kernel.step` calls these functions
before it writes anything.

All memory that is read is alive. The owner of the block holds the lists, dictionaries, tensors and
types whose addresses are in the block. Other addresses are read from those objects in the same
call: from a tensor its TensorImpl, from a TensorImpl its storage, version counter and autograd
metadata, from autograd metadata the gradient. No other stored address is dereferenced; some are
only prefetched.
"""

# Code for `compiler`, which finds its types itself.
# pyright: basic, reportUndefinedVariable=false
# ruff: noqa: F403, F405, SIM102
from __future__ import annotations

from thalweg._engines.cpu.replay_block import *


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
    """Copy the value of a float object to the pointer `number`; return 1 for a difference, else 0.

    The object differs if its class is neither float nor NumPy's float64, if its sign is not `sign`
    (-1, 0 or 1), or if its magnitude is not below MAX_OPTION. Signs are checked because, for
    example, a momentum of 0 selects another rule.
    """
    # The class of an object follows its reference count.
    cls = word(py_object + 8)
    if cls != block[CLASS_OF_FLOATS] and cls != block[CLASS_OF_NUMPY_FLOATS]:
        return 1
    new = float64_pointer(py_object + block[IN_FLOAT])[0]
    number[0] = new
    if sign == 0:
        return new != 0.0
    magnitude = new * sign
    if magnitude > 0.0 and magnitude < MAX_OPTION:
        return 0
    return 1


def option_differs(block, py_object, option):
    """Copy the numbers of an option, a float or a tuple of floats, to the addresses in `option`.

    Return 1 if `number_differs` returns 1 for a number. If a tuple was recorded, also return 1 for
    an object that is no tuple of its length. Otherwise return 0.

    Args:
        py_object: The address of the option.
        option: The option's record of OPTION_BYTES, with the addresses of numbers and signs.
    """
    numbers, signs = option[1], int64_pointer(option[2])
    if option[0] == 0:
        return number_differs(block, py_object, float64_pointer(numbers), signs[0])
    is_tuple = word(py_object + 8) == block[CLASS_OF_TUPLES]
    if is_tuple == 0 or call(block[PY_TUPLE_SIZE], py_object) != option[0]:
        return 1
    for k in range(option[0]):
        number_object = call(block[PY_TUPLE_GET_ITEM], py_object, k)
        if number_differs(block, number_object, float64_pointer(numbers + 8 * k), signs[k]):
            return 1
    return 0


def entries_differ(block, record):
    """Compare the entries of a dictionary with its record, and copy the numbers of options.

    Return 1 if number, order or identity of keys or values differ, else 0. The record has a word
    for each value: its address; 0 if any value is accepted; -1 - k if `option_differs` compares it
    with record k of OPTIONS.
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
        if has_entry & 4294967295 == 0 or key[0] != items[2 * i]:
            return 1
        expected = items[2 * i + 1]
        if expected > 0 and value[0] != expected:
            return 1
        if expected < 0:
            option = int64_pointer(block[OPTIONS + 1] + OPTION_BYTES * (-1 - expected))
            if option_differs(block, value[0], option):
                return 1
    return 0


def dicts_differ(block):
    """Compare all dictionaries of DICTS with their records, and copy the numbers of options.

    Return 1 if an object has another `__dict__`, or if `entries_differ`; else 0. Python gives a
    dictionary a new, unique version at each change. While the version is unchanged, entries are not
    compared again, unless the dictionary has options.
    """
    last_record = block[DICTS + 1] + DICT_BYTES * (block[DICTS] - 1)
    for k in range(block[DICTS]):
        record = int64_pointer(block[DICTS + 1] + DICT_BYTES * k)
        ahead = min(address_of(record) + PREFETCH_DISTANCE * DICT_BYTES, last_record)
        prefetch_to_read(word(ahead))
        if record[3] != 0 and word(record[3]) != record[0]:
            return 1
        version = word(record[0] + block[IN_DICT_VERSION]) if block[IN_DICT_VERSION] else 0
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
        size, stride = record[SHAPE + axis], record[SHAPE + 5 + axis]
        if sizes[axis] != size or sizes[5 + axis] != stride:
            return 1
    return 0


def storage_differs(block, record, storage):
    """Return 1 if the StorageImpl at `storage` differs from the record of a tensor; else 0.

    Address, data, size, deleter and context are compared.
    """
    return (
        storage != record[STORAGE]
        or word(storage + block[IN_STORAGE_DATA]) != record[DATA]
        or word(storage + block[IN_STORAGE_BYTES]) != record[BYTES]
        or word(storage + block[IN_STORAGE_DELETER]) != record[DELETER]
        or word(storage + block[IN_STORAGE_CONTEXT]) != record[CONTEXT]
    )


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
    tensor, impl = record[OBJECT], record[IMPL]
    # Only the recorded TensorImpl is dereferenced.
    if (
        word(tensor + 8) != record[CLASS]
        or word(tensor + block[IN_OBJECT]) != impl
        or word(impl + block[IN_IMPL_KEYS]) != record[KEYS]
        or word(impl + block[IN_IMPL_FLAGS]) & block[FLAGS_MASK] != record[FLAGS]
        or shape_differs(impl, record, block[IN_IMPL_DIMS])
        or word(impl + block[IN_IMPL_OFFSET]) != record[OFFSET]
        or word(impl + block[IN_IMPL_COUNT]) != record[COUNT]
    ):
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
    if low & 1 or (low < edges and bounds[low] < address + extent):
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
    if (
        word(pair + 8) != block[CLASS_OF_TUPLES]
        or call(block[PY_TUPLE_SIZE], pair) != 2
        or call(block[PY_TUPLE_GET_ITEM], pair, 1) != record[OBJECT]
    ):
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
    """Store the address of a gradient's TensorImpl in the record `gradient`; return 0.

    The address is 0 if there is no gradient. The gradient is read from item `number` of PAIRS. If
    PAIRS is 0, it is read from the parameter. The TensorImpl is prefetched.
    """
    record = int64_pointer(gradient[OWNER])
    from_pair = block[PAIRS] != 0
    grad = gradient_in_pair(block, record, number) if from_pair else gradient_of(block, record)
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
    is_missing = data == 0 and gradient[EXTENT] != 0
    if is_missing or begin + gradient[EXTENT] > word(storage + block[IN_STORAGE_BYTES]):
        return OTHER_GRADIENT
    if data + begin != gradient[SAFE_ADDRESS]:
        if block[NEEDS_MEASURED_ADDRESSES]:
            return OTHER_GRADIENT
        if is_apart(block, data + begin, gradient[EXTENT]) == 0:
            return SHARED_GRADIENT
        gradient[SAFE_ADDRESS] = data + begin
    int64_pointer(gradient[CELL])[0] = data + begin
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
        is_absent = grad == 0 or grad == block[UNDEFINED_IMPL]
        set_enabled(gradient, 1 - is_absent)
        if is_absent:
            return 0
    if grad != 0:
        if word(grad + block[IN_IMPL_KEYS]) != gradient[GRADIENT_KEYS]:
            return OTHER_GRADIENT
        storage = word(grad + block[IN_IMPL_STORAGE])
    if gradient[PRESENCE] == ABSENT:
        return 0 if storage == 0 else OTHER_GRADIENT
    if (
        storage == 0
        or word(grad + block[IN_IMPL_FLAGS]) & block[FLAGS_MASK] != gradient[GRADIENT_FLAGS]
        or shape_differs(grad, record, block[IN_IMPL_DIMS])
    ):
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
    expected = float64_pointer(column + 32)[0]
    for i in range(words[1]):
        if words[2] == INT64:
            if int64_pointer(words[0])[i] != words[4]:
                return 1
        elif words[2] == FLOAT32:
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

    If the block's word PAIRS is not 0, gradients are in a list of Python pairs; the threads check
    no gradients, and the caller must check them.
    """
    block[NEXT_PART], block[TEAM_DIFFERS], block[TEAM_GRADIENTS] = 0, 0, block[GRADIENTS]
    # Pairs are read by functions of Python, so one thread checks their gradients.
    if block[PAIRS] != 0:
        block[TEAM_GRADIENTS] = 0
    call(block[TEAM], block[TEAM_ROUTINE], address_of(block), block[TEAM_SIZE], 0)
    return block[TEAM_DIFFERS]


def pairs_differ(block):
    """Return 0 if PAIRS is 0, or a list with one item for each gradient; else 1."""
    pairs = block[PAIRS]
    if pairs == 0 or word(pairs + 8) != block[CLASS_OF_LISTS]:
        return pairs != 0
    return call(block[PY_LIST_SIZE], pairs) != block[GRADIENTS]


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

    Return 0, or a constant of the section "Differences" of `replay_block.py` for the first
    difference. Store the present numbers of options, and the addresses of gradients and version
    counters, for the kernels.
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
