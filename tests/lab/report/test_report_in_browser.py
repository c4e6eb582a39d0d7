"""The page in a real browser: nothing fetched, nothing complained about, tables sort, nothing is cut on a phone."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import NAMES, Page, browse, find_browser
from example_runs import with_provenance, write_examples, write_run

from regrow.lab.report.write import write_report

BROWSER = find_browser()
pytestmark = pytest.mark.skipif(BROWSER is None, reason=f"no browser: none of {', '.join(NAMES)} is on the PATH")
METHODS = (
    "Array.from(document.querySelector('main table.list').tBodies[0].rows, "
    "row => (row.cells[0].innerText + ' ' + row.cells[1].innerText).trim())"
)
SORTED = "Array.from(document.querySelectorAll('.list th[aria-sort$=ending]'), th => [th.dataset.key, th.ariaSort])"
SHOWN = (
    "Array.from(document.querySelectorAll('figure h4')).filter(e => e.checkVisibility() "
    "&& e.innerText.startsWith('Test accuracy by epoch')).map(e => e.innerText.split('sparsity ')[1])"
)
BUBBLE = "document.querySelector('.bubble').hidden ? null : document.querySelector('.bubble').innerText"
CUT = """
Array.from(document.querySelectorAll('.scroll')).flatMap(box => {
  const { left, right } = box.getBoundingClientRect();
  const cells = Array.from(box.querySelectorAll('th, td')).filter(cell => cell.checkVisibility());
  const cut = cells.filter(cell => {
    const own = cell.getBoundingClientRect();
    return own.left < left || own.right > right || cell.scrollWidth > cell.clientWidth;
  });
  return [...cut.map(cell => cell.innerText), ...(box.scrollWidth > box.clientWidth ? [box.ariaLabel] : [])];
})
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("runs")
    write_examples(runs)
    write_run(runs, 88.0, model="wrn_10_1", data="synthetic_colour", method="DSR", sparsity=0.9, epochs=3)
    write_run(runs, 88.0, method="DSR", sparsity=0.98, epochs=10, finished=False)
    return write_report([runs], tmp_path_factory.mktemp("report")).page


@pytest.fixture(scope="module")
def wide_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With as many sparsities as the paper's figure has, references and long names; and with too many of them."""
    runs = tmp_path_factory.mktemp("wide")
    slow, fast = ({"lr": {0: rate, 30: rate / 10}} for rate in (0.05, 0.2))
    across = {"name": "DeepR", "scope": "network"}
    for sparsity in (0.99, 0.98, 0.97, 0.96, 0.95, 0.9):
        for seed in range(2):
            common = {"sparsity": sparsity, "seed": seed, "epochs": 1, "written_for": 100}
            for optimizer in ({}, {"optimizer": slow}, {"optimizer": fast}):
                write_run(runs, 97.5 + seed, method=across, **common, **optimizer)
            write_run(runs, 97.5 + seed, method="DSR", **common)
    for percent in range(90, 99):
        path = write_run(runs, 90.0, method="SET", sparsity=percent / 100, data="fashion_mnist", epochs=1)
    with_provenance(path, host="Intel(R) Xeon(R) Processor", torch="2.11.0+cu130", revision="638274d747d8-dirty")
    return write_report([runs], tmp_path_factory.mktemp("report")).page


@pytest.fixture(scope="module")
def report_of_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("two")
    write_run(runs, 97.6, method="DSR", sparsity=0.99, epochs=2)
    write_run(runs, 43.1, method="Static", sparsity=0.99, epochs=2, optimizer={"lr": 0.05})
    return write_report([runs], tmp_path_factory.mktemp("report")).page


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    assert BROWSER is not None
    with browse(BROWSER, tmp_path_factory.mktemp("profile")) as page:
        yield page


def test_the_page_opens_without_a_complaint_or_a_request(page: Page, report: Path) -> None:
    page.open(report)
    assert "DSR comes first" in page.evaluate("document.body.innerText")
    assert page.evaluate("document.querySelectorAll('figure svg').length") == 15 + 8
    assert page.complaints() == []
    assert page.requests() == [report.as_uri()]


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_the_page_does_not_scroll_sideways(page: Page, report: Path, width: int) -> None:
    page.open(report, width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    widest = "Math.max(...Array.from(document.querySelectorAll('figure svg'), e => e.getBoundingClientRect().right))"
    assert page.evaluate(widest) <= width


@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize("name", ["report", "wide_report", "report_of_two"])
def test_no_column_is_cut(page: Page, request: pytest.FixtureRequest, name: str, width: int) -> None:
    page.open(request.getfixturevalue(name), width=width)
    assert page.evaluate(CUT) == []


@pytest.mark.parametrize("width", [390, 1400])
def test_tables_are_tables_for_a_screen_reader(page: Page, report: Path, width: int) -> None:
    page.open(report, width=width)
    roles = page.roles()
    assert ("rowheader", "DSR") in roles
    assert ("cell", "97.40 ± 0.20 *97.75 ± 0.04") in [(role, " ".join(name.split())) for role, name in roles]


def test_one_sparsity_is_chosen(page: Page, report: Path) -> None:
    page.open(report)
    assert page.evaluate(SHOWN) == ["0.99", "0.9"]  # of either experiment
    page.evaluate("document.querySelector('.chooser label:last-of-type').click()")
    assert page.evaluate(SHOWN) == ["0.95", "0.9"]
    page.evaluate("document.querySelector('.chooser label').click()")
    assert page.evaluate(SHOWN) == ["0.99", "0.9"]


def test_it_is_chosen_with_the_keyboard_and_said_to_a_screen_reader(page: Page, report: Path) -> None:
    page.open(report)
    page.evaluate("document.querySelector('.chooser input').focus()")
    page.press("ArrowRight")
    assert page.evaluate(SHOWN) == ["0.95", "0.9"]
    roles = page.roles()
    assert ("group", "Sparsity") in roles
    assert [name for role, name in roles if role == "radio"] == ["0.99", "0.95"]


def test_without_scripts_a_sparsity_is_chosen_and_values_are_told_by_the_browser(page: Page, report: Path) -> None:
    page.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        page.open(report)
        page.evaluate("document.querySelector('.chooser label:last-of-type').click()")
        assert page.evaluate(SHOWN) == ["0.95", "0.9"]
        assert page.evaluate("document.querySelector('.values title').textContent").startswith("Full dense: 98.40 %")
    finally:
        page.call("Emulation.setScriptExecutionDisabled", value=False)


@pytest.mark.parametrize("width", [390, 1400])
def test_what_is_pointed_at_is_told(page: Page, report: Path, width: int) -> None:
    page.open(report, width=width)
    assert page.evaluate(BUBBLE) is None
    told = "DSR, 0.99: 97.40 %, median of 97.20 97.40 97.60"
    disc = f"Array.from(document.querySelectorAll('.values circle')).find(e => e.textContent === '{told}')"
    page.point_at(disc)
    assert told in page.evaluate(BUBBLE).split("\n")
    box = page.evaluate("document.querySelector('.bubble').getBoundingClientRect().toJSON()")
    assert box["left"] >= 0
    assert box["right"] <= width
    page.point_at("document.querySelector('h1')")
    assert page.evaluate(BUBBLE) is None


def test_what_nobody_can_point_at_alone_is_told_together(page: Page, wide_report: Path) -> None:
    page.open(wide_report)
    page.point_at("Array.from(document.querySelectorAll('.values circle')).find(e => e.textContent.startsWith('DSR'))")
    told = page.evaluate(BUBBLE).split("\n")
    assert len(told) == 4
    assert sorted(line.split(",")[0] for line in told) == ["DSR", "DeepR", "DeepR", "DeepR"]


def test_a_click_sorts_and_a_second_one_turns_round(page: Page, report: Path) -> None:
    page.open(report)
    assert page.evaluate(METHODS)[:3] == ["Full dense", "Static 0.99", "SET 0.99"]
    best_first = ["Full dense", "DSR 0.95", "DSR 0.99", "SET 0.95", "SET 0.99", "Static 0.95", "Static 0.99"]
    page.evaluate("document.querySelector('th[data-key=accuracy] button').click()")
    assert page.evaluate(METHODS) == best_first
    assert page.evaluate(SORTED) == [["accuracy", "descending"]]
    page.evaluate("document.querySelector('th[data-key=accuracy] button').click()")
    assert page.evaluate(METHODS) == best_first[::-1]
    assert page.evaluate(SORTED) == [["accuracy", "ascending"]]
    assert page.evaluate("location.hash") == "#sort=accuracy"


def test_nothing_sorts_last_both_ways(page: Page, report: Path) -> None:
    for fragment in ("#sort=sparsity", "#sort=-sparsity"):
        page.open(report, fragment)
        assert page.evaluate(METHODS)[-1] == "Full dense"


def test_a_sorted_view_can_be_shared(page: Page, report: Path) -> None:
    page.open(report, "#sort=method")
    methods = ["DSR 0.99", "DSR 0.95", "Full dense", "SET 0.99", "SET 0.95", "Static 0.99", "Static 0.95"]
    assert page.evaluate(METHODS) == methods
    page.open(report, "#sort=<odd>")
    assert page.complaints() == []


def test_headers_are_reached_and_pressed_with_the_keyboard(page: Page, report: Path) -> None:
    page.open(report)
    page.evaluate("document.querySelector('th[data-key=parameters] button').focus()")
    page.press("Enter")
    assert page.evaluate(SORTED) == [["parameters", "descending"]]


def test_dark_mode_is_dark(page: Page, report: Path) -> None:
    colours = {}
    for dark in (False, True):
        page.open(report, dark=dark)
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        text = page.evaluate("getComputedStyle(document.querySelector('figure svg text')).fill")
        colours[dark] = (ground, text)
    assert colours == {
        False: ("rgb(255, 255, 255)", "rgb(27, 31, 36)"),
        True: ("rgb(20, 23, 27)", "rgb(232, 234, 237)"),
    }
