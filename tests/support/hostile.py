"""Raw SQL for those who attack the ledger: rows as forgers write them."""

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from models.admission import RUNTIME_POLICY
from models.outcome import VALID
from rollbook.ledger import Ledger


async def attack(ledger: Ledger, *statements: str) -> str:
    """The refusal of statements in one transaction; fails when they are accepted."""

    async def all_of_them() -> None:
        async with ledger.engine.begin() as conn:
            for statement in statements:
                await conn.execute(text(statement))

    with pytest.raises(DBAPIError) as error:
        await all_of_them()
    return str(error.value.orig)


OUTCOME = """
    INSERT INTO outcome (rollout_key, attempt_index, evaluation_completed, infrastructure_failure_reason,
        terminal_action, environment_done, horizon_reached, policy_stop_reason, guest_failed, steps,
        termination_reason, runtime_eligible, runtime_admission_reason, runtime_admission_policy_id, score, reward,
        reward_mode, closed_by, selected, next_state, turns, model_calls, evaluations, row_digest)
    SELECT {key}, {attempt}, {evaluated}, {infra}, {action}, {done}, {horizon}, {stop}, false, {steps}, {termination},
        {eligible}, {reason}, {policy}, {score}, {reward}, {mode}, {closed_by}, {selected}, {next},
        coalesce({turns}, (SELECT count(*) FROM turn WHERE (rollout_key, attempt_index) = ({key}, {attempt}))),
        coalesce({calls}, (SELECT count(*) FROM model_call WHERE (rollout_key, attempt_index) = ({key}, {attempt}))),
        coalesce({evaluations},
            (SELECT count(*) FROM evaluation WHERE (rollout_key, attempt_index) = ({key}, {attempt}))),
        ''
"""
HONEST = {
    "attempt": "1",
    "evaluated": "true",
    "infra": "NULL",
    "action": "'DONE'",
    "done": "false",
    "horizon": "false",
    "stop": "NULL",
    "steps": "3",
    "termination": "'agent_done'",
    "eligible": "true",
    "reason": "'valid_evaluated_outcome'",
    "policy": "'osworld-runtime-admission-v1'",
    "score": "0.25",
    "reward": "0",
    "mode": "'binary'",
    "closed_by": "'episode'",
    "selected": "true",
    "next": "'final'",
    "turns": "NULL",
    "calls": "NULL",
    "evaluations": "NULL",
}
"""Facts of an attempt that its policy ended with DONE in step 3; `key` is left to say."""

ADMISSION = """
    INSERT INTO admission (rollout_key, attempt_index, scope, decision_index, admitted, policy_id, reason, decided_by,
        row_digest) SELECT {}, {}, {}, {}, {}, {policy}, {reason}, {by}, ''
"""
BY_HAND = {"policy": "'p'", "reason": "'because'", "by": "'me'"}


def admission(key: str, attempt: int, scope: str, index: int, admitted: str, **said: str) -> str:
    """A decision, by hand unless said otherwise."""
    return ADMISSION.format(key, attempt, f"'{scope}'", index, admitted, **(BY_HAND | said))


BY_EPISODE = {"policy": f"'{RUNTIME_POLICY}'", "reason": f"'{VALID}'", "by": "'episode'"}
"""The words of an episode that ended well."""


def ending(key: str, **changes: str) -> list[str]:
    """All that ends attempt 1 of a rollout, as if its episode did: outcome, first decision, final."""
    said = HONEST | {"key": f"'{key}'"} | changes
    why = {"policy": said["policy"], "reason": said["reason"], "by": said["closed_by"]}
    return [
        OUTCOME.format(**said),
        admission(f"'{key}'", int(said["attempt"]), "runtime", 1, said["eligible"], **why),
        f"UPDATE rollout SET state = {said['next']}, selected_attempt = {said['attempt']} WHERE rollout_key = '{key}'",
    ]
