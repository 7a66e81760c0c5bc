"""The tiers of a site file: one strict model per kind, and the tier that it describes.

A model dumped as plain data is what `ckptflow.tiers.opening` opens, here or in another process.
``tests/unit/test_site.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter

from ckptflow.tiers.filesystem_kinds import Commit, check_address, check_options
from ckptflow.tiers.opening import open_tier
from ckptflow.tiers.tier import Tier
from ckptflow.units import GIB, parse_bytes, parse_seconds

Seconds = Annotated[float, BeforeValidator(parse_seconds)]
Bytes = Annotated[int, BeforeValidator(parse_bytes)]


class Strict(BaseModel):
    """A table of a site file: unknown keys are errors."""

    # What is refused is not repeated: it may be a secret that does not belong here.
    model_config = ConfigDict(
        extra="forbid", frozen=True, populate_by_name=True, hide_input_in_errors=True
    )


class AnyTier(Strict):
    """What every tier has."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,40}$")]
    level: Annotated[int, Field(ge=0, le=4)]

    @property
    def folder(self) -> Path | None:
        """The folder in which it lies, if it is one that this computer sees."""
        return None

    def below(self, _folder: Path) -> AnyTier:
        """Return this tier with its relative paths taken below a folder."""
        return self

    @property
    def spec(self) -> dict[str, Any]:
        """Plain data without secrets: see `ckptflow.tiers.tier.Tier.spec`."""
        return self.model_dump(mode="json", exclude_none=True)


class PosixModel(AnyTier):
    """A folder: a node's own disk, or a parallel file system."""

    kind: Literal["posix"]
    path: Path

    @property
    def folder(self) -> Path | None:
        """The folder itself."""
        return self.path

    def below(self, folder: Path) -> PosixModel:
        """See `AnyTier.below`."""
        return self.model_copy(update={"path": folder / self.path})


class MemoryModel(AnyTier):
    """Memory that lives as long as a process."""

    kind: Literal["memory"]
    capacity_bytes: Annotated[Bytes | None, Field(alias="capacity")] = None


class FilesystemModel(AnyTier):
    """A filesystem that fsspec knows."""

    kind: Literal["fsspec"]
    address: Annotated[str, AfterValidator(check_address)]
    commit: Commit | None = None
    options: (
        Annotated[dict[str, str | int | float | bool], AfterValidator(check_options)] | None
    ) = None


class SftpModel(AnyTier):
    """A folder on an SFTP server."""

    kind: Literal["sftp"]
    host: Annotated[str, Field(pattern=r"^[A-Za-z0-9._:%-]+$")]
    port: Annotated[int | None, Field(ge=1, le=65_535)] = None
    user: Annotated[str | None, Field(pattern=r"^[A-Za-z0-9._@+-]+$")] = None
    path: Annotated[str, Field(min_length=1)]
    identity: Path | None = None
    known_hosts: Path | None = None
    connections: Annotated[int, Field(ge=1, le=64)] = 4
    timeout_s: Annotated[Seconds, Field(alias="timeout", gt=0)] = 30.0

    def below(self, folder: Path) -> SftpModel:
        """See `AnyTier.below`."""
        given = {"identity": self.identity, "known_hosts": self.known_hosts}
        paths = {name: folder / path.expanduser() for name, path in given.items() if path}
        return self.model_copy(update=paths)


CollectionId: TypeAlias = Annotated[str, Field(pattern=r"^[0-9A-Fa-f-]{36}$")]


class GlobusModel(AnyTier):
    """A folder on a collection of Globus, and the folder through which values pass."""

    kind: Literal["globus"]
    collection: CollectionId
    path: Annotated[str, Field(pattern="^/")]
    staging_collection: CollectionId
    staging: Path
    staging_path: Annotated[str | None, Field(pattern="^/")] = None
    commit: Commit = "move"
    deadline_s: Annotated[Seconds, Field(alias="deadline", gt=0)] = 3600.0
    cache_bytes: Annotated[Bytes, Field(alias="cache", ge=0)] = 16 * GIB
    data_access: list[CollectionId] = []

    def below(self, folder: Path) -> GlobusModel:
        """See `AnyTier.below`."""
        return self.model_copy(update={"staging": folder / self.staging})


TierModel: TypeAlias = Annotated[
    PosixModel | MemoryModel | FilesystemModel | SftpModel | GlobusModel,
    Field(discriminator="kind"),
]

TIER_KINDS: dict[str, type[AnyTier]] = {
    "posix": PosixModel,
    "memory": MemoryModel,
    "fsspec": FilesystemModel,
    "sftp": SftpModel,
    "globus": GlobusModel,
}

_ANY_KIND: TypeAdapter[TierModel] = TypeAdapter(TierModel)


def tier_model(fields: Mapping[str, Any]) -> TierModel:
    """Return the model of one tier, from plain data.

    Raises:
        pydantic.ValidationError: there can be no such tier.
    """
    return _ANY_KIND.validate_python(fields)


def inner_first(models: Sequence[TierModel]) -> list[TierModel]:
    """Sort by level; those of one level stay in their order."""
    return sorted(models, key=lambda model: model.level)


def open_tiers(models: Sequence[TierModel]) -> list[Tier]:
    """Return the tiers that ``models`` describe, inner ones first."""
    return [open_tier(model.spec) for model in inner_first(models)]
