"""`python -m tests.rehearsal`: OSWorld's whole `test_nogdrive` set; exits 0 only if every name was called once."""

import argparse
import asyncio
import sys
import time

from rollbook.config.settings import get_settings
from rollbook.errors import RollbookError
from rollbook.osworld.tasksets import read_task_set
from tests.rehearsal.play import Rehearsal
from tests.support.servers import scratch_directory
from tests.support.world import killable_world

LIST_FILE = "test_nogdrive.json"


def _say(line: str) -> None:
    print(line, flush=True)


async def _main(chosen: argparse.Namespace) -> int:
    tasks = read_task_set(get_settings().osworld_tasks, LIST_FILE)
    _say(f"{len(tasks)} tasks of {LIST_FILE}, {chosen.kills} crashes in the first run")
    began = time.monotonic()
    with scratch_directory("rollbook-rehearsal-") as directory:
        async with killable_world(directory / "world", "rehearsal") as world:
            await Rehearsal(world, tasks, _say, concurrency=chosen.concurrency).play(chosen.kills)
    _say(f"the roll call adds up after every act; {time.monotonic() - began:.0f} s in all")
    await asyncio.sleep(0.1)  # the client library's threads end before the interpreter does
    return 0


def main() -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.rehearsal", description=__doc__)
    parser.add_argument("--kills", type=int, default=12, help="crashes in the first run, half as many in the second")
    parser.add_argument("--concurrency", type=int, default=16)
    chosen = parser.parse_args()
    directory = get_settings().osworld_tasks
    if not (directory / LIST_FILE).exists():
        print(
            f"no OSWorld tasks: {directory / LIST_FILE} is missing. Set ROLLBOOK_SHARED to the directory that holds"
            " osworld/ (with examples/ and the list files).",
            file=sys.stderr,
        )
        return 2
    try:
        return asyncio.run(_main(chosen))
    except (RollbookError, AssertionError) as error:
        print(f"rehearsal failed: {type(error).__name__}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
