"""Try again what may pass: any tier, with capped backoff and full jitter.

Only `TierUnavailable` is tried again. The wait before try ``n`` is drawn evenly from 0 to
``min(wait_max_s, first_wait_s * 2 ** (n - 1))``, which keeps many clients from coming back
together ("full jitter": M. Brooker, "Exponential Backoff And Jitter", AWS Architecture
Blog, 2015). Everything may be repeated: puts and deletes because they are idempotent,
`create` because its value tells whose it is.

``tests/conformance/test_retrying.py``.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from typing_extensions import Buffer

from ckptflow.errors import AlreadyExists, ConfigError, NotFoundError, TierUnavailable
from ckptflow.tiers.around import TierAround
from ckptflow.tiers.tier import Tier

TRIES_MAX = 6
FIRST_WAIT_S, WAIT_MAX_S = 0.2, 10.0
DEADLINE_S = 300.0

T = TypeVar("T")


class RetryingTier(TierAround):
    """Passes every call on to ``inner``, up to ``tries_max`` times.

    Args:
        inner: the tier that may fail for a while.
        tries_max: how often one call is tried, the first time included.
        first_wait_s: longest wait before the second try; it doubles with each.
        wait_max_s: no wait is longer.
        deadline_s: no try begins so long after the first.
        clock_s, sleep, uniform: the time, how to wait, and how to draw between two numbers.
    """

    def __init__(
        self,
        inner: Tier,
        *,
        tries_max: int = TRIES_MAX,
        first_wait_s: float = FIRST_WAIT_S,
        wait_max_s: float = WAIT_MAX_S,
        deadline_s: float = DEADLINE_S,
        clock_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        if tries_max < 1 or min(first_wait_s, wait_max_s, deadline_s) < 0:
            raise ConfigError(
                f"A call is tried once or more and waits 0 s or more, not {tries_max} times "
                f"with {first_wait_s} s to {wait_max_s} s, within {deadline_s} s."
            )
        super().__init__(inner)
        self._tries_max, self._deadline_s = tries_max, deadline_s
        self._first_wait_s, self._wait_max_s = first_wait_s, wait_max_s
        self._clock_s, self._sleep, self._uniform = clock_s, sleep, uniform

    def _pass(self, operation: str, key: str, call: Callable[[], T]) -> T:  # noqa: ARG002
        return self._retried(call)

    def create(self, key: str, value: Buffer) -> None:
        """See `Tier.create`. Callers that compete for a key must offer different values.

        The answer to a create that succeeded may be lost. The next try finds the key taken
        then, and the value says by whom.
        """
        in_doubt = False

        def attempt() -> None:
            nonlocal in_doubt
            try:
                self.inner.create(key, value)
            except TierUnavailable:
                in_doubt = True
                raise
            except AlreadyExists:
                if not (in_doubt and self._holds(key, bytes(value))):
                    raise

        self._retried(attempt)

    def iter_keys(self, prefix: str) -> Iterator[str]:
        """See `Tier.iter_keys`. A listing that breaks goes on where it was."""
        return self._resumed(lambda: self.inner.iter_keys(prefix))

    def iter_folders(self, prefix: str) -> Iterator[str]:
        """See `Tier.iter_folders`."""
        return self._resumed(lambda: self.inner.iter_folders(prefix))

    def _holds(self, key: str, value: bytes) -> bool:
        try:
            return self.inner.get(key) == value
        except NotFoundError:
            return False

    def _resumed(self, listing: Callable[[], Iterator[str]]) -> Iterator[str]:
        names: Iterator[str] | None = None
        last = ""  # No name is empty, so all are greater.

        def following() -> str | None:
            nonlocal names
            try:
                names = iter(listing()) if names is None else names
                return next((name for name in names if name > last), None)
            except TierUnavailable:
                names = None  # It is asked for anew.
                raise

        while (name := self._retried(following)) is not None:
            yield name
            last = name

    def _retried(self, call: Callable[[], T]) -> T:
        began_s = self._clock_s()
        wait_max_s = self._first_wait_s
        for number in range(1, self._tries_max + 1):
            try:
                return call()
            except TierUnavailable as error:
                wait_s = self._uniform(0.0, min(wait_max_s, self._wait_max_s))
                passed_s = self._clock_s() - began_s
                if number == self._tries_max or passed_s + wait_s > self._deadline_s:
                    error.add_note(f"It was tried {number} times within {passed_s:.1f} s.")
                    raise
            self._sleep(wait_s)
            wait_max_s *= 2
        raise AssertionError("the last try returns or raises")
