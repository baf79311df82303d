"""Which services make the desktop, in the order in which they need each other."""

import os

from init.accounts import DISPLAY, ROOT_ENVIRONMENT, RUN_DIR, Account, session_environment
from init.services import OWN_DIRECTORY, Service, module


def screen() -> str:
    """Geometry of the display: `SCREEN_WIDTH` x `SCREEN_HEIGHT` of the container, 1920 x 1080 without them."""
    width, height = (
        int(os.environ.get(f"SCREEN_{side}") or default) for side, default in (("WIDTH", 1920), ("HEIGHT", 1080))
    )
    return f"{width}x{height}x24"


def display_server() -> Service:
    """Xvfb, as root: the desktop's user cannot kill it. No GLX: nothing here draws with it."""
    command = ("Xvfb", DISPLAY, "-screen", "0", screen(), "-dpi", "96", "-auth", str(RUN_DIR / "xauthority"))
    options = ("-nolisten", "tcp", "-noreset", "-extension", "GLX", "-s", "0")
    return Service("xvfb", command + options, ROOT_ENVIRONMENT, fatal=True)


def message_bus(user: Account) -> Service:
    """The session bus at the address that OSWorld's tasks have written into them."""
    address = f"--address=unix:path=/run/user/{user.uid}/bus"
    command = ("dbus-daemon", "--session", address, "--nofork", "--nopidfile")
    return Service("dbus", command, session_environment(user), user, session=True, directory=str(user.home))


def guest_server(user: Account) -> Service:
    """The guest protocol on port 5000."""
    return Service(
        "guest", module("guest.app"), session_environment(user), user, to_console=True, directory=OWN_DIRECTORY
    )


def session(user: Account) -> list[Service]:
    """Accessibility, window manager, panel and desktop: what needs display and bus."""
    environment = session_environment(user)
    commands = {
        "at-spi": ("/usr/libexec/at-spi-bus-launcher", "--launch-immediately"),
        "openbox": ("openbox", "--sm-disable", "--config-file", "/etc/rollbook/openbox.xml"),
        "desktop": ("pcmanfm", "--desktop"),
        "panel": ("tint2", "-c", "/etc/rollbook/tint2rc"),
    }
    return [Service(name, command, environment, user, directory=str(user.home)) for name, command in commands.items()]
