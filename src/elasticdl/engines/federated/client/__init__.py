"""The party's side: its data, its client state, and the redaction of what leaves it."""
