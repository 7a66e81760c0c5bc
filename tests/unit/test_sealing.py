"""Sealed objects: what the page says, bit for bit, and nothing that was touched is opened."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unseal import unseal

from ckptflow.errors import ConfigError, CorruptionError, ForgedError, TierDenied
from ckptflow.tiers import sealing
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.sealed import HEADS_MAX, SealedTier
from ckptflow.tiers.sealing import HEAD_BYTES, SEGMENT_BYTES, TAG_BYTES
from ckptflow.tiers.storekey import StoreKey

KEY = bytes(range(32))
SIZES = [0, 1, SEGMENT_BYTES - 1, SEGMENT_BYTES, SEGMENT_BYTES + 1, 3 * SEGMENT_BYTES + 7]
encryptions = pytest.mark.parametrize("encrypt", [False, True], ids=["hmac", "aes"])


def filled(size_bytes: int) -> bytes:
    return (bytes(range(251)) * (size_bytes // 251 + 1))[:size_bytes]


@pytest.fixture(params=[False, True], ids=["hmac", "aes"])
def tier(request: pytest.FixtureRequest) -> SealedTier:
    return SealedTier(MemoryTier(), StoreKey(KEY), encrypt=request.param)


@pytest.mark.parametrize("size_bytes", SIZES)
def test_what_is_stored_is_what_the_page_says(tier: SealedTier, size_bytes: int) -> None:
    plain = filled(size_bytes)
    tier.put("a/b", [plain[:5], plain[5:]])
    stored = tier.inner.get("a/b")
    assert unseal(stored, "a/b", KEY) == plain
    assert len(stored) == sealing.stored_bytes(size_bytes)
    assert tier.size("a/b") == size_bytes
    assert tier.get("a/b") == plain


def test_encryption_hides_and_the_other_mode_does_not() -> None:
    plain = filled(1000)
    for encrypt in (False, True):
        tier = SealedTier(MemoryTier(), StoreKey(KEY), encrypt=encrypt)
        tier.put("a", [plain])
        assert (plain in tier.inner.get("a")) is not encrypt


def test_equal_objects_are_stored_differently(tier: SealedTier) -> None:
    tier.put("a", [b"same"])
    first = tier.inner.get("a")
    tier.put("a", [b"same"])
    assert tier.inner.get("a") != first


@given(
    size_bytes=st.integers(0, 3 * SEGMENT_BYTES),
    start=st.integers(0, 3 * SEGMENT_BYTES),
    length=st.integers(0, 2 * SEGMENT_BYTES),
    encrypt=st.booleans(),
)
def test_any_range_is_read(size_bytes: int, start: int, length: int, encrypt: bool) -> None:
    tier = SealedTier(MemoryTier(), StoreKey(KEY), encrypt=encrypt)
    plain = filled(size_bytes)
    tier.put("a", [plain])
    assert tier.get("a", start_bytes=start, size_bytes=length) == plain[start : start + length]
    target = bytearray(length)
    if start + length <= size_bytes:
        tier.read_into("a", target, start_bytes=start)
        assert target == plain[start : start + length]
    else:
        with pytest.raises(CorruptionError, match=f"ends after {size_bytes} bytes"):
            tier.read_into("a", target, start_bytes=start)


def uses(tier: SealedTier, size_bytes: int) -> list[str]:
    """Read an object in each way there is; return what was raised, one name for each way."""
    raised = []
    for use in (
        lambda: tier.get("a"),
        lambda: tier.get("a", start_bytes=0, size_bytes=size_bytes),
        lambda: tier.read_into("a", bytearray(size_bytes)),
    ):
        try:
            use()
            raised.append("")
        except (CorruptionError, TierDenied) as error:
            raised.append(type(error).__name__)
    return raised


def test_every_bit_counts(tier: SealedTier) -> None:
    """One bit changed, wherever it is: whoever reads all is told."""
    tier.put("a", [filled(100)])
    sound = tier.inner.get("a")
    assert uses(tier, 100) == ["", "", ""]
    for place in range(8 * len(sound)):
        changed = bytearray(sound)
        changed[place // 8] ^= 1 << place % 8
        fresh = SealedTier(MemoryTier(), StoreKey(KEY))
        fresh.inner.put("a", [changed])
        assert all(uses(fresh, 100)), f"bit {place}"


@pytest.mark.parametrize("cut", [1, TAG_BYTES, TAG_BYTES + 1, SEGMENT_BYTES + TAG_BYTES, 10**6])
def test_what_is_cut_is_refused(tier: SealedTier, cut: int) -> None:
    size_bytes = 2 * SEGMENT_BYTES + 10
    tier.put("a", [filled(size_bytes)])
    sound = tier.inner.get("a")
    tier.inner.put("a", [sound[: max(0, len(sound) - cut)]])
    fresh = SealedTier(tier.inner, StoreKey(KEY))
    assert uses(fresh, size_bytes) == ["ForgedError"] * 3


def test_segments_cannot_change_places(tier: SealedTier) -> None:
    tier.put("a", [filled(2 * SEGMENT_BYTES)])
    sound = tier.inner.get("a")
    middle = HEAD_BYTES + SEGMENT_BYTES + TAG_BYTES
    tier.inner.put("a", [sound[:HEAD_BYTES], sound[middle:], sound[HEAD_BYTES:middle]])
    assert uses(SealedTier(tier.inner, StoreKey(KEY)), 10)[1:] == ["ForgedError"] * 2


def test_an_object_is_bound_to_its_name(tier: SealedTier) -> None:
    tier.put("a", [b"right"])
    tier.put("b", [b"other"])
    tier.inner.put("a", [tier.inner.get("b")])
    assert uses(tier, 5) == ["ForgedError"] * 3


def test_a_part_of_one_object_does_not_fit_another_of_the_same_name(tier: SealedTier) -> None:
    tier.put("a", [b"first"])
    old = tier.inner.get("a")
    tier.put("a", [b"later"])
    new = tier.inner.get("a")
    tier.inner.put("a", [new[:HEAD_BYTES], old[HEAD_BYTES:]])
    assert uses(tier, 5) == ["ForgedError"] * 3


def test_what_is_not_sealed_is_refused(tier: SealedTier) -> None:
    for forged in (b"", b"{}", b"CKFMANI1" + bytes(100)):
        tier.inner.put("a", [forged])
        with pytest.raises(ForgedError, match="'a' on tier 'memory' is not sealed"):
            tier.get("a")


def test_another_key_is_told_from_a_forgery(tier: SealedTier) -> None:
    tier.put("a", [b"value"])
    other = StoreKey(bytes(32))
    with pytest.raises(
        TierDenied, match=f"with the key {StoreKey(KEY).key_id}, not with {other.key_id}"
    ):
        SealedTier(tier.inner, other).get("a")


def test_an_object_put_anew_is_read_anew(tier: SealedTier) -> None:
    """What is remembered of an object may be old: another process may have put it again."""
    tier.put("a", [filled(2 * SEGMENT_BYTES)])
    tier.get("a", start_bytes=1, size_bytes=1)
    SealedTier(tier.inner, StoreKey(KEY)).put("a", [b"shorter"])
    assert tier.get("a", start_bytes=1, size_bytes=4) == b"hort"


def test_memory_for_heads_is_bounded(tier: SealedTier) -> None:
    for number in range(HEADS_MAX + 10):
        tier.put(f"k{number}", [b"x"])
        tier.get(f"k{number}", size_bytes=1)
    assert len(tier._heads) == HEADS_MAX


def test_both_modes_are_read_by_either() -> None:
    plain = SealedTier(MemoryTier(), StoreKey(KEY))
    hidden = SealedTier(plain.inner, StoreKey(KEY), encrypt=True)
    plain.put("a", [b"1"])
    hidden.put("b", [b"2"])
    assert (hidden.get("a"), plain.get("b")) == (b"1", b"2")


def test_no_secret_is_shown(tier: SealedTier) -> None:
    shown = f"{tier!r} {tier.spec}"
    assert KEY.hex() not in shown
    assert str(KEY) not in shown
    assert StoreKey(KEY).key_id in shown


def test_encryption_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(ConfigError, match=r"ckptflow\[encryption\]"):
        sealing.check_cipher()


@pytest.mark.parametrize("size_bytes", [0, 1 << 40, 1 << 62, (1 << 64) - 1])
@pytest.mark.parametrize("asked", [{"size_bytes": 64}, {"start_bytes": 1}])
def test_a_head_alone_is_not_believed(size_bytes: int, asked: dict[str, int]) -> None:
    """Anybody can write one: that nothing follows has to be sealed, too."""
    key, inner = StoreKey(KEY), MemoryTier()
    mode, key_id = sealing.Mode.AUTHENTICATED, bytes.fromhex(key.key_id)
    inner.put("a", [sealing.Head(mode, key_id, bytes(16), size_bytes).encode()])
    with pytest.raises(ForgedError):
        SealedTier(inner, key).get("a", **asked)


def test_past_the_end_there_is_nothing_and_that_is_sealed(tier: SealedTier) -> None:
    for size_bytes in SIZES:
        tier.put("a", [filled(size_bytes)])
        assert tier.get("a", start_bytes=size_bytes + 5) == b""
        assert tier.get("a", start_bytes=size_bytes, size_bytes=7) == b""
        stored = bytearray(tier.inner.get("a"))
        stored[-1] ^= 1
        tier.inner.put("a", [stored])
        with pytest.raises(ForgedError):
            tier.get("a", start_bytes=size_bytes, size_bytes=7)
