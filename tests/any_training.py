"""Any training: a random method, network and optimizer, for properties that hold for all of them."""

import torch
from hypothesis import strategies as st
from torch import nn

import regrow
from every_method import choices, goes_by_weight, make

OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=1e-2),
    "SGD, Nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-2),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=1e-2, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.9, centered=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05, initial_accumulator_value=0.1),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
}


@st.composite
def methods(draw):
    cls = regrow.METHODS[draw(st.sampled_from(sorted(regrow.METHODS)))]
    options = {"sparsity": draw(st.floats(0.0, 0.95)), "l1": draw(st.sampled_from([0.0, 1e-3]))}
    options["distribution"] = draw(st.sampled_from(["uniform", "er", "erk"]))
    if not cls.rewires_every_step:
        options["period"] = draw(st.integers(1, 3))
    if not goes_by_weight(cls):
        options["granularity"] = draw(st.sampled_from(["weight", "kernel", "channel"]))
    options |= {field: draw(st.sampled_from(ways)) for field, ways in choices(cls).items()}
    if cls is regrow.DSR:
        options |= {"prune": draw(st.one_of(st.integers(0, 60), st.floats(0, 1))), "threshold": 0.05}
    if cls is regrow.SET:
        options["fraction"] = draw(st.one_of(st.integers(0, 60), st.floats(0, 1)))
    if cls in (regrow.Gradual, regrow.TopK):
        options["until"] = 6
    if cls is regrow.TopK:
        options |= {"period": draw(st.integers(1, 3)), "ramp": draw(st.sampled_from([0.0, 0.5, 1.0]))}
    return make(cls, **options, temperature=1e-4)


@st.composite
def moments(draw, method, optimizer):
    """How moments of what grows begin, where method and optimizer leave a choice."""
    if optimizer.startswith("SGD") or method.rewires_every_step or "dense_step" in method.needs:
        return "clean"
    is_mean = optimizer in ("Adam", "AdamW", "NAdam")
    return draw(st.sampled_from(["clean", "informed", *(["aged"] if is_mean else [])]))


@st.composite
def networks(draw):
    """A few convolutions and linear layers of odd sizes, behind each other; they eat images of 2 x 4 x 4."""
    channels = draw(st.lists(st.integers(1, 7), min_size=1, max_size=3))
    kernels = [draw(st.sampled_from([1, 3])) for _ in channels]
    widths = draw(st.lists(st.integers(1, 20), min_size=1, max_size=2))
    parts, last = [], 2
    for num_out, kernel in zip(channels, kernels, strict=True):
        parts += [nn.Conv2d(last, num_out, kernel, padding=kernel // 2), nn.Tanh()]
        last = num_out
    parts.append(nn.Flatten())
    last *= 16
    for width in widths:
        parts += [nn.Linear(last, width), nn.Tanh()]
        last = width
    return nn.Sequential(*parts)
