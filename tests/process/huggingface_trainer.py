"""A training with the Trainer of Hugging Face that is killed, for `test_torch_resume.py`.

    huggingface_trainer.py FOLDER LIFE ...

It dies in the middle of a step, whatever the moment is called; see `lives.py`.
"""

from __future__ import annotations

import random
import sys
import warnings
from typing import Any

import lives
import numpy as np
import torch
import transformers
from lives import die_if, say

from ckptflow.huggingface import CheckpointCallback

ROWS, BATCH, EPOCHS, EVERY = 40, 8, 4, 2  # Five steps an epoch.
nn: Any = torch.nn


class Data(torch.utils.data.Dataset):  # type: ignore[misc]
    """Points of three classes."""

    def __init__(self) -> None:
        self.x = torch.randn(ROWS, 6, generator=torch.Generator().manual_seed(4))

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {"x": self.x[row], "labels": row % 3}


class Model(nn.Module):  # type: ignore[misc]
    """A classifier that adds noise of all generators to what it sees."""

    def __init__(self, die_at: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.4), nn.Linear(16, 3)
        )
        self.calls, self.die_at = 0, die_at

    def forward(self, x: Any, labels: Any = None) -> Any:
        if self.training:
            x = x + 0.1 * torch.randn(x.shape) + random.random() + np.random.rand()  # noqa: NPY002
        out = self.net(x)
        return {"loss": nn.functional.cross_entropy(out, labels), "logits": out}


class Death(transformers.TrainerCallback):  # type: ignore[misc]
    """Kills the process in the middle of a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        die_if(state.global_step == self.step)


def train(store: str, die_at: int, _moment: str) -> None:
    torch.set_num_threads(1)
    arguments = transformers.TrainingArguments(
        output_dir=f"{store}-out", num_train_epochs=EPOCHS, per_device_train_batch_size=BATCH,
        learning_rate=0.02, bf16=True, use_cpu=True, report_to=[], save_strategy="no",
        disable_tqdm=True, eval_strategy="steps", eval_steps=3, logging_steps=4, seed=7,
        lr_scheduler_type="cosine", metric_for_best_model="loss",
    )  # fmt: skip
    transformers.set_seed(7)
    trainer = transformers.Trainer(
        model=Model(die_at), args=arguments, train_dataset=Data(), eval_dataset=Data(),
        callbacks=[Death(die_at), transformers.EarlyStoppingCallback(50)],
    )  # fmt: skip
    saves = CheckpointCallback(store, every=EVERY)
    trainer.train(resume_from_checkpoint=saves.attach(trainer))
    told = {
        "counters": [trainer.state.global_step, trainer.state.epoch],
        "random": [random.getstate(), torch.get_rng_state(), np.random.get_state()[1].tolist()],  # noqa: NPY002
        "model": trainer.model.state_dict(),
        "optimizer": trainer.optimizer.state_dict(),
        "schedule": trainer.lr_scheduler.state_dict(),
    }
    say("steps", trainer.state.global_step)
    say("final", lives.digest(told))


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    lives.run(train, sys.argv[1], sys.argv[2:])
