"""The quantiser: what integers stand for, and what is refused."""

from collections.abc import Callable

import pytest
import torch

from neurolsc import LIF, ALIFPlus, ALIFPlusMinus, Network
from neurolsc.export import delayed, dequantize, fit_scales, quantize, read_netx, to_netx, verify, write_netx
from neurolsc.export.loihi.atrlif import AtrlifLayer
from neurolsc.export.loihi.cuba import CubaLayer
from neurolsc.export.loihi.rounding import check_matrix
from tests.export.networks import KINDS, N_IN, N_OUT, WIDTH, alif, in_steps, lif, make, spikes
from tests.patterns import Leak


@pytest.mark.parametrize("kind", KINDS)
def test_integers_fire_like_floats_but_for_rounding(kind):
    network = make(kind)
    x = spikes(200)
    exact, integer = network.run(x), quantize(network).run(x)
    for a, b in zip(exact.spikes, integer.spikes, strict=True):
        assert a.mean() > 0.05
        assert a.shape == b.shape
        assert (a == b).double().mean() > 0.9
        assert abs(a.mean() - b.mean()) < 0.04 * a.mean() + 0.001
    assert all(e.overflows == 0 for e in integer.extremes)


def exact_network(bias: bool) -> Network:
    """Nothing to round: no memory, and integer parameters at thresholds of 254.

    Sums of multiples of 6 never meet a threshold, where what vDecay 4095 leaves of a voltage would
    decide.
    """
    torch.manual_seed(3)
    cells = []
    for n_in in (N_IN, WIDTH):
        cell = LIF(n_in, WIDTH)
        theta = torch.tensor([0.5, 1.0, 2.0, 4.0]).repeat(WIDTH // 4)
        with torch.no_grad():
            cell.tau_v = torch.full((WIDTH,), 0.02)
            cell.w_in.copy_(6 * torch.randint(-30, 41, cell.w_in.shape) * theta.unsqueeze(1))
            cell.w_rec.copy_(6 * torch.randint(-30, 41, cell.w_rec.shape) * theta.unsqueeze(1))
            cell.w_rec[range(WIDTH), range(WIDTH)] = 0.0  # there is the reset, -254 units
            if bias:
                cell.b_v.copy_(6 * torch.randint(-10, 11, cell.b_v.shape) * theta)
            cell.theta.copy_(254 * theta)
        cells.append(cell)
    return Network(cells, N_OUT).double()


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
def test_integers_without_memory_are_exact(bias):
    network = exact_network(bias)
    quantized = quantize(network)
    x = spikes(100)
    exact, integer = network.run(x), quantized.run(x)
    assert quantized.layers[0].threshold[0] == 254
    for a, b in zip(exact.spikes, integer.spikes, strict=True):
        assert a.mean() > 0.05
        assert torch.equal(a, b)


@pytest.mark.parametrize("reset", ["subtract", "zero"])
def test_a_bias_acts_from_the_first_step_on(reset):
    """At a bias of 0.6 thresholds and next to no leak, 0.6 and 1.2, the second step fires first."""
    cell = LIF(2, 3, reset=reset)
    with torch.no_grad():
        cell.tau_v = torch.full((3,), 1000.0)
        cell.w_rec.zero_()
        cell.b_v.fill_(0.6)
    network, x = Network([cell], 2), torch.zeros(4, 1, 2)
    fired = quantize(network).run(x).spikes[0][:, 0, 0].tolist()
    assert fired == network.run(x).spikes[0][:, 0, 0].tolist()
    assert fired[:2] == [0, 1]


def test_the_readout_is_scaled_to_the_same_range():
    network = make("recurrent, zero")
    quantized = quantize(network)
    assert quantized.readout.abs().max() == 254
    assert (
        quantized.readout / quantized.readout_scale - network.readout.weight
    ).abs().max() * quantized.readout_scale <= 1


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_even_and_within_8_bits_and_off_by_half_a_unit_at_most(kind):
    network = make(kind)
    quantized = quantize(network)
    rounded = dequantize(network, quantized)
    for cell, near, layer in zip(network.cells, rounded.cells, quantized.layers, strict=True):
        scale = (layer.unit / 64)[: cell.n_hidden].unsqueeze(1)
        for name in ("w_in", "w_rec"):
            exponent = getattr(layer, {"w_in": "weight_exp", "w_rec": "weight_rec_exp"}[name], 0)
            off = (getattr(near, name) - getattr(cell, name)).abs() * scale / 2**exponent
            assert off.max() <= 1 + 1e-9  # even numbers: half a step is one
        for matrix in (layer.weight, layer.weight_rec):
            if matrix is not None:
                assert matrix.abs().max() <= 254
                assert (matrix % 2 == 0).all()


def test_decays_are_rounded_to_12_bits():
    network = make("ALIF")
    layer = quantize(network).layers[0]
    cell = network.cells[0]
    assert isinstance(layer, AtrlifLayer)
    assert isinstance(cell, ALIFPlus)
    assert torch.equal(layer.v_decay, (4096 * (1 - cell.decay_v.double())).round())
    assert torch.equal(layer.theta_decay, (4096 * (1 - cell.decay_theta.double())).round())


def test_alif_rows_are_scaled_until_the_step_of_the_threshold_is_one_number():
    network = make("ALIF")
    quantized = quantize(network)
    layer, cell = quantized.layers[0], dequantize(network, quantized).cells[0]
    assert isinstance(layer, AtrlifLayer)
    assert isinstance(cell, ALIFPlus)
    assert layer.theta_step.unique().numel() == 1
    assert layer.threshold.unique().numel() > 10
    original = network.cells[0]
    assert isinstance(original, ALIFPlus)
    torch.testing.assert_close(
        cell.theta_rest, original.theta_rest.double(), rtol=0.5 / 16, atol=0
    )  # 16 units at least
    torch.testing.assert_close(cell.adaptation, original.adaptation.double(), rtol=0.5 / 16, atol=0)


def test_the_papers_voltage_without_memory_becomes_4095_and_is_remarked():
    torch.manual_seed(0)
    cells = [alif(), lif(WIDTH, 16)]
    for cell in cells:
        cell.tau_v = torch.full((cell.n_hidden,), 0.1)
    quantized = quantize(Network(cells, N_OUT))
    assert (quantized.layers[0].v_decay == 4095).all()
    lower = quantized.layers[1]
    assert isinstance(lower, CubaLayer)
    assert (lower.i_decay == 4096).all()
    assert quantized.remarks == (
        "layer 1: a voltage without memory keeps 1/4096 of itself (vDecay 4095, the largest).",
    )


def test_long_memories_at_few_units_are_remarked():
    torch.manual_seed(0)
    (cell,) = (lif(tau_v=400.0),)
    remarks = quantize(Network([cell], N_OUT)).remarks
    assert any("rounding loses up to" in remark for remark in remarks)


def with_value(name: str, value: float, cell: Callable[[], LIF | ALIFPlus] = lif) -> Network:
    made = cell()
    with torch.no_grad():
        getattr(made, name).view(-1)[0] = value
    return Network([made], N_OUT)


def set_tau(value: float, name: str = "tau_v", cell: Callable[[], LIF | ALIFPlus] = lif) -> Network:
    made = cell()
    setattr(made, name, torch.full((WIDTH,), value))
    return Network([made], N_OUT)


def silent() -> Network:
    made = lif(reset="zero")
    with torch.no_grad():
        made.w_in.zero_()
        made.w_rec.zero_()
    return Network([made], N_OUT)


def scaled(factor: float) -> Network:
    made = lif(reset="zero")
    with torch.no_grad():
        made.w_in.mul_(factor)
        made.w_rec.mul_(factor)
    return Network([lif(N_IN, N_IN), made], N_OUT)


def mixed_biases() -> Network:
    return Network([lif(bias=0.1), lif(WIDTH, WIDTH, bias=0.1, reset="zero")], N_OUT)


def far_apart() -> Network:
    made = alif()
    with torch.no_grad():
        made.adaptation.view(-1)[0] = 5e-4
    return Network([made], N_OUT)


REFUSED = {
    "weights outside range": (
        lambda: with_value("w_in", 9.0),
        ValueError,
        r"layer 1: .* leave 22 weight units per threshold",
    ),
    "all-zero layer": (silent, ValueError, r"layer 1: all weights are zero"),
    "all-zero readout": (lambda: no_readout(), ValueError, r"the readout: all weights are zero"),
    "not finite": (lambda: with_value("w_rec", float("nan")), ValueError, r"cells.0.w_rec must be finite"),
    "bias": (
        lambda: with_value("b_v", 60.0, lambda: lif(reset="zero")),
        ValueError,
        r"layer 1: a bias of \d+ weight units .* 13 bits",
    ),
    "ALIF's bias": (
        lambda: with_value("b_v", 1e4, alif),
        ValueError,
        r"layer 1: a bias of \d+ state units .* 13 bits shifted by 7",
    ),
    "high threshold": (
        lambda: scaled(1e-5),
        ValueError,
        r"layer 2: a threshold of \d{6,} weight units does not fit 17 bits",
    ),
    "decay": (lambda: set_tau(5000.0), ValueError, r"layer 1: tau_v is 5000 steps"),
    "threshold's decay": (lambda: set_tau(5000.0, "tau_theta", alif), ValueError, r"tau_theta is 5000 to 5000 steps"),
    "threshold without memory": (lambda: set_tau(0.1, "tau_theta", alif), ValueError, r"tau_theta is 0.1 to 0.1 steps"),
    "negative adaptation": (lambda: with_value("adaptation", -0.5, alif), ValueError, r"positive everywhere, got -0.5"),
    "no adaptation": (lambda: with_value("adaptation", 0.0, alif), ValueError, r"positive everywhere, got 0"),
    "thresholds far apart": (
        far_apart,
        ValueError,
        r"layer 1: .* (8 bits of the reset|17 bits|weight units per threshold)",
    ),
    "negative threshold": (
        lambda: with_value("b_theta", -0.1, alif),
        ValueError,
        r"resting thresholds must be positive, got -",
    ),
    "LIF's threshold": (lambda: with_value("theta", -1.0), ValueError, r"thresholds must be positive, got -1"),
    "adaptive reset": (
        lambda: Network([ALIFPlus(3, 2)], 2),
        ValueError,
        r"layer 1: .* reset='subtract' .* reset='static'",
    ),
    "ALIF to zero": (
        lambda: Network([ALIFPlus(3, 2, reset="zero")], 2),
        ValueError,
        r"layer 1: .* reset='zero' .* reset='static'",
    ),
    "ALIF±": (
        lambda: Network([ALIFPlusMinus(9, 9, reset="static")], 2),
        ValueError,
        r"layer 1: adaptation must be positive",
    ),
    "other neurons": (lambda: Network([lif(), Leak(WIDTH, 4)], 2), TypeError, r"layer 2 is a Leak"),
    "readout": (
        lambda: Network([lif()], torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(lif().n_hidden, 2))),
        TypeError,
        r"readout must be linear, got Sequential",
    ),
    "readout's bias": (lambda: Network([lif()], 2, readout_bias=True), ValueError, r"readout has a bias"),
    "two kinds of bias": (mixed_biases, ValueError, r"layer 1 has a bias .* layer 2"),
}


def no_readout() -> Network:
    network = make("recurrent, zero")
    with torch.no_grad():
        network.readout.weight.zero_()
    return network


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_expressed_is_refused_by_layer_and_number(name):
    build, kind, message = REFUSED[name]
    with pytest.raises(kind, match=message):
        quantize(build())


def test_few_units_can_be_forced():
    network = with_value("w_in", 9.0)
    assert 0 < quantize(network, force=True).layers[0].threshold.max() < 62


def test_one_sign_down_to_a_power_of_2_is_refused():
    made = lif(reset="zero", recurrent=False)
    with torch.no_grad():
        made.theta.fill_(1.0)
        made.w_in.fill_(-0.1)
        made.w_in.view(-1)[0] = -254 / 200.0  # scale 200; even weights down to -254 are fine
    assert quantize(Network([made], N_OUT)).layers[0].weight.min() == -254
    with pytest.raises(ValueError, match=r"layer 7: no weight is positive and the smallest is -128"):
        check_matrix("layer 7", torch.tensor([[-128.0, 0.0], [-2.0, -4.0]]))


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.full((5, 1, N_IN), 0.5), r"must be 0 or 1, got 0.5: graded"),
        (torch.full((5, 1, N_IN), 2), r"must be 0 or 1, got 2"),
        (torch.zeros(5, 1, 7), r"must have shape \(T, B, 30\)"),
    ],
    ids=["graded", "two", "width"],
)
def test_input_that_is_no_spikes_of_the_right_width_is_refused(x, message):
    with pytest.raises(ValueError, match=message):
        quantize(make("recurrent, zero")).run(x)


def overflowing(kind: str) -> Network:
    torch.manual_seed(0)
    made = {"current": lif, "voltage": lambda: lif(reset="zero"), "input": lambda: alif(200)}[kind]()
    with torch.no_grad():
        if kind == "input":
            made.w_in.fill_(5.0)  # 200 times 254 at the coarsest scale
        else:  # a voltage that hardly leaks, and that no spike resets
            made.tau_v = torch.full((WIDTH,), 4000.0)
            made.w_in.copy_(-made.w_in.abs())
            made.w_rec.zero_()
    return Network([made], N_OUT)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("current", r"layer 1: the current leaves 24 bits \d+ times on the calibration data: it reaches from -\d{7,}"),
        ("voltage", r"layer 1: the voltage or threshold leaves 24 bits \d+ times"),
        ("input", r"layer 1: the input of a step exceeds 32767 units \d+ times"),
    ],
)
def test_overflows_on_calibration_data_are_refused_with_their_number(kind, message, tmp_path):
    network = overflowing(kind)
    with pytest.raises(ValueError, match=message):
        to_netx(network, tmp_path / "a.net", torch.ones(400, 1, network.n_in))
    assert not list(tmp_path.iterdir())


def test_a_reset_that_8_bits_miss_is_remarked():
    cell = alif()
    cell.theta_rest = torch.linspace(0.5, 30.0, WIDTH)
    with torch.no_grad():
        cell.adaptation.fill_(1.0)
        cell.w_in.mul_(0.1)
    assert any("8 bits leave a reset" in remark for remark in quantize(Network([cell], N_OUT)).remarks)


def low_threshold() -> Network:
    """One neuron asks for thousands of units per step of adaptation."""
    torch.manual_seed(0)
    network = Network([alif(), lif(WIDTH, 16)], N_OUT)
    rest = network.cells[0].theta_rest.detach().clone()
    rest[0] = 0.01
    network.cells[0].theta_rest = rest
    return network


def test_scales_are_halved_until_the_calibration_data_fit_and_weights_keep_their_bits(tmp_path):
    network, x = low_threshold(), spikes()
    halvings = fit_scales(network, x)
    before, after = quantize(network), quantize(network, halvings=halvings)
    assert before.run(x).extremes[0].reach > 0.5
    assert 0.2 < after.run(x).extremes[0].reach <= 0.5
    assert halvings[0] > 0
    assert halvings[1] == 0
    assert torch.equal(after.layers[0].weight, before.layers[0].weight)
    assert after.layers[0].weight_exp == before.layers[0].weight_exp - halvings[0]
    assert all(layer.mean() > 0.05 for layer in after.run(x).spikes)
    assert to_netx(network, tmp_path / "a.net", x).layers[0].threshold[1] == after.layers[0].threshold.max()


@pytest.mark.parametrize("rate", [0.05, 0.15])
def test_half_of_the_bits_is_the_bound_at_which_a_scale_is_halved(rate):
    network, x = low_threshold(), spikes(rate=rate)
    before = quantize(network).run(x)
    assert 0.5 < before.extremes[0].reach < 0.9
    assert before.spikes[0].mean() > 0.05
    halvings = fit_scales(network, x)
    assert halvings == (1, 0)
    assert quantize(network, halvings=halvings).run(x).extremes[0].reach <= 0.5


def test_a_scale_that_half_of_the_bits_hold_is_kept():
    network, x = make("ALIF"), spikes()
    assert 0.005 < quantize(network).run(x).extremes[0].reach <= 0.5
    assert fit_scales(network, x) == (0, 0)


@pytest.mark.parametrize(
    ("w_in", "w_rec", "rest", "step"),
    [
        (100, 100, 4, 2.54 * 2**1),  # doubled until the threshold has 16 units: 20
        (100, 0.1, 4, 2.54 * 2**5),  # and on, for the smaller matrix, until it has 256: 325
        (100, 20, 4, 2.54 * 2**3),  # or until that matrix has its full range: 20 x 12.7 = 254
        (200, 200, 1000, 1.27),  # there is room enough: one unit per step is the least
    ],
)
def test_an_alif_has_as_many_units_as_its_thresholds_and_weights_ask_for(w_in, w_rec, rest, step):
    layer = quantize(in_steps(w_in, w_rec, rest)).layers[0]
    assert isinstance(layer, AtrlifLayer)
    assert (layer.theta_step == int(step)).all()
    assert (layer.threshold - rest * int(step)).abs().max() <= 1
    for matrix, peak in ((layer.weight, w_in), (layer.weight_rec, w_rec)):
        exponent = {id(layer.weight): layer.weight_exp, id(layer.weight_rec): layer.weight_rec_exp}[id(matrix)]
        assert abs(matrix.abs().max() * 2**exponent - peak * int(step)) <= 2**exponent
        assert matrix.abs().max() > 127 or exponent == 0


def test_a_step_of_the_threshold_that_rounds_to_nothing_is_refused():
    with pytest.raises(ValueError, match=r"layer 1: the step of the threshold rounds to 0"):
        quantize(in_steps(300, 300, 1000))


@pytest.mark.parametrize(("bias", "mantissa", "bits"), [(4094.6, 4095, 0), (4095.9, 2048, 1), (-9000.2, -2250, 2)])
def test_a_bias_of_an_alif_has_13_bits_and_an_exponent(bias, mantissa, bits):
    layer = quantize(in_steps(100, 0.1, 4, bias / 64 / 81)).layers[0]
    assert isinstance(layer, AtrlifLayer)
    assert layer.bias_exp == bits
    assert (layer.bias == mantissa).all()


def test_one_threshold_without_memory_is_enough_to_refuse():
    network = make("ALIF")
    tau = network.cells[1].tau_theta.detach().clone()
    tau[3] = 0.1
    network.cells[1].tau_theta = tau
    with pytest.raises(ValueError, match=r"layer 2: tau_theta is 0.1 to \d\d"):
        quantize(network)


@pytest.mark.parametrize("kind", ["recurrent, zero", "bias, subtract", "bias, zero"])
def test_layers_that_get_a_delay_are_given_on_time(kind, tmp_path):
    given, x = make(kind), spikes(80)
    given.layer_delay = 0
    layers, late = len(given.cells), quantize(delayed(given))
    there = late.run(torch.cat((x, x.new_zeros(layers, *x.shape[1:]))))  # blank steps by hand
    write_netx(quantize(given), tmp_path / "a.net", golden=x)
    for quantized in (quantize(given), read_netx(tmp_path / "a.net")):
        run = quantized.run(x)
        assert (quantized.latency, late.latency) == (layers, 0)
        assert torch.equal(run.logits, there.logits[layers:])
        for i, (z, later, cell) in enumerate(zip(run.spikes, there.spikes, given.cells, strict=True), start=1):
            assert z.sum() > 500
            assert torch.equal(z, later[i : i + len(x), :, : cell.n_hidden])
    with torch.no_grad():
        exact = given.run(x)
    assert all(abs(a.mean() - b.mean()) < 0.02 for a, b in zip(run.spikes, exact.spikes, strict=True))
    assert abs(run.logits / quantized.readout_scale - exact.logits).mean() < 0.3 * exact.logits.std()
    found = verify(tmp_path / "a.net")
    assert found.exact
    assert found.steps == len(x)
    assert torch.equal(found.logits, run.logits)
