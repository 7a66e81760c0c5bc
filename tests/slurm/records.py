"""What was measured in the scenarios, as rows for docs/reliability.md.

SCENARIO_RECORDS=records.json make test SLOW=1 ARGS=tests/slurm
python tests/slurm/records.py records.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HEADER = (
    "| what happened | processes tracked by | steps lost | work lost, s | interval + save, s "
    "| until it went on, s | allocations |\n|---|---|---|---|---|---|---|"
)


def row(record: dict[str, Any]) -> str:
    """Return the row of one scenario; of its failures the worst counts."""
    failures = record["failures"]
    lost_steps = max((one["lost_steps"] for one in failures), default=0)
    lost_s = max((one["lost_s"] for one in failures), default=0.0)
    allowed_s = max((one["interval_s"] + one["save_s"] for one in failures), default=0.0)
    resume_s = max((one["resume_s"] for one in failures), default=0.0)
    resumed = f"{resume_s:.1f}" if resume_s else ""
    what = record["scenario"].replace("_", " ")
    cells = [
        what,
        record["proctrack"],
        lost_steps,
        f"{lost_s:.2f}",
        f"{allowed_s:.2f}",
        resumed,
    ]
    return f"| {' | '.join(str(cell) for cell in cells)} | {record['allocations']} |"


if __name__ == "__main__":
    records = json.loads(Path(sys.argv[1]).read_text())
    print("\n".join([HEADER, *map(row, sorted(records, key=lambda one: one["scenario"]))]))
