"""Model protocols: how a prompt is written and a reply is read, one class per protocol id."""
