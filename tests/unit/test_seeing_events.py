"""Events are read in order of time, once each, and no line can stop their reader."""

from __future__ import annotations

import json
from pathlib import Path

from ckptflow.workflow.seeing.events import Reader, seconds_of


def line(event: str, second: float) -> str:
    return json.dumps({"event": event, "time": f"2026-01-01T00:00:{second:06.3f}+00:00"}) + "\n"


def names(reader: Reader) -> list[str]:
    return [event["event"] for event in reader.new()]


def test_journal_and_trails_are_one_stream_in_order_of_time(tmp_path: Path) -> None:
    (tmp_path / "trail").mkdir()
    (tmp_path / "journal.jsonl").write_text(line("a", 1) + line("d", 4))
    (tmp_path / "trail" / "x.jsonl").write_text(line("b", 2) + line("e", 5))
    (tmp_path / "trail" / "y.jsonl").write_text(line("c", 3))
    assert names(Reader(tmp_path)) == ["a", "b", "c", "d", "e"]


def test_who_looks_again_gets_what_is_new(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    reader = Reader(tmp_path)
    assert names(reader) == []
    journal.write_text(line("a", 1))
    assert names(reader) == ["a"]
    whole = line("b", 2)
    with journal.open("a") as file:
        file.write(whole[:20])
        file.flush()
        assert names(reader) == []  # Its writer is within the line.
        file.write(whole[20:])
        file.flush()
        assert names(reader) == ["b"]
    (tmp_path / "trail").mkdir()
    (tmp_path / "trail" / "late.jsonl").write_text(line("c", 0))
    assert names(reader) == ["c"]
    assert names(reader) == []


def test_what_is_no_event_is_passed_over(tmp_path: Path) -> None:
    nonsense = [
        "", "{", "[1]", '"text"', '{"event": 3, "time": "2026-01-01T00:00:00+00:00"}',
        '{"event": "no-time"}', '{"event": "local", "time": "2026-01-01T00:00:00"}',
        '{"event": "odd", "time": 12}', "[" * 100_000, "\x00\xff",
    ]  # fmt: skip
    text = "\n".join(nonsense) + "\n" + line("sound", 1)
    (tmp_path / "journal.jsonl").write_text(text)
    assert names(Reader(tmp_path)) == ["sound"]


def test_times_are_read_with_their_zone_only() -> None:
    assert seconds_of("1970-01-01T00:00:01+00:00") == 1
    assert seconds_of("1970-01-01T01:00:01+01:00") == 1
    for text in ("1970-01-01T00:00:01", "now", None, 3):
        assert seconds_of(text) is None
