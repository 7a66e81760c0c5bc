"""Which files tell of a run or of one of its tasks, and the lines in them that do.

Parsl writes many: its own log, those of the interchange, of each manager and each worker, and
what the script of each block printed. Which of them a task is about follows from where its
attempts ran: the claim in the store says block, manager and worker; of a task that never uses
its checkpointer the logs are searched for its number. Files are only read.
``tests/unit/test_seeing_logs.py``.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ckptflow.workflow.run import JOURNAL
from ckptflow.workflow.seeing.model import Attempt, Life, RunStory, Task

LINES = 20
"""Lines shown of each file, unless another number is asked for."""

_LINE_MAX = 400
_READ_MAX_BYTES = 64 << 20  # Of one file; only the end of a larger one is looked at.
_DEBUG = re.compile(r" DEBUG: ")
_TROUBLE = re.compile(r" (WARNING|ERROR|CRITICAL): |Traceback|[Ee]xception|has died|was busy")
_LAUNCHED = re.compile(
    r"Parsl task (\d+) try (\d+) launched on executor (\S+) with executor id (\d+)"
)

_PARSL_LINE = re.compile(r"\d+\.\d+ \S+ (\S+) \S+ \S+ \S+ \S+ ([A-Z]+: .*)")
_STARTED = re.compile(r"Worker \d+ started")
_NOISE = re.compile(r"Standard (out|error) for task \d+ will not be redirected")

Match = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Source:
    """A file that tells something.

    Attributes:
        what: what it is, in words.
        path: where.
        picks: returns the lines that matter, of all of them.
    """

    what: str
    path: Path
    picks: Callable[[Iterable[str]], Iterator[str]] = field(default=iter)


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The last lines of a file that matter.

    Attributes:
        what: what the file is.
        path: where.
        size_bytes: how large it is.
        lines: the lines, the oldest first.
        more: how many others matter.
    """

    what: str
    path: Path
    size_bytes: int
    lines: tuple[str, ...]
    more: int


def sources_of_run(story: RunStory, folder: Path) -> list[Source]:
    """Return the files of the last life of a run that there are.

    Args:
        story: the run.
        folder: its folder.
    """
    found = [Source("journal", folder / JOURNAL)]
    if story.lives:
        parsl = _parsl_folder(story.lives[-1], folder)
        if parsl is not None:
            found += _of_parsl(parsl)
    return [one for one in found if one.path.is_file()]


def _of_parsl(parsl: Path) -> Iterator[Source]:
    yield Source("Parsl", parsl / "parsl.log", _where(_is_told))
    for path in sorted(parsl.glob("*/interchange.log")):
        yield Source(f"interchange of {path.parent.name}", path, _where(_is_told))
    for path in sorted(parsl.glob("*/block-*/*/manager.log")):
        block, manager = path.parent.parent.name, path.parent.name
        yield Source(f"manager {manager} of {block}", path, _where(_is_trouble))
    for path in sorted(parsl.glob("*/block-*/*/worker_*.log")):
        yield Source(f"{path.stem.replace('_', ' ')} of {path.parent.parent.name}", path,
                     _where(_is_trouble))  # fmt: skip
    for path in _printed(parsl):
        yield Source(f"output of the script of {_block_in(path.name)}", path)


def sources_of_task(story: RunStory, task: Task, folder: Path) -> list[Source]:
    """Return the files that tell of a task, in the order of its attempts.

    Args:
        story: the run.
        task: the task.
        folder: the run's folder.
    """
    found: dict[tuple[Path, str], Source] = {}
    for number, life in enumerate(story.lives):
        parsl = _parsl_folder(life, folder)
        tries = [one for one in task.tries if one.life == number]
        if parsl is None or not tries:
            continue
        ids = {one.task_id for one in tries if one.task_id is not None}
        log = parsl / "parsl.log"
        nth = f" (start {number + 1})" if len(story.lives) > 1 else ""
        sources = [Source(f"Parsl{nth}", log, _where(_mentions(ids)))]
        launches = executor_ids(_read_lines(log), ids)
        attempts = [one for one in task.attempts if one.life == number]
        sources += _of_attempts(parsl, attempts, launches)
        sources += [
            Source(f"{name} of the task", Path(path))
            for one in tries
            for name, path in one.streams.items()
        ]
        found.update({(one.path, one.what): one for one in sources if one.path.is_file()})
    return list(found.values())


def _of_attempts(
    parsl: Path, attempts: Sequence[Attempt], launches: Sequence[tuple[str, int]]
) -> Iterator[Source]:
    numbers = {number for _, number in launches}
    for executor in dict.fromkeys(executor for executor, _ in launches):
        for path in sorted((parsl / executor).glob("block-*/*/worker_*.log")):
            if any(_begins(line, numbers) for line in _read_lines(path)):
                block, manager = path.parent.parent, path.parent
                worker = path.stem.replace("_", " ")
                yield Source(f"{worker} of {block.name}", path, _between(numbers))
                yield Source(f"manager of {block.name}", manager / "manager.log",
                             _where(_is_trouble))  # fmt: skip
                yield from _of_block(parsl, block.name)
    for one in attempts:
        if "block" in one.where:
            yield from _of_block(parsl, f"block-{one.where['block']}")


def _of_block(parsl: Path, block: str) -> Iterator[Source]:
    for path in _printed(parsl):
        if _block_in(path.name) == block:
            yield Source(f"output of the script of {block}", path)


def _printed(parsl: Path) -> list[Path]:
    """Return what scripts of blocks have printed, as far as there is anything in it."""
    folder = parsl / "submit_scripts"
    endings = (".out", ".err", ".stdout", ".stderr")
    return sorted(
        path
        for path in folder.glob("*")
        if path.name.endswith(endings) and path.is_file() and path.stat().st_size
    )


def _block_in(name: str) -> str:
    match = re.search(r"block-\d+", name)
    return match[0] if match else "a block"


def _parsl_folder(life: Life, folder: Path) -> Path | None:
    """Return where Parsl's logs of a life are, also if the run's folder was moved since."""
    if life.parsl_folder is None:
        return None
    noted = Path(life.parsl_folder)
    moved = folder / noted.parent.name / noted.name
    return moved if moved.is_dir() else noted if noted.is_dir() else None


def executor_ids(lines: Iterable[str], ids: set[int]) -> list[tuple[str, int]]:
    """Return executor and number there of each launch of tasks, from Parsl's log."""
    return [
        (match[3], int(match[4]))
        for line in lines
        if (match := _LAUNCHED.search(line)) and int(match[1]) in ids
    ]


def excerpt(source: Source, *, lines: int = LINES) -> Excerpt:
    """Return the last lines of a file that matter."""
    kept: deque[str] = deque(maxlen=lines)
    count = 0
    for line in source.picks(_read_lines(source.path)):
        kept.append(shortened(line))
        count += 1
    size = source.path.stat().st_size if source.path.is_file() else 0
    return Excerpt(source.what, source.path, size, tuple(kept), count - len(kept))


def shortened(line: str) -> str:
    """Return a line without what would fill a screen: Parsl logs whole arguments.

    Of a line of Parsl's the time of day, the level and the message stay.
    """
    if match := _PARSL_LINE.match(line):
        line = f"{match[1]} {match[2]}"
    return line if len(line) <= _LINE_MAX else f"{line[:_LINE_MAX]} …"


def _read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file, without their ends; nothing if it cannot be read."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            if size > _READ_MAX_BYTES:
                file.seek(size - _READ_MAX_BYTES)
                file.readline()
            for line in file:
                yield line.decode(errors="replace").rstrip("\r\n")
    except OSError:
        return


def _where(match: Match) -> Callable[[Iterable[str]], Iterator[str]]:
    return lambda lines: (line for line in lines if match(line))


def _is_told(line: str) -> bool:
    return not _DEBUG.search(line) and not _NOISE.search(line)


def _is_trouble(line: str) -> bool:
    return bool(_TROUBLE.search(line))


def _mentions(ids: set[int]) -> Match:
    """Return what matches lines of Parsl's log about some of its tasks."""
    names = "|".join(str(number) for number in sorted(ids))
    pattern = re.compile(rf"\b[Tt]ask (?:{names})\b") if ids else re.compile(r"(?!)")
    return lambda line: _is_told(line) and bool(pattern.search(line))


def _begins(line: str, numbers: set[int]) -> bool:
    match = re.search(r"Received executor task (\d+)", line)
    return bool(match) and int(match[1]) in numbers  # type: ignore[index]


def _between(numbers: set[int]) -> Callable[[Iterable[str]], Iterator[str]]:
    """Return what picks, of a worker's log, the lines while it worked on some tasks."""

    def picked(lines: Iterable[str]) -> Iterator[str]:
        inside = False
        for line in lines:
            if "Received executor task" in line:
                inside = _begins(line, numbers)
            elif _STARTED.search(line):
                inside = False  # The one that had it is gone.
            if inside:
                yield line
            if "All processing finished for executor task" in line:
                inside = False

    return picked


class Follower:
    """Returns the lines that files have got since somebody looked last."""

    def __init__(self) -> None:
        self._offsets: dict[Path, int] = {}

    def skip(self, sources: Iterable[Source]) -> None:
        """Take what is in the files now for known."""
        for one in sources:
            self._offsets[one.path] = one.path.stat().st_size if one.path.is_file() else 0

    def new(self, sources: Iterable[Source]) -> Iterator[tuple[Source, str]]:
        """Yield new whole lines of each file that matter."""
        for one in sources:
            begin = self._offsets.get(one.path, 0)
            try:
                with one.path.open("rb") as file:
                    file.seek(begin)
                    data = file.read(_READ_MAX_BYTES)
            except OSError:
                continue
            whole = data.rfind(b"\n") + 1
            self._offsets[one.path] = begin + whole
            lines = data[:whole].decode(errors="replace").splitlines()
            for line in one.picks(lines):
                yield one, shortened(line)
