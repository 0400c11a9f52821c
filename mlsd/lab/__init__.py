"""Several machines as one lab: each measures alone as it would by itself, one coordinator writes the database."""
