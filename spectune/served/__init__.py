"""What a running server tells."""
