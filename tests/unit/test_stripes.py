"""Descriptors of stripes: read back as written, and nothing strange in one is believed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptflow.errors import CorruptionError, FormatError
from ckptflow.manifest import seal
from ckptflow.store.redundancy.stripes import (
    DataPiece,
    ParityPiece,
    Stripe,
    decode,
    encode,
    new_stripe_id,
    parse_object_key,
    time_of,
)

PACK = "lineages/exp/task/packs/000000000001.00000001.0000.0badcafe.pack"
MANIFEST = "lineages/exp/task/manifests/000000000001.00000001.ckpt"


def stripe() -> Stripe:
    return Stripe(
        id="0" * 31 + "7",
        block_bytes=100,
        data=(
            DataPiece("a" * 32, PACK, 250, b"s" * 16),
            DataPiece("b" * 32, PACK, 0, b"t" * 16),
        ),
        parity=(ParityPiece("c" * 32, (b"x" * 16, b"y" * 16, b"z" * 16)),),
    )


def test_what_is_written_is_read_back() -> None:
    one = stripe()
    assert decode(encode(one), where="here") == one
    assert one.parity_bytes == 250
    assert [one.block_size(block) for block in range(3)] == [100, 100, 50]
    assert one.members == ("a" * 32, "b" * 32, "c" * 32)
    assert one.keys_of(2) == tuple(
        f"redundancy/{one.id}/002.0000{block}.parity" for block in range(3)
    )


def test_ids_carry_their_time() -> None:
    made = new_stripe_id(1_735_689_600_000, bytes(10))
    assert len(made) == 32
    assert time_of(made) == 1_735_689_600_000
    assert made < new_stripe_id(1_735_689_600_001, bytes(10))


@given(st.data())
def test_damage_is_noticed(data: st.DataObject) -> None:
    good = encode(stripe())
    place = data.draw(st.integers(0, len(good) - 2))  # But for the end of the last line.
    bad = bytearray(good)
    bad[place] ^= data.draw(st.integers(1, 255))
    for damaged in (bytes(bad), good[:place], good[place + 1 :]):
        with pytest.raises(CorruptionError, match="'here' does not match its seal"):
            decode(damaged, where="'here'")


def sealed(document: Any) -> bytes:
    line = json.dumps(document).encode()
    return line + b"\n" + seal(line).hex().encode() + b"\n"


def changed(**changes: Any) -> bytes:
    document = json.loads(encode(stripe()).split(b"\n")[0])
    return sealed(document | changes)


def piece(**changes: Any) -> dict[str, Any]:
    return {"member": "a" * 32, "key": PACK, "bytes": 250, "seal": "00" * 16} | changes


@pytest.mark.parametrize(
    "data",
    [
        sealed([]),
        sealed({}),
        sealed("x"),
        changed(format="ckptflow-store"),
        changed(version=0),
        changed(version="1"),
        changed(stripe="../../etc"),
        changed(stripe=7),
        changed(block=0),
        changed(block=1 << 40),
        changed(block=True),
        changed(data=[]),
        changed(parity=[]),
        changed(data=[piece(key="../../secret")]),
        changed(data=[piece(key="/etc/passwd")]),
        changed(data=[piece(key="ckptflow-store.json")]),
        changed(data=[piece(key="redundancy/x/stripe.json")]),
        changed(data=[piece(key="lineages/exp/.task/" + PACK[19:])]),
        changed(data=[piece(key=7)]),
        changed(data=[piece(bytes=-1)]),
        changed(data=[piece(bytes=1 << 62)]),
        changed(data=[piece(bytes=250.0)]),
        changed(data=[piece(bytes=301)]),
        changed(data=[piece(seal="00")]),
        changed(data=[piece(seal="zz" * 16)]),
        changed(data=[piece(member="A" * 32)]),
        changed(data=[piece(), piece()]),
        changed(data=[piece(member="c" * 32)]),
        changed(data=[piece(member=f"{n:032x}") for n in range(300)]),
        changed(parity=[{"member": "c" * 32, "seals": ["00" * 16] * 2}]),
        changed(parity=[{"member": "c" * 32, "seals": "00" * 48}]),
        changed(parity=[{"member": "c" * 32}]),
        changed(parity=None),
    ],
)
def test_what_cannot_be_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError, match="does not follow format version 1"):
        decode(data, where="here")


def test_a_newer_version_is_named() -> None:
    with pytest.raises(FormatError, match="format version 2; this ckptflow reads up to"):
        decode(changed(version=2), where="here")


@pytest.mark.parametrize(
    ("key", "known"),
    [
        (PACK, True),
        (MANIFEST, True),
        ("lineages/exp/task/attempts/00000002.resume", True),
        ("lineages/exp/task/attempts/00000002.claim", False),
        ("lineages/exp/task/other/x", False),
        ("lineages/exp/packs/000000000001.00000001.0000.0badcafe.pack", False),
        (PACK + "/x", False),
        ("", False),
    ],
)
def test_only_objects_of_checkpoints_are_coded(key: str, known: bool) -> None:
    assert (parse_object_key(key) is not None) == known
