"""The reference page says what is there, and its queries give the rows that they promise, worked by hand."""

import re
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import Any

import pytest

from rollbook.ledger import Ledger, describe, tables
from tests.support.ledger import rows
from tests.support.worked_ledger import OS, Worked

PAGE = describe.PAGE.read_text()
QUERIES = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
Ask = Callable[..., Any]


@pytest.fixture(scope="module")
async def worked(ledger: Ledger) -> Worked:
    """The worked ledger, played once."""
    made = Worked(ledger)
    await made.play()
    return made


@pytest.fixture(scope="module")
async def ask(worked: Worked) -> AsyncIterator[Ask]:
    """Ask a numbered question with a reader's rights; the values of its rows, times left out."""
    reader = Ledger.connect(worked.ledger.engine.url.render_as_string(hide_password=False), role="rollbook_reader")

    async def asked(number: int, batch_id: str = "nightly-7") -> list[tuple[Any, ...]]:
        query = QUERIES[number - 1].replace("nightly-7", batch_id).replace(":", "\\:").replace("\\:\\:", "::")
        found = await rows(reader, query)
        return [tuple(value for value in row.values() if not isinstance(value, datetime)) for row in found]

    yield asked
    await reader.aclose()


def test_tables_are_described_as_they_are() -> None:
    assert describe.rendered(PAGE) == PAGE, "run python -m rollbook.ledger.describe"


def test_there_are_twenty_queries() -> None:
    assert len(QUERIES) == 20
    assert re.findall(r"^(\d+)\. ", PAGE, re.MULTILINE) == [str(number) for number in range(1, 21)]


async def test_1_is_everybody_there(ask: Ask) -> None:
    """Planned = admitted + masked + running (with queued) + waiting."""
    done, hand, doubt = {"agent_done": 1}, {"agent_done": 1, "timeout": 1}, {"action_in_doubt": 1}
    assert await ask(1) == [
        ("nightly-7", "chrome", 2, 0, 2, 0, 0, 0, {}, hand, {"leaked": 1, "timeout": 1}, 0),
        ("nightly-7", "gimp", 4, 0, 0, 3, 1, 1, {}, {}, {}, 0),
        ("nightly-7", "os", 3, 3, 0, 0, 0, 0, {"agent_done": 3}, {}, {}, 0),
        ("nightly-7", "thunderbird", 2, 0, 0, 0, 2, 0, {}, {}, {}, 0),
        ("nightly-7", "vlc", 2, 1, 1, 0, 0, 0, done, done, doubt, 0),
        (
            *("nightly-7", "(all)", 13, 4, 3, 3, 3, 1),
            *({"agent_done": 4}, {"agent_done": 2, "timeout": 1}, {"leaked": 1, "timeout": 1} | doubt, 0),
        ),
    ]


async def test_2_how_did_it_go(ask: Ask) -> None:
    """With z² = 3.8415: 0 of n ends at z² / (n + z²); the others are 1 of 3, 1 of 2, 2 of 13."""
    found = await ask(2)
    assert [tuple(row[:4]) for row in found] == [
        ("chrome", 2, 0, 0),
        ("gimp", 4, 0, 0),
        ("os", 3, 3, 1),
        ("thunderbird", 2, 0, 0),
        ("vlc", 2, 1, 1),
        ("(all)", 13, 4, 2),
    ]
    assert [tuple(float(value) for value in row[4:]) for row in found] == [
        (0, 0, 0.6576),
        (0, 0, 0.4899),
        (0.3333, 0.0615, 0.7923),
        (0, 0, 0.6576),
        (0.5, 0.0945, 0.9055),
        (0.1538, 0.0433, 0.4223),
    ]


async def test_3_which_are_masked_and_why(ask: Ask, worked: Worked) -> None:
    assert sorted(await ask(3)) == [
        (worked.key("browse", 0), "agent_done", "leaked", "ann", ""),
        (worked.key("browse", 1), "timeout", "timeout", "episode", ""),
        (worked.key("play", 1), "agent_done", "action_in_doubt", "ann", ""),
    ]


async def test_4_which_reasons_mask_most(ask: Ask) -> None:
    """The decision masks, not the ending of the attempt: two of the three answered DONE."""
    assert await ask(4) == [("action_in_doubt", 1), ("leaked", 1), ("timeout", 1)]
    assert await ask(4, "nightly-6") == [("timeout", 1)]


async def test_5_what_is_running_and_since_when(ask: Ask, worked: Worked) -> None:
    assert await ask(5) == [
        (worked.key("layer", 0), "running", 1, "desktop intended"),
        (worked.key("crop", 1), "running", 1, "decided"),
        (worked.key("crop", 0), "queued", 0, "queued"),
    ]
    found = {row["rollout_key"]: row for row in await rows(worked.ledger, QUERIES[4].replace("::", "\\:\\:"))}
    query = """
        SELECT rollout.rollout_key, coalesce(claimed_at, queued_at) AS since FROM rollout
        LEFT JOIN attempt ON attempt.rollout_key = rollout.rollout_key AND attempt_index = current_attempt
        WHERE state IN ('queued', 'running') AND batch_id = 'nightly-7'
    """
    began = await rows(worked.ledger, query)
    assert {key: row["since"] for key, row in found.items()} == {row["rollout_key"]: row["since"] for row in began}
    live = found[worked.key("crop", 1)]
    assert live["since"] < live["latest"], "the latest event is not the beginning"


async def test_6_where_can_i_watch(ask: Ask, worked: Worked) -> None:
    assert await ask(6) == [(worked.key("crop", 1), "http://127.0.0.1:7000/live")]


async def test_7_what_happened_to_one_rollout(ask: Ask) -> None:
    """One attempt that lost its desktop, one of two steps; a decision is as old as the end that it decides."""
    found = await ask(7)
    assert found[:2] == [(None, "planned", None, OS), (1, "claimed", None, "run run-1")]
    assert found[2:4] == [(1, "desktop intended", None, "docker"), (1, "desktop ready", None, "id-lost")]
    assert sorted(found[4:6]) == [
        (1, "ended", None, "sandbox_lost"),
        (1, "masked", None, "runtime; sandbox_lost; episode"),
    ]
    assert found[6:13] == [
        (2, "claimed", None, "run run-2"),
        (2, "observed", 0, "0 actions"),
        (2, "decided", 1, ""),
        (2, "acted", 1, "1 actions"),
        (2, "decided", 2, ""),
        (2, "acted", 2, "1 actions"),
        (2, "evaluated", None, "score 1"),
    ]
    assert sorted(found[13:15]) == [
        (2, "admitted", None, "runtime; valid_evaluated_outcome; episode"),
        (2, "ended", None, "agent_done"),
    ]
    assert found[15:] == [(2, "admitted", None, "runtime; valid_evaluated_outcome; ann")]


async def test_8_which_tasks_fail_always(ask: Ask) -> None:
    assert await ask(8) == [
        ("chrome", "browse", 2, 0),
        ("gimp", "crop", 2, 0),
        ("gimp", "layer", 2, 0),
        ("thunderbird", "mail", 2, 0),
        ("os", OS, 3, 1),
        ("vlc", "play", 2, 1),
    ]


async def test_9_which_tasks_got_a_fraction(ask: Ask) -> None:
    """Not the masked half of browse."""
    assert await ask(9) == [("os", OS, 2, 0.5)]


async def test_10_pass_at_k(ask: Ask) -> None:
    """Six tasks: os 1 of 3, vlc 1 of 2, the others 0 of 2. @1 (1/3 + 1/2) / 6; @2 (2/3 + 1) / 6; @3 os alone."""
    found = await ask(10)
    assert [row[:2] for row in found] == [(1, 6), (2, 6), (3, 1)]
    assert [row[2] for row in found] == pytest.approx([5 / 36, 5 / 18, 1])
    assert [row[3] for row in found] == pytest.approx([5 / 36, 0, 0])


async def test_11_how_far_do_runs_differ(ask: Ask) -> None:
    """Only os has all three samples: 1, 0, 0. Variance (4/9 + 1/9 + 1/9) / 2 = 1/3, standard error 1/3."""
    assert await ask(11) == [(3, 1, pytest.approx(1 / 3), pytest.approx((1 / 3) ** 0.5), pytest.approx(1 / 3))]


async def test_12_which_tasks_differ(ask: Ask) -> None:
    """Also where one side is masked, not final or not planned; equal are os/0 (1 and 1) and vlc/0."""
    assert await ask(12) == [
        ("chrome", "browse", 0, "0.5", "masked: leaked"),
        ("chrome", "browse", 1, "1", "masked: timeout"),
        ("chrome", "read", 0, "1", None),
        ("chrome", "read", 1, "masked: timeout", None),
        ("gimp", "crop", 0, None, "queued"),
        ("gimp", "crop", 1, None, "running"),
        ("gimp", "layer", 0, None, "running"),
        ("gimp", "layer", 1, None, "waiting"),
        ("os", OS, 1, "1", "0"),
        ("os", OS, 2, None, "0.5"),
        ("thunderbird", "mail", 0, None, "waiting"),
        ("thunderbird", "mail", 1, None, "waiting"),
        ("vlc", "play", 1, "1", "masked: action_in_doubt"),
    ]


async def test_13_same_version_of_each_task(ask: Ask) -> None:
    found = await ask(13)
    assert [(row[0], row[1] is None, row[2] is None) for row in found] == [
        ("browse", False, False),
        ("crop", True, False),
        ("layer", True, False),
        ("mail", True, False),
        ("read", False, True),
    ]


async def test_14_how_many_steps(ask: Ask) -> None:
    assert await ask(14) == [("os", 2, 2), ("vlc", 6, 6)]


async def test_15_more_than_one_attempt(ask: Ask, worked: Worked) -> None:
    assert await ask(15) == [(worked.key(OS, 0), 2, "agent_done"), (worked.key(OS, 2), 2, "agent_done")]


async def test_16_decisions_by_hand(ask: Ask, worked: Worked) -> None:
    """The one that a rule replaced too, and a first training decision; none of the rule's own."""
    assert await ask(16) == [
        (worked.key("play", 0), 1, "runtime", False, "a popup", "bob", False),
        (worked.key("browse", 0), 1, "runtime", False, "leaked", "ann", True),
    ]
    assert await ask(16, "event-1") == [
        (worked.key(OS, 2, "event-1"), 1, "training", False, "leaked the answer", "ann", True)
    ]


async def test_17_was_a_result_superseded(ask: Ask, worked: Worked) -> None:
    """The rerun of a masked one is none."""
    assert await ask(17) == [(worked.key(OS, 2), "wrong image; bob")]


async def test_18_what_did_the_models_cost(ask: Ask) -> None:
    """Calls that do nothing, without tokens: 2 + 5 + 3 + 4 in os, 6 in vlc, 1 in chrome. The model: 2, one a retry."""
    assert await ask(18) == [("m", 2, 1, 230, 30, 6.0), ("noop", 24, 0, None, None, None)]


async def test_19_what_may_be_trained_on(ask: Ask, worked: Worked) -> None:
    """Rewards 1 and 0 vote: baseline 1/2. The leaked 1 and the timeout do not; half a group is not trained on yet."""
    found = await ask(19, "event-1")
    assert [row[1:2] + row[3:] for row in found] == [(0, 1.0, 0.5, 0.5), (1, 0.0, 0.5, -0.5)]
    assert await ask(19, "event-2") == []
    assert await ask(19) == [], "a derived identity is never trained on"


async def test_20_which_desktops_have_nobody(ask: Ask, worked: Worked) -> None:
    assert await ask(20) == [
        ("desktop-intended", "docker", None, worked.key("layer", 0)),
        ("desktop-lost", "docker", "id-lost", worked.key(OS, 0)),
    ]


async def test_every_column_of_every_view_is_named(ledger: Ledger) -> None:
    query = """
        SELECT table_name, array_agg(column_name::text ORDER BY ordinal_position) AS names
        FROM information_schema.columns WHERE table_schema = 'public'
            AND table_name IN (SELECT viewname FROM pg_views WHERE schemaname = 'public')
        GROUP BY table_name
    """
    for row in await rows(ledger, query):
        (line,) = re.findall(rf"^\| `{row['table_name']}` \|[^|]*\|(.*)\|$", PAGE, re.MULTILINE)
        named = re.findall(r"`([a-z_0-9]+)`", re.sub(r"\([^)]*\)", "", line))
        assert named == row["names"], f"columns of {row['table_name']}, in their order"


async def test_every_documented_type_is_the_databases(ledger: Ledger) -> None:
    """The page equals the comments that `\\d` prints, for every column of every table."""
    query = """
        SELECT attrelid::regclass::text || '.' || attname AS name, attnotnull AS required,
               format_type(atttypid, atttypmod) AS type, attgenerated <> '' AS generated
        FROM pg_attribute WHERE attnum > 0 AND NOT attisdropped AND attrelid::regclass::text = ANY(:names)
    """
    short = {"timestamp with time zone": "timestamptz", "double precision": "double"}
    found = await rows(ledger, query.replace("::", "\\:\\:"), names=list(tables.metadata.tables))
    real = {
        row["name"]: short.get(row["type"], row["type"]) + ("" if row["required"] or row["generated"] else ", or NULL")
        for row in found
    }
    told = {}
    for table, body in re.findall(r"^### `(\w+)`\n(.*?)(?=^### |\Z)", PAGE, re.MULTILINE | re.DOTALL):
        for column, kind in re.findall(r"^\| (?:\*\*)?`(\w+)`(?:\*\*)? \| ([^|]+) \|", body, re.MULTILINE):
            told[f"{table}.{column}"] = kind
    assert told == real
