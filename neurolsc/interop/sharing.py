"""Parameters that several places of a network share: setting one of them for a layer changes the other places."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from neurolsc.interop.saved import restored_on_error
from neurolsc.interop.wrapped import TorchCell
from neurolsc.network import Network
from neurolsc.surrogate import Surrogate
from neurolsc.surroundings import original

Modules = nn.Module | Iterable[nn.Module]


class SharedParameterError(ValueError):
    """A parameter that several places share would be set for one of them.

    Attributes:
        shared: the parameter.
    """

    def __init__(self, message: str, shared: "SharedParameter") -> None:
        super().__init__(message, shared)
        self.shared = shared

    def __str__(self) -> str:
        return self.args[0]


class SharedParameter(NamedTuple):
    """A parameter, or parameters over the same memory, of several layers."""

    parameter: nn.Parameter  # one of them
    places: tuple[str, ...]  # "layer 2", "the readout"

    def refusal(self, network: Network, net: Modules) -> SharedParameterError:
        """Return the error for setting the parameter, with its name and those of the layers in the user's module.

        Args:
            network: the network.
            net: the module that it was made of; or the network.
        """
        net = original(net)
        if not isinstance(net, nn.Module):  # a list of modules
            net = nn.ModuleList(net)
        memory = _memory(self.parameter)
        every = net.named_parameters(remove_duplicate=False)
        names = [name for name, p in every if not is_lazy(p) and _memory(p) == memory]
        modules = {module: name for name, module in net.named_modules()}
        places = []
        for place in self.places:
            number = place.removeprefix("layer ")
            layer: Any = None  # the user's layer in this place, if it is a wrapped one
            if number.isdecimal():
                layer = getattr(network.cells[int(number) - 1], "layer", None)
            places.append(f"{place} ({modules[layer]})" if layer in modules else place)
        return SharedParameterError(
            f"{', '.join(names)} is shared by {' and '.join(places)}: it cannot be set for each. Give each a module of its "
            "own, share it after the initialisation, or freeze it (requires_grad=False). initialize(net, x) with its own "
            "method leaves it as it is.",
            self,
        )


def shared_parameters(network: Network) -> list[SharedParameter]:
    """List the trained parameters of a network that several of its cells, readout and embedding hold."""
    parts: list[tuple[str, nn.Module | None]] = [(f"layer {i}", cell) for i, cell in enumerate(network.cells, start=1)]
    parts += [("the readout", network.readout), ("the embedding", network.embedding)]
    parameters: dict[tuple[Any, ...], nn.Parameter] = {}
    places: dict[tuple[Any, ...], list[str]] = {}
    for place, part in parts:
        for _, parameter in _parameters(part):
            memory = _memory(parameter)
            parameters[memory] = parameter
            of_memory = places.setdefault(memory, [])
            if place not in of_memory:
                of_memory.append(place)
    return [SharedParameter(parameters[memory], tuple(found)) for memory, found in places.items() if len(found) > 1]


def shared_with(network: Network, index: int, names: Sequence[str] = ()) -> list[str]:
    """Return the places, such as "layer 2" and "the readout", that share a parameter with a layer.

    Args:
        network: the network.
        index: the layer, counted from 0.
        names: count only parameters that store these quantities of a neuron, such as "threshold"; empty: all.
    """
    memories = []
    for name, parameter in _parameters(network.cells[index]):
        last = name.rpartition(".")[2]
        if not names or last.removeprefix("log_") in names:
            memories.append(_memory(parameter))
    own = f"layer {index + 1}"
    places: dict[str, None] = {}
    for shared in shared_parameters(network):
        if _memory(shared.parameter) in memories:
            places |= dict.fromkeys(shared.places)
    return [place for place in places if place != own]


def refuse_shared(network: Network, net: Modules) -> None:
    """Raise a ValueError if pre-training would change a parameter that several layers of a network share.

    Args:
        network: the network.
        net: the module that it was made of, whose names the error has; or the network.
    """
    pretrained = {_memory(parameter) for cell in network.cells for parameter in cell.pretrained()}
    surrogates = [module for module in network.modules() if isinstance(module, Surrogate)]
    by_intent = {_memory(parameter) for surrogate in surrogates for parameter in surrogate.parameters()}
    for shared in shared_parameters(network):
        memory = _memory(shared.parameter)
        if memory in pretrained and memory not in by_intent:  # layers may learn one surrogate together
            raise shared.refusal(network, net)


@contextmanager
def shared_kept(network: Network, net: Modules) -> Iterator[None]:
    """Raise a ValueError if the block has set a shared parameter; put all values back after any error.

    Args:
        network: the network.
        net: the module that it was made of, whose names the error has; or the network.
    """
    before = [(shared, shared.parameter.detach().clone()) for shared in shared_parameters(network)]
    with restored_on_error(network):
        try:
            yield
        except SharedParameterError as error:  # of a method inside, which knows no names of the user's module
            raise error.shared.refusal(network, net) from None
        for shared, value in before:
            if not torch.equal(shared.parameter, value):
                raise shared.refusal(network, net)


def _parameters(part: nn.Module | None) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield names and parameters that a cell or readout trains; of a whole nn.LSTM those of the cell's own layer."""
    if part is None:
        return
    for name, parameter in part.named_parameters():
        of_another_layer = isinstance(part, TorchCell) and name.startswith("layer.") and not name.endswith(part.suffix)
        if parameter.requires_grad and parameter.numel() and not of_another_layer:
            yield name, parameter


def _memory(value: Tensor) -> tuple[Any, ...]:
    """Return the device and address at which the values of a tensor begin."""
    return (value.device, value.data_ptr())
