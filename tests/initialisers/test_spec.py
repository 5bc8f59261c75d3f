"""Initialisers as texts, and back."""

from dataclasses import dataclass, fields

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
from neurolsc.initialisers.spec import INITIALISERS


@pytest.mark.parametrize(
    ("spec", "made"),
    [
        ("Default", Default()),
        (" Default ( ) ", Default()),
        ("LSUV(0.5)", LSUV(0.5)),
        ("LSUV(orthonormal=False, variance=2)", LSUV(2, orthonormal=False)),
        ("LSC('balanced', rule=\"paper\")", LSC("balanced", "paper")),
        ("FluctuationDriven(-0.5, alpha=1)", FluctuationDriven(-0.5, alpha=1)),
        ("FourConditions((1, 3))", FourConditions((1, 3))),
        ("Orthogonal() + RateMatching(0.15)", Orthogonal() + RateMatching(0.15)),
        ("Glorot+(Orthogonal+RateMatching(0.1))", Glorot() + Orthogonal() + RateMatching(0.1)),
    ],
)
def test_a_text_makes_the_object(spec, made):
    assert named(spec) == made
    assert named(str(made)) == made


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (Default(), "Default"),
        (LSUV(), "LSUV"),
        (RateMatching(0.15), "RateMatching(rate=0.15)"),
        (IKUN("v2"), "IKUN(version='v2')"),
        (Orthogonal(2.0) + LSC(0.7), "Orthogonal(gain=2.0) + LSC(target=0.7)"),
    ],
)
def test_an_object_says_its_text(made, text):
    assert str(made) == text


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
def test_the_text_of_any_chain_gives_it_back(parts):
    chain = parts[0]
    for part in parts[1:]:
        chain = chain + part
    assert named(str(chain)) == chain


def test_a_chain_is_flat():
    a, b, c = Glorot(), Orthogonal(), RateMatching(0.1)
    assert (a + b) + c == a + (b + c) == Chain((a, b, c))
    with pytest.raises(TypeError):
        a + "LSUV"  # type: ignore[operator]


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("LSVU", "unknown initialiser LSVU; known are .*LSUV.*; did you mean LSUV?"),
        ("Ratematching(0.1)", "did you mean RateMatching?"),
        ("xyz", r"unknown initialiser xyz; known are ActivityPropagation, .*\.$"),
        ("LSUV(varience=1)", "LSUV takes variance, orthonormal, not varience; did you mean variance?"),
        ("LSUV(1, True, 2)", "LSUV takes variance, orthonormal, got 3 values"),
        ("LSUV(1, variance=2)", "LSUV got variance twice"),
        ("Default(1)", "Default takes nothing, got 1 values"),
        ("RateMatching", r"RateMatching needs rate, as in RateMatching\(rate=...\)"),
        ("RateMatching('fast')", "RateMatching: "),
        ("RateMatching(2)", r"rate must be .* in \(0, 1\), got 2"),
        ("LSUV(variance=-1)", "variance must be positive"),
        ("FluctuationDriven(alpha=1.5)", r"alpha must be in \(0, 1\]"),
        ("LSC('round')", "target must be a radius"),
        ("LSC(rule='mine')", "rule must be one of 'default', "),
        ("FourConditions((1, 5))", r"conditions must be some of \(1, 2, 3, 4\)"),
        ("IKUN('v3')", "version must be one of"),
        ("", "is no initialiser"),
        ("LSUV(", "is no initialiser"),
        ("LSUV() - Default()", "is no initialiser"),
        ("LSUV(variance=1e0 if True else 2)", "is no initialiser"),
        ("LSUV(open('x'))", "is no initialiser"),
        ("__import__('os').system('true')", "is no initialiser"),
        ("neurolsc.initialisers.LSUV()", "is no initialiser"),
        ("LSUV(*[1])", "is no initialiser"),
        ("LSUV(**{'variance': 1})", "LSUV takes"),
        ("[LSUV()]", "is no initialiser"),
        ("LSUV; Default", "is no initialiser"),
        ("LSUV(\x1b[2J)", r"is no initialiser"),
        ("(" * 600 + "LSUV" + ")" * 300, "is no initialiser"),
        ("LSUV" + " " * 2000, "at most 1000 characters, got 2004"),
    ],
)
def test_what_cannot_be_read_is_told_with_what_is_known(spec, told):
    with pytest.raises(ValueError, match=told) as error:
        named(spec)
    assert str(error.value).isprintable()


def test_nothing_but_a_text_is_read():
    with pytest.raises(TypeError, match=r"named by a text, .* got LSUV"):
        named(LSUV())  # type: ignore[arg-type]


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
        again = type("Mine", (Mine,), {"__module__": "elsewhere"})
        with pytest.raises(ValueError, match="'Mine' is another initialiser already"):
            register(again)
    finally:
        del INITIALISERS["Mine"]
    with pytest.raises(TypeError, match="register takes a dataclass derived from Initialiser"):
        register(int)  # type: ignore[type-var]


def test_all_are_frozen_dataclasses_whose_fields_are_literals():
    for cls in INITIALISERS.values():
        assert cls.__dataclass_params__.frozen
        for f in fields(cls):
            assert f.name == "rate" or isinstance(f.default, int | float | str | tuple), (cls, f.name)
