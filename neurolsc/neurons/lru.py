r"""The linear recurrent unit, in its residual block, and the same recurrence alone, in three parametrisations.

It is linear, so it runs over all steps at once, in a number of passes that grows as log T (:func:`linear_scan`), and
its eigenvalues are known.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, gelu, layer_norm, linear, pad, softplus

from neurolsc.display import state_repr
from neurolsc.neurons.cell import AtOnce, Cell, ScaledParameter, register
from neurolsc.neurons.derivatives import Derivatives, EigenpairHint, JacobianOperator, StepMap, Term
from neurolsc.neurons.rate import inputs_of, last_of
from neurolsc.validation import number, one_of, probability, whole

BUSY = 2048  # numbers in a step from which a CPU is faster in a loop over steps (benchmarks/rate_cells.py)


class LRUState(NamedTuple):
    """State of an LRU or a DiagonalRNN."""

    x: Tensor  # the memory, complex (B, n_state); for radii its real and imaginary parts
    u: Tensor  # the input in this step: of an LRU's block (B, n_hidden), of a DiagonalRNN (B, n_in)
    __repr__ = state_repr


@register
class LRU(Cell):
    r"""A linear recurrence of complex numbers in a residual block.

    .. math::
        v[t] &= \mathrm{LayerNorm}(u[t]) \\
        x[t] &= \lambda \circ x[t-1] + e^{\gamma} \circ (B v[t]), \quad
            \lambda = e^{-e^{\nu} + i \varphi} \\
        y[t] &= \Re(C x[t]) + D \circ v[t] \\
        o[t] &= u[t] + \mathrm{GLU}(\mathrm{GELU}(y[t]))

    with GLU(g) = (P g + p) sigmoid(Q g + q). u is the input after W_in, where its width is not n_hidden, and after the
    exterior dropout; a dropout follows GELU, and another one GLU. Derivatives in closed form are those of the memory x
    alone, as in the paper: the radius through depth leaves out the skip connection, which is the identity, and D.

    Args:
        n_hidden: width of the block, and so of its output.
        n_state: complex numbers of the memory; by default n_hidden.
        dropout: probability of the two dropouts inside, while training.
        exterior_dropout: likewise of the one before the block, which the skip connection also passes.

    Attributes:
        w_in: (n_hidden, n_in), Glorot uniform; None where n_in is n_hidden.
        nu_log, phase, gamma_log: ν, φ and γ (n_state,): before training \|λ\| is uniform in [0.5, 1], the phase in [0,
            π/10], and e^γ is the square root of 1 - \|λ\|².
        b_real, b_imag: B (n_state, n_hidden), Gaussian of deviation 1/√n_hidden each.
        c_real, c_imag: C (n_hidden, n_state), of deviation 1/√(2 n_state).
        d: D (n_hidden,), of deviation 1.
        norm_weight, norm_bias: of the layer norm, (n_hidden,), 1 and 0.
        glu_weight, glu_bias: P above Q, (2 n_hidden, n_hidden), Glorot uniform each, and p above q.
        modulus: \|λ\| (n_state,), the largest of which is exactly the radius through time; settable, by ``nu_log``.

    Source: arXiv:2308.12075v2, eq. 50 and 51, App. H; A. Orvieto et al., "Resurrecting recurrent neural networks for
    long sequences", ICML 2023.
    """

    w_in: nn.Parameter | None
    settings = ("n_state", "dropout", "exterior_dropout")
    scaled_parameters = (
        ScaledParameter("b_real", "depth"),
        ScaledParameter("b_imag", "depth"),
        ScaledParameter("modulus", "time", through="decay_factor"),
    )
    stored_in = (("modulus", "nu_log"),)
    paper_scaled_parameters = (
        *(ScaledParameter(name, "depth") for name in ("b_real", "b_imag", "c_real", "c_imag")),
        ScaledParameter("nu_log", "time"),
    )

    def __init__(
        self,
        n_in: int,
        n_hidden: int,
        *,
        n_state: int | None = None,
        dropout: float = 0.1,
        exterior_dropout: float = 0.0,
    ) -> None:
        super().__init__(n_in, n_hidden)
        if n_state is None:
            n = n_hidden
        else:
            n = whole("n_state", n_state)
        self.n_state = n
        self.dropout = probability("dropout", dropout)
        self.exterior_dropout = probability("exterior_dropout", exterior_dropout)
        self.register_parameter("w_in", None)
        if n_in != n_hidden:
            self.w_in = nn.Parameter(nn.init.xavier_uniform_(torch.empty(n_hidden, n_in)))
        # eigenvalues of moduli uniform in [0.5, 1) and phases uniform in [0, pi / 10)
        modulus = 0.5 + torch.rand(n) / 2
        modulus = modulus.clamp(max=1 - torch.finfo(modulus.dtype).eps)  # log(-log 1) is not finite
        self.nu_log = nn.Parameter(torch.log(-torch.log(modulus)))
        self.phase = nn.Parameter(torch.rand(n) * math.pi / 10)
        self.gamma_log = nn.Parameter(torch.log(1 - modulus.square()) / 2)  # of sqrt(1 - |lambda|^2)
        self.b_real, self.b_imag = (nn.Parameter(torch.randn(n, n_hidden) * n_hidden**-0.5) for _ in range(2))
        self.c_real, self.c_imag = (nn.Parameter(torch.randn(n_hidden, n) * (2 * n) ** -0.5) for _ in range(2))
        self.d = nn.Parameter(torch.randn(n_hidden))
        self.norm_weight = nn.Parameter(torch.ones(n_hidden))
        self.norm_bias = nn.Parameter(torch.zeros(n_hidden))
        halves = [nn.init.xavier_uniform_(torch.empty(n_hidden, n_hidden)) for _ in range(2)]
        self.glu_weight = nn.Parameter(torch.cat(halves))
        self.glu_bias = nn.Parameter(torch.zeros(2 * n_hidden))

    def initial_state(self, batch: int) -> LRUState:
        u = torch.zeros(batch, self.n_hidden, **self.dtype_and_device)
        x = torch.zeros(batch, self.n_state, dtype=u.dtype.to_complex(), device=u.device)
        return LRUState(x, u)

    def output(self, state: LRUState) -> Tensor:
        return self.block_output(state.x, state.u, self.normed(state.u))

    def update(self, x: Tensor, z: Tensor, state: LRUState) -> LRUState:
        u = self.block_input(x).to(state.u.dtype)  # products have another dtype under autocast
        return LRUState(self.eigenvalues * state.x + self.driven(self.normed(u)), u)

    def block_input(self, x: Tensor) -> Tensor:
        """Return u (..., n_hidden), the input of the block, from x (..., n_in): W_in x, and the exterior dropout."""
        if self.w_in is not None:
            x = linear(x, self.w_in)
        return dropout(x, self.exterior_dropout, self.training)

    def normed(self, u: Tensor) -> Tensor:
        """Return v (..., n_hidden), the layer norm of u."""
        return layer_norm(u, (self.n_hidden,), self.norm_weight, self.norm_bias)

    def driven(self, v: Tensor) -> Tensor:
        """Return what v (..., n_hidden) adds to the memory in a step, complex (..., n_state)."""
        scale = self.gamma_log.exp()
        return torch.complex(linear(v, self.b_real) * scale, linear(v, self.b_imag) * scale)

    def block_output(self, x: Tensor, u: Tensor, v: Tensor) -> Tensor:
        """Return o (..., n_hidden), the output of the block, from the memory x (..., n_state), u and v."""
        y = linear(x.real, self.c_real) - linear(x.imag, self.c_imag) + self.d * v
        inner = dropout(gelu(y), self.dropout, self.training)
        value, gate = linear(inner, self.glu_weight, self.glu_bias).chunk(2, -1)
        return u + dropout(value * torch.sigmoid(gate), self.dropout, self.training)

    @property
    def eigenvalues(self) -> Tensor:
        """λ (n_state,), complex."""
        return torch.polar(self.modulus, self.phase)

    @property
    def modulus(self) -> Tensor:
        r"""\|λ\| (n_state,)."""
        return torch.exp(-torch.exp(self.nu_log))

    @modulus.setter
    def modulus(self, value: Tensor) -> None:
        with torch.no_grad():
            eps = torch.finfo(value.dtype).eps  # 0 and 1 have no finite logarithm of their logarithm
            self.nu_log.copy_(torch.log(-torch.log(value.clamp(eps, 1 - eps))))

    def closed_form(self) -> Derivatives:
        return LRUDerivatives(self)

    def run_at_once(self, x: Tensor, state: LRUState, lengths: Tensor | None, late: Tensor | None) -> AtOnce:
        u = self.block_input(inputs_of(x, late, state.u.dtype)).to(state.u.dtype)
        v = self.normed(u)
        memory = linear_scan(self.eigenvalues, self.driven(v), state.x)
        last = LRUState(last_of(memory, state.x, lengths), last_of(u, state.u, lengths))
        return self.block_output(memory, u, v), last


FORMS = {  # the parameters of the eigenvalues, the first of which stores the modulus
    "complex": ("lambda_real", "lambda_imag"),
    "lru": ("nu_log", "theta_log", "gamma_log"),
    "s4": ("a_real", "a_imag", "delta_raw"),
}


@register
class DiagonalRNN(Cell):
    r"""A linear recurrence of complex numbers, each of which reads itself alone.

    .. math::
        x[t] &= \lambda \circ x[t-1] + \gamma \circ B u[t] \\
        y[t] &= \Re(C x[t]) + D u[t]

    with u the input and y the output. The forms of λ, by what is trained:

    - ``"complex"``: :math:`\lambda = \lambda_{re} + i \lambda_{im}`, γ = 1: a linear RNN by its eigenvalues;
    - ``"lru"``: :math:`\lambda = e^{-e^\nu + i e^\theta}`, γ is trained as its logarithm;
    - ``"s4"``: :math:`\lambda = e^{\Delta (a_{re} + i a_{im})}` and γ = Δ, Δ = softplus δ.

    Derivatives in closed form are those of the memory x alone: the radius through depth leaves out D.

    Args:
        n_state: complex numbers of the memory; by default n_hidden.
        form: ``"complex"``, ``"lru"`` or ``"s4"``.
        memory: the least \|λ\| before training, in [0, 1): λ is uniform on the ring between it and 1.
        angle: the largest angle of λ before training: angles are uniform in ±angle; those of ``"lru"``, which are
            positive, in [0, angle].

    Attributes:
        lambda_real, lambda_imag: of ``"complex"`` (n_state,).
        nu_log, theta_log, gamma_log: ν, θ and log γ of ``"lru"``; before training γ is the square root of
            1 - \|λ\|².
        a_real, a_imag, delta_raw: a and δ of ``"s4"``; before training Δ is 1.
        b_real, b_imag: B (n_state, n_in), Gaussian of deviation 1/√(2 n_in) each.
        c_real, c_imag: C (n_hidden, n_state), of deviation 1/√n_state.
        d: D (n_hidden, n_in), of deviation 1/√n_in.
        eigenvalues: λ (n_state,), complex; settable: Δ and γ stay as they are, and angles of ``"lru"`` lose their sign.
        modulus: \|λ\| (n_state,), the largest of which is the radius through time; settable: angles stay as they are.

    Source: arXiv:2405.21064, App. A.2 and A.3, eq. 16 to 25.
    """

    settings = ("n_state", "form")
    scaled_parameters = LRU.scaled_parameters
    paper_scaled_parameters = scaled_parameters
    lambda_real: nn.Parameter
    lambda_imag: nn.Parameter
    nu_log: nn.Parameter
    theta_log: nn.Parameter
    gamma_log: nn.Parameter
    a_real: nn.Parameter
    a_imag: nn.Parameter
    delta_raw: nn.Parameter

    def __init__(
        self,
        n_in: int,
        n_hidden: int,
        *,
        n_state: int | None = None,
        form: str = "complex",
        memory: float = 0.0,
        angle: float = math.pi,
    ) -> None:
        super().__init__(n_in, n_hidden)
        n = n_hidden if n_state is None else whole("n_state", n_state)
        self.n_state = n
        self.form = one_of("form", form, tuple(FORMS))
        self.stored_in = (("modulus", FORMS[form][0]),)
        least = probability("memory", memory) ** 2
        modulus = (least + (1 - least) * torch.rand(n)).sqrt()  # even over the area of the ring
        turn = (2 * torch.rand(n) - 1) * number("angle", angle, zero_allowed=True)
        for name in FORMS[form]:
            self.register_parameter(name, nn.Parameter(torch.zeros(n)))
        if form == "s4":
            nn.init.constant_(self.delta_raw, math.log(math.e - 1))  # softplus of it is 1
        self.eigenvalues = torch.polar(modulus, turn)
        if form == "lru":
            self.gamma_log = nn.Parameter(torch.log(1 - self.modulus.detach().square()) / 2)
        self.b_real, self.b_imag = (nn.Parameter(torch.randn(n, n_in) * (2 * n_in) ** -0.5) for _ in range(2))
        self.c_real, self.c_imag = (nn.Parameter(torch.randn(n_hidden, n) * n**-0.5) for _ in range(2))
        self.d = nn.Parameter(torch.randn(n_hidden, n_in) * n_in**-0.5)

    def initial_state(self, batch: int) -> LRUState:
        u = torch.zeros(batch, self.n_in, **self.dtype_and_device)
        return LRUState(torch.zeros(batch, self.n_state, dtype=u.dtype.to_complex(), device=u.device), u)

    def output(self, state: LRUState) -> Tensor:
        x = state.x
        return linear(x.real, self.c_real) - linear(x.imag, self.c_imag) + linear(state.u, self.d)

    def update(self, x: Tensor, z: Tensor, state: LRUState) -> LRUState:
        memory = self.eigenvalues * state.x + self.driven(x)
        return LRUState(memory, x.to(state.u.dtype))  # x has another dtype under autocast

    def driven(self, u: Tensor) -> Tensor:
        """Return what an input u (..., n_in) adds to the memory in a step, complex (..., n_state)."""
        dtype = self.b_real.dtype  # under autocast products are of half precision, which no complex number has
        real = linear(u, self.b_real).to(dtype)
        imaginary = linear(u, self.b_imag).to(dtype)
        if self.form == "complex":
            return torch.complex(real, imaginary)
        scale = self.gamma_log.exp() if self.form == "lru" else softplus(self.delta_raw)
        return torch.complex(real * scale, imaginary * scale)

    @property
    def eigenvalues(self) -> Tensor:
        """λ (n_state,), complex."""
        if self.form == "complex":
            return torch.complex(self.lambda_real, self.lambda_imag)
        if self.form == "lru":
            return torch.polar(torch.exp(-self.nu_log.exp()), self.theta_log.exp())
        return torch.exp(softplus(self.delta_raw) * torch.complex(self.a_real, self.a_imag))

    @eigenvalues.setter
    def eigenvalues(self, value: Tensor) -> None:
        with torch.no_grad():  # into the form's own parameters: the modulus by its setter, then the angle
            if self.form == "complex":
                self.lambda_real.copy_(value.real)
                self.lambda_imag.copy_(value.imag)
                return
            self.modulus = value.abs()
            if self.form == "lru":
                tiny = torch.finfo(self.theta_log.dtype).tiny  # an angle of 0 has no finite logarithm
                self.theta_log.copy_(value.angle().abs().clamp(min=tiny).log())
            else:
                self.a_imag.copy_(value.angle() / softplus(self.delta_raw))

    @property
    def modulus(self) -> Tensor:
        r"""\|λ\| (n_state,)."""
        return self.eigenvalues.abs()

    @modulus.setter
    def modulus(self, value: Tensor) -> None:
        with torch.no_grad():
            eps = torch.finfo(value.dtype).eps  # 0 has no finite logarithm, and 1 no logarithm of its logarithm
            log = value.clamp(eps, 1 - eps).log()
            if self.form == "complex":  # no logarithm is stored, so that every modulus from 0 on is possible
                turned = torch.polar(value, self.eigenvalues.angle())
                self.lambda_real.copy_(turned.real)
                self.lambda_imag.copy_(turned.imag)
            elif self.form == "lru":
                self.nu_log.copy_((-log).log())
            else:
                self.a_real.copy_(log / softplus(self.delta_raw))

    def closed_form(self) -> Derivatives:
        return LRUDerivatives(self)

    def run_at_once(self, x: Tensor, state: LRUState, lengths: Tensor | None, late: Tensor | None) -> AtOnce:
        u = inputs_of(x, late, state.u.dtype)
        memory = linear_scan(self.eigenvalues, self.driven(u), state.x)
        last = LRUState(last_of(memory, state.x, lengths), last_of(u, state.u, lengths))
        return self.output(LRUState(memory, u)), last


class LRUDerivatives(Derivatives):
    """Derivatives of an LRU or DiagonalRNN by way of its memory x alone: lambda by the state, else by autograd."""

    terms = (Term("memory", "make lambda smaller", "make lambda larger", "#0072b2"),)
    reads_input = False

    def __init__(self, cell: LRU | DiagonalRNN) -> None:
        self.cell = cell

    def by_state(self, x: Tensor, state: LRUState) -> dict[str, Tensor]:
        step = self.state_map(x, state)
        # products with all unit vectors are the columns of the matrix, the same for all samples
        unit = torch.eye(step.rows, dtype=state.u.dtype, device=state.u.device)
        return {"memory": step.matvec(unit).T.expand(len(state.u), -1, -1)}

    def by_input(self, x: Tensor, state: LRUState) -> Tensor:
        memory_by_input = self.input_maps(x, state)[0].matrices()
        return pad(memory_by_input, (0, 0, 0, state.u.shape[1]))  # zeros for u

    def of_output(self, state: LRUState) -> Tensor:
        return pad(self.output_maps(state)[0].matrices(), (0, state.u.shape[1]))

    def depth_size(self, state: LRUState) -> int:
        return 2 * self.cell.n_state  # of the memory: radii leave out the skip connection

    def state_map(self, x: Tensor, state: LRUState) -> "Rotation":
        return Rotation(self.cell.eigenvalues, state.u.shape[1], len(state.u))

    def input_maps(self, x: Tensor, state: LRUState) -> Sequence[JacobianOperator]:
        def memory_after(x: Tensor) -> Tensor:
            # neither the memory before the step nor u matters to the derivative by x, nor does update read its z
            before = LRUState(x.new_zeros(len(x), self.cell.n_state), x)
            return torch.view_as_real(self.cell.update(x, x, before).x).flatten(1)

        return [JacobianOperator(memory_after, x)]

    def output_maps(self, state: LRUState) -> Sequence[JacobianOperator]:
        memory = torch.view_as_real(state.x).flatten(1)

        def output_of_memory(h: Tensor, u: Tensor) -> Tensor:  # without the skip connection and D, which read u
            return self.cell.output(LRUState(torch.view_as_complex(h.unflatten(1, (-1, 2))), u))

        return [JacobianOperator(output_of_memory, memory, state.u)]


class Rotation(StepMap):
    """The derivative of (x', u') by (x, u): lambda for x' by x, else 0, since every step reads its u anew.

    Vectors have the real and imaginary part of each x side by side, then u. The eigenvalues are those of lambda, their
    conjugates, and 0.

    Args:
        eigenvalues: lambda (n_state,).
        n_inputs: numbers in u.
        points: how many points there are; the matrix is the same at all.
    """

    def __init__(self, eigenvalues: Tensor, n_inputs: int, points: int) -> None:
        self.eigenvalues = eigenvalues
        self.n_inputs = n_inputs
        self.points = points
        self.rows = self.columns = 2 * len(eigenvalues) + n_inputs

    def matvec(self, x: Tensor) -> Tensor:
        real, imaginary = x[:, : self.rows - self.n_inputs].unflatten(-1, (-1, 2)).unbind(-1)
        turned = self.eigenvalues * torch.complex(real, imaginary)
        return pad(torch.view_as_real(turned).flatten(-2), (0, self.n_inputs))  # zeros for u

    def rmatvec(self, y: Tensor) -> Tensor:
        # on (real, imaginary) the transpose of a product with lambda is that with its conjugate
        return Rotation(self.eigenvalues.conj(), self.n_inputs, self.points).matvec(y)

    def terms(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {"memory": (y * self.matvec(x)).sum(1)}

    def of_memory(self) -> "Rotation":
        """The derivative of x' by x alone, whose determinant is the product of all squared moduli of lambda."""
        return Rotation(self.eigenvalues, 0, self.points)

    def take(self, index: Tensor) -> "Rotation":
        return Rotation(self.eigenvalues, self.n_inputs, len(index))

    def eigenpair_hint(self, right: bool, tolerance: float) -> EigenpairHint:
        eigenvalues = self.eigenvalues.detach()
        i = eigenvalues.abs().argmax()
        # multiplication by lambda, as a matrix on (real, imaginary), has the right eigenvector (1, -1j) / sqrt 2 and
        # the left one (1, 1j) / sqrt 2
        vector = torch.zeros(self.rows, dtype=eigenvalues.dtype, device=eigenvalues.device)
        vector[2 * i] = 0.5**0.5
        vector[2 * i + 1] = (-1j if right else 1j) * 0.5**0.5
        sure = torch.ones(self.points, dtype=torch.bool, device=eigenvalues.device)
        return EigenpairHint(eigenvalues[i].expand(self.points), vector.expand(self.points, -1), sure, sure)


class LinearScan(torch.autograd.Function):
    r"""A linear recurrence of numbers, real or complex, over T steps, differentiable any number of times.

    .. math:: x[t] = \lambda \circ x[t-1] + b[t]

    Two steps are one step of the square of λ. So the odd steps are a recurrence of the same kind, half as long,
    :math:`x[2k+1] = \lambda^2 \circ x[2k-1] + (\lambda \circ b[2k] + b[2k+1])`, and the even ones follow from them.
    That takes twice as many products as a loop over steps, all of them in place. Where one step alone keeps a processor
    busy, a CPU runs the loop instead.

    ``linear_scan`` takes λ (N,), b (T, B, N) with T >= 1, and the value before the first step (B, N). It returns the
    values x (T, B, N).

    Source: G. E. Blelloch, "Prefix sums and their applications", CMU-CS-90-190, 1990.
    """

    @staticmethod
    def forward(ctx: Any, decay: Tensor, inputs: Tensor, start: Tensor) -> Tensor:
        x = inputs.clone()
        x[0].addcmul_(decay, start)  # so that the scan starts from 0
        _scan(decay, x)
        ctx.save_for_backward(decay, x, start)
        return x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        decay, states, start = ctx.saved_tensors
        (by_states,) = gradients
        # x[t] = decay x[t-1] + b[t]: the gradient by b is the same recurrence, backwards in time
        by_b = linear_scan(decay.conj(), by_states.flip(0), torch.zeros_like(start)).flip(0)
        by_decay = (states[:-1].conj() * by_b[1:]).sum((0, 1)) + (start.conj() * by_b[0]).sum(0)
        return by_decay, by_b, decay.conj() * by_b[0]


linear_scan: Callable[[Tensor, Tensor, Tensor], Tensor] = LinearScan.apply


def _scan(decay: Tensor, x: Tensor) -> None:
    """Run x[t] = decay x[t-1] + b[t] in place, from a start of 0: `x` (T, B, N) holds b, and becomes x."""
    if len(x) == 1:  # x[0] = b[0]
        return
    if x.device.type == "cpu" and x[0].numel() >= BUSY:
        for now, last in zip(x[1:].unbind(0), x[:-1].unbind(0), strict=True):
            now.addcmul_(decay, last)
        return
    even = x[0::2]  # views: what is written here is written into x
    odd = x[1::2]
    odd.addcmul_(decay, even[: len(odd)])  # b of two steps as one, whose decay is the square
    _scan(decay.square(), odd)
    even[1:].addcmul_(decay, odd[: len(even) - 1])  # each from the odd step before it; x[0] = b[0]
