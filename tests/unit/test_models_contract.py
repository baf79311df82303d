"""The contract and the agent contract: parity, overlays, legacy knobs, removed switches."""

import json
from typing import Any

import pytest

from models.contract import Contract, RecordedContract, Resolved
from models.identity import digest
from models.spec import BatchSpec, contract_of, read_spec

MODEL: dict[str, Any] = {"kind": "openai", "endpoint": "local", "model": "qwen"}
RESOLVED = Resolved(desktop_image="image@1", evaluator_revision="r1", parser_id="parser-1")


def spec_of(policy: dict[str, Any] | None = None, **changes: Any) -> BatchSpec:
    return read_spec({"task_set": "demo", "policy": MODEL | (policy or {})} | changes)


def contract(policy: dict[str, Any] | None = None, **changes: Any) -> Contract:
    return contract_of(spec_of(policy, **changes), RESOLVED)


FIXED_3 = {"schema_version": 1, "name": "fixed", "params": {"keep_images": 3}}


def test_defaults() -> None:
    policy = contract().policy.document
    assert policy["history"] == FIXED_3
    assert policy["history_policy_id"] == "osworld-history-policy-d171b7730c73e7c384ab2b25"
    assert policy["options"]["parse_retries"] == 5
    assert policy["parser_id"] == "parser-1"
    assert not {"endpoint", "by_purpose"} & policy.keys()


@pytest.mark.parametrize(
    "change",
    [{"endpoint": "elsewhere"}, {"agent_contract_id": contract().agent_contract_id}],
)
def test_where_the_model_is_served_is_outside_the_contract(change: dict[str, Any]) -> None:
    assert contract(change).digest == contract().digest


@pytest.mark.parametrize(
    ("policy", "changes"),
    [
        ({}, {"purpose": "train"}),
        ({}, {"rollout_purpose": "train"}),
        ({"parity": "declared"}, {}),
        ({"sampling": {"temperature": 0.6, "top_p": 0.95, "extra": {"top_k": 20}}}, {}),
        ({"model": "other weights"}, {}),
        ({"by_purpose": {"train": {"sampling": {"temperature": 1.0}}, "eval": {"sampling": {"temperature": 0}}}}, {}),
        ({}, {"reward_mode": "raw"}),
        ({}, {"seed": 9}),
    ],
)
def test_the_agent_is_the_same(policy: dict[str, Any], changes: dict[str, Any]) -> None:
    assert contract(policy, **changes).agent_contract_id == contract().agent_contract_id


@pytest.mark.parametrize(
    ("policy", "changes"),
    [
        ({"protocol": "computer-tool-v1"}, {}),
        ({"history": {"name": "fixed", "params": {"keep_images": 4}}}, {}),
        ({"options": {"parse_error_feedback": True}}, {}),
        ({"options": {"max_image_pixels": 1_000_000}}, {}),
        ({}, {"limits": {"max_steps": 100}}),
        ({}, {"settle": {"after_action_s": 5}}),
        ({}, {"action_runtime": "exact-input-2"}),
        ({}, {"desktop": {"screen_width": 1280, "screen_height": 720}}),
        ({}, {"desktop": {"limits": {"memory_mib": 2048}}}),
    ],
)
def test_the_agent_is_another(policy: dict[str, Any], changes: dict[str, Any]) -> None:
    assert contract(policy, **changes).agent_contract_id != contract().agent_contract_id


def test_the_digest_is_frozen() -> None:
    assert contract().digest == "eac68d7c9da51eb90190e31b8f4378b5728a30fbc553b7b298119f793f2bd4e2"
    raw = {"task_set": "demo", "policy": {"kind": "scripted", "script": "s"}, "desktop": {"provider": "null"}}
    scripted = read_spec(raw)
    assert (
        contract_of(scripted, Resolved(script_digest="a" * 64, null_desktop=True)).digest
        == "f26fc24dd86c6bde4f97c80c82fc9a22f2717cf11cbd7fcbc339d84761010661"
    )


def test_the_id_is_frozen() -> None:
    assert contract().agent_contract["model_protocol"] == {
        "protocol_id": "pyautogui-code-v1",
        "parser_id": "parser-1",
        "thinking": None,
        "wire_contract_id": "openai-chat-completions-v1",
    }
    assert contract().agent_contract_id == "agent-contract-1a0dbfa2292a87f850d5f2a5"


HYSTERESIS = {"name": "hysteresis", "params": {"low_water": 3, "high_water": 10}}
RECIPE = {
    "parity": "declared",
    "by_purpose": {
        "train": {"history": HYSTERESIS, "options": {"parse_error_feedback": True}},
        "eval": {"sampling": {"temperature": 0.6}},
    },
}


def test_overlays_by_purpose() -> None:
    train, eval_ = contract(RECIPE, purpose="train").document["policy"], contract(RECIPE).document["policy"]
    assert (train["history"]["name"], eval_["history"]["name"]) == ("hysteresis", "fixed")
    assert (train["options"]["parse_error_feedback"], eval_["options"]["parse_error_feedback"]) == (True, False)
    assert (train["sampling"]["temperature"], eval_["sampling"]["temperature"]) == (1.0, 0.6)


def test_strict_parity_refuses_different_agents_and_says_where() -> None:
    with pytest.raises(ValueError, match=r"history\.name: 'hysteresis' -> 'fixed'.*parity.*declared"):
        spec_of(RECIPE | {"parity": "strict"})


def test_a_demanded_agent_contract_is_checked() -> None:
    training = contract().agent_contract_id
    assert contract({"agent_contract_id": training})
    with pytest.raises(ValueError, match=r"policy\.agent_contract_id: the spec means agent-contract-"):
        contract({"agent_contract_id": training, "options": {"parse_retries": 1}})


@pytest.mark.parametrize(
    ("knobs", "history"),
    [
        ({"max_trajectory_length": 3}, FIXED_3),
        ({"max_image_history_length": 3.0}, FIXED_3),
        ({"max_trajectory_length": 3, "max_live_images": 3}, FIXED_3),
        ({"max_live_images": 10}, {"schema_version": 1, **HYSTERESIS}),
        ({"max_trajectory_length": 3, "max_live_images": 10}, {"schema_version": 1, **HYSTERESIS}),
    ],
)
def test_legacy_knobs_mean_a_history_policy(knobs: dict[str, Any], history: dict[str, Any]) -> None:
    assert contract(knobs).policy.history == history


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ({"max_trajectory_length": 3, "history": HYSTERESIS}, "policy.*exclude each other"),
        ({"max_trajectory_length": 3, "max_image_history_length": 4}, "contradict"),
        ({"max_trajectory_length": 5, "max_live_images": 4}, "at least the number of kept images"),
        ({"max_trajectory_length": "3"}, "'max_trajectory_length' must be a whole number"),
        ({"max_live_images": True}, "'max_live_images' must be a whole number"),
        ({"training_mode": True}, "'training_mode' was removed and is not ignored"),
        ({"training_turn_strategy": None}, "'training_turn_strategy' was removed"),
        ({"options": {"training_mode": False}}, "'training_mode' was removed"),
        ({"options": {"coordinate_type": "polar"}}, "policy.options.coordinate_type"),
        ({"options": {"parse_retries": 0}}, "policy.options.parse_retries"),
        ({"sampling": {"temperature": 3}}, "policy.sampling.temperature"),
        ({"sampling": {"top_p": 0}}, "policy.sampling.top_p"),
        ({"by_purpose": {"test": {}}}, "policy.by_purpose"),
        (
            {"parity": "declared", "by_purpose": {"train": {"options": {"thinkin": True}}}},
            r"by_purpose\.train: thinkin: Extra",
        ),
        ({"model": " "}, "policy.model"),
        ({"endpoint": "http://127.0.0.1"}, "policy.endpoint"),
        ({"api_key": "not-to-be-echoed"}, "policy.api_key: unknown key"),
    ],
)
def test_a_wrong_policy_is_refused_loudly(policy: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        spec_of(policy)
    assert "not-to-be-echoed" not in str(caught.value)


def test_purpose_carriers_must_agree() -> None:
    with pytest.raises(ValueError, match="'purpose' and 'rollout_purpose' contradict"):
        spec_of(purpose="eval", rollout_purpose="train")


@pytest.mark.parametrize(
    "policy",
    [
        {"kind": "replay"},
        {"kind": "replay", "rollout": "b/os/t/0", "batch": "b"},
        {"kind": "replay", "batch": "b", "attempt": 1},
    ],
)
def test_a_replay_has_one_source(policy: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="policy"):
        read_spec({"task_set": "demo", "policy": policy})


@pytest.mark.parametrize("policy", [MODEL, MODEL | RECIPE, {"kind": "replay", "batch": "b"}])
def test_a_contract_tells_what_names_meant(policy: dict[str, Any]) -> None:
    spec = read_spec({"task_set": "demo", "policy": policy})
    resolved = RESOLVED if policy["kind"] == "openai" else Resolved(script_digest="a" * 64)
    made = contract_of(spec, resolved)
    assert contract_of(spec, made.all_resolved) == made
    assert read_spec(spec.model_dump(mode="json")) == spec


def test_a_stored_contract_reads_as_it_was_made() -> None:
    made = contract()
    stored = json.loads(json.dumps(made.document, sort_keys=True))
    assert Contract.read(stored) == made
    assert (Contract.read(stored).digest, Contract.read(stored).document) == (made.digest, stored)
    assert (made.limits.max_steps, made.desktop.screen, made.observe.type) == (15, (1920, 1080), "screenshot")


def test_a_contract_of_another_version_reads_and_keeps_its_digests() -> None:
    """Keys that were added since are ignored; keys that are missing take today's default and stay out of the ids."""
    stored = contract().document
    newer = stored | {"limits": stored["limits"] | {"max_tokens": 5}, "weather": "fine"}
    older = {key: value for key, value in stored.items() if key != "seed"} | {"limits": {"max_steps": 4}}
    for document in (newer, older):
        read = Contract.read(document)
        assert read.digest == digest(document)
        assert read.agent_contract["limits"] == document["limits"]
    assert Contract.read(older).limits.deadline_s == 1800
    assert Contract.read(stored | {"limits": stored["limits"] | {"max_steps": "15"}}).limits.max_steps == 15


def test_a_contract_that_cannot_be_read_says_where() -> None:
    stored = contract().document
    changes: list[tuple[dict[str, Any], str]] = [
        ({"limits": {"max_steps": 0}}, r"limits\.max_steps: "),
        ({"settle": None}, "settle: must be a JSON object"),
        ({"policy": {}}, "policy: required"),
    ]
    for change, message in changes:
        with pytest.raises(ValueError, match=message):
            Contract.read(stored | change)
    with pytest.raises(ValueError, match="must be a JSON object"):
        Contract.read("text")


def test_the_contract_of_imported_results_has_no_agent() -> None:
    stored = {
        "schema_version": 1,
        "policy": {"kind": "imported"},
        "purpose": "eval",
        "reward_mode": "raw",
        "resolved": {"null_desktop": False},
        "imported": {"rows": 3},
    }
    read = RecordedContract.read(stored)
    assert (read.policy.name, read.reward_mode, read.resolved, read.digest) == (
        "imported",
        "raw",
        Resolved(),
        digest(stored),
    )
    with pytest.raises(ValueError, match="limits: required"):
        Contract.read(stored)


def test_a_policy_is_named_by_its_model() -> None:
    assert contract().policy.name == "qwen"
    assert contract_of(read_spec({"task_set": "demo", "policy": {"kind": "noop"}}), RESOLVED).policy.name == "noop"
