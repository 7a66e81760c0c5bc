"""The options of ``tune``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ckptflow.plan.schemes import WANTED
from ckptflow.policy.failures.known import KNOWN
from ckptflow.policy.multilevel.presets import PRESETS

RunArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[RUN[/TASK]]", help="A run: with what it has met, beside what it did."
    ),
]
StateOption = Annotated[
    str | None, typer.Option("--state", help="State of all processes together: 400GB.")
]
NodesOption = Annotated[
    int | None, typer.Option("--nodes", help="That run together; the site's if not given.")
]
WritersOption = Annotated[
    int | None,
    typer.Option("--writers", help="Processes of a node that save; the site's workers."),
]
ChangedOption = Annotated[
    float | None,
    typer.Option("--changed", help="Part of the state that differs from save to save."),
]
StoredOption = Annotated[
    float, typer.Option("--stored", help="Bytes stored for each that differs: compression.")
]
WorkOption = Annotated[
    str | None, typer.Option("--work", help="Computing time of the whole task: 500h.")
]
PresetOption = Annotated[
    str, typer.Option("--preset", metavar="|".join(PRESETS), help="What matters besides.")
]
FailuresOption = Annotated[
    str | None,
    typer.Option("--failures", metavar="|".join(KNOWN), help="Rates that were published."),
]
MtbfOption = Annotated[
    str | None,
    typer.Option("--mtbf", help="Mean time between failures of all nodes together: 6h."),
]
RedundancyOption = Annotated[
    str,
    typer.Option(
        "--redundancy", metavar="|".join(WANTED), help="Between nodes; auto compares."
    ),
]
TierOption = Annotated[
    list[str] | None,
    typer.Option(
        "--tier", help="What a tier can do: nvme:write=3.7GB,read=8GB,capacity=1TB; repeat."
    ),
]
DetectionOption = Annotated[
    str | None, typer.Option("--detection", help="Until a failure is noticed.")
]
RestartOption = Annotated[
    str | None, typer.Option("--restart", help="Until processes run again.")
]
ReallocationOption = Annotated[
    str | None, typer.Option("--reallocation", help="Until another node is there.")
]
QueueOption = Annotated[
    str | None, typer.Option("--queue", help="Until another allocation begins.")
]
PlotOption = Annotated[
    Path | None, typer.Option("--plot", help="Folder for drawings, as PNG files.")
]
QuickOption = Annotated[
    bool, typer.Option("--quick", help="Take the surrogate's word; compare nothing.")
]
