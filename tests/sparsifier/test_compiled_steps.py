"""What is compiled: the optimizer's step, or the whole training step, with the hooks in it."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import regrow
from every_method import EVERY_STEP, can_be_packed, make
from regrow.testing import check_invariants

PARTS = ["optimizer", "everything"]
METHODS = {name: make(cls, sparsity=0.8, period=2, until=6) for name, cls in regrow.METHODS.items()}
CASES = [(name, "dense") for name in METHODS]
CASES += [(name, "packed") for name, method in METHODS.items() if can_be_packed(method)]


class Loop:
    """Some steps of training, of which a part may be compiled."""

    def __init__(self, method, storage, part=None, backend="eager"):
        torch._dynamo.reset()
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 30), nn.ReLU(), nn.Linear(30, 5))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.sparse = regrow.attach(self.model, self.optimizer, method, storage=storage)
        self.images, self.labels = torch.randn(12, 20), torch.randint(5, (12,))
        self.compiled = {part: backend}

    def step(self):
        cross_entropy(self.model(self.images), self.labels).backward()
        self.update()
        self.optimizer.zero_grad()

    def update(self):
        self.optimizer.step()

    def train(self, num_steps=7):
        if "optimizer" in self.compiled:
            self.update = torch.compile(self.update, backend=self.compiled["optimizer"])
        step = self.step
        if "everything" in self.compiled:
            step = torch.compile(step, backend=self.compiled["everything"])
        for number in range(1, num_steps + 1):
            step()
            self.optimizer.zero_grad()
            assert self.sparse.num_steps == number
            check_invariants(self.model, self.optimizer, self.sparse)
        return self

    def is_wired_like(self, other):
        masks = other.sparse.masks()
        return all(torch.equal(mask, masks[name]) for name, mask in self.sparse.masks().items())

    def is_same_as(self, other):
        pairs = zip(self.model.parameters(), other.model.parameters(), strict=True)
        return self.is_wired_like(other) and all(torch.equal(one, another) for one, another in pairs)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(("name", "storage"), CASES)
def test_a_compiled_step_is_the_step(name, storage, part):
    assert Loop(METHODS[name], storage, part).train().is_same_as(Loop(METHODS[name], storage).train())


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(
    ("name", "storage"), [("DSR", "dense"), ("RigL", "dense"), ("DSR", "packed"), ("RigL", "packed")]
)
def test_a_step_that_is_traced_through_autograd_is_the_step(name, storage, part):
    assert Loop(METHODS[name], storage, part, "aot_eager").train().is_same_as(Loop(METHODS[name], storage).train())


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(
    ("name", "storage"),
    [(name, "dense") for name in ["DSR", "SET", *EVERY_STEP]] + [("DSR", "packed"), ("RigL", "packed")],
)
def test_inductor_wires_the_same(name, storage, part):
    assert Loop(METHODS[name], storage, part, "inductor").train().is_wired_like(Loop(METHODS[name], storage).train())


def test_a_closure_in_a_compiled_step():
    plain, compiled = (Loop(METHODS["DSR"], "dense", part) for part in (None, "everything"))
    for loop in (plain, compiled):

        def closure(loop=loop):
            loop.optimizer.zero_grad()
            loss = cross_entropy(loop.model(loop.images), loop.labels)
            loss.backward()
            return loss

        loop.step = lambda loop=loop, closure=closure: loop.optimizer.step(closure)
        loop.train()
    assert compiled.is_same_as(plain)


def test_clipping_and_counting_by_hand_in_a_compiled_step():
    plain, compiled = (Loop(METHODS["DSR"], "dense", part) for part in (None, "everything"))
    for loop in (plain, compiled):

        def step(loop=loop):
            cross_entropy(loop.model(loop.images), loop.labels).backward()
            loop.sparse.mask_gradients()
            nn.utils.clip_grad_value_(loop.model.parameters(), 0.01)
            with torch.no_grad():
                for parameter in loop.model.parameters():
                    parameter -= 0.1 * parameter.grad
            loop.sparse.advance()

        loop.step = step
        loop.train()
    assert compiled.is_same_as(plain)
