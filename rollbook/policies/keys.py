"""Key names: what models write, and what pyautogui presses on a Linux desktop.

pyautogui ignores a name that it does not know without a word, so an unknown name must be found before it runs.
"""

_NAMES = """
    alt altleft altright apps backspace capslock ctrl ctrlleft ctrlright decimal delete divide add subtract multiply
    down end enter esc help home insert left numlock pagedown pageup pause printscreen right
    scrolllock shift shiftleft shiftright space tab up win winleft winright
"""

_ALIASES: dict[str, str] = {
    **{name: name for name in (*_NAMES.split(), *(f"f{n}" for n in range(1, 13)), *(f"num{n}" for n in range(10)))},
    **{f"{pad}{n}": f"num{n}" for pad in ("kp", "numpad", "keypad") for n in range(10)},
    **{name: name.removeprefix("arrow") for name in ("arrowleft", "arrowright", "arrowup", "arrowdown")},
    **{f"{name}arrow": name for name in ("left", "right", "up", "down")},
    **dict.fromkeys(("control", "ctl"), "ctrl"),
    **dict.fromkeys(("controll", "controlleft", "ctrll"), "ctrlleft"),
    **dict.fromkeys(("controlr", "controlright", "ctrlr"), "ctrlright"),
    **dict.fromkeys(("option", "opt"), "alt"),
    **dict.fromkeys(("altl", "optionleft", "leftalt"), "altleft"),
    **dict.fromkeys(("altr", "optionright", "altgr", "isolevel3shift", "rightalt"), "altright"),
    **dict.fromkeys(("shiftl", "leftshift"), "shiftleft"),
    **dict.fromkeys(("shiftr", "rightshift"), "shiftright"),
    **dict.fromkeys(("cmd", "command", "meta", "super", "windows", "window", "winkey", "windowskey"), "win"),
    **dict.fromkeys(("superl", "metal", "cmdleft", "metaleft", "lwin", "leftwin"), "winleft"),
    **dict.fromkeys(("superr", "metar", "cmdright", "metaright", "rwin", "rightwin"), "winright"),
    **dict.fromkeys(("return", "kpenter", "numpadenter", "enterkey", "linefeed", "newline"), "enter"),
    **dict.fromkeys(("escape",), "esc"),
    **dict.fromkeys(("del", "kpdelete", "forwarddelete"), "delete"),
    **dict.fromkeys(("ins", "kpinsert"), "insert"),
    **dict.fromkeys(("bksp", "back", "bs"), "backspace"),
    **dict.fromkeys(("spacebar", "spc"), "space"),
    **dict.fromkeys(("pgup", "prior", "pgu"), "pageup"),
    **dict.fromkeys(("pgdn", "pgdown", "next", "pgd"), "pagedown"),
    **dict.fromkeys(("caps",), "capslock"),
    **dict.fromkeys(("print", "prtsc", "prtscr", "prntscrn", "sysrq"), "printscreen"),
    **dict.fromkeys(("menu", "contextmenu", "app", "application"), "apps"),
    **dict.fromkeys(("break",), "pause"),
    **dict.fromkeys(("kpadd", "numpadadd"), "add"),
    **dict.fromkeys(("kpsubtract", "numpadsubtract"), "subtract"),
    **dict.fromkeys(("kpmultiply", "numpadmultiply"), "multiply"),
    **dict.fromkeys(("kpdivide", "numpaddivide"), "divide"),
    **dict.fromkeys(("kpdecimal", "numpaddecimal"), "decimal"),
    **dict(plus="+", minus="-", hyphen="-", equal="=", equals="=", comma=",", period=".", dot=".", slash="/"),
    **dict(backslash="\\", semicolon=";", colon=":", apostrophe="'", quote="'", quotedbl='"', grave="`", backtick="`"),
    **dict(bracketleft="[", bracketright="]", braceleft="{", braceright="}", parenleft="(", parenright=")"),
    **dict(less="<", greater=">", question="?", exclam="!", at="@", numbersign="#", hash="#", dollar="$", percent="%"),
    **dict(asciicircum="^", caret="^", ampersand="&", asterisk="*", underscore="_", bar="|", pipe="|"),
    **dict(asciitilde="~", tilde="~"),
}
"""Names without spaces, `_` and `-`, in lower case."""

_CONTROL = {"\n": "enter", "\r": "enter", "\t": "tab", "\b": "backspace", "\x1b": "esc", "\x7f": "delete", " ": "space"}

MODIFIERS = frozenset(
    {"alt", "altleft", "altright", "ctrl", "ctrlleft", "ctrlright", "shift", "shiftleft", "shiftright"}
    | {"win", "winleft", "winright"}
)


def known_key(name: str) -> str | None:
    """pyautogui's name of a key (`Return` → `enter`, `page_down` → `pagedown`); None for one that does not exist.

    A single printable character is its own key, with its case.
    """
    if len(name) == 1:
        return _CONTROL.get(name) or (name if name.isprintable() else None)
    bare = name.strip().lower()
    if len(bare) == 1:
        return known_key(name.strip())
    if not bare or bare[0] in "_-" or bare[-1] in "_-":
        return None
    return _ALIASES.get("".join(char for char in bare if char not in " _-"))


def known_combination(text: str) -> list[str] | None:
    """The keys of `ctrl+shift+t` or `ctrl-c`, in order; None when one of them does not exist."""
    if key := known_key(text):
        return [key]
    bare = text.strip()
    separator = "+" if "+" in bare else "-"
    # a separator that is itself the last key: `ctrl++`
    names = [*bare[:-2].split(separator), separator] if bare.endswith(separator * 2) else bare.split(separator)
    keys = [known_key(name) for name in names] if len(names) > 1 else [None]
    return None if None in keys else [key for key in keys if key]


def chord(keys: list[str]) -> list[str]:
    """Keys to hold together: a letter beside a modifier is the key, not its capital, so `CTRL+C` copies."""
    if len(keys) > 1 and any(key in MODIFIERS for key in keys):
        return [key.lower() if len(key) == 1 and key.isascii() else key for key in keys]
    return keys
