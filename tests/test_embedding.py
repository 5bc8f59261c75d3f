"""Networks that read token indices: the same as one that reads their vectors."""

import copy

import pytest
import torch

from neurolsc import GRU, LSTM, ALIFPlus, Embedding, Network, load, pretrain, radius_profile, save, train
from neurolsc.init import named
from neurolsc.stability.indicators import state_gradients
from neurolsc.tasks import ClassPerStep

WORDS = 30


def made(cell=GRU, *, layer_delay=0) -> Network:
    return Network([cell(6, 8), cell(8, 6)], embedding=Embedding(WORDS, 6), layer_delay=layer_delay)


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randint(WORDS, (9, 4, 1))


@pytest.mark.parametrize("layer_delay", [0, 1])
def test_it_is_the_network_of_the_words_vectors(x, layer_delay):
    network = made(layer_delay=layer_delay)
    plain = Network(list(network.cells), network.readout, layer_delay=layer_delay)
    vectors = network.embedding.weight[x.squeeze(-1)]
    wanted = plain.run(vectors)
    run = network.run(x)
    torch.testing.assert_close(run.logits, wanted.logits)
    torch.testing.assert_close(run.logits, run.spikes[-1] @ network.embedding.weight.T)
    logits, states = [], network.initial_states(4)
    for frame in x:
        out, states = network.step(frame, states)
        logits.append(out)
    torch.testing.assert_close(torch.stack(logits), run.logits)
    network.embedding.weight.grad = None
    network.run(x).logits.logsumexp(-1).sum().backward()
    assert network.embedding.weight.grad.abs().sum(1).count_nonzero() == WORDS  # as readout, all


def test_an_embedding_is_counted_and_copied_once(x):
    network = made()
    assert [name for name, _ in network.named_parameters()].count("embedding.weight") == 1
    assert (network.n_in, network.n_out) == (1, WORDS)
    large = Network([LSTM(300, 500), LSTM(500, 300)], embedding=Embedding(10_000, 300))
    assert abs(sum(p.numel() for p in large.parameters()) - 5_563_200) <= 1  # Table S1, Penn Treebank
    again = Network(list(network.cells), embedding=network.embedding, layer_delay=0)
    copied = copy.deepcopy(network).double()
    with torch.no_grad():
        copied.embedding.weight.zero_()
    assert not copied(x).any()
    assert network(x).any()
    torch.testing.assert_close(again(x), network(x))


def test_a_file_keeps_it(x, tmp_path):
    network = made()
    save(network, tmp_path / "n")
    again = load(tmp_path / "n")
    assert torch.equal(network(x), again(x))
    assert repr(again) == repr(network)


def test_it_is_measured_initialised_pre_trained_and_trained(x):
    network = made(ALIFPlus)
    for initialiser in ("Orthogonal()", "Default"):
        named(initialiser).apply(network, [x], seed=0)
    profile = radius_profile(network, x, steps=4)
    assert profile.depth.shape == (2, 4, 4)
    before = network.embedding.weight.detach().clone()
    pretrain(network, [x], target=0.5, max_steps=2, progress=False)
    assert torch.equal(network.embedding.weight, before)
    assert state_gradients(network, x, lambda logits: logits.square().sum())[-1].any()
    items = [(x[:, b], x[:, b - 1, 0]) for b in range(4)]
    train(network, items, items, task=ClassPerStep(), epochs=3, batch_size=2, progress=False)
    assert not torch.equal(network.embedding.weight, before)


def test_what_does_not_fit_is_refused(x):
    for cell, n_out in ((GRU(5, 6), None), (GRU(6, 5), None), (GRU(6, 6), 3)):
        got = f"{cell.n_in} read, {cell.n_hidden} sent and n_out={n_out}"
        with pytest.raises(ValueError, match=f"needs cells that read and send 6 numbers, and n_out=None, got {got}"):
            Network([cell], n_out, embedding=Embedding(WORDS, 6))
    with pytest.raises(TypeError, match=r"integer token indices, got torch\.float32"):
        made()(x.float())
