"""The batch spec as people write it, and the contract that it stands for."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.batch import RegisterBatch
from models.contract import Contract, Resolved, difference
from models.spec import OPERATIONAL, BatchSpec, contract_of, read_spec

MINIMAL = {"task_set": "demo", "policy": {"kind": "noop"}}

FULL: dict[str, Any] = {
    "task_set": "osworld@0123abcd",
    "policy": {"kind": "scripted", "script": "solve@0123456789abcdef"},
    "limits": {
        "max_steps": 100,
        "deadline_s": 900,
        "model_timeout_s": 60,
        "action_timeout_s": 30,
        "setup_timeout_s": 300,
        "evaluate_timeout_s": 120,
    },
    "settle": {"after_setup_s": 0, "after_action_s": 0.5, "before_evaluation_s": 2},
    "desktop": {
        "provider": "null",
        "variant": "slim",
        "image": "registry.example/rollbook-desktop:1",
        "screen_width": 1280,
        "screen_height": 720,
        "egress": "none",
    },
    "observe": {"accessibility_tree": True, "terminal": True},
    "action_runtime": "exact-input-2",
    "reward_mode": "raw",
    "seed": 7,
    "purpose": "train",
    "tasks": {"domains": ["os"], "ids": ["t1"], "exclude_ids": ["t2"]},
    "samples": 4,
    "concurrency": 8,
    "max_attempts": 5,
    "extend": True,
    "note": "größer <&> than before",
}


def as_tctl_sends(spec: Any) -> Any:
    """Every integer a float, keys sorted: Go's JSON."""
    if isinstance(spec, dict):
        return {key: as_tctl_sends(spec[key]) for key in sorted(spec)}
    if isinstance(spec, list):
        return [as_tctl_sends(item) for item in spec]
    return float(spec) if isinstance(spec, int) and not isinstance(spec, bool) else spec


def test_all_but_task_set_and_policy_have_defaults() -> None:
    required = {name for name, field in BatchSpec.model_fields.items() if field.is_required()}
    assert required == {"task_set", "policy"}
    spec = read_spec(MINIMAL)
    assert (spec.samples, spec.concurrency, spec.max_attempts, spec.extend) == (1, 2, 3, False)


@pytest.mark.parametrize("raw", [MINIMAL, FULL])
def test_integers_as_floats_mean_the_same(raw: dict[str, Any]) -> None:
    escaped = json.dumps(as_tctl_sends(raw)).replace("<", "\\u003c").replace("&", "\\u0026").replace(">", "\\u003e")
    sent = read_spec(json.loads(escaped))
    assert sent == read_spec(raw)
    assert type(sent.samples) is int
    assert contract_of(sent, Resolved()).digest == contract_of(read_spec(raw), Resolved()).digest


@pytest.mark.parametrize("raw", [MINIMAL, FULL])
def test_a_spec_survives_the_wire(raw: dict[str, Any]) -> None:
    request = RegisterBatch(batch_id="b", namespace="default", spec=read_spec(raw), launch_id="r")
    assert RegisterBatch.model_validate_json(request.model_dump_json()) == request


# what is changed in the minimal spec, the field that the message must name first, what else it must carry
BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"samples": 4.5}, "samples", "given: 4.5"),
    ({"samples": "4"}, "samples", "given: '4'"),
    ({"samples": True}, "samples", "given: True"),
    ({"samples": None}, "samples", "given: None"),
    ({"samples": 0}, "samples", "given: 0"),
    ({"samples": 10_001.0}, "samples", "given: 10001"),
    ({"samples": [4]}, "samples", "integer"),
    ({"concurrency": -1}, "concurrency", "given: -1"),
    ({"max_attempts": 1e300}, "max_attempts", "given: 1"),
    ({"seed": 2**53}, "seed", "given: 9007199254740992"),
    ({"extend": "yes"}, "extend", "given: 'yes'"),
    ({"extend": 1}, "extend", "given: 1"),
    ({"note": 5}, "note", "given: 5"),
    ({"note": "a\x00b"}, "note", "NUL"),
    ({"note": "x" * 501}, "note", "500"),
    ({"task_set": "my tasks"}, "task_set", "given: 'my tasks'"),
    ({"task_set": "../etc"}, "task_set", "given: '../etc'"),
    ({"task_set": "demo\n"}, "task_set", "given: 'demo\\n'"),
    ({"task_set": "demo@12"}, "task_set", "given: 'demo@12'"),
    ({"limits": {"max_step": 5}}, "limits.max_step", "unknown key"),
    ({"limits": {"max_steps": 5.5}}, "limits.max_steps", "given: 5.5"),
    ({"limits": {"deadline_s": "30"}}, "limits.deadline_s", "given: '30'"),
    ({"limits": {"deadline_s": True}}, "limits.deadline_s", "given: True"),
    ({"limits": {"deadline_s": 0}}, "limits.deadline_s", "given: 0"),
    ({"limits": {"deadline_s": math.nan}}, "limits.deadline_s", "given: nan"),
    ({"limits": {"deadline_s": math.inf}}, "limits.deadline_s", "given: inf"),
    ({"settle": {"after_action_s": -0.1}}, "settle.after_action_s", "given: -0.1"),
    ({"limits": [5]}, "limits", "must be a JSON object"),
    ({"limits": None}, "limits", "must be a JSON object"),
    ({"desktop": {"provider": 7}}, "desktop.provider", "given: 7"),
    ({"desktop": {"egress": True}}, "desktop.egress", "given: True"),
    ({"action_runtime": "fast"}, "action_runtime", "given: 'fast'"),
    ({"reward_mode": "RAW"}, "reward_mode", "given: 'RAW'"),
    ({"policy": {}}, "policy.kind", "required"),
    ({"policy": {"kind": "gpt"}}, "policy.kind", "given: 'gpt'"),
    ({"policy": "noop"}, "policy", "must be a JSON object"),
    ({"policy": {"kind": "scripted"}}, "policy.script", "required"),
    ({"policy": {"kind": "scripted", "script": "a b"}}, "policy.script", "given: 'a b'"),
    ({"policy": {"kind": "noop", "waits": -1}}, "policy.waits", "given: -1"),
    ({"policy": {"kind": "noop", "script": "a"}}, "policy.script", "unknown key"),
    ({"tasks": {"ids": "t1"}}, "tasks.ids", "given: 't1'"),
    ({"tasks": {"ids": ["t1", 2]}}, "tasks.ids.1", "given: 2"),
    ({"tasks": {"ids": []}}, "tasks.ids", "must not be empty; leave the key out"),
    ({"tasks": {"domains": []}}, "tasks.domains", "must not be empty; leave the key out"),
    ({"tasks": {"domains": ["a/b"]}}, "tasks.domains.0", "given: 'a/b'"),
    ({"task": {"ids": []}}, "task", "unknown key"),
    ({"training_mode": True}, "training_mode", "unknown key"),
    ({"api_key": "not-to-be-echoed"}, "api_key", "unknown key"),
]


@pytest.mark.parametrize(("change", "field", "carries"), BAD)
def test_a_wrong_spec_names_the_field(change: dict[str, Any], field: str, carries: str) -> None:
    with pytest.raises(ValueError) as caught:
        read_spec(MINIMAL | change)
    message = str(caught.value)
    assert message.startswith(f"{field}: ")
    assert carries in message
    assert "not-to-be-echoed" not in message
    assert "\n" not in message


@pytest.mark.parametrize("field", ["task_set", "policy"])
def test_a_missing_field_is_named(field: str) -> None:
    with pytest.raises(ValueError, match=f"^{field}: required$"):
        read_spec({key: value for key, value in MINIMAL.items() if key != field})


@pytest.mark.parametrize("raw", [None, [], [MINIMAL], "demo", 4, True])
def test_what_is_no_object_is_refused(raw: Any) -> None:
    with pytest.raises(ValueError, match="one JSON object"):
        read_spec(raw)


def test_all_wrong_fields_are_named_at_once() -> None:
    with pytest.raises(ValueError) as caught:
        read_spec({"policy": {"kind": "noop"}, "samples": 0, "limits": {"max_steps": 0}, "color": "red"})
    found = {part.split(":")[0] for part in str(caught.value).split("; ") if ": " in part}
    assert {"task_set", "samples", "limits.max_steps", "color"} <= found


def test_a_long_value_is_shortened() -> None:
    with pytest.raises(ValueError) as caught:
        read_spec(MINIMAL | {"task_set": "x" * 100_000})
    assert len(str(caught.value)) < 400


SCRIPTED = Resolved(script_digest="a" * 64)


def test_the_contract_is_the_spec_without_its_operational_keys() -> None:
    contract = contract_of(read_spec(FULL), SCRIPTED).document
    assert set(BatchSpec.model_fields) > OPERATIONAL
    assert set(contract) == set(BatchSpec.model_fields) - OPERATIONAL | {"schema_version", "resolved"}
    assert json.loads(json.dumps(contract, allow_nan=False)) == contract


OTHER: dict[str, Any] = {
    "task_set": "other",
    "tasks": {"ids": ["t9"]},
    "samples": 9,
    "concurrency": 9,
    "max_attempts": 9,
    "extend": False,
    "identity": {"sampling_event_id": "sampling-train-1", "source_group_id": "g1"},
    "note": "other",
}


def test_operational_keys_do_not_change_the_contract() -> None:
    assert set(OTHER) == OPERATIONAL
    one = contract_of(read_spec(FULL), SCRIPTED)
    for key, value in OTHER.items():
        changed = read_spec(FULL | {key: value})
        assert changed != read_spec(FULL), key
        assert contract_of(changed, SCRIPTED) == one, key


CHANGES: list[tuple[dict[str, Any], str]] = [
    *[({"limits": FULL["limits"] | {key: value + 1}}, f"limits.{key}") for key, value in FULL["limits"].items()],
    *[({"settle": FULL["settle"] | {key: value + 1}}, f"settle.{key}") for key, value in FULL["settle"].items()],
    ({"desktop": FULL["desktop"] | {"provider": "docker"}}, "desktop.provider"),
    ({"desktop": FULL["desktop"] | {"screen_width": 1281}}, "desktop.screen_width"),
    ({"desktop": FULL["desktop"] | {"image": None}}, "desktop.image"),
    ({"desktop": FULL["desktop"] | {"egress": "open"}}, "desktop.egress"),
    ({"desktop": FULL["desktop"] | {"limits": {"cpus": 1}}}, "desktop.limits.cpus"),
    ({"observe": {"accessibility_tree": False, "terminal": True}}, "observe.accessibility_tree"),
    ({"action_runtime": "canonical"}, "action_runtime"),
    ({"reward_mode": "binary"}, "reward_mode"),
    ({"seed": 8}, "seed"),
    ({"purpose": "eval"}, "purpose"),
    ({"policy": {"kind": "noop"}}, "policy.kind"),
]


@pytest.mark.parametrize(("change", "where"), CHANGES)
def test_everything_else_does_and_the_difference_says_where(change: dict[str, Any], where: str) -> None:
    one = contract_of(read_spec(FULL), SCRIPTED)
    other = contract_of(read_spec(FULL | change), SCRIPTED)
    assert one.digest != other.digest
    assert where in [line.split(": ")[0] for line in difference(one.document, other.document)]


MEANT: list[tuple[str, Any]] = [
    ("desktop_image", "sha256:2"),
    ("desktop_digest", "sha256:3"),
    ("evaluator_revision", "desktop_env 1.0.3"),
    ("null_desktop", True),
]


@pytest.mark.parametrize(("field", "value"), MEANT)
def test_what_names_meant_is_part_of_the_contract(field: str, value: Any) -> None:
    spec = read_spec(FULL)
    other = SCRIPTED.model_copy(update={field: value})
    lines = difference(contract_of(spec, SCRIPTED).document, contract_of(spec, other).document)
    assert [line.split(": ")[0] for line in lines] == [f"resolved.{field}"]


def test_all_that_was_resolved_is_tested_above() -> None:
    assert {field for field, _ in MEANT} | {"script_digest", "parser_id", "policy_part"} == set(Resolved.model_fields)


def test_a_script_is_its_digest_not_its_name() -> None:
    renamed = read_spec(FULL | {"policy": {"kind": "scripted", "script": "renamed"}})
    assert contract_of(renamed, SCRIPTED) == contract_of(read_spec(FULL), SCRIPTED)
    assert contract_of(renamed, Resolved(script_digest="b" * 64)) != contract_of(renamed, SCRIPTED)


def test_defaults_written_out_are_the_same_contract() -> None:
    spec = read_spec(MINIMAL)
    written = read_spec(json.loads(spec.model_dump_json()))
    whole = read_spec(MINIMAL | {"limits": {"deadline_s": 1800, "max_steps": 15}, "settle": {"after_action_s": 2}})
    digests = {contract_of(one, Resolved()).digest for one in (spec, written, whole)}
    assert len(digests) == 1


@given(st.randoms(use_true_random=False))
def test_key_order_does_not_change_the_contract(random: Any) -> None:
    def shuffled(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        keys = list(value)
        random.shuffle(keys)
        return {key: shuffled(value[key]) for key in keys}

    one = contract_of(read_spec(FULL), SCRIPTED)
    other = contract_of(read_spec(shuffled(FULL)), SCRIPTED)
    assert Contract.read(shuffled(other.document)).digest == one.digest


def test_a_difference_reads_as_old_to_new() -> None:
    old = {"limits": {"max_steps": 15, "deadline_s": 30.0}, "gone": 1, "list": [1], "same": {"a": None}}
    new = {"limits": {"max_steps": 20, "deadline_s": 30.0}, "new": "x", "list": [1, 2], "same": {"a": None}}
    assert difference(old, new) == [
        "gone: 1 -> None",
        "limits.max_steps: 15 -> 20",
        "list: [1] -> [1, 2]",
        "new: None -> 'x'",
    ]
    assert difference(old, old) == []


def test_an_object_that_became_a_value_is_one_line() -> None:
    assert difference({"policy": {"kind": "noop"}}, {"policy": None}) == ["policy: {'kind': 'noop'} -> None"]


@pytest.mark.parametrize(
    ("change", "guess"),
    [
        ({"limit": {"max_steps": 3}}, "limit: unknown key; remove it or correct its name (did you mean limits?)"),
        ({"limits": {"max_step": 3}}, "(did you mean limits.max_steps?)"),
        ({"max_step": 3}, "(did you mean limits.max_steps?)"),
        ({"policy": {"kind": "noop", "wait": 3}}, "(did you mean policy.waits?)"),
        ({"tasks": {"domain": ["os"]}}, "(did you mean tasks.domains?)"),
        ({"concurency": 3}, "(did you mean concurrency?)"),
        ({"qqq": 3}, None),
    ],
)
def test_an_unknown_key_comes_with_a_guess(change: dict[str, Any], guess: str | None) -> None:
    with pytest.raises(ValueError) as error:
        read_spec({"task_set": "s", "policy": {"kind": "noop"}} | change)
    assert ("did you mean" in str(error.value)) == (guess is not None)
    assert (guess or "unknown key") in str(error.value)
