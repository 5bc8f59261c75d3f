import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close
from torch.utils.data import DataLoader, Subset

from neurolsc.datasets import (
    SHD,
    Binning,
    ChannelJitter,
    EventFile,
    SpikeDrop,
    TimeStretch,
    collate,
    collate_padded,
    input_batches,
)
from tests.words import draw_words, write_words


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with a tiny SHD: 40 training and 15 test utterances."""
    write_words(tmp_path / "shd_train.h5", draw_words(40))
    write_words(tmp_path / "shd_test.h5", draw_words(15, seed=1))
    return tmp_path


def test_a_batch_is_what_binning_makes_of_the_files_spikes(root: Path):
    data = SHD.from_file(root / "shd_train.h5", dt=0.01, window=0.5, channels=140, repeat=1)
    x, labels = collate(data.__getitems__([5, 2, 39]))
    wanted = Binning(0.01, 0.5, 140, repeat=1).dense(EventFile(data.path).read([5, 2, 39]))
    assert torch.equal(x, wanted.x)
    assert labels.tolist() == [15, 6, 117 % 20]
    assert (data.n_in, data.n_classes, data.steps, len(data)) == (140, 20, 50, 40)
    assert torch.equal(data[2][0], x[:, 1])
    assert data[2][1] == 6
    assert data.left_out == sum(int((t >= 0.5).sum()) for t, _ in draw_words(40)) > 0


def test_the_defaults_are_those_of_the_released_code_and_the_paper(root: Path):
    data = SHD(root, "test")
    assert data.binning == Binning(dt=4e-3, window=1.0, channels=700, binary=False, repeat=2)
    assert data[0][0].shape == (500, 700)
    assert data[0][0].dtype == torch.uint8


@pytest.mark.parametrize("by", ["random", "speaker"])
def test_train_and_validation_are_cut_from_the_training_file_and_test_is_the_test_file(root: Path, by):
    train, validation, test = (SHD(root, split, by=by, share=0.25) for split in ("train", "validation", "test"))
    assert sorted([*train.indices, *validation.indices]) == list(range(40))
    assert len(validation) == 10
    assert test.indices.tolist() == list(range(15))
    assert (by == "speaker") == (not set(train.speakers.tolist()) & set(validation.speakers.tolist()))
    for part in (train, validation):
        file = EventFile(part.path)
        assert_close(part.labels, torch.from_numpy(file.labels[part.indices]))
        assert_close(part.speakers, torch.from_numpy(file.speakers[part.indices]))
        assert np.array_equal(part.events([3]).times, file.read(part.indices[[3]]).times)


def test_the_test_file_is_opened_for_the_test_split_only(root: Path):
    (root / "shd_test.h5").write_bytes(b"")
    for split in ("train", "validation"):
        assert len(SHD(root, split))
    with pytest.raises(ValueError, match=r"shd_test\.h5: not a whole HDF5 file"):
        SHD(root, "test")


@pytest.mark.parametrize("place", ["shd_train.h5", "SHD/shd_train.h5", "train.h5"])
def test_a_file_is_found_where_the_site_tonic_or_a_set_of_ones_own_has_it(tmp_path: Path, place: str):
    write_words(tmp_path / place)
    assert SHD(tmp_path, "train", share=0.25).path == tmp_path / place


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")  # torch, taking from a worker
@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_gives_the_same_seeded_batches_with_and_without_workers(root, tmp_path, workers, sparse, cached):
    cache = tmp_path / "cache" if cached else None
    data = SHD.from_file(root / "shd_train.h5", dt=0.02, channels=70, sparse=sparse, cache=cache)
    everything, labels = collate(data.__getitems__(range(40)))
    order = torch.Generator().manual_seed(3)
    loader = DataLoader(data, 16, shuffle=True, num_workers=workers, collate_fn=collate, generator=order)
    got = list(loader)
    assert [x.is_sparse for x, _ in got] == [sparse] * 3
    again = torch.Generator().manual_seed(3)
    torch.empty((), dtype=torch.int64).random_(generator=again)  # the loader draws its workers' seed first
    drawn = torch.randperm(40, generator=again)
    assert torch.equal(torch.cat([y for _, y in got]), labels[drawn])
    assert torch.equal(torch.cat([x.to_dense() for x, _ in got], dim=1), everything.to_dense()[:, drawn])


@pytest.mark.parametrize("cached", [False, True])
def test_a_spawned_worker_opens_the_data_for_itself(root: Path, tmp_path: Path, cached: bool):
    data = SHD.from_file(root / "shd_train.h5", channels=70, cache=tmp_path / "cache" if cached else None)
    wanted = collate(data.__getitems__([4, 5]))
    sent = pickle.dumps(data)
    assert len(sent) < 20_000 + 2**19  # the table of bins, and no spikes
    for got, same in zip(collate(pickle.loads(sent).__getitems__([4, 5])), wanted, strict=True):
        assert torch.equal(got, same)


def test_a_subset_collates_to_the_same_batch(root: Path):
    data = SHD.from_file(root / "shd_train.h5", channels=70)
    ((x, labels),) = DataLoader(Subset(data, [3, 1, 2]), batch_size=3, collate_fn=collate)
    assert_close(labels, data.labels[[3, 1, 2]])
    assert_close(x, torch.stack([data[i][0] for i in (3, 1, 2)], dim=1))


def test_whole_utterances_come_with_a_mask_from_either_collate(root: Path):
    data = SHD.from_file(root / "shd_train.h5", dt=0.01, window=None, channels=70)
    items = [data[i] for i in (7, 8, 9)]
    assert len({len(x) for x, _ in items}) > 1
    batch = data.__getitems__([7, 8, 9])
    for got in (collate(batch), collate_padded(batch), collate_padded(items)):
        x, labels, mask = got
        assert mask.sum(0).tolist() == [len(x) for x, _ in items]
        assert torch.equal(labels, data.labels[[7, 8, 9]])
        assert all(torch.equal(x[: len(one), b], one) for b, (one, _) in enumerate(items))
        assert not x[~mask].any()
    for (one, label), (other, same) in zip(batch, items, strict=True):
        assert torch.equal(one, other)
        assert label == same
    assert all(x.ndim == 3 for x in input_batches(data, 16))
    with pytest.raises(ValueError, match="collate_padded takes unequal lengths"):
        collate(items)


# augmentation


def test_augmentation_follows_torchs_seed_and_leaves_the_file_alone(root: Path):
    changes = (ChannelJitter(20.0), TimeStretch(0.8, 1.2), SpikeDrop(0.1))
    plain, changed = (SHD.from_file(root / "shd_train.h5", augment=augment) for augment in ((), changes))
    draws = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        draws.append(collate(changed.__getitems__(range(40)))[0])
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert 0.7 * plain.__getitems__(range(40)).x.sum() < draws[0].sum() < plain.__getitems__(range(40)).x.sum()
    before = torch.random.get_rng_state()
    first = collate(plain.__getitems__(range(40)))[0]
    assert torch.equal(torch.random.get_rng_state(), before)  # without augmentation nothing is drawn
    assert torch.equal(collate(plain.__getitems__(range(40)))[0], first)


# refusals


@pytest.mark.parametrize(
    ("arguments", "kind", "told"),
    [
        ({"split": "valid"}, ValueError, "split must be one of 'train', 'validation', 'test', got 'valid'"),
        ({"split": "train", "by": "voice"}, ValueError, "by must be one of"),
        ({"split": "train", "dt": 1e-4}, ValueError, "dt must not be below the resolution"),
        ({"split": "train", "window": 0.9999}, ValueError, "whole number of bins"),
        ({"split": "train", "bins": 3}, TypeError, "bins"),
    ],
)
def test_settings_that_do_not_fit_are_refused(root: Path, arguments, kind, told: str):
    with pytest.raises(kind, match=told):
        SHD(root, **arguments)


@pytest.mark.parametrize("index", [40, -41])
def test_an_item_that_is_not_there_is_refused(root: Path, index: int):
    with pytest.raises(IndexError, match=r"items run from 0 to 39"):
        SHD.from_file(root / "shd_train.h5")[index]


def test_a_loop_over_the_items_ends(root: Path):
    assert sum(1 for _ in SHD.from_file(root / "shd_test.h5", channels=7)) == 15  # type: ignore[misc]


def test_the_repr_tells_file_split_size_and_shape(root: Path):
    assert repr(SHD(root, "train", share=0.25, channels=70)) == (
        "SHD(shd_train.h5, split='train', 30 items, x (500, 70), 20 classes, "
        "Binning(dt=0.004, window=1.0, channels=70, binary=False, repeat=2))"
    )


# the synthetic spoken digits


def test_the_real_file_agrees_with_its_description(digits_root: Path):
    train, test = (SHD.from_file(digits_root / f"{part}.h5", dt=0.01, channels=70) for part in ("train", "test"))
    assert (len(train), len(test)) == (1800, 400)
    assert train.labels.bincount().tolist() == [90] * 20
    assert train.speakers.unique().tolist() == list(range(10))
    assert test.speakers.bincount().tolist() == [20] * 10 + [100] * 2
    assert train.names[15] == "fuenf"
    counts = torch.from_numpy(train.events(range(1800)).counts)
    assert (int(counts.min()), int(counts.max()), round(counts.double().mean().item())) == (1523, 12546, 6842)


def test_real_frames_equal_those_of_tonic_bin_for_bin(digits_root: Path, tmp_path: Path):
    import tonic

    (tmp_path / "SHD").mkdir()
    (tmp_path / "SHD" / "shd_test.h5").symlink_to(digits_root / "test.h5")
    (tmp_path / "SHD" / "shd_test.h5.zip").touch()
    sensor = tonic.datasets.SHD.sensor_size
    to_frame = tonic.transforms.ToFrame(sensor_size=sensor, time_window=4000, start_time=0, end_time=1e6)
    theirs = tonic.datasets.SHD(str(tmp_path), train=False, transform=to_frame)
    ours = SHD(tmp_path, "test", repeat=1)
    loader = DataLoader(Subset(theirs, range(32)), 16, collate_fn=tonic.collation.PadTensors(batch_first=False))
    for (frames, labels), (x, same) in zip(loader, DataLoader(ours, 16, collate_fn=collate), strict=False):
        assert torch.equal(x, frames[:, :, 0].to(torch.uint8))
        assert torch.equal(labels, same)
        assert x.sum() > 50_000
