"""The views against hand-worked tables, and the statistics against their definitions."""

from math import comb, sqrt
from typing import Any

import pytest
from sqlalchemy import text

from models.admission import AdmissionDecision
from rollbook.ledger import Ledger
from tests.support.ledger import Kit, rows

PUBLIC = {
    "admission_history",
    "current_admission",
    "rollout_result",
    "rollcall",
    "scoreboard",
    "pass_k",
    "sample_spread",
    "training_rows",
    "broken_desktops",
    "excluded_tasks",
    "batch_record",
    "episode_timeline",
    "live_sandboxes",
    "phases",
    "under_pressure",
    "model_usage",
}


async def test_names_are_stable(ledger: Ledger) -> None:
    found = await rows(ledger, "SELECT viewname FROM pg_views WHERE schemaname = 'public'")
    assert {row["viewname"] for row in found} == PUBLIC


async def fail(kit: Kit, key: str, reason: str) -> None:
    await kit.claim(key)
    await kit.end(key, 1, "run-1", infrastructure_failure_reason=reason)


@pytest.fixture
async def played(kit: Kit) -> Kit:
    """Eight rollouts: chrome 1, 0.5, masked; os 0, running; zebra queued, waiting, masked."""
    keys = await kit.keys(samples=2, tasks={"ids": ["task-000", "task-003", "task-001", "task-002"]})
    chrome = [key for key in keys if "/chrome/" in key]
    os_ = [key for key in keys if "/os/" in key]
    zebra = [key for key in keys if "/zebra/" in key]
    assert (len(chrome), len(os_), len(zebra)) == (4, 2, 2)
    await kit.run(chrome[0], score=1.0)
    await kit.run(chrome[1], score=0.5)
    await fail(kit, chrome[2], "timeout")
    await kit.run(chrome[3], score=1.0)
    await kit.run(os_[0], score=0.0)
    await kit.claim(os_[1])
    await kit.ledger.mark_queued([zebra[0]])
    return kit


async def test_rollcall(played: Kit) -> None:
    found = await rows(played.ledger, "SELECT * FROM rollcall WHERE batch_id = :b", b=played.batch_id)
    columns = ("domain", "planned", "admitted", "masked", "running", "waiting", "queued")
    assert [tuple(row[name] for name in columns) for row in found] == [
        ("chrome", 4, 3, 1, 0, 0, 0),
        ("os", 2, 1, 0, 1, 0, 0),
        ("zebra", 2, 0, 0, 1, 1, 1),
        ("(all)", 8, 4, 1, 2, 1, 1),
    ]
    assert (found[0]["admitted_reasons"], found[0]["masked_reasons"]) == ({"agent_done": 3}, {"timeout": 1})
    assert found[0]["masked_admission_reasons"] == {"timeout": 1}
    for row in found:
        assert row["planned"] == row["admitted"] + row["masked"] + row["running"] + row["waiting"]
    counts = await played.ledger.counts(played.batch_id)
    assert (counts.planned, counts.admitted, counts.masked, counts.running, counts.waiting) == (8, 4, 1, 2, 1)


async def test_scoreboard(played: Kit) -> None:
    found = await rows(played.ledger, "SELECT * FROM scoreboard WHERE batch_id = :b", b=played.batch_id)
    assert [row["domain"] for row in found] == ["chrome", "os", "zebra", "(all)"]
    chrome, os_, zebra, total = found
    assert (chrome["binary_success_count"], chrome["binary_success_rate_of_planned"]) == (2, 0.5)
    assert chrome["binary_success_rate_of_admitted"] == pytest.approx(2 / 3)
    assert chrome["mean_score_of_planned"] == pytest.approx(2.5 / 4)
    assert chrome["mean_score_of_admitted"] == pytest.approx(2.5 / 3)
    assert (os_["mean_score_of_planned"], os_["mean_score_of_admitted"]) == (0.0, 0.0)
    assert (zebra["mean_score_of_planned"], zebra["mean_score_of_admitted"]) == (0.0, None)
    assert (total["planned"], total["binary_success_count"], total["attempts"]) == (8, 2, 6)


def wilson(successes: int, trials: int) -> tuple[float, float]:
    z = 1.959963984540054
    rate = successes / trials
    middle = (rate + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials))
    return middle - half, middle + half


@pytest.mark.parametrize(("successes", "trials"), [(0, 1), (1, 1), (159, 361), (3, 10), (10, 10), (0, 5)])
async def test_wilson(ledger: Ledger, successes: int, trials: int) -> None:
    query = "SELECT wilson_low(CAST(:c AS bigint), :n) AS low, wilson_high(CAST(:c AS bigint), :n) AS high"
    (row,) = await rows(ledger, query, c=successes, n=trials)
    low, high = wilson(successes, trials)
    assert row["low"] == pytest.approx(max(0.0, low), abs=1e-12)
    assert row["high"] == pytest.approx(min(1.0, high), abs=1e-12)


async def test_wilson_of_the_published_run(ledger: Ledger) -> None:
    """159 of 361: 44.0 %, 95 % Wilson interval worked by hand to three digits."""
    (row,) = await rows(ledger, "SELECT wilson_low(159, 361) AS low, wilson_high(159, 361) AS high")
    assert (round(row["low"], 3), round(row["high"], 3)) == (0.390, 0.492)
    (none,) = await rows(ledger, "SELECT wilson_low(0, 0) AS low")
    assert none["low"] is None


async def test_pass_at_k_and_pass_hat_k(ledger: Ledger) -> None:
    query = """
        SELECT n, c, k, pass_at_k(n, c, k) AS at, pass_hat_k(n, c, k) AS hat
        FROM generate_series(1, 8) AS n CROSS JOIN generate_series(0, 8) AS c CROSS JOIN generate_series(0, 9) AS k
        WHERE c <= n
    """
    for row in await rows(ledger, query):
        n, c, k = row["n"], row["c"], row["k"]
        if k < 1 or k > n:
            assert (row["at"], row["hat"]) == (None, None)
        else:
            assert row["at"] == pytest.approx(1 - comb(n - c, k) / comb(n, k), abs=1e-12)
            assert row["hat"] == pytest.approx(comb(c, k) / comb(n, k), abs=1e-12)


async def test_pass_k_of_a_batch(played: Kit) -> None:
    """chrome/000: 1 and masked; chrome/003: 0.5 and 1; os: 0 and running; zebra: nothing."""
    found = await rows(played.ledger, "SELECT * FROM pass_k WHERE batch_id = :b", b=played.batch_id)
    assert [(row["k"], row["tasks"], row["tasks_of_planned"], row["tasks_of_admitted"]) for row in found] == [
        (1, 4, 4, 3),
        (2, 4, 4, 1),
    ]
    first, second = found
    assert first["pass_at_k_of_planned"] == pytest.approx((0.5 + 0.5 + 0 + 0) / 4)
    assert second["pass_at_k_of_planned"] == pytest.approx((1 + 1 + 0 + 0) / 4)
    assert second["pass_hat_k_of_planned"] == pytest.approx(0)
    assert first["pass_at_k_of_admitted"] == pytest.approx((1 + 0.5 + 0) / 3)
    assert second["pass_at_k_of_admitted"] == pytest.approx(1)


async def test_why_masked_is_the_decision_not_the_ending(kit: Kit) -> None:
    """Two endings under one reason are summed, and one ending under two reasons is distinguished."""
    keys = await kit.keys(tasks={"ids": ["task-000"]}, samples=5)
    for key in keys[:2]:
        await kit.run(key)
    await fail(kit, keys[2], "timeout")
    await kit.claim(keys[3])
    await kit.evaluate(keys[3], 1, "run-1", 0.0)
    await kit.end(keys[3], 1, "run-1", terminal_action="FAIL")
    for key, reason in zip((keys[0], keys[1], keys[3]), ("a popup", "leaked", "a popup"), strict=True):
        mask = AdmissionDecision(policy_id="rollbook-manual-v1", admitted=False, reason=reason)
        await kit.ledger.decide_admission(key, mask, decided_by="ann")
    for row in await rows(kit.ledger, "SELECT * FROM rollcall WHERE batch_id = :b", b=kit.batch_id):
        assert row["masked_reasons"] == {"agent_done": 2, "agent_fail": 1, "timeout": 1}
        assert row["masked_admission_reasons"] == {"a popup": 2, "leaked": 1, "timeout": 1}


async def test_sample_spread(played: Kit) -> None:
    """Sample 0: 1 success of 4 (scores 1, 0.5, 0, -); sample 1: 1 of 4 (masked, 1, -, -)."""
    (row,) = await rows(played.ledger, "SELECT * FROM sample_spread WHERE batch_id = :b", b=played.batch_id)
    assert (row["samples"], row["tasks"], row["success_rate"], row["success_rate_stddev"]) == (2, 4, 0.25, 0.0)
    means = (1.5 / 4, 1.0 / 4)
    spread = sqrt(sum((mean - sum(means) / 2) ** 2 for mean in means))
    assert row["mean_score_stddev"] == pytest.approx(spread)
    assert row["mean_score_stderr"] == pytest.approx(spread / sqrt(2))


async def test_a_task_that_was_extended_alone_is_no_spread(kit: Kit) -> None:
    """Six tasks that always end the same, one of them with three samples: runs over other tasks are not compared."""
    keys = await kit.keys()
    await kit.register(tasks={"ids": ["task-000"]}, samples=3, extend=True)
    for key in await kit.planned():
        await kit.run(key, score=1.0 if "/task-000/" in key else 0.0, steps=0)
    (row,) = await rows(kit.ledger, "SELECT * FROM sample_spread WHERE batch_id = :b", b=kit.batch_id)
    assert (len(keys), row["samples"], row["tasks"]) == (6, 3, 1)
    assert (row["success_rate"], row["success_rate_stddev"], row["success_rate_stderr"]) == (1.0, 0.0, 0.0)
    assert (row["mean_score"], row["mean_score_stddev"], row["mean_score_stderr"]) == (1.0, 0.0, 0.0)


async def test_one_sample_has_no_spread(kit: Kit) -> None:
    await kit.keys()
    (row,) = await rows(kit.ledger, "SELECT * FROM sample_spread WHERE batch_id = :b", b=kit.batch_id)
    assert (row["samples"], row["tasks"], row["success_rate"], row["success_rate_stddev"]) == (1, 6, 0.0, None)


async def test_masked_members_do_not_vote(played: Kit) -> None:
    """Group statistics leave masked members out; a group with one valid member gives no signal."""
    query = "SELECT * FROM training_rows WHERE batch_id = :b ORDER BY task_id, sample"
    found: list[Any] = await rows(played.ledger, query, b=played.batch_id)
    by_key = {row["rollout_key"].split("/", 1)[1]: row for row in found}
    assert len(found) == 5
    alone, masked = by_key["chrome/task-000/0"], by_key["chrome/task-000/1"]
    assert (alone["group_members"], alone["group_valid"], alone["group_baseline"]) == (2, 1, 1.0)
    assert alone["group_advantage"] is None
    assert (masked["runtime_admitted"], masked["group_advantage"], masked["reward"]) == (False, None, None)
    half, full = by_key["chrome/task-003/0"], by_key["chrome/task-003/1"]
    assert (half["group_baseline"], half["group_advantage"], full["group_advantage"]) == (0.5, -0.5, 0.5)
    assert not any(row["trainable"] for row in found), "a derived identity is never trainable"


async def test_timeline_tells_the_story_in_order(played: Kit) -> None:
    key = (await played.planned())[0]
    query = "SELECT event, step FROM episode_timeline WHERE rollout_key = :key ORDER BY at, attempt_index NULLS FIRST"
    events = [row["event"] for row in await rows(played.ledger, query, key=key)]
    assert events[:2] == ["planned", "claimed"]
    assert events.count("decided") == 2
    assert events.count("acted") == 2
    assert {"observed", "evaluated", "ended", "admitted"} <= set(events)


async def test_model_usage(played: Kit) -> None:
    found = await rows(played.ledger, "SELECT * FROM model_usage WHERE batch_id = :b", b=played.batch_id)
    assert [(row["domain"], row["model_name"], row["calls"], row["accepted"]) for row in found] == [
        ("chrome", "noop", 6, 6),
        ("os", "noop", 2, 2),
    ]


@pytest.mark.parametrize(
    "view", sorted(PUBLIC - {"current_admission", "episode_timeline", "excluded_tasks", "live_sandboxes"})
)
async def test_a_question_about_one_batch_reads_one_batch(played: Kit, view: str) -> None:
    """`WHERE batch_id = …` reaches the tables: years of other batches cost nothing."""
    scans = await scans_of(played, f"SELECT * FROM {view} WHERE batch_id = '{played.batch_id}'")
    rollouts = [conditions for table, conditions in scans if table == "rollout"]
    assert rollouts
    for conditions in rollouts:
        assert played.batch_id in conditions or "rollout_key" in conditions, scans


async def test_a_question_about_one_rollout_reads_one_rollout(played: Kit) -> None:
    key = (await played.planned())[0]
    scans = await scans_of(played, f"SELECT * FROM episode_timeline WHERE rollout_key = '{key}'")
    assert scans
    for table, conditions in scans:
        assert key in conditions or "rollout_key" in conditions, table


async def scans_of(played: Kit, query: str) -> list[tuple[str, str]]:
    """The tables that a query scans, each with all conditions at its scan or below it.

    Which kind of scan or join the planner takes is its affair; joins that read a whole table for the sake of a few
    of its rows, as they are cheap on small tables, are switched off.
    """
    async with played.ledger.engine.begin() as conn:
        for choice in ("seqscan", "hashjoin", "mergejoin"):
            await conn.execute(text(f"SET LOCAL enable_{choice} = off"))
        plan = await conn.scalar(text(f"EXPLAIN (FORMAT JSON) {query}".replace(":", "\\:")))

    def nodes(node: dict[str, Any]) -> list[dict[str, Any]]:
        return [node, *(below for child in node.get("Plans", []) for below in nodes(child))]

    def conditions(node: dict[str, Any]) -> str:
        values = [below.get(kind, "") for below in nodes(node) for kind in ("Index Cond", "Recheck Cond", "Filter")]
        return " ".join(values)

    return [(node["Relation Name"], conditions(node)) for node in nodes(plan[0]["Plan"]) if "Relation Name" in node]
