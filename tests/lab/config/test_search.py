"""Experiments that search: what is tried, and what is trained in the end."""

import pytest

from regrow.lab.config import make_config
from regrow.lab.config.experiment import expand
from regrow.lab.config.search import searches_in

LR = {"tune": {"optimizer": {"momentum": [0.5, 0.9]}}, "method": "SET"}
ADAMW = {"name": "AdamW", "lr": 0.01}


def test_each_method_at_each_density_is_searched_by_itself():
    found = searches_in({**LR, "grid": {"sparsity": [0.9, 0.8]}, "runs": [{"method": "SET"}, {"method": "DSR"}]})
    assert [search.choices[0].configs[0].method_name for search in found] == ["SET", "SET", "DSR", "DSR"]
    assert [search.choices[0].configs[0].sparsity for search in found] == [0.9, 0.8, 0.9, 0.8]
    for search in found:
        assert [str(choice) for choice in search.choices] == ["momentum=0.5", "momentum=0.9"]


def test_a_choice_is_tried_with_the_first_seed_on_what_is_held_out_and_trained_with_each_on_everything():
    (search,) = searches_in({**LR, "sparsity": 0.9, "grid": {"seed": [3, 4]}})
    same = {"method": "SET", "sparsity": 0.9, "optimizer": {"momentum": 0.5}}
    assert search.choices[0].configs == tuple(make_config({**same, "seed": seed}) for seed in (3, 4))
    assert search.choices[0].trial == make_config({**same, "seed": 3, "data": {"held_out": 0.1}})


def test_two_settings_are_searched_in_every_combination():
    content = {**LR, "sparsity": 0.9, "tune": {"optimizer": {"momentum": [0.5, 0.9], "weight_decay": [0.0, 1e-4]}}}
    (search,) = searches_in(content)
    assert len(search.choices) == 4
    assert str(search.choices[1]) == "momentum=0.5, weight_decay=0.0001"


def test_moments_of_grown_weights_can_be_searched_and_the_usual_ones_are_the_run_that_was():
    rest = {key: value for key, value in LR.items() if key != "tune"}
    tune = {"start": {"moments": ["clean", "aged", "informed"]}}
    (search,) = searches_in({**rest, "tune": tune, "sparsity": 0.9, "optimizer": ADAMW})
    assert [str(choice) for choice in search.choices] == ["moments=clean", "moments=aged", "moments=informed"]
    usual = make_config({"method": "SET", "sparsity": 0.9, "optimizer": ADAMW})
    assert [choice.configs[0].id == usual.id for choice in search.choices] == [True, False, False]


def test_a_run_may_have_values_of_its_own_but_not_more_of_them():
    runs = [{"method": "Dense", "tune": {"optimizer": {"momentum": [0.1, 0.2]}}}, {"method": "SET", "sparsity": 0.9}]
    dense, sparse = searches_in({**LR, "runs": runs})
    assert [str(search.choices[0]) for search in (dense, sparse)] == ["momentum=0.1", "momentum=0.5"]
    runs[0]["tune"]["optimizer"]["momentum"].append(0.3)
    with pytest.raises(ValueError, match=r"Dense has 3 choices, SET at 0.9 has 2 choices; give each method"):
        searches_in({**LR, "runs": runs})


def test_what_is_said_on_top_wins():
    lists = [("optimizer.momentum", [0.1, 0.2, 0.3])]
    (search,) = searches_in({**LR, "sparsity": 0.9}, lists)
    assert len(search.choices) == 3
    with pytest.raises(ValueError, match=r"SET at 0.9 has one choice only; say what is to be searched"):
        searches_in({**LR, "sparsity": 0.9}, [("optimizer.momentum", 0.1)])


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"method": "SET", "sparsity": 0.9}, "has one choice only"),
        ({**LR, "sparsity": 0.9, "tune": {"optimizer": {"momentum": 0.5}}}, "tune.optimizer.momentum must be a list"),
        ({**LR, "sparsity": 0.9, "tune": [1]}, "tune must be a table of lists"),
        ({**LR, "sparsity": 0.9, "data": "synthetic"}, "synthetic cannot hold out a part for searching"),
        ({**LR, "sparsity": 0.9, "tune": {"optimizer": {"momentum": [0.5, 0.5]}}}, "more than once"),
    ],
)
def test_what_cannot_be_searched_is_refused(content: dict, sentence: str):
    with pytest.raises(ValueError, match=sentence):
        searches_in(content)


def test_such_an_experiment_is_no_sweep_until_the_searched_settings_are_said():
    with pytest.raises(ValueError, match=r"searches optimizer.momentum; run it by `regrow tune`"):
        expand({**LR, "sparsity": 0.9})
    (config,) = expand({**LR, "sparsity": 0.9}, [("optimizer.momentum", 0.7)])
    assert config.optimizer.momentum == 0.7
