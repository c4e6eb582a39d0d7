"""The documents run: every Python block and every command of every page, in order, and what pages point to is there.

A page is run in a folder of its own, in which `experiments` and `results` are those of the project. Its Python blocks
share their names. Commands that would train for long train one epoch on the synthetic set; sweeps only list their runs.
"""

import importlib.util
import re
import shlex
import socket
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

import regrow
from regrow.lab.cli.main import app
from regrow.lab.config import make_config
from regrow.lab.config.component import KINDS
from regrow.lab.run.loop import Options, train
from trainer_warnings import IGNORED

ROOT = Path(__file__).parent.parent
PAGES = ["README.md", "CONTRIBUTING.md", *sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/**/*.md"))]
HAS_ONNX = all(importlib.util.find_spec(name) for name in ("onnx", "onnxscript", "onnxruntime"))
pytestmark = [pytest.mark.filterwarnings(ignored) for ignored in IGNORED]
SHORT = ["data=synthetic", "epochs=1", "batch_size=500"]
FEW_STEPS = ["data=synthetic", "max_steps=120", "batch_size=50"]


def text_of(page: str) -> str:
    return (ROOT / page).read_text()


def blocks(page: str) -> list[tuple[str, str]]:
    """Language and text of each fenced block; of what is indented the lines that are commands."""
    found = re.findall(r"^```([^\n]*)\n(.*?)^```$|^ {4}(regrow [^\n]*\n)", text_of(page), re.DOTALL | re.MULTILINE)
    return [("console", line) if line else (language, block) for language, block, line in found]


def python_blocks(page: str) -> list[str]:
    return [block for language, block in blocks(page) if language.startswith("python")]


def commands(page: str) -> list[str]:
    """What a page tells a user to type."""
    shown = [block.splitlines() for language, block in blocks(page) if language == "console"]
    return [line.partition("  #")[0] for lines in shown for line in lines if line.startswith("regrow ")]


RUN_WHOLE = [page for page in PAGES if python_blocks(page)]
RUN_BY_LINE = [page for page in PAGES if page not in RUN_WHOLE]


@pytest.fixture(autouse=True)
def own_registry():
    """Methods and components that a page makes are gone after it."""
    registries = [regrow.METHODS, *KINDS.values()]
    before = [dict(registry) for registry in registries]
    yield
    for registry, known in zip(registries, before, strict=True):
        registry.clear()
        registry.update(known)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name in ("experiments", "results"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def be_started_by_torchrun(monkeypatch) -> None:
    """As the only rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
        monkeypatch.setenv(name, value)


# Every page from top to bottom


def after_the_readme(space, folder, printed):
    assert "DSR, step 300, budget 23,820" in printed
    assert len(space["sparse"].history) == 3


def after_contributing(space, folder, printed):
    regrow.testing.check_method(regrow.Halving(sparsity=0.8))
    with pytest.raises(TypeError, match="did you mean 'share'"):
        regrow.Halving(sparsity=0.8, shar=0.1)


def after_extending(space, folder, printed):
    assert regrow.METHODS["Saliency"] is space["Saliency"]
    with pytest.raises(TypeError, match="did you mean 'fraction'"):
        regrow.Saliency(sparsity=0.8, fracton=0.1)


def after_files(space, folder, printed):
    made = {path.name for path in folder.iterdir()}
    assert made >= {"dense.safetensors", "model.pt", "matrices.pt", "lenet.safetensors", "lenet.pt"}
    assert not HAS_ONNX or made >= {"lenet.onnx", "model.onnx"}


def after_finetuning(space, folder, printed):
    dense, pruned, finetuned = (space[name] for name in ("dense", "pruned", "finetuned"))
    assert pruned < (pruned + dense) / 2 < finetuned, "training what is left must bring back most of what was lost"


def after_training(space, folder, printed):
    written = list((folder / "runs" / "tensorboard").glob("events*"))
    if not is_missing("python tensorboard"):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        [file] = written
        events = EventAccumulator(str(file)).Reload()
        names = {"sparsity", "active", "budget", "threshold", *(f"density/{n}" for n in space["sparse"].masks())}
        assert set(events.Tags()["scalars"]) == names
        assert [(event.step, event.value) for event in events.Scalars("active")] == [(40, 320)]


def after_trainers(space, folder, printed):
    """What each program that could be run has left."""
    made = {path.name for path in folder.iterdir()}
    assert "model.safetensors" in made
    assert not importlib.util.find_spec("lightning") or made >= {"saved", "fabric.ckpt"}
    assert not importlib.util.find_spec("transformers") or made >= {"checkpoints", "bert.safetensors", "state"}
    assert "ray" not in space or made >= {"ray.safetensors", "runs"}


AFTER: dict[str, Callable[..., None]] = {
    "README.md": after_the_readme,
    "CONTRIBUTING.md": after_contributing,
    "docs/extend.md": after_extending,
    "docs/files.md": after_files,
    "docs/finetune.md": after_finetuning,
    "docs/training.md": after_training,
    "docs/trainers.md": after_trainers,
}


@pytest.mark.parametrize("page", RUN_WHOLE)
def test_a_page_runs_from_top_to_bottom(page, folder, capsys, monkeypatch):
    train_the_run_of(page, folder)
    if "init_process_group" in text_of(page):
        be_started_by_torchrun(monkeypatch)
    torch.manual_seed(0)
    space: dict[str, object] = {"__name__": Path(page).stem}
    for number, (language, block) in enumerate(blocks(page), 1):
        if is_missing(language) or (not HAS_ONNX and ".onnx" in block):
            continue
        if language.startswith("python"):
            exec(compile(block, f"{page}, block {number}", "exec"), space)
        elif language == "console":
            for line in block.splitlines():
                type_in(line)
    AFTER.get(page, lambda *_: None)(space, folder, capsys.readouterr().out)


def is_missing(language: str) -> bool:
    """Whether a block, which may name a package after its language, cannot run here."""
    return any(importlib.util.find_spec(package) is None for package in language.split()[1:])


def train_the_run_of(page: str, folder: Path) -> None:
    """Where a page goes on with a run: a short one on the synthetic set, under the name that the page has for it."""
    names = set(re.findall(r"runs/(\w\S+-seed\S+)", "".join(commands(page))))
    if names:
        [name] = names
        config = make_config({"data": "synthetic", "epochs": 1, "batch_size": 500, "method": "DSR", "sparsity": 0.99})
        train(config, folder / "runs", Options(threads=1))
        (folder / "runs" / config.id).rename(folder / "runs" / name)


def type_in(line: str) -> None:
    program, *words = shlex.split(line, comments=True)
    if program == "torchrun":  # one process is enough to see whether it has these options
        words = words[words.index("regrow") + 1 :]
    assert program in ("regrow", "torchrun"), line
    if words[0] == "data":
        words = ["data"]
    elif words[0] == "train":
        words += FEW_STEPS if any(word.startswith("max_steps=") for word in words) else SHORT
    elif words[0] in ("sweep", "tune"):
        words += [] if "--dry-run" in words else ["--dry-run"]
    elif words[:2] == ["bench", "overhead"]:  # which measures for minutes: only whether it has these options
        told = CliRunner().invoke(app, ["bench", "overhead", "--help"], env={"COLUMNS": "200"}).output
        assert all(word in told for word in words if word.startswith("--"))
        return
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(("page", "line"), [(page, line) for page in RUN_BY_LINE for line in commands(page)])
def test_a_command_works(page, line, folder):
    type_in(line)


# What is easily forgotten


@pytest.mark.parametrize("name", sorted(regrow.METHODS))
def test_swapping_the_method_is_the_only_change(name, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    example = python_blocks("README.md")[0].replace("range(300)", "range(3)")
    assert "regrow.DSR(" in example
    exec(example.replace("regrow.DSR(", f"regrow.{name}("), {})
    assert capsys.readouterr().out.startswith(f"{name}, step 3")


def test_the_readme_lists_every_method():
    table = re.findall(r"^\| `(\w+)` \|", text_of("README.md"), re.MULTILINE)
    assert sorted(table) == sorted(regrow.METHODS)


def test_the_page_on_comparing_tells_the_defaults_there_are():
    rows = re.findall(
        r"^\| (`\w+`(?:, `\w+`)*) \| `(.+?)` \| `(.+?)` \| (.+) \|$", text_of("docs/compare.md"), re.MULTILINE
    )
    told = {name: row for row in rows for name in re.findall(r"\w+", row[0])}
    assert told.keys() == regrow.METHODS.keys() - {"Dense"}
    for name, (_, distribution, until, rest) in told.items():
        method = regrow.METHODS[name](sparsity=0.9)
        assert (distribution.strip('"'), until) == (method.distribution, str(method.until))
        assert method.period == (1 if method.rewires_every_step else 100)
        assert method.falls == ("falling" in rest and method.until is None)
        for field, value in re.findall(r"`(\w+)=([^`]+)`", rest):
            assert str(getattr(method, field)) == value


def test_the_readme_is_short():
    assert len(text_of("README.md").split()) <= 900


@pytest.mark.parametrize("page", PAGES)
def test_no_block_escapes(page):
    """A fence that is indented, or of a language that nothing here knows, would not be run."""
    fences = re.findall(r"^( *)(`{3,}|~{3,})([^\n]*)$", text_of(page), re.MULTILINE)
    assert all((indent, fence) == ("", "```") for indent, fence, _ in fences)
    assert {language.split()[0] for language, _ in blocks(page)} <= {"python", "console", "toml"}
    assert len(fences) == 2 * len(re.findall(r"^```\w", text_of(page), re.MULTILINE)), "a fence has no language"


@pytest.mark.parametrize("program", python_blocks("docs/trainers.md"))
def test_a_program_for_a_trainer_is_short(program):
    assert len(program.splitlines()) <= 25


EXPERIMENTS = [(page, block) for page in PAGES for language, block in blocks(page) if language == "toml"]


@pytest.mark.parametrize(("page", "toml"), EXPERIMENTS)
def test_an_experiment_of_a_page_can_be_swept(page, toml, folder):
    content = tomllib.loads(toml)
    assert content["runs"]
    Path("experiment.toml").write_text(toml)
    type_in(f"regrow {'tune' if 'tune' in content else 'sweep'} experiment.toml")


def in_code(page: str) -> list[str]:
    """What a page sets as code within its sentences, each on one line, and lines of their own that call make."""
    rest = re.sub(r"^```.*?^```$", "", text_of(page), flags=re.DOTALL | re.MULTILINE)
    return [
        " ".join("".join(code).split()) for code in re.findall(r"`([^`]+)`|^ {4}(make [^\n#]+)", rest, re.MULTILINE)
    ]


@pytest.mark.parametrize("page", PAGES)
def test_what_a_sentence_names_is_there(page):
    """Commands with their options, targets of make, benchmarks, examples, and paths of the project."""
    folders = ("src", "docs", "tests", "experiments", "results", "examples", "benchmarks")
    targets = re.findall(r"^(\w+):", text_of("Makefile"), re.MULTILINE)
    for code in in_code(page):
        program, *words = shlex.split(code) if re.match(r"(regrow|make|python) ", code) else [code]
        if words and program == "make":
            assert words[0] in targets, code
        elif words and program == "regrow" and words[0].islower():
            assert set(options_in(words)) <= options_of(words), code
        elif words and program == "python":
            script = ROOT / (words[1].replace(".", "/") + ".py" if words[0] == "-m" else words[0])
            assert script.exists(), code
            assert all(f'"{option}"' in script.read_text() for option in options_in(words)), code
        elif code.startswith(tuple(f"{name}/" for name in folders)):
            assert (ROOT / code).exists(), code


def options_in(words: list[str]) -> list[str]:
    return [word for word in words if word.startswith("--") and word not in ("--help", "--import")]


def options_of(words: list[str]) -> set[str]:
    command = typer.main.get_command(app)
    while words[0] == "--import":
        words = words[2:]
    while hasattr(command, "commands"):
        command, words = command.commands[words[0]], words[1:]
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        path, _, anchor = link.partition("#")
        assert not re.match(r"\w+:", link), f"{link} leads out of the project"
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), link
        headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE) if anchor else []
        assert not anchor or anchor in {re.sub(r"[^\w]+", "-", h.lower()).strip("-") for h in headings}, link


def test_every_page_is_in_the_site():
    """The contents of the site, and of the page that lists them, are all pages there are."""
    pages = {Path(page).name for page in PAGES if page.startswith("docs/")}
    nav = re.findall(r"^  - .*: (\w+\.md)$", text_of("mkdocs.yml"), re.MULTILINE)
    assert set(nav) == pages
    listed = re.findall(r"^\| \[.*\]\((\w+\.md)\) \|", text_of("docs/index.md"), re.MULTILINE)
    assert set(listed) == pages - {"index.md"}
