"""The accessibility tree. libatspi is neither thread-safe nor proof against hanging applications, so it lives in
short-lived helper processes; `helper` is the server's side, `reader` the process.
"""
