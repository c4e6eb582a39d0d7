"""The library's conformance suite, through a run of the lab: what is always true is true there too."""

from pathlib import Path

import pytest
import torch
from small_runs import small

from regrow.lab.run.start import begin
from regrow.lab.run.state import Training
from regrow.lab.run.steps import EagerSteps
from regrow.methods.method import METHODS
from regrow.testing import check_training


class LabTrial:
    """A run of the lab that takes one step at a time."""

    def __init__(self, method: str, root: Path) -> None:
        settings = {"name": method, "period": 1 if method == "DeepR" else 3, "until": 30}
        config = small(method=settings, start={"run": None, "weights": "fresh"}, stretch=1.0, epochs=2)
        device = torch.device("cpu")
        data = config.data.open(device)
        training = Training(config, data, device, begin(config, data, root))
        self.model, self.optimizer, self.sparse = training.model, training.optimizer, training.sparse
        self.training, self.steps = training, EagerSteps(training)

    def step(self) -> None:
        within = self.training.step % self.training.steps_per_epoch
        if within == 0:
            if self.training.step:
                self.training.finish_epoch(*self.steps.evaluate().read())
            self.steps.begin_epoch(0)
        self.steps.step()


@pytest.mark.parametrize("method", sorted(METHODS))
def test_what_is_always_true_is_true_in_the_lab(method: str, tmp_path: Path):
    trial = LabTrial(method, tmp_path)
    check_training(trial, trial.training.num_steps)
