"""The derivative of LIF and ALIF in closed form, term by term: products are those of the named
matrices."""

import pytest
import torch

from neurolsc import LIF, ALIFLowPass, ALIFPlus, ALIFPlusMinus
from neurolsc.stability.transitions import follow

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize("kind", [LIF, ALIFPlus, ALIFPlusMinus, ALIFLowPass])
@pytest.mark.parametrize("reset", ["subtract", "static", "zero"])
@pytest.mark.parametrize("gradient", [False, True], ids=["detached", "gradient"])
def test_terms_between_two_vectors_are_those_of_the_named_matrices(kind, reset, gradient, make_network, make_spikes):
    network = make_network(kind, width=5, gain=6, tau_v=2.0, reset=reset, reset_gradient=gradient)
    transitions, outputs = follow(network, make_spikes(T=6, B=2), torch.arange(6))
    for t, z in zip(transitions, outputs, strict=True):
        assert 0 < z.mean() < 1
        known = t.cell.derivatives()
        matrices = known.by_state(t.x, t.before)
        size = next(iter(matrices.values())).shape[-1]
        x, y = torch.randn(12, size), torch.randn(12, size)
        some = torch.tensor([7, 1, 4])
        step = known.state_map(t.x, t.before)
        found, part = step.terms(x, y), step.take(some).terms(x[:3], y[:3])
        assert list(found) == list(part) == [term.name for term in known.terms]
        for name, m in matrices.items():
            torch.testing.assert_close(found[name], torch.einsum("pi,pij,pj->p", y, m, x))
            torch.testing.assert_close(part[name], torch.einsum("pi,pij,pj->p", y[:3], m[some], x[:3]))
