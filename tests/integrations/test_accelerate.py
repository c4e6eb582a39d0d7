"""accelerate needs no callback: what it prepared is attached to as it is."""

import pytest
import torch
from torch import nn

import regrow

pytest.importorskip("accelerate")

from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.state import AcceleratorState
from processes import differences

from loops import DSR, RIGL
from regrow.testing import check_invariants

STORAGES = ["dense", regrow.Packed(kernels="dense")]


@pytest.fixture(autouse=True)
def own_state():
    """accelerate has one precision in a process, and we several."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


class Loop:
    """What a user of accelerate writes, with its clipping and accumulation."""

    def __init__(self, method=DSR, attach="after", storage="dense", seed=0, **options):
        torch.manual_seed(0)
        self.accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, **options)
        self.model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        if attach == "before":
            self.sparse = regrow.attach(self.model, self.optimizer, method, storage=storage, seed=seed)
        self.model, self.optimizer = self.accelerator.prepare(self.model, self.optimizer)
        if attach == "after":
            self.sparse = regrow.attach(self.model, self.optimizer, method, storage=storage, seed=seed)
        self.accelerator.register_for_checkpointing(self.sparse)
        self.x = torch.randn(24, 8, 12, generator=torch.Generator().manual_seed(1))

    def train(self, first, last):
        for x in self.x[2 * first : 2 * last]:
            with self.accelerator.accumulate(self.model):
                loss = nn.functional.cross_entropy(self.model(x), x[:, :4].argmax(1))
                self.accelerator.backward(loss)
                if self.accelerator.sync_gradients:
                    self.sparse.mask_gradients()
                    self.accelerator.clip_grad_norm_(self.model.parameters(), 0.1)
                self.optimizer.step()
                self.optimizer.zero_grad()
        return self

    def state(self):
        return [self.model.state_dict(), self.sparse.optimizer.state_dict(), self.sparse.state_dict()]


@pytest.mark.parametrize("method", [DSR, RIGL], ids=["DSR", "RigL"])
def test_attaching_after_prepare_is_attaching_before(method):
    before, after = (Loop(method, attach).train(0, 12) for attach in ("before", "after"))
    assert isinstance(after.optimizer, AcceleratedOptimizer)
    assert type(after.sparse.optimizer) is torch.optim.AdamW
    assert after.sparse.num_steps == 12
    check_invariants(after.model, after.sparse.optimizer, after.sparse)
    assert differences(before.state(), after.state()) == []


def test_the_optimizer_that_was_prepared_keeps_its_parameters():
    """It once held a toy afterwards, on which optimizers are tried."""
    loop = Loop()
    held = {id(parameter) for group in loop.optimizer.param_groups for parameter in group["params"]}
    assert held == {id(parameter) for parameter in loop.model.parameters()}
    assert loop.optimizer.state == {}


@pytest.mark.parametrize("attach", ["before", "after"])
@pytest.mark.parametrize("storage", STORAGES, ids=["dense", "packed"])
def test_save_state_and_load_state_are_all_that_a_run_needs(storage, attach, tmp_path):
    whole = Loop(DSR, attach, storage, mixed_precision="bf16").train(0, 7)
    whole.accelerator.save_state(tmp_path / "saved")
    whole.train(7, 12)
    (tmp_path / "saved").rename(tmp_path / "moved")
    resumed = Loop(DSR, attach, storage, seed=5, mixed_precision="bf16")
    resumed.accelerator.load_state(tmp_path / "moved")
    resumed.train(7, 12)
    assert len(resumed.sparse.history) == 6
    assert differences(whole.state(), resumed.state()) == []


def test_an_optimizer_that_moves_zeros_is_refused_inside_the_wrapper_too():
    accelerator, model = Accelerator(cpu=True), nn.Linear(12, 32, bias=False)
    before = model.weight.clone()
    prepared, optimizer = accelerator.prepare(model, torch.optim.Muon(model.parameters(), lr=0.1))
    with pytest.raises(ValueError, match="Muon cannot train a sparse network"):
        regrow.attach(prepared, optimizer, DSR)
    assert torch.equal(model.weight, before)
