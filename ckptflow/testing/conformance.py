"""What every tier must do, as a pytest class.

class TestMyTier(TierConformance):
    @pytest.fixture
    def tier(self) -> Tier:
        return MyTier(...)
"""

from __future__ import annotations

import threading

import pytest

from ckptflow.errors import AlreadyExists, ConfigError, CorruptionError, NotFoundError
from ckptflow.tiers.tier import Tier, last_keys

BAD_KEYS = [
    "",
    "/a",
    "a/",
    "a//b",
    "../a",
    "a/../b",
    ".a",
    "a/.b",
    "a b",
    "a\0b",
    "ä",
    "a" * 2000,
]


class TierConformance:
    """Subclass it and give a fixture ``tier`` that returns an empty tier."""

    def test_is_a_tier(self, tier: Tier) -> None:
        assert isinstance(tier, Tier)
        assert tier.name
        assert tier.level >= 0

    def test_put_joins_its_parts(self, tier: Tier) -> None:
        tier.put("a/b/value", [b"one", bytearray(b""), memoryview(b"two"), b"3"])
        assert tier.get("a/b/value") == b"onetwo3"
        assert tier.size("a/b/value") == 7

    def test_put_takes_many_small_parts(self, tier: Tier) -> None:
        parts = [bytes([number % 251]) * (number % 7) for number in range(5000)]
        tier.put("many", parts)
        assert tier.get("many") == b"".join(parts)

    def test_empty_value(self, tier: Tier) -> None:
        tier.put("empty", [])
        assert tier.get("empty") == b""
        assert tier.size("empty") == 0
        assert list(tier.iter_keys("")) == ["empty"]

    def test_put_of_the_same_bytes_again(self, tier: Tier) -> None:
        tier.put("key", [b"value"])
        tier.put("key", [b"val", b"ue"])
        assert tier.get("key") == b"value"

    def test_value_does_not_follow_its_source(self, tier: Tier) -> None:
        source = bytearray(b"before")
        tier.put("key", [source])
        source[:] = b"after!"
        assert tier.get("key") == b"before"

    def test_create_succeeds_once(self, tier: Tier) -> None:
        if _refuses_to_create(tier):
            return
        tier.create("claims/1", b"mine")
        with pytest.raises(AlreadyExists, match="claims/1"):
            tier.create("claims/1", b"yours")
        assert tier.get("claims/1") == b"mine"

    def test_create_has_one_winner_among_threads(self, tier: Tier) -> None:
        if _refuses_to_create(tier):
            return
        barrier, winners = threading.Barrier(8), []

        def compete(number: int) -> None:
            barrier.wait()
            try:
                tier.create("claims/1", b"%d" % number)
            except AlreadyExists:
                return
            winners.append(number)

        threads = [threading.Thread(target=compete, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(winners) == 1
        assert tier.get("claims/1") == b"%d" % winners[0]

    @pytest.mark.parametrize(
        ("start", "size", "expected"),
        [(0, 3, b"012"), (3, None, b"3456789"), (8, 100, b"89"), (10, 1, b""), (50, 1, b"")],
    )
    def test_get_a_range(
        self, tier: Tier, start: int, size: int | None, expected: bytes
    ) -> None:
        tier.put("key", [b"0123456789"])
        assert tier.get("key", start_bytes=start, size_bytes=size) == expected

    def test_read_into_fills_the_target(self, tier: Tier) -> None:
        tier.put("key", [b"0123456789"])
        target = bytearray(4)
        tier.read_into("key", target, start_bytes=3)
        assert target == b"3456"

    def test_read_into_past_the_end(self, tier: Tier) -> None:
        tier.put("key", [b"0123456789"])
        with pytest.raises(CorruptionError, match=r"'key'.*10 bytes.*4 bytes"):
            tier.read_into("key", bytearray(4), start_bytes=7)

    def test_absent_keys(self, tier: Tier) -> None:
        tier.put("a/b", [b""])
        for missing in ("nothing", "a", "a/c", "a/b/c"):
            with pytest.raises(NotFoundError, match=f"'{missing}'"):
                tier.get(missing)
            with pytest.raises(NotFoundError, match=f"'{missing}'"):
                tier.read_into(missing, bytearray(1))
            with pytest.raises(NotFoundError, match=f"'{missing}'"):
                tier.size(missing)

    def test_keys_are_listed_by_folder_and_sorted(self, tier: Tier) -> None:
        for key in ("b/2", "a/2", "a/10", "ab/1", "a/c/1", "top"):
            tier.put(key, [b"x"])
        assert list(tier.iter_keys("a")) == ["a/10", "a/2", "a/c/1"]
        assert list(tier.iter_keys("")) == ["a/10", "a/2", "a/c/1", "ab/1", "b/2", "top"]
        assert list(tier.iter_keys("nothing")) == []

    def test_folders_are_listed_while_they_hold_keys(self, tier: Tier) -> None:
        for key in ("runs/b/1", "runs/a/x/2", "runs/file"):
            tier.put(key, [b"x"])
        assert list(tier.iter_folders("runs")) == ["a", "b"]
        assert list(tier.iter_folders("")) == ["runs"]
        tier.delete("runs/b/1")
        assert list(tier.iter_folders("runs")) == ["a"]

    def test_last_keys_of_a_folder(self, tier: Tier) -> None:
        for key in ("a/2", "a/10", "a/9/deeper", "a/1", "ab", "b/7"):
            tier.put(key, [b"x"])
        assert last_keys(tier, "a", 2) == ["a/2", "a/10"]
        assert last_keys(tier, "a", 9) == ["a/2", "a/10", "a/1"]
        assert last_keys(tier, "a", 0) == []
        assert last_keys(tier, "", 1) == ["ab"]
        assert last_keys(tier, "nothing", 3) == []
        with pytest.raises(ConfigError, match="is not a key"):
            last_keys(tier, "../a", 1)

    def test_delete(self, tier: Tier) -> None:
        tier.put("key", [b"x"])
        tier.delete("key")
        tier.delete("key")
        assert list(tier.iter_keys("")) == []

    @pytest.mark.parametrize("key", BAD_KEYS)
    def test_bad_keys_touch_nothing(self, tier: Tier, key: str) -> None:
        for use in (
            lambda: tier.put(key, [b"x"]),
            lambda: tier.create(key, b"x"),
            lambda: tier.get(key),
            lambda: tier.size(key),
            lambda: tier.delete(key),
        ):
            with pytest.raises(ConfigError, match="is not a key"):
                use()
        assert list(tier.iter_keys("")) == []


def _refuses_to_create(tier: Tier) -> bool:
    """Tell whether ``tier`` leaves claims to others; then it says so and stores nothing."""
    if tier.can_create:
        return False
    with pytest.raises(ConfigError, match="claims/1"):
        tier.create("claims/1", b"mine")
    assert list(tier.iter_keys("")) == []
    return True
