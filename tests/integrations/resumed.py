"""A program: train every case of some trainers, from the beginning or on from what another process saved.

    python resumed.py TRAINERS begin|resume FOLDER      (TRAINERS are modules that have some, e.g. in_lightning)

Each rank keeps what came of it, FOLDER/begin-0.pt and so on; and, if there are several, how what cannot be right is
refused.
"""

import importlib
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch


def main(trainers: str, stage: str, folder: Path) -> None:
    torch.set_num_threads(1)
    rank = int(os.environ.get("RANK", 0))
    kept = {}
    folder.mkdir(exist_ok=True)
    for name in trainers.split(","):
        module = importlib.import_module(name)
        options = module.RANKS if "RANK" in os.environ else {}
        for case in module.CASES:
            kept[name, case] = module.fit(case, folder / name, resume=stage == "resume", **options)
        for case, wrong in module.REFUSED.items() if options and stage == "begin" else ():
            kept[name, case] = refusal(partial(wrong, folder / name, rank))
    torch.save(kept, folder / f"{stage}-{rank}.pt")


def refusal(wrong: Callable[[], None]) -> str:
    try:
        wrong()
    except (ValueError, RuntimeError) as error:
        return str(error)
    return "nobody said anything"


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
