"""Exports against ledger histories: reruns, supersedes, half batches, callers; memory, crashes, round trips."""

import json
import random
import tracemalloc
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from sqlalchemy import text
from sqlalchemy.exc import InternalError

from models.admission import AdmissionDecision
from models.gym_results import read_row
from models.identity import scoped_group_id, scoped_rollout_id
from rollbook.errors import ArtifactError, InvalidInput
from rollbook.export.files import FileSet
from rollbook.export.gym import export_gym
from rollbook.export.training import export_training
from rollbook.ledger import Ledger, ModelCall
from rollbook.ledger.imports import Source
from tests.support.ledger import DEPLOYMENT, NAMESPACE, Kit, artifact, ref, rows

FILES = ("gym.jsonl", "gym_failures.jsonl", "gym_materialized_inputs.jsonl", "gym_aggregate_metrics.json")


class NoArtifacts:
    async def get(self, sha256: str) -> bytes:
        raise ArtifactError(f"{sha256}: nobody stored it")


class LongCalls:
    """Every artifact is the token arrays of a long call."""

    TOKENS = 20_000

    async def get(self, sha256: str) -> bytes:
        found = random.Random(sha256)
        ids = [found.randrange(100_000) for _ in range(self.TOKENS)]
        return json.dumps({"prompt_token_ids": ids, "sampled_token_ids": ids, "sampled_logprobs": ids}).encode()


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


async def exported(
    kit: Kit, directory: Path, *, partial: bool = False
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]], dict[str, Any]]:
    """Results, failures, inputs, metrics."""
    await export_gym(kit.ledger, NoArtifacts(), kit.batch_id, directory / "gym.jsonl", partial=partial)
    results, failures, inputs, (metrics,) = (read(directory / name) for name in FILES)
    return results, failures, inputs, metrics


def seen(found: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Attempt, admitted, class and terminal flag of rows."""
    names = ("runtime_eligible", "_ng_failure_class", "_ng_failure_terminal")
    return [(row.get("_ng_attempt_index", 0), *(row.get(name) for name in names)) for row in found]


async def fail(kit: Kit, key: str, reason: str = "timeout") -> None:
    run_id = uuid.uuid4().hex
    claimed = await kit.claim(key, run_id)
    await kit.end(key, claimed.attempt_index, run_id, infrastructure_failure_reason=reason)


async def again(kit: Kit, key: str, *, supersede: bool) -> None:
    await kit.ledger.request_rerun(kit.batch_id, [key], reason="again", requested_by="test", supersede=supersede)


ONE = {"tasks": {"ids": ["task-000"]}}


async def test_a_rerun_of_a_masked_rollout_leaves_one_result(kit: Kit, tmp_path: Path) -> None:
    (key,) = await kit.keys(**ONE)
    await fail(kit, key)
    _, failures, _, _ = await exported(kit, tmp_path / "masked")
    assert seen(failures) == [(0, False, "masked_sample", True)]
    await again(kit, key, supersede=False)
    await kit.run(key)
    results, failures, _, metrics = await exported(kit, tmp_path / "again")
    assert seen(results) == [(1, True, None, None)]
    assert seen(failures) == [(0, False, "masked_sample", False)]
    assert (metrics["coverage/failed_attempts"], metrics["coverage/replaced_attempts"]) == (1, 0)


async def test_an_admitted_attempt_that_was_replaced_is_in_the_sidecar(kit: Kit, tmp_path: Path) -> None:
    (key,) = await kit.keys(**ONE)
    await kit.run(key, score=1.0)
    await again(kit, key, supersede=True)
    results, failures, _, metrics = await exported(kit, tmp_path / "waiting", partial=True)
    assert results == [], "what waits for its rerun has no result"
    assert seen(failures) == [(0, True, "replaced_by_rerun", False)]
    assert (metrics["completed_rollout_rows"], metrics["coverage/missing_rollouts"]) == (0, 1)
    await kit.run(key, score=0.0)
    results, failures, _, metrics = await exported(kit, tmp_path / "done")
    assert seen(results) == [(1, True, None, None)]
    assert seen(failures) == [(0, True, "replaced_by_rerun", False)]
    assert not failures[0]["mask_sample"], "its decision stays what it is"
    assert [row["verifier_metadata"]["osworld_score"] for row in (*results, *failures)] == [0.0, 1.0]
    assert (metrics["coverage/failed_attempts"], metrics["coverage/replaced_attempts"]) == (0, 1)
    assert metrics["osworld/raw_reward_sum"] == 0.0


async def test_a_masked_rerun_does_not_end_an_admitted_rollout(kit: Kit, tmp_path: Path) -> None:
    (key,) = await kit.keys(**ONE)
    await kit.run(key)
    await again(kit, key, supersede=True)
    await fail(kit, key)
    assert (await kit.row(key))["selected_attempt"] == 1
    results, failures, _, metrics = await exported(kit, tmp_path)
    assert seen(results) == [(0, True, None, None)]
    assert seen(failures) == [(1, False, "masked_sample", False)], "terminal only where the result is masked"
    assert metrics["coverage/masked_rollouts"] == 0


async def test_coverage_is_per_agent_and_stays_when_everything_is_masked(kit: Kit, tmp_path: Path) -> None:
    keys = await kit.keys(samples=2, **ONE)
    for key in keys:
        await fail(kit, key)
    _, failures, inputs, metrics = await exported(kit, tmp_path)
    assert (len(failures), len(inputs)) == (2, 2)
    (coverage,) = metrics["coverage_by_agent"].values()
    assert metrics["coverage_by_agent"].keys() == {row["agent_ref"]["name"] for row in inputs}
    assert coverage == {
        "expected_rollouts": 2,
        "completed_rollouts": 0,
        "masked_rollouts": 2,
        "missing_rollouts": 0,
        "failed_attempts": 2,
        "replaced_attempts": 0,
    }
    assert {f"coverage/{name}": value for name, value in coverage.items()}.items() <= metrics.items()
    assert metrics["osworld/raw_reward_rate"] is None


RESPONSE = {
    "trajectory_contract",
    "trajectory_transitions",
    "model_call_summaries",
    "media_assets",
    "model_call_metadata",
    "final_policy_decision",
    "lineage_deltas",
    "chunk_records",
    "boundary_events",
    "guard_records",
    "context_compaction_contract",
    "agent_contract",
    "execution_context",
}
"""Keys of upstream's response envelope, transport v3."""

VERIFIED = (
    "score finished horizon_reached evaluation_completed runtime_eligible runtime_admission_reason "
    "runtime_admission_policy_id error steps artifact_dir model_name termination_reason agent_contract_id "
    "proxy_required proxy_enabled proxy_configured"
)


async def test_the_envelope_has_every_key_of_the_contract(kit: Kit, tmp_path: Path) -> None:
    done, masked = await kit.keys(samples=2, **ONE)
    await kit.run(done)
    await fail(kit, masked)
    results, failures, _, _ = await exported(kit, tmp_path)
    for row in (*results, *failures):
        assert row["response"].keys() >= RESPONSE
        assert row["verifier_metadata"].keys() >= {f"osworld_{name}" for name in VERIFIED.split()}
        assert row["response"]["execution_context"]["execution_id"] == row["_ng_execution_id"]
    (row,) = results
    assert [one["environment_step"] for one in row["response"]["model_call_summaries"]] == [1, 2]
    states = [step["next_state"] for step in row["verifier_metadata"]["osworld_steps"]]
    assert states == [
        {"screenshot_bytes": 10, "screenshot_sha256": artifact(f"{done}/{step}").sha256} for step in (1, 2)
    ]


async def test_a_callers_identity_goes_out_and_comes_back(kit: Kit, tmp_path: Path) -> None:
    event = f"sampling-train-{uuid.uuid4().hex}"
    groups = {"task-000": "g-0", "task-001": "g-1"}
    identity = {"sampling_event_id": event, "source_group_ids": groups}
    keys = await kit.keys(samples=2, tasks={"ids": ["task-000", "task-001"]}, identity=identity, purpose="train")
    await kit.run(keys[0], score=1.0)
    await fail(kit, keys[1], "model_call_failed")
    await kit.run(keys[1], score=0.0)
    await fail(kit, keys[2])
    await kit.run(keys[3], score=0.5)
    results, failures, inputs, _ = await exported(kit, tmp_path)
    assert (len(results), len(failures), len(inputs)) == (3, 2, 4)
    for row in (*results, *failures, *inputs):
        said, task = row["trajectory_identity"], row["verifier_metadata"]["task_id"]
        attempt = row.get("_ng_attempt_index", 0)
        source = groups[task]
        assert said == {
            "schema_version": 1,
            "rollout_id": scoped_rollout_id(event, source, task, row["_ng_rollout_index"], attempt),
            "group_id": scoped_group_id(event, source),
            "task_id": task,
            "rollout_index": row["_ng_rollout_index"],
            "attempt_index": attempt,
            "sampling_event_id": event,
            "source_group_id": source,
        }
        if "response" in row:
            contract = row["response"]["trajectory_contract"]
            assert {name: contract[name] for name in said if name != "schema_version"}.items() <= said.items()
    # a failed attempt before its rollout's result: imported into a separate batch
    ended = [row for row in failures if row["_ng_failure_terminal"]]
    await imported(kit, f"{kit.batch_id}-back", [*results, *ended])
    await imported(kit, f"{kit.batch_id}-first", [row for row in failures if row not in ended])


async def imported(kit: Kit, batch_id: str, exported: list[dict[str, Any]]) -> None:
    """Import rows as a batch, and find every key again."""
    source = Source(
        batch_id=batch_id,
        deployment_id=DEPLOYMENT,
        namespace=NAMESPACE,
        task_set="tasks",
        reward_mode="binary",
        sha256="0" * 64,
        rows=[read_row(row, "binary") for row in exported],
    )
    await kit.ledger.import_results(source)
    query = """
        SELECT task_id, sample, result.admitted, score, termination_reason, evidence
        FROM rollout_result AS result JOIN admission USING (rollout_key) WHERE batch_id = :batch_id
    """
    found = {(row["task_id"], row["sample"]): row for row in await rows(kit.ledger, query, batch_id=batch_id)}
    assert len(found) == len(exported)
    for row in exported:
        back = found[row["trajectory_identity"]["task_id"], row["_ng_rollout_index"]]
        assert back["evidence"]["trajectory_identity"] == row["trajectory_identity"]
        assert (back["admitted"], back["score"], back["termination_reason"]) == tuple(
            row["verifier_metadata"][f"osworld_{name}"] for name in ("runtime_eligible", "score", "termination_reason")
        )
    assert (await kit.ledger.audit(batch_id)).ok


async def test_a_derived_identity_is_not_passed_off_as_a_callers(kit: Kit, tmp_path: Path) -> None:
    (key,) = await kit.keys(**ONE)
    await kit.run(key)
    results, _, inputs, _ = await exported(kit, tmp_path)
    assert not any("trajectory_identity" in row for row in (*results, *inputs))


async def long_batch(kit: Kit, samples: int) -> None:
    for key in await kit.keys(samples=samples, **ONE):
        await kit.claim(key)
        for step in (1, 2):
            call = ModelCall(
                step=step,
                policy_kind="openai",
                actions=["WAIT"],
                terminal_action="DONE" if step == 2 else None,
                tokens=artifact(f"{key}/{step}"),
                telemetry={},
            )
            await kit.ledger.commit_model_call(ref(key, 1), "run-1", call)
        await kit.evaluate(key, 1, "run-1", 1.0)
        await kit.end(key, 1, "run-1")


class Routed:
    """Token arrays of a mixture of experts; only the second call's server reported its experts."""

    EXPERTS = (None, [[[0, 7], [3, 1]]])

    def __init__(self, key: str) -> None:
        self._experts = {artifact(f"{key}/{step}").sha256: one for step, one in enumerate(self.EXPERTS, 1)}

    async def get(self, sha256: str) -> bytes:
        arrays = {"prompt_token_ids": [1], "sampled_token_ids": [2], "sampled_logprobs": [-0.5]}
        experts = self._experts[sha256]
        return json.dumps(arrays if experts is None else arrays | {"routed_experts": experts}).encode()


async def test_routed_experts_are_exported_where_the_server_gave_them(kit: Kit, tmp_path: Path) -> None:
    await long_batch(kit, 1)
    (key,) = await kit.planned()
    source = Routed(key)
    await export_gym(kit.ledger, source, kit.batch_id, tmp_path / "gym.jsonl")
    (row,) = read(tmp_path / "gym.jsonl")
    assert [one.get("routed_experts", "absent") for one in row["response"]["output"]] == ["absent", Routed.EXPERTS[1]]
    await export_training(kit.ledger, source, kit.batch_id, tmp_path / "rows.jsonl")
    assert [one["routed_experts"] for one in read(tmp_path / "rows.jsonl")] == list(Routed.EXPERTS)
    await export_training(kit.ledger, source, kit.batch_id, tmp_path / "rows.parquet", format="parquet")
    column = pyarrow.parquet.read_table(tmp_path / "rows.parquet")["routed_experts"].to_pylist()
    assert [one and json.loads(one) for one in column] == list(Routed.EXPERTS)


async def peak_of(ledger: Ledger, batch_id: str, out: Path) -> int:
    """Bytes that an export needs at once, beyond what was there before."""
    tracemalloc.start()
    try:
        await export_gym(ledger, LongCalls(), batch_id, out)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


async def test_memory_does_not_grow_with_the_batch(ledger: Ledger, kit: Kit, tmp_path: Path) -> None:
    few, many = kit, Kit(ledger, batch_id=f"{kit.batch_id}-many", tasks=kit.tasks)
    await long_batch(few, 2)
    await long_batch(many, 8)
    small, large = tmp_path / "few.jsonl", tmp_path / "many.jsonl"
    await peak_of(ledger, few.batch_id, small)  # what is loaded once
    peaks = [await peak_of(ledger, few.batch_id, small), await peak_of(ledger, many.batch_id, large)]
    assert large.stat().st_size > 3.9 * small.stat().st_size > 3.9 * 4 * 3 * 5 * LongCalls.TOKENS
    assert peaks[1] < 1.3 * peaks[0], peaks


async def test_an_error_at_any_rename_leaves_no_mixture(
    kit: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = await kit.keys(samples=2, **ONE)
    await kit.run(keys[0])
    out = tmp_path / "gym.jsonl"
    await export_gym(kit.ledger, NoArtifacts(), kit.batch_id, out, partial=True)
    old = {name: (tmp_path / name).read_bytes() for name in FILES}
    await fail(kit, keys[1])
    replace, calls = Path.replace, Counter[str]()
    for broken in range(4):
        calls.clear()

        def rename(path: Path, target: Path, broken: int = broken) -> Path:
            calls["rename"] += 1
            if calls["rename"] > broken:
                raise OSError(28, "No space left on device")
            return replace(path, target)

        monkeypatch.setattr(Path, "replace", rename)
        with pytest.raises(OSError, match="No space left"):
            await export_gym(kit.ledger, NoArtifacts(), kit.batch_id, out)
        monkeypatch.setattr(Path, "replace", replace)
        assert names_in(tmp_path) == sorted(FILES[1:]), "no marker beside files of two sets, nothing in the making"
    await export_gym(kit.ledger, NoArtifacts(), kit.batch_id, out)
    new = {name: (tmp_path / name).read_bytes() for name in FILES}
    assert [name for name in FILES if old[name] != new[name]] == [FILES[1], FILES[3]]
    assert names_in(tmp_path) == sorted(FILES)


async def test_a_refused_export_leaves_nothing(kit: Kit, tmp_path: Path) -> None:
    keys = await kit.keys(samples=2, **ONE)
    await kit.run(keys[0])
    with pytest.raises(InvalidInput, match="1 of 2 rollouts are not final"):
        await exported(kit, tmp_path)
    await kit.run(keys[1])
    with FileSet(tmp_path / "gym.jsonl"), pytest.raises(InvalidInput, match="being written by another export"):
        await exported(kit, tmp_path)
    assert names_in(tmp_path) == []


class Meddled:
    """A ledger that is changed right after one of an export's reads."""

    def __init__(self, ledger: Ledger, after: str, change: Callable[[], Awaitable[None]]) -> None:
        self._ledger, self._after, self._change = ledger, after, change
        self.changed = False

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Any]:
        async with self._ledger.snapshot() as seen:
            read = getattr(seen, self._after)

            async def reading(*arguments: Any) -> Any:
                found = await read(*arguments)
                if not self.changed:
                    self.changed = True
                    await self._change()
                return found

            setattr(seen, self._after, reading)
            yield seen


async def flipped(kit: Kit, one: str, other: str) -> None:
    """One masked and another admitted: as many as before."""
    for key, admitted in ((one, False), (other, True)):
        decision = AdmissionDecision(policy_id="by-hand", admitted=admitted, reason="looked at it")
        await kit.ledger.decide_admission(key, decision, decided_by="ann")


READS = [
    ("gym", "batch_of"),
    ("gym", "rollouts_of"),
    ("gym", "recorded"),
    ("training", "batch_of"),
    ("training", "rollouts_of"),
    ("training", "group_statistics"),
    ("training", "recorded"),
]


@pytest.mark.parametrize("what", ["decided", "rerun"])
@pytest.mark.parametrize(("form", "after"), READS)
async def test_an_export_tells_of_one_moment(kit: Kit, tmp_path: Path, form: str, after: str, what: str) -> None:
    one, other = await kit.keys(samples=2, **ONE)
    await kit.run(one, score=1.0)
    await kit.run(other, score=0.0)
    mask = AdmissionDecision(policy_id="by-hand", admitted=False, reason="a popup")
    await kit.ledger.decide_admission(other, mask, decided_by="ann")

    async def change() -> None:
        if what == "decided":
            await flipped(kit, one, other)
        else:
            await again(kit, one, supersede=True)
            await again(kit, other, supersede=False)

    export: Any = export_gym if form == "gym" else export_training
    names = FILES if form == "gym" else ("gym.jsonl", "gym.jsonl.manifest.json")
    for directory in ("quiet", "meddled", "after"):
        (tmp_path / directory).mkdir()
    await export(kit.ledger, NoArtifacts(), kit.batch_id, tmp_path / "quiet" / "gym.jsonl")
    meddled = Meddled(kit.ledger, after, change)
    await export(meddled, NoArtifacts(), kit.batch_id, tmp_path / "meddled" / "gym.jsonl")
    assert meddled.changed
    await export(kit.ledger, NoArtifacts(), kit.batch_id, tmp_path / "after" / "gym.jsonl", partial=True)
    quiet, during, later = (
        [(tmp_path / directory / name).read_bytes() for name in names] for directory in ("quiet", "meddled", "after")
    )
    assert during == quiet != later


async def test_an_export_cannot_write(kit: Kit) -> None:
    async with kit.ledger.snapshot() as seen, seen.transaction() as conn:
        with pytest.raises(InternalError, match="read-only transaction"):
            await conn.execute(text("UPDATE rollout SET state = 'waiting'"))


async def members_of(kit: Kit) -> dict[str, Any]:
    async with kit.ledger.snapshot() as seen:
        return await seen.group_statistics(kit.batch_id)


async def test_a_half_group_is_seen_to_be_half(kit: Kit, tmp_path: Path) -> None:
    keys = await kit.keys(samples=4, **ONE)
    for key in keys[:2]:
        await kit.run(key)
    await export_training(kit.ledger, NoArtifacts(), kit.batch_id, tmp_path / "rows.jsonl", partial=True)
    groups = [row["group"] for row in read(tmp_path / "rows.jsonl")]
    assert [(group["planned"], group["members"], group["valid"]) for group in groups] == [(4, 2, 2)] * 4


@pytest.mark.parametrize("order", ["planned", "reversed"])
async def test_group_statistics_do_not_depend_on_the_order_of_endings(kit: Kit, order: str) -> None:
    scores = [0.1, 0.2, 0.3]
    keys = await kit.keys(samples=len(scores), reward_mode="raw", **ONE)
    ends = list(zip(keys, scores, strict=True))
    for key, score in ends if order == "planned" else reversed(ends):
        await kit.run(key, score=score, steps=0)
    baseline = float(sum(Fraction(repr(score)) for score in scores) / len(scores))
    assert sum(scores) / len(scores) != sum(reversed(scores)) / len(scores), "in floats the order does matter"
    found = await members_of(kit)
    assert {row["group_baseline"] for row in found.values()} == {baseline}
    assert [found[key]["group_advantage"] for key in keys] == [score - baseline for score in scores]


async def test_equal_rewards_have_no_advantage(kit: Kit) -> None:
    for key in await kit.keys(samples=3, reward_mode="raw", **ONE):
        await kit.run(key, score=0.1, steps=0)
    found = (await members_of(kit)).values()
    assert {(row["group_baseline"], row["group_advantage"]) for row in found} == {(0.1, 0.0)}
