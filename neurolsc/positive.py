"""Positive parameters of a module, such as time constants, which are stored as their logarithms."""

import torch
from torch import Tensor, nn

from neurolsc.validation import LOG_LIMIT, positive


def log_name(name: str) -> str:
    """The name of the parameter that stores the logarithm of a positive quantity."""
    return f"log_{name}"


def from_log(log: Tensor) -> Tensor:
    """The exponential of a logarithm, within 4e-18 to 2e17."""
    return log.clamp(-LOG_LIMIT, LOG_LIMIT).exp()


def stored_parameter(module: nn.Module, name: str) -> nn.Parameter | None:
    """The parameter that stores a quantity: that of its name, or its logarithm; None if neither."""
    return module._parameters.get(name, module._parameters.get(log_name(name)))


class LogParameter:
    """A descriptor that stores a positive tensor as the trainable parameter ``log_<name>``.

    Reading returns ``exp(log_<name>)``, with a gradient, within 4e-18 to 2e17; assigning a positive tensor or number
    sets it in place. No optimizer step can therefore make it zero, negative or infinite.

    Raises:
        ValueError: at an assignment that is not positive and finite, or does not fit the shape.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self.name, self.log_name = name, log_name(name)

    def __get__(self, module: nn.Module | None, owner: type | None = None) -> Tensor:
        if module is None:
            return self  # type: ignore[return-value]
        return from_log(getattr(module, self.log_name))

    def __set__(self, module: nn.Module, value: Tensor | float) -> None:
        log = positive(self.name, value).log()
        parameter = module._parameters.get(self.log_name)
        if parameter is None:
            module.register_parameter(self.log_name, nn.Parameter(log))
            return
        if log.ndim and log.shape != parameter.shape:
            raise ValueError(f"{self.name} has shape {tuple(parameter.shape)}, got {tuple(log.shape)}.")
        with torch.no_grad():
            parameter.copy_(log)


def set_value(module: nn.Module, name: str, value: Tensor) -> None:
    """Set a quantity of a module in place: a parameter, or one that another parameter stores."""
    parameter = module._parameters.get(name)
    if parameter is None:
        setattr(module, name, value)
        return
    with torch.no_grad():
        parameter.copy_(value)
