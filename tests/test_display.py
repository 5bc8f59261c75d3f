"""Results show themselves as text; long work has a bar."""

import pytest
import torch

from neurolsc import LIF, Network, pretrain, radius_profile, scale_to_radius, train
from neurolsc.display import Table, progress_bar


def test_a_table_has_words_to_the_left_numbers_to_the_right_and_nothing_after_the_last_word():
    table = Table(("layer", "radius", "held by"), [("1", "0.5 *", "leak"), ("10", "0.25  ", "feedback, reset")])
    assert str(table) == ("layer  radius  held by\n    1   0.5 *  leak\n   10  0.25    feedback, reset")


@pytest.mark.parametrize("shown", [True, False])
def test_every_long_work_has_a_bar_and_can_be_quiet(shown, capsys):
    network, x = Network([LIF(6, 5)], n_out=2), (torch.rand(4, 4, 6) < 0.4).float()
    items = [(x[:, i], i % 2) for i in range(4)]
    pretrain(network, [x], target=0.5, max_steps=2, progress=shown)
    scale_to_radius(network, x, target=0.5, progress=shown)
    radius_profile(network, x, progress=shown)
    train(network, items, items, epochs=1, batch_size=2, progress=shown)
    bars = capsys.readouterr().err
    for desc, last in ("pretrain", "2/2"), ("scale", "measurement"), ("radii", "100%"), ("epoch 1/1", "loss"):
        assert (f"{desc}: " in bars and last in bars) == shown
    radius_profile(network, x)  # quick ones show nothing unless they are to
    assert capsys.readouterr().err == ""


def test_a_bar_in_a_log_is_not_renewed_at_every_step(capsys):
    with progress_bar(10_000, desc="work", unit="piece") as bar:
        for _ in range(10_000):
            bar.update()
    assert capsys.readouterr().err.count("\r") <= 3
