"""torch.compile of a network: the network's own loop, which is not compiled step by step."""

import pytest
import torch
from torch import nn

from neurolsc import ALIFPlus, Network, evaluate

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of torch's compiler itself
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),  # likewise, which it looks at
]


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def gradients(network: nn.Module, y: torch.Tensor) -> list[torch.Tensor]:
    network.zero_grad()
    y.square().sum().backward()
    return [p.grad.clone() for p in network.parameters() if p.grad is not None]


@pytest.mark.slow
def test_a_compiled_network_is_the_network(make_spikes):
    network = Network([ALIFPlus(20, 64), ALIFPlus(64, 64)], n_out=5).double()  # compiled code rounds otherwise
    x = make_spikes(50, 8, 20).double()
    with torch.no_grad():
        network.cells[0].w_in.mul_(4)
        network.cells[1].w_in.mul_(4)
    wanted = network(x)
    assert min(z.mean() for z in network.run(x).spikes) > 0.01
    compiled = torch.compile(network)
    for steps in (50, 40):
        torch.testing.assert_close(compiled(x[:steps]), wanted[:steps])
    found = gradients(network, compiled(x))
    torch.testing.assert_close(found, gradients(network, network(x)))


def test_what_stands_around_a_network_is_compiled(make_network, make_spikes):
    graphs = []

    def noting(graph, inputs):
        graphs.append([node.target for node in graph.graph.nodes if node.op.startswith("call")])
        return graph.forward

    network, x = make_network(gain=3.0), make_spikes()

    def around(x):
        return network(x.relu()).softmax(-1)

    torch.testing.assert_close(torch.compile(around, backend=noting)(x), around(x))
    assert graphs == [["relu"], ["softmax"]]  # and no step of the loop


def test_where_a_network_is_wanted_a_compiled_one_is_told_from_other_modules(make_network):
    with pytest.raises(TypeError, match=r"got one in torch\.compile: give the network itself"):
        evaluate(torch.compile(make_network()), [(torch.zeros(3, 30), 0)])
