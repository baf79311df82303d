"""Benchmarks: what a step costs, how large its history is, how quick desktops are, and how the ledger grows.

Everything runs on servers of its own, which it starts and stops. Nothing here asserts a time: machines differ. Read
CPU-milliseconds and ratios; wall times are medians of several rounds.
"""
