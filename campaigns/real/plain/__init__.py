"""References in plain torch, written here from the definitions, where a project has no naive one of its own."""
