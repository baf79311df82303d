"""What a rollout leaves behind: media, exact calls, trajectories, and the proof that prompts can be rendered again."""
