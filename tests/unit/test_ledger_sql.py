"""SQL files of the ledger: every statement is used, and rules that SQL repeats are those of `models.outcome`."""

import re
from pathlib import Path

import pytest

from rollbook.ledger.sql import SQL, statements
from rollbook.ledger.tables import EARNS_MORE, ELIGIBLE, INSERT_ONLY, REWARD, TERMINATION

MODULES = sorted(path.stem for path in SQL.glob("*.sql") if (SQL.parent / f"{path.stem}.py").exists())


def squeezed(sql: str) -> str:
    """The text without white space."""
    return re.sub(r"\s+", "", sql)


@pytest.mark.parametrize("module", MODULES)
def test_every_statement_is_used_by_its_module(module: str) -> None:
    source = (Path(SQL.parent) / f"{module}.py").read_text()
    assert statements(module), "the file holds named statements"
    assert [name for name in statements(module) if f'"{name}"' not in source] == []


@pytest.mark.parametrize(
    ("script", "rule"),
    [("audit_checks", TERMINATION), ("audit_checks", ELIGIBLE[1:-1]), ("audit_checks", REWARD), ("control", REWARD)],
    ids=["termination", "eligibility", "reward", "reward of a cancelled row"],
)
def test_a_rule_of_the_outcome_table_is_repeated_word_by_word(script: str, rule: str) -> None:
    """The table's CHECKs are compared with `models.outcome` in tests/integration/ledger/test_finalize.py."""
    assert squeezed(rule) in squeezed((SQL / f"{script}.sql").read_text())


def test_the_audit_knows_which_failures_earn_another_attempt() -> None:
    script = (SQL / "audit_checks.sql").read_text()
    (listed,) = re.findall(r"coalesce\(infrastructure_failure_reason, ''\) NOT IN \((.*?)\)", script, re.DOTALL)
    assert set(re.findall(r"'(\w+)'", listed)) == {str(reason) for reason in EARNS_MORE}


def test_the_deciding_call_is_defined_once() -> None:
    """As the generated column `model_call.decides`; frozen migration scripts aside."""
    pattern = re.compile(r"accepted\s+OR\s+policy_stop_reason", re.IGNORECASE)
    assert [path.name for path in SQL.glob("*.sql") if pattern.search(path.read_text())] == []


def test_every_fact_of_a_rollout_is_in_the_batchs_record() -> None:
    """A new insert-only table needs lines in the view `batch_record`; a row without one could be changed unseen."""
    record = (SQL / "views.sql").read_text().partition("CREATE VIEW batch_record")[2]
    facts = [table.name for table in INSERT_ONLY if "rollout_key" in table.c]
    assert [name for name in facts if f"rollout JOIN {name} USING" not in record] == []
