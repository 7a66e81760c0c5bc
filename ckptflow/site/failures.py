"""How often things fail on a machine, as somebody has published or measured it.

``tests/unit/test_site_failures.py``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from pydantic import Field, model_validator

from ckptflow.policy.interval import parse_interval
from ckptflow.policy.progress import Interval
from ckptflow.policy.tuned import Tuned
from ckptflow.site.strict import Seconds, Strict


class FailuresModel(Strict):
    """Mean times between failures of one node, and of what all nodes share."""

    node_mtbf_s: Annotated[Seconds | None, Field(alias="node_mtbf", gt=0)] = None
    system_mtbf_s: Annotated[Seconds | None, Field(alias="system_mtbf", gt=0)] = None
    source: str = ""

    @model_validator(mode="after")
    def _source_is_named(self) -> FailuresModel:
        known = self.node_mtbf_s is not None or self.system_mtbf_s is not None
        if known and not self.source.strip():
            raise ValueError("say in source where the times between failures are from")
        return self

    def mtbf_s(self, nodes: int = 1) -> float | None:
        """Return the mean time between failures of what runs on so many nodes.

        Rates add up: it fails when one of its nodes does, or what they share.
        """
        rate_per_s = sum(
            count / mtbf_s
            for count, mtbf_s in ((nodes, self.node_mtbf_s), (1, self.system_mtbf_s))
            if mtbf_s is not None
        )
        return 1 / rate_per_s if rate_per_s else None

    def inform(
        self, every: str | int | Interval | None, *, nodes: int = 1
    ) -> str | int | Interval | None:
        """Return a rule when to save; a tuned one is told of failures if it knows none."""
        mtbf_s, rule = self.mtbf_s(nodes), parse_interval(every)
        if mtbf_s is None or not isinstance(rule, Tuned) or rule.mtbf_s is not None:
            return every
        return str(replace(rule, mtbf_s=mtbf_s))
