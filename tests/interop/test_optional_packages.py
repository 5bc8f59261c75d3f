"""Without the other libraries the package works, and says what to install where one is needed."""

import importlib
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_i2_importing_the_package_loads_none_of_them():
    others = "{'snntorch', 'norse', 'nir', 'nirtorch', 'spikingjelly'}"
    code = f"import sys, neurolsc, neurolsc.interop, neurolsc.export; print({others} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("name", ["snntorch", "norse"])
def test_i2_a_missing_package_is_named_with_what_to_install(name, monkeypatch):
    for module in [module for module in sys.modules if module.split(".")[0] == name]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, f"neurolsc.interop.{name}", raising=False)
    with pytest.raises(ImportError, match=rf"pip install '{name}>=1\.\d'"):
        importlib.import_module(f"neurolsc.interop.{name}")


@pytest.mark.slow
def test_i1_norse_is_used_without_torchvision():
    code = "import sys, neurolsc.interop.norse; print('torchvision' in sys.modules)"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
