"""What an agent was asked for survives it; what else lies in its folder is no request."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ckptflow.errors import ConfigError
from ckptflow.flush.agent import ledger as ledgers
from ckptflow.flush.agent.folder import agent_folder, make_agent_folder
from ckptflow.flush.agent.ledger import Entry, Ledger, in_flight, in_flight_of
from ckptflow.flush.agent.protocol import FRAME_BYTES_MAX
from ckptflow.model import CheckpointId, LineageId
from ckptflow.policy.retention import Retention, parse_retention
from ckptflow.tiers.posix import PosixTier

LINEAGE = LineageId("exp", "task")


def entry(step: int, target: str = "far", lineage: LineageId = LINEAGE, **fields) -> Entry:
    return Entry(lineage, CheckpointId(step, 1), target, Retention(newest=3), 10.0, **fields)


def test_requests_outlive_the_agent(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    for step in (3, 1, 2):
        ledger.add(entry(step))
    ledger.add(entry(2))  # The same once more.
    ledger.done(entry(1))
    ledger.done(entry(9))
    assert Ledger(tmp_path).pending() == [entry(2), entry(3)]


@pytest.mark.parametrize(
    "retention", ["all", "newest=3,every=10", "newest=1,best=loss:min:2", "2"]
)
def test_an_entry_is_read_as_it_was_written(retention: str) -> None:
    whole = replace(entry(5, target="ä/b c"), retention=parse_retention(retention))
    assert Entry.of(json.loads(json.dumps(whole.as_json()))) == whole


def test_what_is_kept_elsewhere_goes_with_it() -> None:
    rules = tuple((name, parse_retention(keep)) for name, keep in (("a", "3"), ("b", "all")))
    one = entry(4, elsewhere=rules)
    assert Entry.of(one.as_json()) == one
    fields = {**one.as_json(), "elsewhere": ["a"]}
    with pytest.raises(ConfigError, match="no request for a copy"):
        Entry.of(fields)


def test_failures_are_kept_until_the_same_is_asked_for_again(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    for step in (1, 2):
        ledger.add(entry(step))
        ledger.fail(entry(step), f"no room for {step}", reported=False)
    assert ledger.pending() == []
    ledger.mark_reported(entry(2, error="no room for 2"))
    ledger.mark_reported(entry(7))  # Unknown.
    assert Ledger(tmp_path).failures() == [
        entry(1, error="no room for 1"),
        entry(2, error="no room for 2", reported=True),
    ]
    ledger.add(entry(1))
    assert [one.id.step for one in ledger.failures()] == [2]


def test_there_is_a_limit_to_failures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledgers, "FAILED_MAX", 3)
    ledger = Ledger(tmp_path)
    for step in range(6):
        ledger.fail(replace(entry(step), since=float(step)), "no", reported=False)
    assert [one.id.step for one in ledger.failures()] == [3, 4, 5]


def test_what_is_on_its_way_is_known_from_names(tmp_path: Path) -> None:
    ledger, other = Ledger(tmp_path), LineageId("exp", "other")
    for one in (entry(1), entry(2), entry(2, "further"), entry(5, lineage=other)):
        ledger.add(one)
    assert set(in_flight(tmp_path, LINEAGE)) == {CheckpointId(1, 1), CheckpointId(2, 1)}
    assert in_flight(tmp_path, other) == [CheckpointId(5, 1)]
    assert in_flight(tmp_path / "missing", LINEAGE) == []


def test_it_is_known_from_the_tiers_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    tiers = [PosixTier(tmp_path / "a", name="a"), PosixTier(tmp_path / "b", name="b")]
    assert in_flight_of(tiers, LINEAGE) == []
    assert not agent_folder([tier.spec for tier in tiers]).exists()
    Ledger(make_agent_folder([tier.spec for tier in tiers])).add(entry(4))
    assert in_flight_of(tiers, LINEAGE) == [CheckpointId(4, 1)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"run": "../x", "task": "t", "step": 1, "attempt": 1, "target": "t", '
        '"retention": "2", "since": 1}',
        '{"run": "r", "task": "t", "step": "x", "attempt": 1, "target": "t", '
        '"retention": "2", "since": 1}',
        '{"run": "r", "task": "t", "step": 1, "attempt": 1, "target": "t", '
        '"retention": "everything", "since": 1}',
    ],
)
def test_what_is_no_request_is_set_aside(tmp_path: Path, text: str) -> None:
    ledger = Ledger(tmp_path)
    (tmp_path / "pending" / "x.json").write_text(text)
    ledger.add(entry(1))
    assert ledger.pending() == [entry(1)]
    assert len(list((tmp_path / "pending").iterdir())) == 1
    assert (tmp_path / "unread-x.json").read_text() == text  # Of a newer version, maybe.


def test_plain_data_that_is_no_entry() -> None:
    with pytest.raises(ConfigError, match="is no request for a copy"):
        Entry.of({"run": "r"})


def test_stores_that_were_seen_are_remembered(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    assert ledger.stores() == {}
    ledger.note_stores({"far": "abc"})
    assert Ledger(tmp_path).stores() == {"far": "abc"}
    (tmp_path / "stores.json").write_text("[1]")
    assert ledger.stores() == {}


def test_all_failures_go_into_one_message(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.fail(entry(1), "no" * 10_000, reported=False)
    ledger.fail(entry(2), "no" * 1000, reported=False)
    first, second = ledger.failures()
    assert first.error == "no" * 999 + "n…"
    assert second.error == "no" * 1000
    row_bytes = len(json.dumps(first.as_json()))
    assert ledgers.FAILED_MAX * row_bytes < FRAME_BYTES_MAX
