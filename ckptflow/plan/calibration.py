"""What was measured of a site's tiers: one JSON file, with date and spread.

It is kept in ``$XDG_DATA_HOME/ckptflow/calibration/SITE.json``. What it says is true of the
tiers and the version that were measured, and for a while: `Calibration.stale` says why it is
not any more. ``tests/unit/test_calibration.py``.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Literal, TypeAlias
from urllib.parse import quote

from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from ckptflow.errors import ConfigError, FormatError
from ckptflow.policy.multilevel.tier_costs import TierCosts
from ckptflow.site import Site
from ckptflow.site.paths import starts_itself
from ckptflow.tiers import durable

VERSION = importlib.metadata.version("ckptflow")
FORMAT_VERSION = 1
STALE_DAYS = 30
FILE_BYTES_MAX = 1 << 20

_SAME_LEAST = 0.1  # Totals that differ by less are the same, however small their spread.

How: TypeAlias = Literal["save", "flush"]
Rate: TypeAlias = Annotated[float, Field(gt=0)]
Spread: TypeAlias = Annotated[float, Field(ge=0)]
Latency: TypeAlias = Annotated[float, Field(ge=0)]
Count: TypeAlias = Annotated[int, Field(ge=1)]


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class TierIdentity(_Document):
    """Which tier it was: a tier of the same name may be another one by now.

    Attributes:
        name: of the tier.
        kind: of the tier, as in a site file.
        level: of the tier.
        digest: of all that the site file says of it; it holds no secrets.
    """

    name: str
    kind: str
    level: Annotated[int, Field(ge=0, le=4)]
    digest: str


class Totals(_Document):
    """What so many writers reached together.

    Attributes:
        writers: how many processes wrote, and then read, at the same time.
        size_bytes: state of each of them.
        repetitions: how often.
        write_bytes_per_s: of all together, with the latency in it; the mean.
        write_spread: standard deviation over mean; 0 if there was one repetition.
        read_bytes_per_s: likewise of restores.
        read_spread: likewise.
    """

    writers: Count
    size_bytes: Count
    repetitions: Count
    write_bytes_per_s: Rate
    write_spread: Spread
    read_bytes_per_s: Rate
    read_spread: Spread


class MeasuredTier(_Document):
    """A tier that was measured.

    Attributes:
        tier: which one.
        host: on which it was measured.
        how: ``save`` if tasks write it from their snapshots, ``flush`` if checkpoints are
            copied there.
        totals: by number of writers, which grows; the first is one writer alone.
        write_latency_s: time of a checkpoint of next to nothing.
        read_latency_s: likewise of a restore.
        free_bytes: room that was left there before; ``None``: not known.
    """

    tier: TierIdentity
    host: str
    how: How
    totals: Annotated[tuple[Totals, ...], Field(min_length=1)]
    write_latency_s: Latency
    read_latency_s: Latency
    free_bytes: Annotated[int, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _writers_grow(self) -> MeasuredTier:
        counts = [one.writers for one in self.totals]
        if counts[0] != 1 or counts != sorted(set(counts)):
            raise ValueError("the numbers of writers begin with 1 and grow")
        return self

    @property
    def costs(self) -> TierCosts:
        """The same, as a policy computes with it."""
        alone = self.totals[0]
        return TierCosts(
            name=self.tier.name,
            level=self.tier.level,
            write_bytes_per_s=_net(alone, alone.write_bytes_per_s, self.write_latency_s),
            read_bytes_per_s=_net(alone, alone.read_bytes_per_s, self.read_latency_s),
            write_shared_bytes_per_s=_shared(
                [(one, one.write_bytes_per_s, one.write_spread) for one in self.totals],
                self.write_latency_s,
            ),
            read_shared_bytes_per_s=_shared(
                [(one, one.read_bytes_per_s, one.read_spread) for one in self.totals],
                self.read_latency_s,
            ),
            write_latency_s=self.write_latency_s,
            read_latency_s=self.read_latency_s,
            capacity_bytes=self.free_bytes or None,
            spread=max(alone.write_spread, alone.read_spread),
        )


class UnmeasuredTier(_Document):
    """A tier that was not measured, and why; ``failed`` if it was tried."""

    tier: TierIdentity
    reason: str
    failed: bool = False


class SaveCosts(_Document):
    """What a save costs the process that computes, on the host that was measured.

    Attributes:
        host: which one.
        size_bytes: of the state.
        capture_bytes_per_s: state over the time for which `save` blocks, all of it changed.
        digest_bytes_per_s: of digests, by all threads of one process.
        unchanged_bytes_per_s: state over the time that a checkpoint takes in which nothing has
            changed: digests and comparison.
        encode_bytes_per_s: of the densest packing, on a smooth array of floats.
        encode_ratio: bytes stored for each byte of that array.
        interference: by what part a computing loop is slower while a save is in flight; 0 if
            it cannot be told from noise.
    """

    host: str
    size_bytes: Count
    capture_bytes_per_s: Rate
    digest_bytes_per_s: Rate
    unchanged_bytes_per_s: Rate
    encode_bytes_per_s: Rate
    encode_ratio: Annotated[float, Field(gt=0)]
    interference: Spread


class Calibration(_Document):
    """All that was measured of one site.

    Attributes:
        format_version: of the file.
        site: name of the site.
        host: where the measuring ran.
        date: when, UTC.
        ckptflow_version: of what measured.
        tiers: those that were measured, inner ones first.
        unmeasured: the others.
        saves: what a save costs besides; ``None``: it could not be measured.
    """

    format_version: Literal[1] = 1
    site: str
    host: str
    date: AwareDatetime
    ckptflow_version: str
    tiers: tuple[MeasuredTier, ...]
    unmeasured: tuple[UnmeasuredTier, ...] = ()
    saves: SaveCosts | None = None

    def tier_costs(self) -> tuple[TierCosts, ...]:
        """Return the tiers that were measured, as a policy computes with them.

        A shared limit is what one node's writers met: it is told only where more writers did
        not get more, and what other nodes would add is not known.
        """
        return tuple(one.costs for one in self.tiers)

    def stale(
        self,
        site: Site,
        *,
        now: datetime | None = None,
        version: str = VERSION,
    ) -> tuple[str, ...]:
        """Return why this is no longer true of a site, in sentences; nothing if it is.

        Args:
            site: as it is now.
            now: the time.
            version: of ckptflow.
        """
        age = (now or datetime.now(UTC)) - self.date
        reasons = []
        if age > timedelta(days=STALE_DAYS):
            reasons.append(f"It was measured {age.days} days ago, on {self.date:%Y-%m-%d}.")
        if _minor(version) != _minor(self.ckptflow_version):
            reasons.append(
                f"ckptflow {self.ckptflow_version} has measured it, and this is {version}."
            )
        return (*reasons, *self._other_tiers(site))

    def _other_tiers(self, site: Site) -> list[str]:
        met = [*(one.tier for one in self.tiers), *(one.tier for one in self.unmeasured)]
        then = {one.name: one for one in met}
        now = {one.name: one for one in identities(site)}
        gone = [f"Tier {name!r} is no longer in the site." for name in then if name not in now]
        new = [f"Tier {name!r} is new." for name in now if name not in then]
        other = [
            f"Tier {name!r} is another one than was measured."
            for name, tier in now.items()
            if name in then and then[name] != tier
        ]
        return gone + new + other


def identities(site: Site) -> tuple[TierIdentity, ...]:
    """Return which tiers a site has, in the order of its file.

    Variables and relative paths stay as they stand there, so that each host says the same.
    """
    return tuple(
        TierIdentity(
            name=model.name,
            kind=model.kind,
            level=model.level,
            digest=hashlib.sha256(json.dumps(model.spec, sort_keys=True).encode()).hexdigest()[
                :32
            ],
        )
        for model in site.sealed_tiers
    )


def calibration_file(site_name: str, environment: Mapping[str, str] = os.environ) -> Path:
    """Return where the calibration of a site is kept, whether or not there is one.

    Raises:
        ConfigError: there is no home to keep it in.
    """
    home = environment.get("XDG_DATA_HOME") or "~/.local/share"
    try:
        folder = Path(home).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"There is no home folder here: set XDG_DATA_HOME. {error}") from None
    if not folder.is_absolute() and not starts_itself(Path(home)):
        folder = Path("~/.local/share").expanduser()  # As the XDG specification says.
    return folder / "ckptflow" / "calibration" / f"{quote(site_name, safe='')}.json"


def find_calibration(site: Site) -> Calibration | None:
    """Return what was measured of a site and is kept at its usual place, stale or not.

    Raises:
        ConfigError: the file cannot be read, is damaged, or is of another site.
        FormatError: a newer version has written it.
    """
    path = calibration_file(site.name)
    if not path.exists():
        return None
    found = read_calibration(path)
    if found.site != site.name:
        raise ConfigError(
            f"{path} is a calibration of site {found.site!r}. {_again(site.name)}"
        )
    return found


def read_calibration(path: Path) -> Calibration:
    """Return what a file holds.

    Raises:
        ConfigError: it cannot be read, or is no calibration.
        FormatError: a newer version has written it.
    """
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"Cannot read the calibration {path}: {error}.") from error
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"{path} is too large to be a calibration. {_again()}")
    try:
        plain = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is no JSON: {error}. {_again()}") from None
    version = plain.get("format_version") if isinstance(plain, dict) else None
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise FormatError(
            f"{path} is a calibration of format {version}; this ckptflow knows "
            f"{FORMAT_VERSION}. Install a newer one, or measure again: {_again()}"
        )
    try:
        return Calibration.model_validate_json(data)
    except ValidationError as error:
        said = "; ".join(
            f"{'.'.join(map(str, one['loc'])) or 'document'}: {one['msg']}"
            for one in error.errors(include_url=False, include_input=False)
        )
        raise ConfigError(f"{path} is no calibration: {said}. {_again()}") from None


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Put a calibration into a file that only the user can read, whole or not at all.

    Raises:
        ConfigError: the file cannot be written.
    """
    text = calibration.model_dump_json(indent=2) + "\n"
    try:
        durable.write_atomic(path.absolute(), [text.encode()])
    except OSError as error:
        raise ConfigError(
            f"Cannot write the calibration {path}: {error}. Name another file with --output."
        ) from error


def _net(one: Totals, total_bytes_per_s: float, latency_s: float) -> float:
    """Return the bandwidth of all without the latency, which is told apart from it.

    Where next to all of the time was latency the size was too small to tell, and half of the
    time is taken for bytes.
    """
    size_bytes = one.writers * one.size_bytes
    took_s = size_bytes / total_bytes_per_s
    return size_bytes / max(took_s - latency_s, took_s / 2)


def _shared(totals: Sequence[tuple[Totals, float, float]], latency_s: float) -> float | None:
    """Return what all writers get at most; ``None`` if more of them still got more."""
    if len(totals) < 2:
        return None
    (before, fewer, fewer_spread), (last, more, more_spread) = totals[-2:]
    error = math.hypot(
        fewer_spread / math.sqrt(before.repetitions), more_spread / math.sqrt(last.repetitions)
    )
    ideal = last.writers / before.writers
    # A spread so wide that nothing can be told of it does not tell of a limit either.
    same = min(max(_SAME_LEAST, error), (ideal - 1) / 2)
    return _net(last, more, latency_s) if more <= fewer * (1 + same) else None


def _minor(version: str) -> tuple[str, ...]:
    return tuple(re.findall(r"\d+", version)[:2])


def _again(site: str = "SITE") -> str:
    return f"Measure again: ckptflow calibrate --site {site}"
