"""Keep secrets out of what is shown: messages, ``repr`` and specs.

A secret is known by the name under which it was given (``password``, ``token``, …). Where a
library that was handed one puts it into a message, it is blotted out.
``tests/unit/test_secrets.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

_SECRET_NAME = re.compile(
    r"(?i)pass(word|phrase|wd)?|secret|token|credential|\b(sas|auth|pin)\b|cookie|signature"
    r"|(^|_)keys?$|(^|_)(account|access|private|api|client)_?key"
)
_SHORTEST = 4  # Shorter text, blotted out everywhere, would make messages unreadable.
_SHOWN = "***"


def names_secret(name: str) -> bool:
    """Tell whether an option of that name would hold a secret."""
    return _SECRET_NAME.search(name.replace("-", "_")) is not None


def secrets_in(options: Mapping[str, Any]) -> frozenset[str]:
    """Return the texts in ``options``, however deep, whose name says that they are secret.

    Each also as it stands in an address.
    """
    found = frozenset(_texts(options, secret=False))
    return found | {quote(text, safe="") for text in found}


def blot_out(text: str, secrets: frozenset[str]) -> str:
    """Return ``text`` without any of ``secrets``."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, _SHOWN)
    return text


def _texts(value: Any, *, secret: bool) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _texts(inner, secret=secret or names_secret(str(name)))
    elif isinstance(value, list | tuple | set):
        for inner in value:
            yield from _texts(inner, secret=secret)
    elif secret and isinstance(value, str) and len(value) >= _SHORTEST:
        yield value
