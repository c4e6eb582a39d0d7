"""Where a run begins: fresh or another run's weights, and which of them are allowed (lottery tickets)."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path

import torch
from torch import Tensor, nn

from regrow.core.random import bits, key
from regrow.lab.config import Config, parent_id, parent_of
from regrow.lab.data import Data
from regrow.lab.models import Inputs
from regrow.lab.models.seeded import build_from_seed
from regrow.lab.models.thin import thin_width
from regrow.lab.run.folder import BadRun, RunFolder

_WEIGHTS, _TOPOLOGY = int.from_bytes(b"weights"), int.from_bytes(b"places")


@dataclass(frozen=True)
class Beginning:
    """A model with its first weights, before masking, and what `attach` is to start its topology from."""

    model: nn.Module
    topology: str | dict[str, Tensor]


def begin(config: Config, data: Data, root: Path) -> Beginning:
    """Build the model of a run as its config says; other runs are looked for under `root`."""
    parent = _finished_parent(config, root)
    model = build_model(config, data)
    if parent and config.start.weights != "fresh":
        try:
            model.load_state_dict(parent.read_tensors(f"{config.start.weights}_weights"))
        except RuntimeError as error:
            raise BadRun(f"the weights of {parent.path} do not fit: {error}") from None
    topology: str | dict[str, Tensor] = config.start.topology
    if parent and topology in ("final", "counts"):
        masks = _masks(parent)
        topology = masks if topology == "final" else _shuffled(masks, config.seed)
    return Beginning(model, topology)


def _finished_parent(config: Config, root: Path) -> RunFolder | None:
    """The folder of the run that this one starts from, if there is one."""
    name, parent = parent_id(config), parent_of(config)
    if name is None:
        return None
    folder = RunFolder(root / name)
    if not (folder.has_finished(parent) if parent else folder.is_finished):
        raise BadRun(f"this run starts from {folder.path}, which is not there or not finished; train that one first")
    return folder


def build_model(config: Config, inputs: Inputs) -> nn.Module:
    """The network with weights drawn from the run's seed; other weights than those of the run it starts from."""
    width = thin_width(config.model, config.sparsity, inputs) if config.is_thin else float(config.width)
    _check_room(config, width, inputs)
    return build_from_seed(config.model, inputs, width, key(config.seed, _generation(config), _WEIGHTS))


def _check_room(config: Config, width: float, inputs: Inputs) -> None:
    """Refuse a network that no memory of this machine could hold."""
    try:
        with torch.device("meta"):  # shapes only
            model = config.model.build(inputs, width)
        needed = sum(parameter.nbytes for parameter in model.parameters()) / 2**30
    except Exception as error:  # some networks cannot be built without values; where that fails, it is told then
        if "overflow" not in str(error):
            return
        needed = inf
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    if needed > there:
        raise ValueError(
            f"the weights of {config.model} with width {width:g} would take {needed:,.0f} GiB, and this machine has "
            f"{there:,.0f}; choose a smaller network"
        )


def _generation(config: Config) -> int:
    """How many runs there are before this one, each of which the next one starts from."""
    parent = parent_of(config)
    return 0 if config.start.run is None else 1 + (_generation(parent) if parent else 0)


def _masks(folder: RunFolder) -> dict[str, Tensor]:
    masks = folder.read_tensors("final_topology")
    if not masks:
        raise BadRun(f"{folder.path} has no topology to start from; its method keeps no masks")
    return masks


def _shuffled(masks: Mapping[str, Tensor], seed: int) -> dict[str, Tensor]:
    """Random masks with as many active weights in each layer."""
    shuffled = {}
    for number, (name, mask) in enumerate(sorted(masks.items())):
        order = bits(key(seed, number, _TOPOLOGY), torch.arange(mask.numel())).argsort(stable=True)
        chosen = torch.zeros(mask.numel(), dtype=torch.bool)
        chosen[order[: int(mask.count_nonzero())]] = True
        shuffled[name] = chosen.view(mask.shape)
    return shuffled
