"""The Trainer of Hugging Face: with the callback, and what users do by hand."""

import pytest
import torch
from torch import nn

import regrow

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from in_transformers import CASES, STEPS, bert, fit, packed, trainer
from processes import differences, run
from transformers import BertForSequenceClassification, Trainer, TrainerCallback

from regrow.integrations.transformers import Sparsify
from regrow.testing import check_invariants

DSR = regrow.DSR(sparsity=0.8, period=3)
RIGL = regrow.RigL(sparsity=0.8, period=3, until=12)
STATIC = regrow.Static(sparsity=0.8)
BUDGET = 880


def sparse_train(folder, *others, method=DSR, model=None, **options):
    model, callback = model or bert(), Sparsify(method)
    trainer(folder, model, callback, *others, **options).train()
    return model, callback.sparse


def is_sparse(model, sparse):
    """By its weights, whatever the sparsifier counts."""
    check_invariants(model, sparse.optimizer, sparse)
    return sum(int(model.get_parameter(name).count_nonzero()) for name in sparse.masks()) <= sparse.budget


# The callback


def test_a_stock_trainer_trains_a_sparse_network(tmp_path):
    model, sparse = sparse_train(tmp_path)
    assert sparse.num_steps == STEPS
    assert [record.step for record in sparse.history] == [3, 6, 9, 12]
    assert is_sparse(model, sparse)


def test_a_run_resumed_in_a_fresh_process_is_the_one_that_was_not_stopped(tmp_path):
    """Weights, masks and optimizer state; dense, packed, accumulating, clipping, in bf16; its folder was moved."""
    before, after = tmp_path / "before" / "in_transformers", tmp_path / "after"
    undisturbed = {("in_transformers", name): fit(name, before) for name in CASES}
    before.parent.rename(after)
    run("in_transformers", "resume", after)
    assert differences(undisturbed, torch.load(after / "resume-0.pt")) == []


@pytest.mark.parametrize("why", ["it was dense", "the optimizer was left out"])
def test_a_checkpoint_without_a_sparsifier_is_refused(why, tmp_path):
    """Its weights would be made sparse at random."""
    saves = {"save_strategy": "steps", "save_steps": 4, "max_steps": 4, "save_only_model": why != "it was dense"}
    trainer(tmp_path, bert(), *([] if why == "it was dense" else [Sparsify(DSR)]), **saves).train()
    model = bert()
    resumed = trainer(tmp_path, model, Sparsify(DSR))
    with pytest.raises(ValueError, match=r"no state of a sparsifier.*start='magnitude'"):
        resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))


def test_a_checkpoint_that_was_trained_on_without_the_callback_is_refused(tmp_path):
    """It brings along the state of the sparsifier that an earlier one had, which is not that of its weights."""
    saves = {"save_strategy": "steps", "save_steps": 4}
    trainer(tmp_path / "sparse", bert(), Sparsify(DSR), **saves, max_steps=4).train()
    trainer(tmp_path / "dense", bert(), **saves, max_steps=8).train(
        resume_from_checkpoint=str(tmp_path / "sparse" / "checkpoint-4")
    )
    resumed = trainer(tmp_path, bert(), Sparsify(DSR))
    with pytest.raises(ValueError, match=r"is of step 8 and its state of a sparsifier of step 4"):
        resumed.train(resume_from_checkpoint=str(tmp_path / "dense" / "checkpoint-8"))


def test_two_callbacks_are_one_too_many(tmp_path):
    model = bert()
    before = {name: own.clone() for name, own in model.state_dict().items()}
    two = (Sparsify(DSR, layers=[f"*.{name}.weight"]) for name in ("query", "key"))
    with pytest.raises(ValueError, match="takes one Sparsify"):
        trainer(tmp_path, model, *two).train()
    assert differences(before, dict(model.state_dict())) == []


class Norms(TrainerCallback):
    """Of the gradients that the optimizer gets."""

    def __init__(self):
        self.seen = []

    def on_pre_optimizer_step(self, args, state, control, *, model, **_):
        self.seen.append(nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]))


def test_clipping_goes_by_masked_gradients(tmp_path):
    """The norm of what the optimizer gets is the one asked for; clipped before masking it would be less."""
    norms = Norms()
    running = trainer(
        tmp_path, bert(), Sparsify(STATIC), norms, max_grad_norm=0.1, gradient_accumulation_steps=2, max_steps=5
    )
    running.train()
    torch.testing.assert_close(torch.stack(norms.seen), torch.full((5,), 0.1), rtol=1e-4, atol=0)
    assert running.args.max_grad_norm == 0.1


def test_the_norm_that_is_logged_is_that_of_masked_gradients(tmp_path):
    often, first = {"logging_strategy": "steps", "logging_steps": 1}, []
    for max_norm in (0.0, 0.1):
        norms = Norms()
        running = trainer(tmp_path, bert(), Sparsify(STATIC), norms, max_grad_norm=max_norm, **often)
        running.train()
        logged = [entry["grad_norm"] for entry in running.state.log_history if "grad_norm" in entry]
        assert max_norm or logged == [norm.item() for norm in norms.seen]
        first.append(logged[0])
    assert first[0] == first[1] > 0.1, "before clipping"


def test_an_interrupted_step_leaves_clipping_as_it_was(tmp_path):
    def interrupt(*_):
        raise KeyboardInterrupt

    model, norms = bert(), Norms()
    running = trainer(tmp_path, model, Sparsify(STATIC), norms, max_grad_norm=0.1, max_steps=3)
    handle = model.register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        running.train()
    handle.remove()
    running.train()
    torch.testing.assert_close(torch.stack(norms.seen), torch.full((3,), 0.1), rtol=1e-4, atol=0)


def test_a_second_training_goes_on_with_the_topology(tmp_path):
    model, callback = bert(), Sparsify(DSR)
    running = trainer(tmp_path, model, callback, max_steps=6)
    for _ in range(2):
        running.train()
    trainer(tmp_path, model, callback, max_steps=6).train()
    assert callback.sparse.num_steps == 18
    assert [record.step for record in callback.sparse.history] == [3, 6, 9, 12, 15, 18]
    assert is_sparse(model, callback.sparse)


def test_a_model_made_anew_begins_anew(tmp_path):
    callback = Sparsify(DSR)
    running = trainer(tmp_path, None, callback, model_init=bert)
    for _ in range(2):
        running.train()
        assert callback.sparse.num_steps == STEPS
        assert is_sparse(running.model, callback.sparse)


def test_metrics_go_to_every_reporter(tmp_path):
    """Also to those that a Trainer has before it is given the callback, as it has TensorBoard's and others'."""

    class Reporter(TrainerCallback):
        seen = ()

        def on_log(self, args, state, control, *, logs, **_):
            self.seen += (dict(logs),)

    first, last = Reporter(), type("Other", (Reporter,), {})()
    model = bert()
    running = trainer(tmp_path, model, first, Sparsify(DSR), last, logging_strategy="steps", logging_steps=4)
    running.train()
    for told in (first.seen, last.seen, running.state.log_history):
        steps = [entry for entry in told if "loss" in entry]
        assert len(steps) == 3
        assert all(entry["sparse/active"] == entry["sparse/budget"] == BUDGET for entry in steps)


def test_the_best_model_brings_its_own_topology(tmp_path):
    best = {"load_best_model_at_end": True, "metric_for_best_model": "loss", "greater_is_better": True}
    often = {"eval_strategy": "steps", "eval_steps": 4, "save_strategy": "steps", "save_steps": 4}
    model, callback = bert(), Sparsify(DSR)
    running = trainer(tmp_path, model, callback, **best, **often)
    running.train()
    assert running.state.best_model_checkpoint.endswith("checkpoint-4"), "here the worst is asked for"
    assert callback.sparse.num_steps == 4
    assert is_sparse(model, callback.sparse)
    regrow.save(tmp_path / "best.safetensors", model, callback.sparse)


def test_weights_of_a_best_model_without_its_topology_are_not_saved_as_sparse(tmp_path):
    """With `save_only_model` nobody kept it."""
    best = {"load_best_model_at_end": True, "metric_for_best_model": "loss", "greater_is_better": True}
    often = {"eval_strategy": "steps", "eval_steps": 4, "save_strategy": "steps", "save_steps": 4}
    model, sparse = sparse_train(tmp_path, **best, **often, save_only_model=True)
    with pytest.raises(ValueError, match="another network"):
        regrow.save(tmp_path / "best.safetensors", model, sparse)


# Packed storage must be there before weights are restored and the model is wrapped


def test_packed_storage_is_refused_where_it_would_come_too_late():
    with pytest.raises(ValueError, match=r"packed storage must be in place before .* pass Sparsify\(sparse\)"):
        Sparsify(DSR, storage="packed")


def test_packed_storage_that_was_attached_before_trains(tmp_path):
    """That it resumes is among the cases above."""
    model, sparse = packed(DSR)
    trainer(tmp_path, model, Sparsify(sparse), optimizers=(sparse.optimizer, None)).train()
    assert sparse.num_steps == STEPS
    check_invariants(model, sparse.optimizer, sparse)


# By hand


class ByHand(TrainerCallback):
    """Attaches in the natural place, to the wrapper that a callback is given."""

    def __init__(self, method):
        self.method = method

    def on_train_begin(self, args, state, control, *, model, optimizer, **_):
        held = [id(p) for group in optimizer.param_groups for p in group["params"]]
        self.sparse = regrow.attach(model, optimizer, self.method)
        assert [id(p) for group in optimizer.param_groups for p in group["params"]] == held


@pytest.mark.parametrize("method", [DSR, RIGL], ids=["DSR", "RigL"])
def test_attaching_to_accelerates_wrapper_is_attaching_to_the_optimizer_inside(method, tmp_path):
    """To the bits that the callback gives, which masks by itself, while here the step's hook does."""
    model, by_hand, same = bert(), ByHand(method), {"max_grad_norm": 0, "gradient_accumulation_steps": 2}
    trainer(tmp_path, model, by_hand, **same).train()
    other, sparse = sparse_train(tmp_path, method=method, **same)
    assert type(by_hand.sparse.optimizer) is torch.optim.AdamW
    assert is_sparse(model, by_hand.sparse)
    assert differences(model.state_dict(), other.state_dict()) == []
    assert differences(by_hand.sparse.state_dict(), sparse.state_dict()) == []


class AttachesInCreateOptimizer(Trainer):
    """Where weights are restored already, and the optimizer's state is not."""

    resume, load = None, None

    def create_optimizer(self, *_):
        optimizer = super().create_optimizer()
        self.sparse = regrow.attach(self.model, optimizer, DSR, resume=self.resume)
        if self.load is not None:
            self.sparse.load_state_dict(self.load)
        return optimizer


class Saves(TrainerCallback):
    """What a user would write to keep the state."""

    def on_save(self, args, state, control, **_):
        torch.save(self.trainer.sparse.state_dict(), f"{args.output_dir}/checkpoint-{state.global_step}/sparse.pt")


def test_weights_that_were_restored_before_attaching_stay_with_resume(tmp_path):
    """And if the state is loaded afterwards it is said that they are gone."""
    saves = Saves()
    whole = trainer(tmp_path, bert(), saves, kind=AttachesInCreateOptimizer, save_strategy="steps", save_steps=7)
    saves.trainer = whole
    whole.train()
    path = tmp_path / "checkpoint-7"
    resumed, wrong = (trainer(tmp_path, bert(), kind=AttachesInCreateOptimizer) for _ in range(2))
    resumed.resume = wrong.load = torch.load(path / "sparse.pt", weights_only=True)
    resumed.train(resume_from_checkpoint=str(path))
    assert differences(whole.model.state_dict(), resumed.model.state_dict()) == []
    assert differences(whole.sparse.state_dict(), resumed.sparse.state_dict()) == []
    with pytest.raises(ValueError, match=r"were restored before it; .* attach\(\.\.\., resume=state\)"):
        wrong.train(resume_from_checkpoint=str(path))


def test_a_saved_and_loaded_model_is_the_same(tmp_path):
    """Packed: after `detach`, which puts the dense weights back."""
    model, _ = sparse_train(tmp_path, max_steps=4)
    model.save_pretrained(tmp_path / "dense")
    assert (
        differences(model.state_dict(), BertForSequenceClassification.from_pretrained(tmp_path / "dense").state_dict())
        == []
    )
    model, sparse = packed(DSR)
    trainer(tmp_path, model, Sparsify(sparse), optimizers=(sparse.optimizer, None), max_steps=4).train()
    sparse.detach()
    model.save_pretrained(tmp_path / "packed")
    assert differences(model.state_dict(), type(model).from_pretrained(tmp_path / "packed").state_dict()) == []
