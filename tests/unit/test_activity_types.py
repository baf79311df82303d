"""Workflows and workers agree on every activity: name, request and result."""

from types import NoneType
from typing import Any, get_type_hints

import pytest
from temporalio import activity

from activities.desktop import DesktopActivities
from activities.janitor import JanitorActivities
from activities.ledger import LedgerActivities
from activities.osworld import OsworldActivities
from activities.policy import PolicyActivities
from activities.pump import PumpActivities
from activities.sandbox import SandboxActivities
from models import activities
from models.activities import Activity

DEFINITIONS = [value for value in vars(activities).values() if isinstance(value, Activity)]

IMPLEMENTATIONS: dict[str | None, Any] = {
    activity._Definition.must_from_callable(method).name: method
    for owner in (
        DesktopActivities,
        JanitorActivities,
        LedgerActivities,
        OsworldActivities,
        PolicyActivities,
        PumpActivities,
        SandboxActivities,
    )
    for method in vars(owner).values()
    if hasattr(method, "__temporal_activity_definition")
}


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda definition: definition.name)
def test_the_implementation_has_the_types_of_the_definition(definition: Activity[Any, Any]) -> None:
    hints = get_type_hints(IMPLEMENTATIONS[definition.name])
    result = hints.pop("return")
    assert list(hints.values()) == [definition.request]
    assert (NoneType if result is None else result) is definition.result


def test_every_activity_is_defined_and_implemented_once() -> None:
    defined = [definition.name for definition in DEFINITIONS]
    assert len(set(defined)) == len(defined)
    assert set(defined) == set(IMPLEMENTATIONS)
