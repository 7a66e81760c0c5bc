"""Whole files on an SFTP server, written so that none is ever seen in part.

The steps are those of `ckptflow.tiers.durable`: a temporary name, fsync, rename over the
final one. Two of them are extensions of OpenSSH that most servers have (the file PROTOCOL in
its sources lists them): ``fsync@openssh.com``, without which a value is as durable as closing a
file makes it, and ``posix-rename@openssh.com``, without which a key that is written again is
absent for an instant. SFTP has no way to sync a folder: that a *name* survives a crash of the
server is up to its file system.

``tests/conformance/test_sftp_tier.py`` and ``tests/process/test_sftp_server.py``.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from typing_extensions import Buffer

from ckptflow.tiers.durable import PARTIAL_SUFFIX, is_partial
from ckptflow.tiers.sftp_connection import moved
from ckptflow.tiers.tier import is_key_part
from ckptflow.units import MIB

_BATCH_BYTES = 8 * MIB  # Handed over at once, and sent as many requests that do not wait.
_PIECE_BYTES = 64 * MIB  # So much is allocated at once for what is read.
_READ_ONLY = 1  # The bit of SFTP's `f_flag` that says so.
_FILE_MODE, _FOLDER_MODE = 0o600, 0o700


async def write_whole(sftp: Any, path: str, parts: Sequence[Buffer]) -> None:
    """Make ``path`` hold the bytes of ``parts``, or leave it as it was."""
    async with _written(sftp, path, parts) as partial:
        await _rename(sftp, partial, path)


async def create_exclusive(sftp: Any, path: str, value: Buffer) -> None:
    """Make ``path`` hold ``value`` if nothing is there.

    A hard link either makes the name or fails (``hardlink@openssh.com``). Servers without it
    get an exclusive open instead, which decides as surely; only a reader in that instant
    could see the value unfinished.

    Raises:
        asyncssh.SFTPFileAlreadyExists: the name is taken.
    """
    import asyncssh

    async with _written(sftp, path, [value]) as partial:
        try:
            await sftp.link(partial, path)
        except asyncssh.SFTPError as error:
            # Version 3 of SFTP has one number for "exists" and for most other failures.
            if await sftp.lexists(path):
                raise asyncssh.SFTPFileAlreadyExists(path) from error
            await _create_in_place(sftp, path, value)
        await _remove_quietly(sftp, partial)


async def read_into(sftp: Any, path: str, view: memoryview, start_bytes: int) -> int:
    """Fill ``view`` from ``start_bytes`` on by many requests at once; return how far."""
    filled = 0
    async with sftp.open(path, "rb") as file:
        async for offset, piece in await file.read_parallel(len(view), start_bytes):
            first = offset - start_bytes
            if not 0 <= first <= len(view) - len(piece):
                raise OSError("the server sends other bytes than it was asked for")
            view[first : first + len(piece)] = piece
            filled += len(piece)
            moved()
    return filled


async def read_pieces(sftp: Any, path: str, start_bytes: int, size_bytes: int) -> bytes:
    """Return ``size_bytes`` from ``start_bytes`` on, or up to where the file ends.

    What a server says of sizes is not trusted with memory; only what it sends is.
    """
    pieces: list[memoryview] = []
    left = size_bytes
    while left:
        piece = bytearray(min(left, _PIECE_BYTES))
        filled = await read_into(sftp, path, memoryview(piece), start_bytes)
        pieces.append(memoryview(piece)[:filled])
        if filled < len(piece):
            break
        start_bytes, left = start_bytes + filled, left - filled
    return b"".join(pieces)


async def size_of(sftp: Any, path: str) -> int:
    """Return the size of a regular file in bytes; links are not followed.

    Raises:
        asyncssh.SFTPNoSuchFile: there is none.
    """
    import asyncssh

    found = await sftp.lstat(path)
    if found.type != asyncssh.FILEXFER_TYPE_REGULAR:
        raise asyncssh.SFTPNoSuchFile(f"{path} is not a file")
    return int(found.size)


async def remove(sftp: Any, path: str) -> None:
    """Remove a file, if there is one."""
    import asyncssh

    with contextlib.suppress(asyncssh.SFTPNoSuchFile, asyncssh.SFTPNoSuchPath):
        await sftp.remove(path)


async def entries(sftp: Any, folder: str) -> list[tuple[str, bool, Any]]:
    """Return name, whether it is a folder, and attributes of the files and folders below."""
    import asyncssh

    kinds = {asyncssh.FILEXFER_TYPE_REGULAR: False, asyncssh.FILEXFER_TYPE_DIRECTORY: True}
    try:
        found = [entry async for entry in sftp.scandir(folder)]
    except (asyncssh.SFTPNoSuchFile, asyncssh.SFTPNoSuchPath):
        return []
    moved()
    return [
        (entry.filename, kinds[entry.attrs.type], entry.attrs)
        for entry in found
        if entry.attrs.type in kinds and entry.filename not in {".", ".."}
    ]


async def walk(sftp: Any, root: str, prefix: str) -> AsyncIterator[str]:
    """Yield each key below the folder ``prefix`` of ``root``."""
    for name, is_folder, _ in await entries(sftp, f"{root}/{prefix}"):
        if not is_key_part(name):
            continue
        key = f"{prefix}/{name}" if prefix else name
        if is_folder:
            async for below in walk(sftp, root, key):
                yield below
        else:
            yield key


async def sweep(sftp: Any, folder: str, *, before_s: float) -> int:
    """Remove temporary files last written before ``before_s``, by the server's clock."""
    removed = 0
    for name, is_folder, attributes in await entries(sftp, folder):
        if is_folder:
            removed += await sweep(sftp, f"{folder}/{name}", before_s=before_s)
        elif is_partial(name) and (attributes.mtime or before_s) < before_s:
            await remove(sftp, f"{folder}/{name}")
            removed += 1
    return removed


@contextlib.asynccontextmanager
async def _written(sftp: Any, path: str, parts: Sequence[Buffer]) -> AsyncIterator[str]:
    """Write ``parts`` to a temporary file beside ``path``, which goes if anything fails."""
    import asyncssh

    partial = f"{path.rsplit('/', 1)[0]}/.{uuid.uuid4().hex}{PARTIAL_SUFFIX}"
    try:
        try:
            async with await _open_new(sftp, partial) as file:
                await _write_synced(file, parts)
        except asyncssh.SFTPFailure as error:
            raise await _explained(sftp, partial, error, parts) from error
        yield partial
    except BaseException:
        await _remove_quietly(sftp, partial)
        raise


async def _open_new(sftp: Any, path: str) -> Any:
    import asyncssh

    async def opened() -> Any:
        flags = asyncssh.FXF_WRITE | asyncssh.FXF_CREAT | asyncssh.FXF_EXCL
        attributes = asyncssh.SFTPAttrs(permissions=_FILE_MODE)
        return await sftp.open(path, flags, attributes, encoding=None)

    try:
        return await opened()
    except (asyncssh.SFTPNoSuchFile, asyncssh.SFTPNoSuchPath):
        await _make_folders(sftp, path.rsplit("/", 1)[0])
        return await opened()


async def _make_folders(sftp: Any, folder: str) -> None:
    import asyncssh

    async def made() -> None:
        try:
            await sftp.mkdir(folder, asyncssh.SFTPAttrs(permissions=_FOLDER_MODE))
        except (asyncssh.SFTPFailure, asyncssh.SFTPFileAlreadyExists):
            if not await sftp.isdir(folder):
                raise

    try:
        await made()
    except (asyncssh.SFTPNoSuchFile, asyncssh.SFTPNoSuchPath):
        above = folder.rpartition("/")[0]
        if not above:
            raise
        await _make_folders(sftp, above)
        await made()


async def _write_synced(file: Any, parts: Sequence[Buffer]) -> None:
    import asyncssh

    offset = 0
    for batch in _batches(parts):
        await file.write(batch, offset)
        offset += len(batch)
        moved()
    with contextlib.suppress(asyncssh.SFTPOpUnsupported):
        await file.fsync()


def _batches(parts: Sequence[Buffer]) -> Iterator[bytes]:
    """Yield the bytes of ``parts`` in order, so many at once; never all joined in memory."""
    pending: list[memoryview] = []
    size_bytes = 0
    for part in parts:
        view = memoryview(part).cast("B")
        while len(view):
            piece = view[: _BATCH_BYTES - size_bytes]
            view = view[len(piece) :]
            pending.append(piece)
            size_bytes += len(piece)
            if size_bytes == _BATCH_BYTES:
                yield b"".join(pending)
                pending, size_bytes = [], 0
    if pending:
        yield b"".join(pending)


async def _rename(sftp: Any, partial: str, path: str) -> None:
    import asyncssh

    try:
        await sftp.posix_rename(partial, path)
    except asyncssh.SFTPOpUnsupported:
        await remove(sftp, path)  # The rename of SFTP 3 fails on a name that is taken.
        await sftp.rename(partial, path)


async def _create_in_place(sftp: Any, path: str, value: Buffer) -> None:
    import asyncssh

    try:
        file = await _open_new(sftp, path)
    except (asyncssh.SFTPFailure, asyncssh.SFTPFileAlreadyExists) as error:
        if await sftp.lexists(path):
            raise asyncssh.SFTPFileAlreadyExists(path) from error
        raise
    try:
        async with file:
            await _write_synced(file, [value])
    except BaseException:  # Half a value would hold the name for ever.
        await _remove_quietly(sftp, path)
        raise


async def _explained(
    sftp: Any, path: str, error: Exception, parts: Sequence[Buffer]
) -> Exception:
    """Return why writing failed, as far as the file system of the server tells.

    Version 3 of SFTP says no more than "failure" of a full disk.
    """
    import asyncssh

    try:
        state = await sftp.statvfs(path.rsplit("/", 1)[0])
    except (asyncssh.Error, OSError):
        return error
    if state.flags & _READ_ONLY:
        read_only: Exception = asyncssh.SFTPWriteProtect(f"{error}; it is read-only")
        return read_only
    size_bytes = sum(memoryview(part).nbytes for part in parts)
    if state.bavail * state.frsize < size_bytes or (state.files and not state.favail):
        full: Exception = asyncssh.SFTPNoSpaceOnFilesystem(f"{error}; it is full")
        return full
    return error


async def _remove_quietly(sftp: Any, path: str) -> None:
    # The cause is on its way to the caller; a left-over temporary file is swept later.
    import asyncssh

    with contextlib.suppress(asyncssh.Error, OSError):
        await sftp.remove(path)
