"""Values on their way to a collection of Globus and back.

Out: staged, written down, submitted, polled, renamed to its key. In: submitted, polled, kept as
a copy in the staging folder. Whatever ends in between is taken up where it was, by this
process or another with the same staging folder.

``tests/unit/test_globus_tier.py`` and ``tests/process/test_globus_resume.py``.
"""

from __future__ import annotations

import hashlib
import re
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from typing_extensions import Buffer

from ckptflow.errors import NotFoundError, TierDenied, TierFull, TierUnavailable
from ckptflow.tiers.filesystem_kinds import Commit
from ckptflow.tiers.globus_collection import Collection, Found, is_taken
from ckptflow.tiers.globus_journal import Journal, Transfer
from ckptflow.tiers.globus_staging import Staging
from ckptflow.tiers.globus_tasks import GlobusTasks, Polling

INCOMING = ".incoming"  # Below the remote folder; no key has a part that begins with a dot.

_SURE_S = 60.0  # So long a range is read from a copy without asking whether it is the newest.
_CARRIES = 3  # So often a value is carried whose arrival somebody removed, or seems to have.
_LABEL_CHARS = 128  # The longest label that Globus takes.


@dataclass(frozen=True)
class GlobusPlaces:
    """Where the values are, and where they pass through.

    Attributes:
        collection: id of the remote collection.
        path: the folder there.
        staging_collection: id of the collection that shows the staging folder to Globus.
        staging: the staging folder, as this computer sees it.
        staging_path: the staging folder, as its collection sees it.
    """

    collection: str
    path: str
    staging_collection: str
    staging: Path
    staging_path: str


class Carrier:
    """Carries the values of one tier.

    Args:
        places: where they are and where they pass through.
        client: a ``globus_sdk.TransferClient``.
        polling: how one waits for a task.
        commit: ``move`` or ``direct``, see `ckptflow.tiers.globus`.
        cache_bytes: so much of what came in is kept.
        where: the tier, in messages.
    """

    def __init__(
        self,
        places: GlobusPlaces,
        *,
        client: Any,
        polling: Polling,
        commit: Commit,
        cache_bytes: int,
        where: str,
    ) -> None:
        self._places, self._commit, self._where = places, commit, where
        self.collection = Collection(client, places.collection)
        self._tasks = GlobusTasks(client, polling)
        self._staging = Staging(places.staging, cache_bytes=cache_bytes)
        self._journal = Journal(places.staging / "journal")
        self._checked: dict[str, tuple[str, float]] = {}  # Key to version, and when it was so.

    def remote(self, key: str) -> str:
        """Return the path of a key on the remote collection."""
        return f"{self._places.path}/{key}"

    def find(self, key: str) -> Found:
        """Return what the remote collection has for a key.

        Raises:
            NotFoundError: nothing.
        """
        found = self.collection.find(self.remote(key))
        if found is None or found.is_folder:
            raise NotFoundError(f"{self._where} holds no {key!r}.")
        return found

    def send(self, key: str, parts: Sequence[Buffer]) -> None:
        """Carry a value out; see `Tier.put`."""
        version, size_bytes = _digest_of(parts)
        with self._journal.held("out", key):
            transfer = self._journal.find("out", key)
            if transfer is not None and transfer.version != version:
                self._abandon(transfer)
                transfer = None
            for _ in range(_CARRIES):
                if transfer is None:
                    transfer = self._begin(key, parts, version, size_bytes)
                if self._finish(transfer):
                    self._forget_copies(key)
                    return
                transfer = None
        raise TierUnavailable(
            f"Cannot write {key!r} on {self._where}: it arrived {_CARRIES} times and was gone "
            f"before it could be renamed. Something else cleans up in {INCOMING!r} there."
        )

    def delete(self, key: str) -> None:
        """Delete a value, and what is under way to it."""
        with self._journal.held("out", key):
            transfer = self._journal.find("out", key)
            if transfer is not None:
                self._abandon(transfer)
            self._remove(self.remote(key), key)
            self._forget_copies(key)

    def open_copy(self, key: str, *, newest: bool) -> int:
        """Open a copy of the value in the staging folder, carried in if need be.

        A read of a whole value asks for the newest, since manifests are replaced; ranges are
        read from packs, many at a time, and those are not asked for each time.
        """
        with self._journal.held("in", key):
            version, when_s = self._checked.get(key, ("", 0.0))
            if not newest and version and time.monotonic() - when_s < _SURE_S:
                descriptor = self._staging.open_copy(key, version)
                if descriptor is not None:
                    return descriptor
            found = self.find(key)
            descriptor = self._staging.open_copy(key, found.version)
            if descriptor is None:
                self._fetch(key, found)
                descriptor = self._staging.open_copy(key, found.version)
            if descriptor is None:
                raise TierUnavailable(
                    f"Cannot read {key!r} on {self._where}: its copy vanished from "
                    f"{self._places.staging}. Something else cleans up there."
                )
            self._checked[key] = (found.version, time.monotonic())
            return descriptor

    def sweep(self, *, before_s: float) -> int:
        """Remove what is on its way, older than ``before_s``, and in no journal of ours."""
        ours = self._journal.all()
        removed = self._staging.sweep({one.staged for one in ours}, before_s=before_s)
        folder = self.remote(INCOMING)
        for found in self.collection.entries(folder):
            path = f"{folder}/{found.name}"
            if found.modified_s() < before_s and path not in {one.remote for one in ours}:
                self._remove(path, INCOMING)
                removed += 1
        return removed

    # --- out ---

    def _begin(
        self, key: str, parts: Sequence[Buffer], version: str, size_bytes: int
    ) -> Transfer:
        """Stage a value and write down that it is to go out; nothing is submitted yet."""
        name = uuid.uuid4().hex
        transfer = Transfer(
            key=key,
            direction="out",
            version=version,
            size_bytes=size_bytes,
            staged=f"out/{name}",
            remote=self.remote(key if self._commit == "direct" else f"{INCOMING}/{name}"),
            submission_id=self._tasks.new_submission_id(),
        )
        self._staging.stage(transfer.staged, parts)
        self._journal.write(transfer)
        return transfer

    def _finish(self, transfer: Transfer) -> bool:
        """Carry a value out to its end; false if all has to begin again."""
        remote = self.remote(transfer.key)
        for path in (transfer.remote, remote):
            self.collection.make_folder(path.rpartition("/")[0])
        self._carry(transfer)
        if transfer.remote != remote and not self._reveal(transfer, remote):
            self._abandon(transfer)
            return False
        # The rename was the commit; what follows only tidies up.
        self._journal.forget(transfer)
        self._staging.drop(transfer.staged)
        return True

    def _reveal(self, transfer: Transfer, remote: str) -> bool:
        """Rename what has arrived to its key; false if it is not there any more.

        That is so when a process died between its rename and its note of it, or when others
        swept. The value is carried once more then, since nobody can tell the two apart.
        """
        import globus_sdk

        try:
            self.collection.rename(transfer.remote, remote)
        except globus_sdk.GlobusAPIError as error:
            if self.collection.find(transfer.remote) is None:
                return False
            if is_taken(error):  # Where a rename does not replace, the key is gone meanwhile.
                self._remove(remote, transfer.key)
            self.collection.forget_folders()
            self.collection.make_folder(remote.rpartition("/")[0])
            self.collection.rename(transfer.remote, remote)
        return True

    # --- in ---

    def _fetch(self, key: str, found: Found) -> None:
        transfer = self._journal.find("in", key)
        if transfer is not None and transfer.version != found.version:
            self._abandon(transfer)
            transfer = None
        if transfer is None:
            transfer = Transfer(
                key=key,
                direction="in",
                version=found.version,
                size_bytes=found.size_bytes,
                staged=f"in/{uuid.uuid4().hex}",
                remote=self.remote(key),
                submission_id=self._tasks.new_submission_id(),
            )
            self._journal.write(transfer)
        self._staging.make_room(transfer.staged, transfer.size_bytes)
        self._carry(transfer)
        self._journal.forget(transfer)
        came_bytes = self._staging.size(transfer.staged)
        if came_bytes != found.size_bytes:
            self._staging.drop(transfer.staged)
            raise TierUnavailable(
                f"Cannot read {key!r} on {self._where}: it has {found.size_bytes} bytes, and "
                f"{came_bytes} came. It was replaced meanwhile."
            )
        self._staging.adopt(transfer.staged, key, found.version)

    def _forget_copies(self, key: str) -> None:
        self._checked.pop(key, None)
        self._staging.drop_copies(key)

    # --- both ways ---

    def _carry(self, transfer: Transfer) -> None:
        """Submit a transfer if that is not known to have happened, and wait for it."""
        if transfer.task_id is None:
            transfer = replace(transfer, task_id=self._submit(transfer))
            self._journal.write(transfer)
        task_id = f"{transfer.task_id}"
        verb = "write" if transfer.direction == "out" else "read"
        try:
            self._tasks.wait(task_id, what=f"{verb} {transfer.key!r} on {self._where}")
        except (TierDenied, TierFull):
            self._abandon(transfer)  # When that is mended, all begins anew.
            raise
        except TierUnavailable:
            if self._tasks.has_failed(task_id):
                self._abandon(transfer)
            raise

    def _submit(self, transfer: Transfer) -> str:
        here = (
            self._places.staging_collection,
            f"{self._places.staging_path}/{transfer.staged}",
        )
        there = (self._places.collection, transfer.remote)
        source, target = (here, there) if transfer.direction == "out" else (there, here)
        label = re.sub(r"[^A-Za-z0-9 _,-]", "-", f"ckptflow {transfer.key}")[:_LABEL_CHARS]
        return self._tasks.submit_transfer(
            source, target, submission_id=transfer.submission_id, label=label
        )

    def _abandon(self, transfer: Transfer) -> None:
        if transfer.task_id is not None:
            self._tasks.cancel(transfer.task_id)
        self._journal.forget(transfer)
        self._staging.drop(transfer.staged)

    def _remove(self, path: str, key: str) -> None:
        self._tasks.delete(
            self._places.collection, path, what=f"delete {key!r} on {self._where}"
        )


def _digest_of(parts: Sequence[Buffer]) -> tuple[str, int]:
    digest, size_bytes = hashlib.sha256(), 0
    for part in parts:
        view = memoryview(part).cast("B")
        digest.update(view)
        size_bytes += len(view)
    return digest.hexdigest(), size_bytes
