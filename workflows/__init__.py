"""The order of events, deterministic and thin: the effects are in `activities`, the rules in `models`."""
