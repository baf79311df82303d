"""The dress rehearsal: a whole task set through real workflows while the servers are killed in turn."""
