"""Stand-ins for packages that `desktop_env` imports but hardly any task needs (torch's easyocr, librosa, …).

Importing one works when the real one is absent; using anything of it raises ImportError and is remembered in `used`.
The memory matters more than the error: `compare_audios` catches it for both files, takes them for "equally corrupt"
and scores 1.0, `compare_image_text` scores 0. A phase that used a stand-in has failed, whatever it returned.
"""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

NAMES = ("easyocr", "librosa", "pydrive", "borb", "acoustid", "docker", "tqdm", "psutil")


used: list[str] = []
"""The uses of the stand-ins, in order."""


class _Absent(type):
    """Class of everything found in a stand-in: any use of it raises."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise _absent(cls.__module__, f"{cls.__name__}.{name}")

    def __call__(cls, *arguments: Any, **named: Any) -> Any:
        raise _absent(cls.__module__, cls.__name__)


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the stand-ins; comes last, so that an installed package wins."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """A module for each listed name and everything below it."""
        if fullname.partition(".")[0] not in NAMES:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        """Give the module attributes that exist but cannot be used."""

        def attribute(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            if name[0].islower():  # a function or submodule: unlike a class it is not imported by name at the top
                raise _absent(module.__name__, name)
            return _Absent(name, (), {"__module__": module.__name__})

        module.__getattr__ = attribute  # type: ignore[method-assign]


def install() -> None:
    """Serve the stand-ins in this process."""
    sys.meta_path.append(StandIns())


def _absent(module: str, name: str) -> ImportError:
    package = module.partition(".")[0]
    used.append(f"{module}.{name}")
    return ImportError(f"{module}.{name} is needed, but {package} is not part of the evaluator's lean environment")
