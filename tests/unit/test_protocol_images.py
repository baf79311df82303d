"""Images as a model gets them."""

import hashlib
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, PngImagePlugin

from rollbook.errors import InvalidInput
from rollbook.policies.imaging import fitted, png_size, scale_png
from rollbook.policies.protocols.coordinates import qwen_size


def png(size: tuple[int, int], mode: str = "RGB", **chunks: str) -> bytes:
    image = Image.linear_gradient("L").resize(size).convert(mode)
    told = PngImagePlugin.PngInfo()
    for key, value in chunks.items():
        told.add_text(key, value)
    out = io.BytesIO()
    image.save(out, format="PNG", pnginfo=told, dpi=(72, 72))
    return out.getvalue()


def test_without_a_change_the_bytes_are_the_same() -> None:
    image = png((320, 180), Software="x")
    assert scale_png(image) == (image, (320, 180))
    assert scale_png(image, target=(320, 180)) == (image, (320, 180))
    assert scale_png(image, max_pixels=320 * 180) == (image, (320, 180))


def test_scaled_images_have_the_size_that_is_recorded() -> None:
    for kwargs, wanted in (({"target": (64, 48)}, (64, 48)), ({"max_pixels": 320 * 180 // 4}, (160, 90))):
        scaled, size = scale_png(png((320, 180)), **kwargs)
        assert size == wanted == png_size(scaled)
        with Image.open(io.BytesIO(scaled)) as image:
            assert (image.size, image.mode) == (wanted, "RGB")
            grey = image.convert("L").tobytes()
        assert max(grey) - min(grey) > 200  # the picture is still there


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "P", "LA", "1"])
def test_equal_pictures_give_equal_bytes(mode: str) -> None:
    """Metadata of the file besides its pixels."""
    first, _ = scale_png(png((320, 180), mode, Software="a"), target=(100, 60))
    second, _ = scale_png(png((320, 180), mode, Software="b", When="now"), target=(100, 60))
    assert hashlib.sha256(first).digest() == hashlib.sha256(second).digest()
    assert b"pHYs" not in first
    assert b"tEXt" not in first


@pytest.mark.parametrize(
    "broken", [b"", b"GIF89a", b"\x89PNG\r\n\x1a\n", png((8, 8))[:40], png((8, 8))[:16] + bytes(8) + png((8, 8))[24:]]
)
def test_what_is_no_image_is_refused(broken: bytes) -> None:
    with pytest.raises(InvalidInput, match="screenshot"):
        scale_png(broken, target=(4, 4))


def test_wrong_limits_are_refused() -> None:
    for kwargs in ({"target": (0, 4)}, {"max_pixels": 0}, {"target": (4, 4), "max_pixels": 5}):
        with pytest.raises(InvalidInput):
            scale_png(png((8, 8)), **kwargs)


@given(st.tuples(st.integers(1, 8000), st.integers(1, 8000)), st.integers(1, 10_000_000))
def test_a_fitted_size_keeps_the_limit_and_about_the_shape(size: tuple[int, int], most: int) -> None:
    width, height = fitted(size, most)
    assert 1 <= width <= size[0]
    assert 1 <= height <= size[1]
    assert width * height <= most
    if size[0] * size[1] <= most:
        assert (width, height) == size
    elif min(width, height) > 10:
        assert abs(width / height - size[0] / size[1]) / (size[0] / size[1]) < 0.15


@pytest.mark.parametrize(
    ("size", "resized"),
    [((1920, 1080), (1932, 1092)), ((1280, 720), (1288, 728)), ((10, 10), (56, 56)), ((8000, 8000), (3584, 3584))],
)
def test_qwen_sizes(size: tuple[int, int], resized: tuple[int, int]) -> None:
    assert qwen_size(size) == resized


@given(st.tuples(st.integers(28, 8000), st.integers(28, 8000)))
def test_qwen_sizes_are_multiples_within_the_limits(size: tuple[int, int]) -> None:
    wide, high = qwen_size(size)
    assert wide % 28 == high % 28 == 0
    assert wide * high >= 3136
    assert wide * high <= 12_845_056 or min(wide, high) == 28
