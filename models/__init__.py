"""What crosses a boundary, and the pure rules over it: pydantic only, no I/O, no clock, no randomness."""
