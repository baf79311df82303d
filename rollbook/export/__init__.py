"""Files for trainers and evaluators, made from ledger and artifacts alone: the same batch gives the same bytes."""
