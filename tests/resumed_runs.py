"""A program: every method in every storage that takes it, trained from one step to another, and kept.

    python resumed_runs.py FIRST LAST LOAD SAVE      (LOAD is "-" where training begins)

One process trains them all, since most of the time of a fresh process goes into its imports.
"""

import itertools
import sys
from collections.abc import Iterator

import torch

import regrow
from regrow.methods import Method
from regrow.testing import OPTIMIZERS, Trial

STORAGES = {"dense": "dense", "packed": regrow.Packed(kernels="sparse")}  # two processes may measure differently
COARSE = {"DSR": "kernel", "RigL": "channel"}


def methods() -> Iterator[tuple[str, Method]]:
    for name, cls in regrow.METHODS.items():
        often = {} if cls.rewires_every_step or not cls.rewires else {"period": 3, "until": 18}
        yield name, cls(sparsity=0.8, **often)
        if name in COARSE:
            yield f"{name} of {COARSE[name]}s", cls(sparsity=0.8, granularity=COARSE[name], **often)


def trials(seed: int) -> Iterator[tuple[str, Trial]]:
    """What a storage refuses is left out; optimizers take turns."""
    optimizers = itertools.cycle(OPTIMIZERS.values())
    for name, method in methods():
        for storage in STORAGES:
            optimizer = next(optimizers)
            try:
                yield f"{name}, {storage}", Trial(method, optimizer, seed=seed, storage=STORAGES[storage])
            except ValueError:
                continue


def main(first: int, last: int, load: str, save: str) -> None:
    torch.set_num_threads(1)
    loaded = {} if load == "-" else torch.load(load, weights_only=True)
    kept = {}
    for name, trial in trials(seed=first):  # another seed where a state is loaded
        parts = (trial.model, trial.optimizer, trial.sparse)
        if loaded:
            for part, state in zip(parts, loaded[name], strict=True):
                part.load_state_dict(state)
        for _ in range(first, last):
            trial.step()
        kept[name] = [part.state_dict() for part in parts]
    torch.save(kept, save)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
