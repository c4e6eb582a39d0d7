"""gpt and vit: their sizes by hand, what they look at, how they begin, and how they train sparsely."""

import importlib.util
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import regrow
from regrow.lab import models
from regrow.lab.config import make_config
from regrow.lab.models.thin import thin_width
from regrow.lab.models.transformer import Rotary
from regrow.lab.run.folder import RunFolder
from regrow.lab.run.loop import Options, train
from regrow.size import count_flops

SMALL_GPT = {"name": "gpt", "width": 16, "depth": 2, "heads": 2, "context": 12}
SMALL_VIT = {"name": "vit", "width": 24, "depth": 2}
KINDS = ["attention.qkv", "attention.out", "mlp.up", "mlp.down"]


def num_weights(model: nn.Module, names: list[str]) -> int:
    parameters = dict(model.named_parameters())
    return sum(parameters[name].numel() for name in names)


def num_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def block(width: int) -> int:
    """Matrices, biases and norms of a block."""
    return 12 * width**2 + (3 + 1 + 4 + 1) * width + 2 * 2 * width


def text(length: int, batch: int = 2) -> Tensor:
    return torch.randint(256, (batch, length), generator=torch.Generator().manual_seed(0))


def test_gpt_by_hand() -> None:
    model = models.build(SMALL_GPT)
    assert num_parameters(model) == 256 * 16 + 12 * 16 + 2 * block(16) + 2 * 16 + 16 * 256
    assert models.sparse_layers(model) == [f"blocks.{i}.{kind}.weight" for i in (0, 1) for kind in KINDS]
    assert num_weights(model, models.sparse_layers(model)) == 2 * 12 * 16**2
    assert model(text(12)).shape == (2, 12, 256)
    assert model(text(5)).shape == (2, 5, 256)


@pytest.mark.parametrize(("field", "fewer"), [({"positions": "rotary"}, 12 * 16), ({"tied": True}, 256 * 16)])
def test_gpt_without_a_table_of_positions_or_an_output_of_its_own(field: dict, fewer: int) -> None:
    model, usual = models.build({**SMALL_GPT, **field}), models.build(SMALL_GPT)
    assert num_parameters(usual) - num_parameters(model) == fewer
    assert models.sparse_layers(model) == models.sparse_layers(usual)
    assert model(text(12)).shape == (2, 12, 256)


def test_vit_by_hand() -> None:
    model = models.build(SMALL_VIT, num_classes=7)
    assert num_parameters(model) == (3 * 4 * 4 * 24 + 24) + 64 * 24 + 2 * block(24) + 2 * 24 + (24 * 7 + 7)
    assert models.sparse_layers(model) == [f"blocks.{i}.{kind}.weight" for i in (0, 1) for kind in KINDS]
    assert model(torch.randn(3, 3, 32, 32)).shape == (3, 7)
    wide = models.build({**SMALL_VIT, "patch": 8}, image_shape=(1, 16, 32), num_classes=2)
    assert wide(torch.randn(3, 1, 16, 32)).shape == (3, 2)
    assert wide.positions.shape == (2 * 4, 24)


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_a_later_byte_changes_no_earlier_logit(positions: str) -> None:
    torch.manual_seed(0)
    model = models.build({**SMALL_GPT, "positions": positions})
    before = text(12)
    after = before.clone()
    after[:, 7] = 255 - after[:, 7]
    one, other = model(before), model(after)
    assert torch.equal(one[:, :7], other[:, :7])
    assert (one[:, 7:] != other[:, 7:]).any(-1).all()


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_gpt_sees_in_which_order_bytes_came(positions: str) -> None:
    torch.manual_seed(0)
    model = models.build({**SMALL_GPT, "depth": 1, "positions": positions})  # one block alone sees a set
    one, other = model(text(4)), model(text(4)[:, [1, 0, 2, 3]])
    assert not torch.allclose(one[:, -1], other[:, -1], rtol=1e-7, atol=1e-7)


def test_rotary_attention_depends_on_how_far_apart_positions_are() -> None:
    rotary = Rotary(6, 9)
    query, key = (torch.randn(6, generator=torch.Generator().manual_seed(seed)).expand(9, 6) for seed in (0, 1))
    scores = rotary(query) @ rotary(key).T
    for distance in range(-8, 9):
        along = scores.diagonal(distance)
        torch.testing.assert_close(along, along[:1].expand_as(along))
    assert torch.equal(rotary(query)[0], query[0]), "the first position is not turned"
    assert rotary(query.bfloat16()).dtype == torch.bfloat16


def test_weights_begin_as_in_gpt_2() -> None:
    torch.manual_seed(0)
    model = models.build({"name": "gpt", "width": 128, "depth": 3, "heads": 2, "context": 64})
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            std = 0.02 / math.sqrt(2 * 3) if name.endswith(("out.weight", "down.weight")) else 0.02
            assert parameter.std().item() == pytest.approx(std, rel=5 / math.sqrt(parameter.numel())), name
        else:
            assert (parameter == (1 if "norm" in name and name.endswith("weight") else 0)).all(), name


def test_before_training_every_byte_is_as_likely() -> None:
    torch.manual_seed(0)
    logits = models.build(SMALL_GPT)(text(12)).detach()
    bits_per_byte = functional.cross_entropy(logits.flatten(0, 1), text(12).flatten()) / math.log(2)
    assert float(bits_per_byte) == pytest.approx(8, abs=0.1)


@pytest.mark.parametrize(
    ("model", "within"),
    [
        ({"name": "gpt", "depth": 1}, 0.02),
        ({"name": "vit", "depth": 1}, 0.02),
        ({"name": "gpt", "depth": 1, "positions": "rotary"}, 0.08),
    ],
    ids=["gpt", "vit", "rotary"],
)
@pytest.mark.parametrize("sparsity", [0.5, 0.8, 0.9])
def test_thin_ones_come_close_to_the_length_of_the_sparse_ones(model: dict, within: float, sparsity: float) -> None:
    with torch.device("meta"):
        whole, thin = models.build(model), models.build(model, width=thin_width(model, sparsity))
    wanted = (1 - sparsity + 1 / 32) * num_weights(whole, models.sparse_layers(whole))
    # Every head keeps a whole number of values, with rotary positions an even one.
    assert num_weights(thin, models.sparse_layers(thin)) == pytest.approx(wanted, rel=within)


def test_the_narrowest_still_has_its_heads() -> None:
    assert models.build(SMALL_GPT, width=1e-6).positions.shape == (12, 2)
    rotary = models.build({**SMALL_GPT, "positions": "rotary"}, width=1e-6)
    assert rotary.embedding.weight.shape == (256, 4)
    assert rotary(text(12)).shape == (2, 12, 256)


def test_flops_count_every_active_weight_once_for_each_token() -> None:
    model = models.build(SMALL_GPT)
    blocks, head = 2 * 12 * 16**2, 16 * 256
    assert count_flops(model, (12,), {}) == 2 * 12 * (blocks + head)
    assert count_flops(models.build({**SMALL_GPT, "tied": True}), (12,), {}) == 2 * 12 * (blocks + head)
    half = torch.zeros(48, 16).bool()
    half[:24] = True
    assert count_flops(model, (12,), {"blocks.0.attention.qkv.weight": half}) == 2 * 12 * (blocks - 24 * 16 + head)
    vit = models.build(SMALL_VIT)
    assert count_flops(vit, (3, 32, 32), {}) == 2 * (64 * (48 * 24 + 2 * 12 * 24**2) + 24 * 10)


@pytest.mark.parametrize("storage", ["dense", "packed"])
@pytest.mark.parametrize("method", [regrow.DSR(sparsity=0.75, prune=40, period=2), regrow.SET(sparsity=0.75, period=2)])
@pytest.mark.parametrize(
    "given",
    [{**SMALL_GPT, "tied": True}, {**SMALL_GPT, "positions": "rotary"}, SMALL_VIT],
    ids=["tied", "rotary", "vit"],
)
def test_trained_sparsely_by_adamw(given: dict, method: regrow.Method, storage: str) -> None:
    torch.manual_seed(0)
    model = models.build(given)
    names, everything = models.sparse_layers(model), num_parameters(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    sparse = regrow.attach(model, optimizer, method, layers=names, storage=storage)
    inputs = text(12, 8) if given["name"] == "gpt" else torch.randn(8, 3, 32, 32)
    labels = inputs.flatten() if given["name"] == "gpt" else torch.arange(8)
    losses = []
    for _ in range(6):
        loss = functional.cross_entropy(model(inputs).flatten(0, -2), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert [layer.name for layer in sparse.layers] == names
    positions = sum(math.prod(layer.shape) for layer in sparse.layers)
    assert sparse.active == sparse.budget == positions // 4
    assert len(sparse.history) == 3
    masks = sparse.masks()
    sparse.detach()
    assert num_parameters(model) == everything
    assert all((parameter[~masks[name]] == 0).all() for name, parameter in model.named_parameters() if name in masks)


def run(root: Path, **settings: Any) -> dict[str, Tensor]:
    """Weights of a few steps of a small vit."""
    model = {**SMALL_VIT, "width": 12, "depth": 1, "patch": 8}
    length = {"data": "synthetic_colour", "batch_size": 50, "max_steps": 12, "optimizer": "AdamW"}
    rate = {"learning_rate": {"name": "cosine", "peak": 0.01, "warmup": 3}}
    config = make_config({"model": model, "method": "SET", "sparsity": 0.8, **length, **rate, **settings})
    train(config, root, Options(threads=1))
    return RunFolder(root / config.id).read_tensors("final_weights")


@pytest.mark.parametrize(
    "settings", [{"method": {"name": "SET", "period": 5}}, {"method": "Dense", "width": "thin"}], ids=["SET", "thin"]
)
def test_a_run_follows_from_its_seed(settings: dict, tmp_path: Path) -> None:
    one = run(tmp_path / "one", **settings)
    torch.rand(7)
    twin = run(tmp_path / "twin", **settings)
    assert all(torch.equal(value, twin[name]) for name, value in one.items())
    other = run(tmp_path / "one", **settings, seed=1)
    assert not torch.equal(one["positions"], other["positions"])


def test_tied_weights_come_back_out_of_the_folder_of_a_run(tmp_path: Path) -> None:
    one, other = models.build({**SMALL_GPT, "tied": True}), models.build({**SMALL_GPT, "tied": True})
    folder = RunFolder(tmp_path)
    folder.write_tensors("final_weights", one.state_dict())
    other.load_state_dict(folder.read_tensors("final_weights"))
    assert torch.equal(other(text(12)), one(text(12)))


def test_names_and_titles_tell_networks_apart() -> None:
    gpt = models.read_model({"name": "gpt", "depth": 2, "positions": "rotary"})
    assert (str(gpt), gpt.title) == ("gpt_2x512", "GPT 2x512 (positions=rotary)")
    assert models.read_model("vit_4x96") == models.read_model({"name": "vit", "depth": 4, "width": 96})
    assert models.read_model("gpt") == models.read_model("gpt_6x512")
    assert (models.read_model("vit").title, models.read_model("gpt").said()) == ("ViT 12x192", "gpt")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"name": "gpt", "width": 510}, "model.width must be a multiple of 8 for 8 heads, got 510; 512 is one"),
        ({"name": "gpt", "width": 24, "positions": "rotary"}, "a multiple of 16 for 8 heads, got 24; 32 is one"),
        ({"name": "gpt", "context": 0}, "model.context must be a whole number >= 1, got 0"),
        ({"name": "gpt", "heads": 0}, "model.heads must be a whole number >= 1, got 0"),
        ({"name": "gpt", "positions": "none"}, "model.positions must be one of learned, rotary, got 'none'"),
        ({"name": "gpt", "tied": "yes"}, "model.tied must be true or false, got 'yes'"),
        ({"name": "vit", "patch": 2.5}, "model.patch must be a whole number >= 1, got 2.5"),
        ({"name": "vit", "contxt": 8}, "model vit has no field 'contxt'; it has depth, heads, patch, width"),
    ],
)
def test_sizes_that_cannot_be_are_refused(given: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        models.read_model(given)


def test_data_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"gpt reads bytes, .* images of \(3, 32, 32\); say data=text:PATH"):
        models.build("gpt", image_shape=(3, 32, 32))
    with pytest.raises(ValueError, match=r"patches of 4 do not divide inputs of shape \(3, 30, 32\)"):
        models.build("vit", image_shape=(3, 30, 32))
    with pytest.raises(ValueError, match="13 tokens are more than the network's context of 12"):
        models.build(SMALL_GPT)(text(13))


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxscript", "onnxruntime")),
    reason="needs the packages of regrow[onnx]",
)
@pytest.mark.parametrize(
    "given", [{**SMALL_GPT, "depth": 1, "positions": "rotary"}, {**SMALL_VIT, "depth": 1}], ids=["gpt", "vit"]
)
def test_they_are_exported_to_onnx(given: dict, tmp_path: Path) -> None:
    model = models.build(given)
    example = text(12) if given["name"] == "gpt" else torch.randn(2, 3, 32, 32)
    difference = regrow.export_onnx(tmp_path / "m.onnx", model, example)
    assert difference is not None
    assert difference < 1e-5
