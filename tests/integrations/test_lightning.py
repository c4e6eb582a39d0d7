"""Lightning's Trainer: with the callback, and what users do by hand."""

import csv

import pytest
import torch
from torch import nn

import regrow

L = pytest.importorskip("lightning.pytorch")

from in_lightning import CASES, STEPS, Classifier, Packed, batches, fit, trainer
from lightning.pytorch.callbacks import ModelCheckpoint, StochasticWeightAveraging
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.tuner import Tuner
from processes import differences, run

from regrow.integrations.lightning import Sparsify
from regrow.testing import check_invariants

DSR = regrow.DSR(sparsity=0.8, period=3)
RIGL = regrow.RigL(sparsity=0.8, period=3, until=12)
STATIC = regrow.Static(sparsity=0.8)


def sparse_fit(folder, *others, method=DSR, module=None, **options):
    module, callback = module or Classifier(), Sparsify(method)
    trainer(folder, callback, *others, **options).fit(module, batches())
    return module, callback.sparse


def is_sparse(module, sparse):
    """By its weights, whatever the sparsifier counts."""
    check_invariants(module, sparse.optimizer, sparse)
    return sum(int(module.get_parameter(name).count_nonzero()) for name in sparse.masks()) <= sparse.budget


# The callback


def test_a_stock_trainer_trains_a_sparse_network(tmp_path):
    module, sparse = sparse_fit(tmp_path)
    assert sparse.num_steps == STEPS
    assert [record.step for record in sparse.history] == [3, 6, 9, 12, 15]
    assert is_sparse(module, sparse)


def test_a_run_resumed_in_a_fresh_process_is_the_one_that_was_not_stopped(tmp_path):
    """Weights, masks and optimizer state; dense, packed, accumulating, clipping, in bf16; its folder was moved."""
    before, after = tmp_path / "before" / "in_lightning", tmp_path / "after"
    undisturbed = {("in_lightning", name): fit(name, before) for name in CASES}
    before.parent.rename(after)
    run("in_lightning", "resume", after)
    assert differences(undisturbed, torch.load(after / "resume-0.pt")) == []


def test_a_checkpoint_without_a_sparsifier_is_refused(tmp_path):
    """Its weights would be made sparse at random."""
    path = tmp_path / "dense.ckpt"
    trained = trainer(tmp_path, max_steps=6)
    trained.fit(Classifier(), batches())
    trained.save_checkpoint(path)
    module = Classifier()
    with pytest.raises(ValueError, match=r"dense.ckpt has trained weights and no state.*start='magnitude'"):
        trainer(tmp_path, Sparsify(DSR)).fit(module, batches(), ckpt_path=path)
    magnitude = Sparsify(DSR, start="magnitude")
    trainer(tmp_path, magnitude).fit(module, batches(), ckpt_path=path)
    assert is_sparse(module, magnitude.sparse)


class Norms(L.Callback):
    """Of the gradients as they are when clipping begins, and of those that count."""

    def __init__(self):
        self.seen, self.masked = [], []

    def on_before_optimizer_step(self, trainer, module, optimizer):
        parameters = list(module.parameters())
        self.seen.append(nn.utils.get_total_norm([p.grad for p in parameters]))
        self.masked.append(nn.utils.get_total_norm([p.grad * (p != 0) for p in parameters]))


def test_clipping_sees_masked_gradients(tmp_path):
    norms = Norms()
    sparse_fit(tmp_path, norms, method=STATIC, gradient_clip_val=0.1, accumulate_grad_batches=2, max_steps=5)
    assert norms.seen == norms.masked
    assert len(norms.seen) == 5


def test_a_second_fit_goes_on_with_the_topology(tmp_path):
    module, callback = Classifier(), Sparsify(DSR)
    steps = []
    for _ in range(2):
        trainer(tmp_path, callback, max_steps=8).fit(module, batches())
        callback.sparse.on_rewire(lambda record: steps.append(record.step))
    assert callback.sparse.num_steps == 16
    assert [record.step for record in callback.sparse.history] == [3, 6, 9, 12, 15]
    assert steps == [9, 12, 15], "functions that were added stay"
    assert is_sparse(module, callback.sparse)


def test_another_module_begins_anew(tmp_path):
    callback = Sparsify(DSR)
    for _ in range(2):
        module = Classifier()
        trainer(tmp_path, callback, max_steps=8).fit(module, batches())
        assert callback.sparse.num_steps == 8
        assert is_sparse(module, callback.sparse)


class Rival(L.LightningModule):
    """Two networks, each with an optimizer of its own, that take turns."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.automatic_optimization = False
        self.one, self.other = nn.Linear(12, 30), nn.Linear(12, 30)

    def training_step(self, batch, index):
        for net, optimizer in zip((self.one, self.other), self.optimizers(), strict=True):
            optimizer.zero_grad()
            self.manual_backward((self.one(batch[0]) - self.other(batch[0]) - 1).square().mean())
            if net is self.one or index % 2:
                optimizer.step()

    def configure_optimizers(self):
        return [torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9) for net in (self.one, self.other)]


def test_of_several_optimizers_one_is_named(tmp_path):
    callbacks = [Sparsify(DSR, optimizer=1), Sparsify(regrow.RigL(sparsity=0.5, period=2, until=9))]
    module = Rival()
    fitted = trainer(tmp_path, *callbacks, max_steps=12)
    fitted.fit(module, batches())
    (second, first) = (callback.sparse for callback in callbacks)
    assert [layer.name for layer in first.layers] == ["one.weight"]
    assert [layer.name for layer in second.layers] == ["other.weight"]
    assert (first.num_steps, second.num_steps) == (8, 4)
    assert is_sparse(module, first)
    assert is_sparse(module, second)
    fitted.save_checkpoint(tmp_path / "both.ckpt")
    states = torch.load(tmp_path / "both.ckpt", weights_only=True)["callbacks"]
    assert {state["method"] for state in states.values()} == {"DSR", "RigL"}
    with pytest.raises(ValueError, match="there is no optimizer 2: the module has 2"):
        trainer(tmp_path, Sparsify(DSR, optimizer=2)).fit(Rival(), batches())


def test_metrics_go_to_every_logger(tmp_path):
    loggers = [CSVLogger(tmp_path, name) for name in ("a", "b")]
    sparse_fit(tmp_path, logger=loggers, log_every_n_steps=4)
    for logger in loggers:
        with open(logger.experiment.metrics_file_path) as file:
            rows = [row for row in csv.DictReader(file) if row["sparse/active"]]
        assert [row["step"] for row in rows] == ["4", "8", "12", "16"]
        assert all(row["sparse/active"] == row["sparse/budget"] == "307" for row in rows)


def test_a_finder_of_learning_rates_trains_the_sparse_network(tmp_path):
    found = {}
    for name, callbacks in {"dense": [], "sparse": [Sparsify(DSR)]}.items():
        module = Classifier(torch.optim.SGD)
        running = trainer(tmp_path, *callbacks)
        found[name] = Tuner(running).lr_find(module, batches(), num_training=20, attr_name="rate").results["loss"]
    assert found["sparse"] != found["dense"]
    assert callbacks[0].sparse.num_steps == 20
    running.fit(module, batches())
    assert callbacks[0].sparse.num_steps == STEPS, "training begins where the finder began"
    assert is_sparse(module, callbacks[0].sparse)


def test_the_finder_leaves_the_training_as_it_was(tmp_path):
    outcomes = []
    for finds in (False, True):
        module, callback = Classifier(torch.optim.SGD, rate=0.3), Sparsify(DSR)
        running = trainer(tmp_path, callback)
        if finds:
            Tuner(running).lr_find(module, batches(), num_training=20, attr_name="rate", update_attr=False)
        running.fit(module, batches())
        outcomes.append([module.state_dict(), callback.sparse.state_dict()])
    assert differences(*outcomes) == []


# Files of what the model is


def test_the_best_checkpoint_brings_its_own_topology(tmp_path):
    saves = ModelCheckpoint(tmp_path, save_top_k=-1, every_n_train_steps=4, filename="{step}")
    module, callback = Classifier(), Sparsify(DSR)
    running = trainer(tmp_path, callback, saves)
    running.fit(module, batches())
    last = callback.sparse.masks()
    running.test(module, batches(), ckpt_path=tmp_path / "step=4.ckpt", verbose=False)
    assert callback.sparse.num_steps == 4
    assert differences(last, callback.sparse.masks()) != []
    assert is_sparse(module, callback.sparse)


def test_averaged_weights_of_several_topologies_are_not_saved_as_sparse(tmp_path):
    averaging = StochasticWeightAveraging(swa_lrs=1e-2, swa_epoch_start=1)
    module, sparse = sparse_fit(tmp_path, averaging, max_steps=-1, max_epochs=5)
    with pytest.raises(ValueError, match="another network"):
        regrow.save(tmp_path / "average.safetensors", module, sparse)


# Packed storage must be there before weights are restored and the module is wrapped


def test_packed_storage_is_refused_where_it_would_come_too_late():
    for options in ({"storage": "packed"}, {"storage": regrow.Packed()}):
        with pytest.raises(ValueError, match=r"packed storage must be in place before .* pass Sparsify\(sparse\)"):
            Sparsify(DSR, **options)
    with pytest.raises(ValueError, match="hashed storage"):
        Sparsify(regrow.Hashed(sparsity=0.8))


def test_packed_storage_that_was_attached_before_trains(tmp_path):
    """That it resumes is among the cases above."""
    module = Packed()
    trainer(tmp_path, Sparsify(module.sparse)).fit(module, batches())
    assert module.sparse.num_steps == STEPS
    check_invariants(module, module.built, module.sparse)


def test_a_sparsifier_of_another_optimizer_is_refused(tmp_path):
    module = Classifier()
    sparse = regrow.attach(module, torch.optim.SGD(module.parameters(), lr=0.1), DSR)
    with pytest.raises(ValueError, match="rides on another optimizer; let the trainer use the one"):
        trainer(tmp_path, Sparsify(sparse)).fit(module, batches())
    with pytest.raises(ValueError, match="is attached already; leave out seed"):
        Sparsify(sparse, seed=1)


# By hand


class ByHand(L.Callback):
    """Attaches to what the module calls its optimizers, which is a wrapper."""

    def __init__(self, method=DSR):
        self.method = method

    def on_fit_start(self, trainer, module):
        bias = module.layers[0].bias.clone()
        self.sparse = regrow.attach(module, module.optimizers(), self.method)
        assert torch.equal(bias, module.layers[0].bias), "no step was taken"


@pytest.mark.parametrize("method", [DSR, RIGL], ids=["DSR", "RigL"])
def test_attaching_to_lightnings_wrapper_is_attaching_to_the_optimizer_inside(method, tmp_path):
    """To the bits that the callback gives, which masks by itself, while here the step's hook does."""
    module, by_hand = Classifier(), ByHand(method)
    trainer(tmp_path, by_hand, accumulate_grad_batches=2).fit(module, batches())
    other, sparse = sparse_fit(tmp_path, method=method, accumulate_grad_batches=2)
    assert type(by_hand.sparse.optimizer) is torch.optim.AdamW
    assert is_sparse(module, by_hand.sparse)
    assert differences(module.state_dict(), other.state_dict()) == []
    assert differences(by_hand.sparse.state_dict(), sparse.state_dict()) == []


def test_an_optimizer_that_moves_zeros_is_refused_inside_the_wrapper_too(tmp_path):
    def muon(parameters, lr):
        return torch.optim.Muon([p for p in parameters if p.ndim == 2], lr=lr)

    with pytest.raises(ValueError, match="Muon cannot train a sparse network"):
        trainer(tmp_path, ByHand()).fit(Classifier(muon), batches())


class AttachesInConfigureOptimizers(Classifier):
    """Where Lightning has restored the weights already."""

    def __init__(self, resume=None, load=None, seed=0):
        super().__init__()
        self.resume, self.load, self.seed = resume, load, seed

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        self.sparse = regrow.attach(self, optimizer, DSR, seed=self.seed, resume=self.resume)
        if self.load is not None:
            self.sparse.load_state_dict(self.load)
        return optimizer

    def on_save_checkpoint(self, checkpoint):
        checkpoint["sparse"] = self.sparse.state_dict()


def test_weights_that_were_restored_before_attaching_stay_with_resume(tmp_path):
    """And if the state is loaded afterwards it is said that they are gone, with whatever seed they went."""
    saves = ModelCheckpoint(tmp_path, every_n_train_steps=6, save_top_k=-1, filename="saved")
    whole = AttachesInConfigureOptimizers()
    trainer(tmp_path, saves).fit(whole, batches())
    path = tmp_path / "saved.ckpt"
    state = torch.load(path, weights_only=True)["sparse"]
    resumed = AttachesInConfigureOptimizers(resume=state)
    trainer(tmp_path).fit(resumed, batches(), ckpt_path=path)
    assert differences(whole.state_dict(), resumed.state_dict()) == []
    assert differences(whole.sparse.state_dict(), resumed.sparse.state_dict()) == []
    for seed in (0, 5):
        with pytest.raises(ValueError, match=r"were restored before it; .* attach\(\.\.\., resume=state\)"):
            trainer(tmp_path).fit(AttachesInConfigureOptimizers(load=state, seed=seed), batches(), ckpt_path=path)
