"""An SFTP server for tests, as a process of its own: asyncssh's, on the loopback.

    python sftp_server.py FOLDER [--port N] [--sftp-server PROGRAM] [--lacking NAME ...]
                          [--lying | --hanging | --generous]

FOLDER has ``host_key`` and ``authorized_keys``; the port is written to ``port`` there once the
server listens. With ``--sftp-server`` the files are served by that program (OpenSSH's has
its own ways to fail), and asyncssh only carries its bytes. ``--lacking`` takes extensions of
OpenSSH away that the server would have; with ``--lying`` it tells wrong sizes, with
``--hanging`` it answers no read, and with ``--generous`` each with more than was asked for. It
serves until it is killed.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

import asyncssh
from asyncssh.sftp import SFTPServerHandler


class ProgramSession(asyncssh.SSHServerSession):
    """Carries bytes between the channel of a client and a program."""

    def __init__(self, program: str) -> None:
        self.program, self.pending = program, asyncio.Queue()

    def connection_made(self, channel: asyncssh.SSHServerChannel) -> None:
        self.channel = channel

    def subsystem_requested(self, subsystem: str) -> bool:
        return subsystem == "sftp"

    def session_started(self) -> None:
        self.tasks = [asyncio.create_task(self.serve())]

    def data_received(self, data: bytes, datatype: object) -> None:
        self.pending.put_nowait(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.pending.put_nowait(None)

    async def serve(self) -> None:
        pipe = asyncio.subprocess.PIPE
        child = await asyncio.create_subprocess_exec(
            self.program, "-e", stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL
        )
        self.tasks.append(asyncio.create_task(self.answer(child.stdout)))
        while (data := await self.pending.get()) is not None:
            child.stdin.write(data)
        child.stdin.close()
        await child.wait()

    async def answer(self, stdout: asyncio.StreamReader) -> None:
        while data := await stdout.read(1 << 18):
            self.channel.write(data)


class ProgramServer(asyncssh.SSHServer):
    """Starts the program for each session."""

    def __init__(self, program: str) -> None:
        self.program = program

    def session_requested(self) -> ProgramSession:
        return ProgramSession(self.program)


class LyingServer(asyncssh.SFTPServer):
    """Says of each file that it has 2^62 bytes."""

    def lstat(self, path: bytes) -> asyncssh.SFTPAttrs:
        attributes = asyncssh.SFTPAttrs.from_local(super().lstat(path))
        attributes.size = 1 << 62
        return attributes


class HangingServer(asyncssh.SFTPServer):
    """Answers no read, as when the file system below it hangs; SSH itself goes on."""

    async def read(self, file: object, offset: int, size: int) -> bytes:
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")


class GenerousServer(asyncssh.SFTPServer):
    """Answers each read with more bytes than were asked for."""

    def read(self, file: object, offset: int, size: int) -> bytes:
        return bytes(size + 100)


FACTORIES = {"lying": LyingServer, "hanging": HangingServer, "generous": GenerousServer}


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--sftp-server")
    parser.add_argument("--lacking", nargs="*", default=[])
    for name in FACTORIES:
        parser.add_argument(f"--{name}", dest="how", action="store_const", const=name)
    given = parser.parse_args()
    SFTPServerHandler._extensions = [
        (name, version)
        for name, version in SFTPServerHandler._extensions
        if name.decode().partition("@")[0] not in given.lacking
    ]
    how = (
        {"server_factory": lambda: ProgramServer(given.sftp_server), "encoding": None}
        if given.sftp_server
        else {"sftp_factory": FACTORIES.get(given.how, True)}
    )
    server = await asyncssh.listen(
        "127.0.0.1",
        given.port,
        server_host_keys=[str(given.folder / "host_key")],
        authorized_client_keys=str(given.folder / "authorized_keys"),
        reuse_address=True,
        **how,
    )
    ready = given.folder / "port.new"
    ready.write_text(str(server.get_port()))
    ready.rename(given.folder / "port")
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
