"""Ends what a killed supervisor left running. Processes are known by pid, start time and mark, never by name."""

import signal
from collections.abc import Callable

from rollbook.stack.children import TOKEN_VARIABLE
from rollbook.stack.processes import kill_group, marked_processes, stop_process, wait_gone
from rollbook.stack.state import StackState

Log = Callable[[str], None]

_STOP_SIGNALS = {"postgres": signal.SIGINT}


async def stop_leftovers(state: StackState, log: Log) -> int:
    """Stop every process of the run that `state` describes; how many there were.

    First the recorded children, workers before the servers they talk to, then whatever carries the run's mark:
    a child started just before the supervisor died is in no file.
    """
    stopped = 0
    for name, child in sorted(state.children.items(), key=lambda item: _order(item[0])):
        if child.ref is None:
            continue
        if child.ref.alive():
            log(f"stopping {name} (pid {child.ref.pid}), left by an earlier supervisor")
            await stop_process(child.ref, _STOP_SIGNALS.get(name, signal.SIGTERM))
            stopped += 1
        kill_group(child.ref)
    if state.token:
        for ref in marked_processes(TOKEN_VARIABLE, state.token):
            log(f"killing pid {ref.pid}, left by an earlier supervisor")
            ref.signal(signal.SIGKILL)
            await wait_gone(ref, 5.0)
            stopped += 1
    return stopped


def _order(name: str) -> int:
    if name.startswith("worker"):
        return 0
    return {"artifacts": 1, "temporal": 2}.get(name, 3)
