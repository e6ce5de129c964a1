"""The exceptions that mpiopt raises; every message says rank, values and remedy."""

from __future__ import annotations


class CollectiveError(RuntimeError):
    """A collective failed; the communicator that it ran on cannot be used any more."""


class CollectiveTimeout(CollectiveError, TimeoutError):
    """A collective waited longer than its communicator's timeout."""


class MismatchError(CollectiveError):
    """The ranks of a debug communicator did not make the same call."""


class BadBufferError(ValueError, BufferError):
    """A buffer cannot take part: wrong dtype, layout, length or permission."""


class FreedCommunicatorError(CollectiveError):
    """The communicator has been freed, or broken by an earlier failure."""
