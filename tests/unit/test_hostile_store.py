"""Somebody who can write to the storage: nothing of theirs is believed, run, or blows up.

The store is a folder, and the tests change its files as an attacker would. What only a key
can prevent is shown for both: without one the manifest is believed, with one it is not.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from independent_reader import read
from unseal import unseal_store

from ckptflow import Checkpointer
from ckptflow import manifest as manifest_file
from ckptflow.checkpointer import CheckpointWarning
from ckptflow.errors import (
    CheckpointError,
    FormatError,
    RestoreError,
    TierDenied,
)
from ckptflow.model import FILL, CheckpointId, ExtentTable, LineageId, Manifest, RegionEntry
from ckptflow.store.catalog import Lineage
from ckptflow.store.resume import restore_newest
from ckptflow.store.save import checkpoint_root
from ckptflow.store.verify import verify
from ckptflow.tiers.opening import open_store
from ckptflow.tiers.posix import PosixTier

pytestmark = pytest.mark.damaged_store

SECRET = bytes(range(32))
LINEAGE = LineageId("default", "main")
FOLDER = Path("store")
CHILD_BYTES = 256 << 20  # What a child may take to refuse a bomb.


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_bytes(SECRET)
    path.chmod(0o600)
    return path


@pytest.fixture(params=["plain", "authenticated", "encrypted"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


Open = Callable[[], Any]


@pytest.fixture
def opened(kind: str, key_file: Path) -> Open:
    """Returns what opens the store again, with its key if it has one."""
    options = {} if kind == "plain" else {"key_file": key_file, "encrypt": kind == "encrypted"}
    return lambda: open_store(FOLDER, **options)


def state(step: int) -> dict[str, Any]:
    return {"step": step, "noise": np.random.default_rng(step).standard_normal(5000)}


def save(opened: Open, steps: range = range(1, 4)) -> None:
    with Checkpointer(opened(), every="never", keep="all") as ckpt:
        for step in steps:
            ckpt.save(step, state(step)).wait()


def restored(opened: Open) -> tuple[int | None, list[str]]:
    """Return the step that a restart goes on from, and what it warns of."""
    with warnings.catch_warnings(record=True) as caught, Checkpointer(opened()) as ckpt:
        warnings.simplefilter("always", CheckpointWarning)
        found = ckpt.restore({"step": -1, "noise": np.zeros(5000)})
    if found["step"] >= 0:
        assert (found["noise"] == state(found["step"])["noise"]).all()
    return ckpt.restored_step, [str(one.message) for one in caught]


def packs() -> list[Path]:
    return sorted((FOLDER / LINEAGE.prefix / "packs").iterdir())


def manifest_path(step: int, attempt: int = 1) -> Path:
    return FOLDER / LINEAGE.prefix / CheckpointId(step, attempt).manifest_key


# --- whole objects ---


def test_swapped_packs_are_noticed(opened: Open) -> None:
    save(opened)
    _, second, third = packs()
    second.rename("aside")
    third.rename(second)
    Path("aside").rename(third)
    assert restored(opened)[0] == 1


def test_an_older_manifest_in_the_place_of_a_newer_one(opened: Open, kind: str) -> None:
    save(opened)
    shutil.copy(manifest_path(2), manifest_path(3))
    step, warned = restored(opened)
    assert step == 2
    assert ("was moved there" if kind == "plain" else "not what was sealed") in warned[0]


def test_a_checkpoint_of_another_task_in_the_place_of_this_one(opened: Open) -> None:
    save(opened)
    with Checkpointer(opened(), task="other", every="never") as ckpt:
        ckpt.save(9, state(9)).wait()
    other = FOLDER / LineageId("default", "other").prefix
    shutil.copytree(other / "packs", FOLDER / LINEAGE.prefix / "packs", dirs_exist_ok=True)
    shutil.copytree(other / "manifests", manifest_path(1).parent, dirs_exist_ok=True)
    assert restored(opened)[0] == 3


def forge(step: int, **changes: Any) -> None:
    """Write a manifest like that of step 3, with a right seal, as the format page tells."""
    found = manifest_file.decode(manifest_path(3).read_bytes(), where="here")
    forged = replace(found, id=CheckpointId(step, 1), **changes)
    manifest_path(step).write_bytes(manifest_file.encode(forged))


def test_a_forged_manifest_is_believed_without_a_key_only(key_file: Path) -> None:
    save(lambda: open_store(FOLDER))
    forge(4)
    restored_step = restore_newest(Lineage([open_store(FOLDER)], LINEAGE), None)
    assert restored_step is not None
    assert restored_step.id.step == 4  # This is what a key is for.
    forged = manifest_path(4).read_bytes()
    shutil.rmtree(FOLDER)
    save(lambda: open_store(FOLDER, key_file=key_file))
    manifest_path(4).write_bytes(forged)
    step, warned = restored(lambda: open_store(FOLDER, key_file=key_file))
    assert step == 3
    assert "is not sealed" in warned[0]


def test_a_forged_resume_record_makes_nothing_void(opened: Open, kind: str) -> None:
    """With a key. Without one it does, since a record needs no seal."""
    save(opened)
    record = {"attempt": 9, "step": 1, "manifest": CheckpointId(1, 1).manifest_key}
    (FOLDER / LINEAGE.prefix / "attempts" / "00000009.resume").write_text(json.dumps(record))
    steps = [found.id.step for found in Lineage([opened()], LINEAGE).valid()]
    assert steps == ([1] if kind == "plain" else [3, 2, 1])


def test_a_flipped_bit_anywhere_is_noticed(opened: Open, rng: np.random.Generator) -> None:
    save(opened)
    for path in [manifest_path(3), packs()[2]]:
        sound = path.read_bytes()
        for place in rng.integers(0, 8 * len(sound), 12):
            changed = bytearray(sound)
            changed[place // 8] ^= 1 << place % 8
            path.write_bytes(changed)
            lineage = Lineage([opened()], LINEAGE)
            newest = lineage.checkpoints()[0]
            assert not all(report.sound for report in verify(lineage, newest))
        path.write_bytes(sound)


# --- keys ---


def test_a_sealed_store_without_its_key(key_file: Path) -> None:
    save(lambda: open_store(FOLDER, key_file=key_file))
    with pytest.raises(FormatError, match="is a sealed store: give the file with its key"):
        Checkpointer(FOLDER).restore({})


def test_a_sealed_store_with_another_key(key_file: Path, tmp_path: Path) -> None:
    save(lambda: open_store(FOLDER, key_file=key_file))
    other = tmp_path / "other"
    other.write_bytes(bytes(32))
    other.chmod(0o600)
    before = sorted(FOLDER.rglob("*"))
    with pytest.raises(TierDenied, match="Give the key that the store was made with"):
        Checkpointer(open_store(FOLDER, key_file=other)).save(9, state(9))
    assert sorted(FOLDER.rglob("*")) == before


def test_the_environment_names_the_key(key_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CKPTFLOW_KEY_FILE", str(key_file))
    monkeypatch.setenv("CKPTFLOW_ENCRYPT", "1")
    save(lambda: open_store(FOLDER))
    assert all(path.read_bytes()[:9] == b"CKFSEAL1\x02" for path in packs())
    command = [sys.executable, "-m", "ckptflow.cli", "verify", "--store", str(FOLDER)]
    assert subprocess.run(command, check=False, capture_output=True).returncode == 0


def test_a_store_that_was_made_without_a_key(key_file: Path) -> None:
    save(lambda: open_store(FOLDER))
    before = sorted(FOLDER.rglob("*"))
    with pytest.raises(TierDenied, match="is not sealed: it was stored without a key"):
        Checkpointer(open_store(FOLDER, key_file=key_file)).save(9, state(9))
    assert sorted(FOLDER.rglob("*")) == before


def test_the_independent_reader_reads_sealed_stores(opened: Open, kind: str) -> None:
    save(opened)
    plain = Path("plain")
    if kind == "plain":
        plain = FOLDER
    else:
        assert (
            unseal_store(FOLDER, plain, SECRET) == 3 + 3 + 3
        )  # And claim, resume, descriptor.
    found = read(plain, "default", "main")
    assert found["state"]["step"] == 3
    assert (found["state"]["noise"] == state(3)["noise"]).all()


# --- sizes are limits ---

BOMBS: dict[str, Callable[[], None]] = {}


def bomb(function: Callable[[], None]) -> Callable[[], None]:
    BOMBS[function.__name__] = function
    return function


def put_manifest(manifest: Manifest) -> None:
    manifest_path(4).write_bytes(manifest_file.encode(manifest))


def claiming(size_bytes: int) -> Manifest:
    """A manifest of one region that claims to be so large, and to be all zeros."""
    found = manifest_file.decode(manifest_path(3).read_bytes(), where="here")
    entry = RegionEntry(
        name="state/noise", size_bytes=size_bytes, root=bytes(16), extent_count=1
    )
    row = ExtentTable(
        np.array([size_bytes], "<u8"), np.zeros(1, "<u8"), np.array([FILL], "<u4")
    )
    array = ["array", "numpy", "|u1", [size_bytes], 0]
    return replace(
        found,
        id=CheckpointId(4, 1),
        packs=(),
        regions=(entry,),
        extents=row,
        root=checkpoint_root([entry]),
        structure=["dict", "state", ["dict", "noise", array], "rng", None],
    )


@bomb
def a_state_of_four_exbibytes() -> None:
    put_manifest(claiming(2**62))


@bomb
def a_state_of_the_largest_size() -> None:
    put_manifest(claiming(2**63 - 1))


@bomb
def a_manifest_section_that_claims_more_than_there_is() -> None:
    bomb_bytes = zstandard.compress(bytes(1 << 30), 1)
    head = struct.pack("<8sIIQQ", b"CKFMANI1", 1, 0, len(bomb_bytes), 0)
    body = head + bomb_bytes
    manifest_path(4).write_bytes(body + manifest_file.seal(body))


@bomb
def a_frame_that_decodes_to_more_than_it_says() -> None:
    rewrite_pack(stored=zstandard.compress(bytes(1 << 30), 1), plain=1000, codec=1)


@bomb
def a_frame_that_says_more_than_a_frame_may_hold() -> None:
    rewrite_pack(stored=zstandard.compress(bytes(1 << 30), 1), plain=1 << 30, codec=1)


@bomb
def a_block_of_lz4_that_says_more_than_a_frame_may_hold() -> None:
    rewrite_pack(stored=bytes(100), plain=(1 << 32) - 1, codec=2)


@bomb
def a_frame_that_is_stored_in_more_than_a_frame_may_take() -> None:
    rewrite_pack(stored=bytes(CHILD_BYTES), plain=1000, codec=1, sparse=True)


def rewrite_pack(*, stored: bytes, plain: int, codec: int, sparse: bool = False) -> None:
    """Give step 4 a pack of one frame, with right seals and digests.

    If it is ``sparse``, its zeros take no space.
    """
    from ckptflow.data import digest
    from ckptflow.data.pack import HEAD, StoredFrame, encode_table
    from ckptflow.model import PackRef

    frame = StoredFrame(stored, plain, codec, 0, 0)
    table, sealed = encode_table([frame], [digest.digest(stored)])
    key = CheckpointId(4, 1).pack_key(0, "00000000")
    with (FOLDER / LINEAGE.prefix / key).open("wb") as file:
        file.write(HEAD)
        file.seek(len(stored), os.SEEK_CUR) if sparse else file.write(stored)
        file.write(table)
    size_bytes = len(HEAD) + len(stored) + len(table)
    manifest = claiming(min(plain, 1000))
    put_manifest(
        replace(
            manifest,
            packs=(PackRef(key, size_bytes, plain, 1, sealed),),
            extents=replace(manifest.extents, pack=np.zeros(1, "<u4")),
        )
    )


@pytest.mark.parametrize("bomb", BOMBS)
def test_bombs_are_refused_in_little_memory(bomb: str) -> None:
    """In a child that may take little more memory than it has when it begins."""
    save(lambda: open_store(FOLDER))
    BOMBS[bomb]()
    child = subprocess.run(
        [sys.executable, "-c", CHILD], capture_output=True, text=True, check=False, timeout=120
    )
    assert child.returncode == 0, child.stderr
    assert child.stdout.split() == ["3", "4:skipped"]


CHILD = f"""
import os, resource, warnings
from pathlib import Path
from ckptflow.model import LineageId
from ckptflow.store.catalog import Lineage
from ckptflow.store.resume import restore_newest
from ckptflow.tiers.posix import PosixTier
lineage = Lineage([PosixTier("store")], LineageId("default", "main"))
restore_newest(lineage, None, step=3)  # Threads and tables that any restore needs.
pages = int(Path("/proc/self/statm").read_text().split()[0])
most = pages * os.sysconf("SC_PAGE_SIZE") + {CHILD_BYTES}
resource.setrlimit(resource.RLIMIT_AS, (most, most))
found = restore_newest(lineage, None)
print(found.id.step, *(f"{{one.step}}:skipped" for one, _ in found.skipped))
"""


# --- parents, links, names ---


def test_parents_that_name_each_other_do_no_harm() -> None:
    save(lambda: open_store(FOLDER))
    for step, parent in ((3, 2), (2, 3)):
        one = manifest_file.decode(manifest_path(step).read_bytes(), where="here")
        changed = replace(one, parent=CheckpointId(parent, 1))
        manifest_path(step).write_bytes(manifest_file.encode(changed))
    again = restore_newest(Lineage([PosixTier(FOLDER)], LINEAGE), None)
    assert again is not None
    assert again.id.step == 3
    for command in (["show", "default/main"], ["ls", "default/main"], ["verify"]):
        line = [sys.executable, "-m", "ckptflow.cli", *command, "--store", str(FOLDER)]
        done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=100)
        assert done.returncode == 0, done.stderr


def test_links_in_the_store_are_not_followed(tmp_path: Path) -> None:
    """Neither to an object, nor through a folder, for reading or for writing."""
    outside = tmp_path / "outside"
    (outside / "main" / "manifests").mkdir(parents=True)
    (outside / "secret").write_text("secret")
    tier = PosixTier(FOLDER)
    tier.put("lineages/a/b", [b"x"])
    (FOLDER / "lineages" / "link").symlink_to(outside)
    (FOLDER / "lineages" / "file").symlink_to(outside / "secret")
    assert list(tier.iter_keys("")) == ["lineages/a/b"]
    for key in ("lineages/file", "lineages/link/secret"):
        with pytest.raises(CheckpointError, match=key):
            tier.get(key)
        with pytest.raises(CheckpointError, match=key):
            tier.size(key)
    for change in (
        lambda: tier.put("lineages/link/new", [b"x"]),
        lambda: tier.create("lineages/link/new", b"x"),
        lambda: tier.delete("lineages/link/secret"),
    ):
        with pytest.raises(TierDenied, match="is a symbolic link"):
            change()
    assert sorted(path.name for path in outside.iterdir()) == ["main", "secret"]
    tier.put("lineages/file", [b"mine"])  # Takes the place of the link, and not of its target.
    assert (outside / "secret").read_text() == "secret"
    tier.sweep("lineages")


@pytest.mark.parametrize("name", ["../../../outside", "packs/../../x", "/etc/passwd"])
def test_a_manifest_that_names_packs_elsewhere(name: str) -> None:
    save(lambda: open_store(FOLDER))
    raw = manifest_path(3).read_bytes()
    document_bytes, _ = struct.unpack_from("<2Q", raw, 16)
    document = json.loads(zstandard.decompress(raw[32 : 32 + document_bytes]))
    document["packs"][0]["key"] = name
    packed = zstandard.compress(json.dumps(document).encode())
    rest = raw[32 + document_bytes : -16]
    body = struct.pack("<8sIIQQ", b"CKFMANI1", 1, 0, len(packed), len(rest)) + packed + rest
    with pytest.raises(FormatError, match="is not the key of a pack"):
        manifest_file.decode(body + manifest_file.seal(body), where="here")


def test_folders_of_foreign_names_are_left_alone() -> None:
    save(lambda: open_store(FOLDER))
    for name in (".hidden", "with space", "semi;colon", "new\nline"):
        (FOLDER / "lineages" / name / "main" / "manifests").mkdir(parents=True)
        (FOLDER / "lineages" / name / "main" / "manifests" / "x").write_text("x")
    (manifest_path(3).parent / "000000000009.00000001.ckpt.exe").write_text("x")
    (manifest_path(3).parent / "000000000009.99999999999.ckpt").write_text("x")
    assert [found.id.step for found in Lineage([PosixTier(FOLDER)], LINEAGE).valid()] == [
        3,
        2,
        1,
    ]


def test_a_pipe_in_the_place_of_an_object_does_not_hang() -> None:
    save(lambda: open_store(FOLDER))
    path = manifest_path(3)
    path.unlink()
    os.mkfifo(path)
    assert [found.id.step for found in Lineage([PosixTier(FOLDER)], LINEAGE).valid()] == [2, 1]
    with pytest.raises(CheckpointError, match="holds no"):
        PosixTier(FOLDER).get(f"{LINEAGE.prefix}/{CheckpointId(3, 1).manifest_key}")


def test_files_are_private(opened: Open) -> None:
    save(opened)
    modes = {path: path.stat().st_mode & 0o777 for path in [FOLDER, *FOLDER.rglob("*")]}
    wrong = {
        path: oct(mode)
        for path, mode in modes.items()
        if mode != (0o700 if path.is_dir() else 0o600)
    }
    assert wrong == {}


def test_all_candidates_forged_is_an_error_that_lists_them(opened: Open, kind: str) -> None:
    save(opened)
    for path in packs():
        path.write_bytes(b"x" * path.stat().st_size)
    with pytest.raises(RestoreError) as caught:
        Checkpointer(opened()).restore({"step": 0, "noise": np.zeros(5000)})
    assert len([note for note in caught.value.__notes__ if note.startswith("step")]) == 3
    assert SECRET.hex() not in str(caught.value.__notes__)
