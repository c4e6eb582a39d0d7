"""Whatever fails while attaching, model and optimizer are as they were, and can be attached to the next moment."""

import copy
from dataclasses import dataclass

import pytest
import torch

import regrow
from regrow.methods import Method
from regrow.methods.effects.effect import Effect
from restored_runs import Run, same

STORAGES = ("dense", "packed")


class Failing(Effect):
    def attach(self, weights, optimizer, seed):
        raise OSError("no room")


@dataclass(frozen=True, kw_only=True)  # and not a @method, which all tests of methods would find
class FailsInAnEffect(Method):
    """Brings an effect that cannot begin."""

    def effects(self):
        return [Failing()]


@dataclass(frozen=True, kw_only=True)  # and not a @method, which all tests of methods would find
class FailsInACount(Method):
    """Cannot say how many weights go, which packed storage asks for beforehand."""

    needs = frozenset({"free_gradient"})

    def prune_counts(self, tally, step):
        raise OSError("no idea")


class WithoutHooks(torch.optim.SGD):
    """One that takes no hooks, as optimizers in wrappers may be."""

    def register_step_pre_hook(self, hook):
        raise AttributeError("'WithoutHooks' object has no attribute '_optimizer_step_pre_hooks'")


class WithOneHook(torch.optim.SGD):
    def register_step_post_hook(self, hook):
        raise AttributeError("'WithOneHook' object has no attribute '_optimizer_step_post_hooks'")


def check_untouched(method, storage, error, kind=None):
    run = Run()
    if kind is not None:
        run.optimizer = kind(run.model.parameters(), lr=0.1, momentum=0.9)
    before, parameters = run.all(), list(run.model.parameters())
    seats = copy.copy(run.optimizer.param_groups[0]["params"])
    with pytest.raises(error):
        regrow.attach(run.model, run.optimizer, method, storage=storage)
    assert same(run.all(), before)
    assert all(one is other for one, other in zip(run.model.parameters(), parameters, strict=True))
    assert all(one is other for one, other in zip(run.optimizer.param_groups[0]["params"], seats, strict=True))
    assert not run.optimizer._optimizer_step_pre_hooks
    assert not run.optimizer._optimizer_step_post_hooks
    return run


@pytest.mark.parametrize("storage", STORAGES)
def test_an_effect_that_cannot_begin(storage):
    run = check_untouched(FailsInAnEffect(sparsity=0.8), storage, OSError)
    run.attach(regrow.SET(sparsity=0.8), storage=storage).train(1)


def test_a_count_that_cannot_be_said():
    run = check_untouched(FailsInACount(sparsity=0.8, period=1), "packed", OSError)
    run.attach(regrow.SET(sparsity=0.8), storage="packed").train(1)


@pytest.mark.parametrize("kind", [WithoutHooks, WithOneHook])
@pytest.mark.parametrize("storage", STORAGES)
def test_an_optimizer_that_takes_no_hooks(storage, kind):
    run = check_untouched(regrow.SET(sparsity=0.8), storage, AttributeError, kind)
    run.optimizer = torch.optim.SGD(run.model.parameters(), lr=0.1)
    run.attach(regrow.SET(sparsity=0.8), storage=storage).train(1)


@pytest.mark.parametrize("kind", [WithoutHooks, WithOneHook])
def test_shared_values_and_an_optimizer_that_takes_no_hooks(kind):
    check_untouched(regrow.Hashed(sparsity=0.8), "dense", AttributeError, kind)
