"""`python -I <this directory>`: one phase, as its JSON request on stdin says."""

import importlib
import sys
from pathlib import Path

here = Path(__file__).resolve().parent
sys.path[0] = str(here.parent)
phase = importlib.import_module(f"{here.name}.phase")
del sys.path[0]  # none of our names may shadow a module that the evaluator or the agent's code imports
phase.main()
