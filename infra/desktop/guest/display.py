"""The X display: picture, pointer, sizes. One connection, guarded by a lock (Xlib is not thread-safe)."""

import io
import os
import threading
from collections.abc import Callable
from typing import TypeVar

from PIL import Image, ImageGrab
from Xlib import X, display, error
from Xlib.ext import xfixes  # noqa: F401  (registers the extension's requests on Display)

T = TypeVar("T")


class Screen:
    """The display named by $DISPLAY; reconnects once when the connection has gone."""

    def __init__(self) -> None:
        self._name = os.environ.get("DISPLAY", ":0")
        self._lock = threading.Lock()
        self._display: display.Display | None = None

    def png(self) -> bytes:
        """The whole screen with the pointer drawn where its hot spot is."""
        with self._lock:
            image = ImageGrab.grab(xdisplay=self._name).convert("RGB")
        self._draw_pointer(image)
        buffer = io.BytesIO()
        image.save(buffer, "PNG", compress_level=1)
        return buffer.getvalue()

    def size(self) -> tuple[int, int]:
        """Width and height in pixels."""

        def ask(connection: display.Display) -> tuple[int, int]:
            screen = connection.screen()
            return screen.width_in_pixels, screen.height_in_pixels

        return self._with(ask)

    def pointer(self) -> tuple[int, int]:
        """Return the position of the pointer's hot spot."""

        def ask(connection: display.Display) -> tuple[int, int]:
            reply = connection.screen().root.query_pointer()
            return reply.root_x, reply.root_y

        return self._with(ask)

    def window_size(self, app_class: str) -> tuple[int, int] | None:
        """Size of the first managed window whose WM_CLASS holds exactly `app_class`; None without one."""

        def ask(connection: display.Display) -> tuple[int, int] | None:
            root = connection.screen().root
            clients = root.get_full_property(connection.intern_atom("_NET_CLIENT_LIST"), X.AnyPropertyType)
            for window_id in clients.value if clients else []:
                window = connection.create_resource_object("window", window_id)
                try:
                    if app_class in (window.get_wm_class() or ()):
                        geometry = window.get_geometry()
                        return geometry.width, geometry.height
                except error.XError:
                    continue  # closed between the list and the question
            return None

        return self._with(ask)

    def _draw_pointer(self, image: Image.Image) -> None:
        def ask(connection: display.Display) -> object:
            return connection.xfixes_get_cursor_image(connection.screen().root)

        cursor = self._with(ask)
        pixels = bytearray()
        for argb in cursor.cursor_image:
            pixels += bytes(((argb >> 16) & 255, (argb >> 8) & 255, argb & 255, (argb >> 24) & 255))
        picture = Image.frombytes("RGBA", (cursor.width, cursor.height), bytes(pixels))
        image.paste(picture, (cursor.x - cursor.xhot, cursor.y - cursor.yhot), picture)

    def _with(self, ask: Callable[[display.Display], T]) -> T:
        with self._lock:
            try:
                return ask(self._connected())
            except (error.ConnectionClosedError, OSError):
                self._display = None
                return ask(self._connected())

    def _connected(self) -> display.Display:
        if self._display is None:
            self._display = display.Display(self._name)
            self._display.xfixes_query_version()
        return self._display


screen = Screen()
