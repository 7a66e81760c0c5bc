"""The tiers of a site file: one strict model per kind, and the tier that it describes.

A model dumped as plain data is what `ckptflow.tiers.opening` opens, here or in another process.
``tests/unit/test_site.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    field_validator,
)

from ckptflow.tiers.opening import open_tier, spec_of
from ckptflow.tiers.tier import Tier
from ckptflow.units import parse_bytes, parse_seconds

Seconds = Annotated[float, BeforeValidator(parse_seconds)]
Bytes = Annotated[int, BeforeValidator(parse_bytes)]


class Strict(BaseModel):
    """A table of a site file: unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


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


class ObjectModel(AnyTier):
    """A bucket: S3 and what speaks like it, Google Cloud Storage, Azure."""

    kind: Literal["object"]
    url: str
    claims: bool = True
    endpoint: Annotated[str | None, Field(pattern=r"^https?://[^@?#\s]+$")] = None
    profile: str | None = None

    @field_validator("url")
    @classmethod
    def _url(cls, url: str) -> str:
        return str(spec_of(url)["url"])


TierModel: TypeAlias = Annotated[
    PosixModel | MemoryModel | ObjectModel, Field(discriminator="kind")
]

TIER_KINDS: dict[str, type[AnyTier]] = {
    "posix": PosixModel,
    "memory": MemoryModel,
    "object": ObjectModel,
}

_ANY_KIND: TypeAdapter[TierModel] = TypeAdapter(TierModel)


def tier_model(fields: Mapping[str, Any]) -> TierModel:
    """Return the model of one tier, from plain data.

    Raises:
        pydantic.ValidationError: there can be no such tier.
    """
    return _ANY_KIND.validate_python(fields)


def place_of(store: str | Path) -> str:
    """Return what a user named as a store, so that it means the same in another folder."""
    if "://" in str(store):
        return str(store)
    return str(Path(store).expanduser().absolute())


def model_at(store: str | Path, *, name: str, level: int) -> TierModel:
    """Return the model of the tier at a folder or an address.

    Its level is at least ``level``; a bucket has a higher one of its own.

    Raises:
        ConfigError: it is no address of any tier.
    """
    spec = spec_of(place_of(store))
    return tier_model(spec | {"name": name, "level": max(level, spec["level"])})


def inner_first(models: Sequence[TierModel]) -> list[TierModel]:
    """Sort by level; those of one level stay in their order."""
    return sorted(models, key=lambda model: model.level)


def open_tiers(models: Sequence[TierModel]) -> list[Tier]:
    """Return the tiers that ``models`` describe, inner ones first."""
    return [open_tier(model.spec) for model in inner_first(models)]
