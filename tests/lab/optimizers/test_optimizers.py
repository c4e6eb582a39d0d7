"""Optimizers by name: what they make and refuse, and that a run of any of them goes on to the same bits."""

from pathlib import Path

import pytest
import torch
from small_runs import assert_same_result, small, stop_after
from torch import nn

from regrow.lab.config.component import read_component
from regrow.lab.run.loop import Options, train

CPU = torch.device("cpu")
COSINE = {"name": "cosine", "peak": 0.003, "warmup": 3, "floor": 0.1}


def made(settings):
    return read_component("optimizer", settings).build([nn.Parameter(torch.ones(2))], 0.1, CPU)


def test_each_makes_the_optimizer_of_torch_with_its_fields():
    assert made("SGD").defaults["nesterov"]
    adamw = made({"name": "AdamW", "betas": [0.9, 0.95], "weight_decay": 0})
    assert type(adamw) is torch.optim.AdamW
    assert adamw.defaults["betas"] == (0.9, 0.95)
    assert adamw.defaults["weight_decay"] == 0.0
    adagrad = made({"name": "Adagrad", "lr_decay": 0.01})
    assert type(adagrad) is torch.optim.Adagrad
    assert adagrad.defaults["lr_decay"] == 0.01


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"name": "AdamW", "betas": [0.9]}, "betas must be two numbers"),
        ({"name": "AdamW", "betas": [0.9, 1.0]}, "betas must be two numbers"),
        ({"name": "AdamW", "weight_decay": -1}, "weight_decay must be a number >= 0"),
        ({"name": "Adagrad", "lr": 0.1}, "has no field 'lr'"),
        ({"name": "RMSprop", "alpha": -3}, "cannot be made so: Invalid alpha"),
        ({"name": "Optimizer"}, "there is no optimizer 'Optimizer'"),
    ],
)
def test_what_makes_no_sense_is_refused(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        read_component("optimizer", settings)


@pytest.mark.parametrize("optimizer", ["AdamW", {"name": "RMSprop", "momentum": 0.9}])
def test_a_run_that_was_stopped_ends_with_the_same_bits(tmp_path: Path, optimizer):
    config = small(optimizer=optimizer, learning_rate=COSINE, clip=0.5, max_steps=25, epochs=None)
    train(config, tmp_path / "whole", Options(threads=1))
    stop_after(13, config, tmp_path / "halted")
    train(config, tmp_path / "halted", Options(threads=1))
    assert_same_result(tmp_path / "whole" / config.id, tmp_path / "halted" / config.id)


def test_a_run_of_so_many_steps_takes_just_these(tmp_path: Path):
    config = small(learning_rate=COSINE, max_steps=25, epochs=None)
    train(config, tmp_path, Options(threads=1))
    lines = (tmp_path / config.id / "metrics.csv").read_text().splitlines()[1:]
    assert [line.split(",")[1] for line in lines] == ["10", "20", "25"]
