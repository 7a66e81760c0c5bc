"""What leads the ranks of a launch, in the worker: says what to run, where to stop, hears how.

A thread with an event loop. Ranks connect, and are welcomed when they know the launch's secret;
when all are there, all may go. After that a rank asks for leases (`lease`), and says how it
ended. One that is gone without a word has died: the others are told to end, since they would
wait for it. They also end when this process does.

Of a command that starts its ranks more than once (two programs, or torchrun after a failure)
each start is a *round*; the last one counts. ``tests/process/test_ranked_tasks.py``.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import psutil

from ckptflow.errors import FormatError
from ckptflow.workflow.ranks import lease
from ckptflow.workflow.ranks.events import Ending, Kind
from ckptflow.workflow.ranks.wire import (
    HEAD,
    VERSION,
    Message,
    Whereabouts,
    frame,
    is_proof,
    keep_alive,
    nonce,
    parsed,
    proof,
    sizes,
)

MUSTER_S = 900.0  # Between the first rank and the last; a queue of nodes may boot meanwhile.
LOOPBACK = "127.0.0.1"

_HELLO_S = 30.0
_RAISED_GRACE_S = 1.0  # Between an exception in one rank and the end of the others.
_STOP_S = 10.0
_STRANGERS_MAX = 256  # Connections that have proven nothing yet.
_KINDS: tuple[Kind, ...] = ("finished", "ended", "preempted", "raised")


@dataclass(slots=True)
class _Seat:
    """A rank that is here, or was."""

    rank: int
    where: str
    host: str
    port: int  # That was free on its node; that of rank 0 is for the application.
    writer: asyncio.StreamWriter
    ending: Ending | None = None


@dataclass(slots=True)
class _Round:
    """One start of all ranks."""

    seats: dict[int, _Seat] = field(default_factory=dict)
    endings: list[Ending] = field(default_factory=list)
    leases: lease.Leases = field(default_factory=lease.Leases)
    over: str | None = None  # Why its ranks were told to end.

    @property
    def here(self) -> list[_Seat]:
        """The ranks that have not ended."""
        return [seat for seat in self.seats.values() if seat.ending is None]


class Steward:
    """Leads the ranks of one launch while entered.

    Args:
        world: how many ranks there are to be.
        welcome: what every rank is told.
        data: bytes that go with it.
        stop: asked for the reason to stop, each time that a rank asks for a lease.
        near: whether all ranks are on this node.
    """

    def __init__(
        self,
        world: int,
        welcome: Mapping[str, Any],
        data: bytes = b"",
        *,
        stop: Callable[[], str | None] = lambda: None,
        near: bool = False,
    ) -> None:
        self.world, self._welcome, self._data = world, dict(welcome), data
        self._stop, self._near = stop, near
        self._secret = secrets.token_hex(16)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._work, name="ckptflow-steward", daemon=True)
        self._server: asyncio.Server | None = None
        self._port = 0
        self._round = _Round()
        self._strangers = 0
        self._closing = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._gone = threading.Condition()
        self.attempt: int | None = None  # That the ranks have joined last.

    def __enter__(self) -> Self:
        address = LOOPBACK if self._near else None
        start = asyncio.start_server(self._serve, address, 0, family=socket.AF_INET)
        self._server = self._loop.run_until_complete(start)
        self._port = self._server.sockets[0].getsockname()[1]
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end("the task has ended")
        self.wait_gone(_STOP_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # --- for the worker ---

    @property
    def where(self) -> Whereabouts:
        """Where ranks find it."""
        hosts = (LOOPBACK,) if self._near else tuple(_own_hosts())
        return Whereabouts(hosts, self._port, self._secret)

    @property
    def endings(self) -> list[Ending]:
        """How ranks of the last round have ended, in this order."""
        return list(self._round.endings)

    @property
    def over(self) -> str | None:
        """Why the ranks of the last round were told to end; ``None`` if they were not."""
        return self._round.over

    @property
    def save_s(self) -> float:
        """How long a save takes, of the slowest rank, and how long until all hear of a stop."""
        return self._round.leases.save_s + lease.LEASE_S

    def end(self, reason: str) -> None:
        """Tell all ranks that are here to end, at once."""
        self._loop.call_soon_threadsafe(self._end_round, self._round, reason)

    def wait_gone(self, timeout_s: float) -> bool:
        """Wait until no rank is here; return whether that is so."""
        with self._gone:
            return self._gone.wait_for(lambda: not self._round.here, timeout_s)

    # --- in its thread ---

    def _work(self) -> None:
        self._loop.run_forever()
        self._closing = True
        assert self._server is not None, "it is made before the thread is"
        self._server.close()
        self._loop.run_until_complete(_cancel_all())

    def _end_round(self, ended: _Round, reason: str) -> None:
        here = ended.here
        if here and ended.over is None:
            ended.over = reason
        for seat in here:
            self._tell(seat, {"is": "over", "reason": reason})

    def _tell(self, seat: _Seat, message: Mapping[str, Any], data: bytes = b"") -> None:
        if not seat.writer.is_closing():
            seat.writer.write(frame(message, data))

    def _later(self, delay_s: float, ended: _Round, reason: str) -> None:
        self._loop.call_later(delay_s, self._end_round, ended, reason)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, from hello to its end."""
        if self._strangers >= _STRANGERS_MAX:
            writer.close()
            return
        self._strangers += 1
        seat: _Seat | None = None
        its_round = self._round
        try:
            try:
                seat = await asyncio.wait_for(self._welcomed(reader, writer), _HELLO_S)
                its_round = self._round
            finally:
                self._strangers -= 1
            while seat is not None:
                message, data = await _message(reader)
                self._heard(its_round, seat, message, data)
        except (OSError, EOFError, FormatError, TimeoutError, asyncio.CancelledError):
            pass  # Whoever it was is gone; whether that is a loss is seen below.
        finally:
            if seat is not None and seat.ending is None and not self._closing:
                self._lost(its_round, seat)
            writer.close()

    async def _welcomed(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> _Seat | None:
        """Return the seat of who connects, if it belongs to this launch."""
        mine = nonce()
        keep_alive(writer.get_extra_info("socket"))
        writer.write(frame({"version": VERSION, "nonce": mine}))
        hello, _ = await _message(reader, data_bytes_max=0)
        if not is_proof(hello.get("proof"), self._secret, "rank", mine):
            return None
        answer = {"proof": proof(self._secret, "steward", hello.get("nonce"))}
        seat = _seat(hello, writer)
        seats = self._round.seats
        was_here = seat is not None and seat.rank in seats
        if seats and not self._round.here and (was_here or len(seats) == self.world):
            self._round = _Round()  # The command starts its ranks another time.
        if refusal := self._refusal(hello, seat):
            writer.write(frame({**answer, "refused": refusal}))
            return None  # What was written is still sent when it is closed.
        assert seat is not None, "one without a seat is refused"
        writer.write(frame({**answer, **self._welcome}, self._data))
        self._round.seats[seat.rank] = seat
        if self._round.over is not None:
            self._tell(seat, {"is": "over", "reason": self._round.over})
        elif len(self._round.seats) == self.world:
            self._go()
        elif len(self._round.seats) == 1:
            task = self._loop.create_task(self._muster(self._round))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return seat

    def _refusal(self, hello: Message, seat: _Seat | None) -> str | None:
        if hello.get("version") != VERSION:
            return "This rank runs another version of ckptflow than the worker."
        if seat is None:
            return "A rank says who it is in other words than this version."
        if hello.get("world") != self.world:
            return (
                f"The app says ranks={self.world}, but {hello.get('world')} were started. "
                f"Start as many as the app says, best with the command in ckpt.launch."
            )
        if not 0 <= seat.rank < self.world or seat.rank in self._round.seats:
            return f"Rank {seat.rank} is here already: {self.world} ranks have one number each."
        return None

    def _go(self) -> None:
        seats = self._round.seats
        one_node = len({seat.host for seat in seats.values()}) == 1
        master = {
            "is": "go",
            "address": LOOPBACK if one_node else seats[0].host,
            "port": seats[0].port,
        }
        for seat in seats.values():
            self._tell(seat, master)

    async def _muster(self, its_round: _Round) -> None:
        await asyncio.sleep(MUSTER_S)
        if len(its_round.seats) < self.world:
            missing = sorted(set(range(self.world)) - set(its_round.seats))
            self._end_round(
                its_round,
                f"ranks {missing[:8]} of {self.world} did not come within {MUSTER_S:.0f} s",
            )

    def _heard(self, its_round: _Round, seat: _Seat, message: Message, data: bytes) -> None:
        if message.get("is") == "ask":
            answer = its_round.leases.ask(seat.rank, lease.question(message), self._stop())
            self._tell(
                seat,
                {"is": "answer", "until": answer.until, "saves": answer.saves,
                 "stop": answer.stop},
            )  # fmt: skip
        elif message.get("is") == "joined" and isinstance(message.get("attempt"), int):
            self.attempt = max(message["attempt"], self.attempt or 0)
        elif message.get("is") == "end" and message.get("kind") in _KINDS:
            self._ended(its_round, seat, message["kind"], message.get("record") or {}, data)
        else:
            raise FormatError(f"Rank {seat.rank} says what this version does not understand.")

    def _ended(
        self, its_round: _Round, seat: _Seat, kind: Kind, record: Mapping[str, Any], data: bytes
    ) -> None:
        step = its_round.leases.steps.get(seat.rank)
        ending = Ending(seat.rank, kind, seat.where, step, record, data)
        with self._gone:
            seat.ending = ending
            its_round.endings.append(ending)
            self._gone.notify_all()
        if kind == "raised" or record.get("outcome") == "fenced":
            self._later(_RAISED_GRACE_S, its_round, f"rank {seat.rank} has failed")
        if kind != "preempted":
            self._tell(seat, {"is": "bye"})
        self._let_stopped_go(its_round)

    def _lost(self, its_round: _Round, seat: _Seat) -> None:
        step = its_round.leases.steps.get(seat.rank)
        with self._gone:
            seat.ending = Ending(seat.rank, "lost", seat.where, step)
            if its_round.over is None:  # Else it was told to.
                its_round.endings.append(seat.ending)
            self._gone.notify_all()
        self._end_round(its_round, f"rank {seat.rank} ({seat.where}) is gone")
        self._let_stopped_go(its_round)

    def _let_stopped_go(self, its_round: _Round) -> None:
        """Let ranks leave that have stopped, when all have.

        What started them takes the status of the first that leaves for a failure, and ends
        the others, which may still be saving.
        """
        if its_round.here or len(its_round.seats) < self.world:
            return
        for seat in its_round.seats.values():
            if seat.ending is not None and seat.ending.kind == "preempted":
                self._tell(seat, {"is": "bye"})


async def _cancel_all() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


def _seat(hello: Message, writer: asyncio.StreamWriter) -> _Seat | None:
    match hello:
        case {"rank": int(rank), "host": str(host), "pid": int(pid), "port": int(port)}:
            return _Seat(rank, f"process {pid} on {host}", host, port, writer)
    return None


async def _message(reader: asyncio.StreamReader, **limits: int) -> tuple[Message, bytes]:
    head = await reader.readexactly(HEAD.size)
    text_bytes, data_bytes = sizes(head, **limits)
    return parsed(await reader.readexactly(text_bytes)), await reader.readexactly(data_bytes)


def _own_hosts() -> Sequence[str]:
    """Return the names and addresses by which other nodes may see this one."""
    found = [socket.gethostname()]
    for addresses in psutil.net_if_addrs().values():
        found += [one.address for one in addresses if one.family == socket.AF_INET]
    last = [LOOPBACK] if LOOPBACK in found else []
    return [*dict.fromkeys(one for one in found if one != LOOPBACK), *last]
