"""What one process remembers of a lineage between saves, whoever asks: a session.

Torch's way is a new writer for every checkpoint, and a process of its own for writing, to
which writers are sent. So what later saves are diffed against belongs to the process and not
to a writer. There is one session for each lineage in each store, the newest few of them.
``tests/unit/test_dcp.py``.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ckptflow.checkpointer.arguments import tiers_of
from ckptflow.errors import ConfigError
from ckptflow.model import CheckpointId, LineageId
from ckptflow.store.catalog import Lineage
from ckptflow.store.packing import Packing
from ckptflow.store.parts import PartWriter
from ckptflow.tiers.tier import Tier

SESSIONS_MAX = 8

Store = str | Path | Tier | Sequence[str | Path | Tier]


class Session:
    """One lineage as this process knows it.

    Attributes:
        lineage: its catalog.
        loaded: the checkpoint that was loaded since the last save; ``None`` if none was.
    """

    def __init__(self, lineage: Lineage) -> None:
        self.lineage = lineage
        self.loaded: CheckpointId | None = None
        self._writers: dict[Packing, PartWriter] = {}
        self._attempt: int | None = None  # Of the coordinator only.
        self._begun_at: CheckpointId | None = None
        self._recorded = False
        self._busy = threading.Lock()

    @contextmanager
    def writing(self, packing: Packing) -> Iterator[PartWriter]:
        """Give the writer of this process's parts.

        Raises:
            ConfigError: it is in use, by a save that has not come to its end.
        """
        if not self._busy.acquire(blocking=False):
            raise ConfigError(
                f"{self.lineage.id}: a save began while another is being written. Wait for the "
                f"future of async_save before the next."
            )
        try:
            if packing not in self._writers:
                tier = self.lineage.tiers[0]
                self._writers = {packing: PartWriter(tier, self.lineage.id, packing)}
            yield self._writers[packing]
        finally:
            self._busy.release()

    def begin(self, step: int) -> None:
        """Make sure that a save of ``step`` may be committed; claim an attempt if need be.

        Who loaded an earlier checkpoint goes back to it with the first save that comes before
        the newest: a new attempt, which makes void what was saved after where it begins.

        Raises:
            ConfigError: the step does not grow, and no earlier checkpoint was loaded.
            TierError: the attempt could not be claimed.
        """
        found, loaded = self.lineage.newest(), self.loaded
        newest = found.id if found else None
        goes_back = newest is not None and step <= newest.step
        if newest and goes_back and (loaded is None or loaded.step >= step):
            raise ConfigError(
                f"{self.lineage.id} has a checkpoint of step {newest.step}, so one of step "
                f"{step} may not be saved now: steps grow. To go back, load an earlier one "
                f"first (reader(step=...)); to begin anew, use another run or task name."
            )
        if goes_back or self._attempt is None:
            self._begun_at = loaded if goes_back else newest
            self._attempt, self._recorded = self.lineage.claim(), False
        self.loaded = None

    def may_commit(self) -> None:
        """Stop a commit if another process has taken over; say where this attempt began.

        Raises:
            FencedError: it has.
            TierError: that could not be found out.
        """
        assert self._attempt is not None, "a save begins before it is committed"
        self.lineage.check_fence(self._attempt)
        if not self._recorded:
            self.lineage.record_resume(self._attempt, self._begun_at)
            self._recorded = True
            self.lineage.check_fence(self._attempt)


_sessions: OrderedDict[tuple[object, ...], Session] = OrderedDict()
_lock = threading.Lock()


def session_of(store: Store, lineage: LineageId) -> Session:
    """Return the session of a lineage; a new one when it is first asked for.

    Raises:
        ConfigError: there is no such store.
    """
    given = (store,) if isinstance(store, str | Path | Tier) else tuple(store)
    # A tier that was handed over is itself; the session keeps it alive.
    key = (lineage, *(id(one) if isinstance(one, Tier) else str(one) for one in given))
    with _lock:
        if key not in _sessions:
            _sessions[key] = Session(Lineage(tiers_of(store), lineage))
            while len(_sessions) > SESSIONS_MAX:
                _sessions.popitem(last=False)
        _sessions.move_to_end(key)
        return _sessions[key]
