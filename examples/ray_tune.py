"""Search sparsity and learning rate together with Ray Tune: ASHA stops early what does not look promising.

    python examples/ray_tune.py            # LeNet-300-100 on MNIST, 24 trials on all cores
    python examples/ray_tune.py --quick    # 4 short trials on made-up pictures

A method is a value, so that a trial is a plain function of its settings; what a trial reports are the numbers that
`sparse.metrics()` tells, beside the accuracy. There is nothing of regrow's in between. Trials are judged by a part of
the training set that was held out; the last lines tell the best of each sparsity.
"""

import argparse
from typing import Any

import ray
import torch
from ray import tune
from ray.tune.schedulers import ASHAScheduler
from torch.nn.functional import cross_entropy

import regrow
from regrow.lab.data import load
from regrow.lab.models import build, sparse_layers

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--quick", action="store_true", help="few short trials on data that need not be fetched")
parser.add_argument("--out", help="where Ray Tune keeps what it did; by default below the home folder")
arguments = parser.parse_args()


def trial(settings: dict[str, Any]) -> None:
    """Train with some settings, and tell after each epoch how well that goes."""
    torch.manual_seed(0)
    data = load(settings["data"], device="cpu")
    held_out = data.holding_out(0.1, seed=0)
    model = build("lenet_300_100")
    optimizer = torch.optim.SGD(model.parameters(), lr=settings["lr"], momentum=0.9, nesterov=True)
    method = regrow.DSR(sparsity=settings["sparsity"], prune=600, period=50)
    sparse = regrow.attach(model, optimizer, method, layers=sparse_layers(model))
    for epoch in range(settings["epochs"]):
        for images, labels in held_out.training_batches(epoch, 0, 100):
            cross_entropy(model(images), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
        [(images, labels)] = held_out.evaluation_batches(held_out.num_test)
        model.eval()
        accuracy = (model(images).argmax(1) == labels).double().mean().item()
        model.train()
        tune.report({"accuracy": accuracy, **sparse.metrics()})


epochs = 3 if arguments.quick else 10
space = {
    "sparsity": tune.grid_search([0.9, 0.98] if arguments.quick else [0.9, 0.95, 0.98, 0.99]),
    "lr": tune.loguniform(0.01, 0.3),
    "epochs": epochs,
    "data": "synthetic" if arguments.quick else "mnist",
}
ray.init(log_to_driver=False, logging_level="ERROR", include_dashboard=False)
found = tune.Tuner(
    tune.with_resources(trial, {"cpu": 1}),
    param_space=space,
    tune_config=tune.TuneConfig(
        num_samples=2 if arguments.quick else 6,
        scheduler=ASHAScheduler(max_t=epochs, grace_period=1, reduction_factor=2),
        metric="accuracy",
        mode="max",
        reuse_actors=True,
    ),
    run_config=tune.RunConfig(verbose=0, **({"storage_path": arguments.out} if arguments.out else {})),
).fit()
ray.shutdown()

whole = sum(result.metrics["training_iteration"] == epochs for result in found)
print(f"{whole} of {len(found)} trials were trained to the end, the others stopped before")
best: dict[float, Any] = {}
for result in sorted(found, key=lambda result: result.metrics["accuracy"]):
    best[result.config["sparsity"]] = result
for sparsity, result in sorted(best.items()):
    told = result.metrics
    print(f"sparsity {sparsity}: {told['active']:,} weights, {told['accuracy']:.2%} with a learning rate of "
          f"{result.config['lr']:.3g}, after {told['training_iteration']} of {epochs} epochs")  # fmt: skip
