"""How `ckptflow diff` shows what differs between two checkpoints, as text.

``tests/unit/test_cli_reading.py`` and ``tests/unit/test_cli_values.py``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from ckptflow.cli import output
from ckptflow.data.leaves import shown
from ckptflow.store.comparing.compare import ArrayChange, Comparison, PlainChange, Values
from ckptflow.store.comparing.descent import ArrayValues, ValueComparison
from ckptflow.store.comparing.tally import Difference, Tolerance
from ckptflow.units import format_bytes

VALUES_MAX = 20  # Plain values shown as text; JSON has all of them.
VALUE_CHARACTERS = 40  # Of one element.


def print_changes(console: Console, found: Comparison, *, same_rng: bool) -> None:
    """Print what `compare` found: the arrays that differ, and their values in short."""
    changed = [array for array in found.arrays if array.change != "same"]
    if changed:
        table = output.table(
            "ARRAY", "CHANGE", "TYPE", "ELEMENTS", "MAX |A-B|", "A", "B",
            numbers=("ELEMENTS", "MAX |A-B|"),
        )  # fmt: skip
        for array in changed:
            output.add_row(
                table,
                [
                    shown(array.name or None), array.change, _types(array),
                    _share(array.changed_elements, array.elements, array.change),
                    _number(array.max_abs_difference),
                    _values(array.values_before), _values(array.values_after),
                ],
            )  # fmt: skip
        console.print(table)
    _print_plain(console, found.plain)
    console.print(
        Text(
            f"{len(changed)} of {len(found.arrays)} arrays differ, {len(found.plain)} values "
            f"differ, {_random_states(same_rng=same_rng)}"
        )
    )


def _types(array: ArrayChange | ArrayValues) -> str:
    if array.before and array.after and array.before != array.after:
        return f"{array.before} -> {array.after}"
    return array.after or array.before or ""


def _share(count: int, elements: int, change: str) -> str:
    if change not in ("changed", "close"):
        return str(elements)
    return f"{count} of {elements} ({100 * count / elements:.3g} %)"


def _number(number: float | None) -> str:
    return "" if number is None else f"{number:.4g}"


def _values(values: Values | None) -> str:
    if values is None:
        return ""
    nans = f" nan×{values.nan_count}" if values.nan_count else ""
    return f"{values.min:.4g}..{values.max:.4g} mean {values.mean:.4g}{nans}"


def document(array: ArrayValues) -> dict[str, Any]:
    """Return one array as the JSON document has it: all that is known on one level."""
    fields = {
        field.name: getattr(array, field.name)
        for field in dataclasses.fields(array)
        if field.name != "differences"
    }
    return {**fields, **output.plain(array.differences)}


def print_values(
    console: Console,
    found: ValueComparison,
    *,
    same_rng: bool,
    tolerance: Tolerance | None,
) -> None:
    """Print what `compare_values` found: counts, first differences, greatest ones."""
    listed = [array for array in found.arrays if array.change != "same"]
    if listed:
        beyond = () if tolerance is None else ("BEYOND",)
        numbers = ("CHANGED", *beyond, "MAX |A-B|", "MAX |A-B|/|B|")
        table = output.table(
            "ARRAY", "CHANGE", "TYPE", "CHANGED", *beyond, "FIRST AT", "A", "B",
            "MAX |A-B|", "MAX |A-B|/|B|", numbers=numbers,
        )  # fmt: skip
        for array in listed:
            output.add_row(table, _cells(array, tolerance))
        console.print(table)
    _print_plain(console, found.plain)
    close = sum(array.change == "close" for array in listed)
    parts = [f"{len(listed) - close} of {len(found.arrays)} arrays differ"]
    if tolerance is not None:
        parts.append(f"{close} within the tolerance")
    parts.append(f"{len(found.plain)} values differ")
    if found.plain_close:
        parts.append(f"{len(found.plain_close)} within the tolerance")
    parts.append(_random_states(same_rng=same_rng))
    console.print(Text(", ".join(parts)))
    exact = [a for a in listed if a.change == "changed" and not a.tolerance_holds]
    if tolerance is not None and exact:
        names = ", ".join(shown(array.name or None) for array in exact[:3])
        more = f" and {len(exact) - 3} more" if len(exact) > 3 else ""
        console.print(Text(f"no floating-point arrays, so to the bit: {names}{more}"))
    read, state = format_bytes(found.read_bytes), format_bytes(found.state_bytes)
    console.print(Text(f"read {read} of {state}"))


def _cells(array: ArrayValues, tolerance: Tolerance | None) -> list[str]:
    found = array.differences
    compared = array.change in ("changed", "close")
    first = found.first_beyond or found.first_change
    beyond = [] if tolerance is None else [
        str(found.beyond_elements) if compared and array.tolerance_holds else ""
    ]  # fmt: skip
    return [
        shown(array.name or None),
        array.change,
        _types(array),
        _share(found.changed_elements, array.elements, array.change),
        *beyond,
        "" if first is None else str(list(first.index)),
        *(("", "") if first is None else _pair(first)),
        _number(found.max_abs_difference),
        _number(found.max_rel_difference),
    ]


def _pair(difference: Difference) -> tuple[str, str]:
    """Return both values; with their bits where they look alike, as two NaN do."""
    before, after = (
        f"{value!r:.{VALUE_CHARACTERS}}" for value in (difference.before, difference.after)
    )
    if before == after and difference.bits_before is not None:
        return f"{before} 0x{difference.bits_before}", f"{after} 0x{difference.bits_after}"
    return before, after


def _print_plain(console: Console, plain: Sequence[PlainChange]) -> None:
    if not plain:
        return
    values = output.table("VALUE", "A", "B")
    for leaf in plain[:VALUES_MAX]:
        before = "" if leaf.change == "added" else f"{leaf.before!r:.100}"
        after = "" if leaf.change == "removed" else f"{leaf.after!r:.100}"
        output.add_row(values, [shown(leaf.name or None), before, after])
    console.print(values)
    if len(plain) > VALUES_MAX:
        console.print(f"and {len(plain) - VALUES_MAX} more; --json has all")


def _random_states(*, same_rng: bool) -> str:
    return f"random states of the process {'are the same' if same_rng else 'differ'}"
