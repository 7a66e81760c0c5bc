"""A run as one file: a plain tar whose members are called by the keys of the objects.

The first member says what it is, the last one that it is complete; both are JSON. In between
come the objects in the order of `items`, so that of an archive that was cut off whole
checkpoints can be taken. It is written and read as a stream, one object in memory at a time.

Nothing in an archive is trusted: a member is a regular file whose name is a key of the run, no
larger than its kind may be, and every object is compared with its digests before it is put.
``tests/unit/test_archive.py``.
"""

from __future__ import annotations

import contextlib
import json
import tarfile
from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from typing import IO, Any, Self

from ckptflow.errors import CheckpointError, ConfigError, CorruptionError, FormatError
from ckptflow.model import LINEAGES, CheckpointId, LineageId, PackRef, parse_attempt_key
from ckptflow.store.catalog import Lineage
from ckptflow.store.checking.packs import read_ref
from ckptflow.store.find import find_run
from ckptflow.store.moving.incoming import Incoming
from ckptflow.store.moving.items import Item, ManifestItem, MoveReport, Pack, Record
from ckptflow.store.moving.outgoing import outgoing
from ckptflow.tiers.tier import Tier, check_key
from ckptflow.units import KIB, MIB, format_bytes

VERSION = 1
_HEAD, _END = "ckptflow-archive.json", "ckptflow-archive-end.json"
_BLOCK_BYTES = 1 * MIB
RECORD_BYTES_MAX, MANIFEST_BYTES_MAX, PACK_BYTES_MAX = 64 * KIB, 512 * MIB, 2048 * MIB
_NAME_BYTES_MAX = 64 * KIB  # Of what tar says in front of a member about its name.


def write_archive(
    tiers: Sequence[Tier],
    run: str,
    file: IO[bytes],
    *,
    on_object: Callable[[str], None] = lambda _key: None,
    note: Callable[[str], None] = lambda _text: None,
) -> MoveReport:
    """Write all that makes a run to a file, which need not be one that can be wound back.

    Args:
        tiers: where the run is, inner ones first.
        run: its name.
        file: open for writing.
        on_object: told the key, relative to its lineage, of each object that was written.
        note: told, in a sentence, of every copy that was skipped and why.

    Raises:
        NotFoundError: there is no such run.
        TierError: a tier failed.
        OSError: the file could not be written.
    """
    report = MoveReport()
    lineages = find_run(tiers, run)
    with tarfile.open(
        fileobj=file, mode="w|", format=tarfile.PAX_FORMAT, bufsize=_BLOCK_BYTES
    ) as tar:
        head = {"format": "ckptflow-archive", "version": VERSION, "run": run}
        _add(tar, _HEAD, json.dumps(head).encode())
        for lineage_id in lineages:
            lineage = Lineage(tiers, lineage_id, note=note)
            for item in outgoing(lineage, has=lambda _ref: False, leave=report.left.append):
                _add(tar, f"{lineage_id.prefix}/{item.key}", item.data)
                report.put += 1
                report.put_bytes += len(item.data)
                report.checkpoints += isinstance(item, ManifestItem)
                on_object(item.key)
        _add(tar, _END, json.dumps({"objects": report.put}).encode())
    return report


def read_archive(
    file: IO[bytes],
    target: Tier,
    *,
    name: str | None = None,
    on_object: Callable[[str], None] = lambda _key: None,
) -> MoveReport:
    """Bring the run in an archive into a store.

    Args:
        file: open for reading; need not be one that can be wound back.
        target: where it goes; becomes a store if it is none.
        name: what it is called there.
        on_object: told the key, relative to its lineage, of each object that was dealt with.

    Raises:
        FormatError: this is no archive, or one of a newer version.
        CorruptionError: it is cut off, damaged, or holds what no archive holds. Checkpoints
            that came in whole before that place are in the store.
        TierError: the target failed.
    """
    objects = 0
    with (
        _translated(),
        tarfile.open(fileobj=file, mode="r|", tarinfo=_Member, bufsize=_BLOCK_BYTES) as tar,
    ):
        run = _read_head(tar)
        incoming = Incoming(target, name=name)
        for member in _members(tar):
            if member.name == _END:
                _check_end(_read(tar, member, RECORD_BYTES_MAX), objects)
                return incoming.report
            item = _item(tar, member, run)
            incoming.take(item)
            objects += 1
            on_object(item.key)
    raise CorruptionError(
        f"The archive is cut off after {objects} objects; the {incoming.report.checkpoints} "
        f"checkpoints that came in whole are in the store. Get it in whole, and repeat."
    )


class _Member(tarfile.TarInfo):
    """A member whose name may not take more memory than a name needs."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """See `tarfile.TarInfo.frombuf`; called before a long name is read."""
        found = super().frombuf(buf, encoding, errors)
        if found.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) and not (
            0 <= found.size <= _NAME_BYTES_MAX
        ):
            raise CorruptionError(f"The archive names a member in {found.size} bytes.")
        return found


def _members(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield the members that follow; none is remembered."""
    while (member := tar.next()) is not None:
        tar.members.clear()  # type: ignore[attr-defined]
        yield member


def _read_head(tar: tarfile.TarFile) -> str:
    member = tar.next()
    if member is None or member.name != _HEAD:
        raise FormatError("This is no archive of a run: it does not begin with one's head.")
    head = _json(_read(tar, member, RECORD_BYTES_MAX))
    if head.get("format") != "ckptflow-archive" or not isinstance(head.get("version"), int):
        raise FormatError("This is no archive of a run: its head says something else.")
    if head["version"] > VERSION:
        raise FormatError(
            f"The archive has version {head['version']}; this ckptflow reads up to version "
            f"{VERSION}. Install a newer ckptflow."
        )
    return str(head.get("run"))


def _check_end(data: bytes, objects: int) -> None:
    if (said := _json(data).get("objects")) != objects:
        raise CorruptionError(f"The archive had {said} objects, and {objects} were found.")


def _item(tar: tarfile.TarFile, member: tarfile.TarInfo, run: str) -> Item:
    """Read one member, as far as it is an object of the run."""
    try:
        parts = check_key(member.name).split("/", 3)
        if len(parts) == 4 and parts[:2] == [LINEAGES, run]:
            lineage, key = LineageId(run, parts[2]), parts[3]
            if parse_attempt_key(key):
                return Record(lineage, key, _read(tar, member, RECORD_BYTES_MAX))
            if checkpoint := CheckpointId.of_manifest(key):
                data = _read(tar, member, MANIFEST_BYTES_MAX)
                return ManifestItem(lineage, checkpoint, data)
            if CheckpointId.of_pack(key):
                data = _read(tar, member, PACK_BYTES_MAX)
                return Pack(lineage, _ref(key, data), data)
    except ConfigError as error:
        raise CorruptionError(f"The archive holds what is no key: {error}") from error
    raise CorruptionError(f"The archive of run {run!r} holds {member.name!r}, no object of it.")


def _ref(key: str, data: bytes) -> PackRef:
    return read_ref(key, data, where=f"{key!r} in the archive")


def _read(tar: tarfile.TarFile, member: tarfile.TarInfo, limit_bytes: int) -> bytes:
    if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
        raise CorruptionError(f"{member.name!r} in the archive is no regular file.")
    if not 0 <= member.size <= limit_bytes:
        raise CorruptionError(
            f"{member.name!r} in the archive has {member.size} bytes; such an object has at "
            f"most {format_bytes(limit_bytes)}."
        )
    opened = tar.extractfile(member)
    data = opened.read() if opened is not None else b""
    if len(data) != member.size:
        raise CorruptionError(f"The archive is cut off within {member.name!r}.")
    return data


def _json(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptionError(f"The archive has no JSON where it should: {error}.") from error
    if not isinstance(found, dict):
        raise CorruptionError("The archive has no JSON object where it should.")
    return found


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), 0o600
    tar.addfile(member, BytesIO(data))
    tar.members.clear()  # type: ignore[attr-defined]


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except CheckpointError:
        raise
    except (tarfile.TarError, EOFError, ValueError) as error:  # What odd headers raise.
        raise CorruptionError(f"The archive cannot be read, or is cut off: {error}.") from error
