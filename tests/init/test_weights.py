"""Initialisers by variance and by the statistics of spikes: their formulas, measured after they are set."""

import math
import re
from functools import partial

import pytest
import snntorch as snn
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from neurolsc import LIF, ALIFPlus, Cell, Network, load, save, wrap
from neurolsc.init import IKUN, LSUV, ActivityPropagation, FluctuationDriven, FourConditions, Glorot, He
from neurolsc.init.base import Layer
from neurolsc.init.weights import _decay_factor
from neurolsc.network import Embedding
from neurolsc.surrogate import Exponential, FastSigmoid
from tests.init.networks import NETWORKS, all_voltages, norse, rates, spikes

WIDE = 300
FEW = ["ALIFPlus", "norse"]


def wide(layer) -> Network:
    torch.manual_seed(0)
    return Network([layer(WIDE, 200), layer(200, 200)], 4)


def wide_snntorch() -> Network:
    recurrent = snn.RLeaky(0.8, linear_features=200, spike_grad=snn.surrogate.fast_sigmoid(25))
    return wrap([nn.Linear(WIDE, 200), recurrent, nn.Linear(200, 4)])


def wide_norse() -> Network:
    return wrap([norse.LIFRecurrent(WIDE, 200), nn.Linear(200, 4)])


def matrices(network: Network) -> list[Tensor]:
    """The input and the recurrent matrix of the first layer."""
    cell = network.cells[0]
    if hasattr(cell, "w_in"):
        return [cell.w_in.detach(), cell.w_rec.detach()]
    names = ("before.0.weight", "layer.recurrent.weight")
    if hasattr(cell.layer, "input_weights"):
        names = ("layer.input_weights", "layer.recurrent_weights")
    return [cell.get_parameter(name).detach() for name in names]


# ---- by fan


@pytest.mark.parametrize("make", [lambda: wide(LIF), wide_norse])
def test_glorot_and_he_have_the_deviations_of_their_formulas(make):
    for initialiser, deviations in (
        (Glorot(1.5), [1.5 * math.sqrt(2 / (WIDE + 200)), 1.5 * math.sqrt(2 / 400)]),
        (He(0.5), [0.5 * math.sqrt(2 / WIDE), 0.5 * math.sqrt(2 / 200)]),
    ):
        network = make()
        assert initialiser.apply(network, []) == ()
        for weights, deviation in zip(matrices(network), deviations, strict=True):
            there = weights[weights != 0]
            assert there.std().item() == pytest.approx(deviation, rel=0.02)
            assert abs(there.mean().item()) < 5 * deviation / math.sqrt(there.numel())
            if isinstance(initialiser, Glorot):
                assert there.abs().max().item() <= math.sqrt(3) * deviation


@pytest.mark.parametrize(
    ("make", "slope"),
    [
        (lambda: wide(LIF), 0.5 * 0.5),  # dampening times the integral of (1 + u)^-2 over 0 to 1
        (lambda: wide(lambda n, m: LIF(n, m, spike=FastSigmoid(torch.linspace(0.1, 0.9, m)))), 0.25),
        (wide_snntorch, 1 / 26),
        (wide_norse, 0.5),  # its method super: (1 + |u|)^-2
    ],
)
def test_ikun_divides_by_the_mean_derivative_of_the_surrogate(make, slope):
    for version, fans in (("v1", [WIDE, 200]), ("v2", [WIDE + 200, 400])):
        network = make()
        IKUN(version).apply(network, [])
        for weights, fan in zip(matrices(network), fans, strict=True):
            there = weights[weights != 0]
            assert there.var().item() == pytest.approx(1 / (slope * fan), rel=0.04)


# ---- LSUV


@pytest.mark.parametrize("name", ["LIF", "ALIFPlus", "snntorch", "norse"])
def test_the_voltages_of_every_layer_get_the_variance(name):
    network, x = NETWORKS[name](), spikes()
    missed = {f.layer: str(f) for f in LSUV(0.4).apply(network, [x], seed=1)}
    assert len(missed) <= 1  # with some seeds one moves in jumps, and the finding has its variance
    assert min(rates(network, x)) > 0.001
    for layer, voltage in enumerate(all_voltages(network, x), start=1):
        wanted = float(re.findall(r"voltages is ([\d.]+), not 0.4", missed[layer])[0]) if layer in missed else 0.4
        assert voltage.var(correction=0).item() == pytest.approx(wanted, rel=0.01 if layer in missed else 0.05)


def test_lsuv_scales_orthonormal_weights_and_names_a_layer_that_nothing_reaches():
    network = NETWORKS["LIF"]()
    LSUV().apply(network, [spikes()])
    for cell in network.cells:
        values = torch.linalg.svdvals(cell.w_rec.detach())
        assert_close(values, values.mean().expand_as(values))
        assert_close(torch.linalg.svdvals(cell.w_in.detach()), values)
    network = Network([LIF(40, 16, threshold=1e9), LIF(16, 16)], 4)
    (finding,) = LSUV().apply(network, [spikes()])
    assert finding.layer == 2 and "variance of its voltages is 0, not 1" in str(finding)
    assert all(p.isfinite().all() for p in network.parameters())


def test_inputs_with_a_negative_mean_draw_finite_recurrent_weights():
    network = NETWORKS["LIF"]()
    x = spikes() - 0.5
    assert x.mean() < 0
    found = FluctuationDriven().apply(network, [x])
    assert not any("drawn for -" in str(finding) for finding in found)
    assert all(p.isfinite().all() for p in network.parameters())


# ---- the statistics of spikes


def free_voltages(cell: Cell, read: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    """The parts of a voltage without reset that come from the input and from the layer itself."""
    decay, parts = cell.decay_v.detach(), []
    for current in (read @ cell.w_in.detach().T, own @ cell.w_rec.detach().T):
        v, trace = torch.zeros_like(current[0]), []
        for now in current:
            v = decay * v + now
            trace.append(v)
        parts.append(torch.stack(trace)[50:].flatten(0, 1))
    return parts[0], parts[1]


@pytest.mark.parametrize(
    ("initialiser", "kind"), [(FluctuationDriven(), LIF), (FluctuationDriven(0.3, 0.8, 0.6), ALIFPlus)], ids=str
)
def test_mean_and_deviation_in_time_are_the_wanted_ones(initialiser, kind):
    torch.manual_seed(0)
    network = Network([kind(400, 200, tau_v=4.0)], 4)
    x = spikes(300, 6, 400, rate=0.04)
    assert initialiser.apply(network, [x], seed=1) == ()
    cell = network.cells[0]
    z = network.run(x).spikes[0].detach()
    assert 0.005 < z.mean().item() < 0.5
    below, itself = free_voltages(cell, *(torch.cat([torch.zeros_like(s[:1]), s[:-1]]) for s in (x, z)))
    theta = (cell.theta if kind is LIF else cell.theta_rest).detach()
    from_below = (below.std(0) / theta).square().mean().item()
    assert from_below == pytest.approx(
        initialiser.alpha * initialiser.sigma**2, rel=0.1
    )  # spikes of 4 % are nearly Poisson
    from_itself = (itself.std(0) / theta).square().mean().item()
    assert from_itself == pytest.approx(
        (1 - initialiser.alpha) * initialiser.sigma**2, rel=0.35
    )  # own spikes are correlated
    assert ((below + itself).mean(0) / theta).mean().item() == pytest.approx(initialiser.mu, abs=0.1)


def kernel_of_two_exponentials(alpha: float, beta: float, steps: int) -> list[float]:
    """What one spike of weight 1 adds to the voltage of the released code's neuron, from the step of the spike on."""
    return [(1 - beta) * sum(beta ** (t - 1 - s) * alpha**s for s in range(t)) for t in range(steps)]


@pytest.mark.parametrize("recurrent", [True, False])
def test_weights_at_a_given_rate_are_those_of_the_released_code(recurrent: bool):
    """Its formulas with nu in Hz, time constants in s; snnTorch's voltage is without the factor 1 - beta."""
    nu, dt, tau_mem, tau_syn, mu_u, xi, share = 15.0, 1e-3, 20e-3, 10e-3, 0.1, 2.0, 0.9 if recurrent else 1.0
    # snnTorch's decays are float32
    alpha, beta = (torch.tensor(math.exp(-dt / tau)).item() for tau in (tau_syn, tau_mem))
    n_in, n_hidden = 120, 80
    kernel = kernel_of_two_exponentials(alpha, beta, round(10 * tau_mem / dt))
    epsilon_bar, epsilon_hat = dt * sum(kernel), dt * sum(e**2 for e in kernel)
    mu_w = mu_u / ((n_in + recurrent * n_hidden) * nu * epsilon_bar)
    variance = ((1 - mu_u) / xi) ** 2 / (nu * epsilon_hat)
    sigmas = [
        math.sqrt(part * variance / n - mu_w**2) for part, n in ((share, n_in), (1 - share, n_hidden)) if part > 0
    ]

    kind = partial(snn.RSynaptic, linear_features=n_hidden) if recurrent else snn.Synaptic
    layer = kind(alpha, beta, threshold=1 / (1 - beta), reset_mechanism="subtract")
    network = wrap([nn.Linear(n_in, n_hidden), layer, nn.Linear(n_hidden, 4)]).double()
    initialiser = FluctuationDriven(mu_u, (1 - mu_u) / xi, rate=nu * dt, steps=len(kernel) - 1)  # the first entry is 0
    assert initialiser.apply(network, [], seed=3) == ()
    found = Layer(network, 0)
    assert len(found.matrices) == len(sigmas)
    for matrix, sigma_w in zip(found.matrices, sigmas, strict=True):
        assert_close(matrix.weights, mu_w + sigma_w * found.normal(matrix, 3), rtol=1e-6, atol=1e-9)

    # the paper's integrals in continuous time are smaller, at these time constants of 10 and 20 steps
    assert epsilon_bar / tau_syn == pytest.approx(1.05, abs=0.002)
    assert epsilon_hat / (tau_syn**2 / (2 * (tau_syn + tau_mem))) == pytest.approx(1.105, abs=0.002)


def test_the_filter_and_the_leak_are_measured_and_leave_no_trace():
    layer = Layer(NETWORKS["LIF"](), 0)
    before, decay = layer.cell.w_in.detach().clone(), layer.cell.decay_v.detach().double()
    assert_close(layer.impulse_response(12), decay ** torch.arange(12).unsqueeze(1), rtol=1e-3, atol=1e-4)
    assert torch.equal(layer.cell.w_in, before)
    with torch.no_grad():
        assert _decay_factor(layer) == pytest.approx(decay.mean().item(), rel=1e-4)
        assert _decay_factor(Layer(NETWORKS["snntorch"](), 0)) == pytest.approx(0.8, rel=1e-4)


def test_activity_passes_through_ten_layers_at_a_variance_of_one():
    """Memoryless neurons without reset, as the paper has them: all layers fire at P(u > 1)."""
    torch.manual_seed(0)
    layers = [m for _ in range(10) for m in (nn.Linear(600, 600, bias=False), snn.Leaky(0.0, reset_mechanism="none"))]
    network, x = wrap(layers, output="spikes"), spikes(10, 32, 600, rate=0.3)
    assert rates(network, x)[-1] == 0
    assert ActivityPropagation().apply(network, [x], seed=1) == ()
    for mem, fires in zip(all_voltages(network, x), rates(network, x), strict=True):
        assert mem.var().item() == pytest.approx(1, abs=0.15)
        assert fires == pytest.approx(0.1587, abs=0.025)


@pytest.mark.parametrize("name", FEW)
def test_propagation_counts_all_spikes_that_a_neuron_reads(name):
    network, x = NETWORKS[name](), spikes(rate=0.3)
    assert ActivityPropagation().apply(network, [x], seed=1) == ()
    cell = network.cells[0]
    theta = cell.membrane().thresholds(cell.initial_state(1))[0]
    fires = torch.special.ndtr(-theta).mean().item()
    for weights in matrices(network):
        there = weights[weights != 0]
        wanted = 1 / (40 * x.mean().item() + 32 * fires)
        assert there.var().item() == pytest.approx(wanted, rel=0.15)  # of 32 x 32 numbers
    assert rates(network, x)[0] > 0.01
    (finding,) = ActivityPropagation().apply(network, [torch.zeros(5, 2, 40)])
    assert "reads nothing" in str(finding)


def test_propagation_of_words_counts_their_vectors():
    torch.manual_seed(0)
    network = Network([LIF(64, 64), LIF(64, 64)], embedding=Embedding(50, 64))
    words = torch.randint(50, (20, 4, 1))
    assert ActivityPropagation().apply(network, [words]) == ()
    vectors = network.embedded(words).square().mean().item()
    fires = torch.special.ndtr(torch.tensor(-1.0)).item()
    assert network.cells[0].w_in.var().item() == pytest.approx(1 / (64 * (vectors + fires)), rel=0.1)


@pytest.mark.parametrize("threshold", [20.0, 50.0])  # spikes of a probability of 1e-89, and of 0 in float64
def test_propagation_leaves_a_layer_that_reads_next_to_no_spikes(threshold):
    network = Network([LIF(8, 8, threshold=threshold), LIF(8, 8, threshold=threshold), LIF(8, 8)], 3)
    before = network.cells[1].w_in.clone()
    findings = ActivityPropagation().apply(network, [torch.rand(20, 4, 8)])
    assert [finding.layer for finding in findings] == [2]
    assert "keeps its weights" in str(findings[0]) and torch.equal(network.cells[1].w_in, before)
    assert all(weights.isfinite().all() for weights in network.parameters())


# ---- four conditions

INPUT = {"N": 60, "rate": 0.4}


def test_the_four_conditions_hold_where_the_papers_assumptions_do():
    """Neurons alike, inputs of mean 0 through many weights, a short memory."""
    torch.manual_seed(0)
    network = Network([LIF(60, 200, spike=FastSigmoid()), LIF(200, 200, spike=Exponential())], 4)
    x = spikes(100, 8, **INPUT)
    Glorot(4.0).apply(network, [], seed=1)
    with torch.no_grad():
        for cell in network.cells:
            cell.tau_v = torch.full((200,), 3.0)
            cell.w_in -= cell.w_in.mean(0, keepdim=True)
    assert FourConditions().apply(network, [x], seed=1) == ()
    assert rates(network, x) == pytest.approx([0.5, 0.5], abs=0.05)
    cell = network.cells[0]
    formula = (3 - 2 * cell.decay_v.mean().item()) / 200
    assert cell.w_rec.mean().item() == pytest.approx(formula, rel=0.25)  # 200 neurons drawn: up to 20 % over seeds
    z = network.run(x).spikes
    for cell, below, own in zip(network.cells, (x, z[0]), z, strict=True):
        from_below, from_itself = (below @ cell.w_in.T).var(), (own @ cell.w_rec.T).var()
        assert from_itself.item() == pytest.approx(from_below.item(), rel=0.2)
        at_threshold = cell.spike.derivative(torch.zeros(1)).item()
        sums = cell.w_rec.detach().clamp(min=0).sum(1).mean().item()
        assert cell.decay_v.mean().item() + at_threshold * sums == pytest.approx(1, rel=1e-3)


def test_surrogates_are_saved_or_stay_or_cannot_be_set(tmp_path):
    torch.manual_seed(0)
    network, x = Network([LIF(60, 100, tau_v=0.1), LIF(100, 100, tau_v=0.1)], 4), spikes(**INPUT)
    FourConditions().apply(network, [x])
    save(network, tmp_path / "network.safetensors")
    saved = load(tmp_path / "network.safetensors")
    assert saved.cells[1].spike.dampening == network.cells[1].spike.dampening != 0.5
    network = Network([LIF(60, 50, spike=FastSigmoid(learnable=True))], 4)
    network.cells[0].spike.log_dampening.requires_grad_(False)
    FourConditions().apply(network, [x])
    assert network.cells[0].spike.dampening.item() == pytest.approx(0.5)
    shared = FastSigmoid()
    for wrong in (wrap([norse.LIFRecurrent(60, 8)]), Network([LIF(60, 8, spike=shared), LIF(8, 8, spike=shared)], 4)):
        with pytest.raises(TypeError, match="needs a surrogate of neurolsc of its own"):
            FourConditions().apply(wrong, [x])
