"""One serving engine a file: what it takes, what it refuses, and how it counts."""
