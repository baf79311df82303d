"""Evidence of a rollout: media, exact calls, trajectories, and the proof that prompts can be rendered again."""
