"""The real evaluator in its real environment, against a guest double: scores, and results that are not scores.

What the double cannot prove (that a desktop is set up and scored, what `docker kill` looks like) is in
../test_osworld_desktop.py.
"""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from rollbook.errors import ConfigError, InvalidInput
from rollbook.guest.http import Endpoint
from rollbook.osworld import runner
from rollbook.osworld.capabilities import capabilities, survey
from rollbook.osworld.environment import EvaluatorEnv, ensure_environment, verify_unmodified
from tests.doubles.http_guest import HttpGuest, command, half, no_program, reset, silence, sound_but, status, timed_out
from tests.support.osworld import (
    TASK_ID,
    Run,
    task,
    urls,
    vm_file,
)


async def test_the_environment_is_the_published_one_and_building_again_changes_nothing(env: EvaluatorEnv) -> None:
    lines: list[str] = []
    assert await ensure_environment(log=lines.append) == env
    assert lines == []
    assert env.desktop_env == "1.0.2"
    assert env.revision.startswith("desktop_env-1.0.2-r")
    verify_unmodified(env.python.parent.parent)


def test_a_changed_file_is_noticed(env: EvaluatorEnv, tmp_path: Path) -> None:
    site = next(env.python.parent.parent.glob("lib/python3.*/site-packages"))
    copy = tmp_path / "venv" / site.relative_to(env.python.parent.parent)
    for name in ("desktop_env", "desktop_env-1.0.2.dist-info"):
        shutil.copytree(site / name, copy / name)
    verify_unmodified(tmp_path / "venv")
    metric = copy / "desktop_env" / "evaluators" / "metrics" / "general.py"
    metric.write_text(metric.read_text() + "\n")
    with pytest.raises(ConfigError, match=r"general\.py is not the published file"):
        verify_unmodified(tmp_path / "venv")


async def test_the_committed_table_is_what_desktop_env_has(env: EvaluatorEnv) -> None:
    assert await survey(env) == capabilities()


async def test_scores_are_canonical(run: Run, guest: HttpGuest) -> None:
    solved = await run("evaluate", task())
    assert (solved.status, solved.value, solved.score_type) == ("ok", 1.0, "float"), solved
    assert (solved.guest_failed, solved.guest_alive_after, solved.nonce) == (False, True, guest.nonce)
    assert solved.exchanges == {5000: {"ok": 2}}
    assert guest.paths() == ["/execute"]
    guest.routes["/execute"] = command("no\n")
    wrong = await run("evaluate", task())
    assert (wrong.value, wrong.checks) == (0.0, "exact_match = 0.0 (result 'no\\n', expected {'expected': 'yes\\n'})")


@pytest.mark.parametrize(
    ("func", "action", "value", "checks"),
    [
        ("infeasible", "FAIL", 1, "an infeasible task: FAIL is the answer, the last action was FAIL"),
        ("infeasible", "DONE", 0, "an infeasible task: FAIL is the answer, the last action was DONE"),
        ("infeasible", None, 0, "an infeasible task: FAIL is the answer, the last action was None"),
        ("exact_match", "FAIL", 0, "a feasible task, and the last action was FAIL"),
    ],
)
async def test_the_terminal_action_is_the_last_of_the_history(
    run: Run, func: str, action: str | None, value: int, checks: str
) -> None:
    result = await run("evaluate", task(func=func), terminal_action=action)
    assert (result.status, result.value, result.score_type, result.checks) == ("ok", value, "int", checks)


async def test_a_fraction_passes_through(run: Run, guest: HttpGuest) -> None:
    guest.routes["/execute"] = command("abcd")
    half_right = {"type": "rule", "rules": {"expected": "abxy"}}
    assert (await run("evaluate", task(func="fuzzy_match", expected=half_right))).value == 0.5
    both = task(
        func=["exact_match", "fuzzy_match"],
        result=[{"type": "vm_command_line", "command": ["ask"]}] * 2,
        expected=[{"type": "rule", "rules": {"expected": "abcd"}}, half_right],
    )
    scored = await run("evaluate", both)
    assert scored.value == 0.75
    assert scored.checks == (
        "exact_match = 1.0 (result 'abcd', expected {'expected': 'abcd'}); "
        "fuzzy_match = 0.5 (result 'abcd', expected {'expected': 'abxy'})"
    )
    guest.routes["/execute"] = command("x")
    first = await run("evaluate", both)
    assert (first.value, first.checks) == (0.0, "exact_match = 0.0 (result 'x', expected {'expected': 'abcd'})")


async def test_evaluate_does_not_run_the_postconfig_again(run: Run, guest: HttpGuest) -> None:
    steps = [{"type": "execute", "parameters": {"command": ["save"]}}]
    with_steps = task(postconfig=steps)
    assert (await run("postconfig", with_steps)).value is True
    assert guest.paths() == ["/setup/execute"]
    assert (await run("evaluate", with_steps)).value == 1.0
    assert guest.paths() == ["/setup/execute", "/execute"]
    assert with_steps["evaluator"]["postconfig"] == steps


async def test_setup_fills_in_screen_and_password(run: Run, guest: HttpGuest) -> None:
    words = ["{CLIENT_PASSWORD}", "{SCREEN_WIDTH}", "{SCREEN_HEIGHT_HALF}"]
    setup = {**task(), "config": [{"type": "execute", "parameters": {"command": words}}]}
    result = await run("prepare", setup, client_password="s3cret", screen=(1280, 720))
    assert result.status == "ok"
    sent = next(body for _, path, _, body in guest.seen if path == "/setup/execute")
    assert json.loads(sent)["command"] == ["s3cret", "1280", "360"]
    assert "s3cret" not in await asyncio.to_thread(result.log_path.read_text)


async def test_a_failing_setup_step_is_named(run: Run, guest: HttpGuest) -> None:
    guest.routes["/setup/open_file"] = status(404)
    setup = {**task(), "config": [{"type": "open", "parameters": {"path": "/no/such/file"}}]}
    result = await run("prepare", setup)
    assert (result.status, result.value, result.error_type, result.guest_failed) == ("failed", None, "Exception", False)
    assert "Setup step 1 failed: _open_setup" in result.error_message
    assert [(e.path, e.status) for e in result.failures] == [("/setup/open_file", 404)]


async def test_a_500_that_setup_only_logs_shows_in_the_record(run: Run, guest: HttpGuest) -> None:
    guest.routes["/setup/launch"] = status(500)
    setup = {**task(), "config": [{"type": "launch", "parameters": {"command": ["no-such-program"]}}]}
    result = await run("prepare", setup)
    assert (result.status, result.value, result.guest_failed) == ("ok", True, False)
    assert [(e.path, e.outcome, e.status) for e in result.failures] == [("/setup/launch", "http_5xx", 500)]
    lines = (await asyncio.to_thread(result.exchange_log_path.read_text)).splitlines()
    assert [json.loads(line)["path"] for line in lines] == ["/terminal", "/setup/launch"]


@pytest.mark.parametrize(("kind", "route"), [("launch", "/setup/launch"), ("execute", "/setup/execute")])
async def test_a_program_that_is_not_there_ends_the_setup(run: Run, guest: HttpGuest, kind: str, route: str) -> None:
    guest.routes[route] = no_program("google-chrome")
    step = {"type": kind, "parameters": {"command": ["google-chrome"]}}
    result = await run("prepare", {**task(), "config": [step]})
    assert (result.status, result.error_type, result.guest_failed) == ("failed", "NoSuchProgram", False)
    assert result.error_message == "the desktop has no 'google-chrome'"
    after = await run("postconfig", task(postconfig=[step]))
    assert (after.status, after.value) == ("ok", True), "there the agent may have removed it"


@pytest.mark.parametrize("fault", [no_program("ask"), timed_out(), status(500)])
async def test_a_command_that_fails_in_a_sound_guest_is_a_fact_about_it(run: Run, guest: HttpGuest, fault: Any) -> None:
    """As OSWorld scores it. It gave a mask and two more desktops to who removed the program, or made it hang."""
    guest.routes["/execute"] = sound_but(guest, fault)
    result = await run("evaluate", task())
    assert (result.status, result.value, result.guest_failed) == ("ok", 0.0, False)
    assert [(one.status, one.control) for one in result.failures] == [(500, "passed")]


async def test_a_guest_that_cannot_run_anything_is_broken(run: Run, guest: HttpGuest) -> None:
    guest.routes["/execute"] = status(500)
    result = await run("evaluate", task())
    assert (result.status, result.value, result.error_type) == ("failed", None, "GuestBroken")
    assert (result.guest_failed, result.guest_alive_after) == (False, True)


async def test_a_command_without_an_answer_ends_by_its_time(
    run: Run, guest: HttpGuest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(runner.IDLE_TIMEOUT_S, "evaluate", 3.0)
    guest.routes["/execute"] = sound_but(guest, silence)
    result = await run("evaluate", task())
    assert (result.status, result.value) == ("ok", 0.0)
    assert [(one.outcome, one.control) for one in result.failures] == [("timeout", "passed")]


@pytest.mark.parametrize("fault", [status(502), reset, half])
async def test_an_evaluator_that_could_not_look_gives_no_score(run: Run, guest: HttpGuest, fault: Any) -> None:
    guest.routes["/execute"] = fault
    result = await run("evaluate", task())
    assert (result.status, result.value, result.error_type) == ("failed", None, "GuestExchangeFailed")
    assert (result.guest_failed, result.guest_alive_after) == (True, True)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (timed_out(), "killed at its limit"),
        (command("half", returncode=-9, out_of_memory=True), "killed for lack of memory"),
        ({"status": "success", "output": "half", "error": "", "returncode": -9}, "killed for lack of memory"),
    ],
)
@pytest.mark.parametrize("phase", ["prepare", "postconfig"])
async def test_a_killed_step_is_not_done(run: Run, guest: HttpGuest, answer: Any, words: str, phase: str) -> None:
    guest.routes["/setup/execute"] = answer
    steps = [{"type": "execute", "parameters": {"command": ["make"]}}]
    result = await run(phase, {**task(postconfig=steps), "config": steps})
    assert (result.status, result.value, result.error_type) == ("failed", None, "CommandKilled")
    assert words in result.error_message
    assert not result.guest_failed


async def test_a_command_that_the_kernel_killed_is_no_answer(run: Run, guest: HttpGuest) -> None:
    """Without memory the desktop does not show what the agent left. A script that ends itself is the agent's fact."""
    guest.routes["/execute"] = command("no\n", returncode=-9, out_of_memory=True)
    starved = await run("evaluate", task())
    assert (starved.status, starved.value, starved.error_type) == ("failed", None, "CommandKilled")
    assert not starved.guest_failed, "a policy must not gain another attempt by it"
    guest.routes["/execute"] = command("no\n", returncode=-9)
    assert (await run("evaluate", task())).value == 0.0
    stock = {name: value for name, value in command("no\n", returncode=-9).items() if name != "out_of_memory"}
    guest.routes["/execute"] = stock
    assert (await run("evaluate", task())).value is None, "OSWorld's own server does not say why"


async def to_a_closed_port(_: web.BaseRequest) -> web.StreamResponse:
    """Lead elsewhere."""
    return web.Response(status=302, headers={"Location": "http://127.0.0.1:1/x"})


@pytest.mark.parametrize(
    "answer", [to_a_closed_port, b'{"output": "hel', b"<html>the sandbox is resuming</html>", {"status": "resuming"}]
)
async def test_what_canonical_code_swallows_gives_no_score(run: Run, guest: HttpGuest, answer: Any) -> None:
    """Canonical `get_terminal_output` and `get_file` log these and go on with None, which scored 0.0."""
    terminal = task(
        func="check_include_exclude",
        result={"type": "vm_terminal_output"},
        expected={"type": "rule", "rules": {"include": ["hello"], "exclude": []}},
    )
    guest.routes["/terminal"] = answer
    result = await run("evaluate", terminal)
    assert (result.status, result.value, result.error_type) == ("failed", None, "GuestExchangeFailed"), result
    assert result.guest_failed
    guest.routes["/terminal"] = {"output": "hello"}
    assert (await run("evaluate", terminal)).value == 1.0


async def test_a_garbled_answer_spoils_a_postconfig(run: Run, guest: HttpGuest) -> None:
    guest.routes["/setup/execute"] = b'{"status": "success", "out'
    result = await run("postconfig", task(postconfig=[{"type": "execute", "parameters": {"command": ["save"]}}]))
    assert (result.status, result.value, result.guest_failed) == ("failed", None, True)


async def test_the_guest_does_not_send_the_evaluator_to_the_host(
    run: Run, guest: HttpGuest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without isolation a redirect would be fetched from the machine's loopback, and scored 1.0."""
    monkeypatch.setenv("ROLLBOOK_EVALUATOR_ISOLATION", "none")
    monkeypatch.setenv("ROLLBOOK_DOWNLOAD_PRIVATE", "1")
    async with HttpGuest(routes={"/internal": command("yes\n"), "/gold": b"no"}) as service:

        async def redirect(_: web.BaseRequest) -> web.StreamResponse:
            return web.Response(status=307, headers={"Location": f"{service.url}/internal"})

        guest.routes["/execute"] = redirect
        either = task(
            func=["exact_match", "exact_match"],
            conj="or",
            result=[task()["evaluator"]["result"], {"type": "cloud_file", "path": f"{service.url}/gold", "dest": "g"}],
            expected=[task()["evaluator"]["expected"]] * 2,
        )
        result = await run("evaluate", either)
        assert "/internal" not in service.paths()
    assert (result.isolation, result.status, result.value, result.guest_failed) == ("none", "failed", None, True)
    assert [(e.path, e.outcome, e.status) for e in result.failures] == [("/execute", "redirected", 307)]


async def test_a_player_that_hangs_is_not_a_closed_one(
    run: Run, guest: HttpGuest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(runner.IDLE_TIMEOUT_S, "evaluate", 1.0)
    player = task(
        func="is_vlc_playing",
        result={"type": "vlc_playing_info", "dest": "status.xml"},
        expected={"type": "rule", "rules": {"type": "file_name", "file_name": "a"}},
    )
    async with HttpGuest(routes={"/requests/status.xml": silence}) as vlc:
        result = await run("evaluate", player, endpoints={5000: Endpoint(guest.url), 8080: Endpoint(vlc.url)})
    assert (result.value, result.error_type, result.guest_failed) == (None, "GuestExchangeFailed", True)
    assert result.exchanges[8080] == {"timeout": 1}


async def test_a_browser_that_leads_elsewhere_gives_no_score(run: Run, guest: HttpGuest) -> None:
    tabs = task(func="is_expected_tabs", result={"type": "open_tabs_info"}, expected=urls("https://example.org"))
    guest.routes["/setup/launch"] = b"launched"
    async with HttpGuest(routes={"/json/version/": {"webSocketDebuggerUrl": "http://127.0.0.1:1/x"}}) as browser:
        result = await run("evaluate", tabs, endpoints={5000: Endpoint(guest.url), 9222: Endpoint(browser.url)})
    assert (result.value, result.error_type, result.guest_failed) == (None, "GuestExchangeFailed", True)
    assert set(result.exchanges[9222]) == {"garbled"}


async def test_a_reset_is_not_outlived_by_a_retry_that_works(run: Run, guest: HttpGuest) -> None:
    """Canonical `get_file` tries three times and does not report the first two."""

    async def first_time(request: web.BaseRequest) -> web.StreamResponse:
        guest.routes["/file"] = b"yes\n"
        return await reset(request)

    guest.routes["/file"] = first_time
    result = await run("evaluate", task(func="compare_text_file", result=vm_file(), expected=vm_file()))
    assert (result.status, result.value, result.guest_failed) == ("failed", None, True)


async def test_a_guest_that_dies_during_evaluation_ends_it_at_once(run: Run, guest: HttpGuest) -> None:
    async def die(request: web.BaseRequest) -> web.StreamResponse:
        asyncio.get_running_loop().call_soon(lambda: dying.append(asyncio.ensure_future(guest.die())))
        await asyncio.sleep(3600)
        return web.Response()

    dying: list[asyncio.Future[None]] = []
    guest.routes["/file"] = die
    result = await run("evaluate", task(func="compare_text_file", result=vm_file(), expected=vm_file()))
    assert (result.status, result.value, result.error_type) == ("failed", None, "GuestLost")
    assert (result.guest_failed, result.guest_alive_after) == (True, False)
    await asyncio.gather(*dying)


async def test_a_guest_that_is_gone_before_is_never_scored(run: Run, guest: HttpGuest) -> None:
    await guest.die()
    result = await run("evaluate", task(func="infeasible"), terminal_action="FAIL")
    assert (result.value, result.error_type, result.guest_alive_after) == (None, "GuestLost", False)
    assert await asyncio.to_thread(result.log_path.read_text) == ""


async def test_another_guest_in_its_place_is_never_scored(run: Run, guest: HttpGuest) -> None:
    before = await run("evaluate", task(), expected_nonce="nonce-of-another-boot")
    assert (before.value, before.error_type, before.guest_failed) == (None, "GuestReplaced", True)
    assert guest.paths() == []

    async def reboot(_: web.BaseRequest) -> web.StreamResponse:
        guest.nonce = "nonce-after-a-reboot"
        return web.json_response(command("yes\n"))

    guest.routes["/execute"] = reboot
    during = await run("evaluate", task())
    assert (during.value, during.error_type, during.guest_failed) == (None, "GuestReplaced", True)


async def test_a_404_and_a_closed_browser_are_facts(run: Run, guest: HttpGuest) -> None:
    guest.routes["/execute"] = status(404)
    missing = await run("evaluate", task())
    assert (missing.status, missing.value) == ("ok", 0.0)
    player = task(
        func="is_vlc_playing",
        result={"type": "vlc_playing_info", "dest": "status.xml"},
        expected={"type": "rule", "rules": {"type": "file_name", "file_name": "a"}},
    )
    closed = await run("evaluate", player)
    assert (closed.status, closed.guest_failed, closed.guest_alive_after) == ("failed", False, True)
    assert closed.error_type == "ConnectionError", closed.error_message


async def test_an_exception_is_an_error_and_never_a_zero(run: Run) -> None:
    broken = task(expected={"type": "rule", "rules": {}})
    result = await run("evaluate", broken)
    assert (result.status, result.value, result.error_type, result.error_message) == (
        "failed", None, "KeyError", "'expected'",
    )  # fmt: skip
    assert "exact_match" in result.traceback
    unknown = await run("evaluate", task(func="no_such_metric"))
    assert (unknown.value, unknown.error_type) == (None, "AttributeError")


async def test_a_package_that_is_not_there_is_an_error_and_never_a_one(run: Run, guest: HttpGuest) -> None:
    """Without librosa `compare_audios` takes two unreadable files for equal: 1.0 upstream."""
    guest.routes["/file"] = b"RIFF"
    result = await run("evaluate", task(func="compare_audios", result=vm_file("a.wav"), expected=vm_file("b.wav")))
    assert (result.status, result.value, result.error_type) == ("failed", None, "MissingPackage")
    assert "librosa.load" in result.error_message


async def test_a_file_that_could_not_be_kept_is_an_error_and_never_a_zero(run: Run, guest: HttpGuest) -> None:
    guest.routes["/file"] = b"yes\n"
    result = await run(
        "evaluate", task(func="compare_text_file", result=vm_file("no/such/directory/x"), expected=vm_file("b"))
    )
    assert (result.status, result.value, result.error_type) == ("failed", None, "LocalFileError")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"endpoints": {}}, "endpoints: port 5000"),
        ({"terminal_action": "WAIT"}, "terminal_action"),
        ({"task": {"id": TASK_ID, "instruction": "x"}}, r"task\.evaluator"),
        ({"task": {**task(), "id": "../x"}}, r"task\.id"),
    ],
)
async def test_arguments_that_cannot_be_right_are_refused(run: Run, changes: dict[str, Any], field: str) -> None:
    given = changes.pop("task", task())
    with pytest.raises(InvalidInput, match=field):
        await run("evaluate", given, **changes)
