"""Results and exceptions that always survive the way back to the submitting process.

Parsl unpickles what a task returned in the one thread that serves all tasks; if that fails,
for instance because the exception's class exists on the worker only, the thread dies and
every task waits for ever. So what is not plain travels as bytes inside a parcel of ours,
which is opened on arrival: the original comes out if it can, and a `RemoteTaskError` with the
type, text and traceback if not. The side that knows what it can import decides.

Classes of the user's script are looked up by name in the script that is running there,
so ``except MyError`` works although the worker has only a copy of that class.

``tests/unit/test_portable.py`` and, on real executors, ``tests/process/test_parsl_htex.py``.
"""

from __future__ import annotations

import copyreg
import io
import pickle
import sys
import traceback
from types import FunctionType
from typing import Any, NoReturn

import dill  # type: ignore[import-untyped]
import numpy as np

from ckptflow.errors import RemoteTaskError, TaskExited

_CAUSES_MAX = 20
_TEXT_MAX = 20_000  # Characters of a traceback or message that are carried at most.
_PLAIN_TYPES = frozenset({type(None), bool, int, float, complex, str, bytes})


class ErrorParcel(Exception):
    """Carries an exception; unpickling it gives the exception itself, or what is left of it."""

    def __init__(self, blob: bytes | None, summary: RemoteTaskError) -> None:
        self.blob, self.summary = blob, summary
        super().__init__(str(summary))

    def __reduce__(self) -> tuple[Any, ...]:
        return (open_error, (self.blob, self.summary))


class ResultParcel:
    """Carries a result; unpickling it gives the result itself.

    If that cannot be done, it gives what Parsl takes for "the task raised a RemoteTaskError".
    """

    def __init__(self, blob: bytes, type_name: str, task: str) -> None:
        self.blob, self.type_name, self.task = blob, type_name, task

    def __reduce__(self) -> tuple[Any, ...]:
        return (_open_result, (self.blob, self.type_name, self.task))


def portable_result(value: object, *, task: str) -> object:
    """Return ``value``, or a parcel of it if it is not plain.

    Raises:
        RemoteTaskError: it cannot be pickled at all.
    """
    if isinstance(value, ResultParcel):
        return value  # It has come from a process behind this one.
    if type(value) in _PLAIN_TYPES or (type(value) is np.ndarray and not value.dtype.hasobject):
        return value
    try:
        blob = _pack(value)
    except Exception as error:  # noqa: BLE001  Pickling runs the user's code.
        raise RemoteTaskError(
            f"{task} returned a {_type_name(value)} that cannot be sent back: {error}. Return "
            f"plain values or arrays, or a reference to a checkpoint: ckpt.export(state).",
            type_name=_type_name(error),
        ) from None
    return ResultParcel(blob, _type_name(value), task)


def portable_error(error: BaseException, *, task: str, crosses: bool = True) -> Exception:
    """Return the exception to raise instead of ``error``, so that it arrives.

    Args:
        error: what the task raised.
        task: name of the task, for the message.
        crosses: whether it has to leave this process.
    """
    if not isinstance(error, Exception):
        return _exited(error, task)
    _cut_circle(error)
    return _parcel(error, task) if crosses else error


def raise_portable(error: BaseException, *, task: str, crosses: bool = True) -> NoReturn:
    """Raise `portable_error`, with the traceback of ``error`` and without its causes.

    Parsl would pickle causes on its own, unprotected; the parcel holds them already.
    """
    carried = portable_error(error, task=task, crosses=crosses)
    if carried is error:
        raise carried
    raise carried.with_traceback(error.__traceback__) from None


# --- by way of another process, which opens nothing ---


def sealed_result(value: object, *, task: str) -> bytes:
    """Return a result as bytes, for a process on the way; see `unsealed_result`.

    Raises:
        RemoteTaskError: it cannot be pickled at all.
    """
    portable = portable_result(value, task=task)
    if isinstance(portable, ResultParcel):
        return pickle.dumps((True, portable.blob, portable.type_name, portable.task))
    return pickle.dumps((False, portable))


def unsealed_result(data: bytes, *, here: bool) -> object:
    """Return the result that `sealed_result` made bytes of; ``here``: this is its goal.

    Raises:
        RemoteTaskError: it is, and the result cannot be rebuilt.
    """
    is_parcel, *fields = pickle.loads(data)  # noqa: S301  From our own rank.
    if not is_parcel:
        return fields[0]
    if not here:
        return ResultParcel(*fields)
    from parsl.app.errors import RemoteExceptionWrapper

    opened = _open_result(*fields)
    if isinstance(opened, RemoteExceptionWrapper):
        opened.reraise()
    return opened


def sealed_error(error: BaseException, *, task: str) -> bytes:
    """Return an exception as bytes, for a process on the way; see `unsealed_error`."""
    parcel = portable_error(error, task=task)
    if not isinstance(parcel, ErrorParcel):
        parcel = _parcel(parcel, task)
    return pickle.dumps((parcel.blob, parcel.summary))


def unsealed_error(data: bytes, *, here: bool) -> BaseException:
    """Return the exception that `sealed_error` made bytes of; ``here``: this is its goal."""
    blob, summary = pickle.loads(data)  # noqa: S301  From our own rank.
    return open_error(blob, summary) if here else ErrorParcel(blob, summary)


def _cut_circle(error: BaseException) -> None:
    """Let the causes of an exception end; Parsl follows them for ever.

    ``raise error from error`` makes a circle, and so does code that passes errors on.
    """
    seen = {id(error)}
    while (cause := error.__cause__) is not None:
        if id(cause) in seen:
            error.__cause__ = None
            return
        seen.add(id(cause))
        error = cause


def _exited(error: BaseException, task: str) -> TaskExited:
    text = f"{type(error).__name__}({error})" if str(error) else type(error).__name__
    return TaskExited(
        f"{task} left by {text} instead of returning. A task must return or raise an Exception."
    )


def _parcel(error: Exception, task: str) -> ErrorParcel:
    if isinstance(error, ErrorParcel):
        return error  # It has come from a process behind this one.
    try:
        blob = _pack(_taken_apart(error, _CAUSES_MAX))
    except Exception:  # noqa: BLE001  Pickling runs the user's code; the summary suffices.
        blob = None
    # Importing parsl.app.python makes tblib pickle every exception class that exists by then,
    # in a way that takes along what the parcel is there to protect: the context.
    copyreg.dispatch_table.pop(ErrorParcel, None)
    return ErrorParcel(blob, _summary(error, task))


def _summary(error: Exception, task: str) -> RemoteTaskError:
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    try:
        text = str(error)
    except Exception as broken:  # noqa: BLE001  The user's __str__ may fail.
        text = f"(its text cannot be made: {type(broken).__name__})"
    return RemoteTaskError(
        f"{task} raised {_type_name(error)}: {text[:_TEXT_MAX]}",
        type_name=_type_name(error),
        remote_traceback="".join(lines)[-_TEXT_MAX:],
    )


def _taken_apart(error: BaseException, causes: int) -> tuple[BaseException, Any]:
    """Return the exception and its causes; pickling an exception alone loses them."""
    cause = error.__cause__
    return error, _taken_apart(cause, causes - 1) if cause and causes else None


def _put_together(parts: tuple[BaseException, Any]) -> BaseException:
    error, cause = parts
    if not isinstance(error, BaseException):
        raise TypeError(f"a {type(error).__name__} came out where an exception went in")
    if cause is not None:
        error.__cause__ = _put_together(cause)
    return error


def open_error(blob: bytes | None, summary: RemoteTaskError) -> BaseException:
    """Return the exception of a parcel, or its summary if it cannot be rebuilt here."""
    if blob is None:
        return summary
    try:
        return _put_together(_unpack(blob))
    except Exception as error:  # noqa: BLE001  Unpickling runs the user's code, if it is there.
        summary.add_note(f"It could not be rebuilt here: {type(error).__name__}: {error}")
        return summary


def _open_result(blob: bytes, type_name: str, task: str) -> object:
    from parsl.app.errors import RemoteExceptionWrapper  # Who opens results has it already.

    try:
        return _unpack(blob)
    except Exception as error:  # noqa: BLE001  Unpickling runs the user's code, if it is there.
        failure = RemoteTaskError(
            f"{task} returned a {type_name} that cannot be rebuilt by the submitting process: "
            f"{type(error).__name__}: {error}. Install the module that defines it there too, "
            f"or return plain values.",
            type_name=type_name,
        )
        return RemoteExceptionWrapper(RemoteTaskError, failure, None)


def _type_name(thing: object) -> str:
    kind = type(thing)
    return (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )


class _ByName(pickle.Pickler):
    """Writes what the user's script defines as a name, to be looked up in the script."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type | FunctionType) and obj.__module__ == "__main__":
            if (
                "<" in obj.__qualname__
            ):  # A lambda, or defined in a function: no name leads to it.
                return NotImplemented
            return _of_script, (obj.__qualname__,)
        return NotImplemented


def _of_script(qualname: str) -> Any:
    found: Any = sys.modules["__main__"]
    for name in qualname.split("."):
        found = getattr(found, name)
    return found


def _pack(value: object) -> bytes:
    buffer = io.BytesIO()
    try:
        _ByName(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    except (pickle.PicklingError, AttributeError, TypeError):
        return bytes(
            dill.dumps(value)
        )  # Lambdas, closures and the like, as Parsl itself would.
    return buffer.getvalue()


def _unpack(blob: bytes) -> Any:
    return dill.loads(blob)  # noqa: S301  From our own worker, as all of Parsl's messages are.
