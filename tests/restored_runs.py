"""A network whose weights may be restored before a sparsifier is attached, or after."""

import copy
from itertools import pairwise

import torch
from torch import nn
from torch.nn.functional import mse_loss

import regrow
from every_method import EVERY_STEP, can_be_packed, make

METHODS = {
    "DSR": regrow.DSR(sparsity=0.8, period=2, threshold=0.05),
    "RigL": regrow.RigL(sparsity=0.8, period=2, until=9),
    "SNFS": regrow.SNFS(sparsity=0.8, period=2),
    "Gradual": regrow.Gradual(sparsity=0.8, period=2, until=9),
    "GraNet": regrow.GraNet(sparsity=0.8, period=2, until=9),
    "DSR on blocks": regrow.DSR(sparsity=0.5, period=2, threshold=0.1, granularity="2x2"),
    "SET on channels": regrow.SET(sparsity=0.77, period=2, granularity="channel"),
    **{name: make(regrow.METHODS[name], sparsity=0.8, temperature=1e-3) for name in EVERY_STEP},
}
PACKED = [name for name in METHODS if can_be_packed(METHODS[name])]
OPTIMIZERS = {
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
    "SGD in two groups": lambda parameters: torch.optim.SGD(
        [{"params": own, "lr": 0.1 / (n + 1)} for n, own in enumerate(zip(*[iter(parameters)] * 2, strict=True))],
        momentum=0.9,
    ),
}


class Run:
    """A network and its optimizer, which `attach` is yet to see."""

    def __init__(self, seed=0, optimizer="AdamW", sizes=(12, 20, 4)):
        torch.manual_seed(seed)
        self.model = nn.Sequential(*(nn.Linear(inputs, outputs) for inputs, outputs in pairwise(sizes))).double()
        self.optimizer = OPTIMIZERS[optimizer](list(self.model.parameters()))
        self.x = torch.linspace(-1, 1, 16 * sizes[0]).sin().view(16, sizes[0]).double()
        self.sparse = None

    def attach(self, method, **options):
        if options.get("storage") == "packed":
            options["storage"] = regrow.Packed(kernels="sparse")
        self.sparse = regrow.attach(self.model, self.optimizer, method, **options)
        return self

    def train(self, num_steps):
        for _ in range(num_steps):
            mse_loss(self.model(self.x), self.x[:, :4]).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        return self

    def restore(self, saved):
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(copy.deepcopy(saved["optimizer"]))  # torch would share the tensors
        return self

    def all(self):
        parts = {"model": self.model, "optimizer": self.optimizer, "sparse": self.sparse}
        return copy.deepcopy({name: part.state_dict() for name, part in parts.items() if part is not None})


def same(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
