"""Packed storage in all kinds of training loops."""

import pytest
import torch
from test_packed import METHODS, Run, assert_same
from torch.nn.functional import cross_entropy

pytestmark = pytest.mark.parametrize("name", ["DSR", "RigL"])


def test_accumulated_gradients(name):
    """Where growth goes by gradients, the last backward pass counts, so here both see the same pictures."""
    runs = [Run(METHODS[name], storage) for storage in ("dense", "packed")]
    for run in runs:
        for _ in range(6):
            for _ in range(2):
                run.backward()
            run.optimizer.step()
            run.optimizer.zero_grad()
    assert_same(*runs)


def test_gradients_that_are_never_thrown_away(name):
    runs = [Run(METHODS[name], storage) for storage in ("dense", "packed")]
    for run in runs:
        for _ in range(5):
            run.optimizer.zero_grad(set_to_none=False)
            run.backward()
            run.optimizer.step()
    assert_same(*runs)


def test_closures(name):
    runs = [Run(METHODS[name], storage) for storage in ("dense", "packed")]
    for run in runs:

        def closure(run=run):
            run.optimizer.zero_grad()
            return run.backward()

        for _ in range(6):
            run.optimizer.step(closure)
    assert_same(*runs)


def test_a_grad_scaler_that_skips_steps(name):
    runs = [Run(METHODS[name], storage) for storage in ("dense", "packed")]
    for run in runs:
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        for step in range(8):
            loss = cross_entropy(run.model(run.images), run.labels)
            scaler.scale(loss * (float("inf") if step == 3 else 1)).backward()
            scaler.step(run.optimizer)
            scaler.update()
            run.optimizer.zero_grad()
        assert run.sparse.num_steps == 7
    assert_same(*runs)


def test_a_schedule_of_learning_rates_and_clipping(name):
    runs = [Run(METHODS[name], storage) for storage in ("dense", "packed")]
    for run in runs:
        schedule = torch.optim.lr_scheduler.StepLR(run.optimizer, 2, 0.5)
        for _ in range(6):
            run.backward()
            run.sparse.mask_gradients()
            torch.nn.utils.clip_grad_norm_(run.model.parameters(), 0.5)
            run.optimizer.step()
            run.optimizer.zero_grad()
            schedule.step()
    assert_same(*runs)


def test_compiled(name):
    plain, compiled = Run(METHODS[name]), Run(METHODS[name])
    inner = compiled.model
    compiled.model = torch.compile(inner, backend="aot_eager")
    plain.train(6)
    compiled.train(6)
    compiled.model = inner
    assert_same(plain, compiled)


def test_a_gradient_that_was_thrown_away_is_not_taken_for_its_successor(name):
    """The L1 term is added to each gradient once: to the one after a skipped step, too, but not to a clipped copy."""
    runs = [Run(METHODS[name], storage) for storage in ("dense", "packed")]
    for run in runs:
        for step in range(6):
            run.backward()
            run.sparse.mask_gradients()
            for parameter in run.model.parameters():
                parameter.grad = parameter.grad.clamp(-1, 1)
            if step % 3 != 1:  # as a GradScaler may leave out
                run.optimizer.step()
            run.optimizer.zero_grad()
    assert_same(*runs)
