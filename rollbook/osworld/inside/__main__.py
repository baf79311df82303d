"""`python -I <this directory> [module]`: runs `main()` of a module here: `phase` (the default) or `survey`."""

import importlib
import sys
from pathlib import Path

here = Path(__file__).resolve().parent
sys.path[0] = str(here.parent)
module = importlib.import_module(f"{here.name}.{sys.argv[1] if len(sys.argv) > 1 else 'phase'}")
del sys.path[0]  # none of our names may shadow a module that the evaluator or the agent's code imports
module.main()
