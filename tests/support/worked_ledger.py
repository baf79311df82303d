"""One small ledger that holds every kind of row, played by hand: what the documented questions are asked of.

`nightly-7`, thirteen rollouts (✎ decided by hand, ⚙ by a rule over the whole batch):

| task | sample 0 | sample 1 | sample 2 |
|---|---|---|---|
| browse, chrome | 0.5, masked ✎ | timeout, never evaluated | |
| crop, gimp | queued | running, live desktop | |
| layer, gimp | running, lease expired | timeout, desktop stopped, waits for its rerun | |
| 5ea617a3…, os | sandbox lost (its desktop is still there), then 1.0 | 0.0 | 1.0, superseded by 0.5 |
| mail, thunderbird | waiting | waiting | |
| play, vlc | 1.0, masked ✎, admitted ⚙ | 1.0, an action in doubt, masked ⚙ | |

`nightly-6`, eight: browse (an older version of it) 0.5 and 1.0; read, chrome 1.0 and timeout; os 1.0 and 1.0; vlc 1.0
and 1.0. `event-1` is a trainer's whole group: 1.0, 0.0, 1.0 masked for training ✎, timeout. `event-2` is one of four
members of which two have ended: 1.0 and 0.0.
"""

from typing import Any

from models.admission import AdmissionDecision, Scope
from models.episode import DesktopRef, FinalizeRequest, Observation
from models.task import Task, read_task
from rollbook.ledger import Ledger, ModelCall
from rollbook.ledger.admission import PolicyToReapply
from tests.support.ledger import Kit, artifact, facts, make_task, ref

OS = "5ea617a3-0e86-4ba6-aab2-dac9aa2e8d57"
DOMAINS = {
    "browse": "chrome",
    "read": "chrome",
    "crop": "gimp",
    "layer": "gimp",
    OS: "os",
    "mail": "thunderbird",
    "play": "vlc",
}


def task(name: str, instruction: str = "do it") -> Task:
    """A task of that id."""
    return read_task(DOMAINS[name], make_task(0, instruction=instruction).document | {"id": name})


class Worked:
    """Plays the batches. `before` and `after` are nightly-6 and nightly-7."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.before, self.after = Kit(ledger, batch_id="nightly-6"), Kit(ledger, batch_id="nightly-7")

    async def play(self) -> None:
        """All of it, in one order: times in the ledger follow it."""
        await self._register()
        await self._play_before()
        await self._play_os()
        await self._play_decisions()
        await self._play_open_rows()
        await self._play_group("event-1", (1.0, 0.0, 1.0, None))
        mask = AdmissionDecision(
            scope=Scope.TRAINING, policy_id="rollbook-manual-v1", admitted=False, reason="leaked the answer"
        )
        await self.ledger.decide_admission("event-1/os/" + OS + "/2", mask, decided_by="ann")
        await self._play_group("event-2", (1.0, 0.0))

    def key(self, name: str, sample: int = 0, batch_id: str = "nightly-7") -> str:
        """Key of a rollout."""
        return f"{batch_id}/{DOMAINS[name]}/{name}/{sample}"

    async def _register(self) -> None:
        older = [task("browse", "an older version"), task("read"), task(OS), task("play")]
        await self.ledger.register_task_set("older", older)
        await self.before.register(task_set="older", samples=2)
        newer = [task(name) for name in ("browse", "crop", "layer", OS, "mail", "play")]
        await self.ledger.register_task_set("newer", newer)
        await self.after.register(task_set="newer", samples=2)
        await self.after.register(task_set="newer", tasks={"ids": [OS]}, samples=3, extend=True)

    async def _play_before(self) -> None:
        scores = {("browse", 0): 0.5, ("browse", 1): 1.0, ("read", 0): 1.0}
        scores |= {(name, sample): 1.0 for name in (OS, "play") for sample in (0, 1)}
        for (name, sample), score in scores.items():
            await self.before.run(self.key(name, sample, "nightly-6"), score=score)
        await self._time_out(self.key("read", 1, "nightly-6"))

    async def _time_out(self, key: str, desktop: str | None = None) -> None:
        """An attempt of one step that met its deadline, on a desktop that was stopped."""
        claimed = await self.after.claim(key, "run-1")
        if desktop is not None:
            await self._desktop(key, claimed.attempt_index, desktop, lease_s=600)
        await self.after.end(key, claimed.attempt_index, "run-1", infrastructure_failure_reason="timeout", steps=1)
        if desktop is not None:
            await self.ledger.sandbox_stopped(f"desktop-{desktop}", "episode ended")

    async def _play_os(self) -> None:
        key = self.key(OS, 0)
        await self.after.claim(key, "run-1")
        await self._desktop(key, 1, "lost", lease_s=600)
        await self.after.end(key, 1, "run-1", infrastructure_failure_reason="sandbox_lost", steps=0)
        await self.after.run(key, "run-2", score=1.0, steps=2)
        await self.after.run(self.key(OS, 1), score=0.0, steps=5)
        superseded = self.key(OS, 2)
        await self.after.run(superseded, score=1.0, steps=3)
        await self.ledger.request_rerun(
            "nightly-7", [superseded], reason="wrong image", requested_by="bob", supersede=True
        )
        await self.after.run(superseded, score=0.5, steps=4)

    async def _play_decisions(self) -> None:
        popup, doubted, leaked = self.key("play", 0), self.key("play", 1), self.key("browse", 0)
        await self.after.run(popup, score=1.0, steps=6)
        await self._run_in_doubt(doubted)
        by_hand = {"policy_id": "rollbook-manual-v1", "admitted": False}
        await self.ledger.decide_admission(popup, AdmissionDecision(**by_hand, reason="a popup"), decided_by="bob")
        rule = PolicyToReapply("exclude-in-doubt-v1", "the paper's rule", "ann", override_manual=True)
        await self.ledger.reapply_policy("nightly-7", rule)
        await self.after.run(leaked, score=0.5, steps=1)
        await self.ledger.decide_admission(leaked, AdmissionDecision(**by_hand, reason="leaked"), decided_by="ann")
        await self._time_out(self.key("browse", 1))

    async def _run_in_doubt(self, key: str) -> None:
        await self.after.claim(key, "run-1")
        await self.after.step(key, 1, "run-1", 0)
        done = ModelCall(step=1, policy_kind="noop", actions=["WAIT", "WAIT"], terminal_action="DONE")
        await self.ledger.commit_model_call(ref(key, 1), "run-1", done)
        await self.ledger.commit_turn(
            ref(key, 1),
            "run-1",
            step=1,
            observation=Observation(screenshot=artifact(key)),
            actions=[{"status": "ok"}, {"status": "in_doubt"}],
            started_at=1_700_000_000.0,
        )
        await self.after.evaluate(key, 1, "run-1", 1.0)
        await self.ledger.finalize(FinalizeRequest(attempt=ref(key, 1), facts=facts(), steps=1), "run-1")

    async def _play_open_rows(self) -> None:
        again = self.key("layer", 1)
        await self._time_out(again, "gone")
        await self.ledger.request_rerun("nightly-7", [again], reason="a slow host", requested_by="bob")
        expired, live = self.key("layer", 0), self.key("crop", 1)
        await self.after.claim(expired, "run-1")
        await self._desktop(expired, 1, None, lease_s=-60)
        await self.after.claim(live, "run-1")
        await self._desktop(live, 1, "live", lease_s=600)
        await self.after.step(live, 1, "run-1", 0)
        await self._ask_model(live)
        await self.ledger.mark_queued([self.key("crop", 0)])

    async def _desktop(self, key: str, attempt: int, name: str | None, *, lease_s: float) -> None:
        """A desktop that is live, or (without a name) only intended."""
        sandbox_key = f"desktop-{name or 'intended'}"
        await self.ledger.sandbox_intent(
            ref(key, attempt),
            "run-1",
            sandbox_key=sandbox_key,
            deployment_id="test",
            provider="docker",
            lease_s=lease_s,
        )
        if name is not None:
            url = "" if name == "lost" else f"http://127.0.0.1:7000/{name}"
            desktop = DesktopRef(
                provider="docker", sandbox_id=f"id-{name}", sandbox_key=sandbox_key, nonce=name, view_url=url
            )
            await self.ledger.sandbox_started(ref(key, attempt), "run-1", desktop, lease_s=lease_s)

    async def _ask_model(self, key: str) -> None:
        """Step 1 in two tries of the parser, 2 s and 4 s; nothing has acted yet."""
        said: dict[str, Any] = {"policy_kind": "openai", "model_name": "m", "model_version": "m-1", "step": 1}
        first = said | {"accepted": False, "parse_error": "no block", "prompt_tokens": 100, "completion_tokens": 20}
        second = said | {"parse_attempt": 2, "actions": ["WAIT"], "prompt_tokens": 130, "completion_tokens": 10}
        for call in (ModelCall(**first, latency_s=2), ModelCall(**second, latency_s=4)):
            await self.ledger.commit_model_call(ref(key, 1), "run-1", call)

    async def _play_group(self, batch_id: str, scores: tuple[float | None, ...]) -> None:
        kit = Kit(self.ledger, batch_id=batch_id)
        identity = {"sampling_event_id": f"sampling-{batch_id}", "source_group_id": "g"}
        keys = await kit.keys(task_set="newer", tasks={"ids": [OS]}, samples=4, purpose="train", identity=identity)
        for key, score in zip(keys, scores, strict=False):
            await (self._time_out(key) if score is None else kit.run(key, score=score))
