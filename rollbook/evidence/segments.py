"""Append compatibility: which prompt extends the one before it, measured on tokens and on media.

A prompt that extends what came before can be trained in one physical sequence; everything else starts a new segment
(upstream contract §3.3). History policies only hint at this; the arrays decide.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from models.identity import digest, short_id
from rollbook.evidence.load import CallEvidence


@dataclass(frozen=True)
class Placed:
    """A generation within its segment."""

    call: CallEvidence
    segment_index: int
    segment_id: str
    append_compatible: bool
    """Prompt and media extend those of the generation before, its sampled tokens included."""
    delta_start: int
    """First token of the prompt that no earlier sequence of the segment holds."""
    retained_tokens: int
    """Leading tokens shared with the generation before."""
    retained_media: int

    @property
    def view_digest(self) -> str:
        """Digest of what the model saw."""
        return view_digest(self.call)


def view_digest(call: CallEvidence) -> str:
    """Digest of prompt tokens and media."""
    return digest({"prompt_token_ids": call.tokens.prompt_token_ids, "media_ids": call.media_ids})


def place(trajectory_id: str, generations: list[CallEvidence]) -> list[Placed]:
    """Put generations into segments, in their order. A call without arrays extends nothing and is not extended."""
    placed: list[Placed] = []
    before: CallEvidence | None = None
    for call in generations:
        tokens, media = _shared(before, call)
        compatible = before is not None and tokens == len(_sequence(before) or ()) and tokens > 0
        compatible = compatible and before is not None and media == len(before.media_ids)
        index = placed[-1].segment_index + int(not compatible) if placed else 0
        placed.append(
            Placed(
                call=call,
                segment_index=index,
                segment_id=short_id("segment", trajectory_id, index),
                append_compatible=compatible,
                delta_start=tokens if compatible else 0,
                retained_tokens=tokens,
                retained_media=media,
            )
        )
        before = call
    return placed


def _sequence(call: CallEvidence) -> list[int] | None:
    prompt, sampled = call.tokens.prompt_token_ids, call.tokens.sampled_token_ids
    return None if prompt is None or sampled is None else prompt + sampled


def _shared(before: CallEvidence | None, call: CallEvidence) -> tuple[int, int]:
    """(tokens, media) that both begin with."""
    if before is None:
        return 0, 0
    return (
        _common(_sequence(before) or [], call.tokens.prompt_token_ids or []),
        _common(before.media_ids, call.media_ids),
    )


def _common(left: Sequence[object], right: Sequence[object]) -> int:
    number = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        number += 1
    return number
