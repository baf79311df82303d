"""Completes pyautogui's keyboard table, so that every character that can be typed arrives (runtime `exact-input-2`).

pyautogui looks each key up in `keyboardMapping`, drops what is not there, and adds Shift by a table of its own. Two
things go wrong: a keycode whose symbol sits on another level than that Shift decides (`<` types `>`), and characters
that no key has (é, 中). Here a missing or wrong entry is replaced at its first use: by a key of the current layout
that gives the character on the wanted level, or else by an unused keycode that is given the character on both.

Applications read the keyboard table when a key event reaches them, so a keycode gets another character only after the
focused window has answered a `_NET_WM_PING`: windows read their events in order, so it has read every key before. When
the action ends, the keycodes are given back in the same way. A property of the root window remembers those that an
action could not give back because it was killed, or because its window did not answer in time.
"""

# mypy: ignore-errors
# ruff: noqa: UP031

import atexit
import functools
import select
import time

import pyautogui
from Xlib import X, Xatom
from Xlib.display import Display
from Xlib.protocol.event import ClientMessage

ANSWER_S = 20.0
"""Longest wait for the focused window: far above what a loaded machine needs, below the limit of an action."""


class Ping:
    """Asks the focused window, or the window manager, whether it has read all events so far; its own connection."""

    def __init__(self):
        self.display = Display()
        self.root = self.display.screen().root
        self.root.change_attributes(event_mask=X.SubstructureNotifyMask)
        self.protocols = self.display.intern_atom("WM_PROTOCOLS")
        self.ping = self.display.intern_atom("_NET_WM_PING")
        self.extents = self.display.intern_atom("_NET_FRAME_EXTENTS")
        self.request = self.display.intern_atom("_NET_REQUEST_FRAME_EXTENTS")
        self.count = int(time.time() * 1000) & 0x3FFFFFFF

    def window(self):
        """The focused window or the nearest one around it that answers pings; None without one."""
        window = self.display.get_input_focus().focus
        while not isinstance(window, int):
            protocols = window.get_full_property(self.protocols, Xatom.ATOM)
            if protocols is not None and self.ping in protocols.value:
                return window
            if window.id == self.root.id:
                return None
            window = window.query_tree().parent
        return None

    def answered(self):
        """True when the window has read everything that was typed."""
        window = self.window()
        if window is None:
            return False
        self.count += 1
        data = [self.ping, self.count, window.id, 0, 0]
        window.send_event(ClientMessage(window=window, client_type=self.protocols, data=(32, data)))
        return self.arrives(
            lambda event: (
                event.type == X.ClientMessage
                and event.window.id == self.root.id
                and event.client_type == self.protocols
                and list(event.data[1][:3]) == data[:3]
            )
        )

    def manager_answered(self):
        """True when the window manager has read everything: it binds its own keys anew for each change of the table."""
        window = self.root.create_window(0, 0, 1, 1, 0, X.CopyFromParent, event_mask=X.PropertyChangeMask)
        message = ClientMessage(window=window, client_type=self.request, data=(32, [0] * 5))
        self.root.send_event(message, event_mask=X.SubstructureRedirectMask | X.SubstructureNotifyMask)
        answered = self.arrives(lambda event: event.type == X.PropertyNotify and event.atom == self.extents)
        window.destroy()
        return answered

    def arrives(self, wanted):
        """Wait for an event, at most `ANSWER_S` seconds."""
        self.display.flush()
        ends_at = time.monotonic() + ANSWER_S
        while (left := ends_at - time.monotonic()) > 0:
            while self.display.pending_events():
                if wanted(self.display.next_event()):
                    return True
            select.select([self.display.fileno()], [], [], min(left, 0.5))
        return False


class ExactKeys(dict):
    """pyautogui's table with every printable character in it."""

    NAMED = {"\n": 0xFF0D, "\r": 0xFF0D, "\t": 0xFF09, "\b": 0xFF08, "\x1b": 0xFF1B}

    def __init__(self, table, display):
        super().__init__(table)
        self.display = display
        self.ping = None
        self.coming = ""
        self.root = display.screen().root
        self.note = display.intern_atom("_ROLLBOOK_KEYCODES")
        noted = self.root.get_full_property(self.note, Xatom.CARDINAL)
        self.ours = list(noted.value) if noted else []
        self.read_table()

    def read_table(self):
        """Read the current keyboard: the keycode of each symbol and level, and the unused keycodes."""
        first = self.display.display.info.min_keycode
        count = self.display.display.info.max_keycode - first + 1
        rows = self.display.get_keyboard_mapping(first, count)
        self.exact, self.codes = {}, {}
        for level in (0, 1):
            for code, row in enumerate(rows, first):
                if len(row) > level and row[level]:
                    self.codes.setdefault((row[level], level), code)
        used = {code for row in self.display.get_modifier_mapping() for code in row}
        self.free = [code for code, row in enumerate(rows, first) if not any(row) and code not in used]

    def __contains__(self, key):
        return self[key] is not None

    def __getitem__(self, key):
        if not isinstance(key, str) or len(key) != 1:
            return self.get(key)
        if key not in self.exact:
            self.exact[key] = self.find(key)
        return self.exact[key]

    def find(self, character):
        """Keycode of a character; None for control characters, which no key types."""
        symbol = self.symbol(character)
        if symbol is None:
            return None
        code = self.code(character, symbol)
        return self.assign(character, symbol) if code is None else code

    def symbol(self, character):
        """Key symbol of a character; None for control characters."""
        point = ord(character)
        if character in self.NAMED:
            return self.NAMED[character]
        if point < 0x20 or 0x7F <= point < 0xA0 or 0xD800 <= point < 0xE000:
            return None
        return point if point < 0x100 else 0x01000000 | point

    def code(self, character, symbol):
        """Keycode that gives the symbol with or without Shift, as pyautogui will press it; None without one."""
        return self.codes.get((symbol, 1 if pyautogui.isShiftCharacter(character) else 0))

    def assign(self, character, symbol):
        """Give unused keycodes this symbol and those that follow in the text, each on both levels."""
        if not self.free and not self.give_back():
            raise RuntimeError(
                "exact-input-2: no unused keycode is left for %r, and the focused window does not say that it has read "
                "what was typed before" % chr(symbol & 0xFFFFFF)
            )
        symbols = [symbol]
        self.coming = self.coming[max(self.coming.find(character), 0) :]
        for other in self.coming:
            following = self.symbol(other)
            if len(symbols) < len(self.free) and following not in (None, *symbols) and not self.code(other, following):
                symbols.append(following)
        taken, self.free = self.free[: len(symbols)], self.free[len(symbols) :]
        self.ours += taken
        self.root.change_property(self.note, Xatom.CARDINAL, 32, self.ours)
        self.change(dict(zip(taken, symbols, strict=True)))
        for code, given in zip(taken, symbols, strict=True):
            self.codes[(given, 0)] = self.codes[(given, 1)] = code
        return taken[0]

    def change(self, symbols):
        """Change keycodes, one request for each run of them: every client reads the table for each."""
        codes = sorted(symbols)
        while codes:
            run = [code for index, code in enumerate(codes) if code - codes[0] == index]
            self.display.change_keyboard_mapping(run[0], [[symbols[code]] * 2 for code in run])
            codes = codes[len(run) :]
        self.display.sync()

    def give_back(self):
        """Take the characters away from our keycodes once they have been read. Returns whether keycodes are free."""
        if self.ours:
            self.display.sync()  # the keys first, over their own connection
            self.ping = self.ping or Ping()
            if not self.ping.answered():
                return False
            self.change(dict.fromkeys(self.ours, 0))
            self.ours = []
            self.root.delete_property(self.note)
            self.display.sync()
            self.read_table()
        return bool(self.free)

    def end(self):
        """End the action: give the keycodes back, and let the window manager read that."""
        if self.ours or self.ping:
            self.give_back()
            self.ping.manager_answered()


def announced(keys, typewrite):
    """pyautogui's `typewrite`, whose whole text is known to the table before its first key."""

    @functools.wraps(typewrite)
    def typed(message, *arguments, **options):
        keys.coming = message if isinstance(message, str) else ""
        try:
            return typewrite(message, *arguments, **options)
        finally:
            keys.coming = ""

    return typed


if not isinstance(pyautogui.platformModule.keyboardMapping, ExactKeys):
    pyautogui.platformModule.keyboardMapping = ExactKeys(
        pyautogui.platformModule.keyboardMapping, pyautogui.platformModule._display
    )
    pyautogui.typewrite = pyautogui.write = announced(pyautogui.platformModule.keyboardMapping, pyautogui.typewrite)
    atexit.register(pyautogui.platformModule.keyboardMapping.end)
