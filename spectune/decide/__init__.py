"""From a profile to an answer. Pure: nothing here measures or loads a model."""
