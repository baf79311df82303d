"""The helper process: waits for one question on standard input, answers in JSON, ends."""

import json
import sys
import time

import gi

gi.require_version("Atspi", "2.0")
from gi.repository import Atspi  # noqa: E402

from guest.accessibility import nodes, terminal, tree  # noqa: E402


def main() -> None:
    line = sys.stdin.readline()
    if not line:
        return  # the server ended before it had a question
    request = json.loads(line)
    Atspi.init()
    Atspi.set_timeout(nodes.CALL_TIMEOUT_S * 1000, nodes.CALL_TIMEOUT_S * 1000)
    desktop = Atspi.get_desktop(0)
    if request["question"] == "tree":
        answer = tree.as_xml(desktop, deadline=time.monotonic() + request["budget_s"])
    else:
        answer = terminal.focused_text(desktop)
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
