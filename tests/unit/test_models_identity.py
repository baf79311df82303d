"""Identity: canonical JSON, digests and the ids derived from them. Ids are literals here: they must never change."""

import hashlib
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models import attributes, identity, names
from models.identity import canonical_json, digest, short_id

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def _reversed(value: Any) -> Any:
    """The same JSON value with every object's keys in the opposite order."""
    if isinstance(value, dict):
        return {key: _reversed(value[key]) for key in reversed(list(value))}
    return [_reversed(item) for item in value] if isinstance(value, list) else value


@given(JSON)
def test_equal_values_have_equal_text(value: Any) -> None:
    text = canonical_json(value)
    assert canonical_json(_reversed(value)) == text
    assert canonical_json(json.loads(text)) == text
    assert canonical_json(json.loads(json.dumps(value, indent=3))) == text


@given(JSON, JSON)
def test_different_texts_have_different_digests(one: Any, other: Any) -> None:
    assert (digest(one) == digest(other)) is (canonical_json(one) == canonical_json(other))


def test_canonical_json_is_spelt_exactly_so() -> None:
    value = {"b": [1, 2.5, None, True, 'ä\n"<&>'], "a": {}}
    assert canonical_json(value) == '{"a":{},"b":[1,2.5,null,true,"ä\\n\\"<&>"]}'
    assert digest({"a": "ä"}) == hashlib.sha256('{"a":"ä"}'.encode()).hexdigest()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, {"a": [math.nan]}])
def test_numbers_that_json_cannot_hold_are_refused(value: Any) -> None:
    with pytest.raises(ValueError):
        canonical_json(value)


@pytest.mark.parametrize("value", [{1, 2}, b"bytes", object()])
def test_things_that_json_cannot_hold_are_refused(value: Any) -> None:
    with pytest.raises(TypeError):
        canonical_json(value)


HISTORY_POLICIES = [
    ("fixed", {"keep_images": 1}, "b7220985bd046580251603b7"),
    ("fixed", {"keep_images": 3}, "d171b7730c73e7c384ab2b25"),
    ("fixed", {"keep_images": 10}, "c6aa3cc4908990e7e48aa92a"),
    ("hysteresis", {"low_water": 3, "high_water": 10}, "df73e1447137486cb16fa3a6"),
    ("hysteresis", {"low_water": 1, "high_water": 5}, "c4f9c60cd41592bec97923c8"),
    ("hysteresis", {"low_water": 5, "high_water": 20}, "abfafbcac32b574d98e2ef69"),
]


@pytest.mark.parametrize(("name", "params", "frozen"), HISTORY_POLICIES)
def test_the_recipe_reproduces_upstreams_frozen_ids(name: str, params: dict[str, int], frozen: str) -> None:
    """Ids and recipe are upstream's, see docs/reference/upstream-contract.md."""
    config = {"schema_version": 1, "name": name, "params": params}
    assert short_id("osworld-history-policy", config) == f"osworld-history-policy-{frozen}"


def test_derived_and_scoped_ids_are_frozen() -> None:
    group = identity.derived_group_id("t")
    assert group == "trajectory-group-2d06b2c705025d0ac359b8c2"
    assert identity.derived_rollout_id("t", group, 0, 1, "m") == "rollout-52fcd3f33bbfcca28e64e7b7"
    assert identity.scoped_group_id("s", "g") == "group-249583ac9b779a47e1789c36"
    assert identity.scoped_rollout_id("s", "g", "t", 0, 1) == "rollout-0cf03260eecfdc05c9f50d7d"


def test_keys_and_activity_ids_are_frozen() -> None:
    task = "e0df059f-28a6-4169-924f-b9623e7184cc"
    assert identity.rollout_key("nightly-7", "os", task, 0) == f"nightly-7/os/{task}/0"
    assert identity.sandbox_key("local", "nightly-7/os/t/0", 1, "e") == "2ca2d394922d0691b5bb29005be42cf3"
    assert identity.op_id("nightly-7/os/t/0", 1, 17, 0) == "53ae24321c3d-a1-s017-0"
    assert identity.step_name(1, 17, "act") == "a1-s017-act"
    assert identity.step_name(12, 1000, "decide") == "a12-s1000-decide"
    assert identity.phase_name(1, "evaluate") == "a1-evaluate"


WORDS = st.text(st.characters(categories=("Ll", "Nd"), include_characters="-_/."), min_size=1, max_size=12)


CLAIMS = st.tuples(WORDS, WORDS, st.integers(1, 99), WORDS)


@given(CLAIMS, CLAIMS)
def test_every_attempt_has_a_desktop_label_of_its_own(
    one: tuple[str, str, int, str], other: tuple[str, str, int, str]
) -> None:
    assert (identity.sandbox_key(*one) == identity.sandbox_key(*other)) is (one == other)


@given(
    st.tuples(WORDS, st.integers(1, 99), st.integers(1, 1000), st.integers(0, 40)),
    st.tuples(WORDS, st.integers(1, 99), st.integers(1, 1000), st.integers(0, 40)),
)
def test_every_action_has_an_op_id_of_its_own(one: tuple[str, int, int, int], other: tuple[str, int, int, int]) -> None:
    assert (identity.op_id(*one) == identity.op_id(*other)) is (one == other)


@pytest.mark.parametrize("good", ["nightly-7", "a", "A.b_c-d", "7", "x" * 128])
def test_batch_ids(good: str) -> None:
    assert identity.BATCH_ID.match(good)


@pytest.mark.parametrize("bad", ["", "-a", ".a", "_a", "a/b", "a b", "a\n", "ä", "a:b", "a\x00", "x" * 129])
def test_what_is_no_batch_id(bad: str) -> None:
    assert not identity.BATCH_ID.match(bad)


def test_public_names_are_frozen() -> None:
    """People start, signal and pause by these names; stored histories replay by them."""
    public = {key: value for key, value in vars(names).items() if key.isupper()}
    frozen = {
        "EPISODE": "Episode",
        "BATCH": "BenchmarkBatch",
        "JANITOR": "Janitor",
        "CLAIM": "claim",
        "FINALIZE": "finalize",
        "REGISTER_BATCH": "register_batch",
        "SET_CONTROL": "set_control",
        "PUMP": "pump",
        "CLOSE_BATCH": "close_batch",
        "START_SANDBOX": "start_sandbox",
        "RENEW_LEASE": "renew_lease",
        "STOP_SANDBOX": "stop_sandbox",
        "PREPARE_TASK": "prepare_task",
        "RUN_POSTCONFIG": "run_postconfig",
        "EVALUATE": "evaluate",
        "OBSERVE": "observe",
        "DECIDE": "decide",
        "ACT": "act",
        "RECONCILE": "reconcile",
        "PAUSE": "pause",
        "RESUME": "resume",
        "STOP": "stop",
        "SET_CONCURRENCY": "set_concurrency",
        "FREEZE": "freeze",
        "THAW": "thaw",
        "INVALID_INPUT": "InvalidInput",
        "FENCED": "Fenced",
        "GUEST_FAILED": "guest_failed",
    }
    assert {key: public.get(key) for key in frozen} == frozen
    assert len(set(public.values())) == len(public), "two names for one thing, or one name for two"


def test_search_attributes_are_frozen_and_fit_sql_visibility() -> None:
    """SQL visibility allows 10 Keyword, 3 Int, 3 Double and 3 Bool attributes per namespace."""
    kinds = list(attributes.SEARCH_ATTRIBUTES.values())
    frozen = {
        "RolloutBatch": "Keyword",
        "RolloutTask": "Keyword",
        "RolloutDomain": "Keyword",
        "RolloutPolicy": "Keyword",
        "RolloutTermination": "Keyword",
        "RolloutOutcome": "Keyword",
        "RolloutSample": "Int",
        "RolloutAttempt": "Int",
        "RolloutSteps": "Int",
        "RolloutScore": "Double",
        "RolloutAdmitted": "Bool",
    }
    assert frozen.items() <= attributes.SEARCH_ATTRIBUTES.items()
    assert kinds.count("Keyword") <= 10
    assert kinds.count("Int") <= 3
    assert kinds.count("Double") <= 3
    assert kinds.count("Bool") <= 3
