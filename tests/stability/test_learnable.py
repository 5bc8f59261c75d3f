"""Gradients of radii by what a surrogate learns, against finite differences of the radius in
float64."""

import pytest
import torch

from neurolsc import LIF, ALIFPlus, Network
from neurolsc.stability.profile import depth_radius, time_radius
from neurolsc.stability.transitions import follow
from neurolsc.surrogate import MultiGaussian


class ALIFByAutograd(ALIFPlus):
    def closed_form(self) -> None:
        return None


def layer(kind: type, reset: str, spike: type) -> tuple:
    """A firing layer, and its transitions at a few steps."""
    torch.manual_seed(3)
    options = {"tau_v": 8.0, "reset": reset, "reset_gradient": True, "spike": spike(0.6, 1.3, learnable=True)}
    cells = [kind(12, 10, **options), kind(10, 10, **options)]
    network = Network(cells, 2).double()
    with torch.no_grad():
        for cell in cells:
            cell.w_in.abs_().mul_(4)
            cell.w_rec.mul_(3)
    x = (torch.rand(12, 3, 12) < 0.4).double()
    transitions, outputs = follow(network, x, torch.arange(4, 12))
    assert outputs[1].mean() > 0.05
    return cells[1], transitions[1]


@pytest.mark.parametrize(
    ("kind", "reset", "method"),
    [
        (LIF, "zero", "krylov"),
        (LIF, "static", "exact"),
        (ALIFPlus, "subtract", "krylov"),
        (ALIFPlus, "zero", "exact"),
        (ALIFByAutograd, "static", "krylov"),
    ],
)
def test_gradients_by_dampening_and_sharpness_are_those_of_finite_differences(kind, reset, method):
    cell, t = layer(kind, reset, MultiGaussian)

    def means() -> tuple[torch.Tensor, torch.Tensor]:
        depth = depth_radius(t, 1, "submatrix", torch.Generator().manual_seed(0), method)
        return time_radius(t, 1, method).radius.mean(), depth.radius.mean()

    names = ("log_dampening", "log_sharpness")
    for direction in (0, 1):
        found = torch.autograd.grad(means()[direction], [getattr(cell.spike, n) for n in names], allow_unused=True)
        for name, gradient_found in zip(names, found, strict=True):
            parameter = getattr(cell.spike, name)
            values = []
            for step in (1e-6, -1e-6):
                with torch.no_grad():
                    parameter.add_(step)
                    values.append(means()[direction].item())
                    parameter.sub_(step)
            wanted = (values[0] - values[1]) / 2e-6
            assert (0.0 if gradient_found is None else gradient_found.item()) == pytest.approx(
                wanted, rel=1e-4, abs=1e-6
            )
