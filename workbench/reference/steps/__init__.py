"""The kinds of operations that attention is made of, one record each: see `stage.Step`."""
