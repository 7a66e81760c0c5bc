"""A training on a device that is killed ends in the bits of one that was not.

The program is that of ``tests/process/test_torch_resume.py``; also, every optimizer's state
comes back to the device, and in the type, that it had.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ckptflow import Checkpointer, MemoryTier

torch: Any = pytest.importorskip("torch", reason="the extra 'torch' is not installed")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]


def test_killed_at_several_steps_it_ends_in_the_same_bits(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # Deterministic sums.
    monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # A look that forks survive.
    program = repository / "tests" / "process" / "torch_trainer.py"
    deaths = "1:update,7:backward,9:saved,14:batch,20:update"
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path), "cuda", "", deaths],
        capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    words = [line.split() for line in done.stdout.splitlines()]
    assert [int(word[1]) for word in words if word[0] == "signal"] == [0, *[9] * 5, 0]
    undisturbed, killed = [word[1] for word in words if word[0] == "final"]
    assert killed == undisturbed


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "adamw": torch.optim.AdamW,
    "adamw-capturable": lambda p: torch.optim.AdamW(p, capturable=True),
    "adamw-foreach": lambda p: torch.optim.AdamW(p, foreach=True),
    "adamw-fused": lambda p: torch.optim.AdamW(p, fused=True),
    "nadam": torch.optim.NAdam,
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_state_keeps_its_device_and_type(name: str) -> None:
    def make() -> dict[str, Any]:
        model = torch.nn.Linear(4, 3, device="cuda", dtype=torch.bfloat16)
        return {"model": model, "optim": OPTIMIZERS[name](model.parameters())}

    def advance(objects: dict[str, Any]) -> None:
        objects["optim"].zero_grad()
        objects["model"](torch.ones(4, device="cuda", dtype=torch.bfloat16)).sum().backward()
        objects["optim"].step()

    def states(objects: dict[str, Any]) -> list[tuple[Any, ...]]:
        return [
            (name, value.dtype, str(value.device), tuple(value.shape), value.cpu().tolist())
            for state in objects["optim"].state.values()
            for name, value in state.items()
        ]

    tier, old, new = MemoryTier(), make(), make()
    advance(old)
    with Checkpointer(tier, **old) as ckpt:
        ckpt.save(0)
    with Checkpointer(tier, **new) as ckpt:
        ckpt.resume()
    assert states(new) == states(old)
    advance(old)
    advance(new)
    assert states(new) == states(old)
