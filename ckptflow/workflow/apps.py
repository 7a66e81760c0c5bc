"""The decorators: Parsl's names and arguments, and what checkpointing adds.

    @ckptflow.python_app(key=("seed",), every="120s", keep=3)
    def train(seed, steps, ckpt): ...

One decorator does it all, so that the order of two cannot be wrong. The function receives the
task's `Checkpointer` as ``ckpt`` if it has a parameter of that name. Two defaults differ from
Parsl's: results are remembered (``cache=True``), because a rerun has to find them; and a
function of the script may use what the script defines, which Parsl does not send along.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, Unpack, overload

from parsl.app.bash import BashApp
from parsl.app.errors import wrap_error
from parsl.app.python import PythonApp

from ckptflow.checkpointer.sharded import Replicated
from ckptflow.errors import ConfigError
from ckptflow.policy.capture import Capture, parse_capture
from ckptflow.policy.interval import parse_interval
from ckptflow.policy.progress import Interval
from ckptflow.policy.retention import Keep, retention_by_tier
from ckptflow.site.executor import RankLauncher
from ckptflow.store.packing import Packing, parse_packing
from ckptflow.store.sharding.search import PerRank
from ckptflow.workflow.active import current_run
from ckptflow.workflow.attaching import attach
from ckptflow.workflow.attempt import TaskFunction
from ckptflow.workflow.command import TaskCommand
from ckptflow.workflow.external import CodeOptions, parse_code
from ckptflow.workflow.identity import CKPT, identity_of
from ckptflow.workflow.input_files import checked_files_by, files_of
from ckptflow.workflow.ranks.launch import RankedCommand, RankedFunction
from ckptflow.workflow.ranks.options import parse_ranks

if TYPE_CHECKING:
    from parsl.dataflow.dflow import DataFlowKernel
    from parsl.dataflow.futures import AppFuture

__all__ = ["App", "attach", "bash_app", "python_app"]

Executors = Sequence[str] | Literal["all"]


class Options(TypedDict, total=False):
    """What an app may say of its tasks, beside what Parsl asks for.

    Attributes:
        key: parameters that tell the tasks apart; all arguments if not given. ``()`` makes all
            calls one task.
        every: when ``ckpt.step`` saves: ``100``, ``"120s"``, ``"overhead<=3.5%"``, ...
        keep: which checkpoints to keep: ``3``, ``"newest=3,best=loss:min"``, ``"all"``, ...
        packing: how to store them: ``"auto"``, ``"small"``, ...
        capture: what a save copies: ``"auto"``, ``"copy"``, ``"diff-first"``, ``"lazy"``.
        policy: name of a policy in the site file, for what is not said here.
        ranks: how many processes a task runs on, which save together: all of them call the
            function (of a bash app, its command starts them).
        nodes: on how many nodes they are; each has as many. One if not given.
        launcher: what starts them: ``"processes"``, ``"srun"``, ``"mpiexec"``; what the site
            says if not given.
        replicated: which leaves are alike on all ranks, see `ShardedCheckpointer`.
        per_rank: whose own leaves a rank gets when their number has changed.
        version: a text; results and checkpoints of another version are not used. ``"auto"`` is
            a digest of the function's code, and of what that uses of the workflow's files.
        files: parameters whose texts and paths name input files; a `parsl.File` is one anyway.
        files_by: what of an input file counts: its ``"content"``, or its ``"name"`` only.
    """

    key: Sequence[str] | str | None
    every: str | int | Interval | None
    keep: Keep
    packing: str | Packing | None
    capture: Capture
    policy: str | None
    ranks: int | None
    nodes: int | None
    launcher: RankLauncher | None
    replicated: Replicated
    per_rank: PerRank
    version: str | None
    files: Sequence[str] | str
    files_by: Literal["content", "name"]


class BashOptions(Options, CodeOptions):
    """What a bash app may say: `Options`, and `CodeOptions` of files that its code writes."""


class Decorator(Protocol):
    """What a decorator called with arguments returns."""

    def __call__(self, function: Callable[..., Any]) -> App:
        """Make an app of ``function``."""
        ...


class App:
    """A function that runs as a task of the current run when it is called.

    Attributes:
        function: the function as the worker calls it.
        every: when to save, if the app says so.
        keep: what to keep, if the app says so.
        packing: how to store it, if the app says so.
        capture: what a save copies, if the app says so.
        policy: name of a policy of the site, if the app names one.
        parsl: the app as Parsl knows it.
        ranks: how many ranks its tasks have; ``None``: each is one process.
        code: what it says of restart files that its command writes by itself, if it does.
        version: its version, if it has one.
        files: parameters that name input files.
        files_by: what of an input file counts.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        kind: type[TaskFunction],
        data_flow_kernel: DataFlowKernel | None = None,
        cache: bool = True,
        executors: Executors = "all",
        ignore_for_cache: Sequence[str] | None = None,
        **options: Unpack[BashOptions],
    ) -> None:
        if not inspect.isfunction(function):
            raise ConfigError(f"An app is made of a function, not of {function!r}.")
        known = BashOptions if kind is TaskCommand else Options
        if unknown := sorted(set(options) - known.__annotations__.keys()):
            names = ", ".join(known.__annotations__)
            raise TypeError(f"An app has no {unknown[0]}=; beside Parsl's it has {names}.")
        self.every, self.keep = options.get("every"), options.get("keep")
        self.packing, self.capture = options.get("packing"), options.get("capture")
        self.policy, self.version = options.get("policy"), options.get("version")
        self.files = files_of(function, options.get("files", ()))
        self.files_by = checked_files_by(options.get("files_by", "content"))
        if self.version is not None and (not self.version or type(self.version) is not str):
            raise ConfigError(f"version= is a text that is not empty, not {self.version!r}.")
        parse_interval(self.every)
        retention_by_tier(self.keep, None)
        parse_packing(self.packing)
        parse_capture(self.capture)
        functools.update_wrapper(self, function)
        is_command = kind is TaskCommand
        self.ranks = parse_ranks(function.__name__, options, is_command=is_command)
        if self.ranks is not None:
            kind = RankedCommand if is_command else RankedFunction
        self.function = kind(function, identity_of(function, options.get("key")))
        self._function = function
        self._made: dict[str, Any] = {
            "kind": TaskCommand if is_command else TaskFunction,
            "data_flow_kernel": data_flow_kernel,
            "cache": cache,
            "executors": executors,
            "ignore_for_cache": ignore_for_cache,
            **options,
        }
        self.code = parse_code(options, every=self.every)
        self._check_code()
        parsl_options: dict[str, Any] = {
            "data_flow_kernel": data_flow_kernel,
            "cache": cache,
            "executors": executors if isinstance(executors, str) else list(executors),
            "ignore_for_cache": [*(ignore_for_cache or ()), CKPT],
        }
        if is_command:
            self.parsl = BashApp(function, **parsl_options)
            # Parsl runs the command around the function; ours does so, within an attempt.
            self.parsl.wrapped_remote_function = wrap_error(self.function)
        else:
            self.parsl = PythonApp(self.function, **parsl_options)

    def _check_code(self) -> None:
        if self.code is None:
            return
        if self.ranks is not None:
            raise ConfigError(
                f"{self.function.name}() has watch=, and ranks= or nodes= as well. A code that "
                f"writes its own restart files is started by its own command, with mpiexec or "
                f"srun in it; leave the latter out."
            )
        if not self.function.wants_checkpointer:
            raise ConfigError(
                f"{self.function.name}() has watch=, so it needs a parameter {CKPT!r}: "
                f"{CKPT}.restart_arg('-r {{path}}') says where its command goes on."
            )

    def __repr__(self) -> str:
        return f"<ckptflow app {self.function.name}>"

    def on(self, **options: Unpack[Options]) -> App:
        """Return this app with other options, as ``train.on(nodes=1, ranks=2)(seed=3)``.

        Its tasks are the same ones: they are told apart by their arguments only.

        Raises:
            ConfigError: an option makes no sense.
        """
        return App(self._function, **{**self._made, **options})

    def __call__(self, *args: Any, **kwargs: Any) -> AppFuture:
        """Submit a task; arguments may be futures, as with Parsl.

        Raises:
            ConfigError: there is no run, ``ckpt`` was given, or the site has no place for the
                ranks of this app. Nothing was started.
        """
        if CKPT in kwargs:
            raise ConfigError(
                f"{self.function.name}() gets `ckpt` from ckptflow; leave it out."
            )
        return current_run(self.function.name).submit(self, *args, **kwargs)


@overload
def python_app(function: Callable[..., Any]) -> App: ...


@overload
def python_app(
    function: None = None,
    data_flow_kernel: DataFlowKernel | None = None,
    cache: bool = True,  # noqa: FBT001, FBT002  As in Parsl.
    executors: Executors = "all",
    ignore_for_cache: Sequence[str] | None = None,
    **options: Unpack[Options],
) -> Decorator: ...


def python_app(
    function: Callable[..., Any] | None = None,
    data_flow_kernel: DataFlowKernel | None = None,
    cache: bool = True,  # noqa: FBT001, FBT002  As in Parsl.
    executors: Executors = "all",
    ignore_for_cache: Sequence[str] | None = None,
    **options: Unpack[Options],
) -> App | Decorator:
    """Make a function an app whose tasks checkpoint, like ``parsl.python_app``.

    Args:
        function: the function, when the decorator is used without parentheses.
        data_flow_kernel: as in Parsl.
        cache: remember results, so that a rerun does not compute them again.
        executors: as in Parsl.
        ignore_for_cache: as in Parsl.
        **options: see `Options`.

    Raises:
        ConfigError: an argument makes no sense.
    """
    return _decorate(
        function,
        kind=TaskFunction,
        data_flow_kernel=data_flow_kernel,
        cache=cache,
        executors=executors,
        ignore_for_cache=ignore_for_cache,
        **options,
    )


@overload
def bash_app(function: Callable[..., Any]) -> App: ...


@overload
def bash_app(
    function: None = None,
    data_flow_kernel: DataFlowKernel | None = None,
    cache: bool = True,  # noqa: FBT001, FBT002  As in Parsl.
    executors: Executors = "all",
    ignore_for_cache: Sequence[str] | None = None,
    **options: Unpack[BashOptions],
) -> Decorator: ...


def bash_app(
    function: Callable[..., Any] | None = None,
    data_flow_kernel: DataFlowKernel | None = None,
    cache: bool = True,  # noqa: FBT001, FBT002  As in Parsl.
    executors: Executors = "all",
    ignore_for_cache: Sequence[str] | None = None,
    **options: Unpack[BashOptions],
) -> App | Decorator:
    """Make a function that returns a command line an app, like ``parsl.bash_app``.

    If the function has a parameter ``ckpt``, the command runs within an attempt, and Python
    programs in it can `attach` themselves. The arguments are those of `python_app`.

    With ``watch=``, files that the command writes by itself are its checkpoints: they are taken
    in, and put back before the next attempt. ``ckpt`` is a `CodeTask` then, which says where to
    go on; see `CodeOptions`.

    Raises:
        ConfigError: an argument makes no sense.
    """
    return _decorate(
        function,
        kind=TaskCommand,
        data_flow_kernel=data_flow_kernel,
        cache=cache,
        executors=executors,
        ignore_for_cache=ignore_for_cache,
        **options,
    )


def _decorate(function: Callable[..., Any] | None, **options: Any) -> App | Decorator:
    if function is not None:
        return App(function, **options)

    def decorator(function: Callable[..., Any]) -> App:
        return App(function, **options)

    return decorator
