"""`tf.errors`: TensorFlow's exceptions. Those that the library raises are its own classes."""

from __future__ import annotations

from thalweg.errors import (
    CancelledError,
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    OutOfRangeError,
    ThalwegError,
)
from thalweg.tf.missing import attribute_of

OpError = ThalwegError


class UnknownError(OpError):
    """Something failed of which nothing is known."""


class DeadlineExceededError(OpError):
    """Something took too long."""


class AlreadyExistsError(OpError):
    """What was to be made exists."""


class PermissionDeniedError(OpError):
    """The caller may not do that."""


class UnauthenticatedError(OpError):
    """The caller did not say who it is."""


class ResourceExhaustedError(OpError):
    """Memory, or another thing that there is only so much of, is used up."""


class AbortedError(OpError):
    """Something was ended, and may be tried again."""


class UnimplementedError(OpError):
    """Something has not been written."""


class InternalError(OpError):
    """Something that must hold does not."""


class UnavailableError(OpError):
    """Something is not there at present."""


OK = 0
CANCELLED, UNKNOWN, INVALID_ARGUMENT, DEADLINE_EXCEEDED, NOT_FOUND = 1, 2, 3, 4, 5
ALREADY_EXISTS, PERMISSION_DENIED, RESOURCE_EXHAUSTED, FAILED_PRECONDITION = 6, 7, 8, 9
ABORTED, OUT_OF_RANGE, UNIMPLEMENTED, INTERNAL, UNAVAILABLE, DATA_LOSS = 10, 11, 12, 13, 14, 15
UNAUTHENTICATED = 16

__getattr__ = attribute_of("errors")
