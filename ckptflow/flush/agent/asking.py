"""Questions to an agent that runs already: how far it is, whether it is done, to make haste.

``tests/process/test_agent.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ckptflow.errors import FlushError, FormatError, TierError, TierUnavailable
from ckptflow.flush.agent.folder import agent_folder
from ckptflow.flush.agent.ledger import Entry, Ledger
from ckptflow.flush.agent.protocol import Message, OtherVersionError, connect, receive, send
from ckptflow.flush.agent.starting import connected
from ckptflow.flush.options import Flushing
from ckptflow.tiers.tier import Tier

ANSWER_S = 30.0  # An agent that is stopped, or hangs, says nothing for ever.


def folder_of(tiers: Sequence[Tier]) -> Path:
    """Return the folder of the agent for these tiers on this node, if there were one."""
    return agent_folder([tier.spec for tier in tiers])


def ask(folder: Path, op: str, *, within_s: float = ANSWER_S, **fields: Any) -> Message:
    """Ask the agent of a folder something, and return its answer.

    Raises:
        TierUnavailable: no agent runs there, or it ended before it had answered.
        TierDenied: the folder is not safe to use.
        FlushError: it refused, or is of another version; the message says why.
    """
    with connect(folder) as connection:
        connection.settimeout(within_s)
        try:
            send(connection, {"op": op, **fields})
            while (answer := receive(connection)) is not None:
                if "ok" in answer:
                    break
        except OtherVersionError as error:
            raise FlushError(
                f"The agent in {folder} is of another version of ckptflow: {error} "
                "It ends by itself when it is idle; until then use its version."
            ) from error
        except (OSError, FormatError) as error:
            raise TierUnavailable(f"The agent in {folder} did not answer: {error}.") from error
    if answer is None:
        raise TierUnavailable(f"The agent in {folder} ended before it had answered.")
    if not answer["ok"]:
        raise FlushError(f"The agent in {folder} refused: {answer.get('message')}")
    return answer


def wait_for_run(
    tiers: Sequence[Tier], run: str, timeout_s: float, *, options: Flushing
) -> list[str]:
    """Wait until no copy of a run is on its way on this node; return what is wrong.

    That is, a sentence for each copy that failed and of which nobody was told, and one for
    each that is still on its way when the time is over. Where copies are left and no agent
    runs, one is started.
    """
    folder = folder_of(tiers)
    if not folder.exists():
        return []
    ledger = Ledger(folder)

    def of_run(entries: Sequence[Entry]) -> list[Entry]:
        return [entry for entry in entries if entry.lineage.run == run]

    problems, told = [], set[str]()
    if of_run(ledger.pending()):
        try:
            connected(folder, [tier.spec for tier in tiers], options).close()
            answer = ask(
                folder, "wait", within_s=timeout_s + ANSWER_S, run=run, timeout_s=timeout_s
            )
        except (TierError, FlushError) as error:
            problems = [f"{entry} waits: {error}" for entry in of_run(ledger.pending())]
        else:
            pending = [Entry.of(fields) for fields in answer["pending"]]
            problems = [_unfinished(entry) for entry in pending]
            failed = [Entry.of(fields) for fields in answer["failed"]]
            problems += [entry.error for entry in failed if not entry.reported]
            told = {entry.name for entry in failed}  # The agent notes that after it answers.
    unreported = [entry for entry in of_run(ledger.failures()) if not entry.reported]
    for entry in unreported:
        ledger.mark_reported(entry)
    return [*problems, *(entry.error for entry in unreported if entry.name not in told)]


def _unfinished(entry: Entry) -> str:
    return f"{entry} is still on its way" + (f": {entry.error}" if entry.error else "")
