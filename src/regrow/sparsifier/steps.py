"""What happens in a training step: gradients are masked, effects act, and the network is rewired when that is due."""

import copy
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from operator import add, is_
from typing import Any, cast

import torch
from torch import nn
from torch.optim import Optimizer

from regrow.core.rewire import candidates, plan
from regrow.core.row import Tally
from regrow.distributed.wrappers import has_ranks
from regrow.kernels.gpu import is_capturing
from regrow.methods.method import Method
from regrow.sparsifier import copies, live
from regrow.sparsifier.belonging import Belonging
from regrow.sparsifier.history import MOST_RECORDS, Callbacks, Rewiring
from regrow.sparsifier.hooks import EVERYWHERE, Gradients, StepHooks
from regrow.sparsifier.moments import GrownMoments
from regrow.sparsifier.ranks import compare_ranks, has_gradients
from regrow.sparsifier.state import as_state
from regrow.storage.base import Foresighted, Rewirable, Storage
from regrow.storage.optimizer_state import SeenState


class Steps:
    """How far the training of a sparse network is, and all that it goes on with. The optimizer's hooks keep it."""

    belonging: Belonging

    def __init__(
        self, method: Method, storage: Storage, optimizer: Optimizer, tally: Tally, seed: int, moments: GrownMoments
    ) -> None:
        self.method, self.storage, self.optimizer, self.moments = method, storage, optimizer, moments
        self.tally, self.seed, self.number = tally, seed, 0
        self.num_restarts = 0
        """How often weights and topology were taken from elsewhere."""
        self.memory = method.first_memory()
        self.on_rewire = Callbacks()
        self.rewirable = storage if isinstance(storage, Rewirable) else None
        self._foresighted = storage if isinstance(storage, Foresighted) and method.needs & EVERYWHERE else None
        self._recent: deque[Rewiring] = deque(maxlen=MOST_RECORDS)
        self._last: Rewiring | None = None
        self._in_all = [[0] * len(storage.layers), [0] * len(storage.layers)]  # units pruned and grown, of each layer
        self._seen_state: SeenState | None = None
        self._is_checked = self._is_captured = False
        self._versions: list[int] = []  # of the weights, after the last step
        self._effects = [*moments.effects(), *method.effects()]  # those of a method may move weights beyond a step
        for effect in self._effects:
            effect.attach(storage, optimizer, seed)
        self._gradients = Gradients(method, self._effects, storage, optimizer)
        self._expect_growth(is_first=True)
        self._hooks = StepHooks(
            optimizer,
            before=self._make_ready,
            after=self.finish,
            captured=self._record_step,
            skipped=self._gradients.forget,
        )

    def settle(self, model: nn.Module | None) -> None:
        """Everything is in its place now; from here on it is watched that it stays there."""
        self.belonging = Belonging(model, self.optimizer, self.storage)
        live.enter(self)

    @property
    def are_on(self) -> bool:
        """Whether the optimizer's steps are still theirs."""
        return self._hooks.are_on

    def mask_gradients(self) -> None:
        """Make gradients ready for the optimizer."""
        self._hooks.before(is_step=False)

    @torch.no_grad()
    def _make_ready(self, is_step: bool = True) -> None:
        if is_step and not self._is_in_place() and (problem := self.belonging.problem()):
            raise RuntimeError(problem)
        self._follow()
        is_written = self._is_checked and self._versions != [own._version for own in self.storage.parameters]
        may_be_first = not self._is_checked and not is_capturing() and (is_step or not has_ranks())
        if may_be_first and has_gradients(self.storage.parameters):
            compare_ranks(self)  # first, since weights may be wrong on one rank alone
            self._is_checked = is_written = True
        if is_written and self.rewirable is not None and not is_capturing():
            self.rewirable.check_weights()
        self._gradients.prepare(self.number + 1)

    def _is_in_place(self) -> bool:
        """Whether model and optimizer have the parameters where they were last; asked in every step, so all in C."""
        belonging, groups = self.belonging, [group["params"] for group in self.optimizer.param_groups]
        modules, names, parameters = belonging.places
        numbers, positions, trained = belonging.seats
        try:
            are_in_model = map(is_, map(dict.__getitem__, modules, names), parameters)
            are_trained = map(is_, map(list.__getitem__, map(groups.__getitem__, numbers), positions), trained)
            return all(are_in_model) and all(are_trained)
        except LookupError:
            return False

    def _follow(self) -> None:
        if self.rewirable is not None:
            self.rewirable.follow()

    def advance(self) -> None:
        """A step was taken without hooks, perhaps in a captured graph."""
        self._hooks.after(is_replayed=self._is_captured)

    @torch.no_grad()
    def finish(self, is_replayed: bool = False) -> None:
        """The optimizer has made a step."""
        step, record = self.number + 1, None
        if self._seen_state is None or not self._seen_state.is_current():
            if "dense_step" not in self.method.needs:  # new state may begin with a constant
                self.zero_inactive()
            self._seen_state = SeenState(self.optimizer, self.storage.parameters)
        is_due = self.method.is_due(step)
        if self._effects or is_due:
            self._follow()
            is_done = [effect.after_step(step, is_replayed) for effect in self._effects]
            record = self._rewire(step) if is_due and not any(is_done) else None
        self.number = step
        self._gradients.drop()
        self._versions = [own._version for own in self.storage.parameters]
        self._expect_growth()
        if record is not None:
            self._note(record)
        elif self.on_rewire:
            self._ask_effects()

    def zero_inactive(self) -> None:
        if self.rewirable is not None:
            self.rewirable.follow()
            self.rewirable.zero_inactive(self.optimizer)

    @torch.no_grad()
    def _record_step(self) -> None:
        """What a captured step does beyond the optimizer's own."""
        self._gradients.forget()
        self._is_captured = True
        for effect in self._effects:
            effect.capture()

    def check(self) -> None:
        """Refuse a model whose weights are not those that are kept sparse here."""
        if self.belonging.model is None:
            raise ValueError("the model that was attached to is gone; keep it as long as its sparsifier")
        if problem := self.belonging.problem():
            raise ValueError(problem)
        if self.rewirable is not None:
            self.rewirable.follow()
            try:
                self.rewirable.check_weights()
            except RuntimeError as error:
                raise ValueError(str(error)) from None
        if self.storage.count() != list(self.tally.active):
            raise ValueError("other weights are active than the sparsifier counts; load model and sparsifier together")

    # Rewiring

    def _rewire(self, step: int) -> Rewiring:
        assert self.rewirable is not None  # only its methods are ever due
        self._gradients.check_kept(step)
        tally = self._tally_at(step)
        evidence = self.rewirable.evidence(tally, step)
        todo = plan(self.method, evidence, self.seed, self.memory)
        self.rewirable.apply(todo, evidence, self.optimizer)
        pruned, grown = todo.pruned.counts, todo.grown.counts
        active = tuple(n - p + g for n, p, g in zip(tally.active, pruned, grown, strict=True))
        self.tally = replace(tally, active=active)
        record = self._record(step, pruned, grown, self.memory.get("threshold"))
        self.memory = todo.memory
        for effect in self._effects:
            effect.rewired(step)
        return record

    def _tally_at(self, step: int) -> Tally:
        budget = self.method.budget_at(step, self.tally)
        if budget != self.tally.budget and "changing_budget" not in self.method.needs:
            raise ValueError(
                f"{type(self.method).__name__} moves its budget from {self.tally.budget:,} to {budget:,}; a method "
                'that does so needs "changing_budget"'
            )
        return replace(self.tally, budget=budget)

    def _expect_growth(self, is_first: bool = False) -> None:
        """Tell the storage before a step by whose gradients the network will grow."""
        if self._foresighted is not None:
            step = self.number + 1
            is_due = self.method.is_due(step)
            tally = self._tally_at(step) if is_due else self.tally
            counts = self.method.prune_counts(tally, step) if is_due else [0] * len(tally.active)
            # A graph that is captured before the first rewiring needs to know how many there are.
            among = candidates(self.method, tally, step, self.seed, are_wanted=is_due or is_first)
            self._foresighted.expect_growth(counts, self.method.growth_score, among)

    # What is remembered of rewirings

    def history(self) -> list[Rewiring]:
        """The records that are kept: the last ones, or one with the totals where every step is a rewiring."""
        self._ask_effects()
        return self._all_in_one() if self.method.rewires_every_step else list(self._recent)

    def totals(self) -> list[Rewiring]:
        """All rewirings in one record, if there were any."""
        self._ask_effects()
        return self._all_in_one()

    def _all_in_one(self) -> list[Rewiring]:
        last = self._last
        return [] if last is None else [self._record(last.step, self._in_all[0], self._in_all[1], last.threshold)]

    def _record(self, step: int, pruned: Sequence[int], grown: Sequence[int], threshold: float | None) -> Rewiring:
        names = [layer.name for layer in self.storage.layers]
        lost, got = (dict(zip(names, counts, strict=True)) for counts in (pruned, grown))
        return Rewiring(step, lost, got, threshold)

    @torch.no_grad()
    def _note(self, record: Rewiring) -> None:
        self._last = record
        self._in_all = [
            list(map(add, counts, more.values()))
            for counts, more in zip(self._in_all, (record.pruned, record.grown), strict=True)
        ]
        if not self.method.rewires_every_step:
            self._recent.append(record)
        for callback in self.on_rewire:
            callback(record)

    def _ask_effects(self) -> None:
        """What effects did on the device, of which the host does not hear by itself."""
        for effect in self._effects:
            if done := effect.totals():
                step, counts = done
                self._note(self._record(step, counts, counts, None))

    # Going on elsewhere

    def state(self) -> dict[str, Any]:
        """Everything that `restore` needs, as tensors, numbers and strings."""
        own = {"seed": self.seed, "step": self.number, "memory": dict(self.memory)}
        records = {"history": self.history(), "totals": self.totals()}
        told = {key: tuple(asdict(record) for record in some) for key, some in records.items()}
        return as_state(self.method, self.storage, self.tally) | own | told

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state that was checked."""
        self._follow()
        self.storage.load(state)
        self.num_restarts += 1
        self.seed, self.number = state["seed"], state["step"]
        self._is_checked = False
        active = tuple(self.storage.count())
        self.tally = replace(
            self.tally, active=active, goal=tuple(state["goal"]), target=state["target"], budget=state["budget"]
        )
        self.memory = dict(state["memory"])
        self._recent = deque((Rewiring(**record) for record in state["history"]), maxlen=MOST_RECORDS)
        self._last, self._in_all = None, [[0] * len(active), [0] * len(active)]
        for record in state["totals"]:
            self._last = Rewiring(**record)
            self._in_all = [
                [own[layer.name] for layer in self.storage.layers] for own in (self._last.pruned, self._last.grown)
            ]
        self._gradients.forget()
        for effect in self._effects:
            effect.restart(self.number, self.seed)
        self._expect_growth(is_first=True)

    def reload(self) -> None:
        """Look again at a storage that was filled from a file."""
        self._follow()
        self.num_restarts += 1
        self.tally = replace(self.tally, active=tuple(self.storage.count()))
        for effect in self._effects:
            effect.renew()
        self._expect_growth(is_first=True)

    def end(self) -> None:
        """Take the hooks off."""
        self.storage.release(self.optimizer)
        self._hooks.remove()
        live.leave(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Steps":
        """The same on the copied model and optimizer, of which the optimizer's own copy may have brought it already."""
        model, optimizer = copy.deepcopy((self.belonging.model, self.optimizer), memo)
        if id(self) in memo:
            return cast(Steps, memo[id(self)])
        twin = Steps(self.method, self.storage.copy(memo), optimizer, self.tally, self.seed, self.moments)
        memo[id(self)] = twin
        twin.settle(model)
        twin.restore(self.state())
        twin.on_rewire.extend(self.on_rewire)
        if not self.are_on:
            twin.end()
        return twin

    __reduce_ex__ = copies.refuse_pickling
