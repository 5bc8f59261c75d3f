"""torch.compile of a network: the network's own loop, which is not compiled step by step."""

import pytest
import torch

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


@pytest.mark.slow
def test_a_compiled_network_is_the_network(make_spikes):
    network = Network([ALIFPlus(20, 64), ALIFPlus(64, 64)], n_out=5).double()  # compiled code rounds otherwise
    x = make_spikes(50, 8, 20).double()
    with torch.no_grad():
        for cell in network.cells:
            cell.w_in.mul_(4)
    wanted, compiled = network(x), torch.compile(network)
    assert min(z.mean() for z in network.run(x).spikes) > 0.01
    for steps in (50, 40):
        torch.testing.assert_close(compiled(x[:steps]), wanted[:steps])
    parameters = [p for p in network.parameters() if p.requires_grad]
    by_compiled, by_plain = (
        torch.autograd.grad(out.square().sum(), parameters, allow_unused=True) for out in (compiled(x), wanted)
    )
    torch.testing.assert_close(by_compiled, by_plain)


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
