"""The party's side: its data, its client state, and the redaction of its error messages."""
