"""Every layer that `wrap` must take, made small, with the shape of one sample of its input."""

import warnings
from collections.abc import Callable

import torch
from torch import nn

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # norse's import: `torch.jit.script` is deprecated
    import norse.torch as norse
import snntorch as snn

from neurolsc.interop import snntorch as in_snntorch

N_IN, N = 7, 5


def snntorch_layers(hidden: bool) -> dict[str, tuple[Callable[[], list[nn.Module]], tuple[int, ...]]]:
    fc = lambda: nn.Linear(N_IN, N)  # noqa: E731
    conv = lambda: nn.Conv2d(1, 2, 3)  # noqa: E731
    image = (1, 5, 5)
    k = {"init_hidden": hidden}
    return {
        "Leaky": (lambda: [fc(), snn.Leaky(0.9, **k)], (N_IN,)),
        "Leaky-zero": (lambda: [fc(), snn.Leaky(0.9, reset_mechanism="zero", learn_beta=True, **k)], (N_IN,)),
        "Leaky-now": (lambda: [fc(), snn.Leaky(0.9, reset_delay=False, **k)], (N_IN,)),
        "Leaky-conv": (lambda: [conv(), snn.Leaky(0.9, **k)], image),
        "RLeaky": (lambda: [fc(), snn.RLeaky(0.9, linear_features=N, **k)], (N_IN,)),
        "RLeaky-now": (lambda: [fc(), snn.RLeaky(0.9, linear_features=N, reset_delay=False, **k)], (N_IN,)),
        "RLeaky-one": (lambda: [fc(), snn.RLeaky(0.9, all_to_all=False, V=torch.randn(N), **k)], (N_IN,)),
        "RLeaky-conv": (lambda: [conv(), snn.RLeaky(0.9, conv2d_channels=2, kernel_size=3, **k)], image),
        "Synaptic": (lambda: [fc(), snn.Synaptic(0.9, 0.8, **k)], (N_IN,)),
        "RSynaptic": (lambda: [fc(), snn.RSynaptic(0.9, 0.8, linear_features=N, **k)], (N_IN,)),
        "Alpha": (lambda: [fc(), snn.Alpha(0.9, 0.8, **k)], (N_IN,)),
        "ALIF": (lambda: [fc(), in_snntorch.ALIFPlus(0.9, N, threshold=0.3, **k)], (N_IN,)),  # ours
        "LIF-zero": (lambda: [fc(), in_snntorch.LIF(0.9, N, reset_mechanism="zero", **k)], (N_IN,)),
        "SLSTM": (lambda: [snn.SLSTM(N, N, threshold=0.05, **k)], (N,)),
    }


def norse_layers() -> dict[str, tuple[Callable[[], list[nn.Module]], tuple[int, ...]]]:
    layers = {}
    for kind in ("LIF", "LSNN", "LIFBox", "IAF", "LI", "LIBox"):
        for name in (kind, f"{kind}Cell"):
            if hasattr(norse, name):
                layers[name] = ((lambda n=name: [nn.Linear(N_IN, N), getattr(norse, n)()]), (N_IN,))
        for name in (f"{kind}Recurrent", f"{kind}RecurrentCell"):
            if hasattr(norse, name):
                layers[name] = ((lambda n=name: [getattr(norse, n)(N_IN, N)]), (N_IN,))
    return layers | {"LILinearCell": (lambda: [norse.LILinearCell(N_IN, N)], (N_IN,))}


TORCH = {
    "RNN": (lambda: [nn.RNN(N_IN, N, num_layers=2)], (N_IN,)),
    "RNN-relu": (lambda: [nn.RNN(N_IN, N, nonlinearity="relu", bias=False)], (N_IN,)),
    "GRU": (lambda: [nn.GRU(N_IN, N, num_layers=2)], (N_IN,)),
    "LSTM": (lambda: [nn.LSTM(N_IN, N, num_layers=2)], (N_IN,)),
    "RNNCell": (lambda: [nn.RNNCell(N_IN, N, nonlinearity="relu")], (N_IN,)),
    "GRUCell": (lambda: [nn.GRUCell(N_IN, N)], (N_IN,)),
    "LSTMCell": (lambda: [nn.LSTMCell(N_IN, N)], (N_IN,)),
}
NORSE = norse_layers()
SNNTORCH = {
    f"{name}-{'hidden' if hidden else 'passed'}": layer
    for hidden in (False, True)
    for name, layer in snntorch_layers(hidden).items()
}
EVERY = {**{f"snn.{k}": v for k, v in SNNTORCH.items()}, **{f"norse.{k}": v for k, v in NORSE.items()}, **TORCH}
