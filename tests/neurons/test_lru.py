"""The LRU: its scan against the loop, its initial values, its radius through time."""

import math

import pytest
import torch

from neurolsc import LRU, Network, load, radius_profile, save
from neurolsc.neurons import DiagonalRNN
from neurolsc.neurons.lru import FORMS, linear_scan

pytestmark = pytest.mark.usefixtures("float64")

TIGHT = {"rtol": 1e-10, "atol": 1e-12}


def by_loop(decay, inputs, start):
    values = []
    for b in inputs:
        start = decay * start + b
        values.append(start)
    return torch.stack(values)


@pytest.mark.parametrize("busy", [1, 10**9], ids=["loop", "halves"])
@pytest.mark.parametrize("steps", [1, 5, 8])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_the_scan_is_the_loop_with_its_gradients(steps, dtype, busy, monkeypatch):
    monkeypatch.setattr("neurolsc.neurons.lru.BUSY", busy)
    decay = (torch.polar(torch.rand(3), torch.rand(3) * 6) if dtype.is_complex else torch.rand(3)).requires_grad_()
    inputs, start = (torch.randn(shape, dtype=dtype).requires_grad_() for shape in ((steps, 2, 3), (2, 3)))
    scanned, looped = (way(decay, inputs, start) for way in (linear_scan, by_loop))
    torch.testing.assert_close(scanned, looped, **TIGHT)
    weights = torch.randn(looped.shape, dtype=dtype)
    gradients = [
        torch.autograd.grad((weights * x).sum().abs(), (decay, inputs, start), create_graph=True)
        for x in (scanned, looped)
    ]
    torch.testing.assert_close(*gradients, **TIGHT)
    again = [torch.autograd.grad(sum(g.abs().sum() for g in way), (decay, inputs)) for way in gradients]
    torch.testing.assert_close(*again, **TIGHT)


def test_starting_values_are_the_papers():
    cell = LRU(400, 400)
    moduli = cell.modulus.detach()
    assert 0.5 <= moduli.min() < 0.51 < 0.99 < moduli.max() < 1
    assert abs(moduli.mean() - 0.75) < 0.02
    phase = cell.phase.detach()
    assert 0 <= phase.min() < 0.01
    assert math.pi / 10 - 0.01 < phase.max() <= math.pi / 10
    torch.testing.assert_close(cell.gamma_log.exp().square() + moduli.square(), torch.ones(400), **TIGHT)
    for name, deviation in (("b_real", 400**-0.5), ("b_imag", 400**-0.5), ("c_real", 800**-0.5), ("c_imag", 800**-0.5)):
        assert abs(getattr(cell, name).std() / deviation - 1) < 0.02
    assert abs(cell.d.std() - 1) < 0.1
    assert LRU(3, 4).w_in.shape == (4, 3)
    assert cell.w_in is None


class ByAutograd(LRU):
    """A complex state without a closed form."""

    def closed_form(self) -> None:
        return None


@pytest.mark.parametrize("n_state", [10, 50])  # dense eigenvalues, and products with vectors
@pytest.mark.parametrize("method", ["krylov", "exact"])
@pytest.mark.parametrize("kind", [LRU, ByAutograd])
def test_the_radius_through_time_is_the_largest_modulus(kind, method, n_state):
    network, x = Network([kind(6, 6, n_state=n_state)], 2), torch.randn(5, 2, 6)
    profile = radius_profile(network, x, method=method, non_square="singular")
    close = {"rtol": 0.01, "atol": 0} if kind is ByAutograd and method == "krylov" else TIGHT
    torch.testing.assert_close(profile.time, network.cells[0].modulus.max().expand_as(profile.time), **close)


def test_dropout_acts_while_training_and_nowhere_else():
    cell, x = LRU(6, 6, dropout=0.5, exterior_dropout=0.5), torch.randn(9, 3, 6)
    start = cell.initial_state(3)
    assert not torch.equal(cell.run(x, start)[0], cell.run(x, start)[0])
    cell.eval()
    assert torch.equal(cell.run(x, start)[0], cell.run(x, start)[0])
    for name in ("dropout", "exterior_dropout"):
        with pytest.raises(ValueError, match=rf"{name} must be a probability in \[0, 1\), got 1.0"):
            LRU(3, 3, **{name: 1.0})


# ---- the recurrence alone, in three forms

each_form = pytest.mark.parametrize("form", FORMS)


@each_form
def test_a_diagonal_rnn_is_its_formula(form):
    cell, u = DiagonalRNN(3, 4, n_state=5, form=form, memory=0.5), torch.randn(6, 2, 3)
    p = dict(cell.named_parameters())
    if form == "complex":
        decay, scale = p["lambda_real"] + 1j * p["lambda_imag"], 1.0
    elif form == "lru":
        decay, scale = torch.exp(-torch.exp(p["nu_log"]) + 1j * torch.exp(p["theta_log"])), torch.exp(p["gamma_log"])
    else:
        scale = torch.log(1 + torch.exp(p["delta_raw"]))
        decay = torch.exp((p["a_real"] + 1j * p["a_imag"]) * scale)
    into, out = p["b_real"] + 1j * p["b_imag"], p["c_real"] + 1j * p["c_imag"]
    x = torch.zeros(2, 5, dtype=torch.complex128)
    for now, y in zip(u, cell.run(u, cell.initial_state(2))[0], strict=True):
        x = decay * x + scale * (now.to(into.dtype) @ into.T)
        torch.testing.assert_close(y, (x @ out.T).real + now @ p["d"].T, **TIGHT)


@each_form
def test_a_diagonal_rnn_starts_on_the_ring_and_is_set(form, tmp_path):
    cell = DiagonalRNN(2, 3, n_state=2000, form=form, memory=0.8, angle=1.0)
    z = cell.eigenvalues.detach()
    assert 0.8 <= z.abs().min() < 0.801 and 0.999 < z.abs().max() < 1
    assert abs(z.abs().square().mean() - (1 + 0.64) / 2) < 0.01  # areas of a ring are alike
    assert 0.99 < z.angle().abs().max() <= 1 and bool(z.angle().min() < -0.99) is (form != "lru")
    if form == "lru":
        torch.testing.assert_close(cell.gamma_log.exp().square() + z.abs().square(), torch.ones(2000), **TIGHT)
    with torch.no_grad():
        for parameter in cell.parameters():
            parameter.add_(0.3 * torch.rand_like(parameter))
    wanted = torch.polar(torch.rand(2000), torch.rand(2000))
    cell.eigenvalues = wanted
    torch.testing.assert_close(cell.eigenvalues.detach(), wanted)
    cell.modulus = 0.5 * wanted.abs()
    torch.testing.assert_close(cell.eigenvalues.detach(), 0.5 * wanted)
    if form == "complex":  # which holds eigenvalues of 0 as well
        cell.eigenvalues = torch.zeros_like(wanted)
        cell.modulus = wanted.abs()
        torch.testing.assert_close(cell.modulus.detach(), wanted.abs())
    save(Network([cell], 2), tmp_path / "network.safetensors")
    torch.testing.assert_close(load(tmp_path / "network.safetensors").cells[0].eigenvalues, cell.eigenvalues)


@each_form
def test_a_diagonal_rnns_radius_through_time_is_its_largest_modulus(form):
    network = Network([DiagonalRNN(6, 6, n_state=8, form=form), DiagonalRNN(6, 4, form=form)], 2)
    x = torch.randn(5, 2, 6)
    profile = radius_profile(network, x, non_square="singular")
    wanted = torch.stack([cell.modulus.max() for cell in network.cells])
    torch.testing.assert_close(profile.time, wanted.view(2, 1, 1).expand_as(profile.time), **TIGHT)
    with torch.no_grad():
        network.cells[0].modulus = 0.5 * network.cells[0].modulus
    halved = radius_profile(network, x, non_square="singular").time[0]
    torch.testing.assert_close(halved, 0.5 * profile.time[0], **TIGHT)
