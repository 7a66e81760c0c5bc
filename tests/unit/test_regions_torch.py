"""Tensors, modules and optimizers: bits kept, memory kept, ties kept, misfits named."""

from __future__ import annotations

import copy
import json
import sys
import warnings
from typing import Any

import numpy as np
import pytest

from ckptflow.data.arrays import ArraySpec, describe, read_into, write_from
from ckptflow.data.regions import RestorePlan, flatten, plan_restore
from ckptflow.data.rng import capture_rng, restore_rng
from ckptflow.errors import StateError

torch: Any = pytest.importorskip("torch", reason="the extra 'torch' is not installed")
nn: Any = torch.nn


def saved(state: Any) -> tuple[Any, list[bytes]]:
    flat = flatten(state)
    copies = [bytes(copy) for copy in flat.copy_into(np.empty(flat.total_bytes, np.uint8))]
    return json.loads(json.dumps(flat.structure)), copies


def planned(stored: tuple[Any, list[bytes]], target: Any = None) -> RestorePlan:
    structure, copies = stored
    return plan_restore(structure, [len(copy) for copy in copies], target)


def restored(stored: tuple[Any, list[bytes]], target: Any = None) -> Any:
    plan = planned(stored, target)
    for buffer, copy_ in zip(plan.buffers, stored[1], strict=True):
        buffer[:] = copy_
    return plan.finish()


def mismatches(stored: tuple[Any, list[bytes]], target: Any) -> tuple[str, ...]:
    with pytest.raises(StateError, match="does not fit") as caught:
        planned(stored, target)
    return caught.value.mismatches


def bits(tensor: Any) -> bytes:
    return bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy())


DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16,
    torch.uint32, torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.complex32, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
    *(getattr(torch, name)
      for name in ("float8_e8m0fnu", "float4_e2m1fn_x2") if hasattr(torch, name)),
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_keeps_every_bit_new_and_in_place(
    dtype: Any, rng: np.random.Generator
) -> None:
    high = 2 if dtype is torch.bool else 256
    raw = rng.integers(0, high, 12 * dtype.itemsize, dtype=np.uint8)
    tensor = torch.from_numpy(raw).view(dtype).reshape(3, 4)
    new = restored(saved({"t": tensor}))["t"]
    assert (new.dtype, new.shape) == (dtype, (3, 4))
    assert bits(new) == raw.tobytes()
    own = torch.zeros(12 * dtype.itemsize, dtype=torch.uint8).view(dtype).reshape(3, 4)
    state = {"t": own}
    restored(saved({"t": tensor}), state)
    assert state["t"] is own
    assert bits(own) == raw.tobytes()


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(3.0), torch.empty(0, 3), torch.zeros(2, 0),
        torch.arange(12.0).reshape(3, 4).T,
        torch.arange(12.0)[::3], torch.arange(24.0).reshape(2, 3, 4)[:, 1:, ::2],
        torch.arange(3.0).expand(5, 3), torch.arange(4.0, requires_grad=True),
        torch.zeros(1, 2, 3, 4).to(memory_format=torch.channels_last),
        nn.Parameter(torch.arange(4.0)), torch.arange(4.0).unfold(0, 2, 1),
        torch.view_as_complex(torch.arange(6.0).reshape(3, 2)).conj(),
        torch.view_as_complex(torch.arange(6.0).reshape(3, 2)).conj().imag,
    ],
    ids=lambda tensor: f"{tuple(tensor.shape)}-{tensor.stride()}",
)  # fmt: skip
def test_every_layout_comes_back(tensor: Any) -> None:
    stored = saved({"t": tensor})
    assert torch.equal(restored(stored)["t"], tensor.detach())
    target = torch.full(tensor.shape, -1, dtype=tensor.dtype)
    state = {"t": target}
    assert restored(stored, state)["t"] is target
    assert torch.equal(target, tensor.detach())


def test_dense_tensors_are_not_copied_and_gaps_are_not_stored() -> None:
    dense = torch.arange(12.0).reshape(3, 4)
    for view in (dense, dense.T, nn.Parameter(dense)):
        (region,) = flatten({"t": view}).regions
        assert region.data is not None
        assert region.data.__array_interface__["data"][0] == dense.data_ptr()
    assert [region.nbytes for region in flatten(torch.zeros(1000, 1000)[0, :10]).regions] == [
        40
    ]


def test_a_lazily_conjugated_target_gets_values_and_stays() -> None:
    values = torch.view_as_complex(torch.arange(6.0).reshape(3, 2))
    base = torch.zeros(3, dtype=torch.complex64)
    state = {"z": base.conj()}
    target = state["z"]
    restored(saved({"z": values}), state)
    assert state["z"] is target
    assert torch.equal(target.resolve_conj(), values)
    assert torch.equal(base, values.conj())


def test_autograd_notices_that_memory_was_written() -> None:
    w = torch.ones(3, requires_grad=True)
    loss = (w * w).sum()
    restored(saved({"w": torch.zeros(3)}), {"w": w})
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


class Subclass(torch.Tensor):  # type: ignore[misc]
    pass


with (
    warnings.catch_warnings()
):  # Sparse CSR and quantized tensors warn that they are young or old.
    warnings.simplefilter("ignore")
    REFUSED = [
        (torch.empty(3, device="meta"), "meta device"),
        (torch.eye(3).to_sparse(), r"layout torch.sparse_coo; store its parts"),
        (torch.eye(3).to_sparse_csr(), r"layout torch.sparse_csr"),
        (torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), r"int_repr\(\)"),
        (torch.ones(3).as_subclass(Subclass), r"a tensor of class .*Subclass"),
        (nn.UninitializedParameter(), r"class .*UninitializedParameter"),
        (torch.zeros(2, dtype=torch.uint8).view(torch.bits8), "no stored form"),
    ]


@pytest.mark.parametrize(("tensor", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
def test_tensors_that_are_no_plain_memory_are_refused(tensor: Any, reason: str) -> None:
    with pytest.raises(StateError, match=f"'t': .*{reason}"):
        flatten({"t": tensor})


# --- modules and optimizers ------------------------------------------------------------


def net() -> Any:
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))


def train(model: Any, optimizer: Any, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        (model(torch.randn(8, 4)) ** 2).sum().backward()
        optimizer.step()


OPTIMIZERS = {
    "adam": lambda p: torch.optim.AdamW(p, lr=0.01),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    "plain-sgd": lambda p: torch.optim.SGD(p, lr=0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_goes_on_with_the_same_bits(name: str) -> None:
    torch.manual_seed(1)
    model = net()
    optimizer = OPTIMIZERS[name](model.parameters())
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 5])
    train(model, optimizer, 3)
    scheduler.step()
    stored = saved({"m": model, "o": optimizer, "s": scheduler, "rng": capture_rng()})
    train(model, optimizer, 3)
    scheduler.step()

    torch.manual_seed(2)
    again = net()
    fresh = OPTIMIZERS[name](again.parameters())
    target = {
        "m": again,
        "o": fresh,
        "s": torch.optim.lr_scheduler.MultiStepLR(fresh, [2, 5]),
        "rng": {},
    }
    places = [parameter.data_ptr() for parameter in again.parameters()]
    back = restored(stored, target)
    assert restore_rng(back["rng"]) == ()
    assert back["m"] is again
    assert [parameter.data_ptr() for parameter in again.parameters()] == places
    train(again, fresh, 3)
    back["s"].step()
    for mine, theirs in zip(
        again.state_dict().values(), model.state_dict().values(), strict=True
    ):
        assert bits(mine) == bits(theirs)
    assert back["s"].state_dict() == scheduler.state_dict()


def test_an_optimizer_that_has_started_keeps_its_own_tensors() -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, 2)
    stored = saved({"o": optimizer})
    own = optimizer.state[model[0].weight]["exp_avg"]
    expected = own.clone()
    train(model, optimizer, 2)
    plan = planned(stored, {"o": optimizer})
    assert plan.in_place_bytes == sum(len(copy) for copy in stored[1])
    restored(stored, {"o": optimizer})
    assert optimizer.state[model[0].weight]["exp_avg"] is own
    assert torch.equal(own, expected)
    assert optimizer.state[model[0].weight]["step"].shape == ()


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "bfloat16"])
def test_a_count_without_dimensions_keeps_its_type_and_its_shape(dtype: str) -> None:
    """An optimizer's ``step``: not rounded, not of another type, and not a list of one."""
    step = torch.tensor(7, dtype=getattr(torch, dtype))
    stored = saved({"step": step})
    new = restored(stored)["step"]
    assert (new.dtype, new.shape, new.item()) == (step.dtype, step.shape, 7)
    target = {"step": torch.tensor(0, dtype=step.dtype)}
    own = target["step"]
    assert restored(stored, target)["step"] is own
    assert (own.shape, own.item()) == ((), 7)
    other = torch.float16 if dtype != "float16" else torch.float32
    assert "step" in mismatches(stored, {"step": torch.tensor(0, dtype=other)})[0]


def test_an_optimizer_may_lack_or_have_rows_that_the_checkpoint_has_not() -> None:
    used, idle = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([used, idle])
    used.grad = torch.ones(2)
    optimizer.step()
    stored = saved(optimizer)
    idle.grad = torch.ones(3)
    optimizer.step()
    restored(stored, optimizer)
    assert set(optimizer.state) == {used}
    both = torch.optim.Adam([used, idle])
    assert restored(saved(both), optimizer).state == {}


def test_tied_weights_are_stored_once_and_stay_tied() -> None:
    def tied() -> Any:
        model = nn.ModuleDict(
            {"embed": nn.Embedding(5, 4), "head": nn.Linear(4, 5, bias=False)}
        )
        model["head"].weight = model["embed"].weight
        return model

    old, new = tied(), tied()
    stored = saved({"m": old})
    assert [len(copy) for copy in stored[1]] == [80]
    restored(stored, {"m": new})
    assert new["head"].weight is new["embed"].weight
    assert torch.equal(new["head"].weight, old["head"].weight)
    back = restored(stored)["m"]
    assert back["head.weight"].data_ptr() == back["embed.weight"].data_ptr()
    loose = nn.ModuleDict({"embed": nn.Embedding(5, 4), "head": nn.Linear(4, 5, bias=False)})
    restored(stored, {"m": loose})
    assert torch.equal(loose["head"].weight, loose["embed"].weight)
    assert mismatches(saved({"m": loose.apply(lambda _: None)}), {"m": new}) == (
        "'m/head.weight': shares memory with 'm/embed.weight' in the state, "
        "but has a value of its own in the checkpoint",
    )


def test_a_module_must_agree_key_by_key_and_nothing_is_changed() -> None:
    stored = saved({"m": nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2, bias=False))})
    target = nn.Sequential(nn.Linear(4, 5), nn.Linear(3, 2), nn.Linear(1, 1))
    before = copy.deepcopy(target.state_dict())
    assert mismatches(stored, {"m": target}) == (
        "'m/1.bias': in the state, but not in the checkpoint",
        "'m/2.weight': in the state, but not in the checkpoint",
        "'m/2.bias': in the state, but not in the checkpoint",
        "'m/0.weight': shape (3, 4) in the checkpoint, shape (5, 4) in the state",
        "'m/0.bias': shape (3,) in the checkpoint, shape (5,) in the state",
    )
    for name, value in target.state_dict().items():
        assert torch.equal(value, before[name])


def test_other_libraries_arrays_do_not_stand_in_for_tensors() -> None:
    assert mismatches(saved({"t": torch.zeros(2)}), {"t": np.zeros(2, np.float32)}) == (
        "'t': a torch array in the checkpoint, a numpy array in the state",
    )


def test_new_tensors_need_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = saved({"t": torch.zeros(2)})
    monkeypatch.delitem(sys.modules, "torch")
    assert mismatches(stored, None) == (
        "'t': an array of torch in the checkpoint: import torch first",
    )


def test_generators_of_torch_go_on() -> None:
    generator = torch.Generator().manual_seed(5)
    torch.rand(3, generator=generator)
    stored = saved({"g": generator})
    expected = torch.rand(4, generator=generator)
    assert torch.equal(torch.rand(4, generator=restored(stored)["g"]), expected)
    target = torch.Generator()
    assert restored(stored, {"g": target})["g"] is target
    assert torch.equal(torch.rand(4, generator=target), expected)


def test_bf16_shares_between_views_after_a_restore() -> None:
    base = torch.arange(10, dtype=torch.bfloat16)
    back = restored(saved({"base": base, "part": base[3:7]}))
    back["base"][4] = 100
    assert back["part"][1] == 100


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e5m2], ids=str)
def test_the_way_of_device_tensors_driven_with_host_memory(dtype: Any) -> None:
    tensor = torch.arange(12.0).reshape(3, 4).to(dtype).T
    live = describe(tensor)
    assert live is not None
    afar = live._replace(place="cuda:0", access="library")
    strides = tuple(8 * stride * tensor.element_size() for stride in (1, 4))
    spec = ArraySpec(live.dtype, (4, 3), strides, 16, 0, "torch")
    region = np.zeros(16 + 96 * tensor.element_size(), np.uint8)
    read_into(afar, region, spec)
    target = torch.zeros(4, 3, dtype=dtype)
    write_from(afar, target, region, spec)
    assert bits(target) == bits(tensor)


def test_a_view_that_starts_between_two_elements_is_still_right() -> None:
    raw = torch.arange(33, dtype=torch.uint8)
    state = {"raw": raw[1:], "wide": raw[4:12].view(torch.float32)}
    back = restored(saved(state))
    assert bits(back["wide"]) == bits(state["wide"])
    assert torch.equal(back["raw"], raw[1:])
