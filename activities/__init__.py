"""The effects, one file per actor. Everything here may run more than once; each effect is harmless when repeated."""
