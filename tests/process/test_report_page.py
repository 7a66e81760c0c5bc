"""The report in a real browser: it shows what it should, asks nobody, and runs nothing else.

The story is made by hand, with names that try to become markup. A picture of the page is left
beside a failed test.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import browser
import pytest

from ckptflow.workflow.seeing.model import Attempt, Checkpoint, Copy, Life, RunStory, Task, Try
from ckptflow.workflow.seeing.report.page import page

pytestmark = [
    pytest.mark.skipif(browser.program() is None, reason=browser.LACKS),
    pytest.mark.xdist_group("report-page"),
]

HOSTILE = '</title></script><script>document.title="owned"</script><img src=x onerror=alert(1)>'
T0 = 1_796_000_000.0


def checkpoint(step: int, attempt: int, at_s: float, *, present: bool) -> Checkpoint:
    copies = (
        Copy(tier="nvme", level=1, stored_s=at_s + 0.2, present=present),
        Copy(tier="pfs", level=3, stored_s=at_s + 3, present=True),
    )
    return Checkpoint(step=step, attempt=attempt, taken_s=at_s, blocked_s=0.01,
                      state_bytes=10**6, stored_bytes=10**5, copies=copies,
                      status="ok")  # fmt: skip


def story() -> RunStory:
    lost = Attempt(
        number=1, life=0, began_s=T0 + 10, ended_s=T0 + 100, ending="lost", resumed=True,
        reason=f"WorkerLost: {HOSTILE}", reached_step=70, saved_step=60, lost_s=12.5,
        lost_steps=10, blocked_s=0.6, where={"host": "node<1>", "block": "0"},
        launch=Try(number=1, life=0, launched_s=T0 + 5, error="WorkerLost"),
    )  # fmt: skip
    second = Attempt(number=2, life=1, began_s=T0 + 90_000, ended_s=T0 + 90_090,
                     ending="finished", resumed=True, resumed_step=60,
                     reached_step=120)  # fmt: skip
    saves = [checkpoint(step, 1, T0 + 10 + step, present=False) for step in range(10, 70, 10)]
    saves += [checkpoint(s, 2, T0 + 90_000 + s - 60, present=True) for s in range(70, 130, 10)]
    tasks = [
        Task(name="work-seed=1", state="finished", attempts=(lost, second),
             checkpoints=tuple(saves), step=120, total_steps=120),
        Task(name=HOSTILE, state="failed", error=HOSTILE, attempts=(
            Attempt(number=None, life=1, began_s=T0 + 90_000, ended_s=T0 + 90_050,
                    ending="failed", reason=HOSTILE),)),
    ]  # fmt: skip
    lives = (
        Life(session="a", began_s=T0, ended_s=T0 + 200, died=True, host="login", pid=1,
             script=("flow.py", HOSTILE), folder="/scratch", site="delta"),
        Life(session="b", began_s=T0 + 89_990, ended_s=T0 + 90_100, exit_code=1, host="login",
             pid=2, script=("flow.py",), folder="/scratch", site="delta", error=HOSTILE),
    )  # fmt: skip
    return RunStory(
        run="night", state="ended", now_s=T0 + 95_000, lives=lives, tasks=tuple(tasks),
        news=((T0 + 89_991, HOSTILE),), notes=(HOSTILE,), tiers=(("nvme", 1), ("pfs", 3)),
    )  # fmt: skip


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Browser]:
    with browser.Browser(tmp_path_factory.mktemp("browser")) as one:
        yield one


@pytest.fixture
def opened(chromium: browser.Browser, tmp_path: Path) -> Iterator[browser.Browser]:
    file = tmp_path / "report.html"
    file.write_text(page(story()))
    chromium.open(file)
    yield chromium
    chromium.screenshot(tmp_path / "report.png")


def texts(one: browser.Browser, selector: str) -> list[str]:
    found = one.evaluate(
        f"JSON.stringify([...document.querySelectorAll({json.dumps(selector)})]"
        ".map(e => e.textContent))"
    )
    return list(json.loads(found))


def test_the_page_asks_nobody_and_has_no_errors(opened: browser.Browser) -> None:
    assert [url for url in opened.requests if not url.startswith("file:")] == []
    assert len(opened.requests) == 1
    assert opened.console == []


def test_names_from_elsewhere_stay_text(opened: browser.Browser) -> None:
    assert opened.evaluate("document.title") == "Run night"
    assert opened.evaluate("document.querySelectorAll('img').length") == 0
    assert opened.evaluate("document.querySelectorAll('script').length") == 1
    assert HOSTILE in texts(opened, "td")


def test_a_script_that_got_in_all_the_same_would_not_run(
    chromium: browser.Browser, tmp_path: Path
) -> None:
    """The policy of the page is the second lock: here somebody has got past the first."""
    file = tmp_path / "report.html"
    wrong = "<script>document.title = 'owned'</script><img src='http://127.0.0.1:9/x.png'>"
    file.write_text(page(story()).replace("<main>", f"<main>{wrong}"))
    chromium.open(file)
    assert chromium.evaluate("document.title") == "Run night"
    assert any("Content Security Policy" in text for text in chromium.console)


def test_the_plots_show_what_happened(opened: browser.Browser) -> None:
    titles = texts(opened, "section > h2")
    for title in ("Timeline", "Progress", "Bytes", "Cost of saves", "What went wrong", "Tasks"):
        assert title in titles
    count = "document.querySelectorAll('{}').length".format
    assert opened.evaluate(count("#timeline-title")) == 1
    assert opened.evaluate(count(".bar.lost")) == 1
    assert opened.evaluate(count(".bar.finished")) == 1
    assert opened.evaluate(count(".lost-part")) == 1
    assert opened.evaluate(count(".death")) == 1
    assert opened.evaluate(count(".gap")) >= 1  # The night between the two starts.
    for tier in (0, 1):
        assert opened.evaluate(count(f".mark.tier-{tier}")) >= 6
    # Whatever is drawn lies within its plot, and takes room.
    outside = opened.evaluate(
        "[...document.querySelectorAll('.plot')].filter(p => {"
        " const b = p.getBoundingClientRect();"
        " return [...p.querySelectorAll('rect,circle,polyline')].some(e => {"
        " const c = e.getBoundingClientRect();"
        " return c.right > b.right + 3 || c.left < b.left - 3 || c.bottom > b.bottom + 3; });"
        " }).length"
    )
    assert outside == 0
    assert opened.evaluate("document.documentElement.scrollWidth") <= 1240


def test_what_is_under_the_pointer_is_told_at_once(opened: browser.Browser) -> None:
    opened.move_to(".bar.lost")
    shown = opened.evaluate(
        "(() => { const t = document.getElementById('tip');"
        " return getComputedStyle(t).display + '|' + t.textContent; })()"
    )
    assert shown.startswith("block|work-seed=1, attempt 1: lost")
    assert "node<1> block 0" in shown
    assert "about 12.5 s of work lost" in shown


def test_the_same_is_in_tables(opened: browser.Browser) -> None:
    rows = texts(opened, "details tbody tr, section > .scroll tbody tr")
    assert any("work-seed=1" in row and "12.5 s" in row and "lost" in row for row in rows)
    assert sum("nvme" in row or "pfs" in row for row in rows) >= 12  # Each checkpoint.


def test_it_works_without_scripts(chromium: browser.Browser, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(page(story()))
    chromium.open(file, script=False)
    document: dict[str, Any] = chromium.call("DOM.getDocument", depth=-1)["root"]
    html = chromium.call("DOM.getOuterHTML", nodeId=document["nodeId"])["outerHTML"]
    assert "work-seed=1, attempt 1: lost" in html.split("</svg>")[0]  # The browser's own tip.
    chromium.call("Emulation.setScriptExecutionDisabled", value=False)


def test_dark_is_dark(chromium: browser.Browser, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(page(story()))
    shades = []
    for dark in (False, True):
        chromium.open(file, dark=dark)
        back, ink = (
            chromium.evaluate(f"getComputedStyle(document.body).{name}")
            for name in ("backgroundColor", "color")
        )
        shades.append([brightness(back), brightness(ink)])
    (light_back, light_ink), (dark_back, dark_ink) = shades
    assert light_back > 200 > 80 > light_ink
    assert dark_back < 60 < 180 < dark_ink


def brightness(colour: str) -> float:
    red, green, blue = (float(x) for x in colour[4:-1].split(",")[:3])
    return 0.3 * red + 0.6 * green + 0.1 * blue


def test_a_run_of_which_nothing_is_known_has_a_page(
    chromium: browser.Browser, tmp_path: Path
) -> None:
    file = tmp_path / "report.html"
    file.write_text(page(RunStory(run="empty", state="unknown", now_s=T0)))
    chromium.open(file)
    assert chromium.console == []
    assert texts(chromium, "h1") == ["empty"]
