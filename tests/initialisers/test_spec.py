"""Initialisers as texts, and back."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurolsc.initialisers import (
    IKUN,
    LSC,
    LSUV,
    Chain,
    Default,
    FluctuationDriven,
    FourConditions,
    Glorot,
    Initialiser,
    Orthogonal,
    RateMatching,
    named,
    register,
)
from neurolsc.initialisers.base import INITIALISERS


@pytest.mark.parametrize(
    ("spec", "made"),
    [
        (" Default ( ) ", Default()),
        ("LSUV(orthonormal=False, variance=2)", LSUV(2, orthonormal=False)),
        ("LSC('balanced', rule=\"paper\", kappa=False)", LSC("balanced", "paper", kappa=False)),
        ("FluctuationDriven(-0.5, alpha=1)", FluctuationDriven(-0.5, alpha=1)),
        ("FourConditions((1, 3))", FourConditions((1, 3))),
        ("Glorot+(Orthogonal+RateMatching(0.1))", Glorot() + Orthogonal() + RateMatching(0.1)),
    ],
)
def test_a_text_makes_the_object(spec, made):
    assert named(spec) == made
    assert named(str(made)) == made


def test_an_object_has_a_text_and_a_chain_is_flat():
    assert [str(one) for one in (Default(), RateMatching(0.15), IKUN("v2"))] == [
        "Default",
        "RateMatching(rate=0.15)",
        "IKUN(version='v2')",
    ]
    assert str(Orthogonal(2.0) + LSC(0.7)) == "Orthogonal(gain=2.0) + LSC(target=0.7)"
    a, b, c = Glorot(), Orthogonal(), RateMatching(0.1)
    assert (a + b) + c == a + (b + c) == Chain((a, b, c))
    with pytest.raises(TypeError):
        a + "LSUV"  # type: ignore[operator]


@given(
    st.lists(
        st.one_of(
            st.builds(RateMatching, st.floats(1e-6, 0.999), st.floats(0, 10)),
            st.builds(FluctuationDriven, st.floats(-5, 5), st.floats(1e-6, 9), st.floats(1e-6, 1)),
            st.builds(Orthogonal, st.floats(1e-9, 1e9), st.booleans()),
            st.builds(LSC, st.floats(1e-3, 3) | st.just("balanced"), st.sampled_from(["default", "paper"])),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_the_text_of_any_chain_makes_it_again(parts):
    chain = parts[0]
    for part in parts[1:]:
        chain = chain + part
    assert named(str(chain)) == chain


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("LSVU", "unknown initialiser LSVU; known are .*LSUV.*; did you mean LSUV?"),
        ("LSUV(varience=1)", "LSUV takes variance, orthonormal: .*unexpected keyword argument 'varience'"),
        ("LSUV(1, True, 2)", "LSUV takes variance, orthonormal: .*positional arguments"),
        ("Default(1)", "Default takes nothing"),
        ("RateMatching", "RateMatching takes rate, tolerance: .*missing 1 required"),
        ("RateMatching(2)", r"rate must be .* in \(0, 1\), got 2"),
        ("LSC('round')", "target must be a radius"),
        ("LSC(rule='mine')", "rule must be one of 'default', "),
        ("FourConditions((1, 5))", r"conditions must be some of \(1, 2, 3, 4\)"),
        ("LSUV(**{'variance': 1})", "LSUV takes"),
        *((spec, "is no initialiser") for spec in ("", "LSUV(", "LSUV() - Default()", "LSUV(open('x'))", "LSUV(*[1])")),
        *((spec, "is no initialiser") for spec in ("__import__('os').system('true')", "a.LSUV()", "[LSUV()]")),
        *((spec, "is no initialiser") for spec in ("LSUV(\x1b[2J)", "(" * 600 + "LSUV" + ")" * 300, "L" * 2000)),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_known_names(spec, told):
    with pytest.raises(ValueError, match=told) as error:
        named(spec)
    assert str(error.value).isprintable()


def test_ones_own_is_known_after_it_is_registered():
    @dataclass(frozen=True)
    class Mine(Initialiser):
        size: float = 1.0

        def apply(self, network, inputs, *, seed=0):
            return ()

    with pytest.raises(ValueError, match="unknown initialiser Mine"):
        named("Mine(2)")
    try:
        assert register(Mine) is Mine
        assert named("Mine(2) + LSUV").parts[0] == Mine(2)
        with pytest.raises(ValueError, match="'Mine' is another initialiser already"):
            register(type("Mine", (Mine,), {"__module__": "elsewhere"}))
    finally:
        del INITIALISERS["Mine"]
    with pytest.raises(TypeError, match="register takes a dataclass derived from Initialiser"):
        register(int)  # type: ignore[type-var]
    with pytest.raises(TypeError, match=r"named by a text, .* got LSUV"):
        named(LSUV())  # type: ignore[arg-type]
