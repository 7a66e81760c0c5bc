"""A code that knows nothing of ckptflow: computes, and writes restart files of its own.

Each step changes a state of a few kilobytes. Every few steps it writes a restart file, in one
of the ways of real codes: in pieces straight to its final name, or under another name that is
then renamed, or always over the same file. It appends to a log, which it cuts to the length
that the restart file tells when it goes on from one. With ``--check`` it says whether a
file is sound. Uses nothing but the standard library, so that it starts at once.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import struct
import sys
import time
from pathlib import Path

MAGIC, END = b"code 1\n", b"the end\n"
WORDS = 1024
MASK = (1 << 64) - 1


def restart_bytes(step: int, state: list[int], log_bytes: int) -> bytes:
    body = MAGIC + struct.pack("<qq", step, log_bytes) + struct.pack(f"<{WORDS}Q", *state)
    return body + hashlib.sha256(body).digest() + END


def read_restart(path: str) -> tuple[int, list[int], int]:
    data = Path(path).read_bytes()
    body, seal = data[: -32 - len(END)], data[-32 - len(END) :]
    digest, end = seal[:32], seal[32:]
    if not data.startswith(MAGIC) or end != END or hashlib.sha256(body).digest() != digest:
        raise SystemExit(f"{path} ({len(data)} bytes) is broken")
    step, log_bytes = struct.unpack_from("<qq", body, len(MAGIC))
    return step, list(struct.unpack_from(f"<{WORDS}Q", body, len(MAGIC) + 16)), log_bytes


def advance(state: list[int], step: int) -> None:
    for i in range(0, WORDS, 16):
        state[i] = (state[i] * 6364136223846793005 + state[i - 16] + step) & MASK


def write(options: argparse.Namespace, step: int, data: bytes) -> None:
    name = options.name.replace("STEP", str(step))
    goal = f"{name}.part" if options.rename else name
    flags = os.O_WRONLY | os.O_CREAT | (0 if options.in_place else os.O_TRUNC)
    descriptor = os.open(goal, flags, 0o644)
    first = not Path("died").exists()
    for begin in range(0, len(data), options.piece):
        piece = data[begin : begin + options.piece]
        if first and options.die_at == step and begin + len(piece) >= options.die_bytes:
            os.write(descriptor, piece[: max(0, options.die_bytes - begin)])
            Path("died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        os.write(descriptor, piece)
        time.sleep(options.pause)
    os.close(descriptor)
    if options.rename:
        if options.keep_previous and Path(name).exists():
            Path(name).rename(f"{name}.previous")
        Path(goal).rename(name)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--check")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--name", default="restart.STEP")
    parser.add_argument("--piece", type=int, default=4096)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--step-s", type=float, default=0.0)
    parser.add_argument("--rename", action="store_true")
    parser.add_argument("--keep-previous", action="store_true")
    parser.add_argument("--in-place", action="store_true")
    parser.add_argument("--stop-file", default="")
    parser.add_argument("--stop-signal", action="store_true")
    parser.add_argument("--die-at", type=int, default=-1)
    parser.add_argument("--die-bytes", type=int, default=0)
    parser.add_argument("--wait-at", type=int, default=-1)
    parser.add_argument("--wait-for", default="go")
    parser.add_argument("--log", default="log")
    parser.add_argument("-r", dest="restart")
    options = parser.parse_args()
    if options.check:
        read_restart(options.check)
        return
    told: list[int] = []
    if options.stop_signal:
        signal.signal(signal.SIGUSR1, lambda *_: told.append(1))
    step, state, log_bytes = 0, list(range(WORDS)), 0
    if options.restart:
        step, state, log_bytes = read_restart(options.restart)
        assert Path(options.log).stat().st_size >= log_bytes, "the log has lost what it had"
        os.truncate(options.log, log_bytes)
    with Path(options.log).open("ab", buffering=0) as log:
        sys.stdout.write(f"from {step}\n")
        sys.stdout.flush()
        while step < options.steps:
            step += 1
            advance(state, step)
            time.sleep(options.step_s)
            log.write(f"{step} {state[0]:x}\n".encode())
            while step == options.wait_at and not Path(options.wait_for).exists():
                time.sleep(0.01)
            stop = bool(told) or (options.stop_file and Path(options.stop_file).exists())
            if step % options.every == 0 or step == options.steps or stop:
                write(options, step, restart_bytes(step, state, log.tell()))
            if stop:
                sys.stdout.write(f"stopped at {step}\n")
                return
    Path("final").write_bytes(restart_bytes(step, state, Path(options.log).stat().st_size))


if __name__ == "__main__":
    main()
