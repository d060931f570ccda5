"""Words and records of a guard table's block, and constants of the native replay.

`guard_table.py` fills the block, an array of 64-bit words; `replay_guards.py` and
`replay_kernel.py` read it. Their functions are compiled together with this text
(`replay_routines.py`).
"""

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
