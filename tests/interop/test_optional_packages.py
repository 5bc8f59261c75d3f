"""Without the other libraries the package works, and says what to install where one is needed."""

import importlib
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_i1_i2_no_other_library_is_loaded_than_is_needed():
    loaded = "print({'snntorch', 'norse', 'torchvision', 'spikingjelly', 'lightning'} & set(sys.modules))"
    code = f"""import sys, torch, neurolsc, neurolsc.interop, neurolsc.export
neurolsc.wrap(torch.nn.LSTM(3, 4))
{loaded}
import neurolsc.interop.norse
{loaded}"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["set()", "{'norse'}"]  # and not torchvision


@pytest.mark.parametrize("name", ["snntorch", "norse", "lightning", "neurobench"])
def test_i2_a_missing_package_is_named_with_what_to_install(name, monkeypatch):
    for module in [module for module in sys.modules if module.split(".")[0] == name]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, f"neurolsc.interop.{name}", raising=False)
    with pytest.raises(ImportError, match=rf"pip install '{name}>=\d\.\d'"):
        importlib.import_module(f"neurolsc.interop.{name}")
