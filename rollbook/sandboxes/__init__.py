"""Desktops to run episodes on: the provider protocol and its implementations."""
