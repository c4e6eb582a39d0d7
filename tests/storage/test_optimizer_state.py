"""Optimizers: which leave inactive weights alone, and why others are refused."""

import copy
import weakref

import pytest
import torch
from torch import nn, optim

from regrow.storage.optimizer_state import SeenState, check_leaves_zeros_alone, state_like


def weight(dtype: torch.dtype = torch.float32) -> nn.Parameter:
    return nn.Parameter(torch.linspace(-1, 1, 12, dtype=dtype).view(3, 4))


GOOD = [
    (optim.SGD, {}),
    (optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 5e-4}),
    (optim.SGD, {"momentum": 0.9, "dampening": 0.1, "maximize": True}),
    (optim.SGD, {"fused": True, "momentum": 0.9}),
    (optim.Adam, {}),
    (optim.Adam, {"amsgrad": True, "weight_decay": 0.1}),
    (optim.Adam, {"foreach": True}),
    (optim.Adam, {"fused": True}),
    (optim.AdamW, {"weight_decay": 0.1}),
    (optim.NAdam, {}),
    (optim.RAdam, {"decoupled_weight_decay": True, "weight_decay": 0.1}),
    (optim.RMSprop, {}),
    (optim.RMSprop, {"centered": True, "momentum": 0.9, "weight_decay": 0.1}),
    (optim.Adagrad, {}),
    (optim.Adagrad, {"initial_accumulator_value": 0.5}),
    (optim.Adadelta, {}),
    (optim.ASGD, {"t0": 0}),
]
BAD = [
    (optim.Adamax, "its state does not stay 0"),
    (optim.Rprop, "its state does not stay 0"),
    (optim.LBFGS, "no entry of its own"),
    (optim.SparseAdam, "trial step failed"),
]
MAY_BE_MISSING = [("Muon", "it moves weights that have no gradient"), ("Adafactor", "no entry of its own")]


@pytest.mark.parametrize(("kind", "options"), GOOD)
def test_these_leave_zeros_alone(kind, options):
    parameter = weight()
    check_leaves_zeros_alone(kind([parameter], lr=0.1, **options), [parameter])


@pytest.mark.parametrize(("kind", "why"), BAD)
def test_these_are_refused_with_a_reason_and_a_way_out(kind, why):
    parameter = weight()
    with pytest.raises(ValueError, match=rf"{kind.__name__} cannot train a sparse network: .*{why}.*such as SGD, Adam"):
        check_leaves_zeros_alone(kind([parameter], lr=0.1), [parameter])


@pytest.mark.parametrize(("name", "why"), MAY_BE_MISSING)
def test_so_are_these_where_torch_has_them(name, why):
    if not hasattr(optim, name):
        pytest.skip(f"this torch has no {name}")
    parameter = weight()
    with pytest.raises(ValueError, match=rf"{name} cannot train a sparse network: .*{why}"):
        check_leaves_zeros_alone(getattr(optim, name)([parameter], lr=0.1), [parameter])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kind", [optim.SGD, optim.AdamW])
def test_other_precisions_are_tried_in_kind(kind, dtype):
    parameter = weight(dtype)
    check_leaves_zeros_alone(kind([parameter], lr=0.1), [parameter])


def test_a_learning_rate_in_a_tensor_is_fine():
    parameter = weight()
    rate = torch.tensor(0.1)
    check_leaves_zeros_alone(optim.Adam([parameter], lr=rate), [parameter])
    assert rate == torch.tensor(0.1)


def test_trying_leaves_weights_state_gradients_and_settings_as_they_were():
    parameter = weight()
    optimizer = optim.Adam([parameter], lr=0.1)
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    before = parameter.detach().clone(), optimizer.state[parameter]["exp_avg"].clone(), parameter.grad.clone()
    check_leaves_zeros_alone(optimizer, [parameter])
    after = parameter.detach(), optimizer.state[parameter]["exp_avg"], parameter.grad
    assert all(map(torch.equal, before, after))
    assert list(optimizer.state) == [parameter]
    assert optimizer.param_groups[0]["params"] == [parameter]


def test_trying_runs_no_hooks_and_counts_no_step_of_a_scheduler(recwarn):
    parameter, seen = weight(), []
    optimizer = optim.SGD([parameter], lr=0.1)
    scheduler = optim.lr_scheduler.StepLR(optimizer, 1)
    optimizer.register_step_pre_hook(lambda *_: seen.append("pre"))
    optimizer.register_step_post_hook(lambda *_: seen.append("post"))
    check_leaves_zeros_alone(optimizer, [parameter])
    assert seen == []
    assert scheduler.get_last_lr() == [0.1]


class Custom(optim.Optimizer):
    """SGD with a bad habit that a group may switch on."""

    def __init__(self, params, habit=None):
        super().__init__(params, {"lr": 0.1, "habit": habit})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group["habit"])

    def _update(self, parameter, habit):
        state = self.state[parameter]
        parameter.sub_(parameter.grad, alpha=0.1)
        if habit == "noise" or (habit == "late noise" and state.setdefault("step", 0) >= 1):
            parameter.add_(torch.full_like(parameter, 1e-3))
        elif habit == "mixing":
            parameter.copy_(parameter - 0.1 * parameter.grad.mean(0, keepdim=True))
        elif habit == "warm state":
            state["ema"] = state.get("ema", torch.zeros_like(parameter)) + 1
        elif habit == "constant start":
            state["ema"] = state.get("ema", torch.ones_like(parameter)) * 0.9 + parameter.grad**2
        elif habit == "rows":
            state["rows"] = parameter.grad.norm(dim=1)
        elif habit == "list":
            state["memory"] = [parameter.grad.clone()]
        elif habit == "odd":
            raise KeyError("no idea")
        state["step"] = state.get("step", 0) + 1


@pytest.mark.parametrize("habit", [None, "constant start"])
def test_an_unknown_optimizer_is_accepted_if_it_behaves(habit):
    parameter = weight()
    check_leaves_zeros_alone(Custom([parameter], habit), [parameter])


@pytest.mark.parametrize(
    ("habit", "why"),
    [
        ("noise", "it moves weights that have no gradient"),
        ("late noise", "it moves weights that have no gradient"),
        ("mixing", "it moves weights that have no gradient"),
        ("warm state", "its state does not stay 0"),
        ("rows", "it keeps state that has no entry of its own"),
        ("list", "it keeps state that has no entry of its own"),
        ("odd", r"a trial step failed \(KeyError: 'no idea'\)"),
    ],
)
def test_an_unknown_optimizer_is_refused_for_what_it_does(habit, why):
    parameter = weight()
    with pytest.raises(ValueError, match=f"Custom cannot train a sparse network: {why}"):
        check_leaves_zeros_alone(Custom([parameter], habit), [parameter])


def test_every_group_is_tried_with_its_own_settings():
    good, bad = weight(), weight()
    optimizer = Custom([{"params": [good]}, {"params": [bad], "habit": "noise"}])
    with pytest.raises(ValueError, match="moves weights"):
        check_leaves_zeros_alone(optimizer, [good, bad])


def test_groups_without_sparse_parameters_may_do_as_they_like():
    good, bad = weight(), weight()
    check_leaves_zeros_alone(Custom([{"params": [good]}, {"params": [bad], "habit": "noise"}]), [good])


def test_later_steps_count_too():
    """RAdam divides by its eps, which is 0 in float16, in its sixth step."""
    parameter = weight(torch.float16)
    with pytest.raises(ValueError, match=r"RAdam cannot train .* it makes weights of torch\.float16 NaN or infinite"):
        check_leaves_zeros_alone(optim.RAdam([parameter], lr=0.1), [parameter])


class Hollow(optim.Optimizer):
    """What steps weights by another way than its groups."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})

    def step(self, closure=None):
        pass


def test_a_trial_that_moves_nothing_says_nothing_and_is_refused():
    parameter = weight()
    with pytest.raises(ValueError, match="Hollow cannot train a sparse network: 8 trial steps moved no weight"):
        check_leaves_zeros_alone(Hollow([parameter]), [parameter])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_small_learning_rate_still_moves_a_weight_of_0(dtype):
    parameter = weight(dtype)
    check_leaves_zeros_alone(optim.SGD([parameter], lr=1e-6), [parameter])


class ByList(optim.Optimizer):
    """One that keeps lists of its own, of parameters and of numbers, and goes by these."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1, "counts": [0]})
        self.mine, self.numbers = self.param_groups[0]["params"][:], {"steps": 0}

    @torch.no_grad()
    def step(self, closure):
        with torch.enable_grad():
            closure()
        self.numbers["steps"] += 1
        self.param_groups[0]["counts"].append(1)
        for parameter in self.mine:
            parameter.sub_(parameter.grad, alpha=0.1)


def test_trying_touches_nothing_that_an_optimizer_has():
    parameter = weight()
    before = parameter.detach().clone()
    optimizer = ByList([parameter])
    check_leaves_zeros_alone(optimizer, [parameter])
    assert torch.equal(parameter.detach(), before)
    assert optimizer.numbers == {"steps": 0}
    assert optimizer.param_groups[0]["counts"] == [0]


class Prepared(optim.Optimizer):
    """An Adagrad that makes its state when it is built, as torch's own did for years."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["sum"] = torch.zeros_like(parameter)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    total = self.state[parameter]["sum"].addcmul_(parameter.grad, parameter.grad)
                    parameter.addcdiv_(parameter.grad, total.sqrt().add_(1e-10), value=-group["lr"])


def test_state_made_when_the_optimizer_is_built_is_no_obstacle():
    parameter = weight()
    check_leaves_zeros_alone(Prepared([parameter]), [parameter])


def test_state_like_finds_every_tensor_with_an_entry_per_weight():
    parameter = weight()
    optimizer = optim.Adam([parameter], amsgrad=True)
    assert state_like(optimizer, parameter) == []
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    found = state_like(optimizer, parameter)
    names = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
    assert [id(tensor) for tensor in found] == [id(optimizer.state[parameter][name]) for name in names]


def test_looking_for_state_creates_none():
    parameter = weight()
    optimizer = optim.SGD([parameter], lr=0.1)
    state_like(optimizer, parameter)
    assert len(optimizer.state) == 0


def stepped(kind, **options):
    parameter = weight()
    optimizer = kind([parameter], lr=0.1, **options)
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return parameter, optimizer


@pytest.mark.parametrize(("kind", "options"), [(optim.SGD, {}), (optim.SGD, {"momentum": 0.9}), (optim.AdamW, {})])
def test_state_is_the_same_over_steps(kind, options):
    parameter, optimizer = stepped(kind, **options)
    seen = SeenState(optimizer, [parameter])
    for _ in range(3):
        optimizer.step()
    assert seen.is_current()


ANEW = {
    "cleared": lambda parameter, optimizer: optimizer.state.clear(),
    "cleared and made again": lambda parameter, optimizer: (optimizer.state.clear(), optimizer.step()),
    "loaded": lambda parameter, optimizer: optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict())),
    "replaced": lambda parameter, optimizer: optimizer.state[parameter].update(exp_avg=torch.zeros_like(parameter)),
    "more of it": lambda parameter, optimizer: optimizer.state[parameter].update(extra=torch.zeros_like(parameter)),
}


@pytest.mark.parametrize("what", ANEW)
def test_other_state_is_noticed_by_what_it_is(what):
    parameter, optimizer = stepped(optim.AdamW)
    seen = SeenState(optimizer, [parameter])
    ANEW[what](parameter, optimizer)
    assert not seen.is_current()


def test_state_that_was_seen_may_go():
    parameter, optimizer = stepped(optim.AdamW)
    seen, kept = SeenState(optimizer, [parameter]), weakref.ref(optimizer.state[parameter]["exp_avg"])
    optimizer.state.clear()
    assert kept() is None
    assert not seen.is_current()
