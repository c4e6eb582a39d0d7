"""Whatever is done between the steps of a training, in whichever order.

The promises hold after every step; and what should change nothing, as saving, resuming, copying, pickling, wrapping and
compiling, changes not a bit of what comes out. A search of 20,000 cases and more:

    pytest tests/test_any_order.py --hypothesis-profile=search
"""

import copy
import gc
import io
import itertools
from functools import partial

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import regrow
from any_training import OPTIMIZERS, methods, moments, networks
from every_method import can_be_packed
from regrow.testing import check_invariants

NUM_CASES = settings().max_examples


class Loop:
    """A training that things happen to."""

    def __init__(self, network, method, optimizer, storage, moments, seed):
        self.beginning = (network, method, optimizer, storage, moments)
        self.seed, self.number, self.changes = seed, 0, []
        self.model = copy.deepcopy(network)
        self.optimizer = OPTIMIZERS[optimizer](list(self.model.parameters()))
        self.sparse = None
        self.forward = self.model

    def attach(self, **options):
        _, method, _, storage, moments = self.beginning
        options |= {"seed": self.seed, "storage": storage, "moments": moments}
        self.sparse = regrow.attach(self.model, self.optimizer, method, **options)
        return self

    def again(self):
        """One that begins alike, in other objects and with another topology; what is in no state is not done yet."""
        other = Loop(*self.beginning, self.seed + 1)
        other.number, other.changes = self.number, list(self.changes)
        return other

    def catch_up(self):
        for change in self.changes:
            change(self)
        return self

    @property
    def trio(self):
        return self.model, self.optimizer, self.sparse

    def states(self):
        """All three, through a file."""
        return through_file([own.state_dict() for own in self.trio], weights_only=True)

    def loss(self):
        generator = torch.Generator().manual_seed(self.number % 3)
        images = torch.randn(4, 2, 4, 4, generator=generator).to(next(self.model.parameters()).dtype)
        self.number += 1
        return self.forward(images).square().mean() + sum(own.square().sum() for own in self.added())

    def added(self):
        return (own for name, own in self.model.named_parameters() if name.startswith("added"))

    def finish(self):
        self.optimizer.step()
        return self.check()

    def check(self):
        self.optimizer.zero_grad()
        check_invariants(*self.trio)
        return self

    def outcome(self):
        """All that is left, as tensors to compare."""
        model, optimizer, sparse = self.trio
        trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        states = [optimizer.state.get(parameter, {}) for parameter in trained]
        beside = [torch.as_tensor(state[name]) for state in states for name in sorted(state)]
        found = [*model.parameters(), *model.buffers(), *beside, *sparse.masks().values()]
        return [tensor.detach() for tensor in found], sparse.history, sparse.num_steps


def through_file(thing, weights_only):
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return torch.load(file, weights_only=weights_only)


# What belongs to a training


def step(loop):
    loop.loss().backward()
    return loop.finish()


def accumulate(loop):
    loop.loss().backward()
    return step(loop)


def clip(loop):
    loop.loss().backward()
    loop.sparse.mask_gradients()
    nn.utils.clip_grad_norm_(loop.model.parameters(), 0.1)
    return loop.finish()


def close(loop):
    def closure():
        loop.optimizer.zero_grad()
        loss = loop.loss()
        loss.backward()
        return loss

    loop.optimizer.step(closure)
    return loop.check()


def skip(loop):
    loop.loss().backward()
    return loop.check()


def overflow(loop):
    """Two steps of a GradScaler, of which it skips the first."""
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for factor in (float("inf"), 1.0):
        scaler.scale(loop.loss() * factor).backward()
        scaler.step(loop.optimizer)
        scaler.update()
        loop.check()
    return loop


def change(loop, what):
    """Something that is in no state, and is done again before one is loaded."""
    what(loop)
    loop.changes.append(what)
    loop.forward = loop.model
    return loop


def freeze(loop):
    last = list(loop.model.parameters())[-1]
    last.requires_grad_(not last.requires_grad)


def add_group(loop):
    name = f"added{len(list(loop.added()))}"
    loop.model.register_parameter(name, nn.Parameter(next(loop.model.parameters()).new_full((3,), 0.5)))
    loop.optimizer.add_param_group({"params": [getattr(loop.model, name)], "lr": 0.01})


def to_double(loop):
    loop.model.double()


def be_precise(loop):
    """Under an optimizer that has state torch would leave it as it was, and cast it in a resumed run.

    NAdam has a number in float32 whatever its weights are, which torch casts in a resumed run to what they are.
    """
    is_cast = any(loop.optimizer.state.values()) or isinstance(loop.optimizer, torch.optim.NAdam)
    return loop if is_cast else change(loop, to_double)


TRAINING = [step, step, step, accumulate, clip, close, skip, overflow]
TRAINING += [be_precise, *(partial(change, what=what) for what in (freeze, add_group))]


# What should make no difference


def resume(loop, order):
    """In fresh objects, attached and then loaded."""
    states, other = loop.states(), loop.again().attach().catch_up()
    for i in order:
        other.trio[i].load_state_dict(states[i])
    return other


def resume_what_is_loaded(loop):
    """In fresh objects, loaded and then attached; a packed model can only be loaded when it is packed."""
    model, optimizer, sparse = loop.states()
    other = loop.again()
    if other.beginning[3] == "packed" or sparse["storage"] == "hashed":
        other.attach(resume=sparse).catch_up()
    for change in other.changes if other.sparse is None else []:
        if change is not freeze:
            change(other)
    other.model.load_state_dict(model)
    other.optimizer.load_state_dict(optimizer)
    if other.sparse is None:
        other.attach(resume=sparse)
        for change in other.changes:
            if change is freeze:
                change(other)
    return other


def replace_trio(loop, trio):
    loop.model, loop.optimizer, loop.sparse = trio
    loop.forward = loop.model
    return loop


def duplicate(loop):
    return replace_trio(loop, copy.deepcopy(loop.trio))


def pickle(loop):
    """Refused, and nothing comes of the attempt."""
    with pytest.raises(ValueError, match="save the state_dict"):
        through_file(loop.trio, weights_only=False)
    return loop


def roll_back(loop):
    for own, state in zip(loop.trio, loop.states(), strict=True):
        own.load_state_dict(state)
    return loop


def wrap(loop):
    loop.forward = DistributedDataParallel(loop.model)
    return loop


def look(loop):
    sparse = loop.sparse
    sparse.check()
    assert sparse.metrics()["active"] == sparse.active
    assert str(sparse.budget) in sparse.summary().replace(",", "")
    return loop


def compile_by(backend, loop):
    torch._dynamo.reset()
    loop.forward = torch.compile(loop.model, backend=backend)
    return loop


IDLE = [partial(resume, order=order) for order in itertools.permutations(range(3))]
IDLE += [resume_what_is_loaded, duplicate, pickle, roll_back, wrap, look]


# The search


@st.composite
def beginnings(draw):
    method, storage = draw(methods()), draw(st.sampled_from(["dense", "packed"]))
    if storage == "packed" and not can_be_packed(method):
        storage = "dense"
    optimizer = draw(st.sampled_from(sorted(OPTIMIZERS)))
    return draw(networks()), method, optimizer, storage, draw(moments(method, optimizer)), draw(st.integers(0, 2**32))


def go_through(beginning, events):
    """A training with these events; what attach refuses, or a rewiring that is no longer finite, ends a case."""
    try:
        loop = Loop(*beginning).attach()
    except ValueError:
        assume(False)
    for event in events:
        loop = event(loop)
    return loop


def same(one, other):
    (ours, *rest), (theirs, *others) = one.outcome(), other.outcome()
    alike = len(ours) == len(theirs) and all(map(torch.equal, ours, theirs))
    return alike and rest == others


def search(part, idle):
    """Cases of events, some of which should make no difference."""
    found = given(beginnings(), st.lists(st.sampled_from([*TRAINING, *idle]), min_size=2, max_size=12))
    quick = settings(max_examples=max(NUM_CASES // part, 2), deadline=None, suppress_health_check=list(HealthCheck))
    return lambda test: quick(found(test))


@pytest.fixture(scope="module", autouse=True)
def group_of_one():
    gc.freeze()  # Python is asked for wrappers at every first step, and need not look through all that tests hold
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    gc.unfreeze()


@search(3, IDLE)
def test_what_should_change_nothing_changes_not_a_bit(beginning, events):
    changed = go_through(beginning, events)
    assert same(changed, go_through(beginning, [event for event in events if event not in IDLE]))


COMPILE = partial(compile_by, "eager")


@search(20, [*IDLE[-3:], COMPILE])
def test_compiling_changes_not_a_bit_where_the_backend_is_eager(beginning, events):
    events = [COMPILE, *events]
    changed = go_through(beginning, events)
    assert same(changed, go_through(beginning, [event for event in events if event in TRAINING]))


@search(300, IDLE)
def test_promises_hold_in_a_model_compiled_by_inductor(beginning, events):
    go_through(beginning, [partial(compile_by, "inductor"), *events])
