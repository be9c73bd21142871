"""Text for serving engines. No model runs here; costs belong to an engine, so no speed-up carries over."""
