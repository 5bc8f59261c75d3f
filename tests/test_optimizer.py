import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_optimizer import AdaBelief
from torch import nn

from neurolsc.files import read_tree, write_tree
from neurolsc.optimizer import adabelief_lookahead
from tests.bits import assert_same_bits

MAKERS = [adabelief_lookahead, torch.optim.Adam, lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9)]


@pytest.mark.parametrize("make", MAKERS, ids=["lookahead", "adam", "sgd"])
@pytest.mark.parametrize("done", [1, 4, 6, 8])
def test_an_optimizer_goes_on_from_its_state_as_if_nothing_had_happened(make: Any, done: int, tmp_path: Path):
    """Lookahead synchronises every 6 steps: its counter and its slow copies must come back."""

    def start() -> tuple[nn.Linear, Any]:
        torch.manual_seed(0)
        layer = nn.Linear(5, 3)
        return layer, make(layer.parameters(), 1e-2)

    def steps(layer: nn.Linear, optimizer: Any, numbers: range) -> None:
        for i in numbers:
            optimizer.zero_grad()
            layer(torch.full((2, 5), math.sin(i))).square().sum().backward()
            optimizer.step()

    through, optimizer = start()
    steps(through, optimizer, range(15))

    first, optimizer = start()
    steps(first, optimizer, range(done))
    write_tree(tmp_path / "t", {"layer": first.state_dict(), "optimizer": optimizer.state_dict()})
    second, optimizer = start()
    tree = read_tree(tmp_path / "t")
    second.load_state_dict(tree["layer"])
    optimizer.load_state_dict(tree["optimizer"])
    if make is adabelief_lookahead:
        assert [group["counter"] for group in optimizer.param_groups] == [done % 6]
        assert all("slow_params" in optimizer.state[p] for p in second.parameters())
    steps(second, optimizer, range(done, 15))

    assert_same_bits(dict(through.state_dict()), dict(second.state_dict()))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lr": 0.0}, "lr must be positive"),
        ({"lr": math.nan}, "lr must be positive"),
        ({"weight_decay": -1e-4}, "weight_decay must be zero or positive"),
        ({"parameters": []}, "empty parameter list"),
    ],
)
def test_the_optimizer_refuses_what_it_cannot_use(changes: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        adabelief_lookahead(**{"parameters": [nn.Parameter(torch.zeros(1))], "lr": 0.1} | changes)


def test_every_sixth_step_goes_back_half_the_way():
    """The gradient is constant, so that AdaBelief alone goes down without a turn."""
    w = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = adabelief_lookahead([w], lr=0.1)
    path = [0.0]
    for _ in range(12):
        w.grad = torch.ones_like(w)
        optimizer.step()
        path.append(w.item())
    moves = [b - a for a, b in itertools.pairwise(path)]
    assert [i for i, move in enumerate(moves, start=1) if move > 0] == [6, 12]
    inner = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    base = AdaBelief([inner], lr=0.1)
    for _ in range(6):
        inner.grad = torch.ones_like(inner)
        base.step()
    assert path[6] == pytest.approx(inner.item() / 2)
