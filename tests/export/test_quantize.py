"""Integers of float networks: values, refusals, training through rounding."""

from statistics import fmean, median
from typing import Any

import pytest
import torch

from neurolsc import LIF, ALIFPlus, Network, evaluate, train
from neurolsc.export import (
    AtrlifLayer,
    QuantizationAware,
    delayed,
    dequantize,
    quantize,
    read_netx,
    to_netx,
)
from neurolsc.export.quantize import check_matrix
from tests.export.networks import KINDS, N_IN, N_OUT, WIDTH, alif, in_steps, lif, make, spikes
from tests.patterns import CLASSES, QUIET, Leak, N, Patterns


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "bias, subtract"])  # which is delayed, see below
def test_integers_and_their_training_form_fire_like_floats_but_for_rounding(kind):
    network, x = make(kind), spikes(100)
    exact, integer, aware = network.run(x), quantize(network).run(x), QuantizationAware(network).run(x)
    agreement = []
    for a, b, c in zip(exact.spikes, integer.spikes, aware.spikes, strict=True):
        assert a.mean() > 0.05
        assert a.shape == b.shape
        agreement.append((a == b).double().mean().item())
        assert abs(a.mean() - b.mean()) < 0.04 * a.mean() + 0.001
        assert torch.equal(b, c)
    assert agreement[0] > 0.95  # layers above read what rounding has moved, too
    assert fmean(agreement) > 0.9
    torch.testing.assert_close(aware.logits, integer.logits / quantize(network).readout_scale)


def test_integers_without_memory_are_exact():
    """Nothing to round: integer parameters whose sums, multiples of 6, never meet 254."""
    torch.manual_seed(3)
    cells = []
    for n_in in (N_IN, WIDTH):
        cell = LIF(n_in, WIDTH)
        theta = torch.tensor([0.5, 1.0, 2.0, 4.0]).repeat(WIDTH // 4)
        with torch.no_grad():
            cell.tau_v = torch.full((WIDTH,), 0.02)
            cell.w_in.copy_(6 * torch.randint(-30, 41, cell.w_in.shape) * theta.unsqueeze(1))
            cell.w_rec.copy_(6 * torch.randint(-30, 41, cell.w_rec.shape) * theta.unsqueeze(1))
            cell.w_rec[range(WIDTH), range(WIDTH)] = 0.0  # the place of the reset, -254 units
            cell.b_v.copy_(6 * torch.randint(-10, 11, cell.b_v.shape) * theta)
            cell.theta.copy_(254 * theta)
        cells.append(cell)
    network, x = Network(cells, N_OUT).double(), spikes(100)
    quantized = quantize(network)
    exact, integer = network.run(x), quantized.run(x)
    assert quantized.layers[0].threshold[0] == 254
    for a, b in zip(exact.spikes, integer.spikes, strict=True):
        assert a.mean() > 0.05
        assert torch.equal(a, b)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_even_and_within_8_bits_and_off_by_half_a_unit_at_most(kind):
    network = delayed(make(kind))
    quantized = quantize(network)
    rounded = dequantize(network, quantized)
    for cell, near, layer in zip(network.cells, rounded.cells, quantized.layers, strict=True):
        scale = (layer.unit / 64)[: cell.n_hidden].unsqueeze(1)
        for name, exponent in (("w_in", layer.weight_exp), ("w_rec", layer.weight_rec_exp)):
            off = (getattr(near, name) - getattr(cell, name)).abs() * scale / 2**exponent
            assert off.max() <= 1 + 1e-9  # even numbers: half a step is one
        for matrix in (layer.weight, layer.weight_rec):
            assert matrix is None or (matrix.abs().max() <= 254 and (matrix % 2 == 0).all())
    assert quantized.readout.abs().max() == 254


@pytest.mark.parametrize(
    ("w_in", "w_rec", "rest", "step"),
    [
        (100, 100, 4, 2.54 * 2**1),  # doubled until the threshold has 16 units: 20
        (100, 0.1, 4, 2.54 * 2**5),  # and on, for the smaller matrix, until it has 256: 325
        (100, 20, 4, 2.54 * 2**3),  # or until that matrix has its full range: 20 x 12.7 = 254
        (200, 200, 1000, 1.27),  # one unit per step is the least
    ],
)
def test_an_alif_has_as_many_units_as_its_thresholds_and_weights_need(w_in, w_rec, rest, step):
    layer = quantize(in_steps(w_in, w_rec, rest)).layers[0]
    assert isinstance(layer, AtrlifLayer)
    assert (layer.theta_step == int(step)).all()
    assert (layer.threshold - rest * int(step)).abs().max() <= 1
    pairs = ((layer.weight, layer.weight_exp, w_in), (layer.weight_rec, layer.weight_rec_exp, w_rec))
    for matrix, exponent, peak in pairs:
        assert abs(matrix.abs().max() * 2**exponent - peak * int(step)) <= 2**exponent
        assert matrix.abs().max() > 127 or exponent == 0


@pytest.mark.parametrize(("bias", "mantissa", "bits"), [(4094.6, 4095, 0), (-9000.2, -2250, 2)])
def test_a_bias_of_an_alif_has_13_bits_and_an_exponent(bias, mantissa, bits):
    layer = quantize(in_steps(100, 0.1, 4, bias / 64 / 81)).layers[0]
    assert isinstance(layer, AtrlifLayer)
    assert layer.bias_exp == bits
    assert (layer.bias == mantissa).all()


def with_value(name: str, value: float, cell: LIF | ALIFPlus | None = None) -> Network:
    made = lif() if cell is None else cell
    with torch.no_grad():
        getattr(made, name).view(-1)[0] = value
    return Network([made], N_OUT)


def scaled(factor: float) -> Network:
    network = Network([lif(N_IN, N_IN), lif(reset="zero")], N_OUT)
    with torch.no_grad():
        for matrix in (network.cells[1].w_in, network.cells[1].w_rec):
            matrix.mul_(factor)
    return network


class QIF(LIF):
    """Quadratic integrate-and-fire: another step under the fields of a LIF."""

    def update(self, x: torch.Tensor, z: torch.Tensor, state: Any) -> Any:
        return type(state)(super().update(x, z, state).v + 0.1 * state.v**2)


def with_own(name: str, value: Any) -> Network:
    network = make("subtract")
    setattr(network.cells[1], name, value)
    return network


REFUSED: dict[str, tuple[Any, str]] = {
    "weights outside range": (lambda: with_value("w_in", 9.0), r"layer 1: .* leave 22 weight units per threshold"),
    "all-zero layer": (lambda: scaled(0.0), r"layer 2: all weights are zero"),
    "not finite": (lambda: with_value("w_rec", float("nan")), r"cells.0.w_rec must be finite"),
    "bias": (
        lambda: with_value("b_v", 70.0, lif(reset="zero")),
        r"layer 1: a bias of 87.5 thresholds .* 13 bits with 62",
    ),
    "high threshold": (lambda: scaled(1e-5), r"layer 2: a threshold of \d{6,} weight units exceeds 17 bits"),
    "decay": (lambda: Network([lif(tau_v=1e5)], N_OUT), r"layer 1: tau_v is [1-9]\S+ steps"),
    "negative adaptation": (lambda: with_value("adaptation", -0.5, alif()), r"positive everywhere, got -0.5"),
    "tiny adaptation": (lambda: in_steps(300, 300, 1000), r"layer 1: the step of the threshold rounds to 0"),
    "thresholds far apart": (lambda: with_value("adaptation", 5e-4, alif()), r"layer 1: .* (8|17) bits|units per"),
    "negative threshold": (
        lambda: with_value("b_theta", -0.1, alif()),
        r"thresholds must be positive, got -.*ALIFPositive",
    ),
    "LIF's threshold": (lambda: with_value("theta", -1.0), r"thresholds must be positive, got -1"),
    "adaptive reset": (lambda: Network([ALIFPlus(3, 2)], 2), r"layer 1: .* reset='subtract' .* reset='static'"),
    "another neuron": (lambda: Network([lif(), Leak(WIDTH, 4)], 2), r"layer 2 is a Leak; only LIF, CubaLIF, ALIF, LI"),
    "another step": (lambda: Network([lif(), QIF(WIDTH, 4)], 2), r"layer 2 is a QIF, whose step is not that of LIF;"),
    "its own step": (
        lambda: with_own("update", QIF(WIDTH, 16).update),
        r"layer 2 is a LIF, whose step is not that of LIF",
    ),
    "readout": (
        lambda: Network([lif()], torch.nn.Sequential(torch.nn.Linear(WIDTH, 2))),
        r"readout must be linear, got Sequential",
    ),
    "readout's bias": (lambda: Network([lif()], 2, readout_bias=True), r"readout has a bias"),
    "bias with subtraction": (lambda: Network([lif(bias=0.1)], N_OUT), r"layer 1: a bias needs .* layer_delay=0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_networks_without_integers_are_refused_by_layer_and_number(name):
    build, message = REFUSED[name]
    with pytest.raises((TypeError, ValueError), match=message):
        quantize(build())


def test_one_sign_down_to_a_power_of_2_is_refused_and_few_units_can_be_forced():
    assert 0 < quantize(with_value("w_in", 9.0), force=True).layers[0].threshold.max() < 62
    with pytest.raises(ValueError, match=r"layer 7: no weight is positive and the smallest is -128"):
        check_matrix("layer 7", torch.tensor([[-128.0, 0.0], [-2.0, -4.0]]))


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.full((5, 1, N_IN), 0.5), r"must be 0 or 1, got 0.5: graded"),
        (torch.zeros(5, 1, 7), r"must have shape \(T, B, 30\)"),
    ],
    ids=["graded", "width"],
)
def test_input_that_is_no_spikes_of_the_right_width_is_refused(x, message):
    with pytest.raises(ValueError, match=message):
        quantize(make("zero")).run(x)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("current", r"layer 1: .* [1-9]\d* integers overflow; .* current \d{7,}, voltage \d{7,}, threshold 0 "),
        ("voltage", r"layer 1: .* [1-9]\d* integers overflow; .* current \d{1,6}, voltage \d{7,}, threshold 0 "),
        ("input", r"layer 1: .* [1-9]\d* integers overflow; the largest input of a step is \d{5,} "),
    ],
)
def test_overflows_on_calibration_data_are_refused_with_their_number(kind, message, tmp_path):
    torch.manual_seed(0)
    made = {"current": lif, "voltage": lambda: lif(reset="zero"), "input": lambda: alif(200)}[kind]()
    with torch.no_grad():
        if kind == "input":
            made.w_in.fill_(5.0)  # 200 times 254 at the coarsest scale
        else:  # a voltage that hardly leaks, and that no spike resets
            made.tau_v = torch.full((WIDTH,), 4000.0)
            made.w_in.copy_(-made.w_in.abs())
            made.w_rec.zero_()
    with pytest.raises(ValueError, match=message):
        to_netx(Network([made], N_OUT), tmp_path / "a.net", torch.ones(400, 1, made.n_in))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.bfloat16])
def test_spikes_of_any_dtype_keep_it_and_become_floats_a_step_at_a_time(dtype):
    quantized, x = quantize(make("bias, subtract")), spikes()
    assert quantized.padded(x.to(dtype)).dtype == dtype
    assert torch.equal(quantized.run(x.to(dtype)).logits, quantized.run(x).logits)


def test_units_are_halved_until_half_of_the_bits_are_enough_and_weights_keep_theirs():
    torch.manual_seed(0)
    network, x = Network([alif(), lif(WIDTH, 16)], N_OUT), spikes(rate=0.15)
    rest = network.cells[0].theta_rest.detach().clone()
    rest[0] = 0.01  # needs thousands of units per step of adaptation
    network.cells[0].theta_rest = rest
    before, after = quantize(network), quantize(network, x)
    assert before.run(x).extremes[0].reach > 0.5
    assert 0.2 < after.run(x).extremes[0].reach <= 0.5
    # by at most one step of 2: thresholds are whole numbers of units, which halves the unit up to their rounding
    assert (after.layers[0].weight - before.layers[0].weight).abs().max() <= 2
    assert after.layers[0].weight_exp < before.layers[0].weight_exp
    assert torch.equal(after.layers[1].unit, before.layers[1].unit)
    assert after.run(x).spikes[0].mean() > 0.05


@pytest.mark.parametrize("kind", ["zero", "bias, subtract"])
def test_layers_that_get_a_delay_come_back_on_time(kind):
    off, fired = [], []
    for seed in range(8):  # rounding moves more spikes of some draws than of others
        original, x = make(kind, seed), spikes(80, seed=seed + 1)
        original.layer_delay = 0
        layers, late, quantized = len(original.cells), quantize(delayed(original)), quantize(original)
        there = late.run(torch.cat((x, x.new_zeros(layers, *x.shape[1:]))))  # blank steps by hand
        run, exact = quantized.run(x), original.run(x)
        assert (quantized.latency, late.latency) == (layers, 0)
        assert torch.equal(run.logits, there.logits[layers:])
        for i, (z, later, a) in enumerate(zip(run.spikes, there.spikes, exact.spikes, strict=True), start=1):
            assert torch.equal(z, later[i : i + len(x), :, : z.shape[2]])
            assert abs(a.mean() - z.mean()) < 0.02
        fired.append([z.sum() for z in run.spikes])
        logits, wanted = run.logits / quantized.readout_scale, exact.logits.detach()
        on_time, early, behind = (
            (abs(a - b).mean() / wanted.std()).item()
            for a, b in ((logits, wanted), (logits[1:], wanted[:-1]), (logits[:-1], wanted[1:]))
        )
        assert on_time < min(early, behind)
        off.append(on_time)
    assert torch.tensor(fired).mean(0).min() > 500
    assert median(off) < 0.3


def gradients(network: Network, model: Network, x: torch.Tensor) -> dict[str, torch.Tensor]:
    network.zero_grad()
    model(x).square().mean().backward()
    return {name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("cell", [lambda: lif(bias=0.1, reset="zero"), lambda: alif(bias=0.02)], ids=["LIF", "ALIF"])
def test_the_gradient_through_integers_is_that_of_the_float_network_with_the_rounded_parameters(cell, float64):
    torch.manual_seed(0)
    network = Network([cell()], N_OUT)
    rounded = dequantize(network, quantize(network))
    x = spikes(5, 128).double()  # few steps, many samples: rounding flips a spike now and then, and so those after it
    exact, integer = gradients(rounded, rounded, x), gradients(network, QuantizationAware(network), x)
    assert exact.keys() == integer.keys()
    for name, gradient in exact.items():
        cosine = torch.nn.functional.cosine_similarity(gradient.flatten(), integer[name].flatten(), dim=0)
        assert gradient.abs().max() > 0, name
        assert cosine > 0.94, name


def test_training_it_lowers_the_loss_of_the_integers_and_the_trained_is_exported(tmp_path):
    torch.manual_seed(0)
    cell = LIF(N, 12, tau_v=3.0, reset="zero")
    with torch.no_grad():  # large weights and small ones: few units are left for most
        cell.w_in.mul_(0.5)
        cell.w_in[:, 0] += 3.0 * (-1) ** torch.arange(cell.n_hidden)
    network, data = Network([cell], CLASSES), Patterns(48)
    aware = QuantizationAware(network)
    assert repr(aware).startswith(f"QuantizationAware(\n  {N} -> 12 -> {CLASSES}")
    before = evaluate(aware, data)
    train(aware, data, data, epochs=4, **(QUIET | {"lr": 2e-2}))
    after = evaluate(aware, data)
    assert after.loss < 0.9 * before.loss
    assert after.firing_rate[0] > 0.02
    x = torch.stack([data[i][0] for i in range(len(data))], 1)
    to_netx(network, tmp_path / "a.net", x)
    assert torch.equal(read_netx(tmp_path / "a.net").run(x).spikes[0], aware.run(x).spikes[0])
    with pytest.raises(ValueError, match="starts at rest"):
        aware.run(x, aware.initial_states(3))
