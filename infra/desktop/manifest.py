"""Prints what the image holds as JSON: programs on the user's path, and Python modules that are not part of Python.

Run at the end of the build. Rollbook compares it with the needs of a batch's tasks.
"""

import json
import os
import pkgutil
import sys

PATH = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/games", "/snap/bin")


def programs() -> list[str]:
    """Names that a command finds: executable files of the path; a dangling link is none."""
    names = set()
    for directory in filter(os.path.isdir, PATH):
        for entry in os.scandir(directory):
            if entry.is_file() and os.access(entry.path, os.X_OK):
                names.add(entry.name)
    return sorted(names)


def modules() -> list[str]:
    """Top-level modules beside the standard library."""
    names = {module.name for module in pkgutil.iter_modules() if not module.name.startswith("_")}
    return sorted(names - set(sys.stdlib_module_names) - {"manifest"})


if __name__ == "__main__":
    print(json.dumps({"schema_version": 1, "programs": programs(), "modules": modules()}))
