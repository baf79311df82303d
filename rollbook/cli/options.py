"""Options and arguments that several commands share."""

from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
BatchArgument = Annotated[str, typer.Argument(metavar="BATCH", help="Batch id.")]
RolloutArgument = Annotated[
    str, typer.Argument(metavar="ROLLOUT", help="Rollout key, or the beginning or end of one if only one fits.")
]
Reason = Annotated[str, typer.Option("--reason", help="Why; it is kept with the decision.")]
