"""Source code that runs inside the guest. Shipped as text with each request; never imported by Rollbook itself.

Python 3.8 and its standard library, because that is what the oldest OSWorld guests have.
"""
