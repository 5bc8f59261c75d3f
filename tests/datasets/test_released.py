"""The released code's sl-MNIST, against one-hot and reshape written out in numpy."""

import math
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch.testing import assert_close

from neurolsc.datasets import ReleasedEncoding, SpikeLatencyMNIST, collate
from neurolsc.experiment.config import DataSettings
from neurolsc.training.fingerprint import data_fingerprint

PIXELS = 784


def one_hot_and_reshaped(grey: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """An image (784,) as (100, 784): the released code's steps, one by one, in float32."""
    scaled = (grey / 255).astype(np.float32) * np.float32(50)
    spikes = scaled > np.float32(0.2)
    late = np.log(scaled[spikes] / (scaled[spikes] - np.float32(0.2)))
    times = np.full(PIXELS, np.inf, dtype=np.float32)
    times[spikes] = 50 * late * 10
    bins = np.rint(times)
    one_hot = np.zeros((PIXELS, 100), dtype=np.uint8)
    for pixel in range(PIXELS):
        if bins[pixel] < 100:
            one_hot[pixel, int(bins[pixel])] = 1
    return one_hot.reshape(100, PIXELS)


def encoded(grey: NDArray[np.uint8], repeat: int = 1) -> torch.Tensor:
    code = ReleasedEncoding(repeat)
    return code.frames(code.times(torch.from_numpy(grey).double() / 255))


@pytest.mark.parametrize("pixel", [0, 7, 391, 783])
def test_every_grey_level_at_a_pixel_is_where_one_hot_and_reshape_put_it(pixel: int):
    spiking = []
    for level in range(256):
        grey = np.zeros(PIXELS, dtype=np.uint8)
        grey[pixel] = level
        frames = encoded(grey)
        assert_close(frames.numpy(), one_hot_and_reshaped(grey))
        if frames.any():
            spiking.append(level)
            bins = round(500 * math.log(level / (level - 1.02)))  # 0.2 of 50 is 1.02 of 255
            assert frames.nonzero().tolist() == [list(divmod(100 * pixel + bins, PIXELS))]
    assert spiking == list(range(6, 256))


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.2, 1.0]))
def test_any_image_is_what_one_hot_and_reshape_make_of_it(seed: int, bright: float):
    draw = np.random.default_rng(seed)
    grey = (draw.integers(0, 256, PIXELS) * (draw.random(PIXELS) < bright)).astype(np.uint8)
    frames = encoded(grey)
    assert_close(frames.numpy(), one_hot_and_reshaped(grey))
    assert frames.sum() == (grey >= 6).sum()
    assert frames.any() == (bright > 0)


def test_no_grey_level_is_near_a_half_or_on_the_last_bin():
    levels = torch.arange(256, dtype=torch.float64) / 255
    bins = 10 * ReleasedEncoding().times(levels)
    heard = bins[bins.isfinite()]
    assert len(heard) == 254  # from grey level 2 on
    assert ((heard - heard.floor() - 0.5).abs() > 1e-3).all()
    assert not (heard.round() == 100).any()
    assert heard.round()[-1] == 2


def test_halves_are_rounded_to_even_and_bin_100_is_silent():
    code = ReleasedEncoding(repeat=1)
    frames = code.frames(torch.tensor([0.25, 0.35, 9.94, 9.96, math.inf], dtype=torch.float64))
    bins = {0: 2, 1: 4, 2: 99}
    assert frames.nonzero().tolist() == [list(divmod(100 * p + t, 5)) for p, t in bins.items()]
    assert code.shown(torch.tensor([9.94, 9.96, math.inf])).tolist() == [True, False, False]


def test_pixels_come_in_their_order_eight_to_a_step():
    frames = encoded(np.full(PIXELS, 255, dtype=np.uint8))
    flat = frames.flatten().nonzero().flatten()
    assert flat.tolist() == [100 * pixel + 2 for pixel in range(PIXELS)]
    assert set(frames.sum(1).tolist()) == {7, 8}
    assert frames.sum() == PIXELS


@pytest.mark.parametrize("repeat", [1, 2, 3])
def test_every_step_stands_repeat_times_in_a_row(repeat: int):
    grey = np.arange(PIXELS, dtype=np.uint16).astype(np.uint8)
    once, frames = encoded(grey), encoded(grey, repeat)
    assert len(frames) == ReleasedEncoding(repeat).steps == 100 * repeat
    for k in range(repeat):
        assert_close(frames[k::repeat], once)


def test_a_data_set_gives_the_batches_of_its_images():
    digits = SpikeLatencyMNIST.embedded("test", encoding=ReleasedEncoding())
    x, labels = collate(digits.__getitems__(range(40)))
    assert (x.shape, x.dtype, digits.steps) == ((200, 40, PIXELS), torch.uint8, 200)
    for b in range(40):
        assert_close(x[::2, b].numpy(), one_hot_and_reshaped(digits.images[b].numpy()))
    assert_close(labels, SpikeLatencyMNIST.embedded("test").labels[:40])
    assert_close(digits[3][0], x[:, 3])
    assert digits.left_out == ((digits.images >= 2) & (digits.images < 6)).sum() > 0
    assert repr(digits).endswith("x (200, 784), 10 classes, ReleasedEncoding(repeat=2))")


def test_the_setting_chooses_it_and_no_training_goes_on_with_the_other():
    text, released = DataSettings(shift=1), DataSettings(shift=1, encoding="released")
    assert released.title == "spike-latency MNIST, released encoding (sample in the package)"
    assert "released" not in text.title
    a, b = (settings.load("train") for settings in (text, released))
    assert isinstance(a, SpikeLatencyMNIST) and isinstance(b, SpikeLatencyMNIST)
    assert (b.encoding, b.shift) == (ReleasedEncoding(), 1)
    assert data_fingerprint("x", a) != data_fingerprint("x", b)
    with pytest.raises(ValueError, match="encoding: for data = sl-mnist only, got data = shd"):
        DataSettings("shd", encoding="released").load("train")
    with pytest.raises(ValueError, match="dt, window: for data = shd only, got data = sl-mnist"):
        DataSettings(encoding="released", dt=0.001, window=0.5).load("train")


@pytest.mark.parametrize(("repeat", "error"), [(0, ValueError), (2.0, TypeError)])
def test_what_no_frame_can_follow_is_refused(repeat, error):
    with pytest.raises(error, match="repeat must be"):
        ReleasedEncoding(repeat)
    with pytest.raises(ValueError, match="times must be zero or positive"):
        ReleasedEncoding().frames(torch.tensor([-1.0]))
    with pytest.raises(FrozenInstanceError):
        ReleasedEncoding().repeat = 1  # type: ignore[misc]
