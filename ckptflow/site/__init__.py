"""What a machine is like: its tiers, how tasks run there, when to save. One TOML file a site.

This is the composition root: the only module that turns names in a file into tiers. The
models are strict: an unknown key or a unit that makes no sense is a `ConfigError` with the file
and the line, before anything is started. A user's own file and single settings are laid on top
of the site file: see `ckptflow.site.layers`.

A site is given as a path, or as a name that is looked up as ``NAME.toml`` in ``site_configs``
below the current folder, in the folders of ``CKPTFLOW_SITES`` (separated by ``:``), in the
source tree, and where the wheel installs the shipped ones. ``tests/unit/test_site.py``.
"""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from ckptflow.checkpointer.health import CheckpointWarning
from ckptflow.data.fit import ABSENT
from ckptflow.errors import ConfigError, CorruptionError, NotFoundError
from ckptflow.flush.limits import NICE_MAX
from ckptflow.flush.options import STREAMS_MAX, Flushing
from ckptflow.model import SHARED_LEVEL, Export, LineageId
from ckptflow.policy.capture import parse_capture
from ckptflow.policy.interval import parse_interval
from ckptflow.policy.multilevel.rule import MultiLevel
from ckptflow.policy.retention import retention_by_tier
from ckptflow.site.executor import ExecutorModel
from ckptflow.site.failures import FailuresModel
from ckptflow.site.finding import explain, find_site, parse, read_site
from ckptflow.site.layers import Layer, Merged, Origin, user_file, user_layers
from ckptflow.site.paths import below, expand
from ckptflow.site.strict import Bytes, Seconds, Strict
from ckptflow.site.tiers import (
    MEMORY_KINDS,
    UNSEALED_KINDS,
    TierModel,
    inner_first,
    known_models,
    model_at,
    open_those_that_open,
    open_tiers,
    served_tier,
)
from ckptflow.store.catalog import Lineage
from ckptflow.store.packing import parse_packing
from ckptflow.store.resume import restore_newest
from ckptflow.tiers.tier import Tier

Purpose = Literal["run", "store", "tiers", "show"]

_JOB_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID")


class PatternModel(BaseModel):
    """How often to save, and by the names of tiers, every how many saves one goes there."""

    model_config = ConfigDict(extra="allow", frozen=True)
    __pydantic_extra__: dict[str, Annotated[int, Field(ge=0)]]

    interval_s: Annotated[Seconds, Field(alias="interval", gt=0)]

    @property
    def counts(self) -> dict[str, int]:
        """Every how many saves one goes to a tier, by its name; 0: none does."""
        return dict(self.__pydantic_extra__ or {})

    @model_validator(mode="after")
    def _is_a_pattern(self) -> PatternModel:
        used = sorted(count for count in self.counts.values() if count)
        if not used or used[0] != 1:
            raise ValueError("a pattern names tiers, and one of them gets every save: 1")
        for inner, outer in itertools.pairwise(used):
            if outer % inner:
                raise ValueError(f"in a pattern {outer} has to be a multiple of {inner}")
        return self


class PolicyModel(Strict):
    """When tasks save, what they keep, and which checkpoints reach which tier."""

    every: str | int | None = None
    keep: str | int | dict[str, str | int] | None = None
    packing: str | None = None
    capture: str | dict[str, str] | None = None
    flush_every: dict[str, Annotated[int, Field(ge=1)]] = Field(default_factory=dict)
    pattern: PatternModel | None = None
    replan: bool = True
    work_s: Annotated[Seconds | None, Field(alias="work", gt=0)] = None
    queue_s: Annotated[Seconds, Field(alias="queue", ge=0)] = MultiLevel().queue_s

    @model_validator(mode="after")
    def _pattern_has_a_use(self) -> PolicyModel:
        rule = parse_interval(self.every)
        if isinstance(rule, MultiLevel):
            if self.flush_every:
                raise ValueError(
                    "every = 'multilevel' says itself which checkpoints go to which tier: "
                    "leave flush_every out, or say in pattern what to begin with"
                )
            if not self.replan and self.pattern is None:
                raise ValueError("replan = false needs a pattern to hold on to")
        elif self.pattern is not None or not self.replan or self.work_s is not None:
            raise ValueError("pattern, replan and work are for every = 'multilevel'")
        return self

    def multilevel(self, rule: MultiLevel) -> MultiLevel:
        """Return a multi-level rule with what this policy says besides."""
        pattern = self.pattern
        return replace(
            rule,
            work_s=self.work_s,
            queue_s=self.queue_s,
            replan=self.replan,
            interval_s=pattern.interval_s if pattern else None,
            counts=tuple(pattern.counts.items()) if pattern else (),
        )

    @field_validator("every")
    @classmethod
    def _every(cls, every: str | int | None) -> str | int | None:
        parse_interval(every)
        return every

    @field_validator("keep")
    @classmethod
    def _keep(
        cls, keep: str | int | dict[str, str | int] | None
    ) -> str | int | dict[str, str | int] | None:
        retention_by_tier(keep, None)
        return keep

    def of_one_tier(self) -> PolicyModel:
        """Return this policy without what it says of single tiers."""
        keep = None if isinstance(self.keep, dict) else self.keep
        return self.model_copy(
            update={"flush_every": {}, "keep": keep, "pattern": None, "replan": True}
        )

    @field_validator("packing")
    @classmethod
    def _packing(cls, packing: str | None) -> str | None:
        parse_packing(packing)
        return packing

    @field_validator("capture")
    @classmethod
    def _capture(cls, capture: str | dict[str, str] | None) -> str | dict[str, str] | None:
        parse_capture(capture)
        return capture


class FlushModel(Strict):
    """How checkpoints are copied outward; see `ckptflow.flush.options.Flushing`."""

    agent: bool = False
    budget_bytes: Annotated[Bytes, Field(alias="budget")] = Flushing().budget_bytes
    bandwidth_bytes_per_s: Annotated[Bytes | None, Field(alias="bandwidth", ge=1)] = None
    streams: Annotated[int, Field(ge=1, le=STREAMS_MAX)] = Flushing().streams
    retry_s: Annotated[Seconds, Field(alias="retry")] = Flushing().retry_s
    grace_s: Annotated[Seconds, Field(alias="grace")] = Flushing().grace_s
    idle_s: Annotated[Seconds, Field(alias="idle")] = Flushing().idle_s
    nice: Annotated[int, Field(ge=0, le=NICE_MAX)] = Flushing().nice
    consolidate: bool = Flushing().consolidate

    @property
    def options(self) -> Flushing:
        """The same, for those who know nothing of site files."""
        return Flushing(**self.model_dump())


class Site(Strict):
    """A machine, as a site file describes it."""

    name: str
    description: str = ""
    run_dir: Path | None = None
    key_file: Path | None = None
    encrypt: bool = False
    lock_stale_s: Annotated[Seconds, Field(alias="lock_stale", ge=2)] = 120.0
    tiers: Annotated[tuple[TierModel, ...], Field(min_length=1)]
    required: dict[str, str] = Field(default_factory=dict)
    executor: ExecutorModel = ExecutorModel()
    failures: FailuresModel = FailuresModel()
    flush: FlushModel = FlushModel()
    policy: PolicyModel = PolicyModel()
    policies: dict[str, PolicyModel] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _names_fit(self) -> Site:
        names = [tier.name for tier in self.tiers]
        if self.encrypt and self.key_file is None:
            raise ValueError("encrypt needs a key_file")
        doubled = sorted({name for name in names if names.count(name) > 1})
        if doubled:
            raise ValueError(f"two tiers have the name {doubled[0]!r}")
        for policy in (self.policy, *self.policies.values()):
            kept = policy.keep if isinstance(policy.keep, dict) else {}
            counts = policy.pattern.counts if policy.pattern else {}
            for key, named in (
                ("flush_every", policy.flush_every), ("keep", kept), ("pattern", counts),
            ):  # fmt: skip
                if unknown := sorted(set(named) - set(names)):
                    raise ValueError(
                        f"{key} names {unknown[0]!r}, which is no tier of the site"
                    )
        dependent = [tier.name for tier in self.tiers if tier.kind == "redundant"]
        if dependent and not self.flush.agent:
            raise ValueError(
                f"tier {dependent[0]!r} is served to other nodes by the agent of each: "
                f"set agent = true in [flush]"
            )
        return self

    @model_validator(mode="after")
    def _tiers_outlive_tasks(self) -> Site:
        in_memory = all(tier.kind in MEMORY_KINDS for tier in self.tiers)
        if self.executor.kind != "threads" and in_memory:
            raise ValueError(
                "what is in memory is lost with its process or its node, and not seen by "
                "other nodes; give the site a tier outside of memory, too"
            )
        if self.executor.on_other_nodes and all(tier.on_node for tier in self.tiers):
            raise ValueError(
                "tasks run on nodes of their own, and no node sees the tiers of level 0 and 1 "
                "of another; give the site a tier that all see, of level 3 for example"
            )
        return self

    @model_validator(mode="after")
    def _endpoint_sees_the_tiers(self) -> Site:
        if self.executor.kind != "globus_compute":
            return self
        for tier in self.tiers:
            if tier.folder is not None and not tier.folder.is_absolute():
                raise ValueError(
                    f"tier {tier.name!r} lies in {str(tier.folder)!r}, below the folder in "
                    f"which the workflow is started; an endpoint has no such folder: give "
                    f"the absolute path of one that both see, or a bucket"
                )
        if all(tier.level < SHARED_LEVEL for tier in self.tiers):
            raise ValueError(
                "no tier is seen by both the endpoint and the workflow: give the site one of "
                f"level {SHARED_LEVEL} or higher"
            )
        return self

    @property
    def sealed_tiers(self) -> tuple[TierModel, ...]:
        """The tiers, each with the site's key unless it has its own or needs none."""
        sealing = {"key_file": self.key_file, "encrypt": self.encrypt}
        served = served_tier(self.tiers)  # It goes to other nodes, wherever it lies here.
        return tuple(
            tier.model_copy(update=sealing)
            if tier.key_file is None and (tier.kind not in UNSEALED_KINDS or tier is served)
            else tier
            for tier in self.tiers
        )

    @property
    def runs_folder(self) -> Path:
        """Where the files of runs are: journal, memo, lock, Parsl's logs. Absolute.

        Unless the file says it, they lie beside the checkpoints on the outermost folder, so
        that whoever uses the same store also sees the same locks and memos.
        """
        here = self.here()
        if here.run_dir is not None:
            return here.run_dir.absolute()
        shared = [
            tier
            for tier in inner_first(here.tiers)
            if not (tier.on_node and self.executor.on_other_nodes)
        ]
        paths = [tier.folder for tier in shared if tier.folder is not None]
        return (paths[-1] / "runs" if paths else Path("ckptflow-runs")).absolute()

    def here(self, environment: Mapping[str, str] = os.environ) -> Site:
        """Return this site with the variables in its paths replaced, but for those of nodes.

        Raises:
            ConfigError: one is not set.
        """
        update: dict[str, Any] = {
            name: expand(path, environment, what=name)
            for name, path in (("run_dir", self.run_dir), ("key_file", self.key_file))
            if path is not None
        }
        alone = not self.executor.on_other_nodes
        update["tiers"] = tuple(
            tier.expanded(environment, on_node=alone) for tier in self.tiers
        )
        return self.model_copy(update=update)

    def open_tiers(self) -> list[Tier]:
        """Return the tiers that this computer sees, inner ones first.

        Where tasks run on other nodes, what each of these has for itself is not here, unless
        this is one of them.
        """
        models = self.here().sealed_tiers
        if self.executor.on_other_nodes:
            on_a_node = in_an_allocation()
            models = tuple(
                model
                for model in models
                if not (model.on_node or model.kind == "redundant")
                or (on_a_node and model.is_expanded(os.environ))
            )
        return open_tiers(models)

    def with_store(self, store: str | Path) -> Site:
        """Return this site with one folder or address as its only tier.

        Its runs lie in the folder, or else, with an address, in ``ckptflow-runs``.

        Raises:
            ConfigError: it is no address of any tier, or a folder that an endpoint lacks.
        """
        relative = "://" not in str(store) and not Path(store).expanduser().is_absolute()
        if self.executor.kind == "globus_compute" and relative:
            raise ConfigError(
                f"The store {str(store)!r} is a relative folder, which an endpoint does not "
                f"have: give the absolute path of one that both sides see, or an address such "
                f"as s3://bucket."
            )
        tier = model_at(store, name="store", level=SHARED_LEVEL)
        key_file = self.key_file and expand(self.key_file, os.environ, what="key_file")
        update = {
            "tiers": (tier,),
            "run_dir": None,
            "key_file": key_file,
            "policy": self.policy.of_one_tier(),
            "policies": {name: one.of_one_tier() for name, one in self.policies.items()},
        }
        return self.model_copy(update=update)

    def at(self, folder: Path) -> Site:
        """Return this site with its variables replaced, and relative paths below ``folder``.

        Raises:
            ConfigError: a variable is not set.
        """
        here = self.here()
        tiers = tuple(tier.below(folder) for tier in here.tiers)
        run_dir = below(folder, here.run_dir) if here.run_dir else None
        key_file = below(folder, here.key_file) if here.key_file else None
        update = {"tiers": tiers, "run_dir": run_dir, "key_file": key_file}
        return here.model_copy(update=update)


def in_an_allocation(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether this process runs in an allocation of a batch system: on a node of it."""
    return any(environment.get(name) for name in _JOB_VARIABLES)


def load_site(
    name_or_path: str | Path | Site,
    *,
    user: str | Path | None = None,
    overrides: Mapping[str, object] | None = None,
    purpose: Purpose = "run",
) -> Site:
    """Read and check a site file, with what the user lays on top of it.

    Args:
        name_or_path: a name such as ``"local"``, or the path of a TOML file.
        user: the user's own file; the usual one, if it exists, when not given.
        overrides: values that replace the files', by dotted key: ``{"executor.workers": 4}``;
            a tier is named, or numbered: ``{"tiers.scratch.path": "/scratch/me"}``.
        purpose: what it is for, and so what the user has to have said: for ``"tiers"`` only
            what is asked for of tiers; for ``"store"``, a run with a store of its own, all but
            that; for ``"show"`` nothing. What is lacking stands there in brackets.

    Raises:
        ConfigError: there is no such file, it is wrong, or the user has to say more; the
            message names file and line.
    """
    if isinstance(name_or_path, Site) and not overrides:
        return name_or_path
    merged, source = read_layers(name_or_path, user=user, overrides=overrides)
    _fill_in(merged, source, purpose)
    try:
        return Site.model_validate(merged.data)
    except ValidationError as error:
        raise ConfigError(explain(error, lambda where: _place(merged, where, source))) from None


def read_layers(
    name_or_path: str | Path | Site,
    *,
    user: str | Path | None = None,
    overrides: Mapping[str, object] | None = None,
) -> tuple[Merged, str]:
    """Return what the layers of a site add up to, unchecked, and what its file is called.

    Raises:
        ConfigError: a file is missing or no TOML, or a setting leads nowhere.
    """
    merged = Merged()
    if isinstance(name_or_path, Site):
        source = f"site {name_or_path.name!r}"
        data = name_or_path.model_dump(mode="json", by_alias=True, exclude_none=True)
        merged.lay(Layer(source, "", data))
    else:
        path = find_site(name_or_path)
        text, source = read_site(path), str(path)
        data = parse(text, source)
        name = str(data.setdefault("name", path.stem))
        merged.lay(Layer(source, text, data))
        for layer in user_layers(name, user):
            merged.lay(layer)
    for key, value in (overrides or {}).items():
        merged.set(key, value, source=f"setting {key}")
    return merged, source


def _place(merged: Merged, where: tuple[str | int, ...], source: str) -> Origin:
    return merged.origin(where) or Origin(source)


def _fill_in(merged: Merged, source: str, purpose: Purpose) -> None:
    """Say what the user has to add, or put names in brackets if it is only to be shown."""
    required = merged.data.get("required")
    if not isinstance(required, dict):
        return  # If it is anything else, the model says so.
    lacking = {
        key: what
        for key, what in required.items()
        if not merged.get(key) and merged.get(key.rpartition(".")[0]) is not None
    }
    for key in list(lacking):
        not_needed = {"show", "store" if key.startswith("tiers.") else "tiers"}
        if purpose in not_needed:
            del lacking[key]
            merged.set(key, f"[{key.rpartition('.')[2]}]", source="[required]")
    if lacking:
        name = merged.data.get("name")
        needs = "\n".join(f"site {name!r} needs {key}: {what}" for key, what in lacking.items())
        key = next(iter(lacking))
        table, _, last = key.rpartition(".")
        raise ConfigError(
            f"{needs}\nSay it with --set {key}=VALUE, or for good in {user_file()}: "
            f'below [{name}.{table}], {last} = "VALUE". ({source})'
        )


def load(export: Export, into: Any = None) -> Any:
    """Return the state that an `Export` refers to, read from wherever a sound copy is.

    A tier that cannot be opened here, for want of a package or a key or since this version
    does not know its kind, is left out with a `CheckpointWarning`.

    Args:
        export: what `Checkpointer.export` returned, here or in another process.
        into: state to fill in place; a new one of plain containers is built without it.

    Raises:
        ConfigError: none of its tiers can be opened here.
        NotFoundError: the checkpoint is gone from all of its tiers.
        CorruptionError: it is not the state that was exported, or no copy is sound.
        StateError: ``into`` does not fit; nothing was written to it.
    """
    said: list[str] = []
    try:
        tiers = open_those_that_open(
            known_models(export.tiers, note=said.append), note=said.append
        )
    finally:
        for text in said:
            warnings.warn(text, CheckpointWarning, stacklevel=2)
    lineage = Lineage(tiers, LineageId(export.run, export.task))
    target = None if into is None else {"state": into, "rng": ABSENT}
    restored = restore_newest(lineage, target, step=export.step)
    if restored is None or restored.base is None:
        raise NotFoundError(f"{lineage.id} has no checkpoint on any of its tiers.")
    if restored.base.manifest.root.hex() != export.root:
        raise CorruptionError(
            f"{lineage.id} step {export.step} has another root than was exported: the task "
            f"has computed this step again, with another result."
        )
    return restored.state["state"]
