"""The CLI's own rules: states, exit codes, what is compared, what may be reaped."""

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from psycopg import errors as postgres
from sqlalchemy.exc import OperationalError, ProgrammingError

from models.admission import LEGACY_POLICY, POLICIES, RECONCILED_POLICY
from models.batch import Counts
from models.contract import difference
from models.provenance import Provenance
from models.spec import read_spec
from rollbook.cli import main
from rollbook.cli.batches import eta_s, state_of
from rollbook.cli.command import Failed, read_json
from rollbook.cli.demo import deviations, next_lines
from rollbook.cli.machine import elsewhere
from rollbook.cli.sandboxes import classify_desktops
from rollbook.cli.sql import psql_environment
from rollbook.cli.submit import default_batch_id, load_spec, never_trained_on, read_batch_id, samples_stay
from rollbook.errors import ConfigError, InvalidInput, SpecConflict
from rollbook.ledger.reader import BatchRow
from rollbook.ledger.records import Lease
from rollbook.ledger.task_selection import Planned
from rollbook.policies.registry import pinned_spec
from rollbook.sandboxes.provider import LABEL_DEPLOYMENT, SandboxInfo, SandboxStatus

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
OPEN = Counts(planned=4, waiting=1, running=1, admitted=2)
LEFT = Counts(planned=4, waiting=3, admitted=1)
WHOLE = Counts(planned=4, admitted=3, masked=1)


def batch(**changes: Any) -> BatchRow:
    row: dict[str, Any] = {
        "batch_id": "b1",
        "deployment_id": "d",
        "namespace": "default",
        "contract": {"policy": {"kind": "scripted", "script_digest": "c" * 64}},
        "contract_digest": "a" * 64,
        "policy": "scripted",
        "paused": False,
        "frozen": False,
        "stopping": False,
        "cancelling": False,
        "control_reason": "",
        "concurrency": 4,
        "max_attempts": 3,
        "created_at": NOW,
        "closed_at": None,
        "launch_id": "r1",
        "launch_index": 1,
        "spec": {"task_set": "osworld", "policy": {"kind": "scripted", "script": "s"}, "concurrency": 2},
        "set_digest": "b" * 64,
        "registered_at": NOW,
        "notice": None,
    }
    return BatchRow(**{**row, **changes})


@pytest.mark.parametrize(
    ("flags", "counts", "life", "state"),
    [
        ({}, OPEN, "running", "running"),
        ({}, OPEN, None, "open"),
        ({}, WHOLE, "completed", "complete"),
        ({}, WHOLE, "absent", "complete"),  # Temporal has forgotten it, the ledger has not
        ({"paused": True}, OPEN, "running", "paused"),
        ({"paused": True, "frozen": True}, OPEN, "running", "frozen"),
        ({"stopping": True}, OPEN, "running", "stopping"),
        ({"stopping": True}, OPEN, "completed", "stopping"),  # terminated meanwhile: some of it still runs
        ({"stopping": True}, LEFT, "completed", "stopped"),
        ({"stopping": True}, WHOLE, "completed", "complete"),
        ({"cancelling": True}, OPEN, "running", "cancelling"),
        ({"cancelling": True}, WHOLE, "canceled", "cancelled"),
        ({}, OPEN, "terminated", "interrupted (its workflow is terminated)"),
        ({"paused": True}, OPEN, "absent", "interrupted (its workflow is absent)"),
    ],
)
def test_states(flags: dict[str, bool], counts: Counts, life: Any, state: str) -> None:
    assert state_of(batch(**flags), counts, life) == state


def test_time_left_needs_a_pace() -> None:
    assert eta_s("running", OPEN, ended=0, seconds=30) is None
    assert eta_s("running", OPEN, ended=2, seconds=30) == 30
    assert eta_s("running", WHOLE, ended=4, seconds=30) == 0


@pytest.mark.parametrize(
    ("state", "left"), [("running", 30.0), ("stopping", 15.0), ("paused", None), ("frozen", None), ("cancelling", None)]
)
def test_time_left_counts_what_will_run(state: str, left: float | None) -> None:
    """OPEN has one row that runs and one that waits."""
    assert eta_s(state, OPEN, ended=2, seconds=30) == left


# --- exit codes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (InvalidInput("samples: wrong"), 2, "error: samples: wrong"),
        (SpecConflict("limits.max_steps: 1 -> 2"), 2, "error: limits.max_steps: 1 -> 2"),
        (ConfigError("ROLLBOOK_X: wrong"), 2, "error: ROLLBOOK_X: wrong"),
        (Failed("not\nso"), 1, "error: not so"),
        (OperationalError("q", {}, Exception("refused")), 1, "error: the ledger: refused"),
        (ProgrammingError("q", {}, postgres.UndefinedTable("no table")), 2, "rollbook migrate"),
        (KeyboardInterrupt(), 130, ""),
        (SystemExit(3), 3, ""),
    ],
)
def test_errors_are_one_line_and_an_exit_code(
    error: BaseException, code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def app(_: Any) -> None:
        raise error

    monkeypatch.setattr(main, "app", app)
    assert main.run([]) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert said in shown.err
    assert len(shown.err.splitlines()) <= 1


@pytest.mark.parametrize("arguments", [["bogus"], ["submit"], ["submit", "--bogus", "f"], ["tasks", "register", "d"]])
def test_wrong_usage_is_exit_code_2(arguments: list[str]) -> None:
    assert main.run(arguments) == 2


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("rollbook 0")


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--help"]) == 0
    text = capsys.readouterr().out
    for name in ("submit", "status", "watch", "show", "audit", "stop", "cancel", "pause", "resume", "rerun", "demo"):
        assert f" {name} " in text


def test_commands_without_a_stack_say_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("ROLLBOOK_STATE_DIR", str(tmp_path / "none"))
    for name in ("ROLLBOOK_DATABASE_URL", "TEMPORAL_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    assert main.run(["status"]) == 2
    assert "rollbook up" in capsys.readouterr().err


def test_a_closed_pipe_is_no_traceback() -> None:
    command = f"{sys.executable} -m rollbook.cli.main --help | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, check=False)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("output", "line"),
    [("> /dev/full", "error: No space left on device\n"), (">&-", "error: standard output is closed; redirect it")],
)
def test_an_output_that_takes_nothing_is_one_line(output: str, line: str) -> None:
    command = f"{sys.executable} -m rollbook.cli.main --version {output}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith(line)


# --- input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": 1,}', "line 1, column [89]"),
        ('{"a": NaN}', "NaN is not JSON"),
        ('{"a": 1, "a": 2}', "'a' occurs twice"),
    ],
)
def test_files_that_are_not_json(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=said) as error:
        read_json(str(path))
    assert str(path) in str(error.value)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(InvalidInput, match=r"nope\.json: No such file"):
        read_json("nope.json")


def test_a_wrong_spec_names_every_field(tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    path.write_text(json.dumps({"policy": {"kind": "noop"}, "samplez": 1, "concurrency": "x"}))
    with pytest.raises(InvalidInput) as error:
        load_spec(str(path))
    for field in ("task_set", "samplez", "concurrency"):
        assert field in str(error.value)


@pytest.mark.parametrize("file", ["batches/my spec (1).json", "-", "....json", "ünï.json"])
def test_default_batch_ids_are_valid(file: str) -> None:
    assert read_batch_id(default_batch_id(file))


@pytest.mark.parametrize("given", ["a/b", "-x", "", "a b", "x" * 129, "ä"])
def test_bad_batch_ids_are_refused(given: str) -> None:
    with pytest.raises(InvalidInput, match="--batch-id"):
        read_batch_id(given)


@pytest.mark.parametrize("command", ["submit", "demo"])
def test_an_empty_batch_id_does_not_mean_a_fresh_one(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps({"policy": {"kind": "noop"}, "task_set": "s", "desktop": {"provider": "null"}}))
    file = [str(spec)] if command == "submit" else []
    assert main.run([command, *file, "--batch-id", ""]) == 2
    assert "--batch-id: '':" in capsys.readouterr().err


def test_a_relaunch_pins_what_names_meant() -> None:
    spec = pinned_spec(batch())
    assert spec["task_set"] == f"osworld@{'b' * 64}"
    assert spec["policy"]["script"] == f"s@{'c' * 64}"
    assert spec["concurrency"] == 4
    assert read_spec(spec).extend


def test_a_relaunch_reads_an_older_record_of_the_whole_set() -> None:
    whole = {"domains": [], "ids": [], "exclude_ids": [], "on_unrunnable": "exclude"}
    recorded = {"task_set": "osworld", "policy": {"kind": "scripted", "script": "s"}, "tasks": whole}
    spec = read_spec(pinned_spec(batch(spec=recorded)))
    assert (spec.tasks.domains, spec.tasks.ids, spec.tasks.on_unrunnable) == (None, None, "exclude")


def test_a_relaunch_of_a_replay_names_its_source_again() -> None:
    """Its contract has a script's digest too, but its spec names a recording."""
    policy = {"kind": "replay", "batch": "earlier"}
    contract = {"policy": {"kind": "replay", "script_digest": "c" * 64}}
    spec = pinned_spec(batch(contract=contract, spec={"task_set": "osworld", "policy": policy, "concurrency": 2}))
    assert spec["policy"] == policy
    assert read_spec(spec).extend


def test_a_batch_without_registration_cannot_be_relaunched() -> None:
    with pytest.raises(InvalidInput, match="submit its spec again"):
        pinned_spec(batch(spec=None))


@pytest.mark.parametrize(
    ("extend", "samples", "told"),
    [(True, 2, "samples: 4 are planned and stay planned, not 2"), (True, 4, None), (True, 6, None), (False, 2, None)],
)
def test_samples_only_grow(extend: bool, samples: int, told: str | None) -> None:
    spec = read_spec({"task_set": "s", "policy": {"kind": "noop"}, "samples": samples, "extend": extend})
    said = samples_stay([Planned("os", "a", "d" * 64, 4)], spec)
    assert said is None if told is None else told in (said or "")


@pytest.mark.parametrize("purpose", ["train", "eval"])
def test_training_without_identity_is_warned_of(purpose: str) -> None:
    spec = read_spec({"task_set": "s", "policy": {"kind": "noop"}, "purpose": purpose})
    assert ("nothing of this batch can be trained on" in (never_trained_on(spec) or "")) == (purpose == "train")
    owned = {"sampling_event_id": "e-1", "source_group_id": "g"}
    assert never_trained_on(spec.model_copy(update={"identity": Provenance.model_validate(owned)})) is None


def test_differences_show_digests_short() -> None:
    old, new = {"resolved": {"desktop_image": "sha256:" + "ab" * 32}}, {"resolved": {"desktop_image": "other"}}
    assert difference(old, new) == ["resolved.desktop_image: 'sha256:abababababab' -> 'other'"]
    assert difference({"d": "a" * 64}, {"d": "a" * 63 + "b"}) == [f"d: {'a' * 64!r} -> {'a' * 63 + 'b'!r}"]


def test_up_tells_where_temporal_is_unless_it_is_where_everybody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TEMPORAL_ADDRESS", raising=False)
    assert elsewhere("127.0.0.1:7233") is None
    assert 'eval "$(rollbook env)"' in (elsewhere("127.0.0.1:40001") or "")
    monkeypatch.setenv("TEMPORAL_ADDRESS", "127.0.0.1:40001")
    assert elsewhere("127.0.0.1:40001") is None


# --- sql -------------------------------------------------------------------------------------------------------


def test_psql_gets_the_password_by_environment_and_a_read_only_session() -> None:
    found = psql_environment("postgresql://me:s3cret@db.example:5433/rollbook?sslmode=require")
    assert found["PGPASSWORD"] == "s3cret"
    assert (found["PGHOST"], found["PGPORT"], found["PGUSER"]) == ("db.example", "5433", "me")
    assert found["PGSSLMODE"] == "require"
    assert found["PGOPTIONS"] == "-c default_transaction_read_only=on -c role=rollbook_reader"
    given = psql_environment("postgresql://me@db.example/rollbook?options=-c%20search_path%3Dours", None)
    assert given["PGOPTIONS"] == "-c search_path=ours -c default_transaction_read_only=on"
    assert found["PATH"] == os.environ["PATH"]


# --- demo ------------------------------------------------------------------------------------------------------


def test_deviations_name_task_and_field() -> None:
    rows: list[dict[str, Any]] = [
        {"task_id": "a", "termination_reason": "agent_done", "score": 1.0},
        {"task_id": "b", "termination_reason": "sandbox_lost", "score": None},
    ]
    expected = {
        "a": {"termination_reason": "agent_done", "score": 1.0},
        "b": {"termination_reason": "agent_done", "score": 0.8},
    }
    assert deviations(rows, expected) == [
        "b: termination_reason is sandbox_lost, expected agent_done",
        "b: score is None, expected 0.8",
    ]


def test_the_next_steps_are_of_one_style_and_name_one_free_id() -> None:
    lines = next_lines("demo-1/os/a/0", "try-3", ["export PATH=/x:$PATH"])
    assert [line.split()[0] for line in lines] == ["export", "rollbook", "rollbook", "temporal", "rollbook"]
    assert "batch_id = 'demo-1'" in lines[2]
    assert '--task-queue "$ROLLBOOK_TASK_QUEUE" --workflow-id try-3 ' in lines[3]
    assert lines[4] == "rollbook watch try-3"


# --- desktops --------------------------------------------------------------------------------------------------


def info(key: str, age_s: float) -> SandboxInfo:
    created = NOW - timedelta(seconds=age_s)
    return SandboxInfo(f"id-{key}", key, SandboxStatus.RUNNING, created, {LABEL_DEPLOYMENT: "d"})


def lease(key: str, **changes: Any) -> Lease:
    row: dict[str, Any] = {
        "sandbox_key": key,
        "deployment_id": "d",
        "provider": "docker",
        "sandbox_id": f"id-{key}",
        "rollout_key": "b1/os/t/0",
        "attempt_index": 1,
        "state": "running",
        "nonce": "n",
        "isolation": "partial",
        "view_url": "",
        "created_at": NOW,
        "lease_until": NOW,
        "stopped_at": None,
        "attempt_open": True,
        "lease_expired": False,
    }
    return Lease(**{**row, **changes})


@pytest.mark.parametrize(
    ("listed", "held", "verdict"),
    [
        ([info("k", 5)], [lease("k")], "in use"),
        ([info("k", 9999)], [lease("k", lease_expired=True)], "in use"),  # only an end or the Janitor takes it away
        ([info("k", 5)], [lease("k", attempt_open=False)], "orphan"),
        ([info("k", 5)], [], "unknown, young"),
        ([info("k", 700)], [], "unknown"),
        ([], [lease("k")], "lost"),
        ([], [lease("k", state="intended", sandbox_id=None)], "in use"),
        ([], [lease("k", attempt_open=False)], "orphan"),
    ],
)
def test_who_needs_a_desktop(listed: list[SandboxInfo], held: list[Lease], verdict: str) -> None:
    (desktop,) = classify_desktops({"docker": listed}, {one.sandbox_key: one for one in held}, NOW)
    assert desktop.verdict == verdict


def test_leases_of_providers_that_were_not_asked_are_left_alone() -> None:
    assert classify_desktops({"docker": []}, {"k": lease("k", provider="e2b", attempt_open=False)}, NOW) == []


@pytest.mark.parametrize("command", ["mask", "admit"])
@pytest.mark.parametrize("policy_id", [*POLICIES, LEGACY_POLICY, RECONCILED_POLICY, " Exclude-In-Doubt-V1"])
def test_a_decision_by_hand_bears_no_rules_name(
    command: str, policy_id: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run([command, "b/os/t/0", "--policy-id", policy_id, "--reason", "I dislike it"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"--policy-id: {policy_id.strip()} is a rule that Rollbook applies itself" in said.replace(":  ", ": ")
    assert "leave the option out (rollbook-manual-v1)" in said
    assert "rollbook redecide" in said
