"""Language models in memory: loading, devices, caches, logits, and the law that tokens are drawn from."""
