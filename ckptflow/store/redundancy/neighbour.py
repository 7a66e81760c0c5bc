"""What a node does for the others of its redundancy set, while its agent runs.

It serves its own tier to those who have the key, says where, and in the background protects
what lacks redundancy (a node has gone, or nobody asked for it) and lets go of stripes that
nothing needs. Of several nodes the one with the lowest id does that; if it is silent, the next.
``tests/process/test_redundant_nodes.py``.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from ckptflow.errors import CheckpointError, TierError
from ckptflow.store.redundancy.meeting import ANNOUNCE_S, Meeting
from ckptflow.store.redundancy.set import RedundancySet
from ckptflow.store.redundancy.stripes import REDUNDANCY
from ckptflow.tiers.peer_server import PeerServer


class Neighbour:
    """A node that takes part, from its creation until `close`.

    Args:
        meeting: where the nodes find each other.
        own_set: returns the set of this node as it is now.
        whole_set: returns all nodes as one set.
        note: told, in a sentence, of what went wrong.

    Raises:
        ConfigError: nothing can listen at the address.
        TierError: the others cannot be told of this node.
    """

    def __init__(
        self,
        meeting: Meeting,
        own_set: Callable[[], RedundancySet],
        whole_set: Callable[[], RedundancySet],
        *,
        note: Callable[[str], None],
    ) -> None:
        self._meeting, self._own_set, self._whole_set = meeting, own_set, whole_set
        self._note, self._closing = note, threading.Event()
        self._server = PeerServer(
            meeting.served, meeting.key, host=meeting.bind, writable_below=REDUNDANCY, note=note
        )
        try:
            meeting.arrive(self.port)
        except BaseException:
            self._server.close()
            raise
        self._thread = threading.Thread(
            target=self._work, name="ckptflow-neighbour", daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        """TCP."""
        return int(self._server.address.rpartition(":")[2])

    def close(self) -> None:
        """Stop serving. The node may come back, so its announcement stays until it is old."""
        self._closing.set()
        self._thread.join()
        self._server.close()

    def round(self) -> None:
        """Do what is to be done now and then; `_work` does it once a minute."""
        self._meeting.arrive(self.port)
        own = self._own_set()
        if self._leads(own):
            own.protect_now()
        whole = self._whole_set()
        if self._leads(whole):
            whole.release_now()

    def _work(self) -> None:
        while not self._closing.wait(ANNOUNCE_S):
            try:
                self.round()
            except CheckpointError as error:  # The next round tries again.
                self._note(f"Redundancy was not looked after: {error}")

    def _leads(self, members: RedundancySet) -> bool:
        """Tell whether no member with a lower id answers."""
        own = members.own.id
        for other in sorted(members.others, key=lambda one: one.id):
            if other.id > own:
                break
            with contextlib.suppress(TierError):
                next(iter(other.tier.iter_folders("")), None)
                return False
        return True
