"""What happens, in which order: deterministic and thin. Effects are in `activities`, rules in `models`."""
