"""What memory this process has, and has had, as Linux counts it."""

from __future__ import annotations

from pathlib import Path


def reset_peak() -> None:
    """Let the peak of this process's memory begin anew; where that is denied it only grows."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return


def memory_bytes(field: str) -> int:
    """Return a line of ``/proc/self/status``, which counts in KiB."""
    text = Path("/proc/self/status").read_text(encoding="ascii")
    return int(text.partition(f"{field}:")[2].split(maxsplit=1)[0]) << 10
