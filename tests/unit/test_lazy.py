"""Captured after the call: at once for the application, and never with bytes of later."""

from __future__ import annotations

import ctypes
import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from ckptflow.checkpointer import Checkpointer, CheckpointWarning
from ckptflow.checkpointer.taking import Take
from ckptflow.data import snapshot as snapshots
from ckptflow.data.snapshot import Snapshot
from ckptflow.errors import CheckpointError, TornCapture
from ckptflow.tiers.memory import MemoryTier

COUNT = 20_000


class Held:
    """Stops the capture after the call, until it may go on."""

    def __init__(self) -> None:
        self.began, self.may_go_on = threading.Event(), threading.Event()
        self.on = True
        self.error: BaseException | None = None


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    """Holds every capture that is left for later, right before or after it reads."""
    finish, check, held = Take.finish, Take._check, Held()

    def slow(take: Take) -> None:
        if held.on:
            held.began.set()
            assert held.may_go_on.wait(60)
        finish(take)

    def fails(take: Take, which: np.ndarray) -> None:
        if held.error is not None:
            raise held.error
        check(take, which)

    monkeypatch.setattr(Take, "finish", slow)
    monkeypatch.setattr(Take, "_check", fails)
    yield held
    held.may_go_on.set()


def begun(tier: MemoryTier, **options: Any) -> Checkpointer:
    given = {"every": "never", "rng": False, "keep": "all", "capture": "lazy"} | options
    return Checkpointer(tier, **given)


def restored(tier: MemoryTier, step: int | None = None) -> np.ndarray:
    with Checkpointer(tier, rng=False, every="never") as again:
        return again.restore(step=step)["u"]


def test_the_call_returns_before_anything_is_copied(held: Held) -> None:
    tier, u = MemoryTier(), np.arange(COUNT, dtype=np.float64)
    with begun(tier, u=u) as ckpt:
        ticket = ckpt.save(1)
        assert (ticket.captured, ticket.durable) == (False, False)
        assert ticket.modes["u"].mode == "lazy"
        assert not ckpt.due(2)
        held.may_go_on.set()
        ticket.wait_captured()
        assert ticket.captured
        u += 1
        ticket.wait()
    assert np.array_equal(restored(tier), np.arange(COUNT))


def test_a_write_meanwhile_raises_where_it_happens(held: Held) -> None:
    """To the array itself, to one that it is a view of, and to one that cannot be seen."""
    base = np.zeros(COUNT + 2)
    state = {"u": base[1:-1]}
    with begun(MemoryTier()) as ckpt:
        ticket = ckpt.save(1, state)
        for array in (state["u"], base):
            with pytest.raises(ValueError, match="read-only"):
                array[5] = 1
        held.may_go_on.set()
        ckpt.wait_captured()
        state["u"][5] = base[0] = 1
        ticket.wait()


def overwrite(array: np.ndarray, value: int) -> None:
    """Write as a library does that got the address."""
    ctypes.memset(array.ctypes.data, value, array.nbytes)


def test_a_write_behind_its_back_is_found_and_never_stored(held: Held) -> None:
    tier, u = MemoryTier(), np.zeros(COUNT)
    with begun(tier, u=u) as ckpt:
        held.may_go_on.set()
        ckpt.save(1).wait()
        held.began.clear()
        u += 1
        real = Take._check

        def late(take: Take, which: np.ndarray) -> None:
            overwrite(u, 7)
            real(take, which)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Take, "_check", late)
            ticket = ckpt.save(2)
            ticket.wait_captured()
        with pytest.raises(TornCapture, match="'state/u' was written to") as failure:
            ticket.wait()
        assert failure.value.regions == ("state/u",)
        with pytest.warns(CheckpointWarning, match="was written to while it was captured"):
            again = ckpt.save(3)
        assert again.modes["u"].mode == "copy"
        assert again.captured
        again.wait()
        assert ckpt.save(4).modes["u"].mode == "copy"
    assert [found.id.step for found in ckpt.lineage.valid()] == [4, 3, 1]
    assert np.array_equal(restored(tier, 1), np.zeros(COUNT))
    assert restored(tier).tobytes() == b"\7" * u.nbytes


@pytest.mark.filterwarnings("ignore::ckptflow.CheckpointWarning")
def test_a_thread_that_never_stops_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even when the region is copied within the call, because it was torn before."""
    tier, u, stop, written = MemoryTier(), np.zeros(COUNT), threading.Event(), [0]

    def write() -> None:
        while not stop.is_set():
            written[0] += 1
            overwrite(u, written[0] % 100)

    real, writer = Take._check, threading.Thread(target=write, daemon=True)

    def late(take: Take, which: np.ndarray) -> None:
        before = written[0]
        while written[0] < before + 2:  # One of them begins and ends in between.
            time.sleep(1e-4)
        real(take, which)

    monkeypatch.setattr(Take, "_check", late)
    with begun(tier, u=u) as ckpt:
        writer.start()
        try:
            lazy = ckpt.save(1)
            with pytest.raises(TornCapture, match="'state/u' was written to"):
                lazy.wait()
            with pytest.raises(TornCapture, match="'state/u' was written to"):
                ckpt.save(2)
            assert ckpt._capturing.capturer.arenas._lent == []
        finally:
            stop.set()
            writer.join(60)
        written[0] = -(1 << 60)
        monkeypatch.setattr(Take, "_check", real)
        ckpt.save(3).wait()
        assert [found.id.step for found in ckpt.lineage.valid()] == [3]


@pytest.mark.filterwarnings("ignore::ckptflow.CheckpointWarning")
def test_bytes_that_are_not_those_that_were_digested_are_not_stored() -> None:
    """As when a thread writes between the digest of a chunk and its copy."""
    tier, u = MemoryTier(), np.zeros(COUNT)
    with begun(tier, capture="diff-first", u=u) as ckpt:
        ckpt.save(1).wait()
        capture = snapshots.capture

        def torn(snapshot: Snapshot, *given: Any, **options: Any) -> int | None:
            taken = capture(snapshot, *given, **options)
            options["arena"][snapshot.places.bytes_of(0)][100] ^= 1
            return taken

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(snapshots, "capture", torn)
            u[:100] = 1
            ticket = ckpt.save(2)
            with pytest.raises(TornCapture, match="Bytes 0 and following"):
                ticket.wait()
        again = ckpt.save(3)
        assert str(again.modes["u"].mode) == "copy"
        again.wait()
        assert [found.id.step for found in ckpt.lineage.valid()] == [3, 1]
    assert np.array_equal(restored(tier), u)


def calls(ckpt: Checkpointer) -> dict[str, Callable[[], object]]:
    return {
        "save": lambda: ckpt.save(2),
        "restore": ckpt.restore,
        "close": ckpt.close,
        "wait": ckpt.wait,
        "wait_captured": ckpt.wait_captured,
    }


@pytest.mark.parametrize("name", ["save", "restore", "close", "wait", "wait_captured"])
def test_the_next_call_waits_for_the_capture(held: Held, name: str) -> None:
    u, done = np.zeros(COUNT), threading.Event()
    ckpt = begun(MemoryTier(), u=u)
    ckpt.save(1)
    assert held.began.wait(60)

    def call() -> None:
        calls(ckpt)[name]()
        done.set()

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    assert not done.wait(0.05)
    held.may_go_on.set()
    assert done.wait(60)
    thread.join()
    ckpt.close()


def test_a_wait_for_the_capture_is_time_blocked(held: Held) -> None:
    """The interval counts it, and not as time that the step took."""
    with begun(MemoryTier(), u=np.zeros(COUNT)) as ckpt:
        ckpt.save(1)
        assert held.began.wait(60)
        before_s = ckpt._pace.profile().blocked_s
        threading.Timer(0.05, held.may_go_on.set).start()
        ckpt.wait_captured()
        assert ckpt._pace.profile().blocked_s >= before_s + 0.04


@pytest.mark.parametrize("error", [TornCapture("torn", ("state/u",)), RuntimeError("oh")])
def test_what_goes_wrong_reaches_who_waits(held: Held, error: Exception) -> None:
    tier, u = MemoryTier(), np.zeros(COUNT)
    with begun(tier, u=u) as ckpt:
        held.error = error
        held.may_go_on.set()
        ticket = ckpt.save(1)
        ticket.wait_captured()
        ckpt._capturing.wait()
        assert u.flags.writeable
        with pytest.raises(CheckpointError, match=r"torn|The capture of step 1 broke"):
            ticket.wait()
        held.error = None
        with pytest.warns(CheckpointWarning, match="The task goes on"):
            ckpt.save(2).wait()
    ckpt = begun(tier, u=u)
    ckpt.restore()
    held.error = error
    ckpt.save(3)
    with pytest.warns(CheckpointWarning), pytest.raises(CheckpointError, match=r"torn|broke"):
        ckpt.close()


def test_too_little_room_for_what_changed(held: Held) -> None:
    """More changed than the budget had room for: the application waits until it is written."""
    tier, u = MemoryTier(), np.zeros(COUNT)
    held.may_go_on.set()
    with begun(tier, budget_bytes=u.nbytes // 2, u=u) as ckpt:
        for step in range(4):
            ckpt.wait_captured()
            u += 1 if step % 2 else 0
            u[0] = step
            ticket = ckpt.save(step)
            ticket.wait()
        assert ckpt._capturing.capturer.arenas.counted_bytes == 0
    for step in range(4):
        found = restored(tier, step)
        assert found[0] == step
        assert set(found[1:]) == {(step + 1) // 2}


def test_nothing_of_the_state_is_kept_alive(held: Held) -> None:
    held.may_go_on.set()
    u = np.zeros(COUNT)
    gone = weakref.ref(u)
    with begun(MemoryTier()) as ckpt:
        state = {"u": u}
        ckpt.save(1, state).wait()
        ckpt.wait_captured()
        del u, state
        gc.collect()
        assert gone() is None


def test_threads_end_with_their_checkpointer() -> None:
    before = set(threading.enumerate())  # Some of checkpointers that others never closed.

    def of_ours() -> list[threading.Thread]:
        return [one for one in set(threading.enumerate()) - before if "capture" in one.name]

    closed = begun(MemoryTier(), u=np.zeros(10))
    assert len(of_ours()) == 1
    closed.close()
    forgotten = begun(MemoryTier(), u=np.zeros(10))
    threads = of_ours()
    del forgotten
    while any(thread.is_alive() for thread in threads):  # It may hold it still, for a moment.
        gc.collect()
        threads[-1].join(0.01)
