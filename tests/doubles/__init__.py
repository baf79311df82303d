"""Stand-ins for parts that a test cannot have; each says what it cannot prove."""
