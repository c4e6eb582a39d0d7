"""Ray Tune: a search over populations restores one trial's checkpoint in another, whose sparsity may be another."""

import pytest
import torch
from torch import nn

import regrow

pytest.importorskip("ray.tune", reason="Ray is not installed")

from processes import differences
from ray import tune


class Trial(tune.Trainable):
    """What a user of Ray Tune writes."""

    def setup(self, config):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=config["lr"])
        self.sparse = regrow.attach(self.model, self.optimizer, config["method"], seed=config.get("seed", 0))

    def step(self):
        x = torch.randn(8, 12, generator=torch.Generator().manual_seed(self.iteration))
        nn.functional.cross_entropy(self.model(x), x[:, :4].argmax(1)).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return self.sparse.metrics()

    @property
    def parts(self):
        return {"model": self.model, "optimizer": self.optimizer, "sparse": self.sparse}

    def state(self):
        return {name: part.state_dict() for name, part in self.parts.items()}

    def save_checkpoint(self, checkpoint_dir):
        torch.save(self.state(), f"{checkpoint_dir}/state.pt")

    def load_checkpoint(self, checkpoint_dir):
        state = torch.load(f"{checkpoint_dir}/state.pt", weights_only=True)
        self.sparse.load_state_dict(state["sparse"])
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


def trial(sparsity=0.8, **config):
    return Trial({"lr": 0.01, "method": regrow.DSR(sparsity=sparsity, period=3), **config})


def test_a_trial_goes_on_from_the_checkpoint_of_another_to_the_same_bits(tmp_path):
    one, other = trial(), trial(seed=5)
    for _ in range(5):
        one.train()
    other.restore(one.save(str(tmp_path)))
    for _ in range(5):
        told = one.train()
        other.train()
    assert told["active"] == told["budget"] == other.sparse.active
    assert differences(one.state(), other.state()) == []


def test_the_checkpoint_of_another_sparsity_is_refused_and_nothing_is_taken(tmp_path):
    one, other = trial(0.5), trial(0.9)
    one.train()
    before = other.sparse.masks()
    with pytest.raises(ValueError, match=r"the state has a budget of \d+ weights, this sparsifier one of \d+"):
        other.restore(one.save(str(tmp_path)))
    assert other.sparse.sparsity > 0.89
    assert differences(before, other.sparse.masks()) == []
