"""Text for people and agents, made from a Recommendation. Nothing here reads or writes files."""
