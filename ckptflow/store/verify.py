"""Read stored bytes again and compare them with their digests, or a sample of them.

Unlike a restore it looks at every copy, on every tier, so that damage is found while another
copy is still sound. Tiers are read side by side, each by several threads; checkpoints that
share packs read each of them once; and all that is in memory at a time is `MEMORY_BYTES`,
however large the state is. ``tests/unit/test_verify.py``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ckptflow.errors import CheckpointError, CorruptionError, NotFoundError, TierError
from ckptflow.model import CheckpointId, Manifest
from ckptflow.store.catalog import Found, Lineage
from ckptflow.store.checking.packs import PackChecker, check_pack
from ckptflow.store.checking.roots import RootChecker
from ckptflow.store.checking.sample import ALL, Sample, parse_sample
from ckptflow.store.save import checkpoint_root
from ckptflow.tiers.tier import Tier
from ckptflow.units import MIB

__all__ = [
    "ALL",
    "MEMORY_BYTES",
    "CopyReport",
    "Sample",
    "Verifier",
    "check_pack",
    "parse_sample",
    "verify",
    "verify_copy",
    "verify_lineage",
]

MEMORY_BYTES = 192 * MIB  # For what is read, of all tiers and threads together.
THREADS_MAX = 32  # Threads for each tier.
_READINGS_MAX = 4  # Of a manifest that is replaced again and again.
_PIECE_BYTES_MIN, _PIECE_BYTES_MAX = 1 * MIB, 16 * MIB


@dataclass(frozen=True, slots=True)
class CopyReport:
    """What was found out about one checkpoint on one tier.

    Attributes:
        id: which checkpoint.
        tier: name of the tier.
        checked_bytes: of its manifest and packs that were compared with their digests; of a
            pack that an earlier checkpoint had read already, too.
        problems: what is wrong, a sentence each.
        stored_bytes: of its manifest and packs, as the manifest says.
    """

    id: CheckpointId
    tier: str
    checked_bytes: int
    problems: tuple[str, ...]
    stored_bytes: int = 0

    @property
    def sound(self) -> bool:
        """Whether nothing that was looked at is other than it was written."""
        return not self.problems

    @property
    def checked_share(self) -> float:
        """How much of the stored bytes was looked at, 0 to 1."""
        return self.checked_bytes / self.stored_bytes if self.stored_bytes else 0.0


class Verifier:
    """Verifies copies on one tier of one lineage; best from the oldest checkpoint on.

    Args:
        tier: where.
        lineage: whose.
        pool: runs the reads.
        memory_bytes: the most that is read at a time.
        threads: threads of the pool.
        sample: which frames. The roots of regions are computed only where it is all.
    """

    def __init__(
        self,
        tier: Tier,
        lineage: Lineage,
        pool: ThreadPoolExecutor,
        *,
        memory_bytes: int = MEMORY_BYTES,
        threads: int = 1,
        sample: Sample = ALL,
    ) -> None:
        self._tier, self._lineage, self._sample = tier, lineage, sample
        piece_bytes = max(
            _PIECE_BYTES_MIN, min(_PIECE_BYTES_MAX, memory_bytes // (2 * threads))
        )
        self.packs = PackChecker(tier, lineage.id, pool, piece_bytes=piece_bytes, sample=sample)
        self._roots = RootChecker(tier, pool, window_bytes=memory_bytes // 4)

    def check(self, checkpoint: CheckpointId) -> CopyReport:
        """Check one copy: manifest, packs, and, unless it is a sample, the state's roots.

        Where something is wrong the manifest is read again: if it is another one by now, the
        checkpoint was packed again meanwhile, and the packs that it had may be gone.
        """
        tier, last = self._tier, None
        key = f"{self._lineage.id.prefix}/{checkpoint.manifest_key}"
        for _ in range(_READINGS_MAX):
            try:
                manifest = self._lineage.manifest_on(tier, checkpoint)
                manifest_bytes = tier.size(key)
            except CheckpointError as error:
                return CopyReport(checkpoint, tier.name, 0, (str(error),))
            if manifest == last:
                break
            report, last = self._check(manifest, manifest_bytes), manifest
            if report.sound:
                break
        return report

    def _check(self, manifest: Manifest, manifest_bytes: int) -> CopyReport:
        tier, checked_bytes = self._tier, manifest_bytes
        problems: list[str] = []
        for ref in manifest.packs:
            found = self.packs.check(ref)
            checked_bytes += found.checked_bytes
            problems += found.problems
        if manifest.root != checkpoint_root(manifest.regions):
            problems.append(
                f"The root of {manifest.lineage} {manifest.id} is not that of its regions."
            )
        if not problems and self._sample.is_all:
            problems += self._root_problems(manifest)
        stored_bytes = manifest_bytes + sum(ref.size_bytes for ref in manifest.packs)
        return CopyReport(manifest.id, tier.name, checked_bytes, tuple(problems), stored_bytes)

    def _root_problems(self, manifest: Manifest) -> list[str]:
        try:
            wrong = self._roots.wrong(manifest)
        except (CorruptionError, NotFoundError, TierError) as error:
            return [str(error), *getattr(error, "__notes__", ())]
        return [
            f"Region {name!r} of {manifest.lineage} {manifest.id} on tier {self._tier.name!r} "
            f"does not have the root that the manifest names, although all frames are sound."
            for name in wrong
        ]


def verify(
    lineage: Lineage, found: Found, *, sample: Sample = ALL, threads: int | None = None
) -> list[CopyReport]:
    """Check every copy of a checkpoint, inner tiers first. See `verify_lineage`."""
    reports = list(verify_lineage(lineage, [found], sample=sample, threads=threads))
    return [report for report, _found in reports]


def verify_copy(tier: Tier, lineage: Lineage, checkpoint: CheckpointId) -> CopyReport:
    """Check the copy of a checkpoint on one tier."""
    threads = thread_count(None)
    with ThreadPoolExecutor(threads, "ckptflow-verify") as pool:
        return Verifier(tier, lineage, pool, threads=threads).check(checkpoint)


def verify_lineage(
    lineage: Lineage,
    checkpoints: Sequence[Found],
    *,
    sample: Sample = ALL,
    threads: int | None = None,
    on_copy: Callable[[CopyReport], None] = lambda _report: None,
) -> Iterator[tuple[CopyReport, Found]]:
    """Yield a report on every copy of some checkpoints, in the order given, inner tiers first.

    Args:
        lineage: whose.
        checkpoints: which.
        sample: which share of the frames.
        threads: threads for each tier; as many as there are processors, at most 4, if ``None``.
        on_copy: told of each copy as soon as it is checked, by several threads.
    """
    threads = thread_count(threads)
    tiers = [t for t in lineage.tiers if any(t in found.tiers for found in checkpoints)]
    reports: dict[tuple[CheckpointId, str], CopyReport] = {}

    def check_tier(tier: Tier) -> None:
        with ThreadPoolExecutor(threads, "ckptflow-verify") as pool:
            memory_bytes = MEMORY_BYTES // len(tiers)
            verifier = Verifier(
                tier, lineage, pool, memory_bytes=memory_bytes, threads=threads, sample=sample
            )
            for found in sorted(checkpoints, key=lambda one: one.id):
                if tier in found.tiers:
                    report = verifier.check(found.id)
                    reports[found.id, tier.name] = report
                    on_copy(report)

    with ThreadPoolExecutor(max(1, len(tiers)), "ckptflow-verify-tier") as side_by_side:
        for _ in side_by_side.map(check_tier, tiers):
            pass
    for found in checkpoints:
        for tier in found.tiers:
            yield reports[found.id, tier.name], found


def thread_count(threads: int | None) -> int:
    """Return how many threads read each tier."""
    return min(THREADS_MAX, threads or min(4, len(os.sched_getaffinity(0))))
