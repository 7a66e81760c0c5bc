"""The last keys of a folder, where all that can be asked is: what comes after this name?

An object store lists in ascending order from a given name on, a page at a time, and cannot
begin at the end. So this gallops: from the names of one page it guesses names that lie
further on, each step twice as far as the one before, until a page is the last one; then it
bisects. Names are taken for numbers whose digits are the characters seen so far. A guess
that is bad costs a request and nothing else: what is returned is always read from the end
of a listing.

The number of requests grows with the logarithm of the number of keys, and with the length of
their names. ``tests/property/test_last_keys.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Page = Callable[[str, int], Sequence[str]]

PAGE_KEYS = 1000  # What object stores give at once.
TURNS_MAX = 3  # Guesses in a row that may be too far.
SEARCHES_MAX = 200  # Guesses, before the rest is simply listed.


def find_last(page: Page, count: int) -> list[str]:
    """Return the ``count`` greatest names, the greatest first.

    Args:
        page: returns, ascending, up to so many of the names that are greater than a given one.
        count: how many are wanted.
    """
    limit = max(PAGE_KEYS, 2 * count)
    names = page("", limit)
    if len(names) < limit or count < 1:
        return _greatest(names, count)
    search = _Search(names)
    for _ in range(SEARCHES_MAX):
        guess = search.guess()
        names = page(guess or search.names[-1], limit)
        if len(names) == limit:
            search.go_on(names)
        elif guess is None:  # The page follows the one before, and is the last.
            return _greatest([*search.names, *names], count)
        elif len(names) >= count:
            return _greatest(names, count)
        else:
            search.turn_back(guess)
    return _walk(page, search.names, limit, count)


def _greatest(names: Sequence[str], count: int) -> list[str]:
    return list(reversed(names))[: max(count, 0)]


def _walk(page: Page, names: Sequence[str], limit: int, count: int) -> list[str]:
    """List what follows a page to the end, holding no more than two pages."""
    held: Sequence[str] = names
    while True:
        names = page(held[-1], limit)
        if len(names) < limit:
            return _greatest([*held, *names], count)
        held = names


class _Search:
    """Where the end may be: after the last full page, and before what was too far."""

    def __init__(self, names: Sequence[str]) -> None:
        self._alphabet, self._width = "", 1
        self._high: str | None = None  # So few names come after it that it is too far.
        self._turns = 0  # Guesses in a row that were too far.
        self._stride = 0
        self.go_on(names)

    def go_on(self, names: Sequence[str]) -> None:
        """Take in a full page."""
        self.names, self._turns = names, 0
        self._alphabet = "".join(sorted({*self._alphabet, *"".join(names)}))
        self._width = max(self._width, *map(len, names))
        first, last = self._number(names[0]), self._number(names[-1])
        self._stride = max(2 * self._stride, last - first, 1)

    def turn_back(self, guess: str) -> None:
        """Take in that a guess was too far."""
        self._high = guess
        self._turns += 1

    def guess(self) -> str | None:
        """Return a name that is further on, or ``None``: rather read the page that follows.

        That is done after `TURNS_MAX` guesses that were too far: the end may be near.
        """
        before = self.names[-1]
        low = self._number(before)
        if self._high is None:
            return self._name(low + self._stride)
        high = self._number(self._high)
        middle = self._name(low + min(self._stride, (high - low) // 2))
        useful = before < middle < self._high and self._turns < TURNS_MAX
        return middle if useful else None

    def _number(self, name: str) -> int:
        # The end of a name counts as a digit of its own, below all others.
        base, number = len(self._alphabet) + 1, 0
        for place in range(self._width):
            number *= base
            if place < len(name):
                number += self._digit(name[place])
        return number

    def _digit(self, character: str) -> int:
        return sum(other <= character for other in self._alphabet)

    def _name(self, number: int) -> str:
        base, digits = len(self._alphabet) + 1, []
        for _ in range(self._width):
            number, digit = divmod(number, base)
            digits.append(digit)
        if number:  # Past the last name of this length.
            return self._alphabet[-1] * self._width
        characters = (self._alphabet[max(digit, 1) - 1] for digit in reversed(digits))
        return "".join(characters)
