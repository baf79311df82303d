"""The agent contract: parity, overlays, legacy knobs, removed switches (upstream contract §3.4, §4 end)."""

from typing import Any

import pytest

from models.batch import BatchSpec, Resolved, contract_digest, contract_of, read_spec, resolved_of
from models.contract import agent_contract, agent_contract_id

MODEL: dict[str, Any] = {"kind": "openai", "endpoint": "local", "model": "qwen"}
RESOLVED = Resolved(desktop_image="image@1", evaluator_revision="r1", parser_id="parser-1")


def spec_of(policy: dict[str, Any] | None = None, **changes: Any) -> BatchSpec:
    return read_spec({"task_set": "demo", "policy": MODEL | (policy or {})} | changes)


def contract(policy: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    return contract_of(spec_of(policy, **changes), RESOLVED)


FIXED_3 = {"schema_version": 1, "name": "fixed", "params": {"keep_images": 3}}


def test_defaults() -> None:
    policy = contract()["policy"]
    assert policy["history"] == FIXED_3
    assert policy["history_policy_id"] == "osworld-history-policy-d171b7730c73e7c384ab2b25"
    assert policy["options"]["parse_retries"] == 5
    assert policy["parser_id"] == "parser-1"
    assert not {"endpoint", "by_purpose"} & policy.keys()


@pytest.mark.parametrize(
    "change",
    [{"endpoint": "elsewhere"}, {"agent_contract_id": agent_contract_id(contract())}],
)
def test_where_the_model_is_served_is_outside_the_contract(change: dict[str, Any]) -> None:
    assert contract_digest(contract(change)) == contract_digest(contract())


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
    assert agent_contract_id(contract(policy, **changes)) == agent_contract_id(contract())


@pytest.mark.parametrize(
    ("policy", "changes"),
    [
        ({"protocol": "computer-tool-v1"}, {}),
        ({"history": {"name": "fixed", "params": {"keep_images": 4}}}, {}),
        ({"options": {"parse_error_feedback": True}}, {}),
        ({"options": {"max_image_pixels": 1_000_000}}, {}),
        ({}, {"limits": {"max_steps": 100}}),
        ({}, {"settle": {"after_action_s": 5}}),
        ({}, {"action_runtime": "exact-input"}),
        ({}, {"desktop": {"screen_width": 1280, "screen_height": 720}}),
    ],
)
def test_the_agent_is_another(policy: dict[str, Any], changes: dict[str, Any]) -> None:
    assert agent_contract_id(contract(policy, **changes)) != agent_contract_id(contract())


def test_the_id_is_frozen() -> None:
    assert agent_contract(contract())["model_protocol"] == {
        "protocol_id": "pyautogui-code-v1",
        "parser_id": "parser-1",
        "thinking": None,
        "wire_contract_id": "openai-chat-completions-v1",
    }
    assert agent_contract_id(contract()) == "agent-contract-e8e079a08bf761a199609255"


HYSTERESIS = {"name": "hysteresis", "params": {"low_water": 3, "high_water": 10}}
RECIPE = {
    "parity": "declared",
    "by_purpose": {
        "train": {"history": HYSTERESIS, "options": {"parse_error_feedback": True}},
        "eval": {"sampling": {"temperature": 0.6}},
    },
}


def test_overlays_by_purpose() -> None:
    train, eval_ = contract(RECIPE, purpose="train")["policy"], contract(RECIPE)["policy"]
    assert (train["history"]["name"], eval_["history"]["name"]) == ("hysteresis", "fixed")
    assert (train["options"]["parse_error_feedback"], eval_["options"]["parse_error_feedback"]) == (True, False)
    assert (train["sampling"]["temperature"], eval_["sampling"]["temperature"]) == (1.0, 0.6)


def test_strict_parity_refuses_different_agents_and_says_where() -> None:
    with pytest.raises(ValueError, match=r"history\.name: 'hysteresis' -> 'fixed'.*parity.*declared"):
        spec_of(RECIPE | {"parity": "strict"})


def test_a_demanded_agent_contract_is_checked() -> None:
    training = agent_contract_id(contract())
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
    assert contract(knobs)["policy"]["history"] == history


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
    assert contract_of(spec, resolved_of(made)) == made
    assert read_spec(spec.model_dump(mode="json")) == spec
