"""A site is tuned with the times that its own policy gives, unless others are asked for."""

from __future__ import annotations

from pathlib import Path

from ckptflow.plan.tune import reaction_of, workload_of
from ckptflow.site import Site, load_site

SITE = """
name = "timed"

[[tiers]]
kind = "posix"
name = "pfs"
path = "store"
level = 3

[policy]
every = "multilevel"
queue = "20min"
work = "30h"
"""


def site(folder: Path) -> Site:
    path = folder / "timed.toml"
    path.write_text(SITE)
    return load_site(path)


def test_the_queue_is_that_of_the_policy(tmp_path: Path) -> None:
    assert reaction_of(site(tmp_path)).queue_s == 1200
    assert reaction_of(site(tmp_path), queue_s=5.0).queue_s == 5


def test_the_work_is_that_of_the_policy(tmp_path: Path) -> None:
    assert workload_of(site(tmp_path), state_bytes=1e9).work_s == 30 * 3600
    assert workload_of(site(tmp_path), state_bytes=1e9, work_s=60.0).work_s == 60
