"""HTML and SVG as text: every attribute and every text is escaped where it is put in.

What a task, an app or an error is called comes from other people, and must not become markup.
``tests/process/test_report_page.py`` opens a page with hostile names in a browser.
"""

from __future__ import annotations

import html
from collections.abc import Iterable

Markup = str
"""Text that is markup already: what `tag` and `words` return."""

_EMPTY = frozenset({"meta", "br", "path", "line", "rect", "circle", "polyline", "col"})


def words(value: object) -> Markup:
    """Return a text, escaped."""
    return html.escape("" if value is None else str(value), quote=True)


def tag(name: str, /, *children: Markup, **attributes: object) -> Markup:
    """Return an element.

    Args:
        name: of the element.
        children: markup inside.
        attributes: ``class_`` and ``data_tip`` are ``class`` and ``data-tip``; one that is
            ``None`` is left out.
    """
    inside = "".join(
        f' {_attribute(key)}="{words(_value(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _EMPTY and not children:
        return f"<{name}{inside}>" if name in {"meta", "br", "col"} else f"<{name}{inside}/>"
    return f"<{name}{inside}>{''.join(children)}</{name}>"


def _attribute(key: str) -> str:
    return "viewBox" if key == "viewBox" else key.rstrip("_").replace("_", "-")


def _value(value: object) -> object:
    """Return a number as short as it can be seen: a tenth of a pixel."""
    if isinstance(value, float):
        return f"{value:.1f}".removesuffix(".0")
    return value


def tip(text: str) -> dict[str, object]:
    """Return the attribute that the page's script shows beside the pointer."""
    return {"data_tip": text}


def titled(text: str) -> Markup:
    """Return what a browser shows of a shape without any script, and reads aloud."""
    return tag("title", words(text))


def table(
    head: Iterable[str], body: Iterable[Iterable[object]], *, numbers: Iterable[str] = ()
) -> Markup:
    """Return a table; cells that are markup come as `Cell`."""
    columns, right = list(head), set(numbers)
    rows = [
        tag(
            "tr",
            *(
                tag(
                    "td",
                    cell.markup if isinstance(cell, Cell) else words(cell),
                    class_="number" if column in right else None,
                )
                for column, cell in zip(columns, row, strict=True)
            ),
        )
        for row in body
    ]
    heads = (
        tag("th", words(one), scope="col", class_="number" if one in right else None)
        for one in columns
    )
    inside = tag("thead", tag("tr", *heads)) + tag("tbody", *rows)
    return tag("div", tag("table", inside), class_="scroll")


class Cell:
    """A cell of a table that is markup already."""

    __slots__ = ("markup",)

    def __init__(self, markup: Markup) -> None:
        self.markup = markup
