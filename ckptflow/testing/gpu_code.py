"""Compile the GPU kernels without a GPU, and read what came out.

NVRTC and nvdisasm come as wheels (``nvidia-cuda-nvrtc-cu12``, ``nvidia-cuda-nvdisasm``, in
the extra ``dev``) and need no driver. ``tests/gpu_emulated/test_gpu_code.py`` holds every
kernel to what it has to be, and ``bench/gpu.py`` prints the numbers.
"""

from __future__ import annotations

import ctypes
import re
import struct
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from ckptflow.gpu import plan
from ckptflow.gpu.plan import Shape

_IN_FLIGHT = 2  # CK_ILP of the kernels
ARCHITECTURES = (70, 75, 80, 86, 89, 90, 100, 103, 120)


class NotHere(Exception):
    """A wheel that is needed is not installed; the message names it."""


class DoesNotCompile(Exception):
    """What the compiler had to say."""


@dataclass(frozen=True, slots=True)
class Loop:
    """What one turn of a loop has, with all loops inside counted once."""

    instructions: int
    loads: int  # of 16 bytes from global memory
    multiplications: int  # 32 x 32 -> 64 bits, with addition


@dataclass(frozen=True, slots=True)
class Code:
    """The machine code of one kernel."""

    kernel: str
    registers: int
    stack_bytes: int
    instructions: int
    spills: int  # instructions that use local memory
    wide_loads: int  # of 16 bytes from global memory
    loops: tuple[Loop, ...]  # the innermost one that reads most, and those around it


def compile_kernels(shape: Shape, architecture: int) -> bytes:
    """Return the binary for one architecture, 90 for ``sm_90``.

    Raises:
        NotHere: NVRTC is not installed.
        DoesNotCompile: with the compiler's messages.
    """
    library = _nvrtc()
    program = ctypes.c_void_p()
    source = plan.source().encode()
    _require(
        library.nvrtcCreateProgram(
            ctypes.byref(program), source, b"kernels.cu", 0, None, None
        )
    )  # fmt: skip
    try:
        options = [*plan.options(shape), f"--gpu-architecture=sm_{architecture}"]
        texts = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        if library.nvrtcCompileProgram(program, len(options), texts):
            log = _result(library.nvrtcGetProgramLogSize, library.nvrtcGetProgramLog, program)
            raise DoesNotCompile(log.rstrip(b"\0").decode(errors="replace"))
        return _result(library.nvrtcGetCUBINSize, library.nvrtcGetCUBIN, program)
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def read_code(binary: bytes) -> dict[str, Code]:
    """Return the code of every kernel in a binary.

    Raises:
        NotHere: nvdisasm is not installed.
    """
    registers = _attribute(binary, _REGISTER_COUNT)
    stack_bytes = _attribute(binary, _FRAME_SIZE)
    text = _disassemble(binary)
    sections = re.split(r"^\t\.section\t\.text\.(\w+),.*$", text, flags=re.MULTILINE)[1:]
    return {
        kernel: _code(kernel, registers[kernel], stack_bytes[kernel], listing)
        for kernel, listing in zip(sections[::2], sections[1::2], strict=True)
    }


def instructions_per_byte(code: Code, message_bytes: int) -> float:
    """Return how many instructions a lane issues for each byte it digests, everything included.

    ``code`` is of ``ck_scan_chunks`` or ``ck_scan_cells``: loops over units of 16 bytes, over
    blocks of 1024 bytes if there are several, over messages. A short loop is unrolled.
    """
    lanes = 8 if message_bytes >= 1024 else 4 if message_bytes >= 512 else 2
    blocks = -(-message_bytes // 1024)
    read_bytes = _IN_FLIGHT * message_bytes / lanes  # by a lane, in a turn of the outer loop
    inner = code.loops[0]
    total = float(inner.instructions)
    if 16 * inner.loads < read_bytes:
        turns = [read_bytes / blocks / (16 * inner.loads), *([blocks] if blocks > 1 else [])]
        for count, inside, outside in zip(turns, code.loops, code.loops[1:], strict=False):
            total = count * total + outside.instructions - inside.instructions
    return total / read_bytes


# --- the compiler --------------------------------------------------------------------------


@cache
def _nvrtc() -> ctypes.CDLL:
    folder = _wheel("nvidia.cuda_nvrtc", "nvidia-cuda-nvrtc-cu12")
    found = sorted((folder / "lib").glob("libnvrtc.so.*"))
    if not found:
        raise NotHere(f"nvidia-cuda-nvrtc-cu12 in {folder} has no library for this system")
    return ctypes.CDLL(str(found[0]))


def _wheel(module: str, name: str) -> Path:
    try:
        spec = find_spec(module)
    except ModuleNotFoundError:  # Not even the package around it.
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise NotHere(f"{name} is not installed: pip install 'ckptflow[dev]'")
    return Path(next(iter(spec.submodule_search_locations)))


def _require(status: int) -> None:
    if status:
        raise DoesNotCompile(f"NVRTC failed with status {status}.")


def _result(size: Callable[..., int], get: Callable[..., int], program: object) -> bytes:
    count = ctypes.c_size_t()
    _require(size(program, ctypes.byref(count)))
    buffer = ctypes.create_string_buffer(count.value)
    _require(get(program, buffer))
    return buffer.raw


# --- the code ------------------------------------------------------------------------------


def _disassemble(binary: bytes) -> str:
    folder = _wheel("nvidia.cu13", "nvidia-cuda-nvdisasm")
    program = folder / "bin" / "nvdisasm"
    if not program.exists():
        raise NotHere(f"nvidia-cuda-nvdisasm in {folder} has no program for this system")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        result = subprocess.run(
            [str(program), "-c", file.name], capture_output=True, text=True, check=True
        )
    return result.stdout


_FRAME_SIZE, _REGISTER_COUNT = 0x11, 0x2F  # attributes in the section .nv.info


def _attribute(binary: bytes, attribute: int) -> dict[str, int]:
    """Return one attribute of every function, by its name, from the ELF."""
    sections = _sections(binary)
    info, symbols, names = (sections[name] for name in (".nv.info", ".symtab", ".strtab"))
    found = {}
    at = 0
    while at < len(info):
        form, kind, size = struct.unpack_from("<BBH", info, at)
        if form != 4:  # The value is in the place of its size.
            at += 4
            continue
        if kind == attribute:
            symbol, value = struct.unpack_from("<II", info, at + 4)
            found[_text(names, struct.unpack_from("<I", symbols, 24 * symbol)[0])] = value
        at += 4 + size
    return found


def _sections(binary: bytes) -> dict[str, bytes]:
    first = struct.unpack_from("<Q", binary, 0x28)[0]
    size, count, names_index = struct.unpack_from("<HHH", binary, 0x3A)
    headers = [
        struct.unpack_from("<IIQQQQ", binary, first + number * size) for number in range(count)
    ]
    names = binary[headers[names_index][4] :]
    return {
        _text(names, header[0]): binary[header[4] : header[4] + header[5]] for header in headers
    }


def _text(strings: bytes, start: int) -> str:
    return strings[start : strings.index(b"\0", start)].decode()


_WIDE_LOAD = r"\bLDG\.\S*128"
_INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(.*?);?\s*(?:/\*.*)?$")


def _code(kernel: str, registers: int, stack_bytes: int, listing: str) -> Code:
    instructions: list[str] = []
    labels: dict[str, int] = {}
    for line in listing.splitlines():
        if label := re.match(r"^(\.L_\w+):", line):
            labels[label[1]] = len(instructions)
        elif found := _INSTRUCTION.search(line):
            instructions.append(found[2])
    return Code(
        kernel,
        registers,
        stack_bytes,
        len(instructions),
        _count(instructions, r"\b(LDL|STL)\b"),
        _count(instructions, _WIDE_LOAD),
        _loops(instructions, labels),
    )


def _loops(instructions: list[str], labels: dict[str, int]) -> tuple[Loop, ...]:
    spans = []
    for end, instruction in enumerate(instructions):
        target = re.search(r"\bBRA\b.*`\((\.L_\w+)\)", instruction)
        start = labels.get(target[1], end) if target else end
        if start < end:
            spans.append((start, end + 1))

    def contains(outer: tuple[int, int], inner: tuple[int, int]) -> bool:
        return outer != inner and outer[0] <= inner[0] and inner[1] <= outer[1]

    def loop(span: tuple[int, int]) -> Loop:
        body = instructions[slice(*span)]
        return Loop(len(body), _count(body, _WIDE_LOAD), _count(body, r"\bIMAD\.WIDE"))

    innermost = [a for a in spans if not any(contains(a, b) for b in spans)]
    best = max(innermost, key=lambda span: loop(span).loads, default=None)
    if best is None or not loop(best).loads:
        return ()
    around = sorted((span for span in spans if contains(span, best)), key=lambda s: s[1] - s[0])
    return tuple(loop(span) for span in (best, *around))


def _count(instructions: list[str], pattern: str) -> int:
    return sum(re.search(pattern, instruction) is not None for instruction in instructions)
