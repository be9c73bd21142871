"""The exact rule and the loop around it."""
