"""Finished runs as files for other programs."""

import os
from pathlib import Path

import torch
from torch import Tensor, nn

import regrow
from regrow.files.export import check_place, choose_format, export_content
from regrow.files.onnx import check_packages
from regrow.files.stored import Content
from regrow.lab.config import Config
from regrow.lab.models import Inputs, sparse_layers
from regrow.lab.models.seeded import build_from_seed
from regrow.lab.run.folder import BadRun, RunFolder
from regrow.lab.run.start import build_model
from regrow.methods import METHODS


def export_run(path: Path, out: str | os.PathLike[str], format: str | None = None) -> float | None:
    """Write the network a run ended with, in any format; what comes back is what `regrow.export_onnx` says."""
    folder, format = RunFolder(path), choose_format(out, format)
    config = folder.config()
    if not folder.is_finished:
        raise BadRun(f"{path} is not finished; train it to its end first")
    check_place(out)
    if format == "onnx":
        check_packages()
        inputs = _inputs_of(config)
        return regrow.export_onnx(out, _network(folder, config, inputs), _example(config, inputs))
    shares_values = METHODS[config.method_name].storage == "hashed"
    if shares_values and format == "sparse":
        raise ValueError(f"the positions of {path} share values: it has no sparse form; say --format dense")
    export_content(_expanded(folder, config) if shares_values else _content(folder, config), out, format)
    return None


def _content(folder: RunFolder, config: Config) -> Content:
    """What is in a run's folder, in the order of the network."""
    outline = _outline(config)
    order = {name: number for number, name in enumerate(outline.state_dict())}
    state, masks = (
        dict(sorted(folder.read_tensors(f"final_{what}").items(), key=lambda item: order.get(item[0], len(order))))
        for what in ("weights", "topology")
    )
    is_sparse = not all(bool(mask.all()) for mask in masks.values())
    return Content(state, masks if is_sparse else {}, _made_by(folder, config), _buffers_of(outline))


def _outline(config: Config) -> nn.Module:
    """The network with any values, to know its names, which no data set need be opened for."""
    return build_from_seed(config.model, config.data.inputs or config.model.usual, 1.0, config.seed)


def _buffers_of(model: nn.Module) -> set[str]:
    return {name for name, _ in model.named_buffers(remove_duplicate=False)}


def _made_by(folder: RunFolder, config: Config) -> dict[str, str]:
    summary = folder.summary()
    assert summary is not None
    method = config.make_method(summary["steps"] // summary["epochs"])
    return {"method": repr(method), "step": str(summary["steps"]), "torch": summary["provenance"]["torch"]}


def _expanded(folder: RunFolder, config: Config) -> Content:
    model = _network(folder, config, _inputs_of(config))
    return Content(dict(model.state_dict()), {}, _made_by(folder, config), _buffers_of(model))


def _inputs_of(config: Config) -> Inputs:
    """What the network expects; a data set need not be fetched for that."""
    told = config.data.inputs
    return config.data.open("cpu") if told is None else told


def _example(config: Config, inputs: Inputs) -> Tensor:
    """A made-up image, or as many tokens as a language model sees."""
    generator = torch.Generator().manual_seed(0)
    context = getattr(config.model, "context", None)
    if context is not None:
        return torch.randint(inputs.num_classes, (1, context), generator=generator)
    return torch.randn(1, *inputs.image_shape, generator=generator)


def _network(folder: RunFolder, config: Config, inputs: Inputs) -> nn.Module:
    """The plain network with the final weights in it."""
    model = build_model(config, inputs)
    weights = folder.read_tensors("final_weights")
    try:
        if METHODS[config.method_name].storage == "hashed":
            _load_shared(model, weights, config)
        else:
            model.load_state_dict(weights)
    except RuntimeError as error:
        raise BadRun(f"the final weights of {folder.path} do not fit its config: {error}") from None
    return model


def _load_shared(model: nn.Module, weights: dict[str, Tensor], config: Config) -> None:
    """Share values as the run did, which follows from its seed, and put dense weights in their place."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sparse = regrow.attach(model, optimizer, config.make_method(1), layers=sparse_layers(model), seed=config.seed)
    model.load_state_dict(weights)
    sparse.detach()
