"""Paints the desktop's background once, while the image is built: a soft gradient that compresses well."""

import sys

from PIL import Image

WIDTH, HEIGHT = 1920, 1080
TOP, BOTTOM = (38, 70, 98), (118, 152, 160)


def main(path: str) -> None:
    column = Image.new("RGB", (1, HEIGHT))
    for y in range(HEIGHT):
        share = y / (HEIGHT - 1)
        column.putpixel((0, y), tuple(round(a + (b - a) * share) for a, b in zip(TOP, BOTTOM, strict=True)))
    column.resize((WIDTH, HEIGHT)).save(path)


if __name__ == "__main__":
    main(sys.argv[1])
