"""Lightning's Fabric needs no callback: what it set up is attached to as it is."""

import pytest
import torch
from torch import nn

import regrow

pytest.importorskip("lightning")

from lightning.fabric import Fabric
from processes import differences

from loops import DSR, RIGL
from regrow.testing import check_invariants


class Loop:
    """What a user of Fabric writes."""

    def __init__(self, method=DSR, attach="after", seed=0, **options):
        torch.manual_seed(0)
        self.fabric = Fabric(accelerator="cpu", devices=1, **options)
        self.model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        if attach == "before":
            self.sparse = regrow.attach(self.model, self.optimizer, method, seed=seed)
        self.model, self.optimizer = self.fabric.setup(self.model, self.optimizer)
        if attach == "after":
            self.sparse = regrow.attach(self.model, self.optimizer, method, seed=seed)
        self.x = torch.randn(12, 8, 12, generator=torch.Generator().manual_seed(1))

    def train(self, first, last):
        for x in self.x[first:last]:
            loss = nn.functional.cross_entropy(self.model(x), x[:, :4].argmax(1))
            self.fabric.backward(loss)
            self.sparse.mask_gradients()
            self.fabric.clip_gradients(self.model, self.optimizer, max_norm=0.1)
            self.optimizer.step()
            self.optimizer.zero_grad()
        return self

    @property
    def parts(self):
        return {"model": self.model, "optimizer": self.optimizer, "sparse": self.sparse}

    def state(self):
        return [self.model.state_dict(), self.sparse.optimizer.state_dict(), self.sparse.state_dict()]


@pytest.mark.parametrize("method", [DSR, RIGL], ids=["DSR", "RigL"])
def test_attaching_after_setup_is_attaching_before(method):
    before, after = (Loop(method, attach).train(0, 12) for attach in ("before", "after"))
    assert after.sparse.num_steps == 12
    check_invariants(after.model, after.sparse.optimizer, after.sparse)
    assert differences(before.state(), after.state()) == []


@pytest.mark.parametrize("attach", ["before", "after"])
def test_names_are_those_of_the_model_inside_and_both_can_be_saved(attach, tmp_path):
    loop = Loop(DSR, attach).train(0, 4)
    assert [layer.name for layer in loop.sparse.layers] == ["0.weight", "2.weight"]
    for which, model in {"wrapper": loop.model, "inside": loop.model.module}.items():
        regrow.save(tmp_path / which, model, loop.sparse)
        saved = regrow.load_tensors(tmp_path / which)
        assert differences(dict(loop.model.module.state_dict()), saved) == []


def test_a_run_resumes_from_what_fabric_saved(tmp_path):
    whole = Loop(precision="bf16-mixed").train(0, 7)
    whole.fabric.save(tmp_path / "saved", whole.parts)
    whole.train(7, 12)
    resumed = Loop(precision="bf16-mixed", seed=5)
    resumed.fabric.load(tmp_path / "saved", resumed.parts)
    resumed.train(7, 12)
    assert len(resumed.sparse.history) == 6
    assert differences(whole.state(), resumed.state()) == []


def test_an_optimizer_that_moves_zeros_is_refused_inside_the_wrapper_too():
    fabric, model = Fabric(accelerator="cpu", devices=1), nn.Linear(12, 32, bias=False)
    before = model.weight.clone()
    ready, optimizer = fabric.setup(model, torch.optim.Muon(model.parameters(), lr=0.1))
    with pytest.raises(ValueError, match="Muon cannot train a sparse network"):
        regrow.attach(ready, optimizer, DSR)
    assert torch.equal(model.weight, before)
