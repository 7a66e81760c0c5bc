"""What a machine is like: its tiers, how tasks run there, when to save. One TOML file a site.

This is the composition root: the only module that turns names in a file into tiers. The
models are strict: an unknown key or a unit that makes no sense is a `ConfigError` with the file
and the line, before anything is started.

A site is given as a path, or as a name that is looked up as ``NAME.toml`` in ``site_configs``
below the current folder, in the folders of ``CKPTFLOW_SITES`` (separated by ``:``), in the
source tree, and where the wheel installs the shipped ones. ``tests/unit/test_site.py``.
"""

from __future__ import annotations

import os
import re
import sysconfig
import threading
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from ckptflow.data.fit import ABSENT
from ckptflow.errors import ConfigError, CorruptionError, NotFoundError
from ckptflow.model import Export, LineageId
from ckptflow.policy.interval import parse_interval
from ckptflow.policy.retention import parse_retention
from ckptflow.store.catalog import Lineage
from ckptflow.store.packing import parse_packing
from ckptflow.store.resume import restore_newest
from ckptflow.tiers.memory import MemoryTier
from ckptflow.tiers.posix import PosixTier
from ckptflow.tiers.tier import Tier
from ckptflow.units import parse_bytes, parse_seconds

SITES_VARIABLE = "CKPTFLOW_SITES"
_SHIPPED = "site_configs"

Seconds = Annotated[float, BeforeValidator(parse_seconds)]
Bytes = Annotated[int, BeforeValidator(parse_bytes)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class TierModel(_Strict):
    """One tier: a folder (``posix``), or memory that lives as long as a process."""

    kind: Literal["posix", "memory"]
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,40}$")]
    path: Path | None = None
    level: Annotated[int, Field(ge=0, le=4)]
    capacity_bytes: Annotated[Bytes | None, Field(alias="capacity")] = None

    @model_validator(mode="after")
    def _path_fits_kind(self) -> TierModel:
        if (self.kind == "posix") != (self.path is not None):
            needs = "needs a path" if self.kind == "posix" else "takes no path"
            raise ValueError(f"a {self.kind} tier {needs}")
        if self.kind == "posix" and self.capacity_bytes is not None:
            raise ValueError(
                "a posix tier takes no capacity: the file system says when it is full"
            )
        return self


class PolicyModel(_Strict):
    """When tasks save, what they keep, and which checkpoints reach which tier."""

    every: str | int | None = None
    keep: str | int | None = None
    packing: str | None = None
    flush_every: dict[str, Annotated[int, Field(ge=1)]] = {}

    @field_validator("every")
    @classmethod
    def _every(cls, every: str | int | None) -> str | int | None:
        parse_interval(every)
        return every

    @field_validator("keep")
    @classmethod
    def _keep(cls, keep: str | int | None) -> str | int | None:
        parse_retention(keep)
        return keep

    @field_validator("packing")
    @classmethod
    def _packing(cls, packing: str | None) -> str | None:
        parse_packing(packing)
        return packing


class ExecutorModel(_Strict):
    """How tasks run: ``htex`` is worker processes, ``threads`` threads of the script itself."""

    kind: Literal["htex", "threads"] = "htex"
    provider: Literal["local"] = "local"
    workers: Annotated[int, Field(ge=1)] = 2
    walltime_s: Annotated[Seconds | None, Field(alias="walltime")] = None
    margin_s: Annotated[Seconds, Field(alias="margin")] = 30.0
    heartbeat_period_s: Annotated[Seconds, Field(alias="heartbeat_period", ge=1)] = 15.0
    heartbeat_threshold_s: Annotated[Seconds, Field(alias="heartbeat_threshold", ge=2)] = 60.0
    strategy_period_s: Annotated[Seconds, Field(alias="strategy_period", gt=0)] = 5.0
    failed_blocks_max: Annotated[int, Field(ge=1)] = 3
    worker_init: str = ""
    encrypted: bool = True

    @model_validator(mode="after")
    def _times_fit(self) -> ExecutorModel:
        if self.heartbeat_threshold_s <= self.heartbeat_period_s:
            raise ValueError(
                f"heartbeat_threshold ({self.heartbeat_threshold_s:g} s) must be longer than "
                f"heartbeat_period ({self.heartbeat_period_s:g} s)"
            )
        if self.walltime_s is not None and self.walltime_s <= 2 * self.margin_s:
            raise ValueError(
                f"walltime ({self.walltime_s:g} s) leaves no time to work: it must be longer "
                f"than twice the margin ({self.margin_s:g} s)"
            )
        return self


class Site(_Strict):
    """A machine, as a site file describes it."""

    name: str
    description: str = ""
    run_dir: Path | None = None
    tiers: Annotated[tuple[TierModel, ...], Field(min_length=1)]
    executor: ExecutorModel = ExecutorModel()
    policy: PolicyModel = PolicyModel()
    policies: dict[str, PolicyModel] = {}

    @model_validator(mode="after")
    def _names_fit(self) -> Site:
        names = [tier.name for tier in self.tiers]
        doubled = sorted({name for name in names if names.count(name) > 1})
        if doubled:
            raise ValueError(f"two tiers have the name {doubled[0]!r}")
        for policy in (self.policy, *self.policies.values()):
            unknown = sorted(set(policy.flush_every) - set(names))
            if unknown:
                raise ValueError(
                    f"flush_every names {unknown[0]!r}, which is no tier of the site"
                )
        if self.executor.kind == "htex" and all(tier.kind == "memory" for tier in self.tiers):
            raise ValueError(
                "worker processes lose memory tiers when they die; give the site a posix tier"
            )
        return self

    @property
    def runs_folder(self) -> Path:
        """Where the files of runs are: journal, memo, lock, Parsl's logs. Absolute.

        Unless the file says it, they lie beside the checkpoints on the outermost folder, so
        that whoever uses the same store also sees the same locks and memos.
        """
        if self.run_dir is not None:
            return self.run_dir.absolute()
        paths = [tier.path for tier in _inner_first(self.tiers) if tier.path is not None]
        return (paths[-1] / "runs" if paths else Path("ckptflow-runs")).absolute()

    def open_tiers(self) -> list[Tier]:
        """Return the tiers, inner ones first."""
        return open_tiers(self.tiers)

    def with_store(self, store: str | Path) -> Site:
        """Return this site with one folder as its only tier, and its runs beside it."""
        tier = TierModel(kind="posix", name="store", path=Path(store).absolute(), level=3)
        policies = {
            name: policy.model_copy(update={"flush_every": {}})
            for name, policy in self.policies.items()
        }
        update = {
            "tiers": (tier,),
            "run_dir": None,
            "policy": self.policy.model_copy(update={"flush_every": {}}),
            "policies": policies,
        }
        return self.model_copy(update=update)

    def at(self, folder: Path) -> Site:
        """Return this site with its relative paths taken below ``folder``."""
        tiers = tuple(
            tier.model_copy(update={"path": folder / tier.path}) if tier.path else tier
            for tier in self.tiers
        )
        run_dir = folder / self.run_dir if self.run_dir else None
        return self.model_copy(update={"tiers": tiers, "run_dir": run_dir})


_memory_tiers: dict[str, MemoryTier] = {}
_memory_lock = threading.Lock()


def open_tiers(models: Sequence[TierModel]) -> list[Tier]:
    """Return the tiers that ``models`` describe, inner ones first.

    A memory tier of one name is one tier in the whole process, so that a task's next attempt
    finds what the last one left there.
    """
    return [_open(model) for model in _inner_first(models)]


def _inner_first(models: Sequence[TierModel]) -> list[TierModel]:
    return sorted(models, key=lambda model: model.level)


def _open(model: TierModel) -> Tier:
    if model.kind == "memory":
        with _memory_lock:
            if model.name not in _memory_tiers:
                _memory_tiers[model.name] = MemoryTier(
                    model.name, level=model.level, capacity_bytes=model.capacity_bytes
                )
            return _memory_tiers[model.name]
    assert model.path is not None, "a posix tier has a path: the model checked it"
    return PosixTier(model.path, name=model.name, level=model.level)


def load_site(
    name_or_path: str | Path | Site, *, overrides: Mapping[str, object] | None = None
) -> Site:
    """Read and check a site file.

    Args:
        name_or_path: a name such as ``"local"``, or the path of a TOML file.
        overrides: values that replace the file's, by dotted key: ``{"executor.workers": 4}``;
            numbers count through lists: ``{"tiers.0.path": "/scratch/me"}``.

    Raises:
        ConfigError: there is no such file, or it is wrong; the message names file and line.
    """
    if isinstance(name_or_path, Site):
        if not overrides:
            return name_or_path
        text, source = "", f"site {name_or_path.name!r}"
        data = name_or_path.model_dump(mode="json", by_alias=True, exclude_none=True)
    else:
        path = find_site(name_or_path)
        text, source = _read(path), str(path)
        data = _parse(text, source)
        data.setdefault("name", path.stem)
    for key, value in (overrides or {}).items():
        _override(data, key, value)
    try:
        return Site.model_validate(data)
    except ValidationError as error:
        raise ConfigError(_explain(error, text, source)) from None


def find_site(name_or_path: str | Path) -> Path:
    """Return the file of a site.

    Raises:
        ConfigError: there is none; the message says where it was looked for, and what is there.
    """
    path = Path(name_or_path).expanduser()
    if path.suffix == ".toml" or len(path.parts) > 1:
        if path.is_file():
            return path.absolute()
        raise ConfigError(f"There is no site file {path}.")
    folders = site_folders()
    for folder in folders:
        if (folder / f"{path}.toml").is_file():
            return folder / f"{path}.toml"
    known = sorted({file.stem for folder in folders for file in folder.glob("*.toml")})
    raise ConfigError(
        f"There is no site {str(name_or_path)!r}. Known: {', '.join(known) or 'none'}. "
        f"Looked in: {', '.join(map(str, folders))}."
    )


def site_folders() -> list[Path]:
    """Return the folders in which site names are looked up, in that order."""
    extra = os.environ.get(SITES_VARIABLE, "").split(os.pathsep)
    return [
        Path(_SHIPPED).absolute(),
        *(Path(folder).expanduser() for folder in extra if folder),
        Path(__file__).resolve().parent.parent / _SHIPPED,
        Path(sysconfig.get_path("data")) / "share" / "ckptflow" / _SHIPPED,
    ]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"Cannot read site file {path}: {error}.") from error


def _parse(text: str, source: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"\(at line (\d+), column \d+\)", str(error))
        line = int(place[1]) if place else len(text.splitlines())
        raise ConfigError(f"{source}:{line}: not TOML: {error}.") from None


def _override(data: dict[str, Any], dotted: str, value: object) -> None:
    *parents, last = dotted.split(".")
    node: Any = data
    for depth, part in enumerate(parents):
        try:
            node = node[int(part)] if isinstance(node, list) else node.setdefault(part, {})
        except (ValueError, IndexError, AttributeError):
            where = ".".join(parents[: depth + 1])
            raise ConfigError(f"{dotted!r} cannot be set: the site has no {where!r}.") from None
    if not isinstance(node, dict):
        raise ConfigError(f"{dotted!r} cannot be set: {'.'.join(parents)!r} is not a table.")
    node[last] = value


def _explain(error: ValidationError, text: str, source: str) -> str:
    lines = []
    for problem in error.errors(include_url=False):
        where = tuple(part for part in problem["loc"])
        line = line_of(text, where)
        place = f"{source}:{line}" if line else source
        dotted = ".".join(map(str, where)) or "site"
        message = str(problem["msg"]).removeprefix("Value error, ").rstrip(".")
        if problem["type"] == "extra_forbidden":
            message = "unknown key"
        lines.append(f"{place}: {dotted}: {message}.")
    return "\n".join(dict.fromkeys(lines))


_HEADER = re.compile(r"\s*(\[\[?)\s*([\w.\"'-]+)\s*\]\]?\s*(?:#.*)?")
_KEY = re.compile(r"\s*([\w\"'.-]+)\s*=")


def line_of(text: str, where: Sequence[str | int]) -> int | None:
    """Return the line, from 1, on which the value at ``where`` stands in a TOML text.

    ``tomllib`` does not tell, so this looks for the header of the table and the key below it.
    For a key that is not there, or in an inline table, it is the nearest line above.
    """
    table: tuple[str | int, ...] = ()
    seen: dict[str, int] = {}
    best: tuple[int, int] | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        here: tuple[str | int, ...] | None = None
        if header := _HEADER.fullmatch(line):
            name = header[2].replace('"', "").replace("'", "")
            table = tuple(name.split("."))
            if header[1] == "[[":
                seen[name] = seen.get(name, -1) + 1
                table = (*table, seen[name])
            here = table
        elif key := _KEY.match(line):
            here = (*table, *key[1].replace('"', "").replace("'", "").split("."))
        if here is None or tuple(where[: len(here)]) != here:
            continue
        if best is None or len(here) > best[0]:
            best = (len(here), number)
    return best[1] if best else None


def load(export: Export, into: Any = None) -> Any:
    """Return the state that an `Export` refers to, read from wherever a sound copy is.

    Args:
        export: what `Checkpointer.export` returned, here or in another process.
        into: state to fill in place; a new one of plain containers is built without it.

    Raises:
        NotFoundError: the checkpoint is gone from all of its tiers.
        CorruptionError: it is not the state that was exported, or no copy is sound.
        StateError: ``into`` does not fit; nothing was written to it.
    """
    tiers = open_tiers([TierModel.model_validate(spec) for spec in export.tiers])
    lineage = Lineage(tiers, LineageId(export.run, export.task))
    target = None if into is None else {"state": into, "rng": ABSENT}
    restored = restore_newest(lineage, target, step=export.step)
    if restored is None:
        raise NotFoundError(f"{lineage.id} has no checkpoint on any of its tiers.")
    if restored.base.manifest.root.hex() != export.root:
        raise CorruptionError(
            f"{lineage.id} step {export.step} has another root than was exported: the task "
            f"has computed this step again, with another result."
        )
    return restored.state["state"]
