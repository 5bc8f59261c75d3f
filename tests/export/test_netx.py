"""NetX files: their layout, there and back, golden samples, reports, and files that are refused."""

import json
import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

import neurolsc
from neurolsc import LIF, ALIFPlus, Network, metrics
from neurolsc.experiment import DataSettings, Experiment, NetworkSettings, TrainSettings
from neurolsc.experiment.run import NETWORK, run_folder
from neurolsc.export import QuantizedNetwork, quantize, read_netx, to_netx, verify, write_netx
from neurolsc.export.netx import make_report
from neurolsc.export.quantize import dequantize
from neurolsc.neurons import ALIFPositive, CubaLIF
from neurolsc.tasks import BinaryPerStep, Classification
from tests.export.networks import KINDS, N_IN, N_OUT, WIDTH, alif, in_steps, lif, make, spikes
from tests.patterns import succeed

STEPS, SAMPLES = 60, 4
X = spikes(STEPS, SAMPLES)
GOLDEN = "neurolsc/golden"


def written(kind: str, path: Path) -> QuantizedNetwork:
    quantized = quantize(make(kind))
    write_netx(quantized, path, golden=X)
    return quantized


def test_the_layout_of_a_recurrent_lif_is_the_documented_one(tmp_path):
    cell = lif(reset="zero", bias=0.1)
    cell.tau_v = torch.full((WIDTH,), 5.0)
    write_netx(quantize(Network([cell], N_OUT)), tmp_path / "a.net")
    found: dict[str, Any] = {}
    with h5py.File(tmp_path / "a.net") as file:
        file.visititems(lambda name, item: found.update({name: item} if isinstance(item, h5py.Dataset) else {}))
        found = {name: (d.dtype.kind, d.shape) for name, d in found.items() if not name.startswith("neurolsc")}
        assert file["layer/1/type"][0] == b"dense_rec"
        assert file["layer/1/weight"].dtype == np.float32
        assert file["layer/1/neuron/iDecay"][()] == 4096
        assert file["layer/1/neuron/vDecay"][()] == round(4096 * (1 - np.exp(-0.2)))
    scalars = {f"neuron/{name}": ("i", ()) for name in ("iDecay", "vDecay", "vThMant", "refDelay")}
    sizes = {"type": ("S", (1,)), "shape": ("i", (1,)), "inFeatures": ("i", ()), "outFeatures": ("i", ())}
    first = sizes | scalars | {"neuron/type": ("S", ()), "neuron/gradedSpike": ("b", ()), "bias": ("i", (WIDTH,))}
    first |= {"weight": ("f", (WIDTH, N_IN)), "weight_rec": ("f", (WIDTH, WIDTH))}
    expected = {f"layer/1/{name}": entry for name, entry in first.items()}
    expected |= {f"layer/2/{name}": entry for name, entry in (sizes | {"weight": ("f", (N_OUT, WIDTH))}).items()}
    expected |= {"layer/0/type": ("S", (1,)), "layer/0/shape": ("i", (1,))}
    assert found == expected | {"simulation/Ts": ("i", ()), "simulation/tSample": ("i", ())}
    with pytest.raises(ValueError, match=r"a\.net holds no golden samples"):
        verify(tmp_path / "a.net")


def test_an_alif_adds_its_own_entries_and_delayed_biases_a_neuron(tmp_path):
    written("ALIF", tmp_path / "a.net")
    with h5py.File(tmp_path / "a.net") as file:
        assert {"weightExp", "weightRecExp", "biasExp"} <= set(file["layer/1"])
        assert {"thDecay", "refDecay", "vThStep", "resetMant", "resetExp"} <= set(file["layer/1/neuron"])
    written("bias, subtract", tmp_path / "b.net")
    with h5py.File(tmp_path / "b.net") as file:
        assert file["layer/1/weight"].shape == (WIDTH + 1, N_IN)
        assert file["layer/2/weight"].shape == (17, WIDTH + 1)
        assert not file["layer/2/weight"][:-1, -1].any()
        assert file["layer/1/bias"][-1] > file["layer/1/neuron/vThMant"][()]
        assert file["neurolsc"].attrs["latency"] == 2
        assert file["simulation/tSample"][()] == STEPS + 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_comes_back_and_replays_its_golden_samples_exactly(kind, tmp_path):
    path = tmp_path / "a.net"
    quantized, again = written(kind, path), read_netx(path)
    a, b = quantized.run(X), again.run(X)
    assert all(layer.mean() > 0.05 for layer in a.spikes)
    assert all(torch.equal(one, other) for one, other in zip((a.logits, *a.spikes), (b.logits, *b.spikes), strict=True))
    assert a.extremes == b.extremes
    late = quantized.latency
    with h5py.File(path) as file:  # read as docs/export.md says
        sizes = [N_IN, *(layer.size for layer in quantized.layers)]
        bits = [np.unpackbits(file[f"{GOLDEN}/spikes_{i}"][()], axis=2, count=n) for i, n in enumerate(sizes)]
        assert np.array_equal(bits[0][:STEPS], X.numpy())
        assert not bits[0][STEPS:].any()
        for i, (z, packed) in enumerate(zip(a.spikes, bits[1:], strict=True), start=1):
            first = i if late else 0
            assert np.array_equal(packed[first : first + STEPS, :, : z.shape[2]], z.numpy())
        assert np.array_equal(file[f"{GOLDEN}/readout"][()][late:], a.logits.numpy())
    found = verify(path)
    assert found.exact
    assert not found.simulated
    assert (found.steps, found.samples, found.readout_difference) == (STEPS, SAMPLES, None)
    assert torch.equal(found.logits, a.logits)
    assert str(found).splitlines()[0] == "golden samples through the integers of the file: 4 samples of 60 steps"


def test_a_changed_integer_is_found_in_its_layer_at_its_first_step(tmp_path):
    path = tmp_path / "a.net"
    quantized = written("ALIF", path)
    with h5py.File(path, "r+") as file:
        file["layer/2/neuron/thDecay"][...] += 10
    found = verify(path)
    assert [layer.state_agreement == 1 for layer in found.layers] == [True, False, True]
    # the layer below is as it was, so that a run of the whole file first differs there, too
    before, now = (net.run(X).spikes[1] for net in (quantized, read_netx(path)))
    spiked = (before != now).flatten(1).any(1).nonzero()  # no delayed layers: on time
    first = found.layers[1].first_difference
    assert first is not None and (len(spiked) == 0 or first <= spiked[0])  # a state differs before a spike does
    assert found.readout_difference is None
    assert f"first difference at step {first}" in str(found)


@pytest.mark.parametrize(
    ("place", "layer"), [("layer/1/weight", 1), ("layer/2/neuron/refDelay", 2), ("layer/3/weight", 3)]
)
def test_a_changed_integer_that_no_golden_sample_uses_is_found_by_a_digest(place, layer, tmp_path):
    path, x = tmp_path / "a.net", X.clone()
    x[:, :, 5] = 0
    network = make("zero")
    with torch.no_grad():
        network.cells[1].get_buffer("b_v")[3] = -5.0  # this neuron is silent
    write_netx(quantize(network, force=True), path, golden=x)
    assert verify(path).exact and "changed" not in str(verify(path))
    with h5py.File(path, "r+") as file:
        if file[place].shape:
            file[place][0, 5 if layer == 1 else 3] += 2
        else:
            file[place][...] += 1
    found = verify(path)
    assert all(one.agreement == one.state_agreement == 1 for one in found.layers)
    assert found.readout_agreement == 1
    assert (found.exact, found.changed) == (False, (layer,))
    assert f"changed after the export, by their digests (SHA-256): layer {layer} of the file" in str(found)
    with h5py.File(path, "r+") as file:  # as an earlier version wrote it
        del file["neurolsc"].attrs["sha256"]
    assert verify(path).exact


def test_a_file_holds_four_samples_and_without_data_one_of_random_spikes(tmp_path):
    to_netx(make("zero"), tmp_path / "a.net", spikes(20, 6))
    assert verify(tmp_path / "a.net").samples == 4
    to_netx(make("subtract"), tmp_path / "b.net")
    found = verify(tmp_path / "b.net")
    assert found.exact
    assert (found.steps, found.samples) == (50, 1)
    assert all(layer.spikes > 50 for layer in found.layers)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("layer/1/weight", np.zeros((WIDTH, 7)), r"layer/1/weight must .* got the shape \(20, 7\)"),
        ("layer/1/weight", np.full((WIDTH, N_IN), 0.5), r"layer/1/weight must hold integers"),
        ("layer/1/neuron/type", np.bytes_("SDNN"), r"'SDNN'"),
        ("layer/1/neuron/thDecay", None, r"thDecay"),
        ("neurolsc", None, r"no group 'neurolsc' with golden samples: another program wrote it"),
        (f"{GOLDEN}/spikes_1", np.zeros((STEPS, 4, 9), np.uint8), r"spikes_1 has shape \(60, 4, 9\), wanted bytes"),
        ("format", 99, r"format 99, this version reads 3"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_by_place(name, value, message, tmp_path):
    path = tmp_path / "a.net"
    written("ALIF", path)
    with h5py.File(path, "r+") as file:
        if name == "format":
            file["neurolsc"].attrs[name] = value
        else:
            del file[name]
            if value is not None:
                file[name] = value
    with pytest.raises(ValueError, match=message) as error:
        verify(path)
    assert str(path) in str(error.value)


def test_other_files_are_refused_and_an_export_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.net"
    with pytest.raises(FileNotFoundError):
        read_netx(path)
    path.write_text("old")
    with pytest.raises(ValueError, match=r"a\.net: "):
        read_netx(path)
    with pytest.raises(ValueError, match="reset='static'"):
        to_netx(Network([ALIFPlus(3, 2)], 2), path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_readout_whose_sum_would_leave_24_bits_is_made_coarser(tmp_path):
    network = make("zero")
    with torch.no_grad():
        network.readout.weight.fill_(1.0)
    x = spikes(220, 1, rate=0.5)
    assert quantize(network).run(x).extremes[-1].overflows > 0
    report = to_netx(network, tmp_path / "a.net", x)
    assert report.readout is not None
    assert report.readout.overflows == 0
    assert 0.45 * 2**23 < report.readout.v < 0.55 * 2**23
    assert read_netx(tmp_path / "a.net").readout_scale == report.readout_scale


# the report of an export: numbers that can be worked out by hand


def test_resources_of_a_700_256_20_network():
    torch.manual_seed(0)
    network = Network([LIF(700, 256, tau_v=5.0)], 20)
    (layer,) = make_report(network, quantize(network), None, None).layers
    assert (layer.neurons, layer.synapse_bits) == (256, 956 * 256 * 9)
    assert layer.cores == 3  # 2,202,624 bits at 2^20 each


@pytest.mark.parametrize(
    ("cell", "tau", "decay"), [(CubaLIF, "tau_i", "decay_i"), (ALIFPositive, "tau_theta", "decay_theta")]
)
def test_the_error_of_decays_is_that_of_the_worst_one(cell: type, tau: str, decay: str):
    slow = cell(4, 3, reset="zero" if cell is CubaLIF else "static")
    setattr(slow, tau, torch.tensor(2700.0))  # the chip's longest one is 2047.5
    network = Network([slow], 2).double()
    (layer,) = make_report(network, quantize(network), None, None).layers
    near = dequantize(network, quantize(network)).cells[0]
    assert layer.decay_error >= (getattr(near, decay) - getattr(network.cells[0], decay)).abs().max().item() > 1e-4


def test_errors_of_one_weight_worked_out():
    cell = LIF(2, 1, reset="zero")
    with torch.no_grad():
        cell.theta.fill_(2.0)
        cell.w_in.copy_(torch.tensor([[2.54, 0.013]]))
        cell.w_rec.fill_(0.3)
        cell.tau_v = torch.tensor([10.0])
    network = Network([cell], 2).double()
    (layer,) = make_report(network, quantize(network), None, None).layers
    # thresholds: 1.27 -> 200 units each; 0.0065 is 1.3 units, becomes 2; 0.15 is 30
    assert layer.threshold == (200, 200)
    assert layer.weight_error_max == pytest.approx(0.7 / 200, rel=1e-6)
    assert layer.weight_error_rms == pytest.approx(0.7 / 200 / 3**0.5, rel=1e-6)
    assert layer.rounded_to_zero == 0
    retention = network.cells[0].decay_v.item()  # type: ignore[attr-defined]
    expected = abs((4096 - round(4096 * (1 - retention))) / 4096 - retention)
    assert layer.decay_error == pytest.approx(expected, rel=1e-6)
    with torch.no_grad():
        network.cells[0].get_parameter("w_in")[0, 1] = 0.003  # of three weights one is less than half a unit
    (layer,) = make_report(network, quantize(network), None, None).layers
    assert layer.rounded_to_zero == pytest.approx(1 / 3)


@pytest.mark.parametrize("rest", [4.08, 3.92])
def test_a_threshold_that_is_rounded_up_or_down_is_off_by_the_same(rest):
    network = in_steps(100, 100, rest)  # 5 units a step: 20.4 or 19.6 become 20
    (layer,) = make_report(network, quantize(network), None, None).layers
    assert layer.threshold == (20, 20)
    assert layer.threshold_error == pytest.approx(0.08 / rest, rel=0.02)  # 5.08 units a step, of which 5 are made


def test_on_data_it_says_what_both_networks_did():
    network, x, labels = make("ALIF"), spikes(), torch.tensor([0, 1, 2])
    quantized = quantize(network)
    report = make_report(network, quantized, x, labels)
    exact, integer = network.run(x), quantized.run(x)
    assert report.activity is not None
    assert report.decisions is not None
    for a, one, other in zip(report.activity, exact.spikes, integer.spikes, strict=True):
        assert a.rate_float == pytest.approx(one.mean().item())
        assert a.rate_integer == pytest.approx(other.mean().item())
        assert a.agreement == pytest.approx((one == other).double().mean().item())
        assert a.rate_integer > 0.05
    assert report.decisions.accuracy_float == metrics.mode_accuracy(exact.logits, labels)


def test_the_steps_that_the_task_counts_decide(tmp_path):
    network, x, last = make("ALIF"), spikes(STEPS, 40), 3
    exact, integer = (net.run(x).logits for net in (network, quantize(network, x)))
    votes = [metrics.mode_vote(logits[-last:]) for logits in (exact, integer)]
    labels = votes[0].clamp(min=0)
    assert metrics.mode_accuracy(exact, labels) < 0.9  # all steps decide otherwise
    task = Classification(last=last)
    found = to_netx(network, tmp_path / "a.net", x, labels=labels, task=task).decisions
    assert found is not None
    scores = [task.measures(logits, labels)["mode_accuracy"] for logits in (exact, integer)]
    assert [found.accuracy_float, found.accuracy_integer] == scores
    assert found.same_as_float == (votes[0] == votes[1]).double().mean()


def finished(run: Path, data: DataSettings) -> Path:
    """The folder of a run without a delay between layers."""
    settings = NetworkSettings(cell="LIF", width=8, layers=1, tau_v=5.0, layer_delay=0)
    experiment = Experiment(settings, data, training=TrainSettings(batch_size=250))
    with run_folder(run, experiment.settings) as folder:
        neurolsc.save(experiment.build(), folder / NETWORK)
    return run


def test_the_command_line_scores_a_run_on_the_steps_that_its_evaluation_counts(tmp_path):
    run = finished(tmp_path / "run", DataSettings(data="store-recall", delay=20))
    succeed("evaluate", run, "--split", "validation")
    succeed("export", run, "--to", "netx", "--samples", "500")
    score = json.loads((run / "validation.json").read_text())["mode_accuracy"]
    assert json.loads((run / "netx/report.json").read_text())["decisions"]["accuracy_float"] == score


def test_the_command_line_tunes_a_run_without_a_delay_with_one(tmp_path):
    run = finished(tmp_path / "run", DataSettings(data="shd", dt=0.05, channels=70, repeat=1, binary=True))
    succeed("export", run, "--to", "netx", "--samples", "8", "--fine-tune", "1")
    before, tuned = (neurolsc.load(folder / NETWORK) for folder in (run, run / "netx"))
    assert (before.layer_delay, tuned.layer_delay) == (0, 1)
    assert not torch.equal(tuned.cells[0].w_in, before.cells[0].w_in)


def test_thresholds_of_few_units_are_named_in_the_report(tmp_path):
    torch.manual_seed(0)
    network, x = Network([alif(), lif(WIDTH, 16)], N_OUT), spikes(rate=0.15)
    rest = network.cells[0].theta_rest.detach().clone()
    rest[0] = 0.01  # needs so many units per step of adaptation that states leave their range
    network.cells[0].theta_rest = rest
    report = to_netx(network, tmp_path / "a.net", x)
    units, wanted = report.layers[0].threshold[0], "weight units, where 16 or more are wanted"
    assert units < 16
    (remark,) = report.remarks
    assert f"layer 1: a threshold has {units} {wanted}" in remark and remark in str(report)
    with torch.no_grad():
        network.cells[1].w_in[0, 0] = 9.0
    assert "where 62 or more are wanted" in to_netx(network, tmp_path / "b.net", x, force=True).remarks[1]
    assert to_netx(make("ALIF"), tmp_path / "c.net", x).remarks == ()


def test_an_input_in_the_place_of_the_path_and_another_task_are_refused(tmp_path):
    with pytest.raises(TypeError, match=r"path must be that of a file, got a Tensor: call to_netx\(net, path, x\)"):
        to_netx(make("zero"), X)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"task must be a neurolsc\.tasks\.Classification, got BinaryPerStep\(\)"):
        to_netx(make("zero"), tmp_path / "a.net", X, task=BinaryPerStep())  # type: ignore[arg-type]


# ---- files of lava-dl


def lava_dl_file(path: Path, *, last: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """Two layers as lava-dl writes them: no input layer, scalars for neurons, floats that hold integers."""
    draw = np.random.default_rng(0)
    first = draw.integers(-80, 100, (6, N_IN)).astype(np.float32)
    second = draw.integers(-90, 120, (4, 6)).astype(np.float32)
    with h5py.File(path, "w") as file:
        for i, weight in enumerate((first, second)):
            at = f"layer/{i}"
            file[f"{at}/type"] = np.array(["dense"], dtype="S10")
            file[f"{at}/shape"] = np.array([len(weight)])
            file[f"{at}/weight"] = weight
            if i == 0 or last:
                file[f"{at}/bias"] = np.arange(len(weight), dtype=np.float32)
                for name, value in {
                    "type": "CUBA",
                    "iDecay": 1024,
                    "vDecay": 300,
                    "vThMant": 80,
                    "refDelay": 1,
                }.items():
                    file[f"{at}/neuron/{name}"] = value
    return first, second


def lava_steps(weights: list[np.ndarray], x: np.ndarray) -> list[np.ndarray]:
    """Spikes (T, M) of CUBA layers of Lava: integers, decays rounded towards zero, weights and thresholds times 64."""
    us, vs = ([np.zeros(len(w), dtype=np.int64) for w in weights] for _ in range(2))
    read = [np.zeros(w.shape[1], dtype=np.int64) for w in weights]
    sent: list[list[np.ndarray]] = [[] for _ in weights]
    for frame in x:
        for i, weight in enumerate(weights):
            us[i] = np.fix(us[i] * (4096 - 1024) / 4096).astype(np.int64) + 64 * (weight.astype(np.int64) @ read[i])
            vs[i] = np.fix(vs[i] * (4096 - 300) / 4096).astype(np.int64) + us[i] + 64 * np.arange(len(weight))
            spikes = (vs[i] > 64 * 80).astype(np.int64)
            vs[i] *= 1 - spikes
            sent[i].append(spikes)
        read = [frame, *(layer[-1] for layer in sent[:-1])]
    return [np.stack(layer) for layer in sent]


def test_a_file_of_lava_dl_runs_as_integers(tmp_path):
    weights = lava_dl_file(tmp_path / "a.net")
    quantized = read_netx(tmp_path / "a.net")
    assert (quantized.n_in, len(quantized.layers)) == (N_IN, 2)
    run = quantized.run(X)
    for sample in range(X.shape[1]):
        wanted = lava_steps(list(weights), X[:, sample].long().numpy())
        for ours, of_lava in zip(run.spikes, wanted, strict=True):
            assert 0.02 < of_lava.mean() < 0.9
            assert np.array_equal(ours[:, sample].numpy(), of_lava)
    assert torch.equal(run.logits, run.spikes[1])


def test_a_last_layer_of_lava_dl_without_neurons_is_a_sum(tmp_path):
    _, second = lava_dl_file(tmp_path / "a.net", last=False)
    run = read_netx(tmp_path / "a.net").run(X)
    assert len(run.spikes) == 1
    assert torch.equal(run.logits, run.spikes[0] @ torch.from_numpy(second).double().T)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("layer/1/type", np.array(["conv"], dtype="S10"), r"layer/1 is 'conv': of lava-dl's layers 'dense'"),
        ("layer/1/delay", np.zeros((4, 6)), r"layer/1 is 'dense' with delays"),
        ("layer/1/neuron/type", "SDNN", r"layer/1 has SDNN neurons: of lava-dl's neurons CUBA"),
        ("layer/1/neuron/gradedSpike", True, r"layer/1 sends graded spikes"),
        ("layer/1/weight", np.ones((4, 5)), r"layer/1/weight must hold integers of shape \(None, 6\)"),
        ("layer/0/weight", np.full((6, 7), 0.5), r"layer/0/weight must hold integers"),
        ("layer/0/neuron", None, r"layer/1 comes after a layer without neurons"),
    ],
)
def test_what_is_not_read_of_lava_dl_is_named(place, value, message, tmp_path):
    lava_dl_file(tmp_path / "a.net")
    with h5py.File(tmp_path / "a.net", "r+") as file:
        if place in file:
            del file[place]
        if value is not None:
            file[place] = value
    with pytest.raises(ValueError, match=message):
        read_netx(tmp_path / "a.net")


def test_a_real_file_of_lava_dl_fires():
    folder = os.environ.get("NEUROLSC_DATA")
    path = Path(folder or "", "public", "lava_netx_oxford_Trained_network.net")
    if not folder or not path.exists():
        pytest.skip("NEUROLSC_DATA holds no file of lava-dl")
    quantized = read_netx(path)
    x = (torch.rand(200, 4, quantized.n_in, generator=torch.Generator().manual_seed(0)) < 0.003).double()
    assert [layer.mean().item() > 0.001 for layer in quantized.run(x).spikes] == [True, True]
