"""The ledger's schema, one explained revision after the other. Run by rollbook.ledger.migrate."""
