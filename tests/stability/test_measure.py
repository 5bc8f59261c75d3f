"""Which points count as the same one, and so are measured once."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from neurolsc import radius_profile, wrap


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_points_of_one_state_but_other_inputs_are_measured_apart(kind, layers, float64):
    network = wrap(kind(3, 6, num_layers=layers))
    with torch.no_grad():
        for cell in network.cells:
            getattr(cell.layer, f"weight_ih{cell.suffix}").mul_(3)
    x = 2 * torch.randn(1, 8, 3)  # at the first step the states of all samples are at rest
    found = radius_profile(network, x, non_square="singular")
    exact = radius_profile(network, x, non_square="singular", method="exact")
    for radii, wanted in ((found.time, exact.time), (found.depth, exact.depth)):
        assert (wanted.amax(-1) > 1.05 * wanted.amin(-1)).all()
        assert_close(radii, wanted, rtol=1e-3, atol=0)


def test_samples_of_one_input_and_state_are_one_point(float64):
    network = wrap(nn.LSTM(3, 6))
    x = torch.randn(4, 1, 3).expand(4, 5, 3)
    profile = radius_profile(network, x)
    assert_close(profile.time, profile.time[..., :1].expand_as(profile.time), rtol=1e-12, atol=0)
    assert_close(profile.time, radius_profile(network, x, method="exact").time, rtol=1e-3, atol=0)
