"""Looking at a collection of Globus, and the small changes that need no task.

``tests/unit/test_globus_tier.py``.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ckptflow.tiers.globus_errors import is_absent

_PAGE = 10_000  # Entries of one answer; Globus lists the whole folder again for each page.
_TAKEN = re.compile(r"(?i)exists|already")


@dataclass(frozen=True, slots=True)
class Found:
    """A file or folder on a collection.

    Attributes:
        name: without its folder.
        size_bytes: 0 for a folder.
        modified: when, in the words of Globus.
        is_folder: or a file.
    """

    name: str
    size_bytes: int
    modified: str
    is_folder: bool

    @property
    def version(self) -> str:
        """Different for different bytes under one name, unless written in one second."""
        return f"{self.size_bytes} {self.modified}"

    def modified_s(self) -> float:
        """Return when it was modified, in seconds since 1970; now if Globus does not say."""
        try:
            return datetime.fromisoformat(self.modified).timestamp()
        except ValueError:
            return time.time()


class Collection:
    """One collection, with a ``globus_sdk.TransferClient``.

    Args:
        client: asks Globus.
        collection: id.
    """

    def __init__(self, client: Any, collection: str) -> None:
        self._client, self._id = client, collection
        self._made: set[str] = set()  # Folders that are known to be there.

    def find(self, path: str) -> Found | None:
        """Return the file or folder at ``path``; links are neither."""
        import globus_sdk

        try:
            answer = self._client.operation_stat(self._id, path)
        except globus_sdk.GlobusAPIError as error:
            if is_absent(error):
                return None
            raise
        return _found(answer.data)

    def entries(self, folder: str) -> list[Found]:
        """Return what is directly in ``folder``; nothing if there is no such folder."""
        import globus_sdk

        found: list[Mapping[str, Any]] = []
        while True:
            try:
                page = self._client.operation_ls(
                    self._id, folder, limit=_PAGE, offset=len(found), orderby="name"
                )
            except globus_sdk.GlobusAPIError as error:
                if is_absent(error):
                    return []
                raise
            entries = list(page)
            found += entries
            if len(entries) < _PAGE:
                return [one for entry in found if (one := _found(entry)) is not None]

    def make_folder(self, folder: str) -> None:
        """Make ``folder`` and those above it, where they are not there yet."""
        import globus_sdk

        if folder in self._made or not folder.strip("/"):
            return
        try:
            self._client.operation_mkdir(self._id, folder)
        except globus_sdk.GlobusAPIError:
            found = self.find(folder)
            if found is None:
                above = folder.rpartition("/")[0]
                if above in self._made or not above.strip("/"):
                    raise
                self.make_folder(above)
                self._client.operation_mkdir(self._id, folder)
            elif not found.is_folder:
                raise
        self._made.add(folder)

    def forget_folders(self) -> None:
        """Look anew which folders are there: somebody may have removed them."""
        self._made.clear()

    def rename(self, old: str, new: str) -> None:
        """Give a file another name, in one step."""
        self._client.operation_rename(self._id, oldpath=old, newpath=new)


def is_taken(error: Any) -> bool:
    """Tell whether a request failed because the name is there already."""
    return _TAKEN.search(f"{error.code} {error.message}") is not None


def _found(entry: Mapping[str, Any]) -> Found | None:
    if entry["type"] not in {"file", "dir"} or entry.get("link_target"):
        return None
    return Found(
        name=str(entry["name"]),
        size_bytes=int(entry.get("size") or 0),
        modified=str(entry.get("last_modified") or ""),
        is_folder=entry["type"] == "dir",
    )
