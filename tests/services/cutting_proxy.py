"""A TCP proxy on the loopback that breaks connections at a place that is known.

It counts the bytes of each connection, those that the client sends or those that it gets
(``answers``). At ``limit_bytes`` it either cuts that connection or stops passing on its bytes
(``stall``), and sets ``reached``.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator


class CuttingProxy:
    """Passes bytes between clients and ``port``.

    Attributes:
        port: where clients connect.
        reached: set when a connection has come to its limit.
        accepted: so many connections were made.
        passed: so many bytes came from clients, and so many went to them, in all.
    """

    def __init__(
        self,
        port: int,
        *,
        limit_bytes: int | None = None,
        answers: bool = False,
        stall: bool = False,
    ) -> None:
        self._target, self._limit_bytes, self._stall = port, limit_bytes, stall
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.reached, self._released = threading.Event(), threading.Event()
        self.accepted = 0
        self.passed = [0, 0]
        self._answers = answers
        self._threads: list[threading.Thread] = []
        self._pairs: list[tuple[socket.socket, socket.socket]] = []

    @contextlib.contextmanager
    def running(self) -> Iterator[CuttingProxy]:
        """Pass bytes meanwhile."""
        self._begin(self._accept)
        try:
            yield self
        finally:
            self._released.set()
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            for pair in self._pairs:
                self._end(*pair)
            for thread in self._threads:
                thread.join()
            for pair in self._pairs:
                for one in pair:
                    one.close()

    def _begin(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                client.close()
                continue
            self._pairs.append((client, server))
            for one in (client, server):  # Small requests would wait for each other.
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.accepted += 1
            for way, ends in enumerate([(client, server), (server, client)]):
                limit = self._limit_bytes if way == int(self._answers) else None
                self._begin(self._pass_on, *ends, limit, way)

    def _pass_on(
        self, source: socket.socket, target: socket.socket, limit: int | None, way: int
    ) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                passed += len(data)
                self.passed[way] += len(data)
                if limit is not None and passed >= limit:
                    target.sendall(data[: len(data) - (passed - limit)])
                    self.reached.set()
                    if self._stall:
                        self._released.wait()
                    break
                target.sendall(data)
        self._end(source, target)

    def _end(self, source: socket.socket, target: socket.socket) -> None:
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
