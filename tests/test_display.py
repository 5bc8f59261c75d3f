"""Results show themselves: one line or a table."""

import copy

import matplotlib as mpl
import pytest
import torch

from neurolsc import (
    ALIFPlus,
    Network,
    diagnose,
    evaluate,
    pretrain,
    radius_profile,
    scale_to_radius,
    train,
    try_cures,
    wrap,
)
from neurolsc.datasets import SHD, EventFile
from neurolsc.datasets.batches import Batch
from neurolsc.datasets.speech import summarize
from neurolsc.display import Table
from neurolsc.experiment import make_grid
from neurolsc.export import quantize
from neurolsc.neurons import ALIFPositive
from neurolsc.stability.findings import Finding


@pytest.fixture(scope="module")
def network() -> Network:
    torch.manual_seed(0)
    return Network([ALIFPlus(20, 6), ALIFPlus(6, 6)], n_out=3)


@pytest.fixture(scope="module")
def x() -> torch.Tensor:
    return (torch.rand(20, 8, 20, generator=torch.Generator().manual_seed(1)) < 0.3).float()


def test_a_table_has_words_to_the_left_numbers_to_the_right_and_nothing_after_the_last_word():
    table = Table(("layer", "radius", "held by"), [("1", "0.5 *", "leak"), ("10", "0.25  ", "feedback, reset")])
    assert str(table) == ("layer  radius  held by\n    1   0.5 *  leak\n   10  0.25    feedback, reset")


def test_a_network_says_sizes_wiring_and_how_many_parameters_it_has(network):
    first, second, *_ = repr(network).splitlines()
    assert first == "Network("
    assert second == f"  20 -> 2 x 6 -> 3, layer_delay=1, {sum(p.numel() for p in network.parameters()):,} parameters"
    assert "ALIFPlus" in repr(network)
    wide = Network([ALIFPlus(2000, 1000), ALIFPlus(1000, 5)], n_out=2, layer_delay=0)
    assert "2000 -> 1000 -> 5 -> 2, layer_delay=0, 3," in repr(wide)


def test_a_run_and_its_states_name_their_axes(network, x):
    run = network.run(x)
    assert repr(run) == "Run(logits (T=20, B=8, 3), spikes 2 x (T=20, B=8, 6), states of 2 layers)"
    assert repr(run.states) == "NetworkState(2 x ALIFState(v (B=8, 6), theta (B=8, 6)), x (B=8, 20))"
    at_once = Network(list(network.cells), 3, layer_delay=0).run(x).states
    assert repr(at_once) == "NetworkState(2 x ALIFState(v (B=8, 6), theta (B=8, 6)))"
    moment = next(network.records(x))
    assert repr(moment) == "StepRecord(inputs (B=8, 20), (B=8, 6), outputs 2 x (B=8, 6), states before and after)"
    assert repr(Batch(x, torch.zeros(8).long())) == "Batch(x (T=20, B=8, 20))"
    whole = quantize(Network([ALIFPositive(20, 6, reset="static", b_theta=0.002, adaptation=0.2)], 3), force=True)
    assert repr(whole) == "QuantizedNetwork(20 -> 6 -> 3, 0 blank steps)"
    assert repr(whole.layers[0]) == "AtrlifLayer(20, 6)"
    assert repr(whole.run(x)) == "IntegerRun(logits (T=20, B=8, 3), spikes (T=20, B=8, 6))"


def test_the_repr_of_a_result_is_its_printed_table(network, x):
    network = copy.deepcopy(network)
    items = [(x[:, i], i % 3) for i in range(8)]
    diagnosis = diagnose(network, (x, torch.arange(8) % 3))
    pretraining = pretrain(network, [x], target=0.5, max_steps=2, progress=False)
    training = train(network, items, items, epochs=5, progress=False)
    summary = summarize(EventFile(SHD.embedded("train").path))
    results = [diagnosis, pretraining, pretraining.profile, training, evaluate(network, items), summary]
    for result in results:
        text = repr(result)
        assert text == str(result) and "tensor" not in text and len(text) < 2500


def test_a_training_shows_its_first_best_and_last_epoch(network, x):
    items = [(x[:, i], i % 3) for i in range(8)]
    result = train(copy.deepcopy(network), items, items, epochs=4, progress=False)
    row = result.history[-1]
    lines = repr(result).splitlines()
    assert lines[0].startswith(f"best epoch {result.best_epoch} of 4, all run, ")
    assert lines[1].split("  ")[:2] == ["epoch", "train loss"]
    shown = [int(line.split()[0]) for line in lines[2:] if line.split()[0].isdigit()]
    assert shown == sorted({1, result.best_epoch, 4})
    last = next(line.split() for line in lines[2:] if line.split()[0] == "4")
    losses = [f"{row['train_loss']:.3f}", f"{row['validation_loss']:.3f}"]
    scores = [f"{row['train_mode_accuracy']:.1%}", f"{row['validation_mode_accuracy']:.1%}"]
    assert last[1:] == [*losses, *scores, *(f"{rate:.4f}" for rate in row["firing_rate"])]
    assert max(row["firing_rate"]) > 0


def test_scores_stand_below_their_names(network, x):
    scores = evaluate(network, [(x[:, i], i % 3) for i in range(8)])
    assert scores.firing_rate[0] > 0
    head, values = repr(scores).splitlines()
    assert head.split("  ")[0] == "mode accuracy" and "no vote" in head and "synops/sample" in head
    rates = [f"{rate:.4f}" for rate in scores.firing_rate]
    assert values.split() == [
        *(f"{scores.mode_accuracy:.1%}", f"{scores.mean_accuracy:.1%}", f"{scores.loss:.3f}"),
        *(f"{scores.share_without_vote:.1%}", f"{scores.silent_steps:.1%}", *rates, f"{scores.synops:,.0f}"),
    ]


def test_findings_trials_grids_and_files_are_one_line(network, x):
    assert repr([Finding(2, "never fires", "lower them")]) == "[Finding(layer 2: never fires; lower them.)]"
    silent = copy.deepcopy(network)
    silent.cells[0].theta_rest = 1000.0
    batch = (x, torch.arange(8) % 3)
    diagnosis = diagnose(silent, batch)
    for trial in try_cures(silent, batch, diagnosis, updates=1):
        assert repr(trial) == f"Trial({trial})"
    assert repr(diagnosis.measurements) == "Measurements(2 layers, loss and gradients)"
    assert repr(diagnose(silent, x).measurements) == "Measurements(2 layers, no loss and gradients)"
    grid = make_grid({"name": "small", "grid": {"layers": [1, 2], "seed": [0, 1]}})
    assert repr(grid) == "Grid(small: 4 trials over layers, seed)"
    assert repr(grid.trials[0]) == f"Trial({grid.trials[0].name})"
    file = EventFile(SHD.embedded("train").path)
    assert repr(file) == "EventFile(train.h5.xz, 100 utterances, 10 classes, 5 speakers)"
    assert repr(file.read([0])) == f"Events(utterances=1, spikes={len(file.read([0]).times)})"


def test_results_draw_themselves(network, x, tmp_path):
    network = copy.deepcopy(network)
    items = [(x[:, i], i % 3) for i in range(8)]
    training = train(network, items, items, epochs=2, progress=False)
    figure = training.plot(tmp_path / "learning.png", chance=1 / 3, title="small")
    assert (tmp_path / "learning.png").stat().st_size > 5000
    loss, score, rate = (ax.lines[0].get_ydata().tolist() for ax in figure.axes)
    assert loss == [row["validation_loss"] for row in training.history]
    assert score == [row["validation_mode_accuracy"] for row in training.history]
    assert rate == [row["firing_rate"][-1] for row in training.history] and rate[-1] > 0
    assert [text.get_text() for text in figure.legends[0].texts] == ["chance"]  # one training needs no name
    pretraining = pretrain(network, [x], target=0.5, max_steps=2, progress=False)
    figure = pretraining.plot()
    assert figure.axes[0].lines[0].get_ydata().tolist() == [row["time"][0] for row in pretraining.history]
    assert mpl.colors.to_rgba(figure.axes[0].lines[-1].get_color()) == mpl.colors.to_rgba("black")  # the target
    with pytest.raises(ValueError, match="only the history of pretrain can"):
        scale_to_radius(network, x, progress=False).plot()
    assert radius_profile(network, x).plot(title="small").get_suptitle() == "small"
    lstm = wrap([torch.nn.LSTM(x.shape[-1], 4), torch.nn.Linear(4, 3)])  # it sends no spikes
    figure = pretrain(lstm, [x.float()], target=0.5, max_steps=1, progress=False).plot()
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["Mean radius through time", "Mean radius through depth"]
