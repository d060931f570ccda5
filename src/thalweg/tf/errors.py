"""`tf.errors`: TensorFlow's exceptions, including the errors of this library."""

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
    """Error with an unknown cause."""


class DeadlineExceededError(OpError):
    """Error of an operation that took too long."""


class AlreadyExistsError(OpError):
    """Error of creating an object that exists."""


class PermissionDeniedError(OpError):
    """Error of missing permission."""


class UnauthenticatedError(OpError):
    """Error of missing authentication."""


class ResourceExhaustedError(OpError):
    """Error of exhausted memory or other resources."""


class AbortedError(OpError):
    """Error of an aborted operation that may be retried."""


class UnimplementedError(OpError):
    """Error of a feature that is not implemented."""


class InternalError(OpError):
    """Error of a broken invariant."""


class UnavailableError(OpError):
    """Error of a temporarily unavailable service."""


OK = 0
CANCELLED, UNKNOWN, INVALID_ARGUMENT, DEADLINE_EXCEEDED, NOT_FOUND = 1, 2, 3, 4, 5
ALREADY_EXISTS, PERMISSION_DENIED, RESOURCE_EXHAUSTED, FAILED_PRECONDITION = 6, 7, 8, 9
ABORTED, OUT_OF_RANGE, UNIMPLEMENTED, INTERNAL, UNAVAILABLE, DATA_LOSS = 10, 11, 12, 13, 14, 15
UNAUTHENTICATED = 16

__getattr__ = attribute_of("errors")
