"""Native replay of a step: after all guards hold, run kernels, then write counts and scalars.

The functions here are compiled together with `replay_block.py` and `replay_guards.py`. Names in
capitals are indices of words in `block` or in a record. `guard_table.py` fills the *block* after a
step that was planned or rebound. If anything differs from the block, `step` writes nothing and
returns a constant of the section "Differences" of `replay_block.py`.

Most parts of a step are one call of `step`, with the interpreter lock held, so that nothing runs
between checks and writes. With PREPARED a part is three calls: `step` with the lock, which checks
all guards and computes scalars; `run_kernels` without the lock; and `step` with FINISH and the
lock, which checks nothing and writes step counts, columns and version counters.

Other threads of Python may run during `run_kernels`, and replace gradients and storages. The
kernels use addresses that the first call has read. The caller (`optim/replay.py`) therefore holds a
reference to the memory of each gradient, and to the storage of each written tensor. A TensorImpl
may be replaced, too: FINISH reads the addresses of version counters again (`find_counters`).
"""

# Code for `compiler`, which finds its types itself.
# pyright: basic, reportUndefinedVariable=false
# ruff: noqa: F403, F405
from __future__ import annotations

from thalweg._engines.cpu.replay_block import *
from thalweg._engines.cpu.replay_guards import *


def launch_all(block, table):
    """Run a table of kernels in order, each on the recorded number of threads; return 0.

    `table` is the index in the block of two words: the number of launches, and their address.
    """
    for k in range(block[table]):
        launch = int64_pointer(block[table + 1] + LAUNCH_BYTES * k)
        # Word 0 of an argument counts the slices that threads have taken.
        int64_pointer(launch[1])[0] = 0
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
    registers = float64_pointer(program[REGISTERS])
    outputs = int64_pointer(program[STATE_NUMBERS + 1])
    for k in range(program[STATE_NUMBERS]):
        new_number = member[NUMBER_RECORDS] + STATE_NUMBER_BYTES * k + 16
        float64_pointer(new_number)[0] = registers[outputs[k]]
    return 0


def write_state_numbers(member):
    """Write the new numbers in a member's records to its state, if the member has a program."""
    if member[MEMBER_PROGRAM] != 0:
        for k in range(word(member[MEMBER_PROGRAM] + 8 * STATE_NUMBERS)):
            first = member[NUMBER_RECORDS] + STATE_NUMBER_BYTES * k
            record = int64_pointer(first)
            store_number(record[0], record[1], float64_pointer(first + 16)[0])


def set_scalars_of_member(member):
    """Compute the row of scalars that the kernel of a member reads, and store the row's index.

    A member is a variable that counts its own steps. Its scalar program computes the row. If the
    program's last row has an equal step number and equal state numbers, that row is used. Return 1
    if Python would raise an error, else 0.
    """
    program = int64_pointer(member[MEMBER_PROGRAM])
    last_step = float64_pointer(address_of(program) + 8 * LAST_STEP)
    step, differs = next_step(member), load_state_numbers(program, member)
    if program[LAST_ROW] == NONE or last_step[0] != step or differs:
        registers, rows = float64_pointer(program[REGISTERS]), int64_pointer(program[ROW_COUNT])
        registers[0] = step
        first = program[ROWS + 1] + member[ROW_BYTES] * rows[0]
        if compute(program) or store_rows(program, first, 1):
            return 1
        program[LAST_ROW], last_step[0] = rows[0], step
        rows[0] = rows[0] + 1
    follow_state_numbers(program, member)
    int64_pointer(member[ROW_CELL])[0] = program[LAST_ROW]
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
            int64_pointer(program[ROW_COUNT])[0] = 0
    count, owner = 0, 0
    # Members of passes follow, with the gradients of the counted members in the same order.
    for k in range(block[MEMBERS]):
        if owner == block[COUNTED_MEMBERS]:
            owner = 0
        if gradient_record(block, owner)[IS_ENABLED]:
            count = count + 1
            member = int64_pointer(block[MEMBERS + 1] + MEMBER_BYTES * k)
            # An empty variable has no kernel.
            if member[MEMBER_PROGRAM] != 0 and set_scalars_of_member(member):
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
            if member[STEP_COUNT] != 0:
                store_number(member[STEP_COUNT], member[STEP_KIND], next_step(member))


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
                if column[3]:
                    number = float64(float32(number))
                store_number(target, FLOAT32 if column[4] else FLOAT64, number)


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
        for i in range(column[1]):
            if column[2] == FLOAT32:
                float32_pointer(column[0])[i] = number
            else:
                # The word of an integer or a float64.
                int64_pointer(column[0])[i] = column[3]
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


def is_traced(block, first):
    """Return 1 if a guard function from index `first` on reports an active tracer or mode, else 0.

    A record of GUARDS has the address of a function of torch, a mask, and 1 if the function returns
    a pointer to the bits.
    """
    for k in range(first, block[GUARDS]):
        guard = int64_pointer(block[GUARDS + 1] + GUARD_BYTES * k)
        bits = call(guard[0])
        if (word(bits) if guard[2] else bits) & guard[1]:
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
        float64_pointer(read[2])[0] = float64(float32(number)) if read[3] else number
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


def set_scalars(block):
    """Compute the scalars of PART that depend on no gradient, after `check_guards` has returned 0.

    Programs store the scalars of kernels. Numbers of columns are copied from registers to the
    columns' records, which `finish` writes to the columns. Return 0, ALL_GRADIENTS_ABSENT, or
    OUT_OF_RANGE if Python would raise an error. No variable and no state is written.
    """
    if block[PART] == MEASURE:
        return 0
    if block[MEMBERS] != 0:
        return set_scalars_of_members(block)
    for k in range(block[PROGRAMS]):
        if run(int64_pointer(block[PROGRAMS + 1] + PROGRAM * k)):
            return OUT_OF_RANGE
    for k in range(block[REGISTER_COLUMNS]):
        source = int64_pointer(block[REGISTER_COLUMNS + 1] + REGISTER_COLUMN_BYTES * k)
        column = int64_pointer(block[COLUMNS + 1] + COLUMN_BYTES * source[1])
        column[3] = word(source[0])
    return 0


def run_kernels(block):
    """Run the kernels of PART: norms of gradients, a pass, or reductions of rules and the update.

    If the native code cannot compute the clip factor, skip the update, and set STATUS to
    OUT_OF_RANGE. Otherwise set STATUS to 0. MEASURE and RUN_PASS write only memory of the plan.
    """
    part, block[STATUS] = block[PART], 0
    if part == MEASURE or part == CLIPPED:  # noqa: SIM109
        launch_all(block, MEASURES)
    if part == CLIPPED and clip_by_norm(block):
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
    part = request & 7
    if part == FINISH:
        find_counters(block)
        return finish(block)
    if is_traced(block, 0 if request & UNRECORDED else 1):
        return TRACING
    if replay_count != ANY_STEP and block[REPLAY_COUNT] != replay_count:
        return OTHER_STEP
    if request & TABLED and is_tabled(block) == 0:
        return NOT_TABLED
    block[PAIRS], block[PART], block[NEEDS_MEASURED_ADDRESSES] = pairs, part, part == UPDATE
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
