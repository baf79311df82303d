"""The server inside the desktop: OSWorld's guest protocol on port 5000, plus one route of our own.

Runs as the desktop's user, inside the desktop's session, so that everything it starts sees the same display,
session bus and locale as a program that a person starts by hand.
"""

VERSION = "1"
SERVER_NAME = "rollbook-guest"
