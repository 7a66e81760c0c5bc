"""The tiers of a site file: one strict model per kind, and the tier that it describes.

A model dumped as plain data is what `ckptflow.tiers.opening` opens, here or in another process.
``tests/unit/test_site.py``.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import (
    AfterValidator,
    Field,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)

from ckptflow.errors import ConfigError, TierError
from ckptflow.policy.groups import SET_SIZE_MAX
from ckptflow.site.paths import below, expand
from ckptflow.site.strict import Bytes, Seconds, Strict
from ckptflow.store.places import spec_at
from ckptflow.store.redundancy.scheme import Scheme, SchemeName
from ckptflow.store.redundancy.set import WAIT_S
from ckptflow.tiers.arena import ARENA_BYTES_MIN
from ckptflow.tiers.arena_file import SHARED_MEMORY
from ckptflow.tiers.filesystem_kinds import Commit, check_address, check_options
from ckptflow.tiers.numa import NODE_MAX
from ckptflow.tiers.opening import open_tier, spec_of
from ckptflow.tiers.tier import Tier
from ckptflow.units import GIB


class AnyTier(Strict):
    """What every tier has."""

    kind: str
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,40}$")]
    level: Annotated[int, Field(ge=0, le=4)]
    key_file: Path | None = None
    encrypt: bool = False

    @model_validator(mode="after")
    def _key_is_there(self) -> Self:
        if self.encrypt and self.key_file is None:
            raise ValueError("encrypt needs a key_file")
        return self

    @property
    def folder(self) -> Path | None:
        """The folder in which it lies, if it is one that this computer sees."""
        return None

    @property
    def on_node(self) -> bool:
        """Whether each node has its own."""
        return self.level <= 1

    def expanded(self, environment: Mapping[str, str], *, on_node: bool = True) -> Self:
        """Return this tier with the variables in its paths replaced.

        Args:
            environment: the variables.
            on_node: whether this is the node on which it will be used. Otherwise the path of a
                tier that each node has for itself is left for the node.

        Raises:
            ConfigError: one is not set.
        """
        update = {
            name: expand(value, environment, what=f"tier {self.name!r}, {name}")
            for name, value in self
            if isinstance(value, Path) and (on_node or not (self.on_node and name == "path"))
        }
        return self.model_copy(update=update)

    def is_expanded(self, environment: Mapping[str, str]) -> bool:
        """Whether the variables in its paths are all set here."""
        try:
            self.expanded(environment)
        except ConfigError:
            return False
        return True

    def below(self, folder: Path) -> Self:
        """Return this tier with its relative paths taken below a folder."""
        if self.key_file is None:
            return self
        return self.model_copy(update={"key_file": folder / self.key_file.expanduser()})

    def beside(self, _models: Sequence[AnyTier]) -> AnyTier:
        """Return this tier as one of a store that has all these."""
        return self

    @property
    def spec(self) -> dict[str, Any]:
        """Plain data without secrets: see `ckptflow.tiers.tier.Tier.spec`."""
        spec = self.model_dump(mode="json", exclude_none=True)
        if self.key_file is None:
            del spec["encrypt"]
        return spec


class PosixModel(AnyTier):
    """A folder: a node's own disk, or a parallel file system."""

    kind: Literal["posix"]
    path: Path

    @property
    def folder(self) -> Path | None:
        """The folder itself."""
        return self.path

    def below(self, folder: Path) -> Self:
        """See `AnyTier.below`."""
        return super().below(folder).model_copy(update={"path": below(folder, self.path)})


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


class SharedMemoryModel(AnyTier):
    """Memory of the node that outlives the process."""

    kind: Literal["shared_memory"]
    level: Annotated[int, Field(ge=0, le=1)] = 0
    capacity_bytes: Annotated[Bytes, Field(alias="capacity", ge=ARENA_BYTES_MIN)]
    arena: Annotated[str | None, Field(pattern=r"^[A-Za-z0-9_-]{1,100}$")] = None
    path: Path = SHARED_MEMORY
    node: Annotated[int | None, Field(ge=0, le=NODE_MAX)] = None
    device: Path | None = None
    strict: bool = False

    def beside(self, models: Sequence[AnyTier]) -> SharedMemoryModel:
        """Have an arena of its own for each store: one name does not mean one workflow."""
        outer = [model for model in models if model.kind not in MEMORY_KINDS]
        if self.arena is not None or not outer:
            return self
        last = max(outer, key=lambda model: model.level)
        where = str(last.folder.absolute()) if last.folder else json.dumps(last.spec)
        digest = hashlib.sha256(where.encode()).hexdigest()[:12]
        return self.model_copy(update={"arena": f"{self.name}-{digest}"})


class DeviceModel(AnyTier):
    """Memory of a GPU."""

    kind: Literal["device"]
    level: Annotated[int, Field(ge=0, le=0)] = 0
    capacity_bytes: Annotated[Bytes, Field(alias="capacity", ge=1)]
    number: Annotated[int | None, Field(ge=0)] = None


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

    def below(self, folder: Path) -> Self:
        """See `AnyTier.below`."""
        given = {"identity": self.identity, "known_hosts": self.known_hosts}
        paths = {name: folder / path.expanduser() for name, path in given.items() if path}
        return super().below(folder).model_copy(update=paths)


class PeerModel(AnyTier):
    """The tier that another node's agent serves."""

    kind: Literal["peer"]
    address: Annotated[str, Field(pattern=r"^(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}$")]
    peer_key_file: Path | None = None

    def below(self, folder: Path) -> Self:
        """See `AnyTier.below`."""
        made = super().below(folder)
        if self.peer_key_file is None:
            return made
        return made.model_copy(
            update={"peer_key_file": folder / self.peer_key_file.expanduser()}
        )


class RedundantModel(AnyTier):
    """What the nodes of a redundancy set protect for each other."""

    kind: Literal["redundant"]
    level: Annotated[int, Field(ge=2, le=2)] = 2
    scheme: SchemeName = "partner"
    set_size: Annotated[int, Field(ge=2, le=SET_SIZE_MAX)] = 8
    losses: Annotated[int, Field(ge=1, lt=SET_SIZE_MAX)] = 1
    wait_s: Annotated[Seconds, Field(alias="wait", ge=0)] = WAIT_S
    groups: dict[str, str | dict[str, list[str]]] | None = None
    bind: str = "127.0.0.1"
    host: str | None = None
    peer_key_file: Path | None = None
    own: dict[str, Any] | None = None
    meeting: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _scheme_is_possible(self) -> Self:
        Scheme(name=self.scheme, set_size=self.set_size, losses=self.losses)
        if self.key_file is not None:
            raise ValueError("it is sealed as the tier of the node is; give that a key_file")
        return self

    def below(self, folder: Path) -> Self:
        """See `AnyTier.below`."""
        made = super().below(folder)
        if self.peer_key_file is None:
            return made
        return made.model_copy(
            update={"peer_key_file": folder / self.peer_key_file.expanduser()}
        )

    def beside(self, models: Sequence[AnyTier]) -> RedundantModel:
        """Take the outermost tier of the node, and the innermost that all nodes see."""
        if self.own is not None:
            return self
        own = [one for one in models if one.level <= 1 and one.kind not in PROCESS_KINDS]
        shared = [one for one in models if one.level > self.level]
        if not own or not shared:
            raise ConfigError(
                f"Tier {self.name!r} needs a tier of the node below it, such as a folder of "
                f"level 1, and one above it that all nodes see, where they find each other."
            )
        last, first = (
            max(own, key=lambda one: one.level),
            min(shared, key=lambda one: one.level),
        )
        update = {"own": last.beside(models).spec, "meeting": first.beside(models).spec}
        return self.model_copy(update=update)


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
    data_access: list[CollectionId] = Field(default_factory=list)

    def below(self, folder: Path) -> Self:
        """See `AnyTier.below`."""
        return super().below(folder).model_copy(update={"staging": below(folder, self.staging)})


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
    PosixModel
    | MemoryModel
    | SharedMemoryModel
    | DeviceModel
    | FilesystemModel
    | SftpModel
    | GlobusModel
    | ObjectModel
    | PeerModel
    | RedundantModel,
    Field(discriminator="kind"),
]

TIER_KINDS: dict[str, type[AnyTier]] = {
    "posix": PosixModel,
    "memory": MemoryModel,
    "object": ObjectModel,
    "fsspec": FilesystemModel,
    "shared_memory": SharedMemoryModel,
    "device": DeviceModel,
    "sftp": SftpModel,
    "globus": GlobusModel,
    "peer": PeerModel,
    "redundant": RedundantModel,
}
PROCESS_KINDS = ("memory", "device")  # Lost with their process.
# Lost with their process or their node, and not seen by another node.
MEMORY_KINDS = ("memory", "shared_memory", "device")
# Nobody else sees them, or they are sealed as the tier is whose objects they hold.
UNSEALED_KINDS = (*MEMORY_KINDS, "redundant")

_ANY_KIND: TypeAdapter[TierModel] = TypeAdapter(TierModel)


def tier_model(fields: Mapping[str, Any]) -> TierModel:
    """Return the model of one tier, from plain data.

    Raises:
        pydantic.ValidationError: there can be no such tier.
    """
    return _ANY_KIND.validate_python(fields)


def known_models(
    specs: Sequence[Mapping[str, Any]], *, note: Callable[[str], None]
) -> list[TierModel]:
    """Return the models of tiers from plain data; ``note`` is told of what is none here.

    Raises:
        ConfigError: there is none of which this version knows what it is.
    """
    models: list[TierModel] = []
    for spec in specs:
        try:
            models.append(tier_model(spec))
        except ValidationError as error:
            said = "; ".join(problem["msg"] for problem in error.errors(include_input=False))
            note(
                f"Tier {spec.get('name')!r} of kind {spec.get('kind')!r} was left out, since "
                f"this version knows no such tier: {said}"
            )
    if not models:
        raise ConfigError("This version knows none of the kinds of tiers: a newer one may.")
    return models


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
    try:
        return tier_model(spec_at(place_of(store), name=name, level=level))
    except ValidationError as error:
        said = "; ".join(problem["msg"] for problem in error.errors(include_input=False))
        raise ConfigError(f"{store}: there can be no such tier: {said}.") from None


def inner_first(models: Sequence[TierModel]) -> list[TierModel]:
    """Sort by level; those of one level stay in their order."""
    return sorted(models, key=lambda model: model.level)


def served_tier(models: Sequence[AnyTier]) -> AnyTier | None:
    """Return the tier of the node that it serves to others; none without a redundant one."""
    own = [one for one in models if one.level <= 1 and one.kind not in PROCESS_KINDS]
    if not own or all(one.kind != "redundant" for one in models):
        return None
    return max(own, key=lambda one: one.level)


def open_tiers(models: Sequence[TierModel]) -> list[Tier]:
    """Return the tiers that ``models`` describe, inner ones first, as this computer has them.

    Raises:
        ConfigError: one cannot be here; it needs a variable that is not set, for example.
    """
    here = [model.expanded(os.environ) for model in models]
    return [open_tier(model.beside(here).spec) for model in inner_first(here)]


def open_those_that_open(
    models: Sequence[TierModel], *, note: Callable[[str], None]
) -> list[Tier]:
    """Like `open_tiers`, without those that cannot be opened here; ``note`` is told of them.

    Raises:
        ConfigError: none can be opened: why not the first.
        TierError: likewise.
    """
    tiers: list[Tier] = []
    failures: list[ConfigError | TierError] = []
    for model in inner_first(models):
        try:
            tiers.append(open_tier(model.beside(models).spec))
        except (ConfigError, TierError) as error:
            failures.append(error)
            note(f"Tier {model.name!r} was left out, since it cannot be opened here: {error}")
    if not tiers:
        raise failures[0]
    return tiers
