import subprocess
import sys

LATE = {"pytorch_optimizer", "scipy", "matplotlib", "pooch", "tonic", "pandas", "snntorch", "norse", "lightning"}


def test_importing_neurolsc_leaves_out_what_only_some_of_its_functions_need():
    code = f"import sys, neurolsc; print(sorted({LATE} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert result.stdout.strip() == "[]"
