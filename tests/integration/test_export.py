"""Exports of a batch that a model played: rows that a trainer can trust, the same bytes every time."""

import asyncio
import dataclasses
import hashlib
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from sqlalchemy import text
from temporalio.client import WorkflowFailureError

from models.identity import digest
from rollbook.config.settings import PROJECT_ROOT
from rollbook.errors import InvalidInput
from rollbook.evidence.exact import exact_envelope
from rollbook.evidence.load import load_calls
from rollbook.evidence.trajectory import semantic_trajectory
from rollbook.evidence.verify import verify
from rollbook.export.gym import export_gym
from rollbook.export.training import export_training
from tests.doubles.model_server import Call, Reply
from tests.support.model_server import DONE, Scenario, code, model_spec, model_system, recorded
from tests.support.system import System, WorkerProcess, small_tasks

BATCH = "trained"
_FINAL = "SELECT rollout_key FROM rollout WHERE state = 'final' AND batch_id = :batch"

COMPLETION = (
    "rollout_id",
    "completion_id",
    "action_id",
    "model_call_id",
    "turn_id",
    "environment_step",
    "parse_attempt",
    "accepted",
    "parse_error",
    "prepared_request_id",
    "request_id",
    "context_epoch",
    "segment_index",
    "segment_id",
    "expected_append_compatible",
    "compaction_event_id",
    "prompt_token_ids",
    "sampled_token_ids",
    "sampled_logprobs",
    "finish_reason",
    "media_ids",
    "policy_decision",
    "generation_contract_id",
    "policy_output_spans",
    "media_occurrences",
    "processor_fingerprint",
    "eligible",
    "evidence_source",
)
"""Keys of upstream's completion evidence."""


@pytest.fixture(scope="module")
async def system(scratch: Path, ledger_url: str, temporal_address: str, deployment_id: str) -> AsyncIterator[System]:
    """Two tasks, three samples each; sample 2 of the first is masked by a model that never answers."""

    def answer(call: Call) -> Any:
        if call.headers["x-rollbook-rollout-key"].endswith("t000/2"):
            return Reply(fault="unauthorized")
        if call.step == 2 and call.parse_attempt == 1:
            return "no code here"
        return DONE if call.step > 3 else code(f"pyautogui.click(0.{call.step}, 0.5)")

    said = Scenario()
    said.answer = answer
    async with model_system(scratch / "export", ledger_url, temporal_address, deployment_id, said) as system:
        await system.register_tasks("two", small_tasks(2))
        identity = {"sampling_event_id": "event", "source_group_ids": {"t000": "g-0", "t001": "g-1"}}
        more: dict[str, Any] = {"max_attempts": 2, "concurrency": 3, "reward_mode": "raw", "identity": identity}
        spec = model_spec("two", samples=3, purpose="train", **more)
        await system.run_batch(spec, BATCH)
        yield system


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


async def test_training_rows(system: System, tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    manifest = await export_training(system.ledger, system.artifacts, BATCH, out)
    rows = read(out)
    assert hashlib.sha256(out.read_bytes()).hexdigest() == manifest["sha256"]
    # five rollouts of four steps with one parser retry each; the masked one has the refused call of its last attempt
    assert len(rows) == manifest["rows"] == 5 * 5 + 1
    assert (manifest["planned"], manifest["masked"]) == (6, 1)
    masked = [row for row in rows if row["mask_sample"]]
    assert [row["rollout_key"] for row in masked] == [f"{BATCH}/os/t000/2"]
    assert masked[0]["loss_spans"] == []
    assert masked[0]["group"]["advantage"] is None
    assert masked[0]["runtime_admission"]["reason"] == "model_call_failed"
    for row in rows:
        if row["mask_sample"]:
            continue
        tokens = row["tokens"]
        assert row["loss_spans"] == [[0, len(tokens["sampled_token_ids"])]]
        assert len(tokens["sampled_token_ids"]) == len(tokens["sampled_logprobs"])
        assert row["call"]["prompt_tokens"] == len(tokens["prompt_token_ids"])
        assert row["evidence"]["complete"]
        assert [one["sha256"] for one in row["media"]] == [
            part["image_url"]["url"].removeprefix("media://")
            for message in row["messages"]
            if isinstance(message["content"], list)
            for part in message["content"]
            if part["type"] == "image_url"
        ]
    reasons = [set(row["exact_trace"]["incomplete_reasons"]) for row in rows if not row["mask_sample"]]
    assert reasons == [set()] * 25
    assert all(row["trainable"] is not row["mask_sample"] for row in rows), "a trainer's identity, and nothing masked"


async def test_a_masked_member_has_no_vote_in_its_group(system: System, tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    await export_training(system.ledger, system.artifacts, BATCH, out)
    groups: dict[str, dict[str, Any]] = {}
    for row in read(out):
        groups.setdefault(row["identity"]["group_id"], {})[row["rollout_key"]] = row
    for members in groups.values():
        valid = [row["outcome"]["reward"] for row in members.values() if not row["mask_sample"]]
        for row in members.values():
            assert (row["group"]["members"], row["group"]["valid"]) == (3, len(valid))
            assert row["group"]["baseline"] == pytest.approx(sum(valid) / len(valid))


async def test_the_same_batch_gives_the_same_bytes_and_an_interrupted_export_goes_on(
    system: System, tmp_path: Path
) -> None:
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    await export_training(system.ledger, system.artifacts, BATCH, one)

    class Power(Exception):
        pass

    def cut(done: int, of: int) -> None:
        if done == 4:
            raise Power

    with pytest.raises(Power):
        await export_training(system.ledger, system.artifacts, BATCH, two, progress=cut)
    assert not two.exists()
    spoiled = sorted((tmp_path / "two.jsonl.parts").iterdir())[1]
    spoiled.rename(spoiled.with_name(f"{spoiled.name[:-10]}00000.jsonl"))  # a part of an older state of the ledger
    manifest = await export_training(system.ledger, system.artifacts, BATCH, two)
    assert manifest["parts_reused"] == 3
    assert one.read_bytes() == two.read_bytes()
    assert sorted(os.listdir(tmp_path)) == [
        "one.jsonl",
        "one.jsonl.manifest.json",
        "two.jsonl",
        "two.jsonl.manifest.json",
    ]


def read_parquet(path: Path) -> list[dict[str, Any]]:
    """The rows as JSON Lines have them, by what the file says of itself."""
    table = pyarrow.parquet.read_table(path)
    said = {name.decode(): value.decode() for name, value in table.schema.metadata.items()}
    rows: list[dict[str, Any]] = table.to_pylist()
    for row in rows:
        for name in json.loads(said["rollbook.json_columns"]):
            row[name] = None if row[name] is None else json.loads(row[name])
        for name in json.loads(said["rollbook.absent_when_null"]):
            struct, member = name.split(".")
            if row[struct][member] is None:
                del row[struct][member]
    return rows


async def test_parquet_holds_what_json_lines_hold(system: System, tmp_path: Path) -> None:
    lines, columns, again = tmp_path / "rows.jsonl", tmp_path / "rows.parquet", tmp_path / "again.parquet"
    one = await export_training(system.ledger, system.artifacts, BATCH, lines)
    two = await export_training(system.ledger, system.artifacts, BATCH, columns, format="parquet")
    assert [json.dumps(row, sort_keys=True) for row in read_parquet(columns)] == [
        json.dumps(row, sort_keys=True) for row in read(lines)
    ]
    assert (two["format"], two["rows"], two["masked"]) == ("parquet", one["rows"], one["masked"])
    assert hashlib.sha256(columns.read_bytes()).hexdigest() == two["sha256"]

    class Power(Exception):
        pass

    def cut(done: int, of: int) -> None:
        if done == 4:
            raise Power

    with pytest.raises(Power):
        await export_training(system.ledger, system.artifacts, BATCH, again, format="parquet", progress=cut)
    assert not again.exists()
    resumed = await export_training(system.ledger, system.artifacts, BATCH, again, format="parquet")
    assert resumed["parts_reused"] == 4
    assert again.read_bytes() == columns.read_bytes()
    assert sorted(name for name in os.listdir(tmp_path) if name.startswith("again")) == [
        "again.parquet",
        "again.parquet.manifest.json",
    ]


async def test_parquet_from_the_command_line(system: System, tmp_path: Path) -> None:
    code, said = await command(system, tmp_path, "export", "training", BATCH, "--format", "parquet", "--json")
    assert code == 0, said
    assert len(read_parquet(tmp_path / f"{BATCH}.training.parquet")) == json.loads(said)["rows"]
    (tmp_path / "pyarrow.py").write_text("raise ImportError('as if it were not installed')\n")
    out = tmp_path / "none.parquet"
    code, said = await command(system, tmp_path, "export", "training", BATCH, "--format", "parquet", "--out", str(out))
    assert code == 2
    assert "rollbook[export]" in said
    assert "Traceback" not in said
    assert not [name for name in os.listdir(tmp_path) if name.startswith("none")]


async def command(system: System, directory: Path, *arguments: str) -> tuple[int, str]:
    """`rollbook` as a process of its own; modules in `directory` come first."""
    address = system.client.service_client.config.target_host
    environment = WorkerProcess(system.settings, address, system.settings.state_dir / "cli.log").environment()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "rollbook.cli.main", *arguments),
        env=environment | {"PYTHONPATH": f"{directory}{os.pathsep}{PROJECT_ROOT}"},
        cwd=directory,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    return process.returncode or 0, said.decode()


async def test_segments_follow_from_the_arrays(system: System, tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    await export_training(system.ledger, system.artifacts, BATCH, out)
    rows = [row for row in read(out) if row["rollout_key"].endswith("t001/0")]
    assert [row["turn_id"] for row in rows] == [1, 2, 3, 4, 5]
    before: dict[str, Any] | None = None
    for row in rows:
        prompt = row["tokens"]["prompt_token_ids"]
        if before is None:
            extends = False
        else:
            sequence = before["tokens"]["prompt_token_ids"] + before["tokens"]["sampled_token_ids"]
            media = [one["media_id"] for one in before["media"]]
            extends = prompt[: len(sequence)] == sequence
            extends = extends and [one["media_id"] for one in row["media"]][: len(media)] == media
        assert row["segment"]["append_compatible"] == extends
        before = row
    # a past turn is shown without its code, so nothing here extends what came before
    assert [row["segment"]["index"] for row in rows] == [0, 1, 2, 3, 4]


async def test_the_exact_envelope_is_whole_and_covers_no_execution(system: System) -> None:
    attempt = next(one for one in await recorded(system, BATCH) if one.key.endswith("t001/0"))
    loaded = await load_calls(attempt, system.artifacts)
    envelope = exact_envelope(loaded)
    assert envelope is not None
    calls = envelope["model_call_metadata"]
    assert [call["turn_id"] for call in calls] == [1, 2, 3, 4, 5]
    assert [call["accepted"] for call in calls] == [True, False, True, True, True]
    assert [event["event_id"] for event in envelope["boundary_events"]] == [
        call["compaction_event_id"] for call in calls[1:]
    ]
    assert all(call["context_epoch"] == call["segment_index"] for call in calls)
    for call, row in zip(calls, attempt.calls, strict=True):
        arrays = await system.artifacts.get(call["generation_evidence_digest"])
        assert hashlib.sha256(arrays).hexdigest() == row.tokens_sha256
        assert call["policy_output_spans"][0]["end"] == len(json.loads(arrays)["sampled_token_ids"])
    assert not envelope["context_compaction_contract"]["generation_contract"]["training_eligible"]
    assert str(attempt.attempt["execution_id"]) not in json.dumps(envelope)
    assert attempt.attempt["execution_id"].hex not in json.dumps(semantic_trajectory(loaded))


async def test_a_changed_artifact_or_row_is_found(system: System) -> None:
    attempt = next(one for one in await recorded(system, BATCH) if one.key.endswith("t001/1"))
    assert (await verify(attempt, system.artifacts)).ok
    spoken, noted = attempt.calls[0].said or {}, attempt.calls[2].telemetry or {}
    columns: list[tuple[int, dict[str, Any], str]] = [
        (1, {"parse_error": "something else"}, "parse_error"),
        (0, {"actions": ["pyautogui.click(9, 9)"]}, "actions"),
        (0, {"accepted": False}, "accepted"),
        (0, {"completed": False}, "failure_kind"),
        (0, {"summary": "click(9, 9)"}, "summary"),
        (2, {"prompt_sha256": "0" * 64}, "prompt"),
        (2, {"parse_attempt": 3}, "parse_attempt"),
        (3, {"image_sha256": "0" * 64}, "image"),
        (3, {"tokens_sha256": None}, "tokens_sha256"),
        (3, {"tokens_sha256": "0" * 64}, "tokens_sha256"),
        (3, {"response_sha256": "0" * 64}, "evidence"),
        (2, {"model_version": "weights-of-tomorrow"}, "model_version"),
        (2, {"model_name": "another"}, "model_name"),
        (2, {"prompt_tokens": 1}, "prompt_tokens"),
        (2, {"completion_tokens": None}, "completion_tokens"),
        (0, {"said": spoken | {"kept_text": "I never said that."}}, "prompt"),
    ]
    telemetry: list[tuple[str, Any]] = [
        ("sent_digest", "0" * 64),
        ("sent_digest", None),
        ("media", []),
        ("media", [*noted["media"][:-1], "0" * 64]),
        ("temperature", 0.123),
        ("seed", 17),
        ("max_images", 1),
        ("history", {}),
        ("usage", {}),
        ("served_model", "another"),
        ("token_problems", ["exact_sampled_logprobs_unavailable"]),
        ("token_problems", ["exact_prompt_token_ids_unavailable", "exact_sampled_token_ids_unavailable"]),
        ("normalization_error", "none of it"),
    ]
    assert len(noted["media"]) > 1
    changes = columns + [(2, {"telemetry": noted | {name: value}}, name) for name, value in telemetry]
    without = [name for name in noted if name not in ("api", "queued_s")]
    changes += [(2, {"telemetry": {k: v for k, v in noted.items() if k != name}}, name) for name in without]
    for position, change, what in changes:
        calls = list(attempt.calls)
        calls[position] = dataclasses.replace(calls[position], **change)
        proof = await verify(dataclasses.replace(attempt, calls=calls), system.artifacts)
        assert not proof.ok, what
        assert what in {one.what for one in proof.mismatches}, (what, proof.mismatches)


async def test_what_cannot_be_checked_is_said_and_is_not_ok(system: System) -> None:
    attempt = next(one for one in await recorded(system, BATCH) if one.key.endswith("t001/1"))
    contract = attempt.contract.document
    contract |= {"policy": contract["policy"] | {"parser_id": "a-parser-of-tomorrow"}}
    newer = dataclasses.replace(attempt, rollout=attempt.rollout | {"contract": contract})
    proof = await verify(newer, system.artifacts)
    assert (proof.ok, proof.mismatches, proof.prompts_equal) == (False, [], 0)
    assert {one.what for one in proof.unchecked} == {"protocol"}
    assert len(proof.unchecked) == proof.calls == 5


async def test_the_full_trace_has_arrays_and_calls(system: System, tmp_path: Path) -> None:
    code, said = await command(system, tmp_path, "evidence", "trace", f"{BATCH}/os/t001/0", "--full")
    assert code == 0, said
    trace = json.loads(said)
    exact = trace["exact"]
    assert exact["context_compaction_contract"]["schema_version"] == 2
    assert "model_call_metadata" not in exact
    attempt = next(one for one in await recorded(system, BATCH) if one.key.endswith("t001/0"))
    brief = exact_envelope(await load_calls(attempt, system.artifacts))
    assert brief is not None
    for name in ("boundary_events", "lineage_deltas", "final_policy_decision"):
        assert exact[name] == brief[name]
    for one, row, other in zip(exact["completion_evidence"], attempt.calls, brief["model_call_metadata"], strict=True):
        assert set(COMPLETION) <= one.keys()
        assert row.tokens_sha256
        arrays = json.loads(await system.artifacts.get(row.tokens_sha256))
        assert {name: one[name] for name in arrays} == arrays
        assert one["completion_id"] == other["completion_id"]
        assert one["generation_contract_id"] == other["generation_contract_id"]
    media = {one["media_id"] for one in trace["media_assets"]}
    assert media == {f"media-{digest(one['source_part'])[:24]}" for one in trace["media_assets"]}
    for call, row in zip(exact["trajectory_model_calls"], attempt.calls, strict=True):
        assert (call["environment_step"], call["parse_attempt"]) == (row.step, row.parse_attempt)
        assert call["response"]["content"] == (row.said or {})["content"]
        assert call["exact_generation_arrays"]["sampled_token_ids"] == call["response"]["generation_token_ids"]
        shown = [part["media_id"] for message in call["projected_prompt_messages"] for part in images(message)]
        assert shown == call["media_ids"]
        assert set(shown) <= media
    assert [call["done"] for call in exact["trajectory_model_calls"]] == [False] * 4 + [True]


def images(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message["content"]
    return [part for part in content if part["type"] == "image_url"] if isinstance(content, list) else []


async def test_a_repeated_sample_names_the_contract_it_was_drawn_under(system: System) -> None:
    policy = {"sampling": {"temperature": 0.1, "max_output_tokens": 900}}
    await system.run_batch(model_spec("two", policy, tasks={"ids": ["t001"]}), "cool")
    [attempt] = await recorded(system, "cool")
    envelope = exact_envelope(await load_calls(attempt, system.artifacts))
    assert envelope is not None
    configured = envelope["context_compaction_contract"]["generation_contract"]
    assert configured["sampling_contract"] == {"temperature": 0.1, "top_p": None, "max_output_tokens": 900}
    calls = envelope["model_call_metadata"]
    assert [call["sampling"]["temperature"] for call in calls] == [0.1, 0.1, 0.2, 0.1, 0.1]
    drawn = [call["generation_contract_id"] == configured["generation_contract_id"] for call in calls]
    assert drawn == [True, True, False, True, True]
    assert len({call["generation_contract_id"] for call in calls}) == 2


async def test_gym_files(system: System, tmp_path: Path) -> None:
    done = await export_gym(system.ledger, system.artifacts, BATCH, tmp_path / "gym.jsonl")
    assert (done["results"], done["failures"], done["inputs"]) == (5, 1, 6)
    results, failures = read(tmp_path / "gym.jsonl"), read(tmp_path / "gym_failures.jsonl")
    inputs = read(tmp_path / "gym_materialized_inputs.jsonl")
    keys = {(row["_ng_task_index"], row["_ng_rollout_index"]) for row in inputs}
    assert len(keys) == 6
    measured = {(row["_ng_task_index"], row["_ng_rollout_index"]) for row in results}
    masked = {(row["_ng_task_index"], row["_ng_rollout_index"]) for row in failures}
    assert measured | masked == keys
    assert not measured & masked
    attempts = [(row.get("_ng_attempt_index", 0), row["_ng_failure_terminal"]) for row in failures]
    assert attempts == [(0, True)]  # a refusal: another attempt would meet it again
    for row in [*results, *failures]:
        assert row["mask_sample"] == (not row["runtime_eligible"])
        assert row["verifier_metadata"]["osworld_runtime_eligible"] == row["runtime_eligible"]
    for row in results:
        assert len(row["response"]["output"]) == len(row["response"]["model_call_metadata"]) == 5
        assert row["response"]["trajectory_contract"]["model_call_count"] == 5
        media = {one["media_id"] for one in row["response"]["media_assets"]}
        assert media == {one for call in row["response"]["model_call_metadata"] for one in call["media_ids"]}
        source = next(one for one in inputs if one["_ng_rollout_id"] == row["_ng_rollout_id"])
        assert source.keys() <= row.keys()
    metrics = json.loads((tmp_path / "gym_aggregate_metrics.json").read_bytes())
    assert metrics["osworld/scored_rollout_count"] == 5
    assert metrics["coverage/masked_rollouts"] == 1
    assert metrics["osworld/raw_reward_sum"] == pytest.approx(sum(row["reward"] for row in results))


async def test_every_planned_rollout_is_in_the_export_or_it_is_refused(system: System, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no batch"):
        await export_training(system.ledger, system.artifacts, "nobody", tmp_path / "rows.jsonl")
    await system.ledger.request_rerun(BATCH, [f"{BATCH}/os/t000/2"], reason="again", requested_by="test")
    with pytest.raises(InvalidInput, match="1 of 6 rollouts of trained are not final"):
        await export_training(system.ledger, system.artifacts, BATCH, tmp_path / "rows.jsonl")
    manifest = await export_training(system.ledger, system.artifacts, BATCH, tmp_path / "rows.jsonl", partial=True)
    assert (manifest["planned"], manifest["final"]) == (6, 5)
    async with system.ledger.engine.connect() as connection:
        keys = set((await connection.execute(text(_FINAL), {"batch": BATCH})).scalars())
    assert {row["rollout_key"] for row in read(tmp_path / "rows.jsonl")} == keys


async def test_the_audit_reads_images_and_token_arrays(system: System) -> None:
    attempt = next(one for one in await recorded(system, BATCH) if one.key.endswith("t001/2"))
    root = Path(system.settings.artifacts.removeprefix("file://"))
    for name in ("tokens_sha256", "prompt_sha256"):
        sha256 = getattr(attempt.calls[0], name)
        path = root / sha256[:2] / sha256
        hidden = path.with_suffix(".hidden")
        os.rename(path, hidden)
        try:
            report = await system.audit(BATCH)
            loaded = await load_calls(attempt, system.artifacts)
        finally:
            os.rename(hidden, path)
        assert ("artifact_missing", sha256) in {(found.kind, found.subject) for found in report.findings}
        assert not loaded.evidence_complete
        assert exact_envelope(loaded) is None
    image = attempt.calls[0].image_sha256
    assert image
    path = root / image[:2] / image
    kept = path.read_bytes()
    path.write_bytes(kept + b"x")
    try:
        report = await system.audit(BATCH)
    finally:
        path.write_bytes(kept)
    assert ("artifact_corrupt", image) in {(found.kind, found.subject) for found in report.findings}


async def test_unknown_protocols_and_endpoints_are_refused_at_registration(system: System) -> None:
    for policy, message in (
        ({"protocol": "telepathy-v1"}, "policy.protocol: 'telepathy-v1' is unknown"),
        ({"endpoint": "nowhere"}, "policy.endpoint: no endpoint profile 'nowhere'"),
        ({"sampling": {"extra": {"n": 4}}}, "policy.sampling.extra: n cannot be set"),
        ({"agent_contract_id": f"agent-contract-{'0' * 24}"}, "policy.agent_contract_id: the spec means"),
    ):
        with pytest.raises(WorkflowFailureError) as failure:
            await system.run_batch(model_spec("two", policy))
        assert message in str(failure.value.cause)


async def test_a_trainers_own_identity_makes_rows_trainable(system: System, tmp_path: Path) -> None:
    identity = {
        "sampling_event_id": "sampling-train-step-00000001-ab",
        "source_group_ids": {"t000": "g0", "t001": "g1"},
    }
    spec = model_spec("two", samples=2, purpose="train", identity=identity)
    await system.run_batch(spec, "caller")
    manifest = await export_training(system.ledger, system.artifacts, "caller", tmp_path / "rows.jsonl")
    rows = read(tmp_path / "rows.jsonl")
    assert (manifest["final"], manifest["masked"], len(rows)) == (4, 0, 4 * 5)
    assert {row["trainable"] for row in rows} == {True}
    assert {tuple(row["exact_trace"]["incomplete_reasons"]) for row in rows} == {()}
    assert {row["identity"]["source"] for row in rows} == {"caller"}
    assert len({row["identity"]["group_id"] for row in rows}) == 2
    columns = tmp_path / "rows.parquet"
    await export_training(system.ledger, system.artifacts, "caller", columns, format="parquet")
    assert read_parquet(columns) == rows
    [attempt, *_] = await recorded(system, "caller")
    trajectory = semantic_trajectory(await load_calls(attempt, system.artifacts))
    assert trajectory["trajectory_contract"]["training_eligibility"]["status"] == "requires_runtime_admission"
