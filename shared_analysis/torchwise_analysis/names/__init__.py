"""From names to files: which source text an import refers to, found without importing anything."""
