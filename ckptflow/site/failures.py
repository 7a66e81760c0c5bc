"""How often things fail on a machine, as somebody has published or measured it.

``tests/unit/test_site_failures.py``.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Annotated

from pydantic import Field, field_validator, model_validator

from ckptflow.policy.failures.known import known
from ckptflow.policy.failures.rates import MeanTimes, Rates, rates_of
from ckptflow.policy.failures.survival import Redundancy
from ckptflow.policy.interval import parse_interval
from ckptflow.policy.progress import Interval
from ckptflow.policy.tuned import Tuned
from ckptflow.site.strict import Seconds, Strict


class FailuresModel(Strict):
    """Mean times between failures of one process, of one node, and of what all nodes share."""

    preset: str | None = None
    process_mtbf_s: Annotated[Seconds | None, Field(alias="process_mtbf", gt=0)] = None
    reboot_mtbf_s: Annotated[Seconds | None, Field(alias="reboot_mtbf", gt=0)] = None
    node_mtbf_s: Annotated[Seconds | None, Field(alias="node_mtbf", gt=0)] = None
    system_mtbf_s: Annotated[Seconds | None, Field(alias="system_mtbf", gt=0)] = None
    filesystem_mtbf_s: Annotated[Seconds | None, Field(alias="filesystem_mtbf", gt=0)] = None
    source: str = ""

    @field_validator("preset")
    @classmethod
    def _preset_is_known(cls, name: str | None) -> str | None:
        return name if name is None else known(name).name

    @model_validator(mode="after")
    def _source_is_named(self) -> FailuresModel:
        if self._own != MeanTimes() and not self.source.strip():
            raise ValueError("say in source where the times between failures are from")
        return self

    @property
    def _own(self) -> MeanTimes:
        return MeanTimes(
            **{field.name: getattr(self, field.name) for field in fields(MeanTimes)}
        )

    @property
    def times(self) -> MeanTimes:
        """Mean times as given here, and those of the preset where none is."""
        return self._own if self.preset is None else self._own.or_else(known(self.preset).times)

    def rates(
        self, *, nodes: int, processes: int | None = None, redundancy: Redundancy | None = None
    ) -> Rates:
        """Return how often each class of failures happens to what runs on so many nodes.

        See `ckptflow.policy.failures.rates.rates_of`.
        """
        return rates_of(self.times, nodes=nodes, processes=processes, redundancy=redundancy)

    def mtbf_s(self, nodes: int = 1, processes: int | None = None) -> float | None:
        """Return the mean time between failures of what runs on so many nodes.

        Rates add up: it fails when one of its processes or nodes does, or what they share.
        """
        return self.rates(nodes=nodes, processes=processes).mtbf_s()

    def inform(
        self,
        every: str | int | Interval | None,
        *,
        nodes: int = 1,
        processes: int | None = None,
    ) -> str | int | Interval | None:
        """Return a rule when to save; a tuned one is told of failures if it knows none."""
        mtbf_s, rule = self.mtbf_s(nodes, processes), parse_interval(every)
        if mtbf_s is None or not isinstance(rule, Tuned) or rule.mtbf_s is not None:
            return every
        return str(replace(rule, mtbf_s=mtbf_s))
