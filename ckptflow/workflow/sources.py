"""What code a task runs: digests of its function and of what that uses of the workflow's files.

Read from the source text and never executed, so the plan of a restart can compare files with
what a run has recorded, without starting the script. A digest is of the syntax: comments,
blank lines, docstrings, type hints of parameters and the decorators of apps do not count.

From a function it goes on to whatever the function names and the workflow defines: functions,
classes, constants, and the same in modules below the workflow's folder, also if they are
imported within the function. Installed packages are not followed. Where there is no file, as in
a notebook, functions are found in memory, and the plan cannot compare them.

``tests/unit/test_sources.py``.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

DEFINITIONS_MAX = 1000  # Of one app. What comes after them is not compared.

_DIGITS = 12
_APPS = frozenset({"python_app", "bash_app", "join_app"})
_SKIPPED = frozenset({"ctx", "type_comment", "kind", "returns"})

Functions = ast.FunctionDef | ast.AsyncFunctionDef
Defining = Functions | ast.ClassDef


@dataclass(frozen=True, slots=True)
class Code:
    """The code of an app.

    Attributes:
        parts: digest of each definition, by file and name: ``flow.py:advance``.
        file: where the function is defined; ``None`` if in no file.
        name: its qualified name there.
        folder: the workflow's folder; files below it are followed.
    """

    parts: Mapping[str, str]
    file: Path | None = None
    name: str = ""
    folder: Path | None = None

    @property
    def digest(self) -> str | None:
        """Digest over all parts; ``None`` if the code is not known."""
        if not self.parts:
            return None
        text = repr(sorted(self.parts.items()))
        return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def code_of(function: Callable[..., Any]) -> Code:
    """Return the code of a function; without parts if its source is not to be had."""
    file = Path(function.__code__.co_filename).absolute()
    name = function.__qualname__
    if file.is_file():
        folder = _folder_of(file)
        return Code(parts_in(file, name, folder), file, name, folder)
    return Code(_parts_in_memory(function), None, name)


def parts_in(file: Path, name: str, folder: Path) -> dict[str, str]:
    """Return the digests of a function and of what it uses; empty if it is not there.

    Args:
        file: the file that defines it.
        name: its qualified name.
        folder: only files below it are followed.
    """
    module = _module(file)
    if module is None:
        return {}
    search = _Search(folder)
    try:
        search.begin(module, name)
    except RecursionError:
        return {}
    return search.parts


@dataclass
class _Module:
    """The names that a file defines."""

    file: Path
    names: dict[str, list[ast.stmt]] = field(default_factory=dict)
    stars: list[ast.ImportFrom] = field(default_factory=list)


def _module(file: Path) -> _Module | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return _parsed(file, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=256)
def _parsed(file: Path, _changed_ns: int, _size: int) -> _Module | None:
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, ValueError, SyntaxError, RecursionError):
        return None
    module = _Module(file)
    for statement in _flat(tree.body):
        for name in _bound(statement):
            module.names.setdefault(name, []).append(statement)
        if isinstance(statement, ast.ImportFrom) and statement.names[0].name == "*":
            module.stars.append(statement)
    return module


def _flat(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements, and those within ``if``, ``try`` and ``with``."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.If | ast.Try | ast.With | ast.For | ast.While):
            for part in ("body", "orelse", "finalbody"):
                yield from _flat(getattr(statement, part, []))
            for handler in getattr(statement, "handlers", []):
                yield from _flat(handler.body)


def _bound(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement gives a meaning."""
    if isinstance(statement, Defining):
        yield statement.name
    elif isinstance(statement, ast.Import | ast.ImportFrom):
        for alias in statement.names:
            yield alias.asname or alias.name.partition(".")[0]
    elif isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        for target in targets:
            for node in ast.walk(target):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    yield node.id


class _Search:
    """Collects the digests of a function and of everything that it names."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: set[tuple[Path, str]] = set()
        self.parts: dict[str, str] = {}

    def begin(self, module: _Module, name: str) -> None:
        """Begin with a function, which may be defined within others."""
        node: Any = None
        around: list[Any] = []
        statements = module.names
        for part in name.split("."):
            if part == "<locals>":
                continue
            found = [one for one in statements.get(part, []) if isinstance(one, Defining)]
            if not found:
                return
            around += [node] if node is not None else []
            node, statements = found[-1], {}
            for inner in _flat(node.body):
                for bound in _bound(inner):
                    statements.setdefault(bound, []).append(inner)
        self._add(module, name, [node], around)

    def _add(
        self, module: _Module, name: str, nodes: list[Any], around: list[Any] | None = None
    ) -> None:
        if (module.file, name) in self._seen or len(self.parts) >= DEFINITIONS_MAX:
            return
        self._seen.add((module.file, name))
        self.parts[f"{_relative(module.file, self._folder)}:{name}"] = _digest(nodes)
        scopes = [one for function in around or [] for one in _flat(function.body)]
        for node in nodes:
            self._follow(module, node, scopes)

    def _follow(self, module: _Module, node: ast.AST, scopes: list[ast.stmt]) -> None:
        """Go on to what a definition names: in itself, around it, and in its module."""
        used, imports = _used(node)
        for name, attributes in used.items():
            bound = [one for one in imports if name in set(_bound(one))]
            bound = bound or [one for one in scopes if name in set(_bound(one))]
            self._resolve(module, name, attributes, bound or module.names.get(name))

    def _resolve(
        self,
        module: _Module,
        name: str,
        attributes: set[str],
        statements: list[ast.stmt] | None,
    ) -> None:
        if statements is None:
            for star in module.stars:
                for other in self._files(module, star.module or "", star.level):
                    self._resolve_in(other, name, attributes)
            return
        imported = [one for one in statements if isinstance(one, ast.Import | ast.ImportFrom)]
        for statement in imported:
            self._import(module, statement, name, attributes)
        own: list[Any] = [one for one in statements if one not in imported]
        if own:
            self._add(module, name, own)

    def _resolve_in(self, module: _Module, name: str, attributes: set[str]) -> None:
        if name in module.names:
            self._resolve(module, name, attributes, module.names[name])

    def _import(
        self,
        module: _Module,
        statement: ast.Import | ast.ImportFrom,
        name: str,
        attributes: set[str],
    ) -> None:
        for alias in statement.names:
            if (alias.asname or alias.name.partition(".")[0]) != name:
                continue
            if isinstance(statement, ast.ImportFrom):
                base, level = statement.module or "", statement.level
                for other in self._files(module, base, level):
                    self._resolve_in(other, alias.name, attributes)
                dotted = f"{base}.{alias.name}" if base else alias.name
            else:
                dotted, level = alias.name, 0
            for other in self._files(module, dotted, level):
                for attribute in sorted(attributes):
                    self._resolve_in(other, attribute, set())

    def _files(self, module: _Module, dotted: str, level: int) -> Iterator[_Module]:
        """Yield the module of a dotted name, if it lies in the workflow's folder."""
        parts = [part for part in dotted.split(".") if part]
        if level:
            starts = [module.file.parents[level - 1]]
        else:
            starts = [self._folder, module.file.parent]
        for start in starts:
            place = start.joinpath(*parts)
            for file in (place.with_suffix(".py") if parts else None, place / "__init__.py"):
                if file is not None and file.is_relative_to(self._folder):
                    found = _module(file)
                    if found is not None:
                        yield found
                        return


def _used(node: ast.AST) -> tuple[dict[str, set[str]], list[ast.stmt]]:
    """Return the names that a definition takes from outside, and the imports within it.

    With each name come the attributes that are asked of it.
    """
    used: dict[str, set[str]] = {}
    imports: list[ast.stmt] = []
    own: set[str] = set()
    outer: set[str] = set()
    for one in _walk(node):
        if isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name):
            used.setdefault(one.value.id, set()).add(one.attr)
        elif isinstance(one, ast.Name):
            used.setdefault(one.id, set())
            if isinstance(one.ctx, ast.Store | ast.Del):
                own.add(one.id)
        elif isinstance(one, ast.arg):
            own.add(one.arg)
        elif isinstance(one, ast.Global | ast.Nonlocal):
            outer.update(one.names)
        elif isinstance(one, Defining) and one is not node:
            own.add(one.name)
        elif isinstance(one, ast.Import | ast.ImportFrom):
            imports.append(one)
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        own = set()
    return {name: used[name] for name in sorted(set(used) - (own - outer))}, imports


def _digest(nodes: list[Any]) -> str:
    text = repr([_plain(node) for node in nodes])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]


def _plain(node: Any) -> Any:
    """Return syntax as values of which the text is the same in every version of Python."""
    if isinstance(node, list):
        return [_plain(one) for one in node]
    if not isinstance(node, ast.AST):
        return repr(node)
    return (type(node).__name__, [(name, _plain(value)) for name, value in _fields(node)])


def _walk(node: Any) -> Iterator[ast.AST]:
    """Yield a node and all below it that count."""
    if isinstance(node, list):
        for one in node:
            yield from _walk(one)
    elif isinstance(node, ast.AST):
        yield node
        for _, value in _fields(node):
            yield from _walk(value)


def _fields(node: ast.AST) -> Iterator[tuple[str, Any]]:
    """Yield what counts of a node."""
    for name, value in ast.iter_fields(node):
        if name in _SKIPPED or value is None or value == []:
            continue
        if isinstance(node, ast.arg) and name == "annotation":
            continue
        if isinstance(node, Defining) and name == "decorator_list":
            yield name, [one for one in value if not _is_app(one)]
        elif isinstance(node, Defining) and name == "body":
            yield name, value[1:] if ast.get_docstring(node, clean=False) else value
        else:
            yield name, value


def _is_app(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", None)
    return name in _APPS


def _folder_of(file: Path) -> Path:
    """Return the folder that a file is part of: of the script, or of its package."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    folders = [Path(sys.argv[0]).absolute().parent] if sys.argv and sys.argv[0] else []
    folders += [Path(script).absolute().parent] if script else []
    for folder in folders:
        if file.is_relative_to(folder) and "site-packages" not in file.parts:
            return folder
    package = file.parent
    while (package / "__init__.py").is_file():
        package = package.parent
    return package


def _relative(file: Path, folder: Path) -> str:
    return file.relative_to(folder).as_posix() if file.is_relative_to(folder) else file.name


def _parts_in_memory(function: Callable[..., Any]) -> dict[str, str]:
    """Return the digests of a function without a file, and of those that it names."""
    parts: dict[str, str] = {}
    waiting: list[Any] = [function]
    while waiting and len(parts) < DEFINITIONS_MAX:
        one = waiting.pop()
        if one.__qualname__ in parts:
            continue
        try:
            node = ast.parse(textwrap.dedent(inspect.getsource(one))).body[0]
        except (OSError, TypeError, ValueError, SyntaxError, IndexError):
            continue
        parts[one.__qualname__] = _digest([node])
        names = getattr(sys.modules.get(one.__module__), "__dict__", {})
        names = getattr(one, "__globals__", names)
        for name in _used(node)[0]:
            value = names.get(name)
            if inspect.isfunction(value) or inspect.isclass(value):
                if value.__module__ == one.__module__:
                    waiting.append(value)
            elif type(value) in (bool, int, float, complex, str, bytes):
                digest = hashlib.sha256(repr(value).encode("utf-8", "surrogatepass"))
                parts[name] = digest.hexdigest()[:_DIGITS]
    return parts
