"""Linear layers computed on their nonzeros."""

import copy
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regrow.kernels.cpu import linear as cpu_linear
from regrow.kernels.cpu import threads
from regrow.kernels.cpu.densify import densify, values_at
from regrow.kernels.cpu.linear import linear_backward, linear_forward
from regrow.kernels.cpu.pattern import make_pattern
from sparse_layers import from_dense, random_layer, random_tensor

# 3 rows, 4 columns, 5 nonzeros; the second row and the third column are empty.
WEIGHT = torch.tensor([[2.0, 0, 0, 1], [0, 0, 0, 0], [3, 4, 0, 5]])


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_a_pattern_lists_rows_by_column_and_columns_by_row():
    layer = from_dense(WEIGHT)
    assert layer.values.tolist() == [2, 3, 4, 1, 5]
    assert layer.pattern.rows.tolist() == [0, 2, 2, 0, 2]
    assert layer.pattern.col_starts.tolist() == [0, 2, 3, 3, 5]
    assert layer.pattern.columns.tolist() == [0, 3, 0, 1, 3]
    assert layer.pattern.row_starts.tolist() == [0, 2, 2, 5]


def test_forward_of_the_example():
    layer = from_dense(WEIGHT)
    x = torch.tensor([[1.0, 10, 100, 1000]])
    assert linear_forward(layer.pattern, layer.values, x).tolist() == [[1002, 0, 5043]]
    bias = torch.tensor([1.0, 2, 3])
    assert linear_forward(layer.pattern, layer.values, x, bias).tolist() == [[1003, 2, 5046]]


def test_gradients_of_the_example():
    layer = from_dense(WEIGHT)
    x, dy = torch.tensor([[1.0, 10, 100, 1000]]), torch.tensor([[1.0, 7, 2]])
    dx, gradient = linear_backward(layer.pattern, layer.values, x, dy)
    assert dx is not None
    assert dx.tolist() == [[2 + 2 * 3, 2 * 4, 0, 1 + 2 * 5]]
    assert gradient.tolist() == [1, 2 * 1, 2 * 10, 1000, 2 * 1000]


def test_without_dx_the_gradient_of_the_values_is_the_same():
    layer = random_layer(30, 40, density=0.3)
    x, dy = random_tensor(50, 40), random_tensor(50, 30, seed=2)
    alone = linear_backward(layer.pattern, layer.values, x, dy, needs_input=False)
    assert alone[0] is None
    assert torch.equal(alone[1], linear_backward(layer.pattern, layer.values, x, dy)[1])


@given(
    num_rows=st.integers(1, 70),
    num_columns=st.integers(1, 70),
    num_samples=st.integers(1, 150),
    density=st.sampled_from([0.0, 0.1, 1.0]),
    block=st.integers(1, 30),
    lines=st.integers(1, 30),
)
@settings(deadline=None, max_examples=60)
def test_blocks_that_fit_into_the_cache_change_no_bit(num_rows, num_columns, num_samples, density, block, lines):
    layer = random_layer(num_rows, num_columns, density=density)
    x, dy = random_tensor(num_samples, num_columns), random_tensor(num_samples, num_rows, seed=2)

    def everything():
        layer.pattern.plans.clear()
        y = linear_forward(layer.pattern, layer.values, x, random_tensor(num_rows))
        return y, *linear_backward(layer.pattern, layer.values, x, dy)

    whole = everything()
    sizes = {"_BLOCK_BYTES": block * 128 * 8, "_LINES_OF_BLOCK": lines, "_FEWEST_IN_BLOCK": 0}
    with patch.multiple(cpu_linear, **sizes):
        in_blocks = everything()
    for one, other in zip(in_blocks, whole, strict=True):
        assert torch.equal(one, other)


@given(
    num_rows=st.integers(1, 70),
    num_columns=st.integers(1, 70),
    num_samples=st.integers(0, 300),
    density=st.sampled_from([0.0, 0.02, 0.3, 1.0]),
    seed=st.integers(0, 1000),
)
@settings(deadline=None, max_examples=150)
def test_all_agrees_with_the_dense_layer(num_rows, num_columns, num_samples, density, seed):
    layer = random_layer(num_rows, num_columns, density=density, seed=seed)
    x, dy = random_tensor(num_samples, num_columns), random_tensor(num_samples, num_rows, seed=2)
    bias = random_tensor(num_rows)
    y = linear_forward(layer.pattern, layer.values, x, bias)
    dx, gradient = linear_backward(layer.pattern, layer.values, x, dy)
    torch.testing.assert_close(y, x @ layer.weight.t() + bias)
    torch.testing.assert_close(dx, dy @ layer.weight)
    torch.testing.assert_close(gradient, layer.at_entries(dy.t() @ x))


def test_float32_is_as_close_as_float32_can_be(two_threads):
    layer = random_layer(200, 500, density=0.1, dtype=torch.float32)
    x = random_tensor(129, 500, dtype=torch.float32)
    torch.testing.assert_close(linear_forward(layer.pattern, layer.values, x), x @ layer.weight.t())


@pytest.mark.parametrize("shape", [(40,), (5, 40), (2, 3, 40), (2, 0, 40)])
def test_leading_dimensions_are_samples(shape):
    layer = random_layer(30, 40, density=0.2)
    x = random_tensor(*shape)
    y = linear_forward(layer.pattern, layer.values, x)
    dx, _ = linear_backward(layer.pattern, layer.values, x, y)
    torch.testing.assert_close(y, x @ layer.weight.t())
    assert dx is not None
    assert dx.shape == x.shape


def test_memory_layout_of_the_inputs_does_not_matter():
    layer = random_layer(30, 40, density=0.2)
    x, dy = random_tensor(40, 70).t(), random_tensor(1, 30).expand(70, 30)
    y = linear_forward(layer.pattern, layer.values, x[:, ::1])
    dx, gradient = linear_backward(layer.pattern, layer.values, x, dy)
    torch.testing.assert_close(y, x @ layer.weight.t())
    torch.testing.assert_close(dx, dy @ layer.weight)
    torch.testing.assert_close(gradient, layer.at_entries(dy.t() @ x))


def test_more_samples_than_are_laid_out_at_once():
    layer = random_layer(3, 5, density=0.5)
    x, dy = random_tensor(9000, 5), random_tensor(9000, 3, seed=2)
    _, gradient = linear_backward(layer.pattern, layer.values, x, dy)
    torch.testing.assert_close(linear_forward(layer.pattern, layer.values, x), x @ layer.weight.t())
    torch.testing.assert_close(gradient, layer.at_entries(dy.t() @ x))


def test_nan_and_inf_go_where_they_go_in_a_dense_layer():
    layer = from_dense(WEIGHT)
    x = torch.ones(20, 4)
    x[3, 1], x[4, 0] = float("nan"), float("inf")
    y = linear_forward(layer.pattern, layer.values, x)
    assert y[3].isnan().tolist() == [False, False, True]
    assert y[4].isinf().tolist() == [True, False, True]
    assert y[5:].isfinite().all()


def test_more_positions_than_32_bits_can_count():
    # 100,000 x 100,000 with entries at both ends: dense it would take 40 GB.
    rows, columns = torch.tensor([0, 99_999, 50_000, 99_999]), torch.tensor([0, 0, 70_000, 99_999])
    pattern = make_pattern(rows, columns, 100_000, 100_000)
    values, x = torch.tensor([1.0, 2, 3, 4]), torch.zeros(2, 100_000)
    x[0, 0], x[1, 70_000], x[1, 99_999] = 1, 10, 100
    y = linear_forward(pattern, values, x)
    assert y.nonzero().tolist() == [[0, 0], [0, 99_999], [1, 50_000], [1, 99_999]]
    assert y[y != 0].tolist() == [1, 2, 30, 400]
    _, gradient = linear_backward(pattern, values, x, torch.ones(2, 100_000))
    assert gradient.tolist() == [1, 1, 10, 100]


def test_indices_take_five_bytes_per_nonzero_at_most():
    layer = random_layer(1000, 1000, density=0.1)
    assert layer.pattern.num_bytes <= 5 * layer.pattern.num_entries


def test_results_do_not_depend_on_the_number_of_threads(two_threads):
    layer = random_layer(300, 400, density=0.2, dtype=torch.float32)
    x, dy = random_tensor(200, 400, dtype=torch.float32), random_tensor(200, 300, seed=2, dtype=torch.float32)

    def compute():
        return linear_forward(layer.pattern, layer.values, x), *linear_backward(layer.pattern, layer.values, x, dy)

    of_two = [compute() for _ in range(5)]
    torch.set_num_threads(1)
    of_one = compute()
    assert all(torch.equal(ours, theirs) for result in of_two for ours, theirs in zip(result, of_one, strict=True))


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 40),
    st.integers(0, 40),
    st.sampled_from([0.02, 0.3, 1.0]),
    st.sampled_from([torch.float32, torch.float64]),
    st.booleans(),
    st.integers(1, 3),
    st.integers(0, 10**6),
)
def test_a_sample_gives_the_same_bits_alone_in_a_batch_and_on_several_threads(
    num_rows, num_columns, density, dtype, has_bias, num_threads, seed
):
    layer = random_layer(num_rows, num_columns, density=density, seed=seed, dtype=dtype)
    x = random_tensor(3, num_columns, seed=seed, dtype=dtype)
    bias = random_tensor(num_rows, seed=seed, dtype=dtype) if has_bias else None
    expected = linear_forward(layer.pattern, layer.values, x, bias)
    with patch.object(cpu_linear, "num_threads_for", lambda work: num_threads):
        for gaps in (x, x.repeat_interleave(2, 1)[:, ::2]):
            alone = [linear_forward(layer.pattern, layer.values, sample[None], bias) for sample in gaps]
            assert torch.equal(torch.cat(alone), expected)


def test_a_large_layer_is_shared_among_threads_for_one_sample(two_threads):
    layer = random_layer(1000, 1000, density=0.5, dtype=torch.float32)
    assert threads.num_threads_for(cpu_linear._COST_ALONE * layer.pattern.num_entries) == 2
    x = random_tensor(2, 1000, dtype=torch.float32)
    y = linear_forward(layer.pattern, layer.values, x)
    for _ in range(5):
        assert torch.equal(linear_forward(layer.pattern, layer.values, x[:1]), y[:1])


def test_calls_from_several_threads_at_once(two_threads):
    layer = random_layer(300, 400, density=0.2)
    batches = [random_tensor(200, 400, seed=seed) for seed in range(16)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda x: linear_forward(layer.pattern, layer.values, x), batches))
    for x, y in zip(batches, results, strict=True):
        torch.testing.assert_close(y, x @ layer.weight.t())


def test_where_there_is_no_openmp_python_threads_do_the_same(two_threads, monkeypatch):
    layer = random_layer(300, 400, density=0.2)
    x = random_tensor(200, 400)
    expected = linear_forward(layer.pattern, layer.values, x)
    monkeypatch.setattr(threads, "_on_threads", lambda: threads.on_python_threads)
    assert torch.equal(linear_forward(layer.pattern, layer.values, x), expected)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_process_with_one_thread_can_compute(two_threads):
    layer = random_layer(300, 400, density=0.2)
    x = random_tensor(200, 400)
    expected = linear_forward(layer.pattern, layer.values, x)
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)
        os._exit(0 if torch.equal(linear_forward(layer.pattern, layer.values, x), expected) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_kernels_work_where_nothing_compiled_can_be_kept():
    make = "from regrow.kernels.cpu.pattern import make_pattern"
    code = f"import torch; {make}; make_pattern(torch.zeros(1), torch.zeros(1), 1, 1)"
    nowhere = os.environ | {"NUMBA_CACHE_LOCATOR_CLASSES": "ZipCacheLocator"}
    subprocess.run([sys.executable, "-c", code], check=True, env=nowhere)


def test_whoever_waits_for_a_compiler_is_told_so_once_and_not_again(tmp_path):
    make = "from regrow.kernels.cpu.pattern import make_pattern"
    code = f"import torch; {make}; make_pattern(torch.zeros(1), torch.zeros(1), 1, 1)"
    own = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    told = [subprocess.run([sys.executable, "-c", code], env=own, capture_output=True, text=True) for _ in range(2)]
    line = "regrow compiles its CPU kernels for this machine, which takes some seconds the first time\n"
    assert [(one.returncode, one.stderr, one.stdout) for one in told] == [(0, line, ""), (0, "", "")]


def test_between_values_and_matrix():
    layer = random_layer(20, 30, density=0.2)
    assert torch.equal(densify(layer.pattern, layer.values), layer.weight)
    assert torch.equal(values_at(layer.pattern, layer.weight), layer.values)


def test_a_copied_pattern_is_whole():
    layer = random_layer(20, 30, density=0.2)
    x = random_tensor(4, 30)
    expected = linear_forward(layer.pattern, layer.values, x)
    assert torch.equal(linear_forward(copy.deepcopy(layer.pattern), layer.values, x), expected)


@pytest.mark.parametrize(
    ("rows", "columns"),
    [
        ([1, 0], [0, 0]),
        ([0, 0], [1, 0]),
        ([0, 0], [1, 1]),
        ([0, 2], [0, 0]),
        ([0, 0], [0, 3]),
        ([-1], [0]),
        ([0], [-1]),
    ],
    ids=["rows", "columns", "twice", "row too large", "column too large", "row negative", "column negative"],
)
def test_entries_out_of_order_or_place_are_refused(rows, columns):
    with pytest.raises(ValueError, match="sort entries by column"):
        make_pattern(torch.tensor(rows), torch.tensor(columns), num_rows=2, num_columns=3)


def test_tensors_that_do_not_fit_are_refused():
    layer = random_layer(3, 5, density=0.5)
    x = random_tensor(2, 5)
    with pytest.raises(TypeError, match="convert"):
        linear_forward(layer.pattern, layer.values, x.float())
    with pytest.raises(TypeError, match="densify"):
        linear_forward(layer.pattern, layer.values.half(), x.half())
    with pytest.raises(ValueError, match="as many values"):
        linear_forward(layer.pattern, layer.values[1:], x)
    with pytest.raises(ValueError, match="5 features"):
        linear_forward(layer.pattern, layer.values, x[:, 1:])


def test_too_many_nonzeros_are_refused():
    with pytest.raises(ValueError, match="use dense storage"):
        make_pattern(torch.tensor([0]), torch.tensor([0]), 1 << 31, 1)
