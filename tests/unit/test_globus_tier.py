"""Transfers by Globus that do not go straight: interrupted, refused, late, replaced.

Method: the real SDK down to its HTTP requests, answered by an imitation of the service.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from globus_service import REMOTE, STAGING, GlobusService, client, imitated

from ckptflow.checkpointer import Checkpointer
from ckptflow.errors import ConfigError, NotFoundError, TierDenied, TierFull, TierUnavailable
from ckptflow.site.tiers import tier_model
from ckptflow.tiers.globus import GlobusTier
from ckptflow.tiers.globus_carrier import GlobusPlaces
from ckptflow.tiers.globus_tasks import Polling
from ckptflow.tiers.opening import open_tier, spec_of
from ckptflow.tiers.posix import PosixTier

DAYS_LATER_S = 4e9


@pytest.fixture
def service(tmp_path: Path) -> Iterator[GlobusService]:
    with imitated(GlobusService(tmp_path)) as service:
        yield service


def tier_in(folder: Path, **more: object) -> GlobusTier:
    """Return a tier that is impatient: it waits for nothing that is not done at once."""
    places = GlobusPlaces(REMOTE, "/store", STAGING, folder / "staging" / "ckpt", "/ckpt")
    arguments = {"polling": Polling(0.0, 0.001), "client": client(), "name": "far", **more}
    return GlobusTier(places, **arguments)


def remote_files(folder: Path) -> dict[str, bytes]:
    root = folder / "remote" / "store"
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def count(service: GlobusService, method: str, path: str) -> int:
    return service.requests.count((method, path))


# --- out -------------------------------------------------------------------------------


def test_what_is_asked_for(service: GlobusService, tmp_path: Path) -> None:
    tier_in(tmp_path).put("a/key.1", [b"value"])
    (body,) = service.bodies
    assert body["verify_checksum"] is True
    assert body["sync_level"] == 3, "by checksum"
    assert body["fail_on_quota_errors"] is True
    assert {body[f"notify_on_{what}"] for what in ("succeeded", "failed", "inactive")} == {
        False
    }
    assert body["label"] == "ckptflow a-key-1"
    (item,) = body["DATA"]
    assert item["source_path"].startswith("/ckpt/out/")
    assert item["destination_path"].startswith("/store/.incoming/")
    assert remote_files(tmp_path) == {"a/key.1": b"value"}
    assert not list((tmp_path / "staging" / "ckpt" / "out").iterdir())
    assert not list((tmp_path / "staging" / "ckpt" / "journal").glob("*.json"))


def test_half_a_value_is_never_seen(service: GlobusService, tmp_path: Path) -> None:
    service.hold = True
    tier = tier_in(tmp_path)
    with pytest.raises(TierUnavailable, match=r"'a/key' on tier 'far'.*is ACTIVE.*takes it up"):
        tier.put("a/key", [b"value"])
    assert list(remote_files(tmp_path).values()) == [b"va"], "it arrives under another name"
    assert list(tier.iter_keys("")) == []
    with pytest.raises(NotFoundError, match="'a/key'"):
        tier.get("a/key")


def test_what_is_late_is_taken_up_and_not_submitted_again(
    service: GlobusService, tmp_path: Path
) -> None:
    service.hold = True
    for _ in range(3):  # Each time another object, as another process would have.
        with pytest.raises(TierUnavailable, match="takes it up"):
            tier_in(tmp_path).put("a/key", [b"val", b"ue"])
    service.hold = False
    tier_in(tmp_path).put("a/key", [b"value"])
    assert count(service, "POST", "/transfer") == 1
    assert remote_files(tmp_path) == {"a/key": b"value"}


def test_other_bytes_give_the_old_task_up(service: GlobusService, tmp_path: Path) -> None:
    service.hold = True
    with pytest.raises(TierUnavailable, match="takes it up"):
        tier_in(tmp_path).put("key", [b"old"])
    service.hold = False
    tier_in(tmp_path).put("key", [b"new"])
    states = [task["status"] for task in service.tasks.values()]
    assert states == ["FAILED", "SUCCEEDED"], "the first one was cancelled"
    assert tier_in(tmp_path).get("key") == b"new"


def test_a_submission_of_which_nobody_heard_is_repeated(
    service: GlobusService, tmp_path: Path
) -> None:
    """The request arrives, its answer does not: the same id is submitted once more."""
    lost = service._accepted

    def lose(code: str, task_id: str) -> tuple[int, dict[str, object]]:
        service._accepted = lost
        return 503, {"code": "ServiceUnavailable", "message": "lost"}

    service._accepted = lose
    with pytest.raises(TierUnavailable, match="503"):
        tier_in(tmp_path).put("key", [b"value"])
    tier_in(tmp_path).put("key", [b"value"])
    assert count(service, "POST", "/transfer") == 2
    assert len(service.tasks) == 1
    assert remote_files(tmp_path) == {"key": b"value"}


def test_polling_survives_a_service_that_is_away(
    service: GlobusService, tmp_path: Path
) -> None:
    away = (503, {"code": "ServiceUnavailable", "message": "away"})
    service.faults["GET /task/"] = [away] * 3
    tier_in(tmp_path, polling=Polling(60.0, 0.001)).put("key", [b"value"])
    assert remote_files(tmp_path) == {"key": b"value"}


def test_a_rename_whose_answer_is_lost(service: GlobusService, tmp_path: Path) -> None:
    """It cannot be told from a value that was swept, so it is carried once more."""
    operation = service._operation

    def lose(collection: str, name: str, *rest: object) -> tuple[int, dict[str, object]]:
        answer = operation(collection, name, *rest)
        if name != "rename":
            return answer
        service._operation = operation
        return 503, {"code": "Away", "message": "gone"}

    service._operation = lose
    tier = tier_in(tmp_path)
    tier.put("key", [b"value"])
    assert remote_files(tmp_path) == {"key": b"value"}
    assert count(service, "POST", "/transfer") == 2
    assert tier.get("key") == b"value"


def test_an_arrival_that_somebody_removes(service: GlobusService, tmp_path: Path) -> None:
    gone = [(404, {"code": "NotFound", "message": "No such file or directory"})] * 20
    service.faults["POST .*rename"] = list(gone)
    service.faults["GET .*stat"] = list(gone)
    with pytest.raises(TierUnavailable, match=r"arrived 3 times.*'\.incoming'"):
        tier_in(tmp_path).put("key", [b"value"])
    assert count(service, "POST", "/transfer") == 3


def test_a_rename_that_fails_for_another_reason_deletes_nothing(
    service: GlobusService, tmp_path: Path
) -> None:
    tier = tier_in(tmp_path)
    tier.put("key", [b"before"])
    service.faults["POST .*rename"] = [(503, {"code": "Away", "message": "gone"})] * 2
    with pytest.raises(TierUnavailable, match=r"write 'key'.*Away"):
        tier.put("key", [b"after!"])
    assert tier.get("key") == b"before"
    tier.put("key", [b"after!"])
    assert tier.get("key") == b"after!"
    assert count(service, "POST", "/transfer") == 4, "two out, and two copies in"


def test_a_folder_that_somebody_removed_is_made_again(
    service: GlobusService, tmp_path: Path
) -> None:
    tier = tier_in(tmp_path)
    tier.put("a/key", [b"1"])
    tier.delete("a/key")
    (tmp_path / "remote" / "store" / "a").rmdir()
    tier.put("a/key", [b"2"])
    assert tier.get("a/key") == b"2"


# --- faults ----------------------------------------------------------------------------

FAULT = {"code": "PERMISSION_DENIED", "description": "denied", "is_error": True, "details": "x"}
QUOTA = {"status": "FAILED", "fatal_error": {"code": "QUOTA_EXCEEDED", "description": "full"}}


@pytest.mark.parametrize(
    ("trouble", "expected", "told"),
    [
        ({"nice_status": "PERMISSION_DENIED", "events": [FAULT]}, TierDenied, "denied; x"),
        ({"status": "INACTIVE", "nice_status": "CREDENTIALS_EXPIRED"}, TierDenied, "log_in"),
        (QUOTA, TierFull, "QUOTA_EXCEEDED; full"),
        ({"status": "FAILED"}, TierUnavailable, "is FAILED"),
    ],
)
def test_a_task_in_trouble_is_given_up_and_begun_anew(
    service: GlobusService,
    tmp_path: Path,
    trouble: dict[str, object],
    expected: type[Exception],
    told: str,
) -> None:
    service.trouble = trouble
    with pytest.raises(expected, match=f"write 'key' on tier 'far'.*{told}"):
        tier_in(tmp_path).put("key", [b"value"])
    assert not list((tmp_path / "staging" / "ckpt" / "out").iterdir())
    service.trouble = {}
    tier_in(tmp_path).put("key", [b"value"])
    assert tier_in(tmp_path).get("key") == b"value"


def test_a_task_that_globus_has_forgotten_is_begun_anew(
    service: GlobusService, tmp_path: Path
) -> None:
    service.hold = True
    with pytest.raises(TierUnavailable, match="takes it up"):
        tier_in(tmp_path).put("key", [b"value"])
    service.hold = False
    service.tasks.clear()
    with pytest.raises(TierUnavailable, match="TaskNotFound"):
        tier_in(tmp_path).put("key", [b"value"])
    tier_in(tmp_path).put("key", [b"value"])
    assert tier_in(tmp_path).get("key") == b"value"


def test_unavailable_is_not_absent(service: GlobusService, tmp_path: Path) -> None:
    tier = tier_in(tmp_path)
    tier.put("key", [b"value"])
    service.faults["GET .*stat"] = [(404, {"code": "EndpointNotFound", "message": "no"})]
    with pytest.raises(TierDenied, match="id of the collection"):
        tier.get("key")
    service.tasks.clear()
    service.faults["POST /transfer"] = [(404, {"code": "NotFound", "message": "no"})]
    with pytest.raises(TierUnavailable, match=r"read 'key'.*404"):
        tier.get("key")


def test_a_full_staging_folder(service: GlobusService, tmp_path: Path) -> None:
    (tmp_path / "staging" / "ckpt").write_text("not a folder")
    with pytest.raises(TierUnavailable, match=r"write 'key'.*staging folder"):
        tier_in(tmp_path).put("key", [b"value"])


# --- in --------------------------------------------------------------------------------


def test_ranges_are_read_from_one_copy(service: GlobusService, tmp_path: Path) -> None:
    tier_in(tmp_path).put("pack", [bytes(range(100))])
    tier, before = tier_in(tmp_path), len(service.tasks)
    for first in range(0, 100, 10):
        assert tier.get("pack", start_bytes=first, size_bytes=3)[0] == first
    assert len(service.tasks) == before + 1
    assert count(service, "GET", f"/operation/endpoint/{REMOTE}/stat") <= 3


def test_a_value_that_was_replaced_is_read_anew(service: GlobusService, tmp_path: Path) -> None:
    theirs, ours = tier_in(tmp_path), tier_in(tmp_path)
    theirs.put("manifest", [b"first"])
    assert ours.get("manifest") == b"first"
    theirs.put("manifest", [b"second one"])
    assert ours.get("manifest") == b"second one"


def test_a_read_that_is_late_is_taken_up(service: GlobusService, tmp_path: Path) -> None:
    tier_in(tmp_path).put("key", [b"value"])
    service.hold = True
    for _ in range(2):
        with pytest.raises(TierUnavailable, match=r"read 'key'.*takes it up"):
            tier_in(tmp_path).get("key")
    service.hold = False
    assert tier_in(tmp_path).get("key") == b"value"
    assert count(service, "POST", "/transfer") == 2


def test_a_copy_that_came_short_is_not_believed(service: GlobusService, tmp_path: Path) -> None:
    tier_in(tmp_path).put("key", [b"value"])
    work = service._work

    def shrink(task: dict[str, object]) -> None:
        (tmp_path / "remote" / "store" / "key").write_bytes(b"val")
        work(task)

    service._work = shrink
    with pytest.raises(TierUnavailable, match="has 5 bytes, and 3 came"):
        tier_in(tmp_path).get("key")


def test_threads_share_transfers_of_one_key(service: GlobusService, tmp_path: Path) -> None:
    tier = tier_in(tmp_path, polling=Polling(60.0, 0.001))
    tier.put("pack", [b"value"])
    before = len(service.tasks)
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(tier.get, ["pack"] * 8)) == {b"value"}
        assert len(service.tasks) == before + 1
        list(pool.map(lambda number: tier.put(f"a/{number % 4}", [b"x" * number]), range(4)))
    assert [tier.size(key) for key in tier.iter_keys("a")] == [0, 1, 2, 3]


# --- the rest --------------------------------------------------------------------------


def test_long_listings_come_by_pages(
    service: GlobusService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ckptflow.tiers.globus_collection._PAGE", 7)
    folder = tmp_path / "remote" / "store" / "a"
    folder.mkdir(parents=True)
    names = [f"{number:03d}" for number in range(21)]
    for name in names:
        (folder / name).write_bytes(b"")
    assert list(tier_in(tmp_path).iter_keys("")) == [f"a/{name}" for name in names]


def test_what_others_left_is_swept_and_what_is_ours_is_not(
    service: GlobusService, tmp_path: Path
) -> None:
    service.hold = True
    tier = tier_in(tmp_path)
    with pytest.raises(TierUnavailable, match="takes it up"):
        tier.put("ours", [b"value"])
    service.hold = False
    incoming = tmp_path / "remote" / "store" / ".incoming"
    (incoming / "theirs").write_bytes(b"half")
    lost = tmp_path / "staging" / "ckpt" / "out" / "lost"
    lost.write_bytes(b"half")
    assert tier.sweep("") == 0, "their writers may be alive"
    assert tier.sweep("", now_s=DAYS_LATER_S) == 2
    assert not lost.exists()
    assert not (incoming / "theirs").exists()
    tier.put("ours", [b"value"])
    assert tier.get("ours") == b"value"


def test_a_spec_holds_no_secret_and_opens_the_same_tier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOBUS_CLIENT_SECRET", "open-sesame")
    tier = tier_in(tmp_path, polling=None)
    for text in (str(tier.spec), repr(tier)):
        assert "open-sesame" not in text
        assert "a-token-for-tests" not in text
    assert open_tier(tier_model(tier.spec).spec).spec == tier.spec


def test_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="set CKPTFLOW_GLOBUS_STAGING"):
        spec_of(f"globus://{REMOTE}/a")
    monkeypatch.setenv("CKPTFLOW_GLOBUS_STAGING", f"{STAGING}:/scratch/me")
    spec = spec_of(f"globus://{REMOTE}/a%20b")
    assert (spec["collection"], spec["path"], spec["staging"]) == (
        REMOTE,
        "/a b",
        "/scratch/me",
    )
    assert tier_model(spec).spec["staging_collection"] == STAGING
    with pytest.raises(ConfigError, match="write globus://COLLECTION/path"):
        spec_of(f"globus://{REMOTE}")


def test_checkpoints_flushed_through_globus_are_restored(
    service: GlobusService, tmp_path: Path
) -> None:
    tier = tier_in(tmp_path)
    with Checkpointer([PosixTier(tmp_path / "near"), tier], task="t", rng=False) as ckpt:
        for step in (1, 2, 3):
            ckpt.save(step, {"i": step, "w": bytearray([step]) * 10_000})
    again = Checkpointer([PosixTier(tmp_path / "empty"), tier], task="t", rng=False)
    restored = again.restore({"i": 0, "w": bytearray(10_000)})
    assert (restored["i"], set(restored["w"])) == (3, {3})
