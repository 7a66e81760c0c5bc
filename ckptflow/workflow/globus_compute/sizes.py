"""How large calls and answers may be, measured as the service measures them.

The SDK pickles what it carries and writes it in base64, in lines of 76 characters; on the way
there the line ends are escaped once more. So of the 10 MB that a request may have, a call can
use about 7.3, and of the 10 MiB of an answer about 7.7 MB. Several calls that are submitted
at once are one request.

``tests/unit/test_globus_compute.py`` compares with the SDK.
"""

from __future__ import annotations

from ckptflow.units import MIB

SUBMISSION_BYTES_MAX = 10_000_000
"""Of one request, with all calls in it: https://globus-compute.readthedocs.io/en/stable/limits.html."""

RESULT_BYTES_MAX = 10 * MIB
"""Of one answer. The endpoint's engine refuses what is larger."""

ENVELOPE_BYTES = 64 * 1024
"""What is kept for the rest of a request or an answer: ids, options, names, texts."""

_LINE_BYTES = 57  # They make 76 characters.


def submitted_bytes(plain_bytes: int) -> int:
    """Return what ``plain_bytes`` of a call are in a request."""
    return _base64(plain_bytes, line_end=2)


def answered_bytes(plain_bytes: int) -> int:
    """Return what ``plain_bytes`` of an outcome are in an answer."""
    return _base64(plain_bytes, line_end=1)


def _base64(plain_bytes: int, *, line_end: int) -> int:
    return 4 * -(-plain_bytes // 3) + line_end * -(-plain_bytes // _LINE_BYTES)
