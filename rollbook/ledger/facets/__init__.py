"""The ledger's methods by subject; `Ledger` is all of them. Every method is one transaction unless it says more."""
