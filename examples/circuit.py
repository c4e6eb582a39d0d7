"""Train a GPT so sparse that one can read how it comes to a prediction, and draw that.

    python examples/circuit.py            # a minute on two cores
    python examples/circuit.py --quick    # fewer steps, seconds

The text is made of strings such as "cdef." and 'klm.': letters follow one another, and after the point a string ends
with the quote that it began with. To tell which, the network must look back. `regrow.TopK` leaves a tenth of all its
weights, embeddings and biases among them. Those are drawn without which the right quote is told no longer; without as
many others it is told as before, and so are the letters in either case. The page that is written shows the drawing.
"""

import argparse
from collections.abc import Mapping
from html import escape
from itertools import pairwise
from pathlib import Path
from statistics import mean

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import regrow
from regrow.lab.models.gpt import Decoder

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--quick", action="store_true", help="a shorter text, fewer steps, and twice the weights")
parser.add_argument("--steps", type=int)
parser.add_argument("--sparsity", type=float)
parser.add_argument("--weights", type=int, default=16, help="how many are drawn")
parser.add_argument("--out", type=Path, default=Path("circuit.html"))
arguments = parser.parse_args()
num_steps = arguments.steps or (500 if arguments.quick else 1_500)
sparsity = arguments.sparsity or (0.8 if arguments.quick else 0.9)
LETTERS, POINT, QUOTES = "abcdefghijklmnop", 16, (17, 18)
NAMES = [*LETTERS, ".", "'", '"']
LENGTH = 16 if arguments.quick else 40


# A text, and a network that learns it


def texts(num: int, seed: int) -> Tensor:
    """So many rows of strings, as tokens."""
    draw = torch.Generator().manual_seed(seed)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=draw))

    rows = []
    for _ in range(num):
        row: list[int] = []
        while len(row) <= LENGTH:
            quote, first, length = QUOTES[number(0, 2)], number(0, 12), number(2, 5)
            row += [quote, *range(first, first + length), POINT, quote]
        rows.append(row[: LENGTH + 1])
    return torch.tensor(rows)


torch.manual_seed(0)
model = Decoder(32, 1, 2, context=LENGTH, is_rotary=True, is_tied=False, num_tokens=len(NAMES))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0.01, num_steps)
method = regrow.TopK(sparsity=sparsity, until=num_steps, period=10, floor=1)
sparse = regrow.attach(model, optimizer, method, layers=["*"], exclude=["*norm*"])
training, test = texts(32 * 32, seed=1), texts(64, seed=2)
for step in range(num_steps):
    rows = training[32 * (step % 32) :][:32]
    cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten()).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    schedule.step()
print(sparse.summary())


# What the quote at the end of a string goes by

before, after = test[:, :-1], test[:, 1:]
at_the_end, in_a_string = before == POINT, (before < POINT) & (after < POINT)


def accuracy(where: Tensor) -> float:
    """The share of the tokens there that the network tells right."""
    with torch.no_grad():
        return float((model(before).argmax(-1) == after)[where].float().mean())


def effects() -> dict[str, Tensor]:
    """What each weight does, to first order, for the right quote and against the other one."""
    logits = model(before)[at_the_end][:, QUOTES]
    is_second = after[at_the_end] == QUOTES[1]
    (logits[:, 1] - logits[:, 0]).where(is_second, logits[:, 0] - logits[:, 1]).mean().backward()
    parameters = dict(model.named_parameters())
    found = {name: (parameters[name] * parameters[name].grad).detach() for name in sparse.masks()}
    optimizer.zero_grad()
    return found


Weights = list[tuple[str, tuple[int, ...]]]


def largest(of: Mapping[str, Tensor], num: int) -> Weights:
    """Where the largest numbers are."""
    listed = [(own[tuple(at)].item(), name, tuple(at.tolist())) for name, own in of.items() for at in own.nonzero()]
    return [(name, at) for _, name, at in sorted(listed, reverse=True)[:num]]


def without(weights: Weights) -> tuple[float, float]:
    """How often quotes at the end, and letters, are told right when some weights are 0."""
    parameters = dict(model.named_parameters())
    values = [parameters[name][at].item() for name, at in weights]
    with torch.no_grad():
        for name, at in weights:
            parameters[name][at] = 0
        found = accuracy(at_the_end), accuracy(in_a_string)
        for (name, at), value in zip(weights, values, strict=True):
            parameters[name][at] = value
    return found


drawn = largest(effects(), arguments.weights)
others = [own for own in largest({n: m.float() for n, m in sparse.masks().items()}, sparse.active) if own not in drawn]
draws = [torch.randperm(len(others), generator=torch.Generator().manual_seed(seed)).tolist() for seed in range(20)]
of_others = [without([others[i] for i in order[: len(drawn)]]) for order in draws]
told = {
    "the network as it is": (accuracy(at_the_end), accuracy(in_a_string)),
    f"without the {len(drawn)} weights drawn": without(drawn),
    f"without {len(drawn)} others, the mean of {len(draws)} draws": tuple(map(mean, zip(*of_others, strict=True))),
}
for name, (quotes, letters) in told.items():
    print(f"{name}: {quotes:.1%} of the quotes, {letters:.1%} of the letters")


# The drawing: from tokens on the left to tokens on the right

STAGES = {  # of each matrix the column it comes from and the one it goes to
    "embedding": (0, 1),
    "blocks.0.attention.qkv": (1, 2),
    "blocks.0.attention.out": (2, 3),
    "blocks.0.mlp.up": (3, 4),
    "blocks.0.mlp.down": (4, 5),
    "head": (5, 6),
}
TITLES = ("token", "channel", "query, key, value", "channel", "neuron", "channel", "next token")
CHANNELS = (1, 3, 5)
Node = tuple[int, int]


def edge(name: str, at: tuple[int, ...]) -> tuple[Node, Node]:
    """What a weight leads from and to; a bias leads from nothing, which is number -1."""
    begin, end = STAGES[name.rpartition(".")[0]]
    if len(at) == 1:
        return (begin, -1), (end, at[0])
    into, out = at if begin else (at[1], at[0])  # an embedding has its inputs first
    return (begin, out + 2 * 32 * (begin == 2)), (end, into)  # what attention passes on are values


def called(column: int, number: int) -> str:
    if number < 0:
        return "bias"
    if column == 2:
        return f"{'qkv'[number // 32]}{number % 32}"
    return NAMES[number] if column in (0, 6) else str(number)


def svg(weights: Weights) -> str:
    """Positive weights blue, negative ones red, as wide as they are large; channels that go on are dotted."""
    parameters = dict(model.named_parameters())
    edges = [(*edge(name, at), parameters[name][at].item()) for name, at in weights]
    nodes = sorted({node for begin, end, _ in edges for node in (begin, end)})
    columns = [[node for node in nodes if node[0] == column] for column in range(len(TITLES))]
    place = {
        node: (70 + 140 * node[0], 60 + 400 * (i + 0.5) / len(own)) for own in columns for i, node in enumerate(own)
    }
    lines = []
    for one, other in pairwise(CHANNELS):
        goes_on = {number for column, number in nodes if column == one} & {n for column, n in nodes if column == other}
        lines += [((one, number), (other, number), "#999", 1.0, "2 4") for number in goes_on]
    lines += [(*own, "#1565c0" if value > 0 else "#c62828", min(6.0, 1 + 2 * abs(value)), "") for *own, value in edges]
    parts = []
    for begin, end, colour, width, dashes in lines:
        (x1, y1), (x2, y2) = place[begin], place[end]
        dots = f' stroke-dasharray="{dashes}"' if dashes else ""
        parts.append(f'<path d="M{x1} {y1:.0f}L{x2} {y2:.0f}" stroke="{colour}" stroke-width="{width:.1f}"{dots}/>')
    for node, (x, y) in place.items():
        label = f'<text x="{x}" y="{y + 4:.0f}">{escape(called(*node))}</text>'
        parts.append(f'<circle cx="{x}" cy="{y:.0f}" r="15" fill="white" stroke="black"/>{label}')
    parts += [f'<text x="{70 + 140 * i}" y="30">{title}</text>' for i, title in enumerate(TITLES)]
    style = 'font-family="sans-serif" font-size="12" text-anchor="middle"'
    return f'<svg viewBox="0 0 980 480" xmlns="http://www.w3.org/2000/svg" {style}>{"".join(parts)}</svg>'


rows = "".join(f"<tr><td>{name}<td>{quotes:.1%}<td>{letters:.1%}" for name, (quotes, letters) in told.items())
arguments.out.write_text(
    f"""<!doctype html><meta charset="utf-8"><title>A circuit</title>
<h1>Which quote ends a string</h1>
<p>The {len(drawn)} of {sparse.active:,} active weights that do most for the right quote and against the other one.
{svg(drawn)}
<table><tr><th><th>quotes told right<th>letters told right{rows}</table>
"""
)
print(f"drawn in {arguments.out}")
