import pytest
import torch
from torch import nn

from neurolsc import LIF, ALIFPlus, Network, load, register, save
from neurolsc.neurons.cell import CELLS, SURROGATES
from neurolsc.surrogate import FastSigmoid


@pytest.fixture
def tables():
    """The tables are afterwards as they were."""
    before = [(table, dict(table)) for table in (CELLS, SURROGATES)]
    yield
    for table, classes in before:
        table.clear()
        table.update(classes)


def test_a_registered_cell_and_surrogate_are_saved_and_loaded(tables, tmp_path):
    class Wide(FastSigmoid):
        pass

    class Quick(ALIFPlus):
        pass

    network = Network([Quick(3, 4, spike=Wide(0.3))], 2)
    with pytest.raises(ValueError, match=r"Quick is not a known cell.*neurolsc\.register\(Quick\)"):
        save(network, tmp_path / "n")
    assert register(Quick) is Quick
    with pytest.raises(ValueError, match="Wide is not a known surrogate"):
        save(network, tmp_path / "n")
    register(Wide, name="wide")
    save(network, tmp_path / "n")
    again = load(tmp_path / "n")
    assert type(again.cells[0]) is Quick
    assert type(again.cells[0].spike) is Wide
    x = (torch.rand(20, 3, 3) < 0.5).float()
    assert torch.equal(network(x), again(x))
    del CELLS["Quick"]
    with pytest.raises(ValueError, match=r"unknown cell 'Quick'.*import its module first"):
        load(tmp_path / "n")


def test_two_classes_cannot_share_a_name(tables):
    other = type("LIF", (ALIFPlus,), {"__module__": "elsewhere"})
    with pytest.raises(ValueError, match=r"'LIF' is another cell already, neurolsc\.neurons\.spiking\.LIF"):
        register(other)
    first = register(type("Mine", (LIF,), {"__module__": "notebook"}))
    again = register(type("Mine", (LIF,), {"__module__": "notebook"}))
    assert first is not again
    assert CELLS["Mine"] is again


def test_only_cells_and_surrogates_are_registered():
    with pytest.raises(TypeError, match=r"neurolsc\.Cell or neurolsc\.surrogate\.Surrogate, got"):
        register(nn.Linear)
    with pytest.raises(TypeError, match="got LIF"):
        register(LIF(2, 2))


def test_a_class_is_found_by_its_place(tables, tmp_path, monkeypatch):
    (tmp_path / "my_cells.py").write_text("import neurolsc\nclass Mine(neurolsc.LIF):\n    pass\nnumber = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert CELLS.find("LIF") is LIF
    mine = CELLS.find("my_cells:Mine")
    assert mine.__name__ == "Mine"
    assert CELLS["Mine"] is mine
    for text, what in (
        ("Nothing", "unknown cell 'Nothing'"),
        ("my_cells:Nothing", "there is no cell 'my_cells:Nothing'"),
        ("no_such_module_here:Mine", "there is no cell"),
        (":Mine", "there is no cell"),
        ("my_cells:number", "must be a class of Cell, got 3"),
    ):
        with pytest.raises(ValueError, match=what):
            CELLS.find(text)
