"""A training with Lightning that is killed, for `test_torch_resume.py`.

    lightning_trainer.py FOLDER LIFE ...

It dies in the middle of a step, whatever the moment is called; see `lives.py`.
"""

from __future__ import annotations

import logging
import random
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import lives
import numpy as np
import pytorch_lightning as pl
import torch
from lives import die_if, say

from ckptflow.lightning import CheckpointCallback

ROWS, BATCH, EPOCHS, EVERY = 40, 8, 4, 2  # Five steps an epoch.
nn: Any = torch.nn


class Loader:
    """Shuffled batches that know where they are; an epoch that was begun is finished."""

    def __init__(self) -> None:
        self.epoch, self.position = 0, 0

    def __len__(self) -> int:
        return ROWS // BATCH

    def __iter__(self) -> Iterator[Any]:
        if self.position == len(self):
            self.epoch, self.position = self.epoch + 1, 0
        order = np.random.default_rng([5, self.epoch]).permutation(ROWS)
        while self.position < len(self):
            self.position += 1
            rows = torch.from_numpy(order[(self.position - 1) * BATCH : self.position * BATCH])
            noise = 0.1 * torch.randn(BATCH, 6) + random.random() + np.random.rand()  # noqa: NPY002
            yield INPUTS[rows] + noise, LABELS[rows]

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.position = state["epoch"], state["position"]


class Model(pl.LightningModule):  # type: ignore[misc]
    """A classifier with everything that makes a resume inexact."""

    def __init__(self, die_at: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.4), nn.Linear(16, 3)
        )
        self.die_at = die_at

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        die_if(self.global_step == self.die_at)
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val", nn.functional.cross_entropy(self.net(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=40)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }


def train(store: str, die_at: int, _moment: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    random.seed(2)
    np.random.seed(3)  # noqa: NPY002
    model = Model(die_at)
    saves = CheckpointCallback(store, every=EVERY)
    early = pl.callbacks.EarlyStopping("val", patience=50)
    trainer = pl.Trainer(
        max_epochs=EPOCHS, accelerator="cpu", precision="bf16-mixed", callbacks=[saves, early],
        logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, val_check_interval=3,
    )  # fmt: skip
    validation = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(INPUTS, LABELS), batch_size=20
    )
    trainer.fit(model, Loader(), validation)
    told = {
        "counters": [trainer.global_step, trainer.current_epoch],
        "early": [early.wait_count, early.best_score],
        "random": [random.getstate(), torch.get_rng_state(), np.random.get_state()[1].tolist()],  # noqa: NPY002
        "model": model.state_dict(),
        "optimizer": trainer.optimizers[0].state_dict(),
    }
    say("steps", trainer.global_step)
    say("final", lives.digest(told))


if __name__ == "__main__":
    warnings.filterwarnings("ignore", module="pytorch_lightning|lightning_fabric")
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    INPUTS = torch.randn(ROWS, 6, generator=torch.Generator().manual_seed(4))
    LABELS = torch.arange(ROWS) % 3
    lives.run(train, sys.argv[1], sys.argv[2:])
