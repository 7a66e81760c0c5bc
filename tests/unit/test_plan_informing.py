"""What a multi-level rule is told of a site before a task runs."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ckptflow.checkpointer.health import CheckpointWarning
from ckptflow.plan.calibration import (
    VERSION,
    Calibration,
    calibration_file,
    identities,
    write_calibration,
)
from ckptflow.plan.informing import informed
from ckptflow.policy.failures.rates import Rates
from ckptflow.policy.multilevel.rule import MultiLevel
from ckptflow.policy.multilevel.tier_costs import TierCosts
from ckptflow.site import Site, load_site

HOUR_S, DAY_S = 3600.0, 86_400.0


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))


def site(**overrides: Any) -> Site:
    tiers = [{"kind": "posix", "name": "disk", "level": 3, "path": "store"}]
    return load_site("local_threads", overrides={"tiers": tiers, **overrides})


def calibrate(of: Site, **changes: Any) -> None:
    (disk,) = identities(of)
    totals = {
        "writers": 1, "size_bytes": 10**8, "repetitions": 3, "write_bytes_per_s": 2e8,
        "write_spread": 0.01, "read_bytes_per_s": 4e8, "read_spread": 0.01,
    }  # fmt: skip
    fields = {
        "site": of.name, "host": "node1", "date": datetime.now(UTC).isoformat(),
        "ckptflow_version": VERSION, "unmeasured": [],
        "tiers": [{
            "tier": disk.model_dump(), "host": "node1", "how": "save", "totals": [totals],
            "write_latency_s": 0.0, "read_latency_s": 0.0, "free_bytes": None,
        }],
        **changes,
    }  # fmt: skip
    made = Calibration.model_validate_json(json.dumps(fields))
    path = calibration_file(of.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_calibration(path, made)


def test_failures_of_the_site_are_those_of_the_nodes_that_the_task_has() -> None:
    failing = {"node_mtbf": "10d", "process_mtbf": "5h", "source": "somebody"}
    found = informed(MultiLevel(), site(failures=failing), nodes=4, processes=8)
    assert found.rates is not None
    assert found.rates.per_s == pytest.approx((8 / (5 * HOUR_S), 0, 4 / (10 * DAY_S), 0, 0))
    assert found.nodes == 4


def test_a_site_that_says_nothing_tells_nothing() -> None:
    assert informed(MultiLevel(), site()) == MultiLevel()


def test_a_calibration_tells_what_tiers_can_do() -> None:
    calibrate(site())
    (disk,) = informed(MultiLevel(), site()).tiers
    assert (disk.name, disk.level) == ("disk", 3)
    assert disk.write_bytes_per_s == pytest.approx(2e8)


def test_a_calibration_of_another_tier_or_long_ago_is_left_out() -> None:
    calibrate(site(tiers=[{"kind": "posix", "name": "disk", "level": 3, "path": "other"}]))
    with pytest.warns(
        CheckpointWarning, match="left out: .* Measure again: ckptflow calibrate"
    ):
        assert informed(MultiLevel(), site()).tiers == ()
    calibrate(site(), date="2020-01-01T00:00:00+00:00")
    with pytest.warns(CheckpointWarning, match="left out"):
        assert informed(MultiLevel(), site()).tiers == ()


def test_a_calibration_that_cannot_be_read_is_warned_of() -> None:
    path = calibration_file(site().name)
    path.parent.mkdir(parents=True)
    path.write_text("{")
    with pytest.warns(CheckpointWarning, match=r"calibration of 'local_threads' is left out"):
        assert informed(MultiLevel(), site()).tiers == ()


def test_what_the_rule_says_itself_comes_first() -> None:
    calibrate(site())
    own = TierCosts(name="disk", level=3, write_bytes_per_s=1.0, read_bytes_per_s=1.0)
    rates = Rates((1.0, 0.0, 0.0, 0.0, 0.0))
    rule = replace(MultiLevel(), tiers=(own,), rates=rates)
    found = informed(rule, site(failures={"node_mtbf": "1d", "source": "x"}))
    assert (found.tiers, found.rates) == ((own,), rates)
