"""A diagnosis as text, JSON and picture; of networks of other libraries, and of padding."""

import copy
import dataclasses
import json
import math

import pytest
import torch
from torch import Tensor, nn

from neurolsc import LIF, diagnose, pretrain, try_cures, wrap
from neurolsc.diagnosis.report import Trial
from neurolsc.init import InitReport
from neurolsc.network import copied
from neurolsc.stability import lyapunov_exponents, radius_profile, signal_to_noise, state_gradients
from neurolsc.stability.conditions import Finding
from neurolsc.tasks import ClassPerStep, cross_entropy
from tests.diagnosis.networks import PLANTS, healthy

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def ill():
    torch.manual_seed(0)
    network, data = healthy("digits", 2)
    PLANTS["dead"][0](network)
    return network, data


@pytest.fixture(scope="module")
def diagnosis(ill):
    return diagnose(*ill)


def test_the_text_has_a_line_per_layer_and_the_findings_below(ill, diagnosis):
    head, first, second, loss, *finding, guess = str(diagnosis).splitlines()
    assert head.split()[:3] == ["layer", "spikes", "dead"]
    assert first.split()[:4] == ["1", "0.150", "0%", "0%"]
    assert second.split()[:5] == ["2", "0.000", "100%", "0%", "-"]
    assert loss == f"loss {math.log(20):.4g}"
    assert max(map(len, finding)) <= 80 and " ".join(line.strip() for line in finding) == str(diagnosis[0])
    assert guess == "note: loss 3 is that of guessing among 20 classes (3)"


def test_the_measurements_are_those_of_the_measures(ill, diagnosis):
    network, (x, labels) = ill
    few, found = x[:, :8], diagnosis.measurements
    assert torch.equal(found.profile.time, radius_profile(network, few, steps=16).time)
    exponents = lyapunov_exponents(network, few).mean((1, 2)).tolist()
    assert [layer.exponent for layer in found.layers] == pytest.approx(exponents)
    assert found.back.shape == (2, 50)
    assert found.back[0, 0] == 0 and found.back[1, 0] > 0  # the layer below is read a step later
    alone = state_gradients(network, x[:, 3:4], lambda logits: cross_entropy(logits[-1:], labels[3:4])) / len(x)
    every = state_gradients(network, x, lambda logits: cross_entropy(logits[-1:], labels)) * x.shape[1] / len(x)
    torch.testing.assert_close(every[:, :, 3:4], alone, rtol=1e-3, atol=0)  # of one sample each
    torch.testing.assert_close(found.back, every.mean(2).flip(1), rtol=1e-3, atol=0)
    assert found.loss == pytest.approx(math.log(20))


def test_signal_to_noise_is_that_of_pieces_of_the_batch(make_network, make_spikes):
    network, x, labels = make_network(gain=3, layers=1), make_spikes(B=16), torch.arange(16) % 4
    found = diagnose(network, (x, labels))
    gradients = []
    for k in range(8):
        network.zero_grad()
        part = slice(2 * k, 2 * k + 2)
        nn.functional.cross_entropy(network(x[:, part]).flatten(0, 1), labels[part].repeat(20)).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in network.cells[0].parameters()]))
    assert found.measurements.layers[0].noise == pytest.approx(signal_to_noise(torch.stack(gradients)), rel=1e-4)
    alone = diagnose(network, (x[:, :1], labels[:1])).measurements.layers[0]
    assert alone.noise is None and alone.gradient > 0


def test_the_dictionary_is_json_and_the_picture_is_drawn(ill, diagnosis, tmp_path):
    found = dataclasses.replace(diagnosis, trials=try_cures(*ill, diagnosis=diagnosis, lr=3e-3))
    found_dict = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert [f["name"] for f in found_dict["findings"]] == ["dead layer"]
    assert found_dict["layers"][0]["activity"]["rate"] == pytest.approx(0.15, abs=0.01)
    assert found_dict["layers"][1]["activity"]["synchrony"] is None
    assert found_dict["layers"][0]["constants"][1]["name"] == "tau_theta"
    assert found_dict["radii"]["time_mean"] == pytest.approx(found.measurements.profile.time_mean.tolist())
    (trial,) = found_dict["trials"]
    assert trial["helped"] and trial["layers"] == [2]
    assert "tried for dead layer of layer 2" in str(found)
    figure = diagnosis.plot(tmp_path / "page.png")
    assert len(figure.axes) == 4 and (tmp_path / "page.png").stat().st_size > 30_000
    assert "layer 2: never fires" in figure._supxlabel.get_text()


def test_without_targets_nothing_of_a_loss_is_said(ill, tmp_path):
    found = diagnose(ill[0], ill[1][0])
    assert found.measurements.loss is None and found.measurements.back is None
    assert all(layer.gradient is None and layer.noise is None for layer in found.measurements.layers)
    assert [finding.name for finding in found] == ["dead layer"]
    found.plot(tmp_path / "page.png")


def test_padding_has_no_effect(make_network, make_spikes):
    network, x, labels = make_network(gain=3), make_spikes(T=20, B=8), torch.arange(8) % 4
    longer = torch.cat([x, torch.full((10, 8, 30), 7.0)])
    mask = torch.arange(30).unsqueeze(1).expand(30, 8) < 20
    plain, padded = (diagnose(network, b).measurements for b in ((x, labels), (longer, labels, mask)))
    assert padded.loss == pytest.approx(plain.loss, rel=1e-5)
    torch.testing.assert_close(padded.back[:, :20], plain.back)
    assert padded.back[:, 20:].isnan().all()
    torch.testing.assert_close(padded.profile.time, plain.profile.time)
    for a, b in zip(padded.layers, plain.layers, strict=True):
        assert a.activity == pytest.approx(b.activity, rel=1e-5)
        assert (a.gradient, a.noise) == pytest.approx((b.gradient, b.noise), rel=1e-3)


def test_targets_for_every_step_are_taken_as_they_are(make_network, make_spikes):
    network, x = make_network(gain=3), make_spikes(T=20, B=8)
    targets = torch.randint(4, (20, 8))
    found = diagnose(network, x, targets, loss=ClassPerStep(), lr=1e-3)
    assert found.measurements.loss == pytest.approx(ClassPerStep().loss(network(x), targets).item(), rel=1e-5)
    assert "input batch first" not in [f.name for f in found]
    turned = diagnose(network, x.transpose(0, 1), targets, loss=ClassPerStep())
    assert "input batch first" in [f.name for f in turned]


def test_targets_of_samples_and_classes_are_not_taken_for_those_of_steps(make_network, make_spikes):
    network, x = make_network(gain=3), make_spikes(T=4, B=8)
    one_hot = torch.eye(4)[torch.arange(8) % 4]  # (8, 4): as many classes as x has steps

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        return (logits.sum(0) - targets).square().mean()

    assert diagnose(network, x, one_hot, loss=loss).measurements.loss == pytest.approx(loss(network(x), one_hot).item())
    assert pretrain(network, [(x, one_hot)], max_steps=1, progress=False).steps == 1

    class BatchFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.RNN(30, 6, batch_first=True)
            self.readout = nn.Linear(6, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.readout(self.rnn(x)[0])

    module = BatchFirst()
    out = module(x.transpose(0, 1)).transpose(0, 1)
    found = diagnose(module, x.transpose(0, 1), one_hot, loss=loss)
    assert found.measurements.loss == pytest.approx(loss(out, one_hot).item(), rel=1e-5)


def model(library: str) -> list[nn.Module]:
    if library == "torch":
        return [nn.LSTM(20, 16, num_layers=2), nn.Linear(16, 3)]
    if library == "snnTorch":
        snn = pytest.importorskip("snntorch")
        return [nn.Linear(20, 24), snn.Leaky(beta=0.9), nn.Linear(24, 24), snn.Leaky(beta=0.9), nn.Linear(24, 3)]
    norse = pytest.importorskip("norse.torch")
    return [norse.LIFRecurrentCell(20, 24), nn.Linear(24, 24), norse.LIFCell(), nn.Linear(24, 3)]


@pytest.mark.parametrize("library", ["norse", "torch"])
def test_networks_of_other_libraries_are_measured_and_left_as_they_are(library):
    torch.manual_seed(0)
    network, x, labels = wrap(model(library)), (torch.rand(30, 12, 20) < 0.4).float(), torch.arange(12) % 3
    before = copy.deepcopy(network.state_dict())
    found = diagnose(network, (x, labels), lr=1e-3, samples=3, steps=4)
    spikes = [layer.activity.rate for layer in found.measurements.layers]
    assert all(map(math.isnan, spikes)) if library == "torch" else spikes[0] > 0.01
    assert all(layer.gradient > 0 for layer in found.measurements.layers)
    assert all(torch.equal(network.state_dict()[name], value) for name, value in before.items())


def test_a_dead_layer_of_another_library_is_named_and_fires_after_the_cure():
    torch.manual_seed(0)
    modules = model("snnTorch")
    with torch.no_grad():
        for part in modules[:3:2]:
            part.weight.mul_(0.01)
            part.bias.zero_()
    network, x, labels = wrap(modules), (torch.rand(30, 12, 20) < 0.4).float(), torch.arange(12) % 3
    found = diagnose(network, (x, labels), samples=3, steps=4)
    assert [f.layer for f in found if f.name == "dead layer"] == [1, 2]
    (trial,) = [t for t in try_cures(network, x, labels, diagnosis=found, updates=1) if t.name == "dead layer"]
    assert trial.layers == (1, 2) and trial.cure == "neurolsc.initialize(net, x)"
    assert trial.before != pytest.approx(found.measurements.loss)  # it fires now
    assert network.run(x).spikes[0].count_nonzero() == 0  # and the network itself is as before


def test_without_a_diagnosis_cures_are_those_of_one(ill):
    network, (x, y) = ill
    (trial,) = try_cures(network, x, y, lr=3e-3, updates=1)
    assert trial.name == "dead layer, slow start"


def test_a_network_in_the_middle_of_a_training_is_copied():
    snn = pytest.importorskip("snntorch")
    layer = snn.Leaky(beta=0.9, init_hidden=True)
    modules = [nn.Linear(5, 6), layer, nn.Linear(6, 2)]
    network = wrap(modules)
    layer(modules[0](torch.rand(3, 5)))  # leaves a membrane with a history
    assert not layer.mem.is_leaf
    twin = copied(network)
    with torch.no_grad():
        twin.cells[0].before[0].weight.zero_()
    assert modules[0].weight.any()


LONG = Finding(3, "gradients grow " + 12 * "a lot and ", "scale w_rec down", cause=20 * "for a reason ")
OTHER = dataclasses.replace(LONG, cure="detach the reset")


def test_findings_in_print_are_at_most_80_columns_wide_and_as_texts_one_line(make_network, make_spikes):
    network, x, y = make_network(LIF, gain=3, layers=2), make_spikes(T=20, B=16), torch.arange(16) % 4
    found = diagnose(network, x, y, samples=2, steps=2)
    trial = Trial("dead layer", (1, 2), 30 * "scaled ", 1.0, 1.0, 1.0, helped=True)
    report = dataclasses.replace(found, findings=(LONG, OTHER), trials=(trial,))
    pretrained = pretrain(network, x, max_steps=0, steps=2, samples=2, progress=False)
    pretrained = dataclasses.replace(pretrained, findings=(LONG,), left_out="thresholds are left out " * 8)
    for shown in (report, pretrained, InitReport([LONG], title="Identity", left_out="left out " * 20)):
        sentences = str(shown).split("layer 3: ", 1)[1].splitlines()
        assert max(map(len, sentences)) <= 80
        assert all(line.startswith("  ") for line in sentences[1:4])
        assert " ".join(str(shown).split()).count(" ".join(str(LONG).split())) >= 1
    assert "\n" not in str(LONG)
    assert report.lines == [str(LONG), str(OTHER)]
    assert max(map(len, str(found).splitlines())) <= 100
