"""A small HTTP proxy that counts requests and makes some of them fail, as networks do.

What a request meets is decided by `FaultProxy.rule`, called with its method and its path:
``None`` passes it on; a number is answered as that status, and not passed on; ``"cut"`` closes
the connection before, and ``"lose"`` after the server has done what was asked.
"""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal, Self
from urllib.parse import urlsplit

Answer = tuple[int, list[tuple[str, str]], bytes]
Fault = int | Literal["cut", "lose"] | None


def no_fault(_method: str, _path: str) -> Fault:
    return None


class FaultProxy:
    """Passes HTTP on to ``upstream``. Use it as a context manager.

    Attributes:
        rule: decides what a request meets.
        requests: method and path of each request so far.
    """

    def __init__(self, upstream: str) -> None:
        self.rule: Callable[[str, str], Fault] = no_fault
        self.requests: list[tuple[str, str]] = []
        host = urlsplit(upstream).netloc
        proxy = self

        class Handler(_Handler):
            def fault(self) -> Fault:
                proxy.requests.append((self.command, self.path))
                return proxy.rule(self.command, self.path)

            def forward(self, body: bytes) -> Answer:
                connection = http.client.HTTPConnection(host, timeout=60)
                with contextlib.closing(connection):
                    connection.request(self.command, self.path, body, dict(self.headers))
                    answer = connection.getresponse()
                    return answer.status, answer.getheaders(), answer.read()

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def fault(self) -> Fault:
        raise AssertionError("defined by the proxy")

    def forward(self, body: bytes) -> Answer:
        raise AssertionError("defined by the proxy")

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = self.fault()
        if isinstance(fault, int):
            self._answer(fault, [], b"")
            return
        self.close_connection = fault is not None
        if fault == "cut":
            return
        try:
            answer = self.forward(body)
        except (OSError, http.client.HTTPException):  # The server has died, say.
            self.close_connection = True
            return
        if fault != "lose":
            self._answer(*answer)

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.send_response_only(status)
        length = str(len(body))
        for name, value in headers:
            if name.lower() == "content-length":
                length = value  # That of a HEAD says how large the object is.
            elif name.lower() not in {"transfer-encoding", "connection"}:
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle

    def log_message(self, *_: object) -> None:
        """Say nothing."""
