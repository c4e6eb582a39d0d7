"""Where a run is, on disk: the checkpoint that it goes on from, and the tables that tell about it."""

import io
import pickle
import zipfile
from typing import Any

import torch

from regrow.lab.config import Config
from regrow.lab.config.component import Settings
from regrow.lab.run.folder import METRICS, BadRun, RunFolder
from regrow.lab.run.state import STATE_FORMAT, Training


def save_checkpoint(folder: RunFolder, config: Config, training: Training, made_with: Settings) -> None:
    """Write where a run is, but never a network that went astray over a good one."""
    training.check_finite()
    state, content = training.state(), io.BytesIO()  # torch would not tell that a disk is full
    state["sparse"]["settings"] = repr(config.make_method(training.steps_per_epoch))  # which a branch has of its own
    write_tables(folder, training)
    if training.ranks.is_first:
        torch.save({**state, "id": config.id, "made_with": made_with}, content)
    folder.write("checkpoint.pt", content.getbuffer())


def read_checkpoint(folder: RunFolder, config: Config) -> dict[str, Any] | None:
    """What was saved last, if anything; all that is damaged is named before anything is written."""
    for table in ("metrics.csv", "layers.csv", "history.csv"):
        folder.read_table(table)
    path = folder.file("checkpoint.pt")
    if not path.exists():
        return None
    try:
        with zipfile.ZipFile(path) as archive:
            if broken := archive.testzip():
                raise zipfile.BadZipFile(f"its part {broken} does not match its checksum")
        saved: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
    except (zipfile.BadZipFile, pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise BadRun(f"{path} is damaged ({error}); delete it to train this run from the start") from None
    if saved.get("format") != STATE_FORMAT:
        raise BadRun(f"{path} is of another version of regrow; delete it to train this run from the start")
    if saved.get("id") != config.id:
        raise BadRun(f"{path} belongs to another run, {saved.get('id')}; delete it to train this run from the start")
    return saved


def write_tables(folder: RunFolder, training: Training) -> None:
    names = [layer.name for layer in training.sparse.layers]
    columns = ["step", "threshold", *(f"{what}:{name}" for what in ("pruned", "grown") for name in names)]
    history = [
        {
            "step": record.step,
            **({} if record.threshold is None else {"threshold": record.threshold}),
            **{f"pruned:{name}": count for name, count in record.pruned.items()},
            **{f"grown:{name}": count for name, count in record.grown.items()},
        }
        for record in training.sparse.history
    ]
    folder.write_table("history.csv", columns, history)
    folder.write_table("layers.csv", ["epoch", *names], training.layers)
    folder.write_table("metrics.csv", METRICS, training.metrics)
