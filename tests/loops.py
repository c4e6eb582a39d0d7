"""A training loop to do things to."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import regrow

RIGL = regrow.RigL(sparsity=0.8, period=2)
DSR = regrow.DSR(sparsity=0.8, period=2, l1=1e-3)


class Loop:
    """A small image classifier in training."""

    def __init__(self, method, optimizer=None, prepare=lambda model: model):
        torch.manual_seed(0)
        self.model = prepare(
            nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 5))
        )
        make = optimizer or (lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=1e-3))
        self.optimizer = make(self.model.parameters())
        self.images, self.labels = torch.randn(12, 3, 6, 6), torch.randint(5, (12,))
        self.sparse = regrow.attach(self.model, self.optimizer, method)

    def backward(self, part=slice(None)):
        loss = cross_entropy(self.model(self.images[part]), self.labels[part])
        loss.backward()
        return loss

    def train(self, num_steps):
        for _ in range(num_steps):
            self.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        return self

    def same_as(self, other, **tolerance):
        theirs = dict(other.model.named_parameters())
        for name, parameter in self.model.named_parameters():
            torch.testing.assert_close(parameter, theirs[name], **tolerance)
        masks = other.sparse.masks()
        return all(torch.equal(mask, masks[name]) for name, mask in self.sparse.masks().items())


EXACT = {"rtol": 0, "atol": 0}
