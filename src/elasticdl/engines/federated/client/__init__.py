"""A party of a federation: its data, its client state, and the redaction of its errors."""
