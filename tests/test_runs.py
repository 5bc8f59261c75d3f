"""One run in a folder: locked, claimed by its settings, cleaned up, named when finished."""

from pathlib import Path

import pytest

from neurolsc.experiment.run import Stopped, run_folder
from tests.patterns import names


def unfinished(folder: Path, settings: str, *files: str) -> Path:
    """An unfinished run with these settings and empty files."""
    partial = folder / "run.partial"
    partial.mkdir()
    (partial / "settings.toml").write_text(settings)
    for name in files:
        (partial / name).touch()
    return partial


def test_a_second_run_in_the_folder_is_refused_and_changes_nothing(tmp_path: Path):
    with run_folder(tmp_path / "run", {"lr": 0.01}) as folder:
        (folder / "mine").touch()
        for settings in ({"lr": 0.3}, {"lr": 0.01}):  # an equal run is refused, too
            with pytest.raises(BlockingIOError, match="run is in use"):
                run_folder(tmp_path / "run", settings).__enter__()
        assert (folder / "settings.toml").read_text() == "lr = 0.01\n"
        with run_folder(tmp_path / "other", {}):
            pass
    assert names(tmp_path) == {"run", "other"}
    assert names(tmp_path / "run") == {"mine", "settings.toml"}
    with pytest.raises(FileExistsError, match="run exists already"):
        run_folder(tmp_path / "run", {"lr": 0.3}).__enter__()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("width = 8\nlr = 0.1\n", r"run\.partial holds .*\(width was 8, is now 9; lr was 0\.1, is now None\)"),
        ("width = ", r"run\.partial/settings\.toml: not a TOML file"),
    ],
)
def test_a_training_with_other_settings_is_refused(settings: str, words: str, tmp_path: Path):
    unfinished(tmp_path, settings, "train.checkpoint")
    with pytest.raises(ValueError, match=words):
        run_folder(tmp_path / "run", {"width": 9}).__enter__()
    assert names(tmp_path / "run.partial") == {"settings.toml", "train.checkpoint"}


@pytest.mark.parametrize(
    ("error", "files"), [(KeyError, ()), (KeyboardInterrupt, ()), (ValueError, ("start.checkpoint",))]
)
def test_a_run_that_fails_early_leaves_nothing(error: type[BaseException], files: tuple[str, ...], tmp_path: Path):
    with pytest.raises(error) as caught, run_folder(tmp_path / "run", {}) as folder:
        (folder / "below").mkdir()
        for name in (*files, "below/file"):
            (folder / name).touch()
        raise error
    assert not isinstance(caught.value, Stopped)
    assert not names(tmp_path)


@pytest.mark.parametrize("saved", ["start.checkpoint", "train.checkpoint", "network.safetensors"])
def test_ctrl_c_keeps_a_checkpoint_and_names_its_folder(saved: str, tmp_path: Path):
    with pytest.raises(Stopped, match=r"run\.partial"), run_folder(tmp_path / "run", {}) as folder:
        (folder / saved).touch()
        raise KeyboardInterrupt
    assert names(tmp_path) == {"run.partial"}
    with run_folder(tmp_path / "run", {}) as folder:
        assert (folder / saved).exists()
