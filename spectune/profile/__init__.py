"""The artefact: what was measured, as values and tables; stored, read back strictly, never interpreted."""
