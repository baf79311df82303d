"""The display of an episode in the Temporal UI: Markdown that its renderer does not run together."""

from models.episode import AttemptRef, DesktopRef, EpisodePlan, Observation
from models.evidence import ArtifactRef
from workflows.attempt_state import AttemptState


def a_story(instruction: str) -> AttemptState:
    plan = EpisodePlan(
        batch_id="b",
        task_id="t",
        domain="os",
        sample=0,
        instruction=instruction,
        max_steps=15,
        deadline_s=60,
        model_timeout_s=60,
        action_timeout_s=60,
        setup_timeout_s=60,
        evaluate_timeout_s=60,
        start_timeout_s=60,
        artifact_url="http://127.0.0.1:8288",
        desktop_queue="d",
        osworld_queue="o",
    )
    state = AttemptState(
        AttemptRef(rollout_key="b/os/t/0", attempt_index=1), plan, phase="deciding", last_action="click(1, 2)"
    )
    state.desktop = DesktopRef(
        provider="docker", sandbox_id="i", sandbox_key="k", nonce="n", view_url="http://127.0.0.1:6080/v"
    )
    state.observation = Observation(screenshot=ArtifactRef(sha256="a" * 64, size_bytes=1, media_type="image/png"))
    return state


def test_the_quote_holds_the_instruction_and_nothing_else() -> None:
    lines = a_story("Rename it.\n\n- Then stop.").details().split("\n")
    assert [line for line in lines if line.startswith(">")] == ["> Rename it.", "> ", "> - Then stop."]
    last = max(number for number, line in enumerate(lines) if line.startswith(">"))
    assert lines[last + 1] == "", "without a blank line, what follows belongs to the quote"
    assert all(line.startswith("- ") for line in lines[last + 2 :])
    assert len(lines[last + 2 :]) == 4


def test_the_live_view_is_linked_while_there_is_one() -> None:
    state = a_story("x")
    assert "[live view](http://127.0.0.1:6080/v)" in state.details()
    state.finalized = True
    assert "live view" not in state.details()
    assert "latest screenshot" in state.details()
