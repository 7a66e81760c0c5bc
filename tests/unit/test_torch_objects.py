"""Every optimizer, scheduler, scaler and kind of module of torch goes on in the same bits.

Method: train some steps, save, train on; a fresh set of objects resumes and trains as many
steps; then every tensor and number of both is compared, with its type, shape and device.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest

from ckptflow import Checkpointer, MemoryTier
from ckptflow.errors import StateError

torch: Any = pytest.importorskip("torch", reason="the extra 'torch' is not installed")
nn: Any = torch.nn
lr_scheduler: Any = torch.optim.lr_scheduler

Objects = dict[str, Any]


def pieces(value: Any, path: str = "") -> list[tuple[Any, ...]]:
    """Return every leaf of a tree of containers, bit by bit."""
    if isinstance(value, dict):
        return [
            piece for key, item in value.items() for piece in pieces(item, f"{path}/{key!r}")
        ]
    if isinstance(value, list | tuple):
        found = [piece for i, item in enumerate(value) for piece in pieces(item, f"{path}/{i}")]
        return [(path, type(value).__name__, len(value)), *found]
    if isinstance(value, torch.Tensor):
        raw = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return [(path, str(value.dtype), str(value.device), tuple(value.shape), raw)]
    if isinstance(value, float):
        return [(path, "float", struct.pack("<d", value))]
    return [(path, type(value).__name__, repr(value))]


def all_pieces(objects: Objects) -> list[tuple[Any, ...]]:
    return pieces({name: thing.state_dict() for name, thing in objects.items()})


def goes_on(
    make: Callable[[], Objects], advance: Callable[[Objects], None], before: int = 3
) -> Objects:
    """Check that what is saved after some steps goes on in a fresh set of objects."""
    torch.manual_seed(1)
    tier, objects = MemoryTier(), make()
    for _ in range(before):
        advance(objects)
    with Checkpointer(tier, **objects) as ckpt:
        ckpt.save(before)
    saved = all_pieces(objects)
    for _ in range(3):
        advance(objects)
    torch.manual_seed(2)
    fresh = make()
    with Checkpointer(tier, **fresh) as ckpt:
        assert ckpt.resume() == before + 1
    assert all_pieces(fresh) == saved
    for _ in range(3):
        advance(fresh)
    assert all_pieces(fresh) == all_pieces(objects)
    return fresh


def net(dtype: Any = torch.float32) -> Any:
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Dropout(0.3), nn.Linear(3, 2)).to(dtype)


def descend(objects: Objects) -> None:
    """One step of whatever model and optimizer there are, and of what else is there."""
    model, optim = objects["model"], objects["optim"]
    dtype = next(iter(model.parameters())).dtype
    x = torch.randn(8, 4, dtype=dtype)

    def loss() -> Any:
        optim.zero_grad()
        out = model(x)
        value = (out.abs() ** 2).sum()
        value.backward()
        return value

    value = loss()
    if isinstance(optim, torch.optim.LBFGS):
        optim.step(loss)
    else:
        optim.step()
    if isinstance(sched := objects.get("sched"), lr_scheduler.ReduceLROnPlateau):
        sched.step(value.item())
    elif sched is not None:
        sched.step()
    if ema := objects.get("ema"):
        ema.update_parameters(model)


# --- optimizers ----------------------------------------------------------------------------

OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "adadelta": torch.optim.Adadelta,
    "adafactor": torch.optim.Adafactor,
    "adagrad": torch.optim.Adagrad,
    "adagrad-fused": lambda p: torch.optim.Adagrad(p, fused=True),
    "adam": torch.optim.Adam,
    "adam-amsgrad": lambda p: torch.optim.Adam(p, amsgrad=True),
    "adam-tensor-lr": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01)),
    "adamax": torch.optim.Adamax,
    "adamw-foreach": lambda p: torch.optim.AdamW(p, foreach=True),
    "adamw-fused": lambda p: torch.optim.AdamW(p, fused=True),
    "asgd": torch.optim.ASGD,
    "lbfgs": lambda p: torch.optim.LBFGS(p, max_iter=3, history_size=4),
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "rmsprop": lambda p: torch.optim.RMSprop(p, momentum=0.9, centered=True),
    "rprop": torch.optim.Rprop,
    "sgd": torch.optim.SGD,
    "sgd-momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True),
}


def with_optimizer(name: str, dtype: Any) -> Callable[[], Objects]:
    def make() -> Objects:
        model = net(dtype)
        return {"model": model, "optim": OPTIMIZERS[name](model.parameters())}

    return make


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name: str, dtype: Any) -> None:
    goes_on(with_optimizer(name, dtype), descend)


def test_all_optimizers_of_torch_are_tried() -> None:
    known = {
        name.lower()
        for name in torch.optim.__all__
        if isinstance(getattr(torch.optim, name), type) and name != "Optimizer"
    }
    apart = {"muon", "sparseadam"}
    assert known - {name.split("-")[0] for name in OPTIMIZERS} <= apart


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
def test_muon() -> None:
    def make() -> Objects:
        model = nn.Sequential(nn.Linear(4, 3, bias=False), nn.Linear(3, 2, bias=False))
        return {"model": model, "optim": torch.optim.Muon(model.parameters())}

    goes_on(make, descend)


def test_sparse_gradients() -> None:
    def make() -> Objects:
        model = nn.Embedding(10, 3, sparse=True)
        return {"model": model, "optim": torch.optim.SparseAdam(model.parameters())}

    def advance(objects: Objects) -> None:
        objects["optim"].zero_grad()
        (objects["model"](torch.randint(10, (4,))) ** 2).sum().backward()
        objects["optim"].step()

    goes_on(make, advance)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float64], ids=str)
def test_other_types_of_parameters(dtype: Any) -> None:
    def make() -> Objects:
        model = nn.Sequential(nn.Linear(4, 3, dtype=dtype), nn.Linear(3, 2, dtype=dtype))
        return {"model": model, "optim": torch.optim.AdamW(model.parameters())}

    goes_on(make, descend)


def test_an_optimizer_that_has_not_begun_and_one_that_has() -> None:
    goes_on(with_optimizer("adamw-fused", torch.float32), descend, before=0)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_going_back_in_one_process(name: str) -> None:
    torch.manual_seed(1)
    objects = with_optimizer(name, torch.float32)()
    with Checkpointer(MemoryTier(), keep="all", **objects) as ckpt:
        ckpt.save(0)
        descend(objects)
        ckpt.save(1)
        saved = all_pieces(objects)
        for _ in range(4):
            descend(objects)
        expected = all_pieces(objects)
        ckpt.restore(step=1)
        assert all_pieces(objects) == saved
        for _ in range(4):
            descend(objects)
        assert all_pieces(objects) == expected
        ckpt.restore(step=0)
        assert not objects["optim"].state or name.startswith("adagrad")


def test_frozen_and_added_groups() -> None:
    def make() -> Objects:
        model = net()
        model[0].weight.requires_grad_(requires_grad=False)
        optim = torch.optim.Adam(model[0].parameters())
        optim.add_param_group({"params": model[3].parameters(), "lr": 0.1})
        return {"model": model, "optim": optim}

    goes_on(make, descend)


def test_groups_that_do_not_agree_are_refused_before_anything_is_touched() -> None:
    tier, model = MemoryTier(), net()
    optim = torch.optim.Adam(model[0].parameters())
    with Checkpointer(tier, model=model, optim=optim) as ckpt:
        ckpt.save(0)
    other = net()
    before = pieces(other.state_dict())
    more = torch.optim.Adam(other[0].parameters())
    more.add_param_group({"params": other[3].parameters()})
    ckpt = Checkpointer(tier, model=other, optim=more)
    with pytest.raises(StateError, match="optim/param_groups': groups of parameters: 1 in the"):
        ckpt.resume()
    wider = torch.optim.Adam(other.parameters())
    ckpt = Checkpointer(tier, model=other, optim=wider)
    with pytest.raises(StateError, match=r"groups/0': parameters: 2 in the checkpoint, 4"):
        ckpt.resume()
    assert pieces(other.state_dict()) == before


# --- schedulers ----------------------------------------------------------------------------


class Halved:
    """A schedule with a state of its own."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, step: int) -> float:
        self.calls += 1
        return 0.5**step


def sequential(optim: Any) -> Any:
    warm = lr_scheduler.LinearLR(optim, total_iters=3)
    return lr_scheduler.SequentialLR(
        optim, [warm, lr_scheduler.CosineAnnealingLR(optim, 9)], milestones=[3]
    )


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
    "ConstantLR": lr_scheduler.ConstantLR,
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 5),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=2, scale_fn=None),
    "CyclicLR-exp": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, 2, mode="exp_range"),
    "CyclicLR-own": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, 2, scale_fn=lambda x: x / 2),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.9**step),
    "LambdaLR-object": lambda o: lr_scheduler.LambdaLR(o, Halved()),
    "LinearLR": lr_scheduler.LinearLR,
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 2, 5]),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda _: 0.9),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=20),
    "PolynomialLR": lr_scheduler.PolynomialLR,
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),
    "SWALR": lambda o: torch.optim.swa_utils.SWALR(o, 0.05),
    "SequentialLR": sequential,
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2),
}


@pytest.mark.filterwarnings("ignore:.*lr_scheduler.step.* before")
@pytest.mark.parametrize("lr", [0.1, torch.tensor(0.1)], ids=["number", "tensor"])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers(name: str, lr: Any) -> None:
    def make() -> Objects:
        model = net()
        own = lr.clone() if isinstance(lr, torch.Tensor) else lr
        optim = torch.optim.SGD(model.parameters(), lr=own, momentum=0.9)
        return {"model": model, "optim": optim, "sched": SCHEDULERS[name](optim)}

    goes_on(make, descend)


def test_all_schedulers_of_torch_are_tried() -> None:
    known = {name for name in lr_scheduler.__all__ if name != "LRScheduler"}
    assert known - {name.split("-")[0] for name in SCHEDULERS} == set()


# --- scalers, averages ---------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_mixed_precision(dtype: Any) -> None:
    def make() -> Objects:
        model = net()
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=2)
        return {"model": model, "optim": torch.optim.Adam(model.parameters()), "scaler": scaler}

    def advance(objects: Objects) -> None:
        optim, scaler = objects["optim"], objects["scaler"]
        optim.zero_grad()
        with torch.autocast("cpu", dtype=dtype):
            loss = (objects["model"](torch.randn(8, 4)) ** 2).sum()
        scaler.scale(loss).backward()
        scaler.unscale_(optim)
        scaler.step(optim)
        scaler.update()

    goes_on(make, advance)


def test_a_scaler_that_is_switched_off() -> None:
    def make() -> Objects:
        model = net()
        optim = torch.optim.SGD(model.parameters())
        return {"model": model, "optim": optim, "scaler": torch.amp.GradScaler(enabled=False)}

    goes_on(make, descend)


@pytest.mark.parametrize("use_buffers", [False, True])
def test_averaged_models(use_buffers: bool) -> None:
    def make() -> Objects:
        model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
        ema = torch.optim.swa_utils.AveragedModel(
            model,
            multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9),
            use_buffers=use_buffers,
        )
        return {"model": model, "optim": torch.optim.SGD(model.parameters()), "ema": ema}

    goes_on(make, descend)


# --- modules -------------------------------------------------------------------------------


class Remembers(nn.Module):  # type: ignore[misc]
    """A module with a state that is no tensor, and grows."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3))
        self.seen: list[float] = []
        self.extra: dict[str, Any] = {}

    def get_extra_state(self) -> Any:
        return {"seen": self.seen, "extra": self.extra}

    def set_extra_state(self, state: Any) -> None:
        self.seen, self.extra = state["seen"], state["extra"]


def test_extra_state_is_the_modules_own_affair() -> None:
    tier, old = MemoryTier(), nn.Sequential(Remembers(), Remembers())
    old[0].seen, old[0].extra = [1.0, 2.0], {"scale": torch.arange(5.0), "name": "x"}
    with Checkpointer(tier, model=old) as ckpt:
        ckpt.save(0)
    new = nn.Sequential(Remembers(), Remembers())
    new[0].extra = {"scale": torch.zeros(2)}
    with Checkpointer(tier, model=new) as ckpt:
        ckpt.resume()
    assert pieces(new.state_dict()) == pieces(old.state_dict())


def test_eight_bit_floats_and_complex_buffers() -> None:
    def make() -> Any:
        model = nn.Linear(3, 2)
        model.register_buffer("small", torch.rand(7).to(torch.float8_e4m3fn))
        model.register_buffer("wave", torch.rand(3, dtype=torch.complex64))
        model.register_buffer("passing", torch.rand(3), persistent=False)
        return model

    tier, old, new = MemoryTier(), make(), make()
    with Checkpointer(tier, model=old) as ckpt:
        ckpt.save(0)
    with Checkpointer(tier, model=new) as ckpt:
        ckpt.resume()
    assert pieces(new.state_dict()) == pieces(old.state_dict())


@pytest.mark.parametrize("compiled_first", [False, True])
def test_a_compiled_module_is_the_module(compiled_first: bool) -> None:
    def compiled() -> Any:
        model = net()
        model[3] = torch.compile(
            model[3], backend="eager"
        )  # Never called, so nothing is compiled.
        return torch.compile(model, backend="eager")

    old, new = (compiled(), net()) if compiled_first else (net(), compiled())
    tier = MemoryTier()
    with Checkpointer(tier, model=old) as ckpt:
        ckpt.save(0)
    with Checkpointer(tier, model=new) as ckpt:
        ckpt.resume()
    for mine, theirs in zip(new.parameters(), old.parameters(), strict=True):
        assert torch.equal(mine, theirs)
