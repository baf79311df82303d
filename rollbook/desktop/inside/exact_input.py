"""Completes pyautogui's keyboard table, so that every character that can be typed arrives (runtime `exact-input`).

pyautogui looks each key up in `keyboardMapping`, drops what is not there, and adds Shift by a table of its own. Two
things go wrong: a keycode whose symbol sits on another level than that Shift decides (`<` types `>`), and characters
that no key has (é, 中). Here a missing or wrong entry is replaced at its first use: by a key of the current layout
that gives the character on the wanted level, or else by an unused keycode that is given the character on both. A
property of the root window remembers which keycodes were unused, for the actions to come.
"""

# mypy: ignore-errors
# ruff: noqa: UP031

import time

import pyautogui
from Xlib import Xatom


class ExactKeys(dict):
    """pyautogui's table with every printable character in it."""

    NAMED = {"\n": 0xFF0D, "\r": 0xFF0D, "\t": 0xFF09, "\b": 0xFF08, "\x1b": 0xFF1B}

    def __init__(self, table, display):
        super().__init__(table)
        self.display = display
        self.exact = {}
        first = display.display.info.min_keycode
        count = display.display.info.max_keycode - first + 1
        rows = display.get_keyboard_mapping(first, count)
        self.codes = {}
        for level in (0, 1):
            for code, row in enumerate(rows, first):
                if len(row) > level and row[level]:
                    self.codes.setdefault((row[level], level), code)
        used = {code for row in display.get_modifier_mapping() for code in row}
        self.root = display.screen().root
        self.note = display.intern_atom("_ROLLBOOK_KEYCODES")
        noted = self.root.get_full_property(self.note, Xatom.CARDINAL)
        self.ours = list(noted.value) if noted else []
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
        symbol = self.NAMED.get(character)
        if symbol is None:
            point = ord(character)
            if point < 0x20 or 0x7F <= point < 0xA0 or 0xD800 <= point < 0xE000:
                return None
            symbol = point if point < 0x100 else 0x01000000 | point
        code = self.codes.get((symbol, 1 if pyautogui.isShiftCharacter(character) else 0))
        return self.assign(symbol) if code is None else code

    def assign(self, symbol):
        """Give an unused keycode this symbol. It keeps it permanently: applications read the table when the key event
        reaches them, so a keycode may only change once everything typed before has been read."""
        if not self.free:
            time.sleep(0.5)
            self.free, self.ours = self.ours, []
            self.exact = {key: code for key, code in self.exact.items() if code not in self.free}
            self.codes = {key: code for key, code in self.codes.items() if code not in self.free}
        if not self.free:
            raise RuntimeError("exact-input: this keyboard has no unused keycode for %r" % chr(symbol & 0xFFFFFF))
        code = self.free.pop(0)
        self.ours.append(code)
        self.root.change_property(self.note, Xatom.CARDINAL, 32, self.ours)
        self.display.change_keyboard_mapping(code, [[symbol, symbol]])
        self.display.sync()
        self.codes[(symbol, 0)] = self.codes[(symbol, 1)] = code
        return code


if not isinstance(pyautogui.platformModule.keyboardMapping, ExactKeys):
    pyautogui.platformModule.keyboardMapping = ExactKeys(
        pyautogui.platformModule.keyboardMapping, pyautogui.platformModule._display
    )
