"""Which moments an optimizer keeps: found by trying it, whatever it is called."""

import pytest
import torch
from torch import nn, optim

from regrow.storage.moments import moments_of


def found(kind, num_steps=0, **options):
    parameter = nn.Parameter(torch.linspace(-1, 1, 12).view(3, 4))
    optimizer = kind([parameter], **{"lr": 0.1, **options})
    for _ in range(num_steps):
        parameter.grad = torch.ones(3, 4)
        optimizer.step()
    return moments_of(optimizer, [parameter])[0]


ADAM = ({"exp_avg": 0.9}, {"exp_avg_sq": 0.999}, set())
KEPT = [
    (optim.Adam, {}, *ADAM),
    (optim.Adam, {"fused": True}, *ADAM),
    (optim.Adam, {"foreach": True, "maximize": True}, *ADAM),
    (optim.Adam, {"amsgrad": True}, {"exp_avg": 0.9}, {"exp_avg_sq": 0.999, "max_exp_avg_sq": 1}, set()),
    (optim.AdamW, {"betas": (0.8, 0.95)}, {"exp_avg": 0.8}, {"exp_avg_sq": 0.95}, set()),
    (optim.NAdam, {}, *ADAM),
    (optim.RAdam, {}, *ADAM),
    (optim.RMSprop, {"alpha": 0.9}, {}, {"square_avg": 0.9}, set()),
    (optim.RMSprop, {"alpha": 0.9, "centered": True}, {}, {"square_avg": 0.9}, set()),
    (optim.Adagrad, {}, {}, {"sum": 1}, set()),
    (optim.Adagrad, {"initial_accumulator_value": 0.5}, {}, {"sum": 1}, set()),
    (optim.Adadelta, {}, {}, {"square_avg": 0.9}, {"acc_delta"}),
    (optim.SGD, {"momentum": 0.9}, {"momentum_buffer": 0.9}, {}, set()),
    (optim.SGD, {}, {}, {}, set()),
]


@pytest.mark.parametrize("num_steps", [0, 3])
@pytest.mark.parametrize(("kind", "options", "first", "second", "others"), KEPT)
def test_means_are_told_from_what_they_do_and_with_their_decays(kind, options, first, second, others, num_steps):
    moments = found(kind, num_steps, **options)
    assert moments.first == pytest.approx(first)
    assert moments.second == pytest.approx(second)
    assert moments.others == others


@pytest.mark.parametrize(
    ("kind", "options", "changed"),
    [
        (optim.Adam, {}, {"betas": (0.8, 0.95)}),
        (optim.Adam, {"betas": (0.9, 0.9)}, {"betas": (0.8, 0.95)}),
        (optim.Adam, {"lr": 0.9, "weight_decay": 0.999}, {"betas": (0.8, 0.95)}),
        (optim.RMSprop, {}, {"alpha": 0.95}),
    ],
)
def test_decays_are_those_that_the_group_has_now(kind, options, changed):
    moments = found(kind, **options).of(changed)
    assert moments.second_decay == 0.95
    assert moments.first_decay == (0.8 if kind is optim.Adam else 0.0)


def test_momentum_of_what_was_divided_already_is_neither():
    assert found(optim.RMSprop, momentum=0.9).others == {"momentum_buffer"}


@pytest.mark.parametrize(
    ("kind", "is_corrected"),
    [(optim.Adam, True), (optim.NAdam, True), (optim.RAdam, True), (optim.RMSprop, False), (optim.Adagrad, False)],
)
def test_whether_an_update_depends_on_the_number_of_steps(kind, is_corrected):
    assert found(kind).is_corrected == is_corrected


@pytest.mark.parametrize(
    ("kind", "options", "is_apart"),
    [
        (optim.AdamW, {"weight_decay": 0.1}, True),
        (optim.AdamW, {"weight_decay": 0.0}, True),  # which a schedule may raise
        (optim.Adam, {"weight_decay": 0.1}, False),
        (optim.RAdam, {"weight_decay": 0.1, "decoupled_weight_decay": True}, True),
    ],
)
def test_whether_weight_decay_is_part_of_the_gradient(kind, options, is_apart):
    assert found(kind, **options).decays_apart == is_apart


def test_an_optimizer_with_other_names_for_them_is_understood():
    class Own(optim.Optimizer):
        def step(self):
            for group in self.param_groups:
                for parameter in group["params"]:
                    state = self.state[parameter]
                    for name in ("slow", "power"):
                        state.setdefault(name, torch.zeros_like(parameter))
                    state["slow"].mul_(0.5).add_(parameter.grad, alpha=0.5)
                    state["power"].mul_(0.75).addcmul_(parameter.grad, parameter.grad, value=0.25)
                    parameter.data.addcdiv_(state["slow"], state["power"].sqrt() + 1e-8, value=-group["lr"])

    parameter = nn.Parameter(torch.ones(2, 2))
    moments = moments_of(Own([parameter], {"lr": 0.1}), [parameter])[0]
    assert (moments.first, moments.second) == ({"slow": 0.5}, {"power": 0.75})
    assert not moments.is_corrected


def test_each_group_has_its_own_and_others_are_left_alone():
    ours, theirs, other = (nn.Parameter(torch.ones(2, 2)) for _ in range(3))
    groups = [{"params": [other]}, {"params": [ours]}, {"params": [theirs], "betas": (0.5, 0.75)}]
    moments = moments_of(optim.Adam(groups), [ours, theirs])
    assert {number: own.second_decay for number, own in moments.items()} == pytest.approx({1: 0.999, 2: 0.75})


def test_trying_leaves_the_optimizer_as_it_was():
    parameter = nn.Parameter(torch.ones(2, 2))
    optimizer = optim.Adam([parameter])
    moments_of(optimizer, [parameter])
    assert not optimizer.state
    assert torch.equal(parameter, torch.ones(2, 2))
