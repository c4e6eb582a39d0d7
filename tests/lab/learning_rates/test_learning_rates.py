"""Learning rates, worked out by hand, and what settings make them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regrow.lab.config import make_config
from regrow.lab.config.component import read_component
from regrow.lab.config.schedule import Timetable

TEN = Timetable(num_steps=10, written_for=10)


def rates(density=1.0, timetable=TEN, **settings):
    rate = read_component("learning_rate", settings).rates(timetable, density)
    return [rate(step) for step in range(timetable.num_steps)]


def test_a_straight_line_warms_up_and_falls_to_its_floor():
    found = rates(name="linear", peak=1.0, warmup=2, floor=0.2)
    assert found == pytest.approx([0.5, 1.0, 1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3])


def test_half_a_cosine_is_half_way_down_in_the_middle():
    found = rates(name="cosine", peak=2.0)
    assert found[0] == 2.0
    assert found[5] == pytest.approx(1.0)
    assert found[9] == pytest.approx(1 + math.cos(0.9 * math.pi))


def test_a_constant_stays():
    assert rates(name="constant", peak=0.5, warmup=4) == [0.125, 0.25, 0.375, 0.5, *[0.5] * 6]


def test_a_table_changes_at_its_epochs():
    assert rates(name="table", values={0: 1.0, 3: 0.5}) == [1.0] * 3 + [0.5] * 7


def test_a_sparse_network_may_have_a_higher_peak():
    assert rates(name="constant", peak=1.0, density=0.25)[0] == 1.0
    assert rates(name="constant", peak=1.0, scale="inverse_sqrt", density=0.25)[0] == 2.0
    assert rates(name="constant", peak=1.0, scale="inverse", density=0.25)[0] == 4.0


@given(
    peak=st.floats(1e-6, 10),
    floor=st.floats(0, 1),
    warmup=st.integers(0, 30),
    name=st.sampled_from(["cosine", "linear"]),
)
def test_rates_stay_between_floor_and_peak_and_fall_after_the_warm_up(peak, floor, warmup, name):
    found = rates(name=name, peak=peak, floor=floor, warmup=warmup, timetable=Timetable(40, 40))
    assert all(0 < rate <= peak * (1 + 1e-12) for rate in found)
    after = found[warmup:]
    assert after == sorted(after, reverse=True)
    assert min(after) >= peak * floor * (1 - 1e-12)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"peak": 0}, "peak must be a number > 0"),
        ({"peak": 0.1, "warmup": 1.5}, "warmup must be a whole number of steps"),
        ({"peak": 0.1, "floor": 2}, "floor must be a share of the peak"),
        ({"peak": 0.1, "scale": "sqrt"}, "scale must be one of none, inverse_sqrt, inverse"),
    ],
)
def test_bad_ones_are_refused(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        read_component("learning_rate", {"name": "cosine", **settings})


def test_a_warm_up_longer_than_the_run_is_refused_before_it_begins():
    with pytest.raises(ValueError, match="warm up less"):
        rates(name="cosine", peak=1.0, warmup=10)


def test_the_learning_rate_is_said_once():
    cosine = {"name": "cosine", "peak": 0.1}
    base = {"method": "SET", "sparsity": 0.9}
    with pytest.raises(ValueError, match="leave one out"):
        make_config({**base, "optimizer": {"lr": 0.1}, "learning_rate": cosine})
    with pytest.raises(ValueError, match="say which learning rate AdamW is to have"):
        make_config({**base, "optimizer": "AdamW"})
    assert make_config({**base, "learning_rate": 0.5}).id == make_config({**base, "optimizer": {"lr": 0.5}}).id
    assert make_config({**base, "learning_rate": cosine}).optimizer == make_config(base).optimizer


def test_a_dense_run_has_the_density_of_one():
    cosine = {"name": "constant", "peak": 0.1, "scale": "inverse"}
    dense = make_config({"method": "Dense", "learning_rate": cosine})
    thin = make_config({"method": "Dense", "width": "thin", "sparsity": 0.9, "learning_rate": cosine})
    sparse = make_config({"method": "SET", "sparsity": 0.9, "learning_rate": cosine})
    assert [config.rates(100)(0) for config in (dense, thin)] == [0.1, 0.1]
    assert sparse.rates(100)(0) == pytest.approx(1.0)
