"""Requests to the Janitor."""

from typing import Any

import pytest

from models.janitor import ReconcileRequest, read_request


@pytest.mark.parametrize("raw", [None, {}, {"min_age_s": 0, "sightings": 2.0}, ReconcileRequest().model_dump()])
def test_requests(raw: Any) -> None:
    request = read_request(raw)
    assert (request.sightings, request.gap_s) == (2, 10.0)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ({"sightings": 1}, "sightings: .* 2"),
        ({"sightings": 0}, "sightings"),
        ({"sightings": "many"}, "sightings"),
        ({"min_age_s": -1}, "min_age_s: .* 0"),
        ({"min_age_s": float("nan")}, "min_age_s"),
        ({"gap_s": 0}, "gap_s: .* 0"),
        ([2], "one JSON object"),
        ("2", "one JSON object"),
    ],
)
def test_what_is_refused_names_the_field(raw: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_request(raw)
