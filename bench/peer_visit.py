"""One visit of `peers.py` to one way to save: a process of its own, which tells what it finds.

Every line that it writes to its output is one event, as JSON. What libraries print goes to the
errors instead. A save is always measured with its floors beside it: the copy of the state just
before it, which is also what a restore is compared with, and the write of as many bytes as the
update changed.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import peer_registry
import updates
from peer_ways import Saving, Unavailable, Way, entries
from process_memory import memory_bytes, reset_peak
from updates import Compute, State, Timed, Update, Updater, timed

# In the order of what matters most, where time does not suffice for all.
PLAN: tuple[Update, ...] = (
    "all words",
    "1 % contiguous",
    "5 % of rows",
    "1 % of words",
    "unchanged",
)
ALWAYS = 2  # So many of these are measured, however long that takes.
ROUNDS_AT_MOST = 5
SAVES_UNTIL, LOOPS_UNTIL = 0.55, 0.75  # When no more begin, in shares of a visit.
IDLE_STEPS = 5
LOOP_STEPS = 6  # Of which every other one begins with a save.
LOOP_UPDATES: tuple[Update, ...] = ("all words", "1 % contiguous")
RESTORES = 2
REASON_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class Order:
    """What to measure.

    Attributes:
        way: its name in `peer_registry.WAYS`.
        kind, scale: of the state.
        folder: an empty one.
        seed: of the updates.
        seconds: about how long to measure; what is slow is measured less often.
        step_s: how long the program computes between two saves.
    """

    way: str
    kind: updates.Kind
    scale: updates.Scale
    folder: str
    seed: int
    seconds: float
    step_s: float


def main() -> None:
    """Do what the first argument of the command line says."""
    began = time.monotonic()
    order = Order(**json.loads(sys.argv[1]))
    output = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def tell(event: str, **values: Any) -> None:
        output.write(json.dumps({"event": event, **values}) + "\n")

    folder = Path(order.folder)
    store, raw = folder / "store", folder / "raw"
    store.mkdir()
    raw.mkdir()
    state = updates.make_state(order.kind, order.scale)
    tell("state", bytes=updates.size_bytes(state), arrays=len(state))
    entry = peer_registry.WAYS[order.way]
    try:
        for module in entry.imports:
            importlib.import_module(module)
        visit = Visit(order, state, raw, tell, began)
        with Timed() as made:
            way = entry.make(store, state)
    except (Unavailable, ImportError) as reason:
        tell("missing", reason=str(reason) or type(reason).__name__)
        return
    versions = [f"{name} {version(name)}" for name in entry.packages]
    tell("ready", seconds=made.seconds, versions=versions)
    try:
        visit.measure(way)
    except Exception as error:  # Whatever a library raises, it is the result of this visit.
        tell("failed", reason=f"{type(error).__name__}: {error}"[:REASON_CHARACTERS])
        raise
    tell("done")


class Visit:
    """The measurements of one way."""

    def __init__(
        self,
        order: Order,
        state: State,
        raw: Path,
        tell: Callable[..., None],
        began: float,
    ) -> None:
        self.order, self.state, self.raw, self.tell = order, state, raw, tell
        self.began = began
        self.expected = {name: np.empty_like(array) for name, array in state.items()}
        updates.copy(state, self.expected)  # Its pages are there from now on.
        self.updater = Updater(state, order.seed)
        self.compute = Compute(order.step_s)
        self.step = 0
        reset_peak()
        self.resting_bytes = memory_bytes("VmRSS")

    def left_s(self, share: float) -> float:
        """Return the time that is left until a share of the visit is over."""
        return share * self.order.seconds - (time.monotonic() - self.began)

    def measure(self, way: Way) -> None:
        """Tell of saves, of steps beside them, and of restores."""
        whole = updates.size_bytes(self.state)
        self.save(way, "first", changed=whole, counts=True, beside_step=way.captures_later)
        for position, update in enumerate(PLAN):
            left_s = self.left_s(SAVES_UNTIL)
            if left_s < 0 and position >= ALWAYS:
                self.tell("skipped", what=update)
                continue
            self.saves(way, update, for_s=left_s / (len(PLAN) - position))
        for update in LOOP_UPDATES:
            if self.left_s(LOOPS_UNTIL) < 0:
                self.tell("skipped", what=f"steps, {update}")
                continue
            self.loop(way, update)
        self.restores(way)

    def saves(self, way: Way, update: Update, *, for_s: float) -> None:
        """Tell of at least one save of an update that counts, and of more while time lasts."""
        until = time.monotonic() + for_s
        for number in range(way.settling + ROUNDS_AT_MOST):
            late = time.monotonic() > until
            if late and number > way.settling:
                return
            if late and number < way.settling:
                self.tell("skipped", what=f"settled saves, {update}")
            counts = late or number >= way.settling
            for beside_step in (False, True) if counts and way.captures_later else (False,):
                changed = self.updater.apply(update)
                self.save(way, update, changed=changed, counts=counts, beside_step=beside_step)
            if late:
                return

    def save(
        self, way: Way, update: str, *, changed: int, counts: bool, beside_step: bool
    ) -> None:
        """Tell of one save.

        Where the program goes on before it may change its state, what it waits for in the end
        counts, after a step. When the save is durable is measured without that step.
        """
        with Timed() as copied:
            updates.copy(self.state, self.expected)
        before = entries(way.folder)
        reset_peak()
        self.step += 1
        with Timed() as called:
            saving = way.save(self.step)
        end = End(saving, called.began)
        if beside_step:
            self.compute.step()
        with Timed() as waited:
            saving.may_write()
        end.wait()
        peak_bytes = memory_bytes("VmHWM")
        with Timed() as wrote:
            updates.write_synced(self.raw / str(self.step), self.expected, changed)
        (self.raw / str(self.step)).unlink()
        after = entries(way.folder)
        way.forget(self.step - 2)
        self.tell(
            "save",
            update=update,
            counts=counts,
            beside_step=beside_step,
            blocked_s=called.seconds + waited.seconds,
            durable_s=end.seconds,
            memcpy_s=copied.seconds,
            write_s=wrote.seconds,
            changed_bytes=changed,
            stored_bytes=sum(
                entry[2] for path, entry in after.items() if before.get(path) != entry
            ),
            extra_bytes=peak_bytes - self.resting_bytes,
        )

    def loop(self, way: Way, update: Update) -> None:
        """Tell how long steps take, alone and with saves on their way."""
        idle = [timed(self.compute.step) for _ in range(IDLE_STEPS)]
        saving, in_flight, blocked, total_s = Saving(), [], [], 0.0
        for number in range(LOOP_STEPS):
            with Timed() as called:
                if number % 2 == 0:
                    self.step += 1
                    saving = way.save(self.step)
            beside = not saving.done()
            with Timed() as computed:
                self.compute.step()
            with Timed() as captured:
                saving.may_write()
            if beside:
                in_flight.append(computed.seconds)
            if number % 2 == 0:
                blocked.append(called.seconds + captured.seconds)
            total_s += called.seconds + computed.seconds + captured.seconds
            self.updater.apply(update)
        saving.wait()
        for step in range(self.step - LOOP_STEPS, self.step - 1):
            way.forget(step)
        self.tell(
            "loop",
            update=update,
            idle_s=idle,
            in_flight_s=in_flight,
            blocked_s=blocked,
            total_s=total_s,
            steps=LOOP_STEPS,
        )

    def restores(self, way: Way) -> None:
        """Tell whether a save holds the bits of its call, and how long it takes to read them.

        The program changes every word as soon as it may, and restores into what became of it.
        """
        updates.copy(self.state, self.expected)
        self.step += 1
        saving = way.save(self.step)
        saving.may_write()
        updates.negate(self.state)
        saving.wait()
        way.close()
        updates.write_synced(self.raw / "whole", self.expected)
        read_through(way.folder, 2 * updates.size_bytes(self.state))
        for _ in range(RESTORES):
            with Timed() as restored:
                way.restore(self.step)
            verdict = self.verdict()
            with Timed() as read:
                updates.read_raw(self.raw / "whole", self.state)
            with Timed() as copied:
                updates.copy(self.state, self.expected)
            self.tell(
                "restore",
                seconds=restored.seconds,
                read_s=read.seconds,
                memcpy_s=copied.seconds,
                **verdict,
            )
            updates.negate(self.state)
            if self.left_s(1) < 0:
                return

    def verdict(self) -> dict[str, float]:
        """Return the shares of words that are those of the call, and of a later step."""
        total = right = later = 0
        for name, array in self.state.items():
            got, said = array.view(np.uint32), self.expected[name].view(np.uint32)
            total += got.size
            right += int(np.count_nonzero(got == said))
            later += int(np.count_nonzero(got == said ^ np.uint32(1 << 31)))
        return {"right": right / total, "later": later / total}


class End:
    """Waits for a save in a thread, to know when it was durable whatever else goes on."""

    def __init__(self, saving: Saving, began: float) -> None:
        self._saving, self._began, self.seconds = saving, began, 0.0
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._saving.wait()
        except Exception as error:  # noqa: BLE001 - whatever a library raises.
            self._error = error
        self.seconds = time.perf_counter() - self._began

    def wait(self) -> None:
        self._thread.join()
        if self._error is not None:
            raise self._error


def read_through(folder: Path, most_bytes: int) -> None:
    """Read the newest files once, so that a restore finds all of them in the page cache."""
    found = sorted(entries(folder).items(), key=lambda item: item[1][1], reverse=True)
    for path, (_, _, file_bytes) in found:
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                while file.read(8 << 20):
                    pass
            most_bytes -= file_bytes
        if most_bytes < 0:
            return
