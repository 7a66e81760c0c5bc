"""A run in one file: what comes out is what went in, and what does not belong is refused.

Hostile archives are made with `tarfile` itself, byte by byte where that refuses.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from ckptflow.checkpointer import Checkpointer
from ckptflow.errors import CheckpointError, ConfigError, CorruptionError, FormatError
from ckptflow.model import CheckpointId, LineageId
from ckptflow.store.catalog import Lineage, lineages
from ckptflow.store.moving import archive
from ckptflow.store.moving.archive import read_archive, write_archive
from ckptflow.store.moving.items import MoveReport
from ckptflow.store.verify import verify
from ckptflow.tiers.durable import whole_file
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.tier import Tier


@pytest.fixture(scope="module")
def source() -> MemoryTier:
    tier, rng = MemoryTier("source", level=3), np.random.default_rng(0)
    for task in ("a", "t" * 120):  # Names that no old tar could hold.
        with Checkpointer(tier, run="exp", task=task, rng=False, keep="all") as ckpt:
            state = ckpt.restore({"w": rng.standard_normal(300)})
            for step in (1, 2, 3):
                state["w"][step] += 1
                ckpt.save(step, state).wait()
    return tier


@pytest.fixture(scope="module")
def packed(source: MemoryTier) -> bytes:
    file = io.BytesIO()
    assert write_archive([source], "exp", file).complete
    return file.getvalue()


def contents(tier: Tier) -> dict[str, bytes]:
    return {key: tier.get(key) for key in tier.iter_keys("lineages")}


def unpack(data: bytes, tier: Tier | None = None, name: str | None = None) -> MoveReport:
    return read_archive(io.BytesIO(data), tier or MemoryTier("target", level=3), name=name)


Members = list[tuple[tarfile.TarInfo, bytes]]


def members(data: bytes) -> Members:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return [(one, opened.read()) for one in tar if (opened := tar.extractfile(one))]


def tar_of(parts: Members) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for member, data in parts:
            member.size = len(data) if member.isreg() else 0
            tar.addfile(member, io.BytesIO(data) if member.isreg() else None)
    return file.getvalue()


def test_what_comes_out_is_what_went_in(source: MemoryTier, packed: bytes) -> None:
    target = MemoryTier("target", level=3)
    report = unpack(packed, target)
    assert report.complete
    assert contents(target) == contents(source)
    assert report.checkpoints == 6
    again = unpack(packed, target)
    assert (again.put, again.same, again.checkpoints) == (0, report.put, 6)


def test_an_archive_is_a_plain_tar_of_keys_and_says_the_same_each_time(
    source: MemoryTier, packed: bytes
) -> None:
    names = [member.name for member, _ in members(packed)]
    assert names[0] == "ckptflow-archive.json"
    assert names[-1] == "ckptflow-archive-end.json"
    assert sorted(names[1:-1]) == sorted(contents(source))
    file = io.BytesIO()
    write_archive([source], "exp", file)
    assert file.getvalue() == packed


def test_it_streams(source: MemoryTier) -> None:
    """Neither end can seek, as with a pipe."""

    class Pipe(io.RawIOBase):
        def __init__(self, data: bytes = b"") -> None:
            self.data = bytearray(data)

        def writable(self) -> bool:
            return True

        def readable(self) -> bool:
            return True

        def write(self, data: object) -> int:
            self.data += bytes(data)  # type: ignore[call-overload]
            return len(bytes(data))  # type: ignore[call-overload]

        def read(self, size: int = -1) -> bytes:
            size = min(1000, len(self.data) if size < 0 else size)
            found = bytes(self.data[:size])
            del self.data[:size]
            return found

    pipe, target = Pipe(), MemoryTier("target", level=3)
    write_archive([source], "exp", pipe)  # type: ignore[arg-type]
    assert read_archive(pipe, target).complete  # type: ignore[arg-type]
    assert contents(target) == contents(source)


def test_under_another_name(packed: bytes) -> None:
    target = MemoryTier("target", level=3)
    assert unpack(packed, target, "exp-2").complete
    lineage = Lineage([target], LineageId("exp-2", "a"))
    assert [one.id.step for one in lineage.valid()] == [3, 2, 1]
    assert all(verify(lineage, one)[0].sound for one in lineage.valid())
    with pytest.raises(ConfigError, match="cannot be the name of a run"):
        unpack(packed, name="/exp")


def cuts(size: int) -> Iterator[int]:
    yield from range(0, size, 512)
    yield from range(100, size, 1709)


def test_of_an_archive_that_is_cut_off_whole_checkpoints_come(packed: bytes) -> None:
    end = packed.index(b"ckptflow-archive-end.json")
    whole = {len(contents(MemoryTier()))}
    for place in cuts(end):
        target = MemoryTier("target", level=3)
        with pytest.raises(CheckpointError) as caught:
            unpack(packed[:place], target)
        assert isinstance(caught.value, CorruptionError | FormatError), place
        lineage = Lineage([target], LineageId("exp", "a"))
        found = lineage.checkpoints() if contents(target) else []
        assert all(verify(lineage, one)[0].sound for one in found)
        whole.add(len(found))
    assert whole == {0, 1, 2, 3}


def test_every_flipped_byte_is_found_or_changes_nothing(
    source: MemoryTier, packed: bytes
) -> None:
    rng, expected, refused = np.random.default_rng(1), contents(source), 0
    for place in rng.integers(0, len(packed), 120).tolist():
        data = bytearray(packed)
        data[place] ^= 1 << int(rng.integers(8))
        target = MemoryTier("target", level=3)
        try:
            unpack(bytes(data), target)
        except (CorruptionError, FormatError):
            refused += 1
        for key, value in contents(target).items():
            if "/attempts/" not in key:  # Those are sealed by nothing, here as in a store.
                # A name may have suffered; then no manifest names it.
                assert expected.get(key, value) == value, place
        for one in lineages([target]):
            lineage = Lineage([target], one)
            for found in lineage.checkpoints():
                assert found.id.step in (1, 2, 3)
                assert verify(lineage, found)[0].sound
    assert refused > 40


def renamed(name: str) -> Callable[[Members], None]:
    def change(parts: Members) -> None:
        parts[1][0].name = name

    return change


def typed(kind: bytes, link: str = "") -> Callable[[Members], None]:
    def change(parts: Members) -> None:
        parts[1][0].type, parts[1][0].linkname = kind, link

    return change


def swapped(parts: Members) -> None:
    packs = [n for n, (member, _) in enumerate(parts) if "/packs/" in member.name]
    a, b = packs[0], packs[1]
    parts[a], parts[b] = (parts[a][0], parts[b][1]), (parts[b][0], parts[a][1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (renamed("/etc/passwd"), "no key"),
        (renamed("../../etc/passwd"), "no key"),
        (renamed("lineages/exp/a/../../../x"), "no key"),
        (renamed("lineages/other/a/attempts/00000001.claim"), "no object of it"),
        (renamed("lineages/exp/a/packs/evil"), "no object of it"),
        (renamed("lineages/exp/a"), "no object of it"),
        (renamed("ckptflow-store.json"), "no object of it"),
        (renamed("lineages/exp/.hidden/attempts/00000001.claim"), "no key"),
        (typed(tarfile.SYMTYPE, "/etc/passwd"), "no regular file"),
        (typed(tarfile.LNKTYPE, "ckptflow-archive.json"), "no regular file"),
        (typed(tarfile.CHRTYPE), "no regular file"),
        (typed(tarfile.DIRTYPE), "no regular file"),
        (swapped, None),
    ],
)
def test_what_does_not_belong_is_refused(
    packed: bytes, change: Callable[[Members], None], message: str | None
) -> None:
    parts, target = members(packed), MemoryTier("target", level=3)
    change(parts)
    if message is None:  # Packs that are sound, and not those of the manifest.
        report = unpack(tar_of(parts), target)
        assert not report.complete
        assert "not all packs that it names came" in report.left[0]
    else:
        with pytest.raises(CorruptionError, match=message):
            unpack(tar_of(parts), target)
        assert list(target.iter_keys("lineages")) == []


@pytest.mark.parametrize("kind", ["attempts", "manifests", "packs"])
def test_sizes_are_limits(packed: bytes, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    limit = {
        "attempts": "RECORD_BYTES_MAX",
        "manifests": "MANIFEST_BYTES_MAX",
        "packs": "PACK_BYTES_MAX",
    }
    monkeypatch.setattr(archive, limit[kind], 70)
    with pytest.raises(CorruptionError, match=rf"{kind}/.* has \d+ bytes; such an object has"):
        unpack(packed)


def test_a_size_that_nothing_has_takes_no_memory(packed: bytes) -> None:
    parts = members(packed)
    head, huge = io.BytesIO(), tarfile.TarInfo("lineages/exp/a/attempts/00000001.claim")
    with tarfile.open(fileobj=head, mode="w", format=tarfile.PAX_FORMAT) as tar:
        parts[0][0].size = len(parts[0][1])
        tar.addfile(parts[0][0], io.BytesIO(parts[0][1]))
        start = head.tell()
    huge.size = 1 << 62
    data = head.getvalue()[:start] + huge.tobuf(tarfile.GNU_FORMAT)
    with pytest.raises(CorruptionError, match=r"has 4611686018427387904 bytes"):
        unpack(data)
    huge.type = tarfile.XHDTYPE
    data = head.getvalue()[:start] + huge.tobuf(tarfile.GNU_FORMAT)
    with pytest.raises(CorruptionError, match="names a member in 4611686018427387904 bytes"):
        unpack(data)


def test_an_object_that_is_left_out_is_missed(packed: bytes) -> None:
    parts = members(packed)
    del parts[1]
    with pytest.raises(CorruptionError, match=r"had \d+ objects, and \d+ were found"):
        unpack(tar_of(parts))


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (b"{}", "says something else"),
        (b"[]", "no JSON object"),
        (b"\xff", "no JSON where it should"),
        (b'{"format": "ckptflow-archive", "version": 2, "run": "exp"}', "version 2"),
    ],
)
def test_other_heads(packed: bytes, head: bytes, message: str) -> None:
    parts = members(packed)
    parts[0] = parts[0][0], head
    with pytest.raises((CorruptionError, FormatError), match=message):
        unpack(tar_of(parts))


@pytest.mark.parametrize("data", [b"", b"no tar at all" * 100, bytes(10240)])
def test_other_files(data: bytes) -> None:
    target = MemoryTier("target")
    with pytest.raises((CorruptionError, FormatError), match="archive"):
        unpack(data, target)
    assert list(target.iter_keys("")) == []


def test_a_manifest_of_another_checkpoint_is_refused(packed: bytes) -> None:
    parts = members(packed)
    first = next(n for n, (member, _) in enumerate(parts) if "/manifests/" in member.name)
    parts[first][0].name = f"lineages/exp/a/{CheckpointId(9, 1).manifest_key}"
    with pytest.raises(CorruptionError, match="it was moved there"):
        unpack(tar_of(parts))


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "exp.tar"

    def fail_in_the_middle() -> None:
        with whole_file(path) as file:
            file.write(b"half")
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        fail_in_the_middle()
    assert list(tmp_path.glob("*.tar")) == list(tmp_path.glob(".*")) == []
    with whole_file(path) as file:
        file.write(b"all of it")
    assert path.read_bytes() == b"all of it"
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("which", [0, -1], ids=["first", "last"])
def test_nested_json_is_damage(packed: bytes, which: int) -> None:
    parts = members(packed)
    parts[which] = parts[which][0], b"[" * 60_000
    with pytest.raises(CorruptionError, match="has no JSON where it should"):
        unpack(tar_of(parts))
