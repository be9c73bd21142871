"""What a checkpoint's files say before any weight is read."""
