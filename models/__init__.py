"""Values that cross a boundary, and the pure rules over them: pydantic only; no I/O, clock or randomness."""
