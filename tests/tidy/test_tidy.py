"""Our own rules, as tests: what a reviewer would have to say twice is said here once.

Each rule lists every place that breaks it, so that one run tells all of them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "ckptflow"
MODULES = sorted(PACKAGE.rglob("*.py"))
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
TEXTS = [
    path
    for folder in ("ckptflow", "workflows", "site_configs", "bench", "tests", "docs")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix
    in {".py", ".md", ".toml", ".txt", ".h", ".hpp", ".cpp", ".inc", ".cu", ".sh"}
    and path != Path(__file__)
] + [ROOT / name for name in ("Makefile", "README.md", "CONTRIBUTING.md", "pyproject.toml")]

FILE_LINES, FUNCTION_LINES = 500, 60
EMPTY_NAMES = {
    "utils",
    "util",
    "helpers",
    "helper",
    "common",
    "manager",
    "base",
    "misc",
    "core",
}

# Here a thread or a task ends, so whatever happened has to be carried to whoever waits; or
# code of the user runs (pickling an object of theirs, a filesystem that they hand in), which
# may raise anything.
MAY_CATCH_ALL = {
    "ckptflow/checkpointer/capturing.py",
    "ckptflow/checkpointer/runners.py",
    "ckptflow/checkpointer/writer.py",
    "ckptflow/flush/agent/client.py",
    "ckptflow/flush/agent/upkeep.py",
    "ckptflow/flush/copying.py",
    "ckptflow/flush/flusher.py",
    "ckptflow/flush/lanes.py",
    "ckptflow/tiers/foreign_errors.py",
    "ckptflow/workflow/attempt.py",
    "ckptflow/workflow/blocks/following.py",
    "ckptflow/workflow/globus_compute/calls.py",
    "ckptflow/workflow/globus_compute/executor.py",
    "ckptflow/workflow/globus_compute/launcher.py",
    "ckptflow/workflow/globus_compute/worker.py",
    "ckptflow/workflow/external/running.py",
    "ckptflow/workflow/external/stopping.py",
    "ckptflow/workflow/blocks/there.py",
    "ckptflow/workflow/memo.py",
    "ckptflow/workflow/portable.py",
    "ckptflow/workflow/ranks/program.py",
    "ckptflow/workflow/run.py",
}

# Functions and results of tasks travel, and results are remembered, as pickles, since Parsl's
# own do. None of it is read to restore a state.
MAY_RUN_CODE = {  # It comes from the submitting process, and lean runs a program of Parsl.
    f"ckptflow/workflow/{module}.py"
    for module in ("attempt", "blocks/lean", "memo", "portable", "ranks/program")
}


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def syntax(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(path: Path) -> Iterator[Function]:
    for node in ast.walk(syntax(path)):
        if isinstance(node, Function):
            yield node


def grep(paths: list[Path], pattern: str) -> list[str]:
    """Return ``file:line: text`` for each line that matches."""
    regex = re.compile(pattern)
    return [
        f"{name(path)}:{number}: {line.strip()}"
        for path in paths
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if regex.search(line)
    ]


# --- size and names --------------------------------------------------------------------


def test_files_are_short() -> None:
    lines = {name(path): len(path.read_text().splitlines()) for path in MODULES}
    assert {path: count for path, count in lines.items() if count > FILE_LINES} == {}


def test_functions_are_short() -> None:
    def length(function: Function) -> int:
        first = function.body[0]
        is_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
        described = (first.end_lineno or 0) - first.lineno + 1 if is_docstring else 0
        return (function.end_lineno or 0) - function.lineno + 1 - described

    found = {
        f"{name(path)}:{function.name}": length(function)
        for path in MODULES
        for function in functions(path)
    }
    assert {where: lines for where, lines in found.items() if lines > FUNCTION_LINES} == {}


def test_no_module_has_a_name_that_means_nothing() -> None:
    parts = {name(path) for path in MODULES if {path.stem, path.parent.name} & EMPTY_NAMES}
    assert parts == set()


# --- words -----------------------------------------------------------------------------


def test_words_with_three_meanings_are_not_used() -> None:
    texts = [path for path in TEXTS if path.name != "glossary.md"]
    assert grep(texts, r"(?i)\bdrain(s|ed|ing)?\b") == []


def test_epoch_means_a_training_epoch_only() -> None:
    about_training = {PACKAGE / "testing" / "exactly_once.py"}
    about_training |= set((PACKAGE / "data" / "samples").glob("*.py"))
    about_training |= {PACKAGE / f"{name}.py" for name in ("lightning", "huggingface")}
    others = [path for path in MODULES if path not in about_training]
    assert grep(others, r"(?i)\bepochs?\b") == []


def test_job_is_a_word_of_the_scheduler() -> None:
    blocks = PACKAGE / "workflow" / "blocks"
    others = [path for path in MODULES if blocks not in path.parents]
    assert grep(others, r"(?i)\bjobs?\b") == []


def test_nothing_is_left_for_later() -> None:
    sources = [path for path in TEXTS if path.suffix != ".md" and "tests" not in path.parts]
    assert grep(sources, r"\b(TODO|FIXME|XXX|HACK|NotImplementedError)\b") == []


def test_no_path_of_somebody_s_machine() -> None:
    ours = [
        path for path in TEXTS if "site_configs" not in path.parts
    ]  # Sites have such paths.
    assert grep(ours, r"(?<![\w.~$}>])/(home|root|Users|work|workspace)/\w") == []
    assert grep(TEXTS, r"\.\./shared/") == []


# --- safety ----------------------------------------------------------------------------


def test_bytes_from_a_store_are_never_executed() -> None:
    """A checkpoint from a stranger must not run code, so no route may reach an unpickler."""
    forbidden = {
        "eval", "exec", "pickle.load", "pickle.loads", "pickle.Unpickler", "dill.load",
        "dill.loads",
        "cloudpickle.load", "cloudpickle.loads", "torch.load", "marshal.loads", "os.system",
    }  # fmt: skip
    found = []
    for path in MODULES:
        if name(path) in MAY_RUN_CODE:
            continue
        for node in ast.walk(syntax(path)):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            shell = any(
                keyword.arg == "shell" and ast.unparse(keyword.value) == "True"
                for keyword in node.keywords
            )
            if called in forbidden or shell:
                found.append(f"{name(path)}:{node.lineno}: {ast.unparse(node)}")
    assert found == []


def test_only_the_ends_of_threads_and_tasks_catch_everything() -> None:
    """Elsewhere an error names its class; a swallowed one would be a lost checkpoint."""
    found = [
        f"{name(path)}:{node.lineno}"
        for path in MODULES
        if name(path) not in MAY_CATCH_ALL
        for node in ast.walk(syntax(path))
        if isinstance(node, ast.ExceptHandler) and swallows_everything(node)
    ]
    assert found == []


def swallows_everything(handler: ast.ExceptHandler) -> bool:
    """Clean up and ``raise`` again is fine: nothing is lost."""
    last = handler.body[-1]
    if isinstance(last, ast.Raise) and last.exc is None:
        return False
    return handler.type is None or bool(
        re.search(r"\b(Base)?Exception\b", ast.unparse(handler.type))
    )


def test_only_the_command_line_ends_the_process() -> None:
    modules = [path for path in MODULES if path.name != "cli.py" and "cli" not in path.parts]
    assert grep(modules, r"\b(sys\.exit|os\._exit)\(") == []


# --- documentation ---------------------------------------------------------------------


def test_every_module_says_what_it_is() -> None:
    assert [name(path) for path in MODULES if not ast.get_docstring(syntax(path))] == []


def test_every_public_function_and_class_says_what_it_does() -> None:
    def public(body: list[ast.stmt], prefix: str = "") -> Iterator[str]:
        for node in body:
            if not isinstance(node, Function | ast.ClassDef) or node.name.startswith(
                ("_", "test_")  # The name of a test is its sentence.
            ):
                continue
            decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
            if "overload" in decorators or any(d.endswith(".setter") for d in decorators):
                continue
            if not ast.get_docstring(node):
                yield prefix + node.name
            if isinstance(node, ast.ClassDef):
                yield from public(node.body, f"{node.name}.")

    missing = [
        f"{name(path)}: {where}" for path in MODULES for where in public(syntax(path).body)
    ]
    assert missing == []


def test_tests_named_in_docstrings_exist() -> None:
    named = {
        (name(path), test)
        for path in MODULES
        for test in re.findall(r"tests/[\w/]+(?:\.py)?", ast.get_docstring(syntax(path)) or "")
    }
    assert {(path, test) for path, test in named if not (ROOT / test).exists()} == set()


GLOSSARY = (
    "state, region, chunk, cell, digest, extent, fill, repeat, snapshot, pack, frame, filter, "
    "encoding, packing, goal, manifest, commit, checkpoint, lineage, parent, full, delta, "
    "delta layer, consolidate, step, tier, level, copy, flush, fetch, scavenge, partner copy, "
    "redundancy set, failure group, prune, verify, repair, spare, quarantine, restore, "
    "restart, resume, allocation, run, task, attempt, MTBF, RPO, RTO, "
    "interval, in flight, idle, blocked, interference, overhead, pace"
)


def test_the_glossary_defines_every_word_we_use() -> None:
    page = (ROOT / "docs" / "glossary.md").read_text()
    defined = set(re.findall(r"\*\*([^*]+)\*\*", page))
    assert [word for word in GLOSSARY.split(", ") if word not in defined] == []


def test_links_lead_somewhere() -> None:
    broken = []
    for page in PAGES:
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            if not file.exists() or (anchor and anchor not in anchors(file)):
                broken.append(f"{name(page)}: {target}")
    assert broken == []


def anchors(page: Path) -> set[str]:
    """Return the anchors that headings get, the way GitHub and MkDocs make them."""
    headings = re.findall(r"^#+ +(.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
        for heading in headings
    }


def code_in(page: Path) -> Iterator[str]:
    """Yield each line of a fenced block, and each piece of inline code."""
    text = page.read_text(encoding="utf-8")
    for block in re.findall(r"^```[^\n]*\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE):
        yield from block.splitlines()
    yield from re.findall(
        r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    )


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_make_targets_named_on_a_page_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        target
        for line in code_in(page)
        if (call := re.match(r"\s*(?:\$ )?make((?: +[a-z]+)+)", line))
        for target in call[1].split()
    }
    assert named - targets == set()
